//! Runs that are kept in memory for the next visitor, and dropped as soon as a row in them changes.
//!
//! A kept run is a claim: in the state `read_at`, and in every state since, exactly these rows lie between
//! `start` and `end`. A reader with a snapshot at or above `read_at` may use it. To keep the claim true, the
//! committer [invalidates](Runs::invalidate) every key that it changes *before* it publishes the change:
//!
//! - Invalidating a key drops the kept run that contains it. So a run that a reader finds is true for a
//!   snapshot that the reader took before it looked: every change in the snapshot was invalidated before.
//! - A run is read from a snapshot and kept later; keys may be invalidated in between. So a reader begins a
//!   [`Watch`] *before* it takes its snapshot. From then on the watch records invalidated keys, and a run
//!   that contains one of them is not kept.
//! - That leaves changes that were invalidated before the watch began, but were not published when the
//!   snapshot was taken. They lie below [`Runs::invalidated`], which the reader loads after its watch began.
//!   If its snapshot is below that, the reader keeps nothing. Otherwise the snapshot has every change
//!   invalidated before the watch.
//!
//! While no run is kept and there is no watch, the committer does not take the lock. It stores `invalidated`
//! and then loads `users`; a watch stores `users` and then loads `invalidated`; all of these are in one total
//! order. So either the committer sees the watch, or the watch sees what was invalidated.
//!
//! Runs are evicted at random. So repeated scans of a table larger than the budget still find a part of it,
//! where evicting the least recently used run would always evict the one needed next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use lsm_tree::SeqNo;
use parking_lot::Mutex;

use crate::run::{MAX_RUN_ROWS, Run};
use crate::{SpaceId, keys};

/// Bytes that a kept run counts for in addition to itself and its two keys: its entries in the map and in
/// `evictable`.
const RUN_OVERHEAD: usize = 512;
/// A run that takes more than this fraction (1/n) of the budget is not kept.
const MIN_RUNS_IN_BUDGET: usize = 8;
/// Maximum number of keys that a watch records. After more changes it keeps nothing.
const MAX_CHANGED_KEYS: usize = 1024;
/// Maximum number of concurrent watches. Further readers keep nothing.
const MAX_WATCHES: usize = 64;
/// Runs with fewer rows are read again together with the rows before them, so that changes do not fragment a
/// space.
const SHORT_RUN_ROWS: usize = MAX_RUN_ROWS / 4;
/// Number of runs that are examined to find one that is not short.
const LOOKAHEAD: usize = 16;

pub(crate) struct Runs {
    /// Maximum bytes of all runs.
    budget: usize,
    /// All invalidated changes lie below this sequence number.
    invalidated: AtomicU64,
    /// Number of kept runs and watches.
    users: AtomicUsize,
    state: Mutex<RunsState>,
}

#[derive(Default)]
struct RunsState {
    spaces: HashMap<SpaceId, SpaceRuns>,
    /// All kept runs, in no order. Evictions choose from this list.
    evictable: Vec<(SpaceId, Bytes)>,
    bytes: usize,
    watches: usize,
    last_watch: u64,
    random: u64,
}

#[derive(Default)]
struct SpaceRuns {
    /// Kept runs by their start. They do not overlap.
    runs: BTreeMap<Bytes, KeptRun>,
    watches: Vec<(u64, ChangedKeys)>,
}

struct KeptRun {
    end: Bytes,
    read_at: SeqNo,
    run: Arc<Run>,
    /// Bytes that the run counts for.
    bytes: usize,
    /// The run's index in `evictable`.
    index: usize,
}

/// Keys that were invalidated during a watch.
#[derive(Default)]
struct ChangedKeys {
    keys: Vec<Bytes>,
    /// Whether there were too many keys, or the space itself has changed.
    all: bool,
}

impl ChangedKeys {
    fn add(&mut self, key: &Bytes) {
        if self.keys.len() < MAX_CHANGED_KEYS {
            self.keys.push(key.clone());
        } else {
            self.all = true;
        }
    }

    fn touches(&self, range: &Range<Bytes>) -> bool {
        self.all || self.keys.iter().any(|key| range.contains(key))
    }
}

/// The result of a lookup of a run.
pub(crate) enum RunLookup {
    /// A run, and the range of keys that it covers.
    Run(Arc<Run>, Range<Bytes>),
    /// There is no run worth using from the key up to this one.
    Gap(Bytes),
}

impl Runs {
    /// Makes an empty cache for at most `budget` bytes.
    pub(crate) fn new(budget: usize) -> Self {
        let state = Mutex::new(RunsState { random: 0x9E37_79B9_7F4A_7C15, ..RunsState::default() });
        Self { budget, invalidated: AtomicU64::new(0), users: AtomicUsize::new(0), state }
    }

    /// Drops runs that contain these keys. The committer calls this before it publishes changes of them, all
    /// below `seqno`.
    pub(crate) fn invalidate<'a>(&self, keys: impl Iterator<Item = &'a Bytes>, seqno: SeqNo) {
        self.invalidated.store(seqno, Ordering::SeqCst);
        if self.users.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut dropped = vec![];
        let mut state = self.state.lock();
        for key in keys {
            state.invalidate(key, &mut dropped);
        }
        self.users.store(state.users(), Ordering::SeqCst);
        // Free the dropped runs after releasing the lock.
        drop(state);
    }

    /// Begins a watch of a space. Take the snapshot that runs are read from after this.
    pub(crate) fn watch(&self, space: SpaceId) -> Watch<'_> {
        let mut id = None;
        {
            let mut state = self.state.lock();
            if state.watches < MAX_WATCHES {
                state.watches += 1;
                state.last_watch += 1;
                let new_id = state.last_watch;
                state.spaces.entry(space).or_default().watches.push((new_id, ChangedKeys::default()));
                id = Some(new_id);
                self.users.store(state.users(), Ordering::SeqCst);
            }
        }
        Watch { runs: self, space, id, invalidated: self.invalidated.load(Ordering::SeqCst) }
    }

    /// Returns the run that contains `at` in a snapshot. Otherwise returns the gap from `at` to the next run
    /// that is not short, or to `end`.
    pub(crate) fn find(&self, space: SpaceId, at: &Bytes, end: &Bytes, snapshot: SeqNo) -> RunLookup {
        let state = self.state.lock();
        let Some(SpaceRuns { runs, .. }) = state.spaces.get(&space) else {
            return RunLookup::Gap(end.clone());
        };
        if let Some((start, kept)) = runs.range::<Bytes, _>(..=at).next_back()
            && *at < kept.end
            && kept.read_at <= snapshot
        {
            return RunLookup::Run(kept.run.clone(), start.clone()..kept.end.clone());
        }
        let mut ahead = runs.range::<Bytes, _>(at..end).skip_while(|(start, _)| *start == at).take(LOOKAHEAD);
        let next = ahead.find(|(_, kept)| kept.read_at <= snapshot && kept.run.len() >= SHORT_RUN_ROWS);
        RunLookup::Gap(next.map_or_else(|| end.clone(), |(start, _)| start.clone()))
    }

    /// Returns the bytes that all kept runs count for.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

/// Records changes in a space from its beginning until it is dropped.
pub(crate) struct Watch<'a> {
    runs: &'a Runs,
    space: SpaceId,
    /// The watch's id, or `None` if there were too many watches.
    id: Option<u64>,
    /// The value of [`Runs::invalidated`] when the watch began.
    invalidated: SeqNo,
}

impl Watch<'_> {
    /// Keeps a run, which was read from a snapshot taken after the watch began, unless one of its rows has
    /// changed since.
    pub(crate) fn keep(&self, range: Range<Bytes>, run: Arc<Run>, snapshot: SeqNo) {
        if self.id.is_none() || snapshot < self.invalidated {
            return;
        }
        let mut dropped = vec![];
        let mut state = self.runs.state.lock();
        let changed =
            state.spaces.get(&self.space).and_then(|s| s.watches.iter().find(|w| Some(w.0) == self.id));
        if changed.is_some_and(|(_, changed)| !changed.touches(&range)) {
            state.keep(self.space, range, run, snapshot, self.runs.budget, &mut dropped);
            self.runs.users.store(state.users(), Ordering::SeqCst);
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.runs.state.lock();
        if let Some(space) = state.spaces.get_mut(&self.space) {
            space.watches.retain(|(other, _)| *other != id);
            state.watches -= 1;
            state.remove_if_empty(self.space);
        }
        self.runs.users.store(state.users(), Ordering::SeqCst);
    }
}

impl RunsState {
    fn users(&self) -> usize {
        self.evictable.len() + self.watches
    }

    fn invalidate(&mut self, key: &Bytes, dropped: &mut Vec<KeptRun>) {
        if let Some(id) = keys::header_of(key) {
            return self.invalidate_space(id, dropped);
        }
        let Some(id) = keys::space_of(key) else { return };
        let Some(space) = self.spaces.get_mut(&id) else { return };
        for (_, changed) in &mut space.watches {
            changed.add(key);
        }
        if let Some((start, kept)) = space.runs.range::<Bytes, _>(..=key).next_back()
            && *key < kept.end
        {
            let start = start.clone();
            dropped.extend(self.remove(id, &start));
        }
    }

    /// Drops the runs of a space that was opened, closed or swept, because readers will hardly need them.
    fn invalidate_space(&mut self, id: SpaceId, dropped: &mut Vec<KeptRun>) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        for (_, changed) in &mut space.watches {
            changed.all = true;
        }
        let starts: Vec<_> = space.runs.keys().cloned().collect();
        dropped.extend(starts.iter().filter_map(|start| self.remove(id, start)));
    }

    fn keep(
        &mut self,
        id: SpaceId,
        range: Range<Bytes>,
        run: Arc<Run>,
        read_at: SeqNo,
        budget: usize,
        dropped: &mut Vec<KeptRun>,
    ) {
        // These keys may be slices of whole blocks, so copy them.
        let [start, end] = [range.start, range.end].map(|key| Bytes::copy_from_slice(&key));
        let bytes = RUN_OVERHEAD + start.len() + end.len() + run.bytes();
        if start >= end || bytes > budget / MIN_RUNS_IN_BUDGET {
            return;
        }
        let Some(SpaceRuns { runs, .. }) = self.spaces.get(&id) else { return };
        // Another reader has kept the same run, and may have added a memo to it.
        if runs.get(&start).is_some_and(|other| other.end == end) {
            return;
        }
        let before = runs.range::<Bytes, _>(..&start).next_back().filter(|(_, before)| start < before.end);
        let overlapped = before.into_iter().chain(runs.range::<Bytes, _>(&start..&end));
        let overlapped: Vec<_> = overlapped.map(|(start, _)| start.clone()).collect();
        dropped.extend(overlapped.iter().filter_map(|start| self.remove(id, start)));
        while self.bytes + bytes > budget {
            let Some((space, start)) = self.pick_random() else { return };
            dropped.extend(self.remove(space, &start));
        }
        self.bytes += bytes;
        let index = self.evictable.len();
        self.evictable.push((id, start.clone()));
        let kept = KeptRun { end, read_at, run, bytes, index };
        self.spaces.entry(id).or_default().runs.insert(start, kept);
    }

    /// Returns a random run.
    fn pick_random(&mut self) -> Option<(SpaceId, Bytes)> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let picked = self.random % (self.evictable.len() as u64).max(1);
        self.evictable.get(picked as usize).cloned()
    }

    fn remove(&mut self, id: SpaceId, start: &Bytes) -> Option<KeptRun> {
        let kept = self.spaces.get_mut(&id)?.runs.remove(start)?;
        self.bytes -= kept.bytes;
        self.evictable.swap_remove(kept.index);
        if let Some((space, start)) = self.evictable.get(kept.index)
            && let Some(moved) = self.spaces.get_mut(space).and_then(|space| space.runs.get_mut(start))
        {
            moved.index = kept.index;
        }
        self.remove_if_empty(id);
        Some(kept)
    }

    fn remove_if_empty(&mut self, id: SpaceId) {
        if self.spaces.get(&id).is_some_and(|space| space.runs.is_empty() && space.watches.is_empty()) {
            self.spaces.remove(&id);
        }
    }
}
