//! Content maps: the bytes that a blob or a file consists of.
//!
//! A [`Content`] is a value: a length, and pieces in order. A piece is a hole (reads as zeros and counts as
//! not allocated), a range of an extent, or a few inline bytes. A record stores [`Content::encode`]: at most
//! [`ROOT_ENTRIES`] pieces, and bytes at the end that are too few for an extent. If there are more pieces,
//! the root refers to nodes. Nodes are extents, and form a B-tree keyed by relative lengths.
//!
//! Nodes are immutable. [`Edit`](edit::Edit) changes a map by path copying and shares all other nodes. So a
//! snapshot, a copy or a block list costs no data, and changing one page of a TiB writes one node per level.
//! Positions are relative within a node, so any subtree can be used at any offset of any content.
//!
//! - [`edit`] changes maps; [`read`] streams bytes, allocated ranges and pieces; [`diff`] compares two
//!   versions
//! - [`tree`] is the pure algorithm; [`node`] the stored form of entries; [`upload`] turns a stream into
//!   content

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
use tree::{List, PieceTree, total};

/// Content of at most this many bytes stays in the record, and so do at most this many bytes at the end of
/// longer content. Measured in `docs/decisions/0005-inline-threshold.md`.
pub const INLINE_BYTES: usize = 8 << 10;
/// Maximum number of map entries in a record.
pub const ROOT_ENTRIES: usize = 64;
/// Maximum length of content: far above the protocol's largest blob, far below where sums of lengths
/// overflow.
pub const MAX_CONTENT_BYTES: u64 = 1 << 56;

const VERSION: u8 = 1;
const HEADER: usize = 8;

/// A range of content with one kind of backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A hole of this length that was never written to. Reads as zeros.
    Hole(u64),
    /// A hole of this length that was cleared. Later [changes](diff::Diff) report it.
    Cleared(u64),
    /// A part of an extent.
    Data {
        /// The extent that holds the bytes.
        extent: ExtentRef,
        /// Start of the bytes in the extent.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// Bytes in the record itself.
    Inline(Bytes),
}

impl Piece {
    /// Returns the length in bytes. Never 0 within content.
    pub fn len(&self) -> u64 {
        match self {
            Self::Hole(len) | Self::Cleared(len) => *len,
            Self::Data { len, .. } => u64::from(*len),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part of the piece from `from` to `to`; `from ≤ to ≤ len`.
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

/// The bytes of a blob, a block or a file, by reference. Cheap to clone; immutable.
///
/// Its extents stay readable while a record refers to it or while it is [held](crate::Pin::hold), and no
/// longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    level: u8,
    root: List,
    tail: Bytes,
    length: u64,
}

impl Content {
    /// Returns content without bytes.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns a hole of `length` bytes, at most [`MAX_CONTENT_BYTES`].
    pub fn hole(length: u64) -> Self {
        Self::new(PieceTree::leaf([Piece::Hole(length.min(MAX_CONTENT_BYTES))]), Bytes::new())
    }

    /// Returns content that a record holds itself.
    ///
    /// Accepts more than [`INLINE_BYTES`], so that such bytes can be passed to [`Edit`](crate::Edit), which
    /// moves them to an extent. Do not store such content in a record.
    pub fn inline(bytes: impl Into<Bytes>) -> Self {
        Self::new(PieceTree::default(), bytes.into())
    }

    /// Returns content that consists of one whole extent.
    pub fn extent(extent: ExtentRef) -> Self {
        Self::new(PieceTree::leaf([Piece::Data { extent, offset: 0, len: extent.length }]), Bytes::new())
    }

    /// Creates content from a tree in its stored form: no fresh nodes, no inline bytes, at most
    /// [`ROOT_ENTRIES`].
    pub(crate) fn new(tree: PieceTree, tail: Bytes) -> Self {
        let length = total(&tree.list) + tail.len() as u64;
        Self { level: tree.level, root: tree.list, tail, length }
    }

    /// Returns the length in bytes, including holes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the content has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of bytes in extents, which are neither in holes nor in the record. Removing the
    /// record turns them into garbage, unless another record shares them.
    pub fn extent_bytes(&self) -> u64 {
        tree::allocated(&self.root)
    }

    /// Returns all bytes if the record holds them itself, so that nothing has to be read.
    pub fn as_inline(&self) -> Option<&Bytes> {
        self.root.is_empty().then_some(&self.tail)
    }

    pub(crate) fn tree(&self) -> PieceTree {
        PieceTree { level: self.level, list: self.root.clone() }
    }

    pub(crate) fn tail(&self) -> &Bytes {
        &self.tail
    }

    /// Encodes the content for a record: a format version, the root's entries, the bytes at the end.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(HEADER + self.root.len() * node::MAX_ENTRY_BYTES + self.tail.len());
        out.put_u8(VERSION);
        out.put_u8(self.level);
        out.put_u16_le(self.root.len() as u16);
        out.put_u32_le(self.tail.len() as u32);
        encode_entries(&self.root, out);
        out.put_slice(&self.tail);
    }

    /// Decodes all of `bytes`. Returns `None` unless [`encode`](Self::encode) wrote them.
    pub fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < HEADER || bytes.get_u8() != VERSION {
            return None;
        }
        let (level, count, tail) = (bytes.get_u8(), bytes.get_u16_le(), bytes.get_u32_le() as usize);
        let entries = bytes.len().checked_sub(tail)?;
        let tail = bytes.split_off(entries);
        let root = decode_entries(&bytes, level, count.into())?;
        let tree = PieceTree { level, list: root.into() };
        (level == 0 || !tree.list.is_empty()).then(|| Self::new(tree, tail))
    }
}
