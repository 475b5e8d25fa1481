//! What readers see: the last published state, held for as long as a read runs.
//!
//! The committer publishes a [`Snapshot`] once everything in it is durable. A reader holds the one it started with.
//! Versions of rows that a held snapshot may still need are kept by the tree: [`Snapshots::oldest`] tells how far
//! back that is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use lsm_tree::SeqNo;
use parking_lot::Mutex;

use super::view::View;
use crate::{RowCounts, SpaceHeader, SpaceId};

/// So many remembered snapshots are looked through for dead ones behind an old one that is still held.
const MANY: usize = 1024;

/// Headers of spaces that were used lately, so that a read need not look them up in the tree.
pub(crate) type Headers = HashMap<SpaceId, Option<SpaceHeader>>;

/// One published state.
pub(crate) struct Snapshot {
    /// Everything below this sequence number is visible.
    pub(crate) seqno: SeqNo,
    /// Where the rows are.
    pub(crate) view: Arc<View>,
    /// Some of the space headers, as of this state.
    pub(crate) headers: Arc<Headers>,
    /// Rows added and removed up to this state.
    pub(crate) counts: RowCounts,
}

/// The current snapshot, and the older ones that somebody may still hold.
pub(crate) struct Snapshots {
    current: ArcSwap<Snapshot>,
    held: Mutex<VecDeque<Held>>,
}

struct Held {
    snapshot: Weak<Snapshot>,
    /// When the next one was published; `None` for the current one.
    replaced: Option<Instant>,
}

impl Held {
    fn new(snapshot: &Arc<Snapshot>) -> Self {
        Self { snapshot: Arc::downgrade(snapshot), replaced: None }
    }

    fn is_dead(&self) -> bool {
        self.snapshot.strong_count() == 0
    }
}

impl Snapshots {
    pub(crate) fn new(first: Snapshot) -> Self {
        let first = Arc::new(first);
        let held = Mutex::new(VecDeque::from([Held::new(&first)]));
        Self { current: ArcSwap::new(first), held }
    }

    /// The state that holds every commit acknowledged so far.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Makes a new state visible. Only the committer calls this.
    pub(crate) fn publish(&self, next: Snapshot) {
        let next = Arc::new(next);
        let mut held = self.held.lock();
        while held.front().is_some_and(Held::is_dead) {
            held.pop_front();
        }
        if held.len() >= MANY {
            held.retain(|held| !held.is_dead());
        }
        if let Some(current) = held.back_mut() {
            current.replaced = Some(Instant::now());
        }
        held.push_back(Held::new(&next));
        self.current.store(next);
    }

    /// The sequence number of the oldest snapshot that is still held.
    pub(crate) fn oldest(&self) -> SeqNo {
        // Held snapshots are in order, and the current one is always among them.
        let held = self.held.lock();
        held.iter().find_map(|held| held.snapshot.upgrade()).map_or(0, |s| s.seqno)
    }

    /// For how long the oldest snapshot that is still held has been out of date.
    pub(crate) fn oldest_age(&self) -> Duration {
        let held = self.held.lock();
        let oldest = held.iter().find(|held| !held.is_dead());
        oldest.and_then(|held| held.replaced).map_or(Duration::ZERO, |replaced| replaced.elapsed())
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
    fn the_oldest_held_snapshot_bounds_what_may_be_forgotten() {
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
        assert!(snapshots.held.lock().len() <= 3);
    }
}
