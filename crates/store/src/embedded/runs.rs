//! Runs that are kept in memory for the next visitor, and dropped as soon as a row in them changes.
//!
//! A kept run says: as of the state `read_at`, and of every state since, exactly these rows lie between `start` and `end`.
//! A reader with a snapshot at or above `read_at` may be shown it. That it stays true is up to the committer, which
//! [tells](Runs::changing) every key that it changes *before* it publishes the change:
//!
//! - A run that is kept when a key in it is told is dropped. So a run that a reader finds is true for the snapshot that
//!   the reader took before it looked: every change that the snapshot shows was told before.
//! - A run is read from a snapshot, and kept only later: changes may be told in between. So a reader begins a
//!   [`Watch`] *before* it takes its snapshot; from then on, what is told is noted in the watch, and a run with a noted key
//!   in it is not kept.
//! - That leaves changes that were told before the watch began, but were not published when the snapshot was taken.
//!   They lie below [`Runs::told`], which the reader loads after its watch began. It keeps nothing if its snapshot is not
//!   at least that: then every change told before the watch is in the snapshot.
//!
//! While no run is kept and nobody watches, the committer does not even take the lock. It stores `told` and then loads
//! `watched`; a watch stores `watched` and then loads `told`; all of these are in one total order. So either the committer
//! sees that it is watched, or the watch sees what was told.
//!
//! What is evicted is chosen at random: a table larger than the budget that is scanned over and over still finds a part
//! of itself, where the least recently used run would always be the next one needed.

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

/// What a kept run counts for beside its own bytes and its two keys: its places in the map and in the lottery.
const RUN_OVERHEAD: usize = 512;
/// A run that takes more than this part of the budget is not kept.
const LARGEST_PART: usize = 8;
/// Keys that a watch notes. Behind so many changes it keeps nothing.
const MAX_NOTED: usize = 1024;
/// Watches at a time. Who comes later reads without keeping anything.
const MAX_WATCHES: usize = 64;
/// Shorter runs are read again together with the rows before them, so that changes do not crumble a space.
const SHORT: usize = MAX_RUN_ROWS / 4;
/// Runs that are looked at for one that is not short.
const LOOKAHEAD: usize = 16;

pub(crate) struct Runs {
    /// Bytes of all runs.
    budget: usize,
    /// Every operation that the committer has told, or need not tell, lies below this sequence number.
    told: AtomicU64,
    /// Runs that are kept, and watches.
    watched: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spaces: HashMap<SpaceId, Space>,
    /// Every kept run, in no order, for eviction.
    lottery: Vec<(SpaceId, Bytes)>,
    bytes: usize,
    watches: usize,
    last_watch: u64,
    random: u64,
}

#[derive(Default)]
struct Space {
    /// By their start; they do not overlap.
    runs: BTreeMap<Bytes, Kept>,
    watches: Vec<(u64, Noted)>,
}

struct Kept {
    end: Bytes,
    read_at: SeqNo,
    run: Arc<Run>,
    /// What it counts for.
    bytes: usize,
    /// Its place in the lottery.
    ticket: usize,
}

/// Keys that were told while a watch was on.
#[derive(Default)]
struct Noted {
    keys: Vec<Bytes>,
    /// There were too many, or the space itself has changed.
    everything: bool,
}

impl Noted {
    fn note(&mut self, key: &Bytes) {
        if self.keys.len() < MAX_NOTED {
            self.keys.push(key.clone());
        } else {
            self.everything = true;
        }
    }

    fn is_in(&self, range: &Range<Bytes>) -> bool {
        self.everything || self.keys.iter().any(|key| range.contains(key))
    }
}

/// What lies at a key.
pub(crate) enum Found {
    /// A run, and the range of keys that it speaks of.
    Run(Arc<Run>, Range<Bytes>),
    /// Nothing that is known, up to this key.
    Gap(Bytes),
}

impl Runs {
    /// Keeps at most so many bytes.
    pub(crate) fn new(budget: usize) -> Self {
        let state = Mutex::new(State { random: 0x9E37_79B9_7F4A_7C15, ..State::default() });
        Self { budget, told: AtomicU64::new(0), watched: AtomicUsize::new(0), state }
    }

    /// The committer is about to publish changes of these keys, all of them below `told`.
    pub(crate) fn changing<'a>(&self, keys: impl Iterator<Item = &'a Bytes>, told: SeqNo) {
        self.told.store(told, Ordering::SeqCst);
        if self.watched.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut dropped = vec![];
        let mut state = self.state.lock();
        for key in keys {
            state.changing(key, &mut dropped);
        }
        self.watched.store(state.watched(), Ordering::SeqCst);
        // What was dropped is freed behind the lock.
        drop(state);
    }

    /// Begins to watch a space. The snapshot that runs will be read from has to be taken afterwards.
    pub(crate) fn watch(&self, space: SpaceId) -> Watch<'_> {
        let mut id = None;
        {
            let mut state = self.state.lock();
            if state.watches < MAX_WATCHES {
                state.watches += 1;
                state.last_watch += 1;
                let fresh = state.last_watch;
                state.spaces.entry(space).or_default().watches.push((fresh, Noted::default()));
                id = Some(fresh);
                self.watched.store(state.watched(), Ordering::SeqCst);
            }
        }
        Watch { runs: self, space, id, told: self.told.load(Ordering::SeqCst) }
    }

    /// The run that holds a key as of a snapshot; or how far it is, below `end`, to one that is worth to be gone on with.
    pub(crate) fn find(&self, space: SpaceId, at: &Bytes, end: &Bytes, snapshot: SeqNo) -> Found {
        let state = self.state.lock();
        let Some(Space { runs, .. }) = state.spaces.get(&space) else { return Found::Gap(end.clone()) };
        if let Some((start, kept)) = runs.range::<Bytes, _>(..=at).next_back()
            && *at < kept.end
            && kept.read_at <= snapshot
        {
            return Found::Run(kept.run.clone(), start.clone()..kept.end.clone());
        }
        let mut ahead = runs.range::<Bytes, _>(at..end).skip_while(|(start, _)| *start == at).take(LOOKAHEAD);
        let next = ahead.find(|(_, kept)| kept.read_at <= snapshot && kept.run.len() >= SHORT);
        Found::Gap(next.map_or_else(|| end.clone(), |(start, _)| start.clone()))
    }

    /// Bytes of all runs that are kept, as they are counted.
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

/// Notes what changes in a space from when it began until it is dropped.
pub(crate) struct Watch<'a> {
    runs: &'a Runs,
    space: SpaceId,
    /// `None` if there were too many.
    id: Option<u64>,
    /// What had been told when it began.
    told: SeqNo,
}

impl Watch<'_> {
    /// Keeps what a snapshot, taken after the watch began, shows between two keys, unless that has changed since.
    pub(crate) fn keep(&self, range: Range<Bytes>, run: Arc<Run>, snapshot: SeqNo) {
        if self.id.is_none() || snapshot < self.told {
            return;
        }
        let mut dropped = vec![];
        let mut state = self.runs.state.lock();
        let noted =
            state.spaces.get(&self.space).and_then(|s| s.watches.iter().find(|w| Some(w.0) == self.id));
        if noted.is_some_and(|(_, noted)| !noted.is_in(&range)) {
            state.keep(self.space, range, run, snapshot, self.runs.budget, &mut dropped);
            self.runs.watched.store(state.watched(), Ordering::SeqCst);
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
            state.forget_if_empty(self.space);
        }
        self.runs.watched.store(state.watched(), Ordering::SeqCst);
    }
}

impl State {
    fn watched(&self) -> usize {
        self.lottery.len() + self.watches
    }

    fn changing(&mut self, key: &Bytes, dropped: &mut Vec<Kept>) {
        if let Some(id) = keys::header_of(key) {
            return self.space_changing(id, dropped);
        }
        let Some(id) = keys::space_of(key) else { return };
        let Some(space) = self.spaces.get_mut(&id) else { return };
        for (_, noted) in &mut space.watches {
            noted.note(key);
        }
        if let Some((start, kept)) = space.runs.range::<Bytes, _>(..=key).next_back()
            && *key < kept.end
        {
            let start = start.clone();
            dropped.extend(self.remove(id, &start));
        }
    }

    /// A space was opened, closed or swept: nobody will come for its runs.
    fn space_changing(&mut self, id: SpaceId, dropped: &mut Vec<Kept>) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        for (_, noted) in &mut space.watches {
            noted.everything = true;
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
        dropped: &mut Vec<Kept>,
    ) {
        // Keys that were read may be slices of the whole block that they lie in.
        let [start, end] = [range.start, range.end].map(|key| Bytes::copy_from_slice(&key));
        let bytes = RUN_OVERHEAD + start.len() + end.len() + run.bytes();
        if start >= end || bytes > budget / LARGEST_PART {
            return;
        }
        let Some(Space { runs, .. }) = self.spaces.get(&id) else { return };
        // Another reader was faster with the same run, and may have noted something on it.
        if runs.get(&start).is_some_and(|other| other.end == end) {
            return;
        }
        let before = runs.range::<Bytes, _>(..&start).next_back().filter(|(_, before)| start < before.end);
        let overlapped = before.into_iter().chain(runs.range::<Bytes, _>(&start..&end));
        let overlapped: Vec<_> = overlapped.map(|(start, _)| start.clone()).collect();
        dropped.extend(overlapped.iter().filter_map(|start| self.remove(id, start)));
        while self.bytes + bytes > budget {
            let Some((space, start)) = self.draw() else { return };
            dropped.extend(self.remove(space, &start));
        }
        self.bytes += bytes;
        let ticket = self.lottery.len();
        self.lottery.push((id, start.clone()));
        let kept = Kept { end, read_at, run, bytes, ticket };
        self.spaces.entry(id).or_default().runs.insert(start, kept);
    }

    /// One of the runs at random.
    fn draw(&mut self) -> Option<(SpaceId, Bytes)> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let drawn = self.random % (self.lottery.len() as u64).max(1);
        self.lottery.get(drawn as usize).cloned()
    }

    fn remove(&mut self, id: SpaceId, start: &Bytes) -> Option<Kept> {
        let kept = self.spaces.get_mut(&id)?.runs.remove(start)?;
        self.bytes -= kept.bytes;
        self.lottery.swap_remove(kept.ticket);
        if let Some((space, start)) = self.lottery.get(kept.ticket)
            && let Some(moved) = self.spaces.get_mut(space).and_then(|space| space.runs.get_mut(start))
        {
            moved.ticket = kept.ticket;
        }
        self.forget_if_empty(id);
        Some(kept)
    }

    fn forget_if_empty(&mut self, id: SpaceId) {
        if self.spaces.get(&id).is_some_and(|space| space.runs.is_empty() && space.watches.is_empty()) {
            self.spaces.remove(&id);
        }
    }
}
