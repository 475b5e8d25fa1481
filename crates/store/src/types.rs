//! The [`Store`] trait that services build on, and its values and limits.

use std::fmt;
use std::ops::{ControlFlow, Range};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use serde::{Deserialize, Serialize};

use crate::run::RunVisitor;

/// A generation of a container, table, queue or share, or the account directory. A closed space is never
/// reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpaceId(pub u64);

impl SpaceId {
    /// The space that always exists: accounts, and the names of all other spaces.
    pub const ROOT: Self = Self(0);
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "space {:016x}", self.0)
    }
}

/// One atomic scope within a space. Partitions are ordered by their keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition {
    /// The partition's space.
    pub space: SpaceId,
    /// The partition's key within the space.
    pub key: Bytes,
}

impl Partition {
    /// Makes the partition with this key.
    pub fn new(space: SpaceId, key: impl Into<Bytes>) -> Self {
        Self { space, key: key.into() }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} partition \"{}\"", self.space, self.key.escape_ascii())
    }
}

/// Identifies one version of one row: the stamp of the commit that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub Stamp);

/// Identifies the contents of a range of rows, which may be empty: a digest of keys and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RangeToken(pub u128);

/// One version of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The row's key within the partition.
    pub key: Bytes,
    /// The service's data.
    pub value: Bytes,
    /// Identifies this version of the row.
    pub token: Token,
}

impl Row {
    /// Returns the value of a counter, see [`Mutation::Add`].
    pub fn count(&self) -> i64 {
        self.value.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }
}

/// A requirement that must hold when a commit takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The row does not exist.
    Absent(Bytes),
    /// The row is the version that was read.
    Unchanged(Bytes, Token),
    /// No row in the range was added, changed or removed.
    RangeUnchanged(Range<Bytes>, RangeToken),
}

/// A change to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Writes a row.
    Put(Bytes, Bytes),
    /// Removes a row, if it exists.
    Delete(Bytes),
    /// Adds to a counter: a row of eight little-endian bytes, 0 if absent. Never conflicts with another
    /// `Add`.
    Add(Bytes, i64),
}

/// Maximum number of mutations in one commit.
pub const MAX_MUTATIONS: usize = 256;
/// Maximum bytes of keys and values in one commit.
pub const MAX_COMMIT_BYTES: usize = 8 << 20;
/// Maximum bytes of keys and values in a [bulk](Commit::bulk) commit.
pub const MAX_BULK_COMMIT_BYTES: usize = 128 << 20;
/// Maximum bytes in one value.
pub const MAX_VALUE_BYTES: usize = 2 << 20;
/// Maximum bytes in one row key, and in one partition key.
pub const MAX_KEY_BYTES: usize = 8 << 10;
/// Maximum number of rows that one scan returns.
pub const MAX_SCAN_ROWS: usize = 8192;
/// A scan over a space ends its page once it has this many bytes of keys and values. The last row may exceed
/// the limit.
pub const MAX_SCAN_BYTES: usize = 16 << 20;

/// One atomic change of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The stamp of this attempt. The commit conflicts unless the stamp is above those of all rows that it
    /// writes.
    pub stamp: Stamp,
    /// The epoch that the rule saw in the space's header.
    pub epoch: u64,
    /// The requirements that must hold when the commit takes effect.
    pub conditions: Vec<Condition>,
    /// The changes, in order.
    pub mutations: Vec<Mutation>,
    /// The decision depends on the time and holds only before this moment.
    pub valid_until: Option<Timestamp>,
    /// A time that has passed. Once this commit has taken effect, no commit to its partition with a deadline
    /// at or before this time can take effect any more, however long it was in flight.
    pub fence: Option<Timestamp>,
    /// Allows up to [`MAX_BULK_COMMIT_BYTES`].
    pub bulk: bool,
}

/// The header of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceHeader {
    /// Raised to fence writers off, for example by a share snapshot or a restore.
    pub epoch: u64,
    /// A closed space refuses every commit.
    pub open: bool,
}

/// Why a commit did not take effect, or may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Something that was read has changed, or a row's stamp is not below the commit's. Run the rule again.
    #[error("a row changed since it was read")]
    Conflict,
    /// The space is closed or has another epoch.
    #[error("the space is closed or has moved on")]
    Gone,
    /// `valid_until` has passed.
    #[error("the decision's deadline has passed")]
    Expired,
    /// The commit may or may not have taken effect. Never retry it blindly.
    #[error("the outcome of the commit is unknown")]
    Unknown,
    /// The store cannot take the commit now: too many commits wait, a flush fails, the clock's ceiling is not
    /// durable yet, descriptors or memory are short, or the transaction conflicted too often. The commit did
    /// not take effect.
    #[error("the store is busy")]
    Busy,
    /// The device has no space left. The commit did not take effect.
    #[error("the store is full")]
    Full,
    /// The commit exceeds a limit. It did not take effect.
    #[error("the commit is too large")]
    TooLarge,
    /// A row that the commit depends on cannot be read. The commit did not take effect.
    #[error("a row that the commit depends on cannot be read")]
    Unreadable,
    /// The store has stopped after a disk failure, or another front end has fenced this one. The commit did
    /// not take effect.
    #[error("the store has stopped")]
    Stopped,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Stored bytes are not those that were written.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The disk returned an error.
    #[error("I/O: {0}")]
    Io(String),
}

/// The rows and ranges to read of a partition, in one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Single rows.
    pub keys: Vec<Bytes>,
    /// Ranges, each with the maximum number of rows to return.
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

    /// Adds a range to read.
    #[must_use]
    pub fn and_range(mut self, range: Range<Bytes>, limit: usize) -> Self {
        self.ranges.push((range, limit));
        self
    }
}

/// The rows that were read of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The range that the rows and the token cover. Ends before the requested range if `more`.
    pub range: Range<Bytes>,
    /// The rows of the range, in order.
    pub rows: Vec<Row>,
    /// Identifies exactly these rows in this range.
    pub token: RangeToken,
    /// Whether more rows follow, from `range.end` on.
    pub more: bool,
}

/// Rows of one partition, read in one snapshot. In the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSet {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// One entry for each requested key.
    pub rows: Vec<Option<Row>>,
    /// One entry for each requested range.
    pub ranges: Vec<Scanned>,
}

/// The rows of each partition that a scan over a space returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every row.
    All,
    /// Only the first row of each partition. The cost depends on the number of partitions, not of rows.
    First,
}

/// A page of a scan over a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpacePage {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// Partition key and row, in order.
    pub rows: Vec<(Bytes, Row)>,
    /// The partition key and row key of the next row, if any remains.
    pub next: Option<(Bytes, Bytes)>,
}

/// The result of a visit to the rows of a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The space's header in the same snapshot; `None` if the space was never opened.
    pub space: Option<SpaceHeader>,
    /// The partition key and row key of the first row that was not visited, if any remains.
    pub next: Option<(Bytes, Bytes)>,
}

/// A callback that receives rows with their partition keys. Breaking ends the visit before that row.
pub type Visitor<'a> = dyn FnMut(Bytes, Row) -> ControlFlow<()> + Send + 'a;

/// The position of a row among all rows of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowPosition {
    /// The space.
    pub space: SpaceId,
    /// The partition key.
    pub partition: Bytes,
    /// The row key.
    pub key: Bytes,
}

impl RowPosition {
    /// Returns the position of the row with this key in a partition.
    pub fn new(partition: &Partition, key: &Bytes) -> Self {
        Self { space: partition.space, partition: partition.key.clone(), key: key.clone() }
    }
}

impl fmt::Display for RowPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (partition, key) = (self.partition.escape_ascii(), self.key.escape_ascii());
        write!(f, "{} partition \"{partition}\" row \"{key}\"", self.space)
    }
}

/// A callback that receives rows of all spaces with their space and partition key. Breaking ends the visit
/// before that row.
pub type AllVisitor<'a> = dyn FnMut(SpaceId, Bytes, Row) -> ControlFlow<()> + Send + 'a;

/// The numbers of rows that a store has added and removed since it was created. Both only grow, and are
/// durable with the commits that they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that were written where there was none.
    pub added: u64,
    /// Rows that were removed.
    pub removed: u64,
    /// Whether every row was counted. False for a store that was created by an earlier version, which did not
    /// count.
    pub complete: bool,
}

/// An engine that stores rows in partitions and commits changes atomically.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads rows and ranges of one partition in one snapshot, which includes every commit acknowledged
    /// before the call.
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError>;

    /// Reads rows of a space in order, from the `(partition, row key)` pair `from` up to the pair `end`
    /// (exclusive), in one snapshot for each call. A page ends early, with `next`, once it has
    /// [`MAX_SCAN_BYTES`].
    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError>;

    /// Passes the rows that [`Store::scan_space`] would return to a visitor, in one snapshot for each call.
    /// Ends when the visitor breaks, or after [`MAX_SCAN_ROWS`] or [`MAX_SCAN_BYTES`]. For callers that do
    /// not know how many rows they need.
    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError>;

    /// Passes the rows that [`Store::visit_space`] would visit in [runs](crate::Run). For callers that visit
    /// many rows repeatedly: an engine may keep runs in memory, with the memos of their visitors, and pass
    /// them again until a row in them changes. The visit ends when the visitor breaks before a row, or when
    /// the [cost](crate::Stretch::cost) of the runs reaches [`MAX_SCAN_ROWS`] or [`MAX_SCAN_BYTES`], which
    /// the last run may exceed.
    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError>;

    /// Passes one page of all rows of all spaces to a visitor, in the order of space, partition and key: at
    /// most [`MAX_SCAN_ROWS`] rows and about [`MAX_SCAN_BYTES`]. Returns the position of the first row that
    /// was not visited, if any remains. Every page is a snapshot of its own. A row that moves to another key
    /// during a walk of many pages may be visited twice or not at all; a row that keeps its key is visited
    /// exactly once.
    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError>;

    /// Waits until every commit submitted before this call is decided, including those whose callers were
    /// dropped.
    async fn wait_for_commits(&self) -> Result<(), CommitError>;

    /// Returns the rows added and removed so far, as of the last acknowledged commit, or `None` if the engine
    /// does not count them.
    fn row_counts(&self) -> Option<RowCounts>;

    /// Commits a change. Once it returns `Ok`, the change is durable and visible to every later read.
    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError>;

    /// Returns a space's header, or `None` if the space was never opened.
    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError>;

    /// Replaces a space's header if the current one is `from`. `None` opens a space that was never opened.
    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError>;

    /// Removes up to `limit` rows of a closed space, starting at a `(partition, row key)` pair. Returns the
    /// pair to continue at, or `None` if no row follows. Removes the space's header after the last row. The
    /// garbage sweep continues at the returned pair, because reading past many removed rows may be slow.
    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError>;

    /// Returns an id for a new space, which was never issued before.
    async fn new_space(&self) -> Result<SpaceId, CommitError>;

    /// Issues a stamp that is greater than all stamps that this engine ever issued.
    fn stamp(&self) -> Stamp;

    /// Returns the engine's time, which never runs backward, also across restarts.
    fn now(&self) -> Timestamp;
}
