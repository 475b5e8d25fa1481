//! Removes messages whose time is over, so that their space comes back even if nobody reads the queue.
//!
//! They do not exist for clients any more, because every rule asks the clock. There is no index of expiry times: it would
//! cost every put and every delete a row. Instead it is remembered, for each queue, before when nothing in it expires; a
//! queue is walked when that time has come, and as a whole walks take a small part of the time.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_extents::Pace;
use lazuli_generations::{Generation, keys as directory, named_space, unreadable};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View, Which, prefix_range};
use parking_lot::Mutex;

use crate::record::{Message, Queue};
use crate::{QueueService, keys};

/// Rows that are looked at between two pauses.
const PAGE: usize = 128;
/// From the start to the first walk.
const FIRST: Span = Span::seconds(60);
/// Between two walks, at least.
const REST: Span = Span::seconds(15);
/// Between two walks, as a multiple of the time that the last one took.
const REST_RATIO: u64 = 50;
/// A queue of so many messages is walked before they are counted.
const MAX_COUNTED: u64 = 4096;

/// Queues whose next expiry is remembered one by one. The others share one time.
const MAX_WATCHED: usize = 1 << 16;

/// When which queue is worth walking.
#[derive(Debug)]
pub(crate) struct ExpiryWatch(Mutex<Watched>);

#[derive(Debug)]
struct Watched {
    /// Nothing in that queue expires before then. At most [`MAX_WATCHED`]; none that expects nothing, once all were walked.
    next: HashMap<SpaceId, Timestamp>,
    /// Nothing in any other queue expires before then.
    others: Timestamp,
    /// The same, as far as the walk over all queues has come: what was found or put since it began.
    others_seen: Timestamp,
    rest_until: Timestamp,
}

impl ExpiryWatch {
    /// The service starts. Nothing is known of any queue, so each may hold something that has expired.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Watched {
            next: HashMap::new(),
            others: Timestamp::default(),
            others_seen: Timestamp::MAX,
            rest_until: now + FIRST,
        }))
    }

    /// A message of that queue expires then.
    pub(crate) fn expect(&self, queue: SpaceId, expires: Timestamp) {
        self.0.lock().expect(queue, expires);
    }

    /// The queue is gone.
    pub(crate) fn forget(&self, queue: SpaceId) {
        self.0.lock().next.remove(&queue);
    }

    /// How many queues are remembered one by one.
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

    /// A walk over all queues begins. Returns those that are remembered and due.
    fn begin_all(&self, now: Timestamp) -> HashSet<SpaceId> {
        let mut watched = self.0.lock();
        watched.others_seen = Timestamp::MAX;
        watched.next.iter().filter(|(_, next)| **next <= now).map(|(queue, _)| *queue).collect()
    }

    /// A walk over a queue begins. What is put from now on counts.
    fn begin(&self, queue: SpaceId) -> Walk<'_> {
        let mut watched = self.0.lock();
        if watched.has_room(queue) {
            watched.next.insert(queue, Timestamp::MAX);
        }
        Walk { watch: self, queue, next: Timestamp::default() }
    }

    /// A walk over all queues ends.
    fn end(&self, began: Timestamp, now: Timestamp) {
        let mut watched = self.0.lock();
        watched.others = watched.others_seen;
        if watched.others == Timestamp::MAX {
            watched.next.retain(|_, next| *next < Timestamp::MAX);
        }
        let took = Span::from_ticks(now.since(began).ticks().saturating_mul(REST_RATIO));
        watched.rest_until = now + took.max(REST);
    }
}

impl Watched {
    fn has_room(&self, queue: SpaceId) -> bool {
        self.next.len() < MAX_WATCHED || self.next.contains_key(&queue)
    }

    fn expect(&mut self, queue: SpaceId, expires: Timestamp) {
        if !self.has_room(queue) {
            self.others = self.others.min(expires);
            self.others_seen = self.others_seen.min(expires);
            return;
        }
        // What an unknown queue holds is not known from one message: it is walked, if not by this walk, by the next.
        let next = expires.min(*self.next.get(&queue).unwrap_or(&self.others));
        if next == Timestamp::MAX && self.others == Timestamp::MAX {
            self.next.remove(&queue);
        } else {
            self.next.insert(queue, next);
        }
    }
}

/// A walk over a queue. One that does not come to its end has to be made again.
struct Walk<'a> {
    watch: &'a ExpiryWatch,
    queue: SpaceId,
    /// When the next message expires, as far as the walk has seen.
    next: Timestamp,
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.watch.expect(self.queue, self.next);
    }
}

impl QueueService {
    /// Whether [`QueueService::expire`] may find something to do.
    pub fn expiry_due(&self) -> bool {
        self.expiry.is_due(self.store.now())
    }

    /// Removes messages whose time is over from all queues; how many. May be dropped at any point.
    pub async fn expire(&self, pace: Pace) -> Result<u64, Refusal> {
        let began = self.store.now();
        let mut removed = 0;
        // Those that are due and not found: somebody put into them, or walked them, while they were cleared or deleted.
        let mut gone = self.expiry.begin_all(began);
        let all = prefix_range(&directory::kind(Queue::KIND));
        let mut from = (all.start, Bytes::new());
        loop {
            let page = self.store.scan_space(
                SpaceId::ROOT,
                from,
                Some((all.end.clone(), Bytes::new())),
                Which::First,
                PAGE,
            );
            let page = page.await.map_err(unreadable)?;
            for (partition, row) in &page.rows {
                let Some(space) = named_space::<Queue>(partition, row)? else { continue };
                gone.remove(&space);
                if self.expiry.is_queue_due(space, self.store.now()) {
                    removed += self.expire_in(space, pace).await?;
                }
            }
            let Some(next) = page.next else { break };
            from = next;
            pace.rest().await;
        }
        gone.into_iter().for_each(|queue| self.expiry.forget(queue));
        self.expiry.end(began, self.store.now());
        Ok(removed)
    }

    /// Removes what has expired from a queue that holds so many messages, if that may be anything and does not take long.
    pub(crate) async fn expire_before_counting(&self, space: SpaceId, count: u64) -> Result<bool, Refusal> {
        let due = (1..=MAX_COUNTED).contains(&count) && self.expiry.is_queue_due(space, self.store.now());
        Ok(due && self.expire_in(space, Pace::FULL).await? > 0)
    }

    async fn expire_in(&self, space: SpaceId, pace: Pace) -> Result<u64, Refusal> {
        let mut walk = self.expiry.begin(space);
        match self.walk(space, pace).await {
            Ok((removed, next)) => {
                walk.next = next;
                Ok(removed)
            }
            // Deleted or cleared meanwhile, with all that was in it.
            Err(refusal) if refusal.code() == ErrorCode::QueueNotFound => {
                drop(walk);
                self.expiry.forget(space);
                Ok(0)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Removes what has expired from a queue: how many messages, and when the next one does.
    async fn walk(&self, space: SpaceId, pace: Pace) -> Result<(u64, Timestamp), Refusal> {
        let partition = keys::messages(space);
        let (mut removed, mut next) = (0, Timestamp::MAX);
        let mut range = keys::all();
        loop {
            let reads = Reads::default().and_range(range.clone(), PAGE);
            let set = self.store.read(&partition, &reads).await.map_err(unreadable)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok((removed, next)) };
            let now = self.store.now();
            let mut over = vec![];
            for row in scanned.rows {
                let message = Message::decode(&row.value)?;
                match message.has_expired(now) {
                    true => over.push(row.key),
                    false => next = next.min(message.expires()),
                }
            }
            if !over.is_empty() {
                let reads = Reads::keys(over.iter().cloned());
                removed += self.transact(space, reads, |view| remove(view, &over)).await?;
            }
            if !scanned.more {
                return Ok((removed, next));
            }
            range.start = scanned.range.end;
            pace.rest().await;
        }
    }
}

/// Removes those of these messages that are still there. What has expired stays so.
fn remove(view: &View<'_>, keys: &[Bytes]) -> Result<Decision<u64>, Refusal> {
    let there = keys.iter().filter(|key| view.row(key).is_some());
    let mut mutations: Vec<_> = there.map(|key| Mutation::Delete(key.clone())).collect();
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
    fn after_a_start_every_queue_is_walked_once() {
        let watch = ExpiryWatch::new(NOW);
        assert!(!watch.is_due(after(59)) && watch.is_due(after(60)));
        // A message that is put says nothing of those that are there already.
        watch.expect(QUEUE, after(1_000));
        assert!(watch.is_queue_due(QUEUE, after(60)));
        drop(watch.begin(QUEUE));
        assert!(watch.is_queue_due(QUEUE, after(60)));
        let mut walk = watch.begin(QUEUE);
        watch.expect(QUEUE, after(500));
        walk.next = after(900);
        drop(walk);
        watch.end(after(60), after(61));
        assert!(!watch.is_queue_due(QUEUE, after(499)) && watch.is_queue_due(QUEUE, after(500)));
        assert!(!watch.is_queue_due(SpaceId(2), after(500)));
    }

    #[test]
    fn a_queue_that_was_made_during_the_first_walk_is_walked_by_the_next() {
        let watch = ExpiryWatch::new(NOW);
        let mut walk = watch.begin(QUEUE);
        walk.next = Timestamp::MAX;
        watch.expect(SpaceId(2), after(70));
        drop(walk);
        watch.end(after(60), after(61));
        assert!(watch.is_queue_due(SpaceId(2), after(61)) && !watch.is_queue_due(QUEUE, after(70)));
        assert_eq!(watch.begin_all(after(70)), HashSet::from([SpaceId(2)]));
    }

    #[test]
    fn walks_take_a_small_part_of_the_time() {
        let watch = ExpiryWatch::new(NOW);
        watch.end(NOW, after(10));
        watch.expect(QUEUE, after(11));
        assert!(!watch.is_due(after(509)) && watch.is_due(after(510)));
        watch.end(after(510), after(510));
        assert!(!watch.is_due(after(524)) && watch.is_due(after(525)));
        watch.forget(QUEUE);
        assert!(!watch.is_due(after(525)));
    }

    #[test]
    fn a_queue_that_expects_nothing_is_not_remembered() {
        let watch = ExpiryWatch::new(NOW);
        for queue in 0..100 {
            watch.begin(SpaceId(queue)).next = Timestamp::MAX;
        }
        watch.end(after(60), after(61));
        assert_eq!(watch.len(), 0);
        // Its messages never expire, or all that it held was removed.
        watch.expect(QUEUE, Timestamp::MAX);
        watch.expect(SpaceId(2), after(70));
        watch.begin(SpaceId(2)).next = Timestamp::MAX;
        assert_eq!(watch.len(), 0);
        assert!(!watch.is_queue_due(QUEUE, after(1_000)) && !watch.is_due(after(1_000)));
    }

    #[test]
    fn queues_that_there_is_no_room_for_are_walked_when_the_first_of_them_is_due() {
        let watch = ExpiryWatch::new(NOW);
        watch.end(after(60), after(61));
        let most = MAX_WATCHED as u64;
        (0..most + 10).for_each(|queue| watch.expect(SpaceId(queue), after(1_000 + queue)));
        assert_eq!(watch.len(), MAX_WATCHED);
        let (last, first_left_out) = (SpaceId(most + 9), after(1_000 + most));
        assert!(watch.is_queue_due(last, first_left_out) && !watch.is_queue_due(last, after(999 + most)));
        // A walk that finds them again expects what it found.
        watch.begin_all(first_left_out);
        watch.begin(last).next = after(2_000 + most);
        watch.end(first_left_out, first_left_out);
        assert!(watch.is_queue_due(last, after(2_000 + most)));
        assert!(!watch.is_queue_due(last, after(1_999 + most)));
    }
}
