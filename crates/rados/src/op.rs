//! Ops on one object: what they consist of, and what a read returns.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

/// A pool that the engine uses. Which one that is, and in which namespace, is a matter of configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Rows: objects with omap keys. Replicated.
    Meta,
    /// Content: objects with data. Replicated or erasure-coded.
    Data,
}

/// The name of an object within its pool and namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName(pub String);

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a stored omap value must compare with a given one. The stored value is on the left.
///
/// An absent key compares like an empty value. Bytes compare as signed characters on some machines, so an
/// ordered comparison must use only bytes below 0x80.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OmapComparison {
    /// The values are equal.
    Equal,
    /// The stored value is greater.
    Greater,
    /// The stored value is less.
    Less,
}

/// One step of a [`WriteOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// Creates the object, which must not exist.
    CreateExclusive,
    /// The object must exist. Without this or [`WriteStep::CreateExclusive`], a change creates the object.
    AssertExists,
    /// The value of an omap key must compare as given. Comes before all changes.
    Compare {
        /// The key.
        key: Bytes,
        /// How the stored value must compare.
        comparison: OmapComparison,
        /// With what.
        value: Bytes,
    },
    /// Removes the omap keys in a range. **Does not see keys that earlier steps of the same op set**, so
    /// ranges come before removals, and removals before sets.
    RemoveOmapRange(Range<Bytes>),
    /// Removes omap keys.
    RemoveOmap(Vec<Bytes>),
    /// Sets omap keys.
    SetOmap(Vec<(Bytes, Bytes)>),
    /// Writes bytes at an offset.
    WriteAt(u64, Bytes),
    /// Cuts or extends the object's data to this many bytes.
    Truncate(u64),
    /// Removes the object.
    Remove,
}

/// An atomic change of one object.
///
/// Omap keys contain no zero byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOp {
    /// The steps, in the order in which the cluster performs them.
    pub steps: Vec<WriteStep>,
    /// Permits growth in a pool that is full. For ops that free space, or without which none can be freed.
    pub may_exceed_full: bool,
}

impl WriteOp {
    /// Makes an op of steps.
    pub fn new(steps: impl IntoIterator<Item = WriteStep>) -> Self {
        Self { steps: steps.into_iter().collect(), may_exceed_full: false }
    }

    /// Permits growth in a pool that is full.
    #[must_use]
    pub fn may_exceed_full(self) -> Self {
        Self { may_exceed_full: true, ..self }
    }
}

/// A range of omap keys to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmapRange {
    /// Keys from this one on, included.
    pub from: Bytes,
    /// Keys before this one.
    pub end: Bytes,
    /// Maximum number of keys. The cluster may return fewer, and says whether more follow.
    pub limit: usize,
}

/// One step of a [`ReadOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// Reads the values of omap keys. Absent keys are left out.
    Omap(Vec<Bytes>),
    /// Reads a range of omap keys, in the order of the keys' bytes.
    OmapRange(OmapRange),
    /// Reads data at an offset. Returns fewer bytes at the end of the object.
    Data(Range<u64>),
    /// Returns the length of the object's data.
    Length,
}

/// A read of one object, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOp {
    /// The steps.
    pub steps: Vec<ReadStep>,
}

impl ReadOp {
    /// Makes a read of steps.
    pub fn new(steps: impl IntoIterator<Item = ReadStep>) -> Self {
        Self { steps: steps.into_iter().collect() }
    }
}

/// Part of a range of omap keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapPage {
    /// Keys and values, in the order of the keys.
    pub entries: Vec<(Bytes, Bytes)>,
    /// Whether keys of the range follow the last entry.
    pub more: bool,
}

/// The result of one step of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadValue {
    /// Of [`ReadStep::Omap`]: the keys that exist, in the order of the keys.
    Omap(Vec<(Bytes, Bytes)>),
    /// Of [`ReadStep::OmapRange`].
    OmapRange(OmapPage),
    /// Of [`ReadStep::Data`].
    Data(Bytes),
    /// Of [`ReadStep::Length`].
    Length(u64),
}

/// The result of a read: one value for each step, in order.
pub type ReadReply = Vec<ReadValue>;
