//! The engine's clock: stamps that never repeat and a time that never runs backwards, also over restarts.
//!
//! What the machine's clock says is checked before it comes here ([`crate::SteadyClock`]). It may step back, and a crash
//! forgets what was shown. So the engine keeps a *ceiling* on disk, a little ahead of the time, and shows nothing at or
//! above it: after a restart it goes on from the ceiling. Raising the ceiling is a commit like any other, asked for before
//! it is reached. While a ceiling cannot be raised, because the disk is slow, full or has failed, time stands still, and a
//! commit whose stamp is not below the ceiling is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lazuli_concurrency::{Clock, Span, Stamp, Timestamp};
use parking_lot::{Condvar, Mutex};

/// How far ahead of the time the ceiling is set, and so how far a crash may push the clock ahead.
const AHEAD: Span = Span::seconds(2);
/// The same on a full disk, where each ceiling takes some of the log's reserve.
const AHEAD_IF_FULL: Span = Span::seconds(60);
/// A new ceiling is asked for when the time is this near to it.
const NEAR: Span = Span::seconds(1);
/// How long a caller waits for a ceiling that is overdue, on whatever thread it is. Who comes after somebody has waited in
/// vain does not wait at all.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct EngineClock {
    machine: Arc<dyn Clock>,
    /// The highest time shown and the highest stamp given out.
    last: AtomicU64,
    /// Nothing at or above it is shown.
    ceiling: AtomicU64,
    /// A new ceiling has been asked for and is not there yet.
    asked: AtomicBool,
    /// Somebody has waited for it in vain.
    overdue: AtomicBool,
    stopped: AtomicBool,
    raised: (Mutex<()>, Condvar),
}

impl EngineClock {
    /// Goes on from the ceiling that was found on disk.
    pub(crate) fn new(machine: Arc<dyn Clock>, ceiling: Timestamp) -> Self {
        Self {
            machine,
            last: AtomicU64::new(ceiling.ticks()),
            ceiling: AtomicU64::new(ceiling.ticks()),
            asked: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            raised: Default::default(),
        }
    }

    /// The time: never below anything shown before. `ask` is called when a new ceiling should be committed.
    pub(crate) fn now(&self, ask: impl Fn()) -> Timestamp {
        let machine = self.machine.now().ticks();
        let wanted = machine.max(self.last.load(Ordering::SeqCst));
        self.make_room(wanted, ask);
        let shown = wanted.min(self.ceiling.load(Ordering::SeqCst).saturating_sub(1));
        let before = self.last.fetch_max(shown, Ordering::SeqCst);
        Timestamp::from_ticks(shown.max(before))
    }

    /// The time, without asking for a new ceiling or waiting for one: for the committer, who makes them.
    pub(crate) fn peek(&self) -> Timestamp {
        let last = self.last.load(Ordering::SeqCst);
        let ceiling = self.ceiling.load(Ordering::SeqCst).saturating_sub(1);
        Timestamp::from_ticks(self.machine.now().ticks().min(ceiling).max(last))
    }

    /// A stamp above every stamp given out and every time shown before.
    pub(crate) fn stamp(&self, ask: impl Fn()) -> Stamp {
        loop {
            let last = self.last.load(Ordering::SeqCst);
            let next = self.machine.now().ticks().max(last + 1);
            self.make_room(next, &ask);
            // One that is not below the ceiling is good for nothing: its commit will be refused.
            let next = next.min(self.ceiling.load(Ordering::SeqCst).saturating_sub(1)).max(last + 1);
            if self.last.compare_exchange(last, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Stamp::from_ticks(next);
            }
        }
    }

    /// The ceiling to commit next.
    pub(crate) fn next_ceiling(&self) -> Timestamp {
        Timestamp::from_ticks(self.machine.now().ticks().max(self.last.load(Ordering::SeqCst))) + AHEAD
    }

    /// The same on a full disk.
    pub(crate) fn next_ceiling_if_full(&self) -> Timestamp {
        self.next_ceiling() + AHEAD_IF_FULL
    }

    /// Stops the clock for a clean end and gives the ceiling to leave on disk: just above all that was given out, so that
    /// nothing is skipped at the next start. What is asked for later is not shown above it.
    pub(crate) fn freeze(&self) -> Timestamp {
        self.stop();
        let ceiling = self.last.load(Ordering::SeqCst) + 1;
        self.ceiling.store(ceiling, Ordering::SeqCst);
        Timestamp::from_ticks(ceiling)
    }

    /// Stamps below it are good: no other start gives them out again.
    pub(crate) fn ceiling(&self) -> Timestamp {
        Timestamp::from_ticks(self.ceiling.load(Ordering::SeqCst))
    }

    /// Whether somebody waits for a new ceiling, or will soon.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// A new ceiling is durable.
    pub(crate) fn raise(&self, ceiling: Timestamp) {
        self.ceiling.fetch_max(ceiling.ticks(), Ordering::SeqCst);
        self.asked.store(false, Ordering::SeqCst);
        let _held = self.raised.0.lock();
        self.overdue.store(false, Ordering::SeqCst);
        self.raised.1.notify_all();
    }

    /// A new ceiling could not be made durable. Whoever needs one next asks again.
    pub(crate) fn refused(&self) {
        self.asked.store(false, Ordering::SeqCst);
    }

    /// No ceiling will ever be raised again.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _held = self.raised.0.lock();
        self.raised.1.notify_all();
    }

    fn make_room(&self, wanted: u64, ask: impl Fn()) {
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        if wanted + NEAR.ticks() < ceiling {
            return;
        }
        if !self.asked.swap(true, Ordering::SeqCst) {
            ask();
        }
        if wanted < ceiling || self.overdue.load(Ordering::SeqCst) {
            return;
        }
        block_in_place(|| self.wait_for_ceiling(wanted, &ask));
    }

    /// Waits until the ceiling is above `wanted`, for at most [`PATIENCE`].
    fn wait_for_ceiling(&self, wanted: u64, ask: &impl Fn()) {
        let deadline = Instant::now() + PATIENCE;
        let mut held = self.raised.0.lock();
        while wanted >= self.ceiling.load(Ordering::SeqCst) && !self.stopped.load(Ordering::SeqCst) {
            if self.raised.1.wait_until(&mut held, deadline).timed_out() {
                // Unless it came in the last moment.
                let is_overdue = wanted >= self.ceiling.load(Ordering::SeqCst);
                self.overdue.store(is_overdue, Ordering::SeqCst);
                return;
            }
            // The ceiling that was raised may have been asked for a smaller time.
            if wanted >= self.ceiling.load(Ordering::SeqCst) && !self.asked.swap(true, Ordering::SeqCst) {
                ask();
            }
        }
    }
}

/// Runs what may take long. Another worker of the runtime, if there is one, takes over the tasks of this one meanwhile.
pub(crate) fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Handle::try_current().map(|handle| handle.runtime_flavor());
    if matches!(runtime, Ok(tokio::runtime::RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(run)
    } else {
        run()
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::ManualClock;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    #[test]
    fn time_and_stamps_never_go_back_when_the_machine_does() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(90));
        let raise = || clock.raise(clock.next_ceiling());
        let shown = clock.now(raise);
        assert_eq!(shown, at(100));
        machine.set(at(50));
        assert_eq!(clock.now(raise), shown);
        let first = clock.stamp(raise);
        let second = clock.stamp(raise);
        assert!(first.timestamp() > shown && second > first);
        assert!(clock.now(raise) >= second.timestamp());
    }

    #[test]
    fn nothing_at_or_above_the_ceiling_is_ever_shown() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(0));
        let raise = || clock.raise(clock.next_ceiling());
        for _ in 0..100 {
            machine.advance(Span::millis(700));
            let shown = clock.now(raise);
            assert!(shown.ticks() < clock.ceiling.load(Ordering::SeqCst));
            assert_eq!(shown, machine.now());
        }
        // A restart goes on from the ceiling, even if the machine's clock was set back.
        let ceiling = Timestamp::from_ticks(clock.ceiling.load(Ordering::SeqCst));
        let last = clock.stamp(raise);
        machine.set(at(1));
        let restarted = EngineClock::new(machine, ceiling);
        let raise = || restarted.raise(restarted.next_ceiling());
        assert!(restarted.stamp(raise) > last);
    }

    #[test]
    fn a_ceiling_that_was_refused_is_asked_for_again_and_only_the_first_waits_for_it() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(100));
        let asked = std::cell::Cell::new(0);
        let refuse = || {
            asked.set(asked.get() + 1);
            clock.refused();
        };
        let begun = Instant::now();
        let shown: Vec<_> = (0..50).map(|_| clock.now(refuse)).collect();
        assert!(shown.iter().all(|now| *now == at(100)), "time stands still");
        assert_eq!(asked.get(), 50);
        assert!(clock.stamp(refuse).timestamp() >= clock.ceiling(), "what it stamps is refused");
        assert!(begun.elapsed() < 3 * PATIENCE, "nobody waits after one has in vain");
        machine.advance(Span::seconds(10));
        let shown = clock.now(|| clock.raise(clock.next_ceiling()));
        assert!(shown >= at(100));
        assert_eq!(clock.now(|| ()), machine.now(), "time goes on");
        assert!(clock.stamp(|| ()).timestamp() < clock.ceiling());
    }

    #[test]
    fn a_worker_that_waits_for_a_ceiling_does_not_hold_up_its_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let clock = Arc::new(EngineClock::new(Arc::new(ManualClock::new(at(200))), at(100)));
        let shown = runtime.block_on(async {
            let waiting = clock.clone();
            let shown = tokio::spawn(async move {
                let raising = waiting.clone();
                // Runs on the same worker, next.
                tokio::spawn(async move { raising.raise(raising.next_ceiling()) });
                waiting.now(|| ())
            });
            shown.await.unwrap()
        });
        assert_eq!(shown, at(200));
    }

    #[test]
    fn a_stopped_clock_stands_still_and_waits_for_nobody() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(50));
        clock.stop();
        let shown = clock.now(|| ());
        machine.advance(Span::seconds(10));
        assert_eq!(clock.now(|| ()), shown);
        assert!(clock.stamp(|| ()) < clock.stamp(|| ()));
    }
}
