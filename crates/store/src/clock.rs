//! The engine's clock: stamps that never repeat and a time that never runs backward, also across restarts.
//!
//! [`crate::SteadyClock`] checks the machine's clock first. That clock may step back, and a crash loses the
//! last time that was returned. So the engine stores a *ceiling*, a little ahead of the time, and never
//! returns a time at or above it. After a restart, time continues at the ceiling. Raising the ceiling is a
//! commit like any other, requested before the time reaches it. While the ceiling cannot be raised, because
//! the disk is slow, full or has failed, time stands still, and commits with stamps at or above the ceiling
//! are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lazuli_concurrency::{Clock, Span, Stamp, Timestamp};
use parking_lot::{Condvar, Mutex};

/// Lead of a new ceiling over the time. A crash advances the clock by at most this.
const CEILING_AHEAD: Span = Span::seconds(2);
/// Added on a full disk, where each ceiling uses some of the log's reserve.
const EXTRA_AHEAD_IF_FULL: Span = Span::seconds(60);
/// A new ceiling is requested when the time is this close to the current one.
const REQUEST_DISTANCE: Span = Span::seconds(1);
/// The longest time that a caller blocks its thread for an overdue ceiling. After one caller has waited this
/// long, others do not wait until a ceiling is raised.
const MAX_CEILING_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct EngineClock {
    machine: Arc<dyn Clock>,
    /// The highest time returned and the highest stamp issued, in ticks.
    last: AtomicU64,
    /// Times and stamps at or above these ticks are not valid.
    ceiling: AtomicU64,
    /// A new ceiling has been requested and is not durable yet.
    requested: AtomicBool,
    /// A caller has waited [`MAX_CEILING_WAIT`] without getting a new ceiling.
    overdue: AtomicBool,
    stopped: AtomicBool,
    raised: (Mutex<()>, Condvar),
    /// Number of calls that have waited for a ceiling.
    waits: AtomicU64,
}

impl EngineClock {
    /// Continues at the ceiling that was found on disk.
    pub(crate) fn new(machine: Arc<dyn Clock>, ceiling: Timestamp) -> Self {
        Self {
            machine,
            last: AtomicU64::new(ceiling.ticks()),
            ceiling: AtomicU64::new(ceiling.ticks()),
            requested: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            raised: Default::default(),
            waits: AtomicU64::new(0),
        }
    }

    /// Makes a clock for an engine without restarts, which needs no ceiling.
    pub(crate) fn without_ceiling(machine: Arc<dyn Clock>) -> Self {
        let clock = Self::new(machine, Timestamp::default());
        clock.ceiling.store(u64::MAX, Ordering::SeqCst);
        clock
    }

    /// Returns the time, never below an earlier result. Calls `request` when a new ceiling should be
    /// committed.
    pub(crate) fn now(&self, request: impl Fn()) -> Timestamp {
        let machine = self.machine.now().ticks();
        let wanted = machine.max(self.last.load(Ordering::SeqCst));
        self.ensure_ceiling_above(wanted, request);
        let time = wanted.min(self.ceiling.load(Ordering::SeqCst).saturating_sub(1));
        let before = self.last.fetch_max(time, Ordering::SeqCst);
        Timestamp::from_ticks(time.max(before))
    }

    /// Returns the time without requesting a ceiling or waiting for one. For the committer, which makes them.
    pub(crate) fn peek(&self) -> Timestamp {
        let last = self.last.load(Ordering::SeqCst);
        let ceiling = self.ceiling.load(Ordering::SeqCst).saturating_sub(1);
        Timestamp::from_ticks(self.machine.now().ticks().min(ceiling).max(last))
    }

    /// Issues a stamp above all stamps issued and all times returned before.
    pub(crate) fn stamp(&self, request: impl Fn()) -> Stamp {
        loop {
            let last = self.last.load(Ordering::SeqCst);
            let next = self.machine.now().ticks().max(last + 1);
            self.ensure_ceiling_above(next, &request);
            // A stamp at or above the ceiling is useless: its commit will be refused.
            let next = next.min(self.ceiling.load(Ordering::SeqCst).saturating_sub(1)).max(last + 1);
            if self.last.compare_exchange(last, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Stamp::from_ticks(next);
            }
        }
    }

    /// Returns the ceiling to commit next.
    pub(crate) fn next_ceiling(&self) -> Timestamp {
        Timestamp::from_ticks(self.machine.now().ticks().max(self.last.load(Ordering::SeqCst)))
            + CEILING_AHEAD
    }

    /// Returns the ceiling to commit next on a full disk.
    pub(crate) fn next_ceiling_if_full(&self) -> Timestamp {
        self.next_ceiling() + EXTRA_AHEAD_IF_FULL
    }

    /// Stops the clock for a clean shutdown and returns the final ceiling. The ceiling is just above the last
    /// time and stamp, so that the next start skips no time. Later times stay below it.
    pub(crate) fn freeze(&self) -> Timestamp {
        self.stop();
        let ceiling = self.last.load(Ordering::SeqCst) + 1;
        self.ceiling.store(ceiling, Ordering::SeqCst);
        Timestamp::from_ticks(ceiling)
    }

    /// Returns the ceiling. Only stamps below it are valid: no other start of the store issues them again.
    pub(crate) fn ceiling(&self) -> Timestamp {
        Timestamp::from_ticks(self.ceiling.load(Ordering::SeqCst))
    }

    /// Returns whether a new ceiling has been requested, because a caller waits for it or soon will.
    pub(crate) fn is_ceiling_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Raises the ceiling to one that is durable now.
    pub(crate) fn raise(&self, ceiling: Timestamp) {
        self.ceiling.fetch_max(ceiling.ticks(), Ordering::SeqCst);
        self.requested.store(false, Ordering::SeqCst);
        let _held = self.raised.0.lock();
        self.overdue.store(false, Ordering::SeqCst);
        self.raised.1.notify_all();
    }

    /// Records that a new ceiling could not be made durable. The next caller that needs one requests it
    /// again.
    pub(crate) fn note_failed_request(&self) {
        self.requested.store(false, Ordering::SeqCst);
    }

    /// Stops the clock: the ceiling will never be raised again.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _held = self.raised.0.lock();
        self.raised.1.notify_all();
    }

    fn ensure_ceiling_above(&self, wanted: u64, request: impl Fn()) {
        let ceiling = self.ceiling.load(Ordering::SeqCst);
        if wanted + REQUEST_DISTANCE.ticks() < ceiling {
            return;
        }
        if !self.requested.swap(true, Ordering::SeqCst) {
            request();
        }
        if wanted < ceiling || self.overdue.load(Ordering::SeqCst) {
            return;
        }
        block_in_place(|| self.wait_for_ceiling(wanted, &request));
    }

    /// Waits until the ceiling is above `wanted`, for at most [`MAX_CEILING_WAIT`].
    fn wait_for_ceiling(&self, wanted: u64, request: &impl Fn()) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + MAX_CEILING_WAIT;
        let mut held = self.raised.0.lock();
        while wanted >= self.ceiling.load(Ordering::SeqCst) && !self.stopped.load(Ordering::SeqCst) {
            if self.raised.1.wait_until(&mut held, deadline).timed_out() {
                // The ceiling may have been raised at the last moment.
                let is_overdue = wanted >= self.ceiling.load(Ordering::SeqCst);
                self.overdue.store(is_overdue, Ordering::SeqCst);
                return;
            }
            // The raised ceiling may have been requested for an earlier time.
            if wanted >= self.ceiling.load(Ordering::SeqCst) && !self.requested.swap(true, Ordering::SeqCst) {
                request();
            }
        }
    }
}

/// Runs a function that may block. If the runtime has other workers, they take over this worker's tasks
/// meanwhile.
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
    fn time_and_stamps_never_go_back_when_the_machine_clock_does() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(90));
        let raise = || clock.raise(clock.next_ceiling());
        let time = clock.now(raise);
        assert_eq!(time, at(100));
        machine.set(at(50));
        assert_eq!(clock.now(raise), time);
        let first = clock.stamp(raise);
        let second = clock.stamp(raise);
        assert!(first.timestamp() > time && second > first);
        assert!(clock.now(raise) >= second.timestamp());
    }

    #[test]
    fn no_time_at_or_above_the_ceiling_is_returned() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(0));
        let raise = || clock.raise(clock.next_ceiling());
        for _ in 0..100 {
            machine.advance(Span::millis(700));
            let time = clock.now(raise);
            assert!(time.ticks() < clock.ceiling.load(Ordering::SeqCst));
            assert_eq!(time, machine.now());
        }
        // A restart continues at the ceiling, even if the machine's clock was set back.
        let ceiling = Timestamp::from_ticks(clock.ceiling.load(Ordering::SeqCst));
        let last = clock.stamp(raise);
        machine.set(at(1));
        let restarted = EngineClock::new(machine, ceiling);
        let raise = || restarted.raise(restarted.next_ceiling());
        assert!(restarted.stamp(raise) > last);
    }

    #[test]
    fn failed_ceiling_is_requested_again_and_only_the_first_caller_waits() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(100));
        let requested = std::cell::Cell::new(0);
        let refuse = || {
            requested.set(requested.get() + 1);
            clock.note_failed_request();
        };
        let times: Vec<_> = (0..50).map(|_| clock.now(refuse)).collect();
        assert!(times.iter().all(|now| *now == at(100)), "time stands still");
        assert_eq!(requested.get(), 50);
        assert!(clock.stamp(refuse).timestamp() >= clock.ceiling(), "its stamps are refused");
        assert_eq!(clock.waits.load(Ordering::SeqCst), 1, "no caller waits after the first");
        machine.advance(Span::seconds(10));
        let time = clock.now(|| clock.raise(clock.next_ceiling()));
        assert!(time >= at(100));
        assert_eq!(clock.now(|| ()), machine.now(), "time advances again");
        assert!(clock.stamp(|| ()).timestamp() < clock.ceiling());
    }

    #[test]
    fn waiting_for_a_ceiling_does_not_block_other_tasks_of_the_worker() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let clock = Arc::new(EngineClock::new(Arc::new(ManualClock::new(at(200))), at(100)));
        let shown = runtime.block_on(async {
            let waiting = clock.clone();
            let shown = tokio::spawn(async move {
                let raising = waiting.clone();
                // Runs next on the same worker.
                tokio::spawn(async move { raising.raise(raising.next_ceiling()) });
                waiting.now(|| ())
            });
            shown.await.unwrap()
        });
        assert_eq!(shown, at(200));
    }

    #[test]
    fn stopped_clock_stands_still_without_waiting() {
        let machine = Arc::new(ManualClock::new(at(100)));
        let clock = EngineClock::new(machine.clone(), at(50));
        clock.stop();
        let time = clock.now(|| ());
        machine.advance(Span::seconds(10));
        assert_eq!(clock.now(|| ()), time);
        assert!(clock.stamp(|| ()) < clock.stamp(|| ()));
    }
}
