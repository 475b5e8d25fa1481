//! A front end's clock and stamps.
//!
//! A stamp counts ticks of 100 ns, and its low six bits are the front end's slot. So no two front ends issue
//! the same stamp. The clock is the maximum of the machine's clock, the last stamp issued, and every stamp
//! that this front end has read.
//!
//! A stamp may be used only below the *ceiling*, which is durable in the front end's membership row. The next
//! front end in this slot begins above it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli_concurrency::{Clock, Span, Stamp, Timestamp};
use tokio::sync::Notify;

/// Number of front ends that can be connected at the same time.
pub const SLOTS: u64 = 64;
/// Lead of a new ceiling over the time.
const CEILING_AHEAD: Span = Span::seconds(2);

/// The clock of one front end.
pub(crate) struct StampClock {
    machine: Arc<dyn Clock>,
    slot: u64,
    /// The highest time returned, stamp issued and stamp read, in ticks.
    last: AtomicU64,
    /// Stamps at or above these ticks must not be used yet.
    ceiling: AtomicU64,
    raised: Notify,
}

impl StampClock {
    /// Makes the clock of a slot. Its stamps are above `floor`.
    pub(crate) fn new(machine: Arc<dyn Clock>, slot: u8, floor: Timestamp) -> Self {
        let (slot, last) = (u64::from(slot) % SLOTS, AtomicU64::new(floor.ticks()));
        let ceiling = AtomicU64::new(floor.ticks());
        Self { machine, slot, last, ceiling, raised: Notify::new() }
    }

    /// Issues a stamp. Unique forever once the ceiling is above it, growing on this front end, and above all
    /// stamps read before.
    pub(crate) fn stamp(&self) -> Stamp {
        loop {
            let last = self.last.load(Ordering::SeqCst);
            let wanted = self.machine.now().ticks().max(last + 1);
            let in_slot = wanted - wanted % SLOTS + self.slot;
            let next = if in_slot < wanted { in_slot + SLOTS } else { in_slot };
            if self.last.compare_exchange(last, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Stamp::from_ticks(next);
            }
        }
    }

    /// Returns the time, never below an earlier result.
    pub(crate) fn now(&self) -> Timestamp {
        let machine = self.machine.now().ticks();
        Timestamp::from_ticks(self.last.fetch_max(machine, Ordering::SeqCst).max(machine))
    }

    /// Notes a stamp that was read. Later stamps are above it.
    pub(crate) fn observe(&self, stamp: Stamp) {
        self.last.fetch_max(stamp.ticks(), Ordering::SeqCst);
    }

    /// Returns the ceiling to make durable next.
    pub(crate) fn next_ceiling(&self) -> Timestamp {
        self.now() + CEILING_AHEAD
    }

    /// Returns whether a new ceiling is needed soon.
    pub(crate) fn needs_ceiling(&self) -> bool {
        (self.now() + Span::seconds(1)).ticks() >= self.ceiling.load(Ordering::SeqCst)
    }

    /// Raises the ceiling to one that is durable now.
    pub(crate) fn raise(&self, ceiling: Timestamp) {
        self.ceiling.fetch_max(ceiling.ticks(), Ordering::SeqCst);
        self.raised.notify_waiters();
    }

    /// Waits until the ceiling is above a stamp.
    pub(crate) async fn wait_until_usable(&self, stamp: Stamp) {
        loop {
            let mut raised = pin!(self.raised.notified());
            // Registers before the look, so that no notice is missed.
            raised.as_mut().enable();
            if stamp.ticks() < self.ceiling.load(Ordering::SeqCst) {
                return;
            }
            raised.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::ManualClock;

    use super::*;

    fn at(ticks: u64) -> Timestamp {
        Timestamp::from_ticks(ticks)
    }

    #[test]
    fn stamps_of_slots_differ_grow_and_follow_what_was_read() {
        let machine = Arc::new(ManualClock::new(at(6400)));
        let [a, b] = [1, 2].map(|slot| StampClock::new(machine.clone(), slot, at(100)));
        let stamps: Vec<_> = (0..5).flat_map(|_| [a.stamp(), b.stamp()]).collect();
        let unique: std::collections::BTreeSet<_> = stamps.iter().collect();
        assert_eq!(unique.len(), stamps.len());
        assert!(stamps.iter().step_by(2).is_sorted() && stamps.iter().all(|stamp| stamp.ticks() > 6400));
        assert!(stamps.iter().step_by(2).all(|stamp| stamp.ticks() % SLOTS == 1));
        let read = Stamp::from_ticks(1_000_000);
        a.observe(read);
        assert!(a.stamp() > read && a.now() > read.timestamp());
        machine.set(at(5));
        assert!(a.stamp() > read);
    }

    #[test]
    fn stamps_begin_above_the_floor() {
        let machine = Arc::new(ManualClock::new(at(5)));
        let clock = StampClock::new(machine, 63, at(1 << 20));
        assert!(clock.stamp().ticks() > 1 << 20);
        assert!(clock.needs_ceiling());
        clock.raise(clock.next_ceiling());
        assert!(!clock.needs_ceiling());
    }
}
