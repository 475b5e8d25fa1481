//! The machine's clock, checked against the boot clock.
//!
//! A stored time that is far ahead cannot be corrected: tokens only grow, and leases end by it. So a forward
//! step is followed only up to [`MAX_STEP`] beyond the boot clock. The boot clock counts suspend, so waking
//! up is not a step. While the machine's clock is behind the time already returned, time advances at [nine
//! tenths](SLOWDOWN) of its pace until the machine has caught up, so timeouts still end. Decision 0031 has
//! the reasons.

use std::sync::Arc;

use lazuli_concurrency::{Clock, Span, Timestamp, WrongTime};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// The largest forward step that is followed.
const MAX_STEP: Span = Span::seconds(3600);
/// If the machine is further behind the latest known time, it is wrong, or was wrong before.
const MAX_BEHIND: Span = Span::seconds(24 * 3600);
/// If the machine is further ahead of the latest known time, it is wrong. The server may have been off for
/// less.
const MAX_AHEAD: Span = Span::seconds(5 * 365 * 24 * 3600);
/// A clock that shows an earlier time is wrong, because this version did not exist yet: 2026-01-01.
const RELEASED: Timestamp = Timestamp::from_unix_seconds(1_767_225_600);
/// While the machine is behind, time loses one tick in this many.
const SLOWDOWN: u64 = 10;
/// Interval at which the anchor moves while time is slow. Long, because each move rounds.
const SLOW_ANCHOR_INTERVAL: Span = Span::seconds(1);

/// The time since the machine was started, including suspend, as a time after 0001-01-01.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        Timestamp::from_ticks(Span::seconds(seconds).ticks() + nanos / 100)
    }
}

/// The trust in the machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Wrong times are refused: at the start by [`Clock::resume`], and later by not following the clock.
    Checked,
    /// Like `Checked`, but the machine may be behind at the start. For work without clients that would see
    /// the time.
    MayBeBehind,
    /// Every time is trusted.
    Any,
}

/// The machine's clock, followed as far as it can be right.
pub struct SteadyClock {
    wall: Arc<dyn Clock>,
    boot: Arc<dyn Clock>,
    trust: Trust,
    state: Mutex<SteadyState>,
}

#[derive(Clone, Copy, Debug)]
struct SteadyState {
    anchor: Anchor,
    /// Lead of the machine's clock, if it is not followed.
    refused: Option<Span>,
}

/// A time that was returned, and the boot clock's time at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    time: Timestamp,
    boot: Timestamp,
}

/// The result of checking a time of the machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// The time is right.
    Right,
    /// The time is behind; use this time.
    Behind(Timestamp),
    /// The time is ahead by this span; the boot clock gives this time.
    Ahead(Span, Timestamp),
}

impl Anchor {
    fn check(self, wall: Timestamp, boot: Timestamp) -> Reading {
        let elapsed = boot.since(self.boot);
        let expected = self.time + elapsed;
        let slow = self.time + Span::from_ticks(elapsed.ticks() - elapsed.ticks() / SLOWDOWN);
        if wall > expected + MAX_STEP {
            Reading::Ahead(wall.since(expected), expected)
        } else if wall < slow {
            Reading::Behind(slow)
        } else {
            Reading::Right
        }
    }
}

/// Checks whether a server may start at the machine's time, given the latest time of an earlier process.
fn check_start(latest: Timestamp, machine: Timestamp) -> Result<(), WrongTime> {
    let latest = latest.max(RELEASED);
    if latest.since(machine) > MAX_BEHIND {
        Err(WrongTime::Behind { machine, latest })
    } else if machine.since(latest) > MAX_AHEAD {
        Err(WrongTime::Ahead { machine, latest })
    } else {
        Ok(())
    }
}

impl SteadyClock {
    /// Makes a clock from the machine's clocks.
    pub fn of_machine(trust: Trust) -> Self {
        Self::new(Arc::new(lazuli_concurrency::SystemClock), Arc::new(BootClock), trust)
    }

    /// Makes a clock that checks `wall` against `boot`, which never steps.
    pub fn new(wall: Arc<dyn Clock>, boot: Arc<dyn Clock>, trust: Trust) -> Self {
        let anchor = Anchor { time: wall.now(), boot: boot.now() };
        Self { wall, boot, trust, state: Mutex::new(SteadyState { anchor, refused: None }) }
    }

    /// Returns the time of the machine's clock, even if it is not followed.
    pub fn machine(&self) -> Timestamp {
        self.wall.now()
    }

    /// Returns how far the machine's clock is ahead, if it is not followed.
    pub fn refused_step(&self) -> Option<Span> {
        self.now();
        self.state.lock().refused
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let mut state = self.state.lock();
        // In this order a pause between the two calls makes the time look late, never ahead.
        let (wall, boot) = (self.wall.now(), self.boot.now());
        let (time, refused) = match state.anchor.check(wall, boot) {
            Reading::Right => (wall, None),
            Reading::Ahead(..) if self.trust == Trust::Any => (wall, None),
            Reading::Ahead(step, time) => (time, Some(step)),
            Reading::Behind(time) => {
                if boot.since(state.anchor.boot) >= SLOW_ANCHOR_INTERVAL {
                    state.anchor = Anchor { time, boot };
                }
                state.set_refused(None);
                return time;
            }
        };
        state.anchor = Anchor { time, boot };
        state.set_refused(refused);
        time
    }

    fn resume(&self, latest: Timestamp) -> Result<(), WrongTime> {
        let machine = self.wall.now();
        match check_start(latest, machine) {
            Ok(()) => {}
            Err(WrongTime::Behind { .. }) if self.trust == Trust::MayBeBehind => {}
            Err(_) if self.trust == Trust::Any => {}
            Err(wrong) => return Err(wrong),
        }
        self.state.lock().anchor = Anchor { time: machine.max(latest), boot: self.boot.now() };
        Ok(())
    }
}

impl SteadyState {
    fn set_refused(&mut self, refused: Option<Span>) {
        match (self.refused, refused) {
            (None, Some(step)) => tracing::error!(
                seconds = step.seconds_rounded_up(),
                "the machine's clock is ahead of the boot clock by more than an hour and is not followed; if it is \
                 right, restart the server"
            ),
            (Some(_), None) => tracing::warn!("the machine's clock is followed again"),
            _ => {}
        }
        self.refused = refused;
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::ManualClock;

    use super::*;

    const DAY: u64 = 24 * 3600;

    fn at(seconds: u64) -> Timestamp {
        RELEASED + Span::seconds(seconds)
    }

    fn boot(seconds: u64) -> Timestamp {
        Timestamp::from_ticks(0) + Span::seconds(seconds)
    }

    /// Returns a clock at second 1,000 of a machine that was booted 500 seconds before.
    fn clocks(trust: Trust) -> (SteadyClock, Arc<ManualClock>, Arc<ManualClock>) {
        let wall = Arc::new(ManualClock::new(at(1000)));
        let booted = Arc::new(ManualClock::new(boot(500)));
        (SteadyClock::new(wall.clone(), booted.clone(), trust), wall, booted)
    }

    #[test]
    fn machine_time_is_followed_unless_behind_or_an_hour_ahead_of_the_boot_clock() {
        let anchor = Anchor { time: at(1000), boot: boot(500) };
        let ahead = |step: u64, time: u64| Reading::Ahead(Span::seconds(step), at(time));
        for (case, wall, booted, expected) in [
            ("no jump", 1000, 500, Reading::Right),
            ("ten seconds", 1010, 510, Reading::Right),
            ("a step of an hour", 1010 + 3600, 510, Reading::Right),
            ("a second more", 1011 + 3600, 510, ahead(3601, 1010)),
            ("ten years", 1000 + 3650 * DAY, 500, ahead(3650 * DAY, 1000)),
            ("a week of suspend", 1000 + 7 * DAY, 500 + 7 * DAY, Reading::Right),
            ("a drift of 5%", 1095, 600, Reading::Right),
            ("a step back", 990, 510, Reading::Behind(at(1009))),
            ("a step back at once", 500, 500, Reading::Behind(at(1000))),
        ] {
            assert_eq!(anchor.check(at(wall), boot(booted)), expected, "{case}");
        }
    }

    #[test]
    fn start_is_refused_a_day_behind_or_years_ahead_of_the_latest_time() {
        let day = |days: i64| RELEASED.unix_seconds().saturating_add_signed(days * DAY as i64);
        let day = |days| Timestamp::from_unix_seconds(day(days));
        for (case, latest, machine, expected) in [
            ("a restart", Some(100), 100, None),
            ("a ceiling of a few hours ahead", Some(101), 100, None),
            ("the clock was ahead earlier", Some(102), 100, Some("behind")),
            ("off for a month", Some(100), 130, None),
            ("off for four years", Some(100), 100 + 4 * 365, None),
            ("off for longer than is plausible", Some(100), 100 + 5 * 365 + 1, Some("ahead")),
            ("a new directory", None, 300, None),
            ("a new directory in 1970", None, -20_000, Some("behind")),
            ("a new directory in 2080", None, 19_000, Some("ahead")),
        ] {
            let latest = latest.map_or(Timestamp::from_ticks(0), day);
            let found = check_start(latest, day(machine)).err().map(|wrong| match wrong {
                WrongTime::Behind { .. } => "behind",
                WrongTime::Ahead { .. } => "ahead",
            });
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn time_follows_the_boot_clock_until_the_machine_clock_is_right_again() {
        let (clock, wall, booted) = clocks(Trust::Checked);
        wall.advance(Span::seconds(10 * DAY));
        assert_eq!(clock.now(), at(1000));
        booted.advance(Span::seconds(60));
        wall.advance(Span::seconds(60));
        assert_eq!(clock.now(), at(1060), "a lease of a minute is over");
        assert_eq!(clock.refused_step(), Some(Span::seconds(10 * DAY)));
        wall.set(at(1059));
        assert!(clock.now() >= at(1060), "time does not go back");
        booted.advance(Span::seconds(40));
        wall.set(at(1100));
        assert_eq!((clock.now(), clock.refused_step()), (at(1100), None));
    }

    #[test]
    fn consecutive_steps_of_up_to_an_hour_are_followed() {
        let (clock, wall, _) = clocks(Trust::Checked);
        for _ in 0..3 {
            wall.advance(MAX_STEP);
            assert_eq!(clock.now(), wall.now());
        }
    }

    #[test]
    fn every_step_is_followed_with_full_trust() {
        let (clock, wall, _) = clocks(Trust::Any);
        wall.advance(Span::seconds(100 * DAY));
        assert_eq!((clock.now(), clock.refused_step()), (wall.now(), None));
        wall.set(at(20_000 * DAY));
        assert!(clock.resume(at(1000)).is_ok());
    }

    #[test]
    fn time_is_slower_while_the_machine_is_behind_and_then_equal() {
        let (clock, wall, booted) = clocks(Trust::Checked);
        clock.resume(at(1000) + Span::seconds(60)).unwrap();
        let mut shown = clock.now();
        assert_eq!(shown, at(1060));
        // Often enough that rounding errors would add up.
        for _ in 0..60_000 {
            booted.advance(Span::millis(10));
            wall.advance(Span::millis(10));
            let now = clock.now();
            assert!(now >= shown && now <= shown + Span::millis(10));
            shown = now;
        }
        assert_eq!(shown, wall.now(), "600 seconds at nine tenths make up for 60");
    }

    #[test]
    fn may_be_behind_accepts_a_clock_behind_but_not_one_ahead() {
        let (clock, wall, _) = clocks(Trust::MayBeBehind);
        assert!(clock.resume(at(400 * DAY)).is_ok());
        assert_eq!(clock.now(), at(400 * DAY));
        wall.set(at(20_000 * DAY));
        assert!(matches!(clock.resume(at(1000)), Err(WrongTime::Ahead { .. })));
    }

    #[test]
    fn boot_clock_runs() {
        let first = BootClock.now();
        assert!(first > Timestamp::from_ticks(0) && BootClock.now() >= first);
    }
}
