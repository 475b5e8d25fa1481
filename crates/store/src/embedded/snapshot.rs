//! The states that readers see. A read holds one from its start to its end.
//!
//! The committer publishes a [`Snapshot`] once everything in it is durable. The tree keeps the row versions
//! that held snapshots may need: [`Snapshots::oldest`] says how far back.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use lsm_tree::SeqNo;
use parking_lot::Mutex;

use super::view::View;
use crate::{RowCounts, SpaceHeader, SpaceId};

/// With this many tracked snapshots, each publish removes the dropped ones anywhere in the list, not only at
/// its front.
const MANY_SNAPSHOTS: usize = 1024;

/// Recently used headers of spaces, so that most reads need not read them from the tree.
pub(crate) type Headers = HashMap<SpaceId, Option<SpaceHeader>>;

/// One published state.
pub(crate) struct Snapshot {
    /// Everything below this sequence number is visible.
    pub(crate) seqno: SeqNo,
    /// The memtables and tables that hold the rows.
    pub(crate) view: Arc<View>,
    /// Some of the space headers, as of this state.
    pub(crate) headers: Arc<Headers>,
    /// Rows added and removed up to this state.
    pub(crate) counts: RowCounts,
}

/// The current snapshot, and older ones that readers may still hold.
pub(crate) struct Snapshots {
    current: ArcSwap<Snapshot>,
    tracked: Mutex<VecDeque<TrackedSnapshot>>,
}

struct TrackedSnapshot {
    snapshot: Weak<Snapshot>,
    /// Time at which the next snapshot was published; `None` for the current one.
    replaced: Option<Instant>,
}

impl TrackedSnapshot {
    fn new(snapshot: &Arc<Snapshot>) -> Self {
        Self { snapshot: Arc::downgrade(snapshot), replaced: None }
    }

    fn is_dropped(&self) -> bool {
        self.snapshot.strong_count() == 0
    }
}

impl Snapshots {
    pub(crate) fn new(first: Snapshot) -> Self {
        let first = Arc::new(first);
        let tracked = Mutex::new(VecDeque::from([TrackedSnapshot::new(&first)]));
        Self { current: ArcSwap::new(first), tracked }
    }

    /// Returns the state with every commit acknowledged so far.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Makes a new state visible. Only the committer calls this.
    pub(crate) fn publish(&self, next: Snapshot) {
        let next = Arc::new(next);
        let mut tracked = self.tracked.lock();
        while tracked.front().is_some_and(TrackedSnapshot::is_dropped) {
            tracked.pop_front();
        }
        if tracked.len() >= MANY_SNAPSHOTS {
            tracked.retain(|tracked| !tracked.is_dropped());
        }
        if let Some(current) = tracked.back_mut() {
            current.replaced = Some(Instant::now());
        }
        tracked.push_back(TrackedSnapshot::new(&next));
        self.current.store(next);
    }

    /// Returns the number of tracked snapshots. A dropped one may be tracked until later ones are published.
    pub(crate) fn tracked(&self) -> usize {
        self.tracked.lock().len()
    }

    /// Returns the sequence number of the oldest held snapshot.
    pub(crate) fn oldest(&self) -> SeqNo {
        // The list is in order, and the current snapshot is always in it.
        let tracked = self.tracked.lock();
        tracked.iter().find_map(|tracked| tracked.snapshot.upgrade()).map_or(0, |s| s.seqno)
    }

    /// Returns how long ago the oldest held snapshot was replaced, or zero if it is the current one.
    pub(crate) fn oldest_age(&self) -> Duration {
        let tracked = self.tracked.lock();
        let oldest = tracked.iter().find(|tracked| !tracked.is_dropped());
        oldest.and_then(|tracked| tracked.replaced).map_or(Duration::ZERO, |replaced| replaced.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seqno: SeqNo) -> Snapshot {
        Snapshot { seqno, view: empty_view(), headers: Arc::default(), counts: RowCounts::default() }
    }

    fn empty_view() -> Arc<View> {
        let dir = tempfile::tempdir().unwrap();
        let tree = crate::embedded::open_tree(dir.path(), None, &Default::default(), 1 << 20).unwrap();
        Arc::new(View::of(&tree))
    }

    #[test]
    fn oldest_held_snapshot_is_reported_until_it_is_dropped() {
        let snapshots = Snapshots::new(at(1));
        let reader = snapshots.current();
        snapshots.publish(at(2));
        snapshots.publish(at(3));
        assert_eq!((snapshots.oldest(), snapshots.current().seqno), (1, 3));
        assert!(snapshots.oldest_age() > Duration::ZERO);
        drop(reader);
        assert_eq!((snapshots.oldest(), snapshots.oldest_age()), (3, Duration::ZERO));
        for seqno in 4..100 {
            snapshots.publish(at(seqno));
        }
        assert!(snapshots.tracked.lock().len() <= 3);
    }
}
