//! The trait that services stand on, and the values it speaks.

use std::ops::{ControlFlow, Range};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

use crate::run::RunVisitor;

/// A generation of a container, table, queue or share; or the directory of accounts. Never used again once closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u64);

impl SpaceId {
    /// The directory that is there from the start: accounts, and what names the spaces below them.
    pub const ROOT: Self = Self(0);
}

/// One atomic scope within a space. Partitions are ordered by their keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The space it lies in.
    pub space: SpaceId,
    /// Its key.
    pub key: Bytes,
}

impl Partition {
    /// The partition `key` of a space.
    pub fn new(space: SpaceId, key: impl Into<Bytes>) -> Self {
        Self { space, key: key.into() }
    }
}

/// Identifies one version of one row: the stamp of the commit that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub Stamp);

/// Identifies the contents of a range of rows, an empty range included: a digest of keys and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeToken(pub u128);

/// A row as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its key within the partition.
    pub key: Bytes,
    /// What the service stored.
    pub value: Bytes,
    /// This version of it.
    pub token: Token,
}

/// What must still hold when a commit takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The row does not exist.
    Absent(Bytes),
    /// The row is the version that was read.
    Unchanged(Bytes, Token),
    /// No row in the range was added, changed or removed.
    RangeUnchanged(Range<Bytes>, RangeToken),
}

/// A change to one row, or to a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Writes a row.
    Put(Bytes, Bytes),
    /// Removes a row, if it is there.
    Delete(Bytes),
    /// Removes every row in the range, at most [`MAX_RANGE_DELETE`].
    DeleteRange(Range<Bytes>),
    /// Adds to a counter: a row of eight little-endian bytes, 0 if absent. Never conflicts with another `Add`.
    Add(Bytes, i64),
}

/// Mutations in one commit.
pub const MAX_MUTATIONS: usize = 256;
/// Bytes of keys and values in one commit.
pub const MAX_COMMIT_BYTES: usize = 8 << 20;
/// The same for a commit that says it is [bulk](Commit::bulk).
pub const MAX_BULK_COMMIT_BYTES: usize = 128 << 20;
/// Bytes in one value.
pub const MAX_VALUE_BYTES: usize = 2 << 20;
/// Bytes in one row key, and in one partition key.
pub const MAX_KEY_BYTES: usize = 8 << 10;
/// Rows that one `DeleteRange` may remove.
pub const MAX_RANGE_DELETE: usize = 131_072;
/// Rows that one scan returns at most.
pub const MAX_SCAN_ROWS: usize = 8192;
/// Bytes of keys and values after which a scan over a space ends its page. The last row may exceed it.
pub const MAX_SCAN_BYTES: usize = 16 << 20;

/// One atomic change of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The stamp that was given out for this attempt; above every row that it writes, else the commit conflicts.
    pub stamp: Stamp,
    /// The epoch that the space had when the rule judged it.
    pub epoch: u64,
    /// What must still hold.
    pub conditions: Vec<Condition>,
    /// What changes, in order.
    pub mutations: Vec<Mutation>,
    /// The decision relied on the clock and holds only before this moment.
    pub valid_until: Option<Timestamp>,
    /// Allows up to [`MAX_BULK_COMMIT_BYTES`].
    pub bulk: bool,
}

/// A space's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceHeader {
    /// Raised by whoever must fence writers off: a share snapshot, a restore.
    pub epoch: u64,
    /// A closed space refuses every commit.
    pub open: bool,
}

/// Why a commit did not happen, or may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Something read has changed, or the stamp is not above a row's: run the rule again.
    #[error("a row changed since it was read")]
    Conflict,
    /// The space is closed or its epoch moved on.
    #[error("the space is closed or has moved on")]
    Gone,
    /// `valid_until` has passed.
    #[error("the decision's deadline has passed")]
    Expired,
    /// It may or may not have happened. Never retried blindly.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// Too much is waiting. Nothing happened.
    #[error("the store is busy")]
    Busy,
    /// No space left on the device. Nothing happened.
    #[error("the store is full")]
    Full,
    /// The commit breaks a limit. Nothing happened.
    #[error("the commit is too large")]
    TooLarge,
    /// A row that the commit depends on cannot be read. Nothing happened.
    #[error("a row that the commit depends on cannot be read")]
    Unreadable,
    /// The store has stopped after a failure of its disk. Nothing happened.
    #[error("the store has stopped after a disk failure")]
    Stopped,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// What lies on disk is not what was written.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The disk did not answer.
    #[error("I/O: {0}")]
    Io(String),
}

/// What to read of a partition, in one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Single rows.
    pub keys: Vec<Bytes>,
    /// Ranges, each with the number of rows wanted at most.
    pub ranges: Vec<(Range<Bytes>, usize)>,
}

impl Reads {
    /// Reads one row.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self { keys: vec![key.into()], ranges: vec![] }
    }

    /// Reads several rows.
    pub fn keys(keys: impl IntoIterator<Item = Bytes>) -> Self {
        Self { keys: keys.into_iter().collect(), ranges: vec![] }
    }

    /// Reads a range too.
    #[must_use]
    pub fn and_range(mut self, range: Range<Bytes>, limit: usize) -> Self {
        self.ranges.push((range, limit));
        self
    }
}

/// One range as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The part of the range that the rows and the token speak of: shorter than asked when `more`.
    pub range: Range<Bytes>,
    /// Its rows, in order.
    pub rows: Vec<Row>,
    /// Identifies exactly these rows in this range.
    pub token: RangeToken,
    /// Rows remain from `range.end` on.
    pub more: bool,
}

/// Rows of one partition, read in one snapshot, in the order they were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSet {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// One per key asked for.
    pub rows: Vec<Option<Row>>,
    /// One per range asked for.
    pub ranges: Vec<Scanned>,
}

/// Which rows of each partition a scan over a space returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every row.
    All,
    /// The first row of each partition, whatever else it holds: the cost is per partition, not per row.
    First,
}

/// A page of a scan over a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacePage {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// Partition key and row, in order.
    pub rows: Vec<(Bytes, Row)>,
    /// Where to go on: the partition key and row key of the next row, if any remains.
    pub next: Option<(Bytes, Bytes)>,
}

/// What a visit to the rows of a space came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// Where to go on: the partition key and row key of the first row that was not taken, if any remains.
    pub next: Option<(Bytes, Bytes)>,
}

/// Is given rows, each with its partition key, and breaks off before one that it does not take.
pub type Visitor<'a> = dyn FnMut(Bytes, Row) -> ControlFlow<()> + Send + 'a;

/// A row's place among all rows of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPosition {
    /// The space.
    pub space: SpaceId,
    /// The partition key.
    pub partition: Bytes,
    /// The row key.
    pub key: Bytes,
}

/// Receives rows of all spaces, each with its space and partition key, and breaks off before one that it does not take.
pub type AllVisitor<'a> = dyn FnMut(SpaceId, Bytes, Row) -> ControlFlow<()> + Send + 'a;

/// How many rows a store has added and removed in its life. Both only grow, and are durable with the commits they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that were written where none was.
    pub added: u64,
    /// Rows that were removed.
    pub removed: u64,
    /// Whether every row was counted. False for a store that an earlier version made, which did not count.
    pub complete: bool,
}

/// An engine: rows in partitions, committed atomically.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads rows and ranges of one partition in one snapshot that holds every commit acknowledged before the call.
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError>;

    /// Reads rows over the partitions of a space from `(partition, row key)` on and below `end`, another such pair, in
    /// order, one snapshot a call. A page ends early, with `next`, when it holds [`MAX_SCAN_BYTES`].
    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError>;

    /// Shows rows to a visitor as [`Store::scan_space`] would return them, one snapshot a call, until it breaks off or
    /// [`MAX_SCAN_ROWS`] or [`MAX_SCAN_BYTES`] were shown: for those who do not know how many they need.
    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError>;

    /// Shows the rows that [`Store::visit_space`] would show, by the [run](crate::Run): an engine may keep runs in memory,
    /// with what visitors noted on them, and shows one again as long as no row in it has changed. A visit goes on until
    /// the visitor breaks off before a row, or the runs shown [cost](crate::Stretch::cost) [`MAX_SCAN_ROWS`] or
    /// [`MAX_SCAN_BYTES`], which the last one may exceed. For those who look at many rows again and again.
    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError>;

    /// Shows one page of all rows of all spaces, in order of space, partition and key, from a place on: at most
    /// [`MAX_SCAN_ROWS`] rows and about [`MAX_SCAN_BYTES`]. Returns the place of the first row that was not taken, if any
    /// remains. Every page shows the state of its own moment, so a row that changes place during a walk of many pages may
    /// be shown twice or not at all. A row that stays in its place is shown exactly once.
    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError>;

    /// Returns when every commit that was submitted before is decided, including those whose callers have gone away.
    async fn settled(&self) -> Result<(), CommitError>;

    /// Rows added and removed so far, as of the last acknowledged commit; `None` if the engine does not count them.
    fn row_counts(&self) -> Option<RowCounts>;

    /// Commits. When it returns `Ok` the change is durable and visible to every later read.
    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError>;

    /// A space's header.
    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError>;

    /// Replaces a space's header if it still is `from`. `None` opens a space that never was.
    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError>;

    /// Removes up to `limit` rows of a closed space from `(partition, row key)` on, and says where to go on; `None` if
    /// no row is left from there on. Once none is left at all, the space's header goes, too. Run by the sweeper, which
    /// goes on where it was: what it has removed may be dear to read past.
    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError>;

    /// An id for a new space, never given out before.
    async fn new_space(&self) -> Result<SpaceId, CommitError>;

    /// A fresh stamp: above every stamp given out before, on this engine, ever.
    fn stamp(&self) -> Stamp;

    /// The engine's clock: never backwards, also over restarts.
    fn now(&self) -> Timestamp;
}
