//! Batches: many commits to one shard in one op. Functions only; [`crate::batcher`] sends the ops.
//!
//! All comparisons of an op see the state before it. So a commit joins a batch only if no earlier commit of
//! the batch writes a row or changes a bucket that this one depends on. Then the batch has the effect of its
//! commits one after the other. Additions to one counter are the exception: they are added up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_rados::{WriteOp, WriteStep};
use lazuli_store::{Commit, CommitError, Condition, Mutation, RangeToken, Row, Token};
use xxhash_rust::xxh3::Xxh3;

use crate::keys::{DEADLINE_FENCE, bucket_key, row_key};
use crate::token::{self, RowRequirement};

/// Maximum number of commits in a batch.
const MAX_COMMITS: usize = 256;
/// A batch takes no further commit once it has this many bytes.
const MAX_BYTES: usize = 4 << 20;

/// The combined effect of a commit's mutations on one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowEffect {
    Put(Bytes),
    Delete,
    Add(i64),
}

/// A range of rows that must be unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeRequirement {
    /// Row keys within the partition.
    pub(crate) range: Range<Bytes>,
    /// Stamp of the bucket when the range was read, and the digest of the range.
    pub(crate) token: RangeToken,
}

/// A commit with at most one requirement and one effect for each row. Rows are named by their stored keys.
#[derive(Clone, Debug)]
pub(crate) struct NormalCommit {
    pub(crate) partition: Bytes,
    pub(crate) bucket: Bytes,
    pub(crate) epoch: u64,
    pub(crate) stamp: Stamp,
    pub(crate) valid_until: Option<Timestamp>,
    pub(crate) fence: Option<Timestamp>,
    pub(crate) ranges: Vec<RangeRequirement>,
    requirements: BTreeMap<Bytes, RowRequirement>,
    effects: BTreeMap<Bytes, RowEffect>,
    bytes: usize,
}

/// Makes the token of a range from its bucket's stamp and a digest of its rows.
pub(crate) fn range_token<'a>(bucket: Stamp, rows: impl IntoIterator<Item = &'a Row>) -> RangeToken {
    let mut digest = Xxh3::new();
    for row in rows {
        digest.update(&(row.key.len() as u64).to_le_bytes());
        digest.update(&row.key);
        digest.update(&row.token.0.ticks().to_le_bytes());
    }
    RangeToken(u128::from(bucket.ticks()) << 64 | u128::from(digest.digest()))
}

/// Returns the stamp of the bucket in a range token.
pub(crate) fn bucket_of_token(token: RangeToken) -> Stamp {
    Stamp::from_ticks((token.0 >> 64) as u64)
}

/// Returns whether two tokens have the same digest, whatever their buckets.
pub(crate) fn same_digest(a: RangeToken, b: RangeToken) -> bool {
    a.0 as u64 == b.0 as u64
}

impl RowEffect {
    fn then(earlier: Option<Self>, mutation: &Mutation) -> Self {
        match (earlier, mutation) {
            (_, Mutation::Put(_, value)) => Self::Put(value.clone()),
            (_, Mutation::Delete(_)) => Self::Delete,
            (Some(Self::Put(value)), Mutation::Add(_, amount)) => Self::Put(sum(&value, *amount)),
            (Some(Self::Delete), Mutation::Add(_, amount)) => Self::Put(sum(&[], *amount)),
            (Some(Self::Add(before)), Mutation::Add(_, amount)) => Self::Add(before.wrapping_add(*amount)),
            (None, Mutation::Add(_, amount)) => Self::Add(*amount),
        }
    }
}

/// Adds to a counter's value. A value that is not a counter counts as 0.
fn sum(counter: &[u8], amount: i64) -> Bytes {
    let count = counter.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
    Bytes::copy_from_slice(&count.wrapping_add(amount).to_le_bytes())
}

impl NormalCommit {
    /// Normalizes a commit. Returns [`CommitError::Conflict`] if its conditions contradict each other, or if
    /// it replaces a version that is not older than itself.
    pub(crate) fn new(partition: &Bytes, commit: &Commit) -> Result<Self, CommitError> {
        let (mut requirements, mut ranges) = (BTreeMap::new(), vec![]);
        for condition in &commit.conditions {
            let (key, requirement) = match condition {
                Condition::Absent(key) => (key, RowRequirement::Absent),
                Condition::Unchanged(key, token) => (key, RowRequirement::Unchanged(*token)),
                Condition::RangeUnchanged(range, token) => {
                    ranges.push(RangeRequirement { range: range.clone(), token: *token });
                    continue;
                }
            };
            let other = requirements.insert(row_key(partition, key), requirement);
            if other.is_some_and(|other| other != requirement) {
                return Err(CommitError::Conflict);
            }
        }
        let (mut effects, mut bytes) = (BTreeMap::new(), 0);
        for mutation in &commit.mutations {
            let (Mutation::Put(key, _) | Mutation::Delete(key) | Mutation::Add(key, _)) = mutation;
            let key = row_key(partition, key);
            let effect = RowEffect::then(effects.remove(&key), mutation);
            bytes += key.len() + if let RowEffect::Put(value) = &effect { value.len() } else { 0 };
            effects.insert(key, effect);
        }
        for key in
            effects.iter().filter(|(_, effect)| !matches!(effect, RowEffect::Add(_))).map(|(key, _)| key)
        {
            match requirements.get(key) {
                None => _ = requirements.insert(key.clone(), RowRequirement::Below(commit.stamp)),
                Some(RowRequirement::Unchanged(Token(stamp))) if *stamp >= commit.stamp => {
                    return Err(CommitError::Conflict);
                }
                Some(_) => {}
            }
        }
        Ok(Self {
            partition: partition.clone(),
            bucket: bucket_key(partition),
            epoch: commit.epoch,
            stamp: commit.stamp,
            valid_until: commit.valid_until,
            fence: commit.fence,
            ranges,
            requirements,
            effects,
            bytes,
        })
    }

    /// Returns whether the commit only removes rows, so that it may be performed in a full pool.
    pub(crate) fn only_removes(&self) -> bool {
        self.effects.values().all(|effect| *effect == RowEffect::Delete)
    }

    /// Returns how many rows the commit adds, as far as its conditions show.
    fn added_rows(&self) -> i64 {
        let added = self.effects.iter().map(|(key, effect)| match (effect, self.requirements.get(key)) {
            (RowEffect::Put(_), Some(RowRequirement::Absent | RowRequirement::Below(_))) => 1,
            (RowEffect::Delete, Some(RowRequirement::Unchanged(_))) => -1,
            _ => 0,
        });
        added.sum()
    }
}

/// Returns for each waiting commit, in order, whether it joins the next batch. The first one always does.
pub(crate) fn admit<'a>(waiting: impl IntoIterator<Item = &'a NormalCommit>) -> Vec<bool> {
    let mut written: BTreeMap<&Bytes, &RowEffect> = BTreeMap::new();
    let mut changed_buckets = BTreeSet::new();
    let (mut commits, mut bytes) = (0, 0);
    let mut admit_one = |commit: &'a NormalCommit| {
        let is_full = commits > 0 && (commits == MAX_COMMITS || bytes + commit.bytes > MAX_BYTES);
        let depends = commit.requirements.keys().any(|key| written.contains_key(key));
        let overwrites = commit.effects.iter().any(|(key, effect)| match (written.get(key), effect) {
            (Some(RowEffect::Add(_)), RowEffect::Add(_)) | (None, _) => false,
            (Some(_), _) => true,
        });
        let range_changes = !commit.ranges.is_empty() && changed_buckets.contains(&commit.bucket);
        if is_full || depends || overwrites || range_changes {
            return false;
        }
        written.extend(&commit.effects);
        if !commit.effects.is_empty() {
            changed_buckets.insert(&commit.bucket);
        }
        (commits, bytes) = (commits + 1, bytes + commit.bytes);
        true
    };
    waiting.into_iter().map(&mut admit_one).collect()
}

/// Returns the rows of counters that a batch adds to.
pub(crate) fn counters(batch: &[&NormalCommit]) -> BTreeSet<Bytes> {
    let effects = batch.iter().flat_map(|commit| &commit.effects);
    effects.filter(|(_, effect)| matches!(effect, RowEffect::Add(_))).map(|(key, _)| key.clone()).collect()
}

/// Returns the keys that decide about a batch: rows, counters and buckets.
pub(crate) fn keys_of(batch: &[&NormalCommit]) -> Vec<Bytes> {
    let rows = batch.iter().flat_map(|commit| commit.requirements.keys().chain(commit.effects.keys()));
    let buckets = batch.iter().map(|commit| &commit.bucket);
    rows.chain(buckets).collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

/// The rows that a batch has as a whole, and the space's part that is not about single commits.
pub(crate) struct BatchSteps {
    /// Comparisons of rows, buckets and deadlines.
    pub(crate) comparisons: Vec<WriteStep>,
    removed: Vec<Bytes>,
    set: Vec<(Bytes, Bytes)>,
    pub(crate) added_rows: i64,
}

/// Composes a batch. `stored` has the stored counters, `stamp` is fresh and above them, and `fence` is the
/// deadline fence as far as it is known.
pub(crate) fn compose(
    batch: &[&NormalCommit],
    stored: &BTreeMap<Bytes, Bytes>,
    stamp: Stamp,
    fence: Option<Stamp>,
) -> BatchSteps {
    let mut steps = BatchSteps { comparisons: vec![], removed: vec![], set: vec![], added_rows: 0 };
    if let Some(earliest) = batch.iter().filter_map(|commit| commit.valid_until).min() {
        let deadline = Stamp::from_ticks(earliest.ticks());
        steps.comparisons.push(token::later_than_fence(&DEADLINE_FENCE, deadline));
    }
    if let Some(wanted) = batch.iter().filter_map(|commit| commit.fence).max() {
        let wanted = Stamp::from_ticks(wanted.ticks());
        if fence.is_none_or(|fence| fence < wanted) {
            steps.comparisons.push(token::later_than_fence(&DEADLINE_FENCE, wanted));
            steps.set.push((DEADLINE_FENCE, token::encode(wanted)));
        }
    }
    let mut amounts: BTreeMap<&Bytes, i64> = BTreeMap::new();
    for commit in batch {
        steps.take(commit);
        for (key, effect) in &commit.effects {
            match effect {
                RowEffect::Put(value) => {
                    steps.set.push((key.clone(), token::encode_row(Token(commit.stamp), value)));
                }
                RowEffect::Delete => steps.removed.push(key.clone()),
                RowEffect::Add(amount) => {
                    let total = amounts.entry(key).or_default();
                    *total = total.wrapping_add(*amount);
                }
            }
        }
    }
    for (key, amount) in amounts {
        steps.add_to_counter(key, amount, stored.get(key), stamp);
    }
    let changed: BTreeSet<_> =
        batch.iter().filter(|commit| !commit.effects.is_empty()).map(|commit| &commit.bucket).collect();
    steps.set.extend(changed.into_iter().map(|bucket| (bucket.clone(), token::encode(stamp))));
    steps
}

impl BatchSteps {
    /// Adds the comparisons of one commit.
    fn take(&mut self, commit: &NormalCommit) {
        for (key, requirement) in &commit.requirements {
            self.comparisons.extend(requirement.steps(key));
        }
        for range in &commit.ranges {
            self.comparisons.push(token::equals(&commit.bucket, stored_bucket(bucket_of_token(range.token))));
        }
        self.added_rows += commit.added_rows();
    }

    fn add_to_counter(&mut self, key: &Bytes, amount: i64, stored: Option<&Bytes>, stamp: Stamp) {
        let row = stored.and_then(token::decode_row);
        let requirement = row.as_ref().map_or(RowRequirement::Absent, |row| RowRequirement::Unchanged(row.0));
        self.comparisons.extend(requirement.steps(key));
        let value = sum(row.as_ref().map_or(&b""[..], |row| &row.1[..]), amount);
        self.set.push((key.clone(), token::encode_row(Token(stamp), &value)));
        self.added_rows += i64::from(row.is_none());
    }

    /// Returns the op: comparisons, then removals, then sets. `own` and `own_set` are about the front end.
    pub(crate) fn into_op(mut self, own: Vec<WriteStep>, own_set: (Bytes, Bytes)) -> WriteOp {
        self.set.push(own_set);
        let mut steps = own;
        steps.extend(self.comparisons);
        if !self.removed.is_empty() {
            steps.push(WriteStep::RemoveOmap(self.removed));
        }
        steps.push(WriteStep::SetOmap(self.set));
        WriteOp::new(steps)
    }
}

/// Returns the stored value of a bucket with a stamp. A bucket that was never written has the stamp 0.
fn stored_bucket(stamp: Stamp) -> Bytes {
    if stamp == Stamp::default() { Bytes::new() } else { token::encode(stamp) }
}

/// The fate of a commit after its batch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Sent again.
    Keep,
    /// A row that it depends on has changed.
    Conflict,
    /// The commit's deadline is not above the deadline fence.
    Expired,
    /// The bucket of one of its ranges has changed; the ranges must be read again.
    CheckRanges,
}

/// Judges a commit from the stored rows and buckets.
pub(crate) fn judge(commit: &NormalCommit, stored: &BTreeMap<Bytes, Bytes>) -> Verdict {
    let fence = stored.get(&DEADLINE_FENCE).and_then(|stored| token::decode(stored));
    if let (Some(fence), Some(until)) = (fence, commit.valid_until)
        && until.ticks() <= fence.ticks()
    {
        return Verdict::Expired;
    }
    if !commit.requirements.iter().all(|(key, requirement)| requirement.holds(stored.get(key))) {
        return Verdict::Conflict;
    }
    let bucket = stored.get(&commit.bucket).and_then(|stored| token::decode(stored)).unwrap_or_default();
    let unchanged = commit.ranges.iter().all(|range| bucket_of_token(range.token) == bucket);
    if unchanged { Verdict::Keep } else { Verdict::CheckRanges }
}

#[cfg(test)]
mod tests;
