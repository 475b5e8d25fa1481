//! Operations on more than one partition: an intent row with idempotent steps, decided by one commit.
//!
//! ```text
//! begin      home:         intent row, pending
//! prepare    participant:  check, reserve, and leave a mark            (each in one commit)
//! decide     home:         pending → committed                         (the one commit that counts)
//! finish     participant:  apply and remove the mark; then home: remove the intent row
//! ```
//!
//! Any process that finds a mark may finish a committed intent or abort a pending one, at any time,
//! concurrently with others, and also after the process that began it has died. Every step does nothing if
//! its mark is gone. Marks are only written while the intent is pending, and the intent row is removed only
//! after all marks. So a mark without an intent row belongs to an aborted intent and is undone.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::{Stamp, Timestamp};

use crate::{
    Change, CommitError, Decision, Gate, Mutation, Partition, Reads, Store, TransactError, View, transact,
};

/// The first byte of the row keys of intents and marks. Services do not use it (and above) for their own
/// rows.
pub const INTENT_PREFIX: u8 = 0xFE;
const MARK_PREFIX: u8 = 0xFF;
const FORMAT: u8 = 1;
/// Bytes of format, state, kind and epoch.
const HEAD_BYTES: usize = 11;

/// The id of an intent: the stamp of the commit that began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntentId(pub Stamp);

/// The state of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntentState {
    Pending = 0,
    Committed = 1,
    Aborted = 2,
}

/// The contents of an intent row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IntentRow {
    state: IntentState,
    /// The epoch of the home's space when the intent was decided.
    epoch: u64,
    kind: u8,
    payload: Bytes,
}

/// The state of an intent, and the epoch of its home's space at the decision.
#[derive(Clone, Copy, Debug)]
struct IntentDecision {
    state: IntentState,
    epoch: u64,
}

/// The completion of a participant: apply with the epoch of the decision, or undo.
#[derive(Clone, Copy, Debug)]
enum Completion {
    Apply(u64),
    Undo,
}

/// The steps of an operation in each of its partitions. All are derived from the intent row, so that any
/// process can continue them. The functions are pure.
pub trait IntentPlan: Send + Sync {
    /// Why a participant refuses the operation.
    type Refusal: Send;

    /// Returns the partitions that change, in the order in which they are prepared.
    fn participants(&self) -> Vec<Partition>;

    /// Returns the rows of a participant that the functions below need.
    fn reads(&self, participant: usize) -> Reads;

    /// Checks that the operation is possible, and reserves what must not change until it is finished.
    fn prepare(&self, id: IntentId, participant: usize, view: &View<'_>) -> Result<Change, Self::Refusal>;

    /// Applies the operation to a prepared participant. `epoch` is the epoch of the home's space at the
    /// decision, and so the epoch in which the operation took effect, although the space may have a later one
    /// now. The operation can no longer be refused: an error means that this program cannot apply it and
    /// leaves it unfinished.
    fn apply(&self, participant: usize, epoch: u64, view: &View<'_>) -> Result<Vec<Mutation>, Self::Refusal>;

    /// Undoes the reservation of a prepared participant.
    fn undo(&self, participant: usize, view: &View<'_>) -> Vec<Mutation>;
}

/// Makes plans from the contents of intent rows.
pub trait IntentPlanner: Send + Sync {
    /// The plans that it makes.
    type Plan: IntentPlan;

    /// Makes the plan of an intent of this kind. Returns `None` if this program does not know the kind.
    fn plan(&self, kind: u8, payload: &Bytes) -> Option<Self::Plan>;
}

/// The outcome of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All participants applied it.
    Applied,
    /// No participant applied it.
    Aborted,
}

/// Why an intent was not completed.
#[derive(Debug, thiserror::Error)]
pub enum IntentError<R> {
    /// A participant refused. Nothing has changed.
    #[error("refused")]
    Refused(R),
    /// Another process aborted the intent. Nothing has changed.
    #[error("aborted by another process")]
    Aborted,
    /// The intent has a kind that this program does not know.
    #[error("an intent of unknown kind")]
    UnknownKind,
    /// A step failed. Any process may still finish or abort the intent.
    #[error("interrupted: {0}")]
    Interrupted(TransactError<()>),
}

/// Runs intents whose rows lie in one partition, their home.
pub struct Intents<'a, P> {
    /// The store of the home and of all participants.
    pub store: &'a dyn Store,
    /// The queues of transactions.
    pub gate: &'a Gate,
    /// The partition of the intent rows.
    pub home: &'a Partition,
    /// Makes the plans of the intents.
    pub planner: &'a P,
}

impl<P: IntentPlanner> Intents<'_, P> {
    /// Begins an intent and completes it.
    pub async fn run(
        &self,
        kind: u8,
        payload: Bytes,
    ) -> Result<(), IntentError<<P::Plan as IntentPlan>::Refusal>> {
        let plan = self.planner.plan(kind, &payload).ok_or(IntentError::UnknownKind)?;
        let id = self.begin(kind, payload).await?;
        for participant in 0..plan.participants().len() {
            if let Err(error) = self.prepare(id, &plan, participant).await {
                if matches!(error, IntentError::Refused(_)) {
                    self.abort(id, &plan).await?;
                }
                return Err(error);
            }
        }
        match self.decide(id, IntentState::Committed).await? {
            Some(IntentDecision { state: IntentState::Committed, epoch }) => {
                self.finish(id, &plan, epoch).await
            }
            _ => {
                self.abort(id, &plan).await?;
                Err(IntentError::Aborted)
            }
        }
    }

    /// Ends an unfinished intent: finishes it if it was decided, and aborts it otherwise. `marked` is the
    /// participant whose mark led to the intent, if any.
    pub async fn resolve(
        &self,
        id: IntentId,
        marked: Option<(&P::Plan, usize)>,
    ) -> Result<Ended, IntentError<<P::Plan as IntentPlan>::Refusal>> {
        let Some(intent) = self.read_row(id).await? else {
            if let Some((plan, participant)) = marked {
                self.complete(id, plan, participant, Completion::Undo).await?;
            }
            return Ok(Ended::Aborted);
        };
        let plan = self.planner.plan(intent.kind, &intent.payload).ok_or(IntentError::UnknownKind)?;
        match self.decide(id, IntentState::Aborted).await? {
            Some(IntentDecision { state: IntentState::Committed, epoch }) => {
                self.finish(id, &plan, epoch).await.map(|()| Ended::Applied)
            }
            _ => self.abort(id, &plan).await.map(|()| Ended::Aborted),
        }
    }

    /// Returns whether an intent is neither committed nor aborted. Its reservations are then still in place.
    pub async fn is_pending(
        &self,
        id: IntentId,
    ) -> Result<bool, IntentError<<P::Plan as IntentPlan>::Refusal>> {
        Ok(self.read_row(id).await?.is_some_and(|intent| intent.state == IntentState::Pending))
    }

    /// Returns the plan of an intent, or `None` if it has ended.
    pub async fn plan(
        &self,
        id: IntentId,
    ) -> Result<Option<P::Plan>, IntentError<<P::Plan as IntentPlan>::Refusal>> {
        let Some(intent) = self.read_row(id).await? else { return Ok(None) };
        self.planner.plan(intent.kind, &intent.payload).map(Some).ok_or(IntentError::UnknownKind)
    }

    /// Returns the unfinished intents of this home and when each began, oldest first, up to
    /// [`crate::MAX_SCAN_ROWS`].
    pub async fn unfinished(&self) -> Result<Vec<(IntentId, Timestamp)>, crate::ReadError> {
        let range = crate::prefix_range(&[INTENT_PREFIX]);
        let set =
            self.store.read(self.home, &Reads::default().and_range(range, crate::MAX_SCAN_ROWS)).await?;
        let ids = set.ranges.iter().flat_map(|s| &s.rows).filter_map(|row| intent_of(&row.key));
        Ok(ids.map(|id| (id, id.0.timestamp())).collect())
    }

    async fn begin<R>(&self, kind: u8, payload: Bytes) -> Result<IntentId, IntentError<R>> {
        let intent = IntentRow { state: IntentState::Pending, epoch: 0, kind, payload };
        self.transact_at(self.home, Reads::default(), |view| {
            let id = IntentId(view.stamp);
            let put = Mutation::Put(row_key(id), intent.encode());
            Decision::Write(Change::of([put]), id)
        })
        .await
    }

    async fn prepare<R>(
        &self,
        id: IntentId,
        plan: &impl IntentPlan<Refusal = R>,
        participant: usize,
    ) -> Result<(), IntentError<R>> {
        let partition = &plan.participants()[participant];
        let mut reads = plan.reads(participant);
        reads.keys.push(mark_key(id));
        transact(self.store, self.gate, partition, reads, |view| {
            if view.row(&mark_key(id)).is_some() {
                return Ok(Decision::Answer(()));
            }
            let mut change = plan.prepare(id, participant, view)?;
            change.mutations.push(Mutation::Put(mark_key(id), Bytes::from_static(&[FORMAT])));
            Ok(Decision::Write(change, ()))
        })
        .await
        .map_err(IntentError::from)
    }

    /// Decides a pending intent and returns its state then, or `None` if its row is gone.
    async fn decide<R>(
        &self,
        id: IntentId,
        to: IntentState,
    ) -> Result<Option<IntentDecision>, IntentError<R>> {
        self.transact_at(self.home, Reads::key(row_key(id)), |view| {
            let Some(intent) = view.row(&row_key(id)).and_then(|row| IntentRow::decode(&row.value)) else {
                return Decision::Answer(None);
            };
            if intent.state != IntentState::Pending {
                return Decision::Answer(Some(IntentDecision { state: intent.state, epoch: intent.epoch }));
            }
            let epoch = view.space().map_or(0, |space| space.epoch);
            let put = Mutation::Put(row_key(id), IntentRow { state: to, epoch, ..intent }.encode());
            Decision::Write(Change::of([put]), Some(IntentDecision { state: to, epoch }))
        })
        .await
    }

    async fn finish<R>(
        &self,
        id: IntentId,
        plan: &impl IntentPlan<Refusal = R>,
        epoch: u64,
    ) -> Result<(), IntentError<R>> {
        for participant in 0..plan.participants().len() {
            self.complete(id, plan, participant, Completion::Apply(epoch)).await?;
        }
        self.remove_row(id).await
    }

    async fn abort<R>(
        &self,
        id: IntentId,
        plan: &impl IntentPlan<Refusal = R>,
    ) -> Result<(), IntentError<R>> {
        // An aborted intent can no longer be committed, so an undone participant stays undone.
        if let Some(IntentDecision { state: IntentState::Committed, epoch }) =
            self.decide(id, IntentState::Aborted).await?
        {
            return self.finish(id, plan, epoch).await;
        }
        for participant in 0..plan.participants().len() {
            self.complete(id, plan, participant, Completion::Undo).await?;
        }
        self.remove_row(id).await
    }

    async fn complete<R>(
        &self,
        id: IntentId,
        plan: &impl IntentPlan<Refusal = R>,
        participant: usize,
        completion: Completion,
    ) -> Result<(), IntentError<R>> {
        let mut reads = plan.reads(participant);
        reads.keys.push(mark_key(id));
        let partition = &plan.participants()[participant];
        transact(self.store, self.gate, partition, reads, |view| {
            if view.row(&mark_key(id)).is_none() {
                return Ok(Decision::Answer(()));
            }
            let mut mutations = match completion {
                Completion::Apply(epoch) => plan.apply(participant, epoch, view)?,
                Completion::Undo => plan.undo(participant, view),
            };
            mutations.push(Mutation::Delete(mark_key(id)));
            Ok(Decision::Write(Change::of(mutations), ()))
        })
        .await
        .map_err(IntentError::from)
    }

    async fn remove_row<R>(&self, id: IntentId) -> Result<(), IntentError<R>> {
        self.transact_at(self.home, Reads::default(), |_| {
            Decision::Write(Change::of([Mutation::Delete(row_key(id))]), ())
        })
        .await
    }

    async fn read_row<R>(&self, id: IntentId) -> Result<Option<IntentRow>, IntentError<R>> {
        self.transact_at(self.home, Reads::key(row_key(id)), |view| {
            Decision::Answer(view.row(&row_key(id)).and_then(|row| IntentRow::decode(&row.value)))
        })
        .await
    }

    async fn transact_at<T, R>(
        &self,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>) -> Decision<T>,
    ) -> Result<T, IntentError<R>> {
        transact(self.store, self.gate, partition, reads, |view| Ok::<_, ()>(rule(view)))
            .await
            .map_err(IntentError::Interrupted)
    }
}

/// Returns the id of the intent that a row of its home belongs to.
pub fn intent_of(row: &[u8]) -> Option<IntentId> {
    let ticks = row.strip_prefix(&[INTENT_PREFIX])?.try_into().ok().map(u64::from_be_bytes)?;
    Some(IntentId(Stamp::from_ticks(ticks)))
}

/// Returns the key of an intent's mark, which is the same in each of its participants.
pub fn mark_key(id: IntentId) -> Bytes {
    key(MARK_PREFIX, id)
}

fn row_key(id: IntentId) -> Bytes {
    key(INTENT_PREFIX, id)
}

fn key(prefix: u8, id: IntentId) -> Bytes {
    let mut key = BytesMut::with_capacity(9);
    key.put_u8(prefix);
    key.put_u64(id.0.ticks());
    key.freeze()
}

impl<R> From<TransactError<R>> for IntentError<R> {
    fn from(error: TransactError<R>) -> Self {
        Self::Interrupted(match error {
            TransactError::Refused(refusal) => return Self::Refused(refusal),
            TransactError::Gone => TransactError::Gone,
            TransactError::NotCommitted(error) => TransactError::NotCommitted(error),
            TransactError::Unknown => TransactError::Unknown,
            TransactError::Read(error) => TransactError::Read(error),
        })
    }
}

impl<R> IntentError<R> {
    /// Returns whether a retry may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Interrupted(TransactError::NotCommitted(CommitError::Busy)))
    }
}

impl IntentRow {
    fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD_BYTES + self.payload.len());
        bytes.put_u8(FORMAT);
        bytes.put_u8(self.state as u8);
        bytes.put_u8(self.kind);
        bytes.put_u64(self.epoch);
        bytes.extend_from_slice(&self.payload);
        bytes.freeze()
    }

    fn decode(bytes: &Bytes) -> Option<Self> {
        let state = match (bytes.first()?, bytes.get(1)?) {
            (&FORMAT, 0) => IntentState::Pending,
            (&FORMAT, 1) => IntentState::Committed,
            (&FORMAT, 2) => IntentState::Aborted,
            _ => return None,
        };
        let epoch = u64::from_be_bytes(bytes.get(3..HEAD_BYTES)?.try_into().ok()?);
        Some(Self { state, epoch, kind: *bytes.get(2)?, payload: bytes.slice(HEAD_BYTES..) })
    }
}
