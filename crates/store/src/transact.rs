//! How services change a partition: read rows, run a rule, commit on exactly the rows it judged.
//!
//! A rule is a pure function of what was read, its stamp and the time. If the commit conflicts, or the deadline of
//! the decision has passed, everything is read again and the rule runs again with a fresh stamp, a bounded number of
//! times, waiting its turn at the [`Gate`].

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

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
    /// The space is closed or has moved on.
    #[error("the space is closed or has moved on")]
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
    mut rule: impl FnMut(&View<'_>) -> Result<Decision<T>, E>,
) -> Result<T, TransactError<E>> {
    let mut place = gate.has_line(partition).then(|| gate.join(partition));
    let mut turn = None;
    for _ in 0..MAX_ATTEMPTS {
        if let (Some(place), None) = (&place, &turn) {
            turn = Some(place.turn().await);
        }
        match attempt(store, partition, reads.clone(), &mut rule).await {
            Err(TransactError::NotCommitted(CommitError::Conflict | CommitError::Expired)) => {
                if place.is_none() {
                    place = Some(gate.join(partition));
                }
            }
            decided => return decided,
        }
    }
    Err(TransactError::NotCommitted(CommitError::Busy))
}

async fn attempt<T, E>(
    store: &dyn Store,
    partition: &Partition,
    mut reads: Reads,
    rule: &mut impl FnMut(&View<'_>) -> Result<Decision<T>, E>,
) -> Result<T, TransactError<E>> {
    for _ in 0..MAX_READS {
        // The stamp comes before the read: a row written later by somebody else has a larger one and conflicts.
        let stamp = store.stamp();
        let set = store.read(partition, &reads).await?;
        let view = View { reads: &reads, set: &set, stamp, now: store.now() };
        match rule(&view).map_err(TransactError::Refused)? {
            Decision::Answer(answer) => return Ok(answer),
            Decision::Read(more) => {
                reads.keys.extend(more.keys);
                reads.ranges.extend(more.ranges);
            }
            Decision::Write(change, answer) => {
                let Some(SpaceHeader { epoch, open: true }) = set.space else {
                    return Err(TransactError::Gone);
                };
                let commit = Commit {
                    stamp,
                    epoch,
                    conditions: conditions(&reads, set),
                    mutations: change.mutations,
                    valid_until: change.valid_until,
                    bulk: change.bulk,
                };
                return match store.commit(partition, commit).await {
                    Ok(()) => Ok(answer),
                    Err(CommitError::Gone) => Err(TransactError::Gone),
                    Err(CommitError::Unknown) => Err(TransactError::Unknown),
                    Err(error) => Err(TransactError::NotCommitted(error)),
                };
            }
        }
    }
    Err(TransactError::NotCommitted(CommitError::TooLarge))
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
