//! Wrong passwords cost time, and more with each.
//!
//! The cost falls on the address that guesses: failures on one account from one address delay the next attempts on that
//! account from there by up to 10 s. All failures from one address, and all on one account, delay other attempts from
//! there and on it, too, but by half a second at most: an owner on another address can always log in. No account is ever
//! locked, and failures are forgotten after a while. The right password ends the delays of its own account and address.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

use lazuli_concurrency::{Span, Timestamp};
use parking_lot::Mutex;

/// Failures that are remembered of each kind.
const MAX_REMEMBERED: usize = 8192;
/// How long failures are remembered after the last.
const MEMORY: Span = Span::seconds(600);
/// Longest delay of an attempt on the same account from the same address.
const LONGEST_WAIT: Span = Span::seconds(10);
/// Longest delay of an attempt that only shares the address, or only the account, with failures.
const LONGEST_SHARED_WAIT: Span = Span::millis(500);

/// What failures have in common with an attempt.
const KINDS: [Kind; 3] = [
    // Address and account.
    Kind { first: Span::millis(100), most: Span::millis(3_200), longest_wait: LONGEST_WAIT },
    // The address.
    Kind { first: Span::millis(10), most: Span::millis(100), longest_wait: LONGEST_SHARED_WAIT },
    // The account.
    Kind { first: Span::millis(10), most: Span::millis(100), longest_wait: LONGEST_SHARED_WAIT },
];

/// What failures of one kind cost.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// What the first failure costs; each further one twice as much.
    first: Span,
    /// What a failure costs at most.
    most: Span,
    longest_wait: Span,
}

/// Failed attempts.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// By kind, and by the hash of what is in common: clients choose names, and long ones take no more room.
    failures: Mutex<[HashMap<u64, Failures>; KINDS.len()]>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When the next attempt has its turn.
    until: Timestamp,
}

/// An attempt to log in: the hashes of what it has in common with others, by kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt([u64; KINDS.len()]);

/// Returns what an address counts as: itself, or the network of 64 bits that one customer has.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

impl Throttle {
    /// An attempt from an address on an account.
    pub(crate) fn attempt(&self, address: IpAddr, account: &str) -> Attempt {
        let address = network(address);
        let hash = |address: Option<IpAddr>, account: Option<&str>| self.hasher.hash_one((address, account));
        Attempt([hash(Some(address), Some(account)), hash(Some(address), None), hash(None, Some(account))])
    }

    /// How long an attempt has to wait before it is looked at.
    pub(crate) fn wait(&self, attempt: &Attempt, now: Timestamp) -> Span {
        let all = self.failures.lock();
        let waits = all.iter().zip(&attempt.0).zip(KINDS).filter_map(|((failures, key), kind)| {
            Some(failures.get(key)?.until.since(now).min(kind.longest_wait))
        });
        waits.max().unwrap_or(Span::ZERO)
    }

    /// The password was wrong. How long to wait before saying so.
    pub(crate) fn failed(&self, attempt: &Attempt, now: Timestamp) -> Span {
        for ((failures, key), kind) in self.failures.lock().iter_mut().zip(attempt.0).zip(KINDS) {
            make_room(failures, now);
            let failures = failures.entry(key).or_insert(Failures { count: 0, until: now });
            let cost = Span::from_ticks(kind.first.ticks() << failures.count.min(16)).min(kind.most);
            failures.count = failures.count.saturating_add(1);
            failures.until = (failures.until.max(now) + cost).min(now + kind.longest_wait);
        }
        self.wait(attempt, now)
    }

    /// The password was right. Failures on other accounts from that address still count.
    pub(crate) fn succeeded(&self, attempt: &Attempt) {
        self.failures.lock()[0].remove(&attempt.0[0]);
    }

    /// Returns how many failures of all kinds are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.failures.lock().iter().map(HashMap::len).sum()
    }
}

/// Forgets what is long ago; if that is not enough, everything: an attacker with so many addresses is not slowed anyway.
fn make_room(all: &mut HashMap<u64, Failures>, now: Timestamp) {
    if all.len() < MAX_REMEMBERED {
        return;
    }
    all.retain(|_, failures| failures.until + MEMORY > now);
    if all.len() >= MAX_REMEMBERED {
        all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_000_000);
    const GUESSER: &str = "10.0.0.1";
    const OWNER: &str = "10.0.0.2";

    fn attempt(throttle: &Throttle, address: &str, account: &str) -> Attempt {
        throttle.attempt(address.parse().expect("an address"), account)
    }

    #[test]
    fn each_failure_costs_twice_as_much_up_to_a_bound() {
        let throttle = Throttle::default();
        let attempt = attempt(&throttle, GUESSER, "alice");
        assert_eq!(throttle.wait(&attempt, NOW), Span::ZERO);
        let mut now = NOW;
        for cost in [100, 200, 400, 800, 1600, 3200, 3200, 3200] {
            assert_eq!(throttle.failed(&attempt, now), Span::millis(cost));
            now = now + Span::millis(cost);
        }
        assert_eq!(throttle.wait(&attempt, now), Span::ZERO);
    }

    #[test]
    fn many_attempts_at_once_wait_for_all_of_them() {
        let throttle = Throttle::default();
        let attempt = attempt(&throttle, GUESSER, "alice");
        for waited in [100, 300, 700] {
            assert_eq!(throttle.failed(&attempt, NOW), Span::millis(waited));
        }
        for _ in 0..100 {
            assert!(throttle.failed(&attempt, NOW) <= LONGEST_WAIT);
        }
        assert_eq!(throttle.wait(&attempt, NOW), LONGEST_WAIT);
    }

    #[test]
    fn guessing_delays_the_owner_on_another_address_by_half_a_second_at_most() {
        let throttle = Throttle::default();
        for _ in 0..1000 {
            throttle.failed(&attempt(&throttle, GUESSER, "alice"), NOW);
        }
        for (address, account, waits) in [
            (GUESSER, "alice", LONGEST_WAIT),
            ("::ffff:10.0.0.1", "alice", LONGEST_WAIT),
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
    fn addresses_of_one_ipv6_network_are_one() {
        let throttle = Throttle::default();
        throttle.failed(&attempt(&throttle, "2001:db8::1", "carol"), NOW);
        assert_eq!(throttle.wait(&attempt(&throttle, "2001:db8::ffff", "carol"), NOW), Span::millis(100));
        assert_eq!(throttle.wait(&attempt(&throttle, "2001:db8:0:1::1", "carol"), NOW), Span::millis(10));
    }

    #[test]
    fn the_right_password_ends_the_delays_of_its_account_and_not_those_of_guesses_on_others() {
        let throttle = Throttle::default();
        let (own, other) = (attempt(&throttle, GUESSER, "mallory"), attempt(&throttle, GUESSER, "alice"));
        for _ in 0..3 {
            throttle.failed(&own, NOW);
            throttle.failed(&other, NOW);
        }
        throttle.succeeded(&own);
        assert!(throttle.wait(&own, NOW) <= LONGEST_SHARED_WAIT);
        assert_eq!(throttle.wait(&other, NOW), Span::millis(700));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = Throttle::default();
        for index in 0..2 * MAX_REMEMBERED as u32 {
            let attempt = throttle.attempt(IpAddr::V4(index.into()), &format!("account{index}"));
            throttle.failed(&attempt, NOW);
        }
        assert!(throttle.remembered() <= KINDS.len() * MAX_REMEMBERED);
    }
}
