//! The rows and space headers of the in-memory engine, without the lock. Commits are judged and applied in
//! one step.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

use crate::digest::RangeDigest;
use crate::tombstones::{MAX_TOMBSTONES, Tombstones};
use crate::{
    AllVisitor, Commit, CommitError, Condition, MAX_SCAN_BYTES, MAX_SCAN_ROWS, Mutation, Partition,
    RangeToken, Row, RowCounts, RowPosition, Scanned, SpaceHeader, SpaceId, Token, Visited, Which, keys,
};

/// Memory of a row or header in addition to its keys and value, in bytes.
const ENTRY_BYTES: u64 = 160;
/// Maximum number of rows that one sweep removes.
const SWEEP_ROWS: usize = 1024;

/// One version of one row.
#[derive(Clone)]
pub(super) struct Version {
    pub(super) token: Token,
    pub(super) value: Bytes,
}

/// Changes of one commit: the new version of each row, `None` where the row is removed.
#[derive(Default)]
struct RowChanges {
    rows: BTreeMap<Bytes, Option<Version>>,
    added: u64,
    removed: u64,
}

pub(super) struct RowMap {
    headers: BTreeMap<SpaceId, SpaceHeader>,
    rows: BTreeMap<RowPosition, Version>,
    tombstones: Tombstones,
    counts: RowCounts,
    bytes: u64,
    max_bytes: u64,
    full: bool,
}

/// Returns the position of a row of a space.
pub(super) fn position(space: SpaceId, (partition, key): (Bytes, Bytes)) -> RowPosition {
    RowPosition { space, partition, key }
}

/// Returns a position after every row of a space.
pub(super) fn space_end(space: SpaceId) -> RowPosition {
    position(SpaceId(space.0.saturating_add(1)), Default::default())
}

/// Returns the least key above a key.
fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

fn row_bytes(partition: &[u8], key: &[u8], value: &[u8]) -> u64 {
    (partition.len() + key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl Version {
    fn to_row(&self, key: Bytes) -> Row {
        Row { key, value: self.value.clone(), token: self.token }
    }
}

impl RowMap {
    /// Creates a map without rows. The root space is open from the start.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            headers: BTreeMap::from([(SpaceId::ROOT, SpaceHeader { epoch: 0, open: true })]),
            rows: BTreeMap::new(),
            tombstones: Tombstones::new(MAX_TOMBSTONES, Stamp::default()),
            counts: RowCounts { complete: true, ..RowCounts::default() },
            bytes: ENTRY_BYTES,
            max_bytes,
            full: false,
        }
    }

    pub(super) fn header(&self, space: SpaceId) -> Option<SpaceHeader> {
        self.headers.get(&space).copied()
    }

    pub(super) const fn counts(&self) -> RowCounts {
        self.counts
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn get(&self, partition: &Partition, key: &Bytes) -> Option<Row> {
        self.rows.get(&RowPosition::new(partition, key)).map(|row| row.to_row(key.clone()))
    }

    /// Returns the rows from one position up to another, exclusive, in order.
    pub(super) fn between(
        &self,
        from: RowPosition,
        end: RowPosition,
    ) -> impl Iterator<Item = (&RowPosition, &Version)> {
        // An inverted range is empty.
        let end = end.max(from.clone());
        self.rows.range(from..end)
    }

    fn range(
        &self,
        partition: &Partition,
        range: &Range<Bytes>,
    ) -> impl Iterator<Item = (&RowPosition, &Version)> {
        self.between(RowPosition::new(partition, &range.start), RowPosition::new(partition, &range.end))
    }

    fn range_token(&self, partition: &Partition, range: &Range<Bytes>) -> RangeToken {
        let mut digest = RangeDigest::default();
        self.range(partition, range).for_each(|(at, row)| digest.add(&at.key, row.token));
        digest.token()
    }

    pub(super) fn scan(&self, partition: &Partition, asked: &Range<Bytes>, limit: usize) -> Scanned {
        let limit = limit.min(MAX_SCAN_ROWS);
        let (mut rows, mut digest, mut range) = (vec![], RangeDigest::default(), asked.clone());
        let mut remaining = self.range(partition, asked);
        for (at, row) in remaining.by_ref().take(limit) {
            digest.add(&at.key, row.token);
            rows.push(row.to_row(at.key.clone()));
        }
        let next = remaining.next();
        if let Some((at, _)) = next {
            range.end = at.key.clone();
        }
        Scanned { range, rows, token: digest.token(), more: next.is_some() }
    }

    /// Passes rows of a space to the visitor in order, until the visitor stops or has seen
    /// [`MAX_SCAN_BYTES`].
    pub(super) fn walk(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        mut visitor: impl FnMut(Bytes, Row) -> ControlFlow<()>,
    ) -> Visited {
        let end = end.map_or_else(|| space_end(space), |end| position(space, end));
        let mut visited = Visited { space: self.header(space), next: None };
        let mut bytes = 0;
        let mut remaining = self.between(position(space, from), end.clone());
        while let Some((RowPosition { partition, key, .. }, row)) = remaining.next() {
            if bytes >= MAX_SCAN_BYTES || visitor(partition.clone(), row.to_row(key.clone())).is_break() {
                visited.next = Some((partition.clone(), key.clone()));
                break;
            }
            bytes += partition.len() + key.len() + row.value.len();
            if which == Which::First {
                let next_partition = (successor(partition), Bytes::new());
                remaining = self.between(position(space, next_partition), end.clone());
            }
        }
        visited
    }

    /// Implements [`crate::Store::visit_all`].
    pub(super) fn walk_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Option<RowPosition> {
        let from = from.unwrap_or_else(|| position(SpaceId(0), Default::default()));
        let (mut seen, mut bytes) = (0, 0);
        for (at @ RowPosition { space, partition, key }, row) in self.rows.range(from..) {
            let is_over = seen == MAX_SCAN_ROWS || bytes >= MAX_SCAN_BYTES;
            if is_over || visitor(*space, partition.clone(), row.to_row(key.clone())).is_break() {
                return Some(at.clone());
            }
            seen += 1;
            bytes += partition.len() + key.len() + row.value.len();
        }
        None
    }

    /// Checks the conditions of a commit and applies it if they hold.
    pub(super) fn commit(
        &mut self,
        partition: &Partition,
        commit: &Commit,
        now: Timestamp,
    ) -> Result<(), CommitError> {
        match self.header(partition.space) {
            Some(header) if header.open && header.epoch == commit.epoch => {}
            _ => return Err(CommitError::Gone),
        }
        if commit.valid_until.is_some_and(|until| now >= until) {
            return Err(CommitError::Expired);
        }
        if !commit.conditions.iter().all(|condition| self.holds(partition, condition)) {
            return Err(CommitError::Conflict);
        }
        let changes = self.changes(partition, commit)?;
        self.reserve(partition, &changes)?;
        self.apply(partition, changes, commit.stamp);
        Ok(())
    }

    fn holds(&self, partition: &Partition, condition: &Condition) -> bool {
        match condition {
            Condition::Absent(key) => self.get(partition, key).is_none(),
            Condition::Unchanged(key, token) => {
                self.get(partition, key).is_some_and(|row| row.token == *token)
            }
            Condition::RangeUnchanged(range, token) => self.range_token(partition, range) == *token,
        }
    }

    /// Returns the new version of each row that a commit changes.
    fn changes(&self, partition: &Partition, commit: &Commit) -> Result<RowChanges, CommitError> {
        let (mut changes, prefix) = (RowChanges::default(), keys::prefix(partition));
        for mutation in &commit.mutations {
            let (Mutation::Put(key, _) | Mutation::Delete(key) | Mutation::Add(key, _)) = mutation;
            let is_additive = matches!(mutation, Mutation::Add(..));
            let current = match changes.rows.get(key) {
                Some(changed) => changed.clone(),
                None => {
                    let stored = self.rows.get(&RowPosition::new(partition, key));
                    let is_newer = match stored {
                        Some(stored) => is_additive || commit.stamp > stored.token.0,
                        None => self.tombstones.permits(&keys::row(&prefix, key), commit.stamp),
                    };
                    if !is_newer {
                        return Err(CommitError::Conflict);
                    }
                    stored.cloned()
                }
            };
            let new = match mutation {
                // Copy the value, because it may be a small part of a large buffer.
                Mutation::Put(_, value) => {
                    Some(Version { token: Token(commit.stamp), value: Bytes::copy_from_slice(value) })
                }
                Mutation::Delete(_) if current.is_none() => continue,
                Mutation::Delete(_) => None,
                Mutation::Add(_, amount) => Some(add(current.as_ref(), *amount, commit.stamp)),
            };
            changes.added += u64::from(current.is_none());
            changes.removed += u64::from(new.is_none());
            changes.rows.insert(Bytes::copy_from_slice(key), new);
        }
        Ok(changes)
    }

    /// Reserves memory for changes, or refuses them if there is not enough.
    fn reserve(&mut self, partition: &Partition, changes: &RowChanges) -> Result<(), CommitError> {
        let (mut before, mut after) = (0, 0);
        for (key, new) in &changes.rows {
            let size = |row: &Version| row_bytes(&partition.key, key, &row.value);
            before += self.rows.get(&RowPosition::new(partition, key)).map_or(0, size);
            after += new.as_ref().map_or(0, size);
        }
        if after > before {
            self.full = self.bytes + (after - before) > self.max_bytes;
            if self.full {
                return Err(CommitError::Full);
            }
        } else if after < before {
            self.full = false;
        }
        self.bytes = self.bytes + after - before;
        Ok(())
    }

    fn apply(&mut self, partition: &Partition, changes: RowChanges, stamp: Stamp) {
        let prefix = keys::prefix(partition);
        let partition = Partition::new(partition.space, Bytes::copy_from_slice(&partition.key));
        for (key, new) in changes.rows {
            match new {
                Some(version) => _ = self.rows.insert(RowPosition::new(&partition, &key), version),
                None => {
                    self.tombstones.insert(&keys::row(&prefix, &key), stamp);
                    self.rows.remove(&RowPosition::new(&partition, &key));
                }
            }
        }
        self.counts.added += changes.added;
        self.counts.removed += changes.removed;
    }

    /// Implements [`crate::Store::set_space`].
    pub(super) fn set_header(
        &mut self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        if self.header(space) != from {
            return Err(CommitError::Conflict);
        }
        if from.is_none() {
            self.full = self.bytes + ENTRY_BYTES > self.max_bytes;
            if self.full {
                return Err(CommitError::Full);
            }
            self.bytes += ENTRY_BYTES;
        }
        self.headers.insert(space, to);
        Ok(())
    }

    /// Implements [`crate::Store::sweep_space`].
    pub(super) fn sweep(
        &mut self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        if self.header(space).is_some_and(|header| header.open) {
            return Err(CommitError::Gone);
        }
        let is_whole = from == Default::default();
        let rest = self.between(position(space, from), space_end(space));
        let removed: Vec<_> = rest.take(limit.min(SWEEP_ROWS)).map(|(at, _)| at.clone()).collect();
        for at in &removed {
            if let Some(row) = self.rows.remove(at) {
                self.bytes -= row_bytes(&at.partition, &at.key, &row.value);
                self.counts.removed += 1;
            }
        }
        self.full &= removed.is_empty();
        if removed.is_empty() && is_whole && self.headers.remove(&space).is_some() {
            self.bytes -= ENTRY_BYTES;
        }
        Ok(removed.last().map(|at| (at.partition.clone(), successor(&at.key))))
    }
}

/// Returns a counter after an addition. Additions never conflict, so a late stamp is raised above the row's.
fn add(counter: Option<&Version>, amount: i64, stamp: Stamp) -> Version {
    let count = counter.and_then(|row| row.value.first_chunk()).map_or(0, |bytes| i64::from_le_bytes(*bytes));
    let least = counter.map_or(stamp, |row| Stamp::from_ticks(row.token.0.ticks() + 1));
    let value = Bytes::copy_from_slice(&count.wrapping_add(amount).to_le_bytes());
    Version { token: Token(stamp.max(least)), value }
}
