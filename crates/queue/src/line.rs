//! The front of a queue, as far as this process knows it: which messages are worth trying to get.
//!
//! Without it every consumer would try the first message, and all but one in vain; and each would search from the
//! beginning of the queue, past everything that was deleted there. A line hands each candidate to one consumer, and reads
//! on from where it has got to.
//!
//! **It decides nothing.** A message is got by a commit on its row, and a candidate that is no longer there is dropped. What
//! the line has to be right about is that no message is forgotten: *every message below [`State::cursor`] is in
//! [`State::ready`], or in [`State::out`] with a consumer.* A message that is written below the cursor is therefore made
//! ready; one that is written while rows are being read is noted, because what is read may not show it.
//!
//! All of it can be lost and is read again from the rows. So that this does not begin at the beginning of a queue that
//! has lived long, the row `floor` is written now and then.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_generations::unreadable;
use lazuli_protocol::Refusal;
use lazuli_store::{Partition, Reads, SpaceId, Store};
use parking_lot::Mutex;

use crate::record::Message;
use crate::slot::{SLOT_BYTES, Slot};
use crate::{LATENESS, keys, queue_gone};

/// Rows that are read at once.
const READ_AHEAD: usize = 64;
/// How often rows are read for one consumer. Only messages that have expired keep it from being satisfied sooner.
const MAX_READS: usize = 256;
/// After so many, others have their turn: rows that are in memory are read without waiting for anything.
const READS_A_TURN: usize = 16;
/// Candidates that are remembered. If there are more, the last are read again when it is their turn.
pub(crate) const MAX_READY: usize = 1 << 13;
/// Lines that are remembered. If there are more, those that nobody uses are forgotten.
const MAX_LINES: usize = 1 << 14;
/// Candidates that all lines may have before each is cut back to [`LEAST_READY`]. Requests under way add a few.
pub(crate) const MAX_READY_IN_ALL: usize = 1 << 20;
/// Candidates that a line keeps when all lines have too many: one consumer gets as many at once.
const LEAST_READY: usize = 32;
// So cutting lines back makes room for long.
const _: () = assert!(MAX_LINES * LEAST_READY <= MAX_READY_IN_ALL / 2);
/// Messages that are handed out between two writes of the floor.
const FLOOR_EVERY: usize = 1024;

/// The lines of all queues, by their spaces.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<SpaceId, Arc<Line>>>,
    /// Candidates of all lines.
    total: Arc<AtomicUsize>,
}

impl Lines {
    /// The line of a queue. Whoever writes messages holds it until it has told what it wrote.
    pub(crate) fn of(&self, queue: SpaceId) -> Arc<Line> {
        let mut lines = self.lines.lock();
        if self.total.load(Relaxed) > MAX_READY_IN_ALL {
            lines.values().for_each(|line| line.state.lock().leave(LEAST_READY));
        }
        if lines.len() >= MAX_LINES && !lines.contains_key(&queue) {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        lines.entry(queue).or_insert_with(|| Arc::new(Line::new(queue, self.total.clone()))).clone()
    }

    /// The queue is gone.
    pub(crate) fn forget(&self, queue: SpaceId) {
        self.lines.lock().remove(&queue);
    }

    /// Candidates of all lines.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }
}

/// Candidates of a line, counted among those of all lines.
#[derive(Debug)]
struct Ready {
    slots: BTreeSet<Slot>,
    total: Arc<AtomicUsize>,
}

impl Ready {
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

    /// Drops all from that one on.
    fn drop_from(&mut self, slot: &Slot) {
        self.total.fetch_sub(self.slots.split_off(slot).len(), Relaxed);
    }
}

impl Deref for Ready {
    type Target = BTreeSet<Slot>;

    fn deref(&self) -> &BTreeSet<Slot> {
        &self.slots
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.total.fetch_sub(self.slots.len(), Relaxed);
    }
}

/// The front of one queue.
#[derive(Debug)]
pub(crate) struct Line {
    partition: Partition,
    state: Mutex<State>,
    /// Held by the one who reads on.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    ready: Ready,
    out: BTreeSet<Slot>,
    cursor: Slot,
    /// Slots written since the rows were read that are about to be added.
    noted: Option<Vec<Slot>>,
    /// The floor, as it was last read or written.
    floor: Slot,
    /// Messages handed out since the floor was written.
    handed_out: usize,
}

impl Line {
    fn new(queue: SpaceId, total: Arc<AtomicUsize>) -> Self {
        let state = Mutex::new(State::new(total));
        Self { partition: keys::messages(queue), state, turn: Default::default() }
    }

    /// Messages were written into these slots: the commit is done.
    pub(crate) fn written(&self, slots: impl IntoIterator<Item = Slot>) {
        let mut state = self.state.lock();
        slots.into_iter().for_each(|slot| state.written(slot));
    }

    /// Up to so many candidates for this consumer alone. Fewer only if there are no more.
    pub(crate) async fn take(self: &Arc<Self>, store: &dyn Store, wanted: usize) -> Result<Taken, Refusal> {
        let mut taken = Taken { line: self.clone(), slots: vec![] };
        taken.more(wanted);
        if taken.slots.len() < wanted {
            let _turn = self.turn.lock().await;
            for read in 1..=MAX_READS {
                if read % READS_A_TURN == 0 {
                    tokio::task::yield_now().await;
                }
                taken.more(wanted);
                if taken.slots.len() == wanted || !self.read_on(store).await? {
                    break;
                }
            }
            taken.more(wanted);
        }
        Ok(taken)
    }

    /// Up to so many candidates for everybody to see. Fewer only if there are no more.
    pub(crate) async fn look(&self, store: &dyn Store, wanted: usize) -> Result<Vec<Slot>, Refusal> {
        if self.state.lock().ready.len() < wanted {
            let _turn = self.turn.lock().await;
            for read in 1..=MAX_READS {
                if read % READS_A_TURN == 0 {
                    tokio::task::yield_now().await;
                }
                if self.state.lock().ready.len() >= wanted || !self.read_on(store).await? {
                    break;
                }
            }
        }
        Ok(self.state.lock().ready.iter().copied().take(wanted).collect())
    }

    /// These are no candidates any more.
    pub(crate) fn drop_ready(&self, slots: &[Slot]) {
        let mut state = self.state.lock();
        for slot in slots {
            state.ready.remove(slot);
        }
    }

    /// From where to where the floor may be raised, if it is time to: as far as is known here, no message is there. Whether
    /// that is so the rows decide, in the commit that raises it. None will come to be there: such a commit would be late.
    pub(crate) fn floor_due(&self, now: Timestamp) -> Option<Range<Slot>> {
        self.state.lock().floor_due(now)
    }

    /// The floor is raised so far: the commit is done.
    pub(crate) fn floor_raised(&self, floor: Slot) {
        let mut state = self.state.lock();
        (state.floor, state.handed_out) = (floor, 0);
    }

    /// Reads rows from the cursor on. False if no visible message is left there. Only one reads at a time.
    async fn read_on(&self, store: &dyn Store) -> Result<bool, Refusal> {
        let reading = Reading { line: self, cursor: self.state.lock().begin_reading() };
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
        let reads = Reads::default().and_range(keys::between(from, end), READ_AHEAD);
        let set = store.read(&self.partition, &reads).await.map_err(unreadable)?;
        if !set.space.is_some_and(|space| space.open) {
            return Err(queue_gone());
        }
        let (mut slots, mut reached) = (vec![], end);
        for scanned in set.ranges {
            for row in &scanned.rows {
                if let Some(slot) = keys::slot(&row.key)
                    && !Message::decode(&row.value)?.has_expired(now)
                {
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

    /// Where reading begins when nothing is known.
    async fn floor(&self, store: &dyn Store) -> Result<Slot, Refusal> {
        let set = store.read(&self.partition, &Reads::key(keys::FLOOR)).await.map_err(unreadable)?;
        let floor = set.rows.into_iter().next().flatten();
        Ok(floor.as_ref().and_then(|row| slot_of_floor(&row.value)).unwrap_or(Slot::FIRST))
    }
}

fn slot_of_floor(value: &[u8]) -> Option<Slot> {
    value.try_into().ok().map(|bytes: &[u8; SLOT_BYTES]| Slot::from_bytes(bytes))
}

/// What the row of the floor holds.
pub(crate) fn floor_value(floor: Slot) -> Bytes {
    Bytes::copy_from_slice(&floor.to_bytes())
}

/// Rows are being read. If that comes to nothing, nothing has happened.
struct Reading<'a> {
    line: &'a Line,
    /// Where the cursor was when it began.
    cursor: Slot,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.line.state.lock().noted = None;
    }
}

/// Candidates that one consumer has, and gives back unless it says that they are done with.
#[derive(Debug)]
pub(crate) struct Taken {
    line: Arc<Line>,
    slots: Vec<Slot>,
}

impl Taken {
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// They were got by this consumer, or are gone.
    pub(crate) fn done(mut self) {
        let mut state = self.line.state.lock();
        for slot in self.slots.drain(..) {
            state.out.remove(&slot);
        }
    }

    fn more(&mut self, wanted: usize) {
        let mut state = self.line.state.lock();
        while self.slots.len() < wanted
            && let Some(slot) = state.ready.pop_first()
        {
            state.out.insert(slot);
            state.handed_out += 1;
            self.slots.push(slot);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.line.state.lock();
        for slot in self.slots.drain(..) {
            state.out.remove(&slot);
            state.ready.insert(slot);
        }
    }
}

impl State {
    fn new(total: Arc<AtomicUsize>) -> Self {
        let (ready, out) = (Ready { slots: BTreeSet::new(), total }, BTreeSet::new());
        Self { ready, out, cursor: Slot::FIRST, noted: None, floor: Slot::FIRST, handed_out: 0 }
    }

    fn written(&mut self, slot: Slot) {
        if slot < self.cursor {
            self.make_ready(slot);
            self.shorten();
        } else if let Some(noted) = &mut self.noted {
            noted.push(slot);
        }
    }

    fn begin_reading(&mut self) -> Slot {
        debug_assert!(self.noted.is_none(), "one reads at a time");
        self.noted = Some(vec![]);
        self.cursor
    }

    /// All rows from where the cursor was and before `reached` were read, and `slots` were in them. If there was no room
    /// for all candidates meanwhile, the cursor has gone back, and all of it is read again.
    fn end_reading(&mut self, began: Slot, slots: Vec<Slot>, reached: Slot) {
        let noted = self.noted.take().unwrap_or_default();
        if self.cursor < began {
            return;
        }
        self.cursor = self.cursor.max(reached);
        for slot in slots.into_iter().chain(noted).filter(|slot| *slot < reached) {
            self.make_ready(slot);
        }
        self.shorten();
    }

    /// What a consumer has is not ready, although whoever has written it may tell only now. It comes back, or is done with.
    fn make_ready(&mut self, slot: Slot) {
        if !self.out.contains(&slot) {
            self.ready.insert(slot);
        }
    }

    fn shorten(&mut self) {
        if self.ready.len() > MAX_READY {
            self.leave(MAX_READY / 2);
        }
    }

    /// Drops all candidates but the first so many. The others are read again.
    fn leave(&mut self, most: usize) {
        if let Some(first) = self.ready.iter().nth(most).copied() {
            self.ready.drop_from(&first);
            self.cursor = first;
        }
    }

    fn floor_due(&self, now: Timestamp) -> Option<Range<Slot>> {
        if self.handed_out < FLOOR_EVERY {
            return None;
        }
        let known = [self.ready.first(), self.out.first()].into_iter().flatten().copied();
        let floor = known.fold(self.cursor, Slot::min);
        // A commit that is judged before this moment takes effect before the floor is raised, or never.
        let floor = floor.min(Slot::first_at(now - LATENESS - LATENESS));
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

    fn ready(state: &State) -> Vec<u64> {
        state.ready.iter().map(|slot| slot.visible_at.ticks()).collect()
    }

    #[test]
    fn what_is_written_below_the_cursor_is_ready_and_the_rest_is_read_in_its_turn() {
        let mut state = State::new(Arc::default());
        state.written(slot(5));
        assert!(ready(&state).is_empty());
        assert_eq!(state.begin_reading(), Slot::FIRST);
        state.end_reading(Slot::FIRST, vec![slot(5)], slot(10));
        state.written(slot(7));
        state.written(slot(12));
        assert_eq!((ready(&state), state.cursor), (vec![5, 7], slot(10)));
    }

    #[test]
    fn what_is_written_while_rows_are_read_is_not_missed() {
        let mut state = State::new(Arc::default());
        state.begin_reading();
        state.written(slot(7));
        state.written(slot(12));
        state.end_reading(Slot::FIRST, vec![slot(5)], slot(10));
        assert_eq!(ready(&state), [5, 7]);
        // It is not ready yet, and not forgotten: the cursor has not passed it.
        assert!(state.cursor < slot(12));
    }

    #[test]
    fn candidates_are_handed_to_one_and_come_back_unless_they_are_done_with() {
        let line = Arc::new(Line::new(SpaceId(1), Arc::default()));
        line.state.lock().end_reading(Slot::FIRST, (1..=5).map(slot).collect(), slot(10));
        let mut first = Taken { line: line.clone(), slots: vec![] };
        first.more(2);
        let mut second = Taken { line: line.clone(), slots: vec![] };
        second.more(2);
        assert_eq!((first.slots(), second.slots()), (&[slot(1), slot(2)][..], &[slot(3), slot(4)][..]));
        drop(first);
        second.done();
        assert_eq!(ready(&line.state.lock()), [1, 2, 5]);
        assert!(line.state.lock().out.is_empty());
    }

    #[test]
    fn what_a_consumer_has_is_not_ready_for_anybody_when_its_writer_tells_late() {
        let line = Arc::new(Line::new(SpaceId(1), Arc::default()));
        line.state.lock().end_reading(Slot::FIRST, vec![slot(1)], slot(10));
        let mut taken = Taken { line: line.clone(), slots: vec![] };
        taken.more(1);
        line.written([slot(1)]);
        taken.more(2);
        assert_eq!(taken.slots(), [slot(1)]);
        drop(taken);
        assert_eq!(ready(&line.state.lock()), [1]);
    }

    #[test]
    fn too_many_candidates_are_left_to_be_read_again() {
        let mut state = State::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![], slot(u64::MAX));
        (1..=MAX_READY as u64 + 1).for_each(|n| state.written(slot(n)));
        assert_eq!(state.ready.len(), MAX_READY / 2);
        assert!(state.ready.last() < Some(&state.cursor) && state.cursor < slot(MAX_READY as u64));
    }

    #[test]
    fn what_there_was_no_room_for_while_rows_were_read_is_not_missed() {
        let mut state = State::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![], slot(1_000_000));
        let began = state.begin_reading();
        (1..=MAX_READY as u64 + 1).for_each(|n| state.written(slot(n)));
        let cursor = state.cursor;
        assert!(cursor < began);
        state.end_reading(began, vec![slot(1_000_001)], slot(2_000_000));
        assert_eq!((state.cursor, state.noted.is_none()), (cursor, true));
        assert!(state.ready.last() < Some(&cursor));
    }

    #[test]
    fn the_floor_is_below_everything_that_is_there_or_may_still_be_written() {
        let now = Timestamp::from_unix_seconds(1_000_000);
        let ago = |seconds| Slot::first_at(now - lazuli_concurrency::Span::seconds(seconds));
        let mut state = State::new(Arc::default());
        state.end_reading(Slot::FIRST, vec![ago(500), ago(400)], ago(100));
        assert_eq!(state.floor_due(now), None);
        state.handed_out = FLOOR_EVERY;
        let floor = |state: &mut State| state.floor_due(now).map(|range| range.end);
        assert_eq!(floor(&mut state), Some(ago(500)));
        let out = state.ready.pop_first();
        state.out.extend(out);
        assert_eq!(floor(&mut state), Some(ago(500)));
        state.out.clear();
        assert_eq!(floor(&mut state), Some(ago(400)));
        while state.ready.pop_first().is_some() {}
        assert_eq!(floor(&mut state), Some(ago(100)));
        state.cursor = ago(0);
        assert_eq!(floor(&mut state), Some(Slot::first_at(now - LATENESS - LATENESS)));
        state.floor = Slot::first_at(now - LATENESS - LATENESS);
        assert_eq!(floor(&mut state), None);
    }

    #[test]
    fn lines_that_somebody_uses_are_kept() {
        let lines = Lines::default();
        let used = lines.of(SpaceId(0));
        for n in 1..=MAX_LINES as u64 {
            lines.of(SpaceId(n));
        }
        assert!(Arc::ptr_eq(&used, &lines.of(SpaceId(0))));
        assert!(lines.lines.lock().len() <= MAX_LINES);
        lines.forget(SpaceId(0));
        assert!(!Arc::ptr_eq(&used, &lines.of(SpaceId(0))));
    }

    #[test]
    fn all_lines_together_remember_a_bounded_number_of_candidates() {
        let lines = Lines::default();
        let fill = |queue| {
            let line = lines.of(SpaceId(queue));
            line.state.lock().end_reading(Slot::FIRST, vec![], slot(u64::MAX));
            line.written((1..=MAX_READY as u64).map(slot));
        };
        let fit = MAX_READY_IN_ALL / MAX_READY;
        (0..2 * fit as u64).for_each(fill);
        assert!(lines.total() <= MAX_READY_IN_ALL + MAX_READY, "{}", lines.total());
        // The first candidates of each stay, and the others are read again.
        let first = lines.of(SpaceId(0));
        let state = first.state.lock();
        assert_eq!((state.ready.len(), state.cursor), (LEAST_READY, slot(LEAST_READY as u64 + 1)));
    }

    #[test]
    fn candidates_are_counted_until_they_are_handed_out_dropped_or_forgotten() {
        let lines = Lines::default();
        let line = lines.of(SpaceId(1));
        line.state.lock().end_reading(Slot::FIRST, (1..=5).map(slot).collect(), slot(10));
        line.written([slot(5), slot(6)]);
        assert_eq!(lines.total(), 6);
        let mut taken = Taken { line: line.clone(), slots: vec![] };
        taken.more(2);
        line.drop_ready(&[slot(6), slot(7)]);
        assert_eq!(lines.total(), 3);
        drop(taken);
        assert_eq!(lines.total(), 5);
        lines.forget(SpaceId(1));
        drop(line);
        assert_eq!(lines.total(), 0);
    }
}
