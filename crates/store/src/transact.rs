//! How services change a partition: read rows, run a rule, commit on exactly the rows it judged.
//!
//! A rule is a pure function of what was read, its stamp and the time. If the commit conflicts, the space has moved on, or
//! the deadline of the decision has passed, everything is read again and the rule runs again with a fresh stamp, a bounded number of
//! times, waiting its turn at the [`Gate`].

use std::future::ready;
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

use crate::gate::Place;
use crate::{
    Commit, CommitError, Condition, Gate, Mutation, Partition, ReadError, ReadSet, Reads, Row, Scanned,
    SpaceHeader, Store,
};

/// How often a rule runs before its caller is told that the store is busy.
const MAX_ATTEMPTS: usize = 64;
/// How often a rule may ask for more rows within one attempt.
const MAX_READS: usize = 16;

/// What a rule sees.
pub struct View<'a> {
    reads: &'a Reads,
    set: &'a ReadSet,
    /// The stamp that rows written by this attempt carry.
    pub stamp: Stamp,
    /// The time at which the rule judges.
    pub now: Timestamp,
}

impl View<'_> {
    /// A row that was read; `None` if it is absent or was not asked for.
    pub fn row(&self, key: &[u8]) -> Option<&Row> {
        let at = self.reads.keys.iter().position(|k| k == key)?;
        self.set.rows[at].as_ref()
    }

    /// Whether a row was asked for.
    pub fn has_read(&self, key: &[u8]) -> bool {
        self.reads.keys.iter().any(|k| k == key)
    }

    /// The ranges that were read, in the order they were asked for.
    pub fn ranges(&self) -> &[Scanned] {
        &self.set.ranges
    }

    /// The space's header in the same snapshot.
    pub fn space(&self) -> Option<SpaceHeader> {
        self.set.space
    }
}

/// What a rule decides.
#[derive(Debug)]
pub enum Decision<T> {
    /// Commit this, and answer that once it is durable.
    Write(Change, T),
    /// Answer without a change. What was read is one state of the partition.
    Answer(T),
    /// Read these as well and ask again. The whole set is read anew, in one snapshot.
    Read(Reads),
}

/// A change that a rule wants.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// What changes, in order.
    pub mutations: Vec<Mutation>,
    /// The decision relied on the clock and holds only before this moment.
    pub valid_until: Option<Timestamp>,
    /// Allows up to [`crate::MAX_BULK_COMMIT_BYTES`].
    pub bulk: bool,
}

impl Change {
    /// A change of these mutations, whatever the time.
    pub fn of(mutations: impl Into<Vec<Mutation>>) -> Self {
        Self { mutations: mutations.into(), valid_until: None, bulk: false }
    }

    /// The same, but only before `until`, if that is a time.
    #[must_use]
    pub fn until(mut self, until: Option<Timestamp>) -> Self {
        self.valid_until = match (self.valid_until, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }
}

/// Why nothing was decided.
#[derive(Debug, thiserror::Error)]
pub enum TransactError<E> {
    /// The rule refused.
    #[error("refused")]
    Refused(E),
    /// The space is closed.
    #[error("the space is closed")]
    Gone,
    /// Nothing happened.
    #[error(transparent)]
    NotCommitted(CommitError),
    /// It may or may not have happened.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// The rows could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Runs `rule` on one partition until its decision is committed or refused.
pub async fn transact<T, E>(
    store: &dyn Store,
    gate: &Gate,
    partition: &Partition,
    reads: Reads,
    rule: impl FnMut(&View<'_>) -> Result<Decision<T>, E>,
) -> Result<T, TransactError<E>> {
    transact_announced(store, gate, partition, reads, rule, || ready(Ok(()))).await
}

/// Like [`transact`], but awaits `announce` before every commit, after everything that the commit depends on was read, the
/// epoch of the space included. If that epoch is raised at any time after the read, the commit fails.
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

/// A transaction by hand, for rules that have to wait for something between reading and committing, such as content to
/// be written. What holds for [`transact`] holds here: begin, judge, commit, and begin again if it conflicted.
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
    made: usize,
    // Given back in this order.
    turn: Option<tokio::sync::OwnedMutexGuard<()>>,
    place: Option<Place<'a>>,
}

/// What one attempt has read.
pub struct Attempt {
    reads: Reads,
    set: ReadSet,
    stamp: Stamp,
    now: Timestamp,
}

impl Attempt {
    /// What a rule judges.
    pub fn view(&self) -> View<'_> {
        View { reads: &self.reads, set: &self.set, stamp: self.stamp, now: self.now }
    }
}

impl<'a> Attempts<'a> {
    /// Nothing has been read yet.
    pub fn new(store: &'a dyn Store, gate: &'a Gate, partition: &'a Partition) -> Self {
        let place = gate.has_line(partition).then(|| gate.join(partition));
        Self { store, gate, partition, made: 0, turn: None, place }
    }

    /// Waits for the turn of the next attempt. What must not be held in a line can be taken between this and
    /// [`Attempts::begin`].
    pub async fn wait_turn(&mut self) {
        if let (Some(place), None) = (&self.place, &self.turn) {
            self.turn = Some(place.turn().await);
        }
    }

    /// Reads for the next attempt, when it is its turn.
    pub async fn begin(&mut self, reads: Reads) -> Result<Attempt, TransactError<Never>> {
        if self.made == MAX_ATTEMPTS {
            return Err(TransactError::NotCommitted(CommitError::Busy));
        }
        self.made += 1;
        self.wait_turn().await;
        let attempt = self.read(reads).await?;
        match attempt.set.space {
            Some(SpaceHeader { open: true, .. }) => Ok(attempt),
            // What is left in a closed space is nobody's to judge.
            _ => Err(TransactError::Gone),
        }
    }

    /// Reads more rows in the same attempt: everything anew, in one snapshot.
    pub async fn read_more(&mut self, attempt: Attempt, more: Reads) -> Result<Attempt, ReadError> {
        let mut reads = attempt.reads;
        reads.keys.extend(more.keys);
        reads.ranges.extend(more.ranges);
        self.read(reads).await
    }

    /// Whether what the attempt read is still so. For a refusal that rests on more than that: rows read later, content.
    pub async fn is_current(&self, attempt: &Attempt) -> Result<bool, ReadError> {
        Ok(self.store.read(self.partition, &attempt.reads).await? == attempt.set)
    }

    async fn read(&self, reads: Reads) -> Result<Attempt, ReadError> {
        // The stamp comes before the read: a row written later by somebody else has a larger one and conflicts.
        let stamp = self.store.stamp();
        let set = self.store.read(self.partition, &reads).await?;
        Ok(Attempt { reads, set, stamp, now: self.store.now() })
    }

    /// Commits on exactly what the attempt read. False: something changed meanwhile, the space moved on, or the deadline
    /// has passed; begin again.
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
            bulk: change.bulk,
        };
        match self.store.commit(self.partition, commit).await {
            Ok(()) => Ok(true),
            // A space that has moved on is not closed for that: whoever begins again learns which it is.
            Err(CommitError::Conflict | CommitError::Expired | CommitError::Gone) => {
                self.gate.count_retry();
                if self.place.is_none() {
                    self.place = Some(self.gate.join(self.partition));
                }
                Ok(false)
            }
            Err(CommitError::Unknown) => Err(TransactError::Unknown),
            Err(error) => Err(TransactError::NotCommitted(error)),
        }
    }
}

/// Nothing: [`Attempts`] never refuses.
pub type Never = std::convert::Infallible;

impl TransactError<Never> {
    /// The same among errors of a rule that can refuse.
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

/// Everything that was read must still be so.
fn conditions(reads: &Reads, set: ReadSet) -> Vec<Condition> {
    let rows = reads.keys.iter().zip(set.rows).map(|(key, row)| match row {
        Some(row) => Condition::Unchanged(key.clone(), row.token),
        None => Condition::Absent(key.clone()),
    });
    let ranges = set.ranges.into_iter().map(|s| Condition::RangeUnchanged(s.range, s.token));
    rows.chain(ranges).collect()
}

/// The range of all keys that start with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> Range<Bytes> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xFF {
            *last += 1;
            return Bytes::copy_from_slice(prefix)..end.into();
        }
        end.pop();
    }
    // Every key starts with nothing, or with nothing but FF: no key is as long as this.
    Bytes::copy_from_slice(prefix)..vec![0xFF; crate::MAX_KEY_BYTES + 1].into()
}
