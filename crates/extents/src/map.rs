//! Content maps: which bytes a blob or a file consists of.
//!
//! A [`Content`] is a value: a length and the pieces that make it up, in order. A piece is a hole (reads as zeros,
//! counts as not allocated), a run of an extent, or a few bytes kept right here. What a record stores is
//! [`Content::encode`]: bytes at the end that are not worth an extent, and at most [`ROOT_ENTRIES`] pieces. With more
//! pieces than that the root refers to nodes, extents themselves, which form a B-tree keyed by relative lengths.
//!
//! Nodes are immutable. [`Edit`](edit::Edit) changes a map by path copying and shares all the rest, so a snapshot, a
//! copy or a block list costs no data, and changing one page of a TiB writes one node a level. Positions are relative
//! within a node, so any subtree can stand at any offset of any content.
//!
//! - [`edit`] changes maps; [`read`] streams bytes, allocated ranges and pieces; [`diff`] compares two versions
//! - [`tree`] is the algorithm, pure; [`node`] the stored form of entries; [`upload`] makes content of a stream

pub(crate) mod cursor;
pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod node;
pub(crate) mod read;
pub(crate) mod tree;
pub(crate) mod upload;

use bytes::{Buf, BufMut, Bytes};

use crate::extent::ExtentRef;
use node::{decode_entries, encode_entries};
use tree::{List, Tree, total};

/// Content up to this many bytes, and up to so many bytes at the end of longer content, stay in the record.
/// Measured in `docs/decisions/0005-inline-threshold.md`.
pub const INLINE_BYTES: usize = 8 << 10;
/// Entries that a record holds itself.
pub const ROOT_ENTRIES: usize = 64;
/// Bytes that one content can hold: far above the protocol's largest blob, far below where sums of lengths overflow.
pub const MAX_CONTENT_BYTES: u64 = 1 << 56;

const VERSION: u8 = 1;
const HEADER: usize = 8;

/// A run of bytes within content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// That many zeros that nothing was written to.
    Hole(u64),
    /// A hole where something was cleared, which later [changes](Diff) tell.
    Cleared(u64),
    /// A part of an extent.
    Data {
        /// The extent.
        extent: ExtentRef,
        /// Where the part begins in it.
        offset: u32,
        /// How long the part is.
        len: u32,
    },
    /// Bytes that the record itself holds.
    Inline(Bytes),
}

impl Piece {
    /// The bytes it stands for. Never 0 within content.
    pub fn len(&self) -> u64 {
        match self {
            Self::Hole(len) | Self::Cleared(len) => *len,
            Self::Data { len, .. } => u64::from(*len),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it stands for no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same piece without its first and last bytes; `from ≤ to ≤ len`.
    pub(crate) fn part(&self, from: u64, to: u64) -> Self {
        debug_assert!(from <= to && to <= self.len());
        match self {
            Self::Hole(_) => Self::Hole(to - from),
            Self::Cleared(_) => Self::Cleared(to - from),
            // Both bounds are at most `len`, a u32.
            Self::Data { extent, offset, .. } => {
                Self::Data { extent: *extent, offset: offset + from as u32, len: (to - from) as u32 }
            }
            Self::Inline(bytes) => Self::Inline(bytes.slice(from as usize..to as usize)),
        }
    }
}

/// What a blob, a block or a file consists of. Cheap to clone; never changes.
///
/// Its extents stay readable while a record refers to it, or while it is [held](crate::Pin::hold), not longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    level: u8,
    root: List,
    tail: Bytes,
    length: u64,
}

impl Content {
    /// No bytes.
    pub fn empty() -> Self {
        Self::default()
    }

    /// `length` bytes that nothing was written to; at most [`MAX_CONTENT_BYTES`].
    pub fn hole(length: u64) -> Self {
        Self::new(Tree::leaf([Piece::Hole(length.min(MAX_CONTENT_BYTES))]), Bytes::new())
    }

    /// Bytes that the record holds itself.
    ///
    /// More than [`INLINE_BYTES`] are accepted, so that they can be written with [`Edit`](crate::Edit), which finds
    /// them a place; a record is not the place for them.
    pub fn inline(bytes: impl Into<Bytes>) -> Self {
        Self::new(Tree::default(), bytes.into())
    }

    /// All of one extent.
    pub fn extent(extent: ExtentRef) -> Self {
        Self::new(Tree::leaf([Piece::Data { extent, offset: 0, len: extent.length }]), Bytes::new())
    }

    /// The tree must be stored: no fresh node in it, no inline bytes, at most [`ROOT_ENTRIES`].
    pub(crate) fn new(tree: Tree, tail: Bytes) -> Self {
        let length = total(&tree.list) + tail.len() as u64;
        Self { level: tree.level, root: tree.list, tail, length }
    }

    /// Its bytes, holes included.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its bytes that are not in holes.
    pub fn allocated(&self) -> u64 {
        tree::allocated(&self.root) + self.tail.len() as u64
    }

    /// All its bytes, if the record holds them itself: nothing needs to be read then.
    pub fn as_inline(&self) -> Option<&Bytes> {
        self.root.is_empty().then_some(&self.tail)
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree { level: self.level, list: self.root.clone() }
    }

    pub(crate) fn tail(&self) -> &Bytes {
        &self.tail
    }

    /// The form that a record stores: a format version, the root's entries, the bytes at the end.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(HEADER + self.root.len() * node::MAX_ENTRY_BYTES + self.tail.len());
        out.put_u8(VERSION);
        out.put_u8(self.level);
        out.put_u16_le(self.root.len() as u16);
        out.put_u32_le(self.tail.len() as u32);
        encode_entries(&self.root, out);
        out.put_slice(&self.tail);
    }

    /// Reads what [`encode`](Self::encode) wrote, all of `bytes`; `None` if it is not that.
    pub fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < HEADER || bytes.get_u8() != VERSION {
            return None;
        }
        let (level, count, tail) = (bytes.get_u8(), bytes.get_u16_le(), bytes.get_u32_le() as usize);
        let entries = bytes.len().checked_sub(tail)?;
        let tail = bytes.split_off(entries);
        let root = decode_entries(&bytes, level, count.into())?;
        let tree = Tree { level, list: root.into() };
        (level == 0 || !tree.list.is_empty()).then(|| Self::new(tree, tail))
    }
}
