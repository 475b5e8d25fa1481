//! Get Messages and Peek Messages.

use std::ops::Range;
use std::sync::Arc;

use http::StatusCode;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_generations::{carry_through, unreadable};
use lazuli_protocol::{Query, Refusal, Request, Response, Version, names};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};

use crate::document::{self, Shown};
use crate::line::{Line, MAX_READY, floor_value};
use crate::put::SEVEN_DAYS;
use crate::record::Message;
use crate::slot::Slot;
use crate::{LATENESS, QueueService, keys, queue_gone};

/// Messages that one request gets.
const MAX_MESSAGES: i64 = 32;
/// How long a message is invisible if the client does not say.
const DEFAULT_TIMEOUT: i64 = 30;
/// The longest time that it could be before 2011-08-18.
const TWO_HOURS: i64 = 2 * 60 * 60;
/// How often more candidates are looked for when some of those that were found are gone. Each time one at least is out of
/// the way for good, and there are never more of them.
const MAX_ROUNDS: usize = MAX_READY;
/// After so many, others have their turn: rows that are in memory are read without waiting for anything.
const ROUNDS_A_TURN: usize = 64;

/// Messages that were got or seen, each with its slot.
type Messages = Vec<(Slot, Message<'static>)>;

impl QueueService {
    /// Get Messages.
    pub(crate) async fn get_messages(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let wanted = number_of_messages(&request.query)?;
        let timeout = visibility_timeout(&request.query, request.version)?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        carry_through(async move {
            service.in_queue(&account, &name, |space| service.get(space, wanted, timeout)).await
        })
        .await
    }

    async fn get(&self, space: SpaceId, wanted: usize, timeout: Span) -> Result<Response, Refusal> {
        let line = self.lines.of(space);
        let mut got: Messages = vec![];
        for round in 1..=MAX_ROUNDS {
            if round % ROUNDS_A_TURN == 0 {
                tokio::task::yield_now().await;
            }
            match self.get_more(space, &line, wanted - got.len(), timeout).await {
                Ok((more, complete)) => {
                    got.extend(more);
                    if complete {
                        break;
                    }
                }
                // What was got already is this consumer's, and nobody else's for a while.
                Err(_) if !got.is_empty() => break,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(document::list(StatusCode::OK, space, &got, Shown::Got))
    }

    /// Gets up to so many messages. False if there may be more, since some candidates were gone.
    async fn get_more(
        &self,
        space: SpaceId,
        line: &Arc<Line>,
        wanted: usize,
        timeout: Span,
    ) -> Result<(Messages, bool), Refusal> {
        let taken = line.take(&*self.store, wanted).await?;
        let candidates = taken.slots().len();
        if candidates == 0 {
            return Ok((vec![], true));
        }
        let reads = Reads::keys(taken.slots().iter().copied().map(keys::message));
        let mut floor = Floor::default();
        let rule = |view: &View<'_>| hand_out(view, taken.slots(), timeout, line, &mut floor);
        let got = self.transact(space, reads, rule).await?;
        if let Some(raised) = floor.raised {
            line.floor_raised(raised);
        }
        taken.done();
        line.written(got.iter().map(|(slot, _)| *slot));
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
        let (partition, line) = (keys::messages(space), self.lines.of(space));
        let mut seen = vec![];
        for round in 1..=MAX_ROUNDS {
            if round % ROUNDS_A_TURN == 0 {
                tokio::task::yield_now().await;
            }
            let slots = line.look(&*self.store, wanted).await?;
            let reads = Reads::keys(slots.iter().copied().map(keys::message));
            let set = self.store.read(&partition, &reads).await.map_err(unreadable)?;
            if !set.space.is_some_and(|space| space.open) {
                return Err(queue_gone());
            }
            let now = self.store.now();
            seen.clear();
            let mut gone = vec![];
            for (slot, row) in slots.into_iter().zip(set.rows) {
                match row.map(|row| Message::decode(&row.value).map(Message::into_owned)).transpose()? {
                    Some(message) if !message.has_expired(now) => seen.push((slot, message)),
                    _ => gone.push(slot),
                }
            }
            if gone.is_empty() {
                break;
            }
            line.drop_ready(&gone);
        }
        Ok(document::list(StatusCode::OK, space, &seen, Shown::Peeked))
    }
}

/// A floor that a commit raises, if the rows that it was raised past are read and there are none.
#[derive(Default)]
struct Floor {
    asked: Option<Range<Slot>>,
    raised: Option<Slot>,
}

impl Floor {
    /// What has to be read first. A message that is found is one that the line does not know: written by another front end, or
    /// by a request that has not reported it yet.
    fn judge(&mut self, view: &View<'_>, line: &Line) -> Option<Reads> {
        self.raised = None;
        let Some((scanned, asked)) = view.ranges().first().zip(self.asked.clone()) else {
            self.asked = line.floor_due(view.now);
            let range = self.asked.clone()?;
            return Some(Reads::default().and_range(keys::between(range.start, range.end), 1));
        };
        let found = scanned.rows.first().and_then(|row| keys::slot(&row.key));
        line.written(found);
        self.raised = Some(found.unwrap_or(asked.end));
        None
    }
}

/// Moves these messages on to where they are visible again, those that are still there and alive.
fn hand_out(
    view: &View<'_>,
    slots: &[Slot],
    timeout: Span,
    line: &Line,
    floor: &mut Floor,
) -> Result<Decision<Messages>, Refusal> {
    if let Some(more) = floor.judge(view, line) {
        return Ok(Decision::Read(more));
    }
    let mut got: Messages = vec![];
    let mut mutations = vec![];
    let mut until = view.now + LATENESS;
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
    let longest = if version.at_least(2011, 8, 18) { SEVEN_DAYS } else { TWO_HOURS };
    let seconds = query.number("visibilitytimeout", 1..=longest)?.unwrap_or(DEFAULT_TIMEOUT);
    Ok(Span::seconds(seconds.unsigned_abs()))
}
