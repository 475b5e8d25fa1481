//! Get Messages and Peek Messages.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use http::StatusCode;
use http::header::USER_AGENT;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::watch::{MessageEvent, Observer};
use lazuli_protocol::{Query, Refusal, Request, Response, Version, names};
use lazuli_service::run_to_completion;
use lazuli_store::{Change, Decision, Mutation, Reads, RowPosition, SpaceId, View};
use uuid::Uuid;

use crate::candidates::{CandidateCache, MAX_READY, floor_value};
use crate::document::{self, ReplyTo};
use crate::put::SEVEN_DAYS;
use crate::record::Message;
use crate::slot::Slot;
use crate::{MAX_COMMIT_DELAY, QueueService, keys};

/// Maximum number of messages that one request gets.
const MAX_MESSAGES: i64 = 32;
/// Default visibility timeout, in seconds.
const DEFAULT_TIMEOUT: i64 = 30;
/// Maximum visibility timeout before version 2011-08-18, in seconds.
const TWO_HOURS: i64 = 2 * 60 * 60;
/// Maximum number of rounds in which a request takes candidates. Each round that is not the last removes at
/// least one candidate permanently, and there are never more than [`MAX_READY`] of them.
const MAX_ROUNDS: usize = MAX_READY;
/// Rounds after which the task yields, because reading rows that are in memory never does.
const ROUNDS_PER_YIELD: usize = 64;

/// Messages with their slots.
type Messages = Vec<(Slot, Message<'static>)>;

impl QueueService {
    /// Get Messages.
    pub(crate) async fn get_messages(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let wanted = number_of_messages(&request.query)?;
        let timeout = visibility_timeout(&request.query, request.version)?;
        let consumer = (!self.watch.interest().is_none()).then(|| Consumer::of(&request));
        let (service, account, name) = (self.clone(), request.account, request.container);
        run_to_completion(async move {
            let get = |space| service.get(space, wanted, timeout, consumer.as_ref());
            service.in_queue(&account, &name, get).await
        })
        .await
    }

    async fn get(
        &self,
        space: SpaceId,
        wanted: usize,
        timeout: Span,
        consumer: Option<&Consumer>,
    ) -> Result<Response, Refusal> {
        let cache = self.candidates.of(space);
        let mut got: Messages = vec![];
        for round in 1..=MAX_ROUNDS {
            if round % ROUNDS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
            match self.get_more(space, &cache, wanted - got.len(), timeout).await {
                Ok((more, complete)) => {
                    got.extend(more);
                    if complete {
                        break;
                    }
                }
                // The messages got so far are now invisible to other consumers, so return them.
                Err(_) if !got.is_empty() => break,
                Err(refusal) => return Err(refusal),
            }
        }
        if let Some((consumer, observer)) = consumer.zip(self.watch.observer()) {
            consumer.announce(space, &got, observer);
        }
        Ok(document::list(StatusCode::OK, space, &got, ReplyTo::Get))
    }

    /// Gets up to `wanted` messages. Returns false if some candidates no longer existed, so that another
    /// round is needed.
    async fn get_more(
        &self,
        space: SpaceId,
        cache: &Arc<CandidateCache>,
        wanted: usize,
        timeout: Span,
    ) -> Result<(Messages, bool), Refusal> {
        let taken = cache.take(&*self.store, wanted).await?;
        let candidates = taken.slots().len();
        if candidates == 0 {
            return Ok((vec![], true));
        }
        let reads = Reads::keys(taken.slots().iter().copied().map(keys::message));
        let mut floor = FloorCheck::default();
        let rule = |view: &View<'_>| hand_out(view, taken.slots(), timeout, cache, &mut floor);
        let got = self.transact(space, reads, rule).await?;
        if let Some(raised) = floor.raised {
            cache.floor_raised(raised);
        }
        taken.finish();
        cache.record_written(got.iter().map(|(slot, _)| *slot));
        let complete = got.len() == candidates;
        Ok((got, complete))
    }

    /// Peek Messages.
    pub(crate) async fn peek_messages(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let wanted = number_of_messages(&request.query)?;
        self.in_queue(&request.account, &request.container, |space| self.peek(space, wanted)).await
    }

    async fn peek(&self, space: SpaceId, wanted: usize) -> Result<Response, Refusal> {
        let (partition, cache) = (keys::messages(space), self.candidates.of(space));
        let mut seen = vec![];
        for round in 1..=MAX_ROUNDS {
            if round % ROUNDS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
            let slots = cache.peek(&*self.store, wanted).await?;
            let reads = Reads::keys(slots.iter().copied().map(keys::message));
            let set = self.rows.read(&partition, &reads).await?;
            let now = self.store.now();
            seen.clear();
            let mut gone = vec![];
            for (slot, row) in slots.into_iter().zip(set.rows) {
                let message = row.map(|row| Message::decode(&row.value).map(Message::into_owned)).transpose();
                match message
                    .map_err(|damage| damage.at(RowPosition::new(&partition, &keys::message(slot))))?
                {
                    Some(message) if !message.has_expired(now) => seen.push((slot, message)),
                    _ => gone.push(slot),
                }
            }
            if gone.is_empty() {
                break;
            }
            cache.discard(&gone);
        }
        Ok(document::list(StatusCode::OK, space, &seen, ReplyTo::Peek))
    }
}

/// The client of a request that gets messages, for observers.
struct Consumer {
    account: String,
    queue: String,
    request_id: Uuid,
    peer: IpAddr,
    agent: Option<String>,
    at: Timestamp,
}

impl Consumer {
    fn of(request: &Request) -> Self {
        let agent = request.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        Self {
            account: request.account.name.clone(),
            queue: request.container.clone(),
            request_id: request.request_id,
            peer: request.peer,
            agent: agent.map(str::to_owned),
            at: request.now,
        }
    }

    /// Sends an event for each message.
    fn announce(&self, space: SpaceId, got: &Messages, observer: &dyn Observer) {
        for (slot, message) in got {
            observer.got(MessageEvent {
                account: self.account.clone(),
                queue: self.queue.clone(),
                request_id: self.request_id,
                peer: self.peer,
                agent: self.agent.clone(),
                message: message.id().to_guid(space).to_string(),
                at: self.at,
                visible_at: slot.visible_at,
                dequeue_count: message.dequeue_count,
            });
        }
    }
}

/// Decides how far a commit raises the floor. The rows below the new floor are read in the same transaction,
/// to prove that there are none.
#[derive(Default)]
struct FloorCheck {
    /// The slots that must be empty, from the present floor to the proposed one.
    range: Option<Range<Slot>>,
    /// The floor that the commit writes.
    raised: Option<Slot>,
}

impl FloorCheck {
    /// Returns what must be read before the floor can be raised; `None` if the decision has been made. A
    /// message that is found in the range is one that the cache does not know: another front end has written
    /// it, or a request of this one that has not reported it yet.
    fn judge(&mut self, view: &View<'_>, cache: &CandidateCache) -> Option<Reads> {
        self.raised = None;
        let Some((scanned, range)) = view.ranges().first().zip(self.range.clone()) else {
            self.range = cache.floor_due(view.now);
            let range = self.range.clone()?;
            return Some(Reads::default().and_range(keys::between(range.start, range.end), 1));
        };
        let found = scanned.rows.first().and_then(|row| keys::slot(&row.key));
        cache.record_written(found);
        self.raised = Some(found.unwrap_or(range.end));
        None
    }
}

/// Moves the messages in `slots` that exist and have not expired to the slots in which they become visible
/// again.
fn hand_out(
    view: &View<'_>,
    slots: &[Slot],
    timeout: Span,
    cache: &CandidateCache,
    floor: &mut FloorCheck,
) -> Result<Decision<Messages>, Refusal> {
    if let Some(more) = floor.judge(view, cache) {
        return Ok(Decision::Read(more));
    }
    let mut got: Messages = vec![];
    let mut mutations = vec![];
    let mut until = view.now + MAX_COMMIT_DELAY;
    for old in slots.iter().copied().map(keys::message) {
        let Some(row) = view.row(&old) else { continue };
        let mut message = Message::decode(&row.value)?.into_owned();
        if message.has_expired(view.now) {
            continue;
        }
        message.dequeue_count = message.dequeue_count.saturating_add(1);
        until = until.min(message.expires());
        let slot = slot_of(view, view.now + timeout, got.len());
        mutations.push(Mutation::Delete(old));
        mutations.push(Mutation::Put(keys::message(slot), message.encode()?));
        got.push((slot, message));
    }
    if got.is_empty() {
        floor.raised = None;
        return Ok(Decision::Answer(got));
    }
    mutations.extend(floor.raised.map(|floor| Mutation::Put(keys::FLOOR, floor_value(floor))));
    Ok(Decision::Write(Change::of(mutations).until(Some(until)), got))
}

fn slot_of(view: &View<'_>, visible_at: Timestamp, index: usize) -> Slot {
    debug_assert!(index < MAX_MESSAGES as usize, "more messages than one request gets");
    Slot { visible_at, stamp: view.stamp, index: index as u8 }
}

fn number_of_messages(query: &Query) -> Result<usize, Refusal> {
    Ok(query.number("numofmessages", 1..=MAX_MESSAGES)?.unwrap_or(1) as usize)
}

fn visibility_timeout(query: &Query, version: Version) -> Result<Span, Refusal> {
    let max = if version.at_least(2011, 8, 18) { SEVEN_DAYS } else { TWO_HOURS };
    let seconds = query.number("visibilitytimeout", 1..=max)?.unwrap_or(DEFAULT_TIMEOUT);
    Ok(Span::seconds(seconds.unsigned_abs()))
}
