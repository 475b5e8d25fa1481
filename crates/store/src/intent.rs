//! Operations that need more than one partition: a row with idempotent steps and one commit that decides.
//!
//! ```text
//! begin      home:         intent row, pending
//! prepare    participant:  check, reserve, and leave a mark            (each in one commit)
//! decide     home:         pending → committed                         (the one commit that counts)
//! finish     participant:  apply and remove the mark; then home: remove the intent row
//! ```
//!
//! Whoever meets a mark may finish a committed intent or abort a pending one, at any time, together with anybody
//! else, also after the process that began it has died: every step does nothing where its mark is gone. An intent row
//! is removed only once no mark is left, and marks are only left while it is pending. So a mark without a row belongs
//! to an intent that was aborted, and is undone.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::{Stamp, Timestamp};

use crate::{
    Change, CommitError, Decision, Gate, Mutation, Partition, Reads, Store, TransactError, View, transact,
};

/// What row keys of intents and of their marks start with. Services keep their own rows clear of it.
pub const INTENT_PREFIX: u8 = 0xFE;
const MARK_PREFIX: u8 = 0xFF;
const FORMAT: u8 = 1;
/// Format, state, kind, epoch.
const HEAD_BYTES: usize = 11;

/// Names one intent: the stamp it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntentId(pub Stamp);

/// How far an intent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pending = 0,
    Committed = 1,
    Aborted = 2,
}

/// An intent row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    state: State,
    /// The epoch of the home's space when it was decided.
    epoch: u64,
    kind: u8,
    payload: Bytes,
}

/// What an intent has come to, and in which epoch of its home's space.
#[derive(Clone, Copy, Debug)]
struct Decided {
    state: State,
    epoch: u64,
}

/// What becomes of a participant.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Apply(u64),
    Undo,
}

/// What an operation does in each of its partitions. All of it is derived from what the intent row holds, so that
/// anybody can carry it on. The functions are pure.
pub trait Plan: Send + Sync {
    /// Why a participant cannot take part.
    type Refusal: Send;

    /// The partitions that change. The order is the order in which they are prepared.
    fn participants(&self) -> Vec<Partition>;

    /// What the functions below need to see of one of them.
    fn reads(&self, participant: usize) -> Reads;

    /// Checks that it can be done, and reserves what must not change until it is.
    fn prepare(&self, id: IntentId, participant: usize, view: &View<'_>) -> Result<Change, Self::Refusal>;

    /// Does it. Only called where it was prepared. `epoch` is the one of the home's space in which it was decided, and so
    /// the one in which it happened, although the space may have moved on since. It cannot be refused any more: an error
    /// means that this program is unable to do it, and leaves it to be done.
    fn apply(&self, participant: usize, epoch: u64, view: &View<'_>) -> Result<Vec<Mutation>, Self::Refusal>;

    /// Gives back what was reserved. Only called where it was prepared.
    fn undo(&self, participant: usize, view: &View<'_>) -> Vec<Mutation>;
}

/// Makes plans from what intent rows hold.
pub trait Planner: Send + Sync {
    /// The plans it makes.
    type Plan: Plan;

    /// The plan of an intent of that kind; `None` if this program does not know the kind.
    fn plan(&self, kind: u8, payload: &Bytes) -> Option<Self::Plan>;
}

/// How an intent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everywhere.
    Applied,
    /// Nowhere.
    Aborted,
}

/// Why an intent was not carried through.
#[derive(Debug, thiserror::Error)]
pub enum IntentError<R> {
    /// A participant refused; nothing has changed.
    #[error("refused")]
    Refused(R),
    /// Somebody aborted it; nothing has changed.
    #[error("aborted by somebody else")]
    Aborted,
    /// This program does not know the kind.
    #[error("an intent of unknown kind")]
    UnknownKind,
    /// A step failed. Somebody may still finish or abort it.
    #[error("interrupted: {0}")]
    Interrupted(TransactError<()>),
}

/// Carries out intents whose rows lie in one partition, their home.
pub struct Intents<'a, P> {
    /// Where the participants lie.
    pub store: &'a dyn Store,
    /// The lines of the store's callers.
    pub gate: &'a Gate,
    /// Where the intent rows lie.
    pub home: &'a Partition,
    /// What makes plans of them.
    pub planner: &'a P,
}

impl<P: Planner> Intents<'_, P> {
    /// Begins an intent and carries it through.
    pub async fn run(&self, kind: u8, payload: Bytes) -> Result<(), IntentError<<P::Plan as Plan>::Refusal>> {
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
        match self.decide(id, State::Committed).await? {
            Some(Decided { state: State::Committed, epoch }) => self.finish(id, &plan, epoch).await,
            _ => {
                self.abort(id, &plan).await?;
                Err(IntentError::Aborted)
            }
        }
    }

    /// Ends an intent that somebody left: finishes it if it was decided, else aborts it. `marked` is where a mark of it was
    /// met, if that is how it was found.
    pub async fn resolve(
        &self,
        id: IntentId,
        marked: Option<(&P::Plan, usize)>,
    ) -> Result<Ended, IntentError<<P::Plan as Plan>::Refusal>> {
        let Some(record) = self.record(id).await? else {
            if let Some((plan, participant)) = marked {
                self.settle(id, plan, participant, Outcome::Undo).await?;
            }
            return Ok(Ended::Aborted);
        };
        let plan = self.planner.plan(record.kind, &record.payload).ok_or(IntentError::UnknownKind)?;
        match self.decide(id, State::Aborted).await? {
            Some(Decided { state: State::Committed, epoch }) => {
                self.finish(id, &plan, epoch).await.map(|()| Ended::Applied)
            }
            _ => self.abort(id, &plan).await.map(|()| Ended::Aborted),
        }
    }

    /// Whether an intent is neither decided nor aborted. What it reserved is still as it was before.
    pub async fn is_pending(&self, id: IntentId) -> Result<bool, IntentError<<P::Plan as Plan>::Refusal>> {
        Ok(self.record(id).await?.is_some_and(|record| record.state == State::Pending))
    }

    /// The plan of an intent, unless it has ended.
    pub async fn plan(
        &self,
        id: IntentId,
    ) -> Result<Option<P::Plan>, IntentError<<P::Plan as Plan>::Refusal>> {
        let Some(record) = self.record(id).await? else { return Ok(None) };
        self.planner.plan(record.kind, &record.payload).map(Some).ok_or(IntentError::UnknownKind)
    }

    /// The intents in this home that nobody has ended, and when each began. A page of them, oldest first.
    pub async fn unfinished(&self) -> Result<Vec<(IntentId, Timestamp)>, crate::ReadError> {
        let range = crate::prefix_range(&[INTENT_PREFIX]);
        let set =
            self.store.read(self.home, &Reads::default().and_range(range, crate::MAX_SCAN_ROWS)).await?;
        let ids = set.ranges.iter().flat_map(|s| &s.rows).filter_map(|row| intent_of(&row.key));
        Ok(ids.map(|id| (id, id.0.timestamp())).collect())
    }

    async fn begin<R>(&self, kind: u8, payload: Bytes) -> Result<IntentId, IntentError<R>> {
        let record = Record { state: State::Pending, epoch: 0, kind, payload };
        self.step(self.home, Reads::default(), |view| {
            let id = IntentId(view.stamp);
            let put = Mutation::Put(row_key(id), record.encode());
            Decision::Write(Change::of([put]), id)
        })
        .await
    }

    async fn prepare<R>(
        &self,
        id: IntentId,
        plan: &impl Plan<Refusal = R>,
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

    /// Moves a pending intent on and says what it is then; `None` if its row is gone.
    async fn decide<R>(&self, id: IntentId, to: State) -> Result<Option<Decided>, IntentError<R>> {
        self.step(self.home, Reads::key(row_key(id)), |view| {
            let Some(record) = view.row(&row_key(id)).and_then(|row| Record::decode(&row.value)) else {
                return Decision::Answer(None);
            };
            if record.state != State::Pending {
                return Decision::Answer(Some(Decided { state: record.state, epoch: record.epoch }));
            }
            let epoch = view.space().map_or(0, |space| space.epoch);
            let put = Mutation::Put(row_key(id), Record { state: to, epoch, ..record }.encode());
            Decision::Write(Change::of([put]), Some(Decided { state: to, epoch }))
        })
        .await
    }

    async fn finish<R>(
        &self,
        id: IntentId,
        plan: &impl Plan<Refusal = R>,
        epoch: u64,
    ) -> Result<(), IntentError<R>> {
        for participant in 0..plan.participants().len() {
            self.settle(id, plan, participant, Outcome::Apply(epoch)).await?;
        }
        self.forget(id).await
    }

    async fn abort<R>(&self, id: IntentId, plan: &impl Plan<Refusal = R>) -> Result<(), IntentError<R>> {
        // Once it is aborted it can no longer be committed, so what is undone stays undone.
        if let Some(Decided { state: State::Committed, epoch }) = self.decide(id, State::Aborted).await? {
            return self.finish(id, plan, epoch).await;
        }
        for participant in 0..plan.participants().len() {
            self.settle(id, plan, participant, Outcome::Undo).await?;
        }
        self.forget(id).await
    }

    async fn settle<R>(
        &self,
        id: IntentId,
        plan: &impl Plan<Refusal = R>,
        participant: usize,
        outcome: Outcome,
    ) -> Result<(), IntentError<R>> {
        let mut reads = plan.reads(participant);
        reads.keys.push(mark_key(id));
        let partition = &plan.participants()[participant];
        transact(self.store, self.gate, partition, reads, |view| {
            if view.row(&mark_key(id)).is_none() {
                return Ok(Decision::Answer(()));
            }
            let mut mutations = match outcome {
                Outcome::Apply(epoch) => plan.apply(participant, epoch, view)?,
                Outcome::Undo => plan.undo(participant, view),
            };
            mutations.push(Mutation::Delete(mark_key(id)));
            Ok(Decision::Write(Change::of(mutations), ()))
        })
        .await
        .map_err(IntentError::from)
    }

    async fn forget<R>(&self, id: IntentId) -> Result<(), IntentError<R>> {
        self.step(self.home, Reads::default(), |_| {
            Decision::Write(Change::of([Mutation::Delete(row_key(id))]), ())
        })
        .await
    }

    async fn record<R>(&self, id: IntentId) -> Result<Option<Record>, IntentError<R>> {
        self.step(self.home, Reads::key(row_key(id)), |view| {
            Decision::Answer(view.row(&row_key(id)).and_then(|row| Record::decode(&row.value)))
        })
        .await
    }

    async fn step<T, R>(
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

/// The intent that a row of its home is of.
pub fn intent_of(row: &[u8]) -> Option<IntentId> {
    let ticks = row.strip_prefix(&[INTENT_PREFIX])?.try_into().ok().map(u64::from_be_bytes)?;
    Some(IntentId(Stamp::from_ticks(ticks)))
}

/// The key of an intent's mark in each of its participants, for services to look for.
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
    /// Whether trying again may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Interrupted(TransactError::NotCommitted(CommitError::Busy)))
    }
}

impl Record {
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
            (&FORMAT, 0) => State::Pending,
            (&FORMAT, 1) => State::Committed,
            (&FORMAT, 2) => State::Aborted,
            _ => return None,
        };
        let epoch = u64::from_be_bytes(bytes.get(3..HEAD_BYTES)?.try_into().ok()?);
        Some(Self { state, epoch, kind: *bytes.get(2)?, payload: bytes.slice(HEAD_BYTES..) })
    }
}
