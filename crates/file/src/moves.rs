//! Changes of two directories at once: a child moves from one to another, or a directory is deleted.
//!
//! Each is an [intent](lazuli_store::intent). A name that something comes to or leaves, and a directory that is to be
//! deleted, is reserved by a row of its own beside the child's, which stays as it is until the intent was decided. Those who
//! only look ask how far the intent is: while it is pending they see what is there, and else they end it first. Those who
//! want to change something that is reserved end the intent, one way or the other. One that was aborted so begins again, a
//! bounded number of times.
//!
//! Moves of directories take turns in each share, so that no directory comes to lie in itself. Whoever follows a path
//! while one is under way waits for it and starts again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::{Span, Stamp};
use lazuli_extents::Content;
use lazuli_generations::{Damage, record};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::intent::{IntentError, IntentId, Intents, Plan, Planner};
use lazuli_store::{Change, Mutation, Partition, Reads, SpaceId, TransactError, View};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::record::{Node, NodeId};
use crate::{FileService, children, keys, share_gone};

/// How often something begins again that others were in the way of.
pub(crate) const MAX_ATTEMPTS: usize = 64;
/// An intent that is pending for so long has nobody any more who would carry it out.
const FORGOTTEN: Span = Span::seconds(60);
/// The kind of all intents here; what they do is in them.
const WORK: u8 = 1;
/// Turns are taken among the shares that fall on the same of so many.
const TURNS: usize = 64;

/// What an intent does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    Move(Move),
    Delete(Delete),
}

/// A child goes from one directory to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Move {
    pub(crate) source: Place,
    pub(crate) target: Place,
    /// What it was, what it becomes, and what it takes the place of: records of nodes.
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
    pub(crate) replaced: Option<Vec<u8>>,
}

/// A directory goes away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delete {
    pub(crate) place: Place,
    pub(crate) directory: NodeId,
    /// What it was: the record of a node.
    pub(crate) before: Vec<u8>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) parent: NodeId,
    /// Folded.
    pub(crate) name: Vec<u8>,
}

/// What the row says that reserves a name or a directory: for which intent, and which part of it this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    id: u64,
    participant: u8,
    work: Work,
}

impl Reservation {
    /// What a row holds.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }

    /// The content of what is moved.
    pub(crate) fn content(&self) -> Result<Option<Content>, Damage> {
        match &self.work {
            Work::Delete(_) => Ok(None),
            Work::Move(work) => Ok(node(&work.after)?.file.map(|file| file.content)),
        }
    }
}

/// Whose turn it is to move directories, and how often that was done.
#[derive(Debug)]
pub(crate) struct Turns([Slot; TURNS]);

#[derive(Debug, Default)]
struct Slot {
    turn: Arc<Mutex<()>>,
    /// Odd while a directory is moved.
    count: Arc<AtomicU64>,
}

/// The turn to move directories of a share. It ends when this is dropped.
pub(crate) struct Turn {
    count: Arc<AtomicU64>,
    _turn: OwnedMutexGuard<()>,
}

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Slot::default()))
    }
}

impl Turns {
    fn slot(&self, space: SpaceId) -> &Slot {
        &self.0[(space.0 % TURNS as u64) as usize]
    }

    /// Waits for the turn to move directories.
    pub(crate) async fn take(&self, space: SpaceId) -> Turn {
        let slot = self.slot(space);
        let turn = slot.turn.clone().lock_owned().await;
        slot.count.fetch_add(1, Ordering::SeqCst);
        Turn { count: slot.count.clone(), _turn: turn }
    }

    /// Waits until no directory is moved, and keeps it so.
    pub(crate) async fn none(&self, space: SpaceId) -> OwnedMutexGuard<()> {
        self.slot(space).turn.clone().lock_owned().await
    }

    /// Changes whenever a directory may have been moved. None while one is.
    pub(crate) fn count(&self, space: SpaceId) -> Option<u64> {
        let count = self.slot(space).count.load(Ordering::SeqCst);
        count.is_multiple_of(2).then_some(count)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// How an attempt to carry out an intent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempted {
    Done,
    /// What it was to change is not the same any more, or somebody was in the way and is gone now.
    Again,
}

impl FileService {
    /// Carries out an intent, if everything is still as it says.
    pub(crate) async fn attempt(&self, space: SpaceId, work: &Work) -> Result<Attempted, Refusal> {
        let (home, works) = (work.home(space), Works { space });
        let intents = Intents { store: &*self.store, gate: &self.gate, home: &home, planner: &works };
        match intents.run(WORK, record::encode(work)?).await {
            Ok(()) => Ok(Attempted::Done),
            Err(IntentError::Refused(Obstacle::Refused(refusal))) => Err(refusal),
            Err(IntentError::Refused(Obstacle::Met(other))) => {
                self.end(space, &other).await?;
                Ok(Attempted::Again)
            }
            Err(IntentError::Refused(Obstacle::Changed) | IntentError::Aborted) => Ok(Attempted::Again),
            Err(error) => Err(interrupted(error)),
        }
    }

    /// Whether what is reserved is still as it was. If not, the intent was ended, and what was read is old.
    pub(crate) async fn is_as_before(
        &self,
        space: SpaceId,
        reservation: &Reservation,
    ) -> Result<bool, Refusal> {
        let (home, works) = (reservation.work.home(space), Works { space });
        let intents = Intents { store: &*self.store, gate: &self.gate, home: &home, planner: &works };
        let is_fresh = self.store.now().since(reservation.intent().0.timestamp()) < FORGOTTEN;
        if is_fresh && intents.is_pending(reservation.intent()).await.map_err(interrupted)? {
            return Ok(true);
        }
        self.end(space, reservation).await?;
        Ok(false)
    }

    /// Ends the intent that something is reserved for: finishes it if it was decided, else aborts it.
    pub(crate) async fn end(&self, space: SpaceId, reservation: &Reservation) -> Result<(), Refusal> {
        let (home, works) = (reservation.work.home(space), Works { space });
        let intents = Intents { store: &*self.store, gate: &self.gate, home: &home, planner: &works };
        let plan = Steps::new(space, reservation.work.clone())?;
        let marked = Some((&plan, usize::from(reservation.participant)));
        intents.resolve(reservation.intent(), marked).await.map(drop).map_err(interrupted)
    }
}

impl Reservation {
    fn intent(&self) -> IntentId {
        IntentId(Stamp::from_ticks(self.id))
    }
}

impl Work {
    /// Where the intent is kept.
    fn home(&self, space: SpaceId) -> Partition {
        match self {
            Self::Move(work) => work.source.partition(space),
            Self::Delete(work) => work.place.partition(space),
        }
    }
}

impl Place {
    fn partition(&self, space: SpaceId) -> Partition {
        keys::directory(space, self.parent)
    }
}

struct Works {
    space: SpaceId,
}

impl Planner for Works {
    type Plan = Steps;

    fn plan(&self, kind: u8, payload: &Bytes) -> Option<Steps> {
        let work = record::decode(payload).ok().filter(|_| kind == WORK)?;
        Steps::new(self.space, work).ok()
    }
}

/// An intent, step by step.
struct Steps {
    space: SpaceId,
    work: Work,
    before: Node,
    after: Option<Node>,
    replaced: Option<Node>,
}

/// What one participant does.
enum Step<'a> {
    /// The directory that is deleted.
    Close(NodeId),
    /// The name that something comes to.
    Enter(&'a Place),
    /// The name that something leaves.
    Leave(&'a Place),
}

/// Why an intent cannot be carried out, or not yet.
#[derive(Debug)]
enum Obstacle {
    Refused(Refusal),
    /// Something is not as it was judged any more.
    Changed,
    /// Another intent is in the way.
    Met(Reservation),
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Damage> for Obstacle {
    fn from(damage: Damage) -> Self {
        Self::Refused(damage.into())
    }
}

impl Steps {
    fn new(space: SpaceId, work: Work) -> Result<Self, Damage> {
        let (before, after, replaced) = match &work {
            Work::Delete(work) => (node(&work.before)?, None, None),
            Work::Move(work) => {
                let replaced = work.replaced.as_deref().map(node).transpose()?;
                (node(&work.before)?, Some(node(&work.after)?), replaced)
            }
        };
        Ok(Self { space, work, before, after, replaced })
    }

    /// What comes to a name comes before it leaves the other: whoever looks at all rows may see it twice, but never not at
    /// all.
    fn step(&self, participant: usize) -> Step<'_> {
        match (&self.work, participant) {
            (Work::Move(work), 0) => Step::Enter(&work.target),
            (Work::Move(work), _) => Step::Leave(&work.source),
            (Work::Delete(work), 0) => Step::Close(work.directory),
            (Work::Delete(work), _) => Step::Leave(&work.place),
        }
    }
}

impl Step<'_> {
    /// The row that reserves what it changes.
    fn reservation(&self) -> Bytes {
        match self {
            Self::Close(_) => keys::GOING,
            Self::Enter(place) | Self::Leave(place) => keys::moving(&place.name),
        }
    }
}

impl Plan for Steps {
    type Refusal = Obstacle;

    fn participants(&self) -> Vec<Partition> {
        let partition = |participant| match self.step(participant) {
            Step::Close(directory) => keys::directory(self.space, directory),
            Step::Enter(place) | Step::Leave(place) => place.partition(self.space),
        };
        vec![partition(0), partition(1)]
    }

    fn reads(&self, participant: usize) -> Reads {
        let step = self.step(participant);
        match &step {
            Step::Close(_) => {
                let children = keys::children(&[]);
                let moving = keys::moving_among(&children);
                Reads::key(keys::OWN).and_range(children, 1).and_range(moving, 1)
            }
            Step::Enter(place) => {
                Reads::keys([keys::OWN, keys::GOING, keys::child(&place.name), step.reservation()])
            }
            Step::Leave(place) => Reads::keys([keys::child(&place.name), step.reservation()]),
        }
    }

    fn prepare(&self, id: IntentId, participant: usize, view: &View<'_>) -> Result<Change, Obstacle> {
        let step = self.step(participant);
        let in_scan = view.ranges().get(1).and_then(|moving| moving.rows.first());
        let met = in_scan.or_else(|| view.row(&keys::GOING)).or_else(|| view.row(&step.reservation()));
        if let Some(row) = met {
            return Err(Obstacle::Met(Reservation::decode(&row.value)?));
        }
        let child = |place: &Place| {
            let row = view.row(&keys::child(&place.name));
            row.map(|row| Node::decode(&row.value)).transpose()
        };
        match &step {
            Step::Close(_) if view.row(&keys::OWN).is_none() => return Err(Obstacle::Changed),
            Step::Close(_) => {
                if view.ranges().first().is_some_and(|children| !children.rows.is_empty()) {
                    return Err(Refusal::new(ErrorCode::DirectoryNotEmpty).into());
                }
            }
            Step::Enter(place) => {
                if place.parent != NodeId::ROOT && view.row(&keys::OWN).is_none() {
                    return Err(Refusal::new(ErrorCode::ParentNotFound).into());
                }
                if child(place)? != self.replaced {
                    return Err(Obstacle::Changed);
                }
            }
            Step::Leave(place) => {
                if child(place)?.as_ref() != Some(&self.before) {
                    return Err(Obstacle::Changed);
                }
            }
        }
        let participant = u8::try_from(participant).map_err(|_| Refusal::new(ErrorCode::InternalError))?;
        let reservation = Reservation { id: id.0.ticks(), participant, work: self.work.clone() };
        Ok(Change::of([Mutation::Put(step.reservation(), record::encode(&reservation)?)]))
    }

    fn apply(&self, participant: usize, epoch: u64, _: &View<'_>) -> Result<Vec<Mutation>, Obstacle> {
        let step = self.step(participant);
        let mut mutations = match &step {
            Step::Close(_) => vec![Mutation::Delete(keys::OWN), Mutation::Delete(keys::USAGE)],
            Step::Enter(place) => {
                children::replace_in(epoch, &place.name, self.replaced.as_ref(), self.after.clone())?
            }
            Step::Leave(place) => children::replace_in(epoch, &place.name, Some(&self.before), None)?,
        };
        mutations.push(Mutation::Delete(step.reservation()));
        Ok(mutations)
    }

    fn undo(&self, participant: usize, _: &View<'_>) -> Vec<Mutation> {
        vec![Mutation::Delete(self.step(participant).reservation())]
    }
}

fn node(record: &[u8]) -> Result<Node, Damage> {
    Node::decode(&Bytes::copy_from_slice(record))
}

/// A step was not made. Somebody will end the intent.
fn interrupted(error: IntentError<Obstacle>) -> Refusal {
    let error = match error {
        IntentError::Refused(Obstacle::Refused(refusal)) => return refusal,
        IntentError::Interrupted(TransactError::Gone) => return share_gone(),
        IntentError::Interrupted(TransactError::NotCommitted(error)) => TransactError::NotCommitted(error),
        error => {
            tracing::error!(%error, "a move was interrupted");
            return ErrorCode::InternalError.into();
        }
    };
    lazuli_account::refusal(error, share_gone)
}
