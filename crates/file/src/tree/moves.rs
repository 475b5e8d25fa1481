//! Changes of two directories at once: moving a child to another directory, and deleting a directory.
//!
//! Each is an [intent](lazuli_store::intent). A name that is moved from or to, and a directory that is to be
//! deleted, are reserved by a row of their own. The row of the child stays unchanged until the intent is
//! decided. A reader that finds a reservation asks whether the intent is still pending: then it uses the row
//! as it is, otherwise it finishes the intent first. A writer that finds a reservation always finishes the
//! intent, by completing or aborting it. An aborted move starts again, up to a bound.
//!
//! One directory of a share is moved at a time ([`crate::tree::move_locks`]), so no directory can end up
//! inside itself. A reader that follows a path during such a move waits for its end and starts again.

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{Damage, commit_refusal, internal_error, record};
use lazuli_store::intent::{IntentError, IntentId, IntentPlan, IntentPlanner};
use lazuli_store::{Change, Mutation, Partition, Reads, SpaceId, TransactError, View};

use crate::FileService;
use crate::lock_order::{HeldRank, Rank};
use crate::tree::move_record::{DirectoryEntryName, IntentWork, NameReservation, node};
use crate::tree::record::{Node, NodeId};
use crate::tree::{children, keys};

/// Maximum number of attempts of an operation that conflicts with others.
pub(crate) const MAX_ATTEMPTS: usize = 64;
/// A pending intent of this age was abandoned by its process.
const ABANDONED_AFTER: Span = Span::seconds(60);
/// The only kind of intent here. The payload says what it does.
const WORK: u8 = 1;

/// Result of an attempt to run an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntentOutcome {
    Done,
    /// A row had changed, or another intent was in the way and is finished now.
    Retry,
}

impl FileService {
    /// Runs an intent if all rows are as it says.
    pub(crate) async fn run_intent(
        &self,
        space: SpaceId,
        work: &IntentWork,
    ) -> Result<IntentOutcome, Refusal> {
        let (home, works) = (work.home(space), WorkPlanner { space });
        let intents = self.rows.intents(&home, &works);
        let payload = record::encode(work)?;
        let queue = HeldRank::wait(Rank::Partition);
        let run = intents.run(WORK, payload).await;
        drop(queue);
        match run {
            Ok(()) => Ok(IntentOutcome::Done),
            Err(IntentError::Refused(Obstacle::Refused(refusal))) => Err(refusal),
            Err(IntentError::Refused(Obstacle::NameReserved(other))) => {
                self.finish_intent(space, &other).await?;
                Ok(IntentOutcome::Retry)
            }
            Err(IntentError::Refused(Obstacle::Changed) | IntentError::Aborted) => Ok(IntentOutcome::Retry),
            Err(error) => Err(interrupted(space)(error)),
        }
    }

    /// Returns whether a reservation is still pending, so that the rows which were read are valid. Otherwise
    /// it finishes the intent.
    pub(crate) async fn is_pending_or_finish(
        &self,
        space: SpaceId,
        reservation: &NameReservation,
    ) -> Result<bool, Refusal> {
        let (home, works) = (reservation.work.home(space), WorkPlanner { space });
        let intents = self.rows.intents(&home, &works);
        let is_fresh = self.store.now().since(reservation.intent().0.timestamp()) < ABANDONED_AFTER;
        if is_fresh && intents.is_pending(reservation.intent()).await.map_err(interrupted(space))? {
            return Ok(true);
        }
        self.finish_intent(space, reservation).await?;
        Ok(false)
    }

    /// Finishes the intent of a reservation: completes it if it was decided, otherwise aborts it.
    pub(crate) async fn finish_intent(
        &self,
        space: SpaceId,
        reservation: &NameReservation,
    ) -> Result<(), Refusal> {
        let (home, works) = (reservation.work.home(space), WorkPlanner { space });
        let intents = self.rows.intents(&home, &works);
        let plan = WorkPlan::new(space, reservation.work.clone())?;
        let marked = Some((&plan, usize::from(reservation.participant)));
        let _queue = HeldRank::wait(Rank::Partition);
        intents.resolve(reservation.intent(), marked).await.map(drop).map_err(interrupted(space))
    }
}

struct WorkPlanner {
    space: SpaceId,
}

impl IntentPlanner for WorkPlanner {
    type Plan = WorkPlan;

    fn plan(&self, kind: u8, payload: &Bytes) -> Option<WorkPlan> {
        let work = record::decode(payload).ok().filter(|_| kind == WORK)?;
        WorkPlan::new(self.space, work).ok()
    }
}

/// The plan of an intent.
struct WorkPlan {
    space: SpaceId,
    work: IntentWork,
    before: Node,
    after: Option<Node>,
    replaced: Option<Node>,
}

/// The part of one participant.
enum ParticipantStep<'a> {
    /// Closes the directory to delete.
    Close(NodeId),
    /// Adds the new name.
    Enter(&'a DirectoryEntryName),
    /// Removes the old name.
    Leave(&'a DirectoryEntryName),
}

/// Why an intent cannot run now.
#[derive(Debug)]
enum Obstacle {
    Refused(Refusal),
    /// A row has changed since it was judged.
    Changed,
    /// Another intent has reserved the name.
    NameReserved(NameReservation),
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

impl WorkPlan {
    fn new(space: SpaceId, work: IntentWork) -> Result<Self, Damage> {
        let (before, after, replaced) = match &work {
            IntentWork::Delete(work) => (node(&work.before)?, None, None),
            IntentWork::Move(work) => {
                let replaced = work.replaced.as_deref().map(node).transpose()?;
                (node(&work.before)?, Some(node(&work.after)?), replaced)
            }
        };
        Ok(Self { space, work, before, after, replaced })
    }

    /// Returns the step of a participant. The new name is added before the old one is removed, so a reader of
    /// all rows may see the child twice but never misses it.
    fn step(&self, participant: usize) -> ParticipantStep<'_> {
        match (&self.work, participant) {
            (IntentWork::Move(work), 0) => ParticipantStep::Enter(&work.target),
            (IntentWork::Move(work), _) => ParticipantStep::Leave(&work.source),
            (IntentWork::Delete(work), 0) => ParticipantStep::Close(work.directory),
            (IntentWork::Delete(work), _) => ParticipantStep::Leave(&work.place),
        }
    }
}

impl ParticipantStep<'_> {
    /// Returns the row that reserves what this step changes.
    fn reservation(&self) -> Bytes {
        match self {
            Self::Close(_) => keys::DELETION,
            Self::Enter(place) | Self::Leave(place) => keys::moving(&place.name),
        }
    }
}

impl IntentPlan for WorkPlan {
    type Refusal = Obstacle;

    fn participants(&self) -> Vec<Partition> {
        let partition = |participant| match self.step(participant) {
            ParticipantStep::Close(directory) => keys::directory(self.space, directory),
            ParticipantStep::Enter(place) | ParticipantStep::Leave(place) => place.partition(self.space),
        };
        vec![partition(0), partition(1)]
    }

    fn reads(&self, participant: usize) -> Reads {
        let step = self.step(participant);
        match &step {
            ParticipantStep::Close(_) => {
                let children = keys::children(&[]);
                let moving = keys::moving_among(&children);
                Reads::key(keys::OWN).and_range(children, 1).and_range(moving, 1)
            }
            ParticipantStep::Enter(place) => {
                Reads::keys([keys::OWN, keys::DELETION, keys::child(&place.name), step.reservation()])
            }
            ParticipantStep::Leave(place) => Reads::keys([keys::child(&place.name), step.reservation()]),
        }
    }

    fn prepare(&self, id: IntentId, participant: usize, view: &View<'_>) -> Result<Change, Obstacle> {
        let step = self.step(participant);
        let in_scan = view.ranges().get(1).and_then(|moving| moving.rows.first());
        let reserved =
            in_scan.or_else(|| view.row(&keys::DELETION)).or_else(|| view.row(&step.reservation()));
        if let Some(row) = reserved {
            return Err(Obstacle::NameReserved(NameReservation::decode(&row.value)?));
        }
        let child = |place: &DirectoryEntryName| {
            let row = view.row(&keys::child(&place.name));
            row.map(|row| Node::decode(&row.value)).transpose()
        };
        match &step {
            ParticipantStep::Close(_) if view.row(&keys::OWN).is_none() => return Err(Obstacle::Changed),
            ParticipantStep::Close(_) => {
                if view.ranges().first().is_some_and(|children| !children.rows.is_empty()) {
                    return Err(Refusal::new(ErrorCode::DirectoryNotEmpty).into());
                }
            }
            ParticipantStep::Enter(place) => {
                if place.parent != NodeId::ROOT && view.row(&keys::OWN).is_none() {
                    return Err(Refusal::new(ErrorCode::ParentNotFound).into());
                }
                if child(place)? != self.replaced {
                    return Err(Obstacle::Changed);
                }
            }
            ParticipantStep::Leave(place) => {
                if child(place)?.as_ref() != Some(&self.before) {
                    return Err(Obstacle::Changed);
                }
            }
        }
        let participant = u8::try_from(participant)
            .map_err(|_| internal_error(format_args!("a move has no participant {participant}")))?;
        let reservation = NameReservation { id: id.0.ticks(), participant, work: self.work.clone() };
        Ok(Change::of([Mutation::Put(step.reservation(), record::encode(&reservation)?)]))
    }

    fn apply(&self, participant: usize, epoch: u64, _: &View<'_>) -> Result<Vec<Mutation>, Obstacle> {
        let step = self.step(participant);
        let mut mutations = match &step {
            ParticipantStep::Close(_) => vec![Mutation::Delete(keys::OWN), Mutation::Delete(keys::USAGE)],
            ParticipantStep::Enter(place) => {
                children::replace_in(epoch, &place.name, self.replaced.as_ref(), self.after.clone())?
            }
            ParticipantStep::Leave(place) => {
                children::replace_in(epoch, &place.name, Some(&self.before), None)?
            }
        };
        mutations.push(Mutation::Delete(step.reservation()));
        Ok(mutations)
    }

    fn undo(&self, participant: usize, _: &View<'_>) -> Vec<Mutation> {
        vec![Mutation::Delete(self.step(participant).reservation())]
    }
}

/// Maps the error of a step. Another operation will finish the intent.
fn interrupted(space: SpaceId) -> impl FnOnce(IntentError<Obstacle>) -> Refusal {
    move |error| match error {
        IntentError::Refused(Obstacle::Refused(refusal)) => {
            if refusal.code() == ErrorCode::InternalError {
                tracing::error!(%space, "a step of a move failed");
            }
            refusal
        }
        IntentError::Interrupted(TransactError::Gone) => ErrorCode::ShareNotFound.into(),
        IntentError::Interrupted(TransactError::NotCommitted(error)) => commit_refusal(space, error),
        error => internal_error(format_args!("{space}: a move was interrupted: {error}")),
    }
}
