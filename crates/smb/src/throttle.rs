//! Delays login attempts after wrong passwords, longer after each one.
//!
//! The delay falls on the address that guesses: failures on one account from one address delay the next
//! attempts on that account from that address by up to 10 s. All failures from one address, and all failures
//! on one account, also delay other attempts from that address and on that account, but by at most 0.5 s. So
//! an owner at another address can always log in. No account is ever locked. The right password ends the
//! delays of that account from that address. Old failures are forgotten only when the table of failures is
//! full.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

use lazuli_concurrency::{Span, Timestamp};
use parking_lot::Mutex;

/// Maximum number of failure records for each rule.
const MAX_ENTRIES_PER_RULE: usize = 8192;
/// When a map is full, records are removed whose delay has ended this long ago.
const RETENTION: Span = Span::seconds(600);
/// Longest delay of an attempt on the same account from the same address.
const MAX_WAIT: Span = Span::seconds(10);
/// Longest delay of an attempt that only shares the address, or only the account, with failures.
const MAX_SHARED_WAIT: Span = Span::millis(500);

/// One rule for each property that an attempt can share with earlier failures.
const RULES: [DelayRule; 3] = [
    // Address and account.
    DelayRule { first_cost: Span::millis(100), max_cost: Span::millis(3_200), max_wait: MAX_WAIT },
    // The address.
    DelayRule { first_cost: Span::millis(10), max_cost: Span::millis(100), max_wait: MAX_SHARED_WAIT },
    // The account.
    DelayRule { first_cost: Span::millis(10), max_cost: Span::millis(100), max_wait: MAX_SHARED_WAIT },
];

/// How much each failure delays later attempts.
#[derive(Clone, Copy, Debug)]
struct DelayRule {
    /// Delay after the first failure. Each further failure doubles it.
    first_cost: Span,
    /// Maximum delay that one failure adds.
    max_cost: Span,
    max_wait: Span,
}

/// The failed attempts that still count.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// One map for each rule. The key is a hash of the address and account, because clients choose the names
    /// and may choose long ones.
    failures: Mutex<[HashMap<u64, Failures>; RULES.len()]>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// Time at which the next attempt is checked.
    until: Timestamp,
}

/// An attempt to log in: its key for each rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoginAttempt([u64; RULES.len()]);

/// Returns the address, or for IPv6 its /64 network, which usually belongs to one customer.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

impl Throttle {
    /// Returns the keys of an attempt from an address on an account.
    pub(crate) fn attempt(&self, address: IpAddr, account: &str) -> LoginAttempt {
        let address = network(address);
        let hash = |address: Option<IpAddr>, account: Option<&str>| self.hasher.hash_one((address, account));
        LoginAttempt([
            hash(Some(address), Some(account)),
            hash(Some(address), None),
            hash(None, Some(account)),
        ])
    }

    /// Returns how long to wait before checking the password.
    pub(crate) fn wait(&self, attempt: &LoginAttempt, now: Timestamp) -> Span {
        let all = self.failures.lock();
        let waits = all.iter().zip(&attempt.0).zip(RULES).filter_map(|((failures, key), rule)| {
            Some(failures.get(key)?.until.since(now).min(rule.max_wait))
        });
        waits.max().unwrap_or(Span::ZERO)
    }

    /// Records a wrong password. Returns how long to wait before the response.
    pub(crate) fn record_failure(&self, attempt: &LoginAttempt, now: Timestamp) -> Span {
        for ((failures, key), rule) in self.failures.lock().iter_mut().zip(attempt.0).zip(RULES) {
            evict(failures, now);
            let failures = failures.entry(key).or_insert(Failures { count: 0, until: now });
            let cost = Span::from_ticks(rule.first_cost.ticks() << failures.count.min(16)).min(rule.max_cost);
            failures.count = failures.count.saturating_add(1);
            failures.until = (failures.until.max(now) + cost).min(now + rule.max_wait);
        }
        self.wait(attempt, now)
    }

    /// Records a right password. Failures on other accounts from the same address still count.
    pub(crate) fn record_success(&self, attempt: &LoginAttempt) {
        self.failures.lock()[0].remove(&attempt.0[0]);
    }

    /// Returns the number of failure records of all rules.
    pub(crate) fn entries(&self) -> usize {
        self.failures.lock().iter().map(HashMap::len).sum()
    }
}

/// Removes old records if the map is full. If that frees nothing, removes all: throttling does not stop an
/// attacker with that many addresses anyway.
fn evict(all: &mut HashMap<u64, Failures>, now: Timestamp) {
    if all.len() < MAX_ENTRIES_PER_RULE {
        return;
    }
    all.retain(|_, failures| failures.until + RETENTION > now);
    if all.len() >= MAX_ENTRIES_PER_RULE {
        all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_000_000);
    const GUESSER: &str = "10.0.0.1";
    const OWNER: &str = "10.0.0.2";

    fn attempt(throttle: &Throttle, address: &str, account: &str) -> LoginAttempt {
        throttle.attempt(address.parse().expect("an address"), account)
    }

    #[test]
    fn each_failure_doubles_the_delay_up_to_a_limit() {
        let throttle = Throttle::default();
        let attempt = attempt(&throttle, GUESSER, "alice");
        assert_eq!(throttle.wait(&attempt, NOW), Span::ZERO);
        let mut now = NOW;
        for cost in [100, 200, 400, 800, 1600, 3200, 3200, 3200] {
            assert_eq!(throttle.record_failure(&attempt, now), Span::millis(cost));
            now = now + Span::millis(cost);
        }
        assert_eq!(throttle.wait(&attempt, now), Span::ZERO);
    }

    #[test]
    fn concurrent_attempts_wait_for_the_sum_of_their_delays() {
        let throttle = Throttle::default();
        let attempt = attempt(&throttle, GUESSER, "alice");
        for waited in [100, 300, 700] {
            assert_eq!(throttle.record_failure(&attempt, NOW), Span::millis(waited));
        }
        for _ in 0..100 {
            assert!(throttle.record_failure(&attempt, NOW) <= MAX_WAIT);
        }
        assert_eq!(throttle.wait(&attempt, NOW), MAX_WAIT);
    }

    #[test]
    fn guessing_delays_the_owner_at_another_address_by_at_most_half_a_second() {
        let throttle = Throttle::default();
        for _ in 0..1000 {
            throttle.record_failure(&attempt(&throttle, GUESSER, "alice"), NOW);
        }
        for (address, account, waits) in [
            (GUESSER, "alice", MAX_WAIT),
            ("::ffff:10.0.0.1", "alice", MAX_WAIT),
            (OWNER, "alice", Span::millis(500)),
            (GUESSER, "bob", Span::millis(500)),
            (OWNER, "bob", Span::ZERO),
        ] {
            assert_eq!(
                throttle.wait(&attempt(&throttle, address, account), NOW),
                waits,
                "{address} {account}"
            );
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let throttle = Throttle::default();
        throttle.record_failure(&attempt(&throttle, "2001:db8::1", "carol"), NOW);
        assert_eq!(throttle.wait(&attempt(&throttle, "2001:db8::ffff", "carol"), NOW), Span::millis(100));
        assert_eq!(throttle.wait(&attempt(&throttle, "2001:db8:0:1::1", "carol"), NOW), Span::millis(10));
    }

    #[test]
    fn the_right_password_ends_only_the_delays_of_its_own_account() {
        let throttle = Throttle::default();
        let (own, other) = (attempt(&throttle, GUESSER, "mallory"), attempt(&throttle, GUESSER, "alice"));
        for _ in 0..3 {
            throttle.record_failure(&own, NOW);
            throttle.record_failure(&other, NOW);
        }
        throttle.record_success(&own);
        assert!(throttle.wait(&own, NOW) <= MAX_SHARED_WAIT);
        assert_eq!(throttle.wait(&other, NOW), Span::millis(700));
    }

    #[test]
    fn failure_records_are_bounded() {
        let throttle = Throttle::default();
        for index in 0..2 * MAX_ENTRIES_PER_RULE as u32 {
            let attempt = throttle.attempt(IpAddr::V4(index.into()), &format!("account{index}"));
            throttle.record_failure(&attempt, NOW);
        }
        assert!(throttle.entries() <= RULES.len() * MAX_ENTRIES_PER_RULE);
    }
}
