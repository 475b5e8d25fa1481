//! Transactions of services on a partition: read rows, run a rule, and commit on condition that the rows are
//! unchanged.
//!
//! A rule does no I/O and reads no clock: only the rows, its stamp and the time decide. It may also note
//! something in memory, if that is harmless when it runs again or the commit fails. If the commit conflicts,
//! the space has another epoch, or the decision's deadline has passed, the transaction reads everything again
//! and reruns the rule with a new stamp. The number of attempts is bounded, and retries wait in the queue of
//! the [`Gate`].

use std::future::ready;
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_telemetry::{Phase, begin_phase};

use crate::gate::Ticket;
use crate::{
    Commit, CommitError, Condition, Gate, Mutation, Partition, ReadError, ReadSet, Reads, Row, Scanned,
    SpaceHeader, Store,
};

/// Maximum number of attempts before a transaction fails with [`CommitError::Busy`].
const MAX_ATTEMPTS: usize = 64;
/// Maximum number of times that a rule may request more rows within one attempt.
const MAX_READS: usize = 16;

/// The input of a rule: rows, stamp and time.
pub struct View<'a> {
    reads: &'a Reads,
    set: &'a ReadSet,
    /// The stamp of the rows that this attempt writes.
    pub stamp: Stamp,
    /// The time that the rule must use.
    pub now: Timestamp,
}

impl View<'_> {
    /// Returns a row that was read, or `None` if it is absent or was not requested.
    pub fn row(&self, key: &[u8]) -> Option<&Row> {
        let at = self.reads.keys.iter().position(|k| k == key)?;
        self.set.rows[at].as_ref()
    }

    /// Returns whether a row was requested.
    pub fn has_read(&self, key: &[u8]) -> bool {
        self.reads.keys.iter().any(|k| k == key)
    }

    /// Returns all rows that were read.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.set.rows.iter().flatten().chain(self.set.ranges.iter().flat_map(|range| &range.rows))
    }

    /// Returns the ranges that were read, in the order of the request.
    pub fn ranges(&self) -> &[Scanned] {
        &self.set.ranges
    }

    /// Returns the space's header in the same snapshot.
    pub fn space(&self) -> Option<SpaceHeader> {
        self.set.space
    }
}

/// The decision of a rule.
#[derive(Debug)]
pub enum Decision<T> {
    /// Commit the change, and return the value once the change is durable.
    Write(Change, T),
    /// Return the value without a change. The rows read were a consistent state of the partition.
    Answer(T),
    /// Read these rows too and run the rule again. All rows are read anew, in one snapshot.
    Read(Reads),
}

/// The change that a rule returns.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The changes, in order.
    pub mutations: Vec<Mutation>,
    /// The decision depends on the time and holds only before this moment.
    pub valid_until: Option<Timestamp>,
    /// See [`Commit::fence`].
    pub fence: Option<Timestamp>,
    /// Allows up to [`crate::MAX_BULK_COMMIT_BYTES`].
    pub bulk: bool,
}

impl Change {
    /// Makes a change of these mutations without a deadline.
    pub fn of(mutations: impl Into<Vec<Mutation>>) -> Self {
        Self { mutations: mutations.into(), valid_until: None, fence: None, bulk: false }
    }

    /// Sets the deadline to `until` if that is earlier than the current one.
    #[must_use]
    pub fn until(mut self, until: Option<Timestamp>) -> Self {
        self.valid_until = match (self.valid_until, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }
}

/// Why a transaction made no change, or may have made none.
#[derive(Debug, thiserror::Error)]
pub enum TransactError<E> {
    /// The rule refused.
    #[error("refused")]
    Refused(E),
    /// The space is closed.
    #[error("the space is closed")]
    Gone,
    /// The commit did not take effect.
    #[error(transparent)]
    NotCommitted(CommitError),
    /// The commit may or may not have taken effect.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// The rows could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Runs `rule` on one partition until its decision is committed or refused.
///
/// ```
/// # use std::sync::Arc;
/// # use bytes::Bytes;
/// # use lazuli_concurrency::SystemClock;
/// # use lazuli_store::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = InMemoryStore::new(Arc::new(SystemClock), 1 << 20);
/// let space = store.new_space().await?;
/// store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await?;
///
/// // Creates a row, and refuses if it exists. The commit is made only if the row is still absent then.
/// let (gate, partition) = (Gate::default(), Partition::new(space, "invoices"));
/// let create = |view: &View<'_>| match view.row(b"2026-001") {
///     Some(_) => Err("exists already"),
///     None => {
///         let put = Mutation::Put(Bytes::from("2026-001"), Bytes::from("EUR 10"));
///         Ok(Decision::Write(Change::of([put]), view.stamp))
///     }
/// };
/// let stamp = transact(&store, &gate, &partition, Reads::key("2026-001"), create).await?;
/// let read = store.read(&partition, &Reads::key("2026-001")).await?;
/// assert_eq!(read.rows[0].as_ref().map(|row| row.token), Some(Token(stamp)));
///
/// let again = transact(&store, &gate, &partition, Reads::key("2026-001"), create).await;
/// assert!(matches!(again, Err(TransactError::Refused("exists already"))));
/// # Ok(())
/// # }
/// ```
pub async fn transact<T, E>(
    store: &dyn Store,
    gate: &Gate,
    partition: &Partition,
    reads: Reads,
    rule: impl FnMut(&View<'_>) -> Result<Decision<T>, E>,
) -> Result<T, TransactError<E>> {
    transact_announced(store, gate, partition, reads, rule, || ready(Ok(()))).await
}

/// Runs a transaction like [`transact`], but awaits `announce` before every commit. By then everything that
/// the commit depends on has been read, including the space's epoch. If the epoch is raised after that, the
/// commit fails.
pub async fn transact_announced<T, E, F: Future<Output = Result<(), E>>>(
    store: &dyn Store,
    gate: &Gate,
    partition: &Partition,
    reads: Reads,
    mut rule: impl FnMut(&View<'_>) -> Result<Decision<T>, E>,
    mut announce: impl FnMut() -> F,
) -> Result<T, TransactError<E>> {
    let mut attempts = Attempts::new(store, gate, partition);
    'again: loop {
        let mut attempt = attempts.begin(reads.clone()).await.map_err(TransactError::widen)?;
        for _ in 0..MAX_READS {
            match rule(&attempt.view()).map_err(TransactError::Refused)? {
                Decision::Answer(answer) => return Ok(answer),
                Decision::Read(more) => attempt = attempts.read_more(attempt, more).await?,
                Decision::Write(change, answer) => {
                    announce().await.map_err(TransactError::Refused)?;
                    if attempts.commit(attempt, change).await.map_err(TransactError::widen)? {
                        return Ok(answer);
                    }
                    continue 'again;
                }
            }
        }
        return Err(TransactError::NotCommitted(CommitError::TooLarge));
    }
}

/// A transaction in separate steps, for callers that must wait between reading and committing, for example
/// until content is written. The guarantees are those of [`transact`]. If a commit conflicts, begin again:
///
/// ```text
/// let mut attempts = Attempts::new(store, gate, &partition);
/// loop {
///     let attempt = attempts.begin(reads.clone()).await?;
///     let change = judge(&attempt.view())?;
///     if attempts.commit(attempt, change).await? { break }
/// }
/// ```
pub struct Attempts<'a> {
    store: &'a dyn Store,
    gate: &'a Gate,
    partition: &'a Partition,
    count: usize,
    // Dropped in this order: the turn before the place in the queue.
    permit: Option<tokio::sync::OwnedMutexGuard<()>>,
    ticket: Option<Ticket<'a>>,
}

/// The rows that one attempt has read, with its stamp and time.
pub struct Attempt {
    reads: Reads,
    set: ReadSet,
    stamp: Stamp,
    now: Timestamp,
}

impl Attempt {
    /// Returns the input for the rule.
    pub fn view(&self) -> View<'_> {
        View { reads: &self.reads, set: &self.set, stamp: self.stamp, now: self.now }
    }
}

impl<'a> Attempts<'a> {
    /// Prepares a transaction. Reads nothing yet.
    pub fn new(store: &'a dyn Store, gate: &'a Gate, partition: &'a Partition) -> Self {
        let ticket = gate.has_queue(partition).then(|| gate.join(partition));
        Self { store, gate, partition, count: 0, permit: None, ticket }
    }

    /// Returns the partition.
    pub fn partition(&self) -> &'a Partition {
        self.partition
    }

    /// Waits for the turn of the next attempt. Call this before acquiring something that must not be held in
    /// the queue, and [`Attempts::begin`] after it.
    pub async fn wait_turn(&mut self) {
        if let (Some(ticket), None) = (&self.ticket, &self.permit) {
            self.permit = Some(ticket.wait_for_turn().await);
        }
    }

    /// Waits for the transaction's turn and reads the rows for the next attempt.
    pub async fn begin(&mut self, reads: Reads) -> Result<Attempt, TransactError<Never>> {
        if self.count == MAX_ATTEMPTS {
            return Err(TransactError::NotCommitted(CommitError::Busy));
        }
        self.count += 1;
        self.wait_turn().await;
        let attempt = self.read(reads).await?;
        match attempt.set.space {
            Some(SpaceHeader { open: true, .. }) => Ok(attempt),
            // The rows of a closed space must not be used.
            _ => Err(TransactError::Gone),
        }
    }

    /// Reads more rows for the same attempt. All rows are read anew, in one snapshot.
    pub async fn read_more(&mut self, attempt: Attempt, more: Reads) -> Result<Attempt, ReadError> {
        let mut reads = attempt.reads;
        reads.keys.extend(more.keys);
        reads.ranges.extend(more.ranges);
        self.read(reads).await
    }

    /// Returns whether the rows that the attempt read are unchanged. For refusals that depend on later reads
    /// as well: other rows, or content.
    pub async fn is_current(&self, attempt: &Attempt) -> Result<bool, ReadError> {
        Ok(self.store.read(self.partition, &attempt.reads).await? == attempt.set)
    }

    async fn read(&self, reads: Reads) -> Result<Attempt, ReadError> {
        let set = self.store.read(self.partition, &reads).await?;
        // Take the stamp after the read, so that it is above the stamps of all rows that were read, whichever
        // front end wrote them.
        let stamp = self.store.stamp();
        Ok(Attempt { reads, set, stamp, now: self.store.now() })
    }

    /// Commits on condition that everything the attempt read is unchanged. Returns false if something has
    /// changed, the space has another epoch, or the deadline has passed; begin again then.
    pub async fn commit(&mut self, attempt: Attempt, change: Change) -> Result<bool, TransactError<Never>> {
        let Some(SpaceHeader { epoch, open: true }) = attempt.set.space else {
            return Err(TransactError::Gone);
        };
        let commit = Commit {
            stamp: attempt.stamp,
            epoch,
            conditions: conditions(&attempt.reads, attempt.set),
            mutations: change.mutations,
            valid_until: change.valid_until,
            fence: change.fence,
            bulk: change.bulk,
        };
        let committing = begin_phase(Phase::Commit);
        let committed = self.store.commit(self.partition, commit).await;
        drop(committing);
        match committed {
            Ok(()) => Ok(true),
            // `Gone` may only mean a new epoch. The next attempt finds out whether the space is closed.
            Err(CommitError::Conflict | CommitError::Expired | CommitError::Gone) => {
                self.gate.count_retry();
                if self.ticket.is_none() {
                    self.ticket = Some(self.gate.join(self.partition));
                }
                Ok(false)
            }
            Err(CommitError::Unknown) => Err(TransactError::Unknown),
            Err(error) => Err(TransactError::NotCommitted(error)),
        }
    }
}

/// An error that cannot occur: [`Attempts`] never refuses.
pub type Never = std::convert::Infallible;

impl TransactError<Never> {
    /// Converts the error to that of a rule that can refuse.
    pub fn widen<E>(self) -> TransactError<E> {
        match self {
            Self::Refused(never) => match never {},
            Self::Gone => TransactError::Gone,
            Self::NotCommitted(error) => TransactError::NotCommitted(error),
            Self::Unknown => TransactError::Unknown,
            Self::Read(error) => TransactError::Read(error),
        }
    }
}

/// Returns the conditions that everything which was read is unchanged.
fn conditions(reads: &Reads, set: ReadSet) -> Vec<Condition> {
    let rows = reads.keys.iter().zip(set.rows).map(|(key, row)| match row {
        Some(row) => Condition::Unchanged(key.clone(), row.token),
        None => Condition::Absent(key.clone()),
    });
    let ranges = set.ranges.into_iter().map(|s| Condition::RangeUnchanged(s.range, s.token));
    rows.chain(ranges).collect()
}

/// Returns the range of all keys that start with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> Range<Bytes> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xFF {
            *last += 1;
            return Bytes::copy_from_slice(prefix)..end.into();
        }
        end.pop();
    }
    // The prefix is empty or all 0xFF, so no longer prefix can end the range. No key is as long as this one.
    Bytes::copy_from_slice(prefix)..vec![0xFF; crate::MAX_KEY_BYTES + 1].into()
}
