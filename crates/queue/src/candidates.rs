//! Candidates: messages at the front of each queue that are worth trying to get, remembered in memory.
//!
//! Without this cache every consumer would try the first message, and all but one would fail. Each would also
//! scan from the beginning of the queue, past everything that was deleted there. The cache gives each
//! candidate to one consumer, and continues reading where it stopped.
//!
//! **The cache decides nothing.** A message is got by a commit on its row, and a candidate that no longer
//! exists is dropped. The cache must only never forget a message: *every unexpired message below
//! [`CacheState::cursor`] is in [`CacheState::ready`], or in [`CacheState::taken`] by a consumer.* So a
//! message that is written below the cursor becomes ready. Messages that are written while rows are being
//! read are collected, because the read may not show them.
//!
//! The cache can be lost at any time and is then read from the rows again. The row `floor` is raised from
//! time to time, so that this read does not begin at the start of a queue from which many messages were
//! deleted.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::read_refusal;
use lazuli_store::{Partition, Reads, RowPosition, SpaceId, Store};
use parking_lot::Mutex;

use crate::record::Message;
use crate::slot::{SLOT_BYTES, Slot};
use crate::{MAX_COMMIT_DELAY, keys};

/// Number of rows in one read.
const READ_ROWS: usize = 64;
/// Maximum number of reads for one consumer. Only many expired messages make more than a few necessary.
const MAX_READS: usize = 256;
/// Reads after which the task yields, because reading rows that are in memory never does.
const READS_PER_YIELD: usize = 16;
/// Maximum number of ready candidates of one queue. Beyond it the last ones are dropped, and read again
/// later.
pub(crate) const MAX_READY: usize = 1 << 13;
/// Maximum number of queues with a cache. Beyond it the caches that no request uses are dropped.
const MAX_CACHES: usize = 1 << 14;
/// When all caches together have more candidates than this, each is cut back to [`MIN_READY`]. Requests in
/// flight may add some more.
pub(crate) const MAX_TOTAL_READY: usize = 1 << 20;
/// Number of candidates that a cache keeps when all caches have too many. One request can get this many.
const MIN_READY: usize = 32;
// Cutting back all caches frees at least half of the total.
const _: () = assert!(MAX_CACHES * MIN_READY <= MAX_TOTAL_READY / 2);
/// Number of messages that are handed out between two writes of the floor.
const FLOOR_INTERVAL: usize = 1024;

/// The caches of all queues, by the queues' spaces.
#[derive(Debug, Default)]
pub(crate) struct CandidateCaches {
    caches: Mutex<HashMap<SpaceId, Arc<CandidateCache>>>,
    /// Number of ready candidates in all caches.
    total: Arc<AtomicUsize>,
}

impl CandidateCaches {
    /// Returns the cache of a queue. A request that writes messages must hold the cache from before its
    /// commit until it has called [`CandidateCache::record_written`], so that the cache is not dropped in
    /// between.
    pub(crate) fn of(&self, queue: SpaceId) -> Arc<CandidateCache> {
        let mut caches = self.caches.lock();
        if self.total.load(Relaxed) > MAX_TOTAL_READY {
            caches.values().for_each(|cache| cache.state.lock().keep_first(MIN_READY));
        }
        if caches.len() >= MAX_CACHES && !caches.contains_key(&queue) {
            caches.retain(|_, cache| Arc::strong_count(cache) > 1);
        }
        let new = || Arc::new(CandidateCache::new(queue, self.total.clone()));
        caches.entry(queue).or_insert_with(new).clone()
    }

    /// Drops the cache of a queue that no longer exists.
    pub(crate) fn forget(&self, queue: SpaceId) {
        self.caches.lock().remove(&queue);
    }

    /// Returns the number of caches.
    pub(crate) fn len(&self) -> usize {
        self.caches.lock().len()
    }

    /// Returns the number of ready candidates in all caches.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }
}

/// The ready candidates of a queue. `total` counts those of all queues.
#[derive(Debug)]
struct ReadyCandidates {
    slots: BTreeSet<Slot>,
    total: Arc<AtomicUsize>,
}

impl ReadyCandidates {
    fn insert(&mut self, slot: Slot) {
        self.total.fetch_add(usize::from(self.slots.insert(slot)), Relaxed);
    }

    fn remove(&mut self, slot: &Slot) {
        self.total.fetch_sub(usize::from(self.slots.remove(slot)), Relaxed);
    }

    fn pop_first(&mut self) -> Option<Slot> {
        let first = self.slots.pop_first();
        self.total.fetch_sub(usize::from(first.is_some()), Relaxed);
        first
    }

    /// Drops the given candidate and all that follow it.
    fn drop_from(&mut self, slot: &Slot) {
        self.total.fetch_sub(self.slots.split_off(slot).len(), Relaxed);
    }
}

impl Deref for ReadyCandidates {
    type Target = BTreeSet<Slot>;

    fn deref(&self) -> &BTreeSet<Slot> {
        &self.slots
    }
}

impl Drop for ReadyCandidates {
    fn drop(&mut self) {
        self.total.fetch_sub(self.slots.len(), Relaxed);
    }
}

/// The candidates of one queue.
#[derive(Debug)]
pub(crate) struct CandidateCache {
    partition: Partition,
    state: Mutex<CacheState>,
    /// Held by the task that reads more rows.
    read_lock: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct CacheState {
    /// Candidates that no consumer has taken.
    ready: ReadyCandidates,
    /// Candidates that consumers have taken and not yet finished or returned.
    taken: BTreeSet<Slot>,
    /// The slot up to which rows have been read.
    cursor: Slot,
    /// While rows are being read: the slots at or after the cursor that were written since the read began.
    written_meanwhile: Option<Vec<Slot>>,
    /// The floor as last read or written.
    floor: Slot,
    /// Number of candidates taken since the floor was last written.
    handed_out: usize,
}

impl CandidateCache {
    fn new(queue: SpaceId, total: Arc<AtomicUsize>) -> Self {
        let state = Mutex::new(CacheState::new(total));
        Self { partition: keys::messages(queue), state, read_lock: Default::default() }
    }

    /// Records that a commit has written messages to the given slots.
    pub(crate) fn record_written(&self, slots: impl IntoIterator<Item = Slot>) {
        let mut state = self.state.lock();
        slots.into_iter().for_each(|slot| state.record_written(slot));
    }

    /// Takes up to `wanted` candidates for one consumer. Returns fewer if there are no more, or if
    /// [`MAX_READS`] reads found too few; the next request continues from there.
    pub(crate) async fn take(
        self: &Arc<Self>,
        store: &dyn Store,
        wanted: usize,
    ) -> Result<TakenCandidates, Refusal> {
        let mut taken = TakenCandidates { cache: self.clone(), slots: vec![] };
        taken.fill(wanted);
        if taken.slots.len() < wanted {
            let _guard = self.read_lock.lock().await;
            for read in 1..=MAX_READS {
                if read % READS_PER_YIELD == 0 {
                    tokio::task::yield_now().await;
                }
                taken.fill(wanted);
                if taken.slots.len() == wanted || !self.read_more(store).await? {
                    break;
                }
            }
            taken.fill(wanted);
        }
        Ok(taken)
    }

    /// Returns up to `wanted` candidates without taking them. Returns fewer if there are no more, or if
    /// [`MAX_READS`] reads found too few.
    pub(crate) async fn peek(&self, store: &dyn Store, wanted: usize) -> Result<Vec<Slot>, Refusal> {
        if self.state.lock().ready.len() < wanted {
            let _guard = self.read_lock.lock().await;
            for read in 1..=MAX_READS {
                if read % READS_PER_YIELD == 0 {
                    tokio::task::yield_now().await;
                }
                if self.state.lock().ready.len() >= wanted || !self.read_more(store).await? {
                    break;
                }
            }
        }
        Ok(self.state.lock().ready.iter().copied().take(wanted).collect())
    }

    /// Removes candidates whose messages no longer exist.
    pub(crate) fn discard(&self, slots: &[Slot]) {
        let mut state = self.state.lock();
        for slot in slots {
            state.ready.remove(slot);
        }
    }

    /// Returns the present floor and the slot to which it may be raised, if it is time to raise it. The cache
    /// knows no message in this range. The commit that raises the floor must read the range to confirm that.
    /// No message can appear there later, because its commit would exceed [`MAX_COMMIT_DELAY`].
    pub(crate) fn floor_due(&self, now: Timestamp) -> Option<Range<Slot>> {
        self.state.lock().floor_due(now)
    }

    /// Records that a commit has raised the floor.
    pub(crate) fn floor_raised(&self, floor: Slot) {
        let mut state = self.state.lock();
        (state.floor, state.handed_out) = (floor, 0);
    }

    /// Reads the next rows from the cursor on. Returns false if no visible message is left. Requires
    /// `read_lock`.
    async fn read_more(&self, store: &dyn Store) -> Result<bool, Refusal> {
        let reading = RunningRead { cache: self, cursor: self.state.lock().begin_reading() };
        let from = match reading.cursor {
            Slot::FIRST => {
                let floor = self.floor(store).await?;
                self.state.lock().floor = floor;
                floor
            }
            cursor => cursor,
        };
        let now = store.now();
        let end = Slot::end_of_visible(now).max(from);
        let reads = Reads::default().and_range(keys::between(from, end), READ_ROWS);
        let set = store.read(&self.partition, &reads).await.map_err(read_refusal)?;
        if !set.space.is_some_and(|space| space.open) {
            return Err(ErrorCode::QueueNotFound.into());
        }
        let (mut slots, mut reached) = (vec![], end);
        for scanned in set.ranges {
            for row in &scanned.rows {
                let Some(slot) = keys::slot(&row.key) else { continue };
                let message = Message::decode(&row.value);
                let place = || RowPosition::new(&self.partition, &row.key);
                if !message.map_err(|damage| damage.at(place()))?.has_expired(now) {
                    slots.push(slot);
                }
            }
            if scanned.more {
                reached = keys::slot(&scanned.range.end).unwrap_or(end);
            }
        }
        self.state.lock().end_reading(reading.cursor, slots, reached);
        Ok(reached < end)
    }

    /// Reads the floor, where reading begins when the cache is empty.
    async fn floor(&self, store: &dyn Store) -> Result<Slot, Refusal> {
        let set = store.read(&self.partition, &Reads::key(keys::FLOOR)).await.map_err(read_refusal)?;
        let floor = set.rows.into_iter().next().flatten();
        Ok(floor.as_ref().and_then(|row| slot_of_floor(&row.value)).unwrap_or(Slot::FIRST))
    }
}

fn slot_of_floor(value: &[u8]) -> Option<Slot> {
    value.try_into().ok().map(|bytes: &[u8; SLOT_BYTES]| Slot::from_bytes(bytes))
}

/// Returns the value of the row that holds the floor.
pub(crate) fn floor_value(floor: Slot) -> Bytes {
    Bytes::copy_from_slice(&floor.to_bytes())
}

/// A running read of rows. If the read fails or is canceled, dropping this leaves the cache as before.
struct RunningRead<'a> {
    cache: &'a CandidateCache,
    /// The cursor when the read began.
    cursor: Slot,
}

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        self.cache.state.lock().written_meanwhile = None;
    }
}

/// Candidates that one consumer has taken. Dropping this returns them to the cache.
#[derive(Debug)]
pub(crate) struct TakenCandidates {
    cache: Arc<CandidateCache>,
    slots: Vec<Slot>,
}

impl TakenCandidates {
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Removes the candidates from the cache: the consumer got their messages, or they no longer exist.
    pub(crate) fn finish(mut self) {
        let mut state = self.cache.state.lock();
        for slot in self.slots.drain(..) {
            state.taken.remove(&slot);
        }
    }

    /// Takes ready candidates until there are `wanted` of them.
    fn fill(&mut self, wanted: usize) {
        let mut state = self.cache.state.lock();
        while self.slots.len() < wanted
            && let Some(slot) = state.ready.pop_first()
        {
            state.taken.insert(slot);
            state.handed_out += 1;
            self.slots.push(slot);
        }
    }
}

impl Drop for TakenCandidates {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        for slot in self.slots.drain(..) {
            state.taken.remove(&slot);
            state.ready.insert(slot);
        }
    }
}

impl CacheState {
    fn new(total: Arc<AtomicUsize>) -> Self {
        Self {
            ready: ReadyCandidates { slots: BTreeSet::new(), total },
            taken: BTreeSet::new(),
            cursor: Slot::FIRST,
            written_meanwhile: None,
            floor: Slot::FIRST,
            handed_out: 0,
        }
    }

    fn record_written(&mut self, slot: Slot) {
        if slot < self.cursor {
            self.make_ready(slot);
            self.enforce_limit();
        } else if let Some(written) = &mut self.written_meanwhile {
            written.push(slot);
        }
    }

    fn begin_reading(&mut self) -> Slot {
        debug_assert!(self.written_meanwhile.is_none(), "only one task reads at a time");
        self.written_meanwhile = Some(vec![]);
        self.cursor
    }

    /// Adds the result of a read of all rows from `began` to `reached`, exclusive, which hold the messages in
    /// `slots`. If candidates were dropped during the read, the cursor has moved back. Then the result is
    /// discarded, and the rows are read again later.
    fn end_reading(&mut self, began: Slot, slots: Vec<Slot>, reached: Slot) {
        let written = self.written_meanwhile.take().unwrap_or_default();
        if self.cursor < began {
            return;
        }
        self.cursor = self.cursor.max(reached);
        for slot in slots.into_iter().chain(written).filter(|slot| *slot < reached) {
            self.make_ready(slot);
        }
        self.enforce_limit();
    }

    /// Makes a slot ready unless a consumer has taken it. The writer of a message may report it only after a
    /// consumer has read and taken it. The consumer then returns or finishes it.
    fn make_ready(&mut self, slot: Slot) {
        if !self.taken.contains(&slot) {
            self.ready.insert(slot);
        }
    }

    fn enforce_limit(&mut self) {
        if self.ready.len() > MAX_READY {
            self.keep_first(MAX_READY / 2);
        }
    }

    /// Drops all ready candidates but the first `count`, and moves the cursor back so that they are read
    /// again.
    fn keep_first(&mut self, count: usize) {
        if let Some(dropped) = self.ready.iter().nth(count).copied() {
            self.ready.drop_from(&dropped);
            self.cursor = dropped;
        }
    }

    fn floor_due(&self, now: Timestamp) -> Option<Range<Slot>> {
        if self.handed_out < FLOOR_INTERVAL {
            return None;
        }
        let known = [self.ready.first(), self.taken.first()].into_iter().flatten().copied();
        let floor = known.fold(self.cursor, Slot::min);
        // A message below this floor was given its slot at least twice the maximum delay ago, so its commit
        // has taken effect before the commit that raises the floor, or never will.
        let floor = floor.min(Slot::first_at(now - MAX_COMMIT_DELAY - MAX_COMMIT_DELAY));
        (self.floor < floor).then_some(self.floor..floor)
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;

    use super::*;

    fn slot(n: u64) -> Slot {
        Slot { visible_at: Timestamp::from_ticks(n), stamp: Stamp::from_ticks(n), index: 0 }
    }

    fn ready(state: &CacheState) -> Vec<u64> {
        state.ready.iter().map(|slot| slot.visible_at.ticks()).collect()
    }

    #[test]
    fn message_written_below_the_cursor_is_ready_and_others_are_read_later() {
        let mut state = CacheState::new(Arc::default());
        state.record_written(slot(5));
        assert!(ready(&state).is_empty());
        assert_eq!(state.begin_reading(), Slot::FIRST);
        state.end_reading(Slot::FIRST, vec![slot(5)], slot(10));
        state.record_written(slot(7));
        state.record_written(slot(12));
        assert_eq!((ready(&state), state.cursor), (vec![5, 7], slot(10)));
    }

    #[test]
    fn message_written_during_a_read_is_not_missed() {
        let mut state = CacheState::new(Arc::default());
        state.begin_reading();
        state.record_written(slot(7));
        state.record_written(slot(12));
        state.end_reading(Slot::FIRST, vec![slot(5)], slot(10));
        assert_eq!(ready(&state), [5, 7]);
        // The message in slot 12 is not ready, and not forgotten either: the cursor has not passed it.
        assert!(state.cursor < slot(12));
    }

    #[test]
    fn candidate_goes_to_one_consumer_and_comes_back_unless_finished() {
        let cache = Arc::new(CandidateCache::new(SpaceId(1), Arc::default()));
        cache.state.lock().end_reading(Slot::FIRST, (1..=5).map(slot).collect(), slot(10));
        let mut first = TakenCandidates { cache: cache.clone(), slots: vec![] };
        first.fill(2);
        let mut second = TakenCandidates { cache: cache.clone(), slots: vec![] };
        second.fill(2);
        assert_eq!((first.slots(), second.slots()), (&[slot(1), slot(2)][..], &[slot(3), slot(4)][..]));
        drop(first);
        second.finish();
        assert_eq!(ready(&cache.state.lock()), [1, 2, 5]);
        assert!(cache.state.lock().taken.is_empty());
    }

    #[test]
    fn taken_candidate_does_not_become_ready_when_its_writer_reports_late() {
        let cache = Arc::new(CandidateCache::new(SpaceId(1), Arc::default()));
        cache.state.lock().end_reading(Slot::FIRST, vec![slot(1)], slot(10));
        let mut taken = TakenCandidates { cache: cache.clone(), slots: vec![] };
        taken.fill(1);
        cache.record_written([slot(1)]);
        taken.fill(2);
        assert_eq!(taken.slots(), [slot(1)]);
        drop(taken);
        assert_eq!(ready(&cache.state.lock()), [1]);
    }

    #[test]
    fn candidates_beyond_the_limit_are_read_again() {
        let mut state = CacheState::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![], slot(u64::MAX));
        (1..=MAX_READY as u64 + 1).for_each(|n| state.record_written(slot(n)));
        assert_eq!(state.ready.len(), MAX_READY / 2);
        assert!(state.ready.last() < Some(&state.cursor) && state.cursor < slot(MAX_READY as u64));
    }

    #[test]
    fn candidates_dropped_during_a_read_are_not_missed() {
        let mut state = CacheState::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![], slot(1_000_000));
        let began = state.begin_reading();
        (1..=MAX_READY as u64 + 1).for_each(|n| state.record_written(slot(n)));
        let cursor = state.cursor;
        assert!(cursor < began);
        state.end_reading(began, vec![slot(1_000_001)], slot(2_000_000));
        assert_eq!((state.cursor, state.written_meanwhile.is_none()), (cursor, true));
        assert!(state.ready.last() < Some(&cursor));
    }

    #[test]
    fn floor_is_below_every_message_that_exists_or_may_still_be_written() {
        let now = Timestamp::from_unix_seconds(1_000_000);
        let ago = |seconds| Slot::first_at(now - lazuli_concurrency::Span::seconds(seconds));
        let mut state = CacheState::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![ago(500), ago(400)], ago(100));
        assert_eq!(state.floor_due(now), None);
        state.handed_out = FLOOR_INTERVAL;
        let floor = |state: &mut CacheState| state.floor_due(now).map(|range| range.end);
        assert_eq!(floor(&mut state), Some(ago(500)));
        let taken = state.ready.pop_first();
        state.taken.extend(taken);
        assert_eq!(floor(&mut state), Some(ago(500)));
        state.taken.clear();
        assert_eq!(floor(&mut state), Some(ago(400)));
        while state.ready.pop_first().is_some() {}
        assert_eq!(floor(&mut state), Some(ago(100)));
        state.cursor = ago(0);
        assert_eq!(floor(&mut state), Some(Slot::first_at(now - MAX_COMMIT_DELAY - MAX_COMMIT_DELAY)));
        state.floor = Slot::first_at(now - MAX_COMMIT_DELAY - MAX_COMMIT_DELAY);
        assert_eq!(floor(&mut state), None);
    }

    #[test]
    fn caches_in_use_are_kept() {
        let caches = CandidateCaches::default();
        let used = caches.of(SpaceId(0));
        for n in 1..=MAX_CACHES as u64 {
            caches.of(SpaceId(n));
        }
        assert!(Arc::ptr_eq(&used, &caches.of(SpaceId(0))));
        assert!(caches.caches.lock().len() <= MAX_CACHES);
        caches.forget(SpaceId(0));
        assert!(!Arc::ptr_eq(&used, &caches.of(SpaceId(0))));
    }

    #[test]
    fn total_number_of_candidates_is_bounded() {
        let caches = CandidateCaches::default();
        let fill = |queue| {
            let cache = caches.of(SpaceId(queue));
            cache.state.lock().end_reading(Slot::FIRST, vec![], slot(u64::MAX));
            cache.record_written((1..=MAX_READY as u64).map(slot));
        };
        let fit = MAX_TOTAL_READY / MAX_READY;
        (0..2 * fit as u64).for_each(fill);
        assert!(caches.total() <= MAX_TOTAL_READY + MAX_READY, "{}", caches.total());
        // Each cache keeps its first candidates; the others are read again.
        let first = caches.of(SpaceId(0));
        let state = first.state.lock();
        assert_eq!((state.ready.len(), state.cursor), (MIN_READY, slot(MIN_READY as u64 + 1)));
    }

    #[test]
    fn candidates_are_counted_until_they_are_taken_discarded_or_forgotten() {
        let caches = CandidateCaches::default();
        let cache = caches.of(SpaceId(1));
        cache.state.lock().end_reading(Slot::FIRST, (1..=5).map(slot).collect(), slot(10));
        cache.record_written([slot(5), slot(6)]);
        assert_eq!(caches.total(), 6);
        let mut taken = TakenCandidates { cache: cache.clone(), slots: vec![] };
        taken.fill(2);
        cache.discard(&[slot(6), slot(7)]);
        assert_eq!(caches.total(), 3);
        drop(taken);
        assert_eq!(caches.total(), 5);
        caches.forget(SpaceId(1));
        drop(cache);
        assert_eq!(caches.total(), 0);
    }
}
