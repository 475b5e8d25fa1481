//! Wrong passwords cost time, and more with each: for the address they come from and for the account they are tried on.
//!
//! Who is refused waits for the refusal, and whoever comes from the same address, or names the same account, waits behind
//! him. Nobody is locked out: the wait is bounded, and forgotten after the first right password from there, or after a while.

use std::collections::HashMap;
use std::net::IpAddr;

use lazuli_concurrency::{Span, Timestamp};
use parking_lot::Mutex;

/// What the first wrong password costs; each further one twice as much.
const FIRST: Span = Span::millis(100);
/// What a wrong password costs at most.
const MOST: Span = Span::millis(3_200);
/// How long anybody waits at most.
const LONGEST_WAIT: Span = Span::seconds(10);
/// How long failures are remembered after the last.
const MEMORY: Span = Span::seconds(600);
/// Addresses and accounts that are remembered.
const MAX_REMEMBERED: usize = 8192;

/// Who has tried in vain.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<HashMap<Who, Failures>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Address(IpAddr),
    Account(String),
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// When the next attempt has its turn.
    until: Timestamp,
}

/// An attempt to log in: from where, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Attempt([Who; 2]);

impl Attempt {
    /// An attempt. Addresses of one network of the newer kind count as one.
    pub(crate) fn new(address: IpAddr, account: &str) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
            address => address,
        };
        Self([Who::Address(address), Who::Account(account.to_owned())])
    }
}

impl Throttle {
    /// How long an attempt has to wait before it is looked at.
    pub(crate) fn wait(&self, attempt: &Attempt, now: Timestamp) -> Span {
        let failures = self.0.lock();
        let until = attempt.0.iter().filter_map(|who| failures.get(who)).map(|failures| failures.until).max();
        until.map_or(Span::ZERO, |until| until.since(now)).min(LONGEST_WAIT)
    }

    /// The password was wrong. How long to wait before saying so.
    pub(crate) fn failed(&self, attempt: &Attempt, now: Timestamp) -> Span {
        let mut all = self.0.lock();
        for who in &attempt.0 {
            make_room(&mut all, now);
            let failures = all.entry(who.clone()).or_insert(Failures { count: 0, until: now });
            let cost = Span::from_ticks(FIRST.ticks() << failures.count.min(16)).min(MOST);
            failures.count = failures.count.saturating_add(1);
            failures.until = (failures.until.max(now) + cost).min(now + LONGEST_WAIT);
        }
        drop(all);
        self.wait(attempt, now)
    }

    /// The password was right.
    pub(crate) fn succeeded(&self, attempt: &Attempt) {
        let mut all = self.0.lock();
        attempt.0.iter().for_each(|who| _ = all.remove(who));
    }
}

/// Forgets what is long ago; if that is not enough, everything: an attacker with so many addresses is not slowed anyway.
fn make_room(all: &mut HashMap<Who, Failures>, now: Timestamp) {
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

    fn attempt(address: &str, account: &str) -> Attempt {
        Attempt::new(address.parse().expect("an address"), account)
    }

    #[test]
    fn each_failure_costs_twice_as_much_up_to_a_bound() {
        let (throttle, attempt) = (Throttle::default(), attempt("10.0.0.1", "alice"));
        assert_eq!(throttle.wait(&attempt, NOW), Span::ZERO);
        let mut now = NOW;
        for cost in [100, 200, 400, 800, 1600, 3200, 3200, 3200] {
            assert_eq!(throttle.failed(&attempt, now), Span::millis(cost));
            now = now + Span::millis(cost);
        }
        assert_eq!(throttle.wait(&attempt, now), Span::ZERO);
    }

    #[test]
    fn who_tries_many_at_once_waits_for_all_of_them() {
        let (throttle, attempt) = (Throttle::default(), attempt("10.0.0.1", "alice"));
        assert_eq!(throttle.failed(&attempt, NOW), Span::millis(100));
        assert_eq!(throttle.failed(&attempt, NOW), Span::millis(300));
        assert_eq!(throttle.failed(&attempt, NOW), Span::millis(700));
        for _ in 0..100 {
            assert!(throttle.failed(&attempt, NOW) <= LONGEST_WAIT);
        }
        assert_eq!(throttle.wait(&attempt, NOW), LONGEST_WAIT);
    }

    #[test]
    fn address_and_account_count_each_for_itself() {
        let throttle = Throttle::default();
        throttle.failed(&attempt("10.0.0.1", "alice"), NOW);
        assert_eq!(throttle.wait(&attempt("10.0.0.1", "bob"), NOW), FIRST);
        assert_eq!(throttle.wait(&attempt("10.0.0.2", "alice"), NOW), FIRST);
        assert_eq!(throttle.wait(&attempt("10.0.0.2", "bob"), NOW), Span::ZERO);
        throttle.failed(&attempt("2001:db8::1", "carol"), NOW);
        assert_eq!(throttle.wait(&attempt("2001:db8::ffff", "bob"), NOW), FIRST);
        assert_eq!(throttle.wait(&attempt("::ffff:10.0.0.1", "bob"), NOW), FIRST);
    }

    #[test]
    fn the_right_password_ends_it() {
        let (throttle, attempt) = (Throttle::default(), attempt("10.0.0.1", "alice"));
        throttle.failed(&attempt, NOW);
        throttle.succeeded(&attempt);
        assert_eq!(throttle.wait(&attempt, NOW), Span::ZERO);
        assert_eq!(throttle.failed(&attempt, NOW), FIRST);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = Throttle::default();
        for index in 0..2 * MAX_REMEMBERED as u32 {
            let attempt = Attempt::new(IpAddr::V4(index.into()), &format!("account{index}"));
            throttle.failed(&attempt, NOW);
        }
        assert!(throttle.0.lock().len() <= MAX_REMEMBERED);
    }
}
