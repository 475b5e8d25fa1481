//! Removes expired messages, so that their storage is reclaimed even if no client reads the queue.
//!
//! Expired messages are invisible to clients at once, because every rule compares their expiry with the
//! clock. There is no index of expiry times, because it would cost each put and each delete one more row.
//! Instead, [`ExpiryWatch`] keeps in memory a lower bound of the next expiry in each queue. When a bound has
//! passed, the queue is walked. Pauses between the rounds of walks keep their share of the time small.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use lazuli_concurrency::{Pace, Span, Timestamp};
use lazuli_generations::{Generation, keys as directory, named_space};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{SpaceScan, read_refusal};
use lazuli_store::{Change, Decision, Mutation, Reads, RowPosition, SpaceId, View, Which};
use parking_lot::Mutex;
use tracing::Instrument;

use crate::record::{Message, Queue};
use crate::{QueueService, keys};

/// Rows that a walk reads between two pauses.
const PAGE_ROWS: usize = 128;
/// Time from the start of the service to the first round of walks.
const FIRST_ROUND_DELAY: Span = Span::seconds(60);
/// Minimum time between two rounds.
const MIN_REST: Span = Span::seconds(15);
/// Time between two rounds, as a multiple of the duration of the last round.
const REST_RATIO: u64 = 50;
/// A queue with at max this many messages may be walked before its messages are counted.
const MAX_WALK_BEFORE_COUNT: u64 = 4096;

/// Maximum number of queues that have their own bound. The others share one bound.
const MAX_WATCHED: usize = 1 << 16;

/// For each queue, a time before which no message expires.
#[derive(Debug)]
pub(crate) struct ExpiryWatch(Mutex<ExpiryBounds>);

#[derive(Debug)]
struct ExpiryBounds {
    /// No message of the queue expires before this time. Has at max [`MAX_WATCHED`] entries. Once a round has
    /// walked all queues, queues in which no message expires have no entry.
    next: HashMap<SpaceId, Timestamp>,
    /// No message of any queue without its own entry expires before this time.
    others: Timestamp,
    /// The value of `others` after the running round: the minimum of what was found or put since the round
    /// began.
    next_others: Timestamp,
    /// The next round does not begin before this time.
    rest_until: Timestamp,
}

impl ExpiryWatch {
    /// Creates the bounds for a service that starts. All queues are due, because any of them may hold expired
    /// messages.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(ExpiryBounds {
            next: HashMap::new(),
            others: Timestamp::default(),
            next_others: Timestamp::MAX,
            rest_until: now + FIRST_ROUND_DELAY,
        }))
    }

    /// Records that a message of the queue expires at the given time.
    pub(crate) fn expect(&self, queue: SpaceId, expires: Timestamp) {
        self.0.lock().expect(queue, expires);
    }

    /// Removes the bound of a queue that no longer exists.
    pub(crate) fn forget(&self, queue: SpaceId) {
        self.0.lock().next.remove(&queue);
    }

    /// Returns the number of queues that have their own bound.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().next.len()
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let watched = self.0.lock();
        watched.rest_until <= now && (watched.others <= now || watched.next.values().any(|next| *next <= now))
    }

    fn is_queue_due(&self, queue: SpaceId, now: Timestamp) -> bool {
        let watched = self.0.lock();
        *watched.next.get(&queue).unwrap_or(&watched.others) <= now
    }

    /// Begins a round. Returns the queues whose own bound is due.
    fn begin_round(&self, now: Timestamp) -> HashSet<SpaceId> {
        let mut watched = self.0.lock();
        watched.next_others = Timestamp::MAX;
        watched.next.iter().filter(|(_, next)| **next <= now).map(|(queue, _)| *queue).collect()
    }

    /// Begins the walk over a queue. Messages that are put from now on lower the queue's bound.
    fn begin_walk(&self, queue: SpaceId) -> ExpiryWalk<'_> {
        let mut watched = self.0.lock();
        if watched.has_room(queue) {
            watched.next.insert(queue, Timestamp::MAX);
        }
        ExpiryWalk { watch: self, queue, next: Timestamp::default() }
    }

    /// Ends a round and sets the time of the next one.
    fn end_round(&self, began: Timestamp, now: Timestamp) {
        let mut watched = self.0.lock();
        watched.others = watched.next_others;
        if watched.others == Timestamp::MAX {
            watched.next.retain(|_, next| *next < Timestamp::MAX);
        }
        let rest = Span::from_ticks(now.since(began).ticks().saturating_mul(REST_RATIO));
        watched.rest_until = now + rest.max(MIN_REST);
    }
}

impl ExpiryBounds {
    fn has_room(&self, queue: SpaceId) -> bool {
        self.next.len() < MAX_WATCHED || self.next.contains_key(&queue)
    }

    fn expect(&mut self, queue: SpaceId, expires: Timestamp) {
        if !self.has_room(queue) {
            self.others = self.others.min(expires);
            self.next_others = self.next_others.min(expires);
            return;
        }
        // One message says nothing about the other messages of a queue without its own bound. So the bound
        // starts at `others`, and this round or the next one walks the queue.
        let next = expires.min(*self.next.get(&queue).unwrap_or(&self.others));
        if next == Timestamp::MAX && self.others == Timestamp::MAX {
            self.next.remove(&queue);
        } else {
            self.next.insert(queue, next);
        }
    }
}

/// A running walk over a queue. If it is dropped before its end, the queue stays due.
struct ExpiryWalk<'a> {
    watch: &'a ExpiryWatch,
    queue: SpaceId,
    /// The next expiry among the messages that the walk left. Zero until the walk has ended.
    next: Timestamp,
}

impl Drop for ExpiryWalk<'_> {
    fn drop(&mut self) {
        self.watch.expect(self.queue, self.next);
    }
}

impl QueueService {
    /// Returns whether [`QueueService::expire`] may find expired messages.
    pub fn expiry_due(&self) -> bool {
        self.expiry.is_due(self.store.now())
    }

    /// Removes expired messages from all queues and returns their number. The future may be dropped at any
    /// point.
    pub async fn expire(&self, pace: Pace) -> Result<u64, Refusal> {
        let began = self.store.now();
        let mut removed = 0;
        // Due queues that the scan does not find were cleared or deleted, and a put or walk at that time
        // added their bound.
        let mut missing = self.expiry.begin_round(began);
        let kind = directory::kind(Queue::KIND);
        let mut scan =
            SpaceScan::new(&*self.store, SpaceId::ROOT, &kind, Which::First, PAGE_ROWS).paced(pace);
        while let Some(rows) = scan.next().await? {
            for (partition, row) in &rows {
                let Some(space) = named_space::<Queue>(partition, row)? else { continue };
                missing.remove(&space);
                if self.expiry.is_queue_due(space, self.store.now()) {
                    removed += self.expire_in(space, pace).await?;
                }
            }
        }
        missing.into_iter().for_each(|queue| self.expiry.forget(queue));
        self.expiry.end_round(began, self.store.now());
        Ok(removed)
    }

    /// Removes expired messages from a queue that holds `count` messages, if it is due and small enough.
    /// Returns whether any message was removed.
    pub(crate) async fn expire_before_counting(&self, space: SpaceId, count: u64) -> Result<bool, Refusal> {
        let due =
            (1..=MAX_WALK_BEFORE_COUNT).contains(&count) && self.expiry.is_queue_due(space, self.store.now());
        Ok(due && self.expire_in(space, Pace::FULL).await? > 0)
    }

    async fn expire_in(&self, space: SpaceId, pace: Pace) -> Result<u64, Refusal> {
        let mut walk = self.expiry.begin_walk(space);
        let span = tracing::error_span!("expiry", ?space);
        match self.walk(space, pace).instrument(span).await {
            Ok((removed, next)) => {
                walk.next = next;
                Ok(removed)
            }
            // The queue was deleted or cleared during the walk.
            Err(refusal) if refusal.code() == ErrorCode::QueueNotFound => {
                drop(walk);
                self.expiry.forget(space);
                Ok(0)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Removes expired messages from a queue. Returns the number of removed messages and the next expiry.
    async fn walk(&self, space: SpaceId, pace: Pace) -> Result<(u64, Timestamp), Refusal> {
        let partition = keys::messages(space);
        let (mut removed, mut next) = (0, Timestamp::MAX);
        let mut range = keys::all();
        loop {
            let reads = Reads::default().and_range(range.clone(), PAGE_ROWS);
            let set = self.store.read(&partition, &reads).await.map_err(read_refusal)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok((removed, next)) };
            let now = self.store.now();
            let mut expired = vec![];
            for row in scanned.rows {
                let message = Message::decode(&row.value);
                let message = message.map_err(|damage| damage.at(RowPosition::new(&partition, &row.key)))?;
                match message.has_expired(now) {
                    true => expired.push(row.key),
                    false => next = next.min(message.expires()),
                }
            }
            if !expired.is_empty() {
                let reads = Reads::keys(expired.iter().cloned());
                removed += self.transact(space, reads, |view| remove_existing(view, &expired)).await?;
            }
            if !scanned.more {
                return Ok((removed, next));
            }
            range.start = scanned.range.end;
            pace.rest().await;
        }
    }
}

/// Removes those of the given messages that still exist. An update moves a message to another key, and an
/// expired message cannot be updated, so the messages at these keys are still expired.
fn remove_existing(view: &View<'_>, keys: &[Bytes]) -> Result<Decision<u64>, Refusal> {
    let existing = keys.iter().filter(|key| view.row(key).is_some());
    let mut mutations: Vec<_> = existing.map(|key| Mutation::Delete(key.clone())).collect();
    let removed = mutations.len();
    if removed == 0 {
        return Ok(Decision::Answer(0));
    }
    mutations.push(Mutation::Add(keys::COUNT, -(removed as i64)));
    Ok(Decision::Write(Change::of(mutations), removed as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_000_000);
    const QUEUE: SpaceId = SpaceId(1);

    fn after(seconds: u64) -> Timestamp {
        NOW + Span::seconds(seconds)
    }

    #[test]
    fn every_queue_is_walked_once_after_a_start() {
        let watch = ExpiryWatch::new(NOW);
        assert!(!watch.is_due(after(59)) && watch.is_due(after(60)));
        // A put says nothing about the messages that the queue already holds.
        watch.expect(QUEUE, after(1_000));
        assert!(watch.is_queue_due(QUEUE, after(60)));
        drop(watch.begin_walk(QUEUE));
        assert!(watch.is_queue_due(QUEUE, after(60)));
        let mut walk = watch.begin_walk(QUEUE);
        watch.expect(QUEUE, after(500));
        walk.next = after(900);
        drop(walk);
        watch.end_round(after(60), after(61));
        assert!(!watch.is_queue_due(QUEUE, after(499)) && watch.is_queue_due(QUEUE, after(500)));
        assert!(!watch.is_queue_due(SpaceId(2), after(500)));
    }

    #[test]
    fn queue_created_during_the_first_round_is_walked_in_the_next_round() {
        let watch = ExpiryWatch::new(NOW);
        let mut walk = watch.begin_walk(QUEUE);
        walk.next = Timestamp::MAX;
        watch.expect(SpaceId(2), after(70));
        drop(walk);
        watch.end_round(after(60), after(61));
        assert!(watch.is_queue_due(SpaceId(2), after(61)) && !watch.is_queue_due(QUEUE, after(70)));
        assert_eq!(watch.begin_round(after(70)), HashSet::from([SpaceId(2)]));
    }

    #[test]
    fn pauses_are_proportional_to_the_duration_of_a_round() {
        let watch = ExpiryWatch::new(NOW);
        watch.end_round(NOW, after(10));
        watch.expect(QUEUE, after(11));
        assert!(!watch.is_due(after(509)) && watch.is_due(after(510)));
        watch.end_round(after(510), after(510));
        assert!(!watch.is_due(after(524)) && watch.is_due(after(525)));
        watch.forget(QUEUE);
        assert!(!watch.is_due(after(525)));
    }

    #[test]
    fn queue_without_expiring_messages_has_no_bound() {
        let watch = ExpiryWatch::new(NOW);
        for queue in 0..100 {
            watch.begin_walk(SpaceId(queue)).next = Timestamp::MAX;
        }
        watch.end_round(after(60), after(61));
        assert_eq!(watch.len(), 0);
        // The messages of the first queue never expire. The walk removed all messages of the second.
        watch.expect(QUEUE, Timestamp::MAX);
        watch.expect(SpaceId(2), after(70));
        watch.begin_walk(SpaceId(2)).next = Timestamp::MAX;
        assert_eq!(watch.len(), 0);
        assert!(!watch.is_queue_due(QUEUE, after(1_000)) && !watch.is_due(after(1_000)));
    }

    #[test]
    fn queues_beyond_the_limit_share_the_earliest_of_their_expiry_times() {
        let watch = ExpiryWatch::new(NOW);
        watch.end_round(after(60), after(61));
        let max = MAX_WATCHED as u64;
        (0..max + 10).for_each(|queue| watch.expect(SpaceId(queue), after(1_000 + queue)));
        assert_eq!(watch.len(), MAX_WATCHED);
        let (last, first_left_out) = (SpaceId(max + 9), after(1_000 + max));
        assert!(watch.is_queue_due(last, first_left_out) && !watch.is_queue_due(last, after(999 + max)));
        // The walk of a round replaces the shared bound by what it found.
        watch.begin_round(first_left_out);
        watch.begin_walk(last).next = after(2_000 + max);
        watch.end_round(first_left_out, first_left_out);
        assert!(watch.is_queue_due(last, after(2_000 + max)));
        assert!(!watch.is_queue_due(last, after(1_999 + max)));
    }
}
