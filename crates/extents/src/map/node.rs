//! The stored form of map entries, and of nodes, which are lists of entries.
//!
//! A node is the payload of an extent: format version (1 byte), level of its entries (1 byte), their number
//! (u16), 4 zero bytes, the entries. An entry is a tag and its fields, little-endian. A hole (0) and a
//! cleared hole (3) have a length (u64). Data (1) has the extent's reference, an offset and a length within
//! it (u32 each). A subtree (2) has its node's reference, its length, and how much of that is not in holes
//! (u64 each).
//!
//! Entries of level 0 are holes and data; entries of higher levels are subtrees. Decoding accepts any bytes
//! and never panics. A decoded list has no empty entry, no part outside its extent and no sum that overflows.

use bytes::{Buf, BufMut, Bytes};

use super::tree::{Expected, FANOUT, Link, List, MAX_LEVEL, MapEntry, Subtree, allocated, total};
use super::{MAX_CONTENT_BYTES, Piece};
use crate::extent::{Error, ExtentRef};

const VERSION: u8 = 1;
const HEADER: usize = 8;
const HOLE: u8 = 0;
const DATA: u8 = 1;
const SUB: u8 = 2;
const CLEARED: u8 = 3;

/// Maximum size of an encoded entry in bytes.
pub(crate) const MAX_ENTRY_BYTES: usize = 1 + ExtentRef::ENCODED + 8 + 8;

/// Encodes stored entries. Skips inline pieces and fresh nodes, which a stored map never has.
pub(crate) fn encode_entries(entries: &[MapEntry], out: &mut Vec<u8>) {
    for entry in entries {
        match entry {
            MapEntry::Piece(Piece::Hole(len)) => {
                out.put_u8(HOLE);
                out.put_u64_le(*len);
            }
            MapEntry::Piece(Piece::Cleared(len)) => {
                out.put_u8(CLEARED);
                out.put_u64_le(*len);
            }
            MapEntry::Piece(Piece::Data { extent, offset, len }) => {
                out.put_u8(DATA);
                out.put_slice(&extent.encode());
                out.put_u32_le(*offset);
                out.put_u32_le(*len);
            }
            MapEntry::Subtree(Subtree { len, allocated, link: Link::Stored(node) }) => {
                out.put_u8(SUB);
                out.put_slice(&node.encode());
                out.put_u64_le(*len);
                out.put_u64_le(*allocated);
            }
            MapEntry::Piece(Piece::Inline(_)) | MapEntry::Subtree(Subtree { link: Link::Fresh(_), .. }) => {
                debug_assert!(false, "inline bytes and fresh nodes must be stored first");
            }
        }
    }
}

/// Decodes exactly `count` entries of a level from all of `bytes`.
pub(crate) fn decode_entries(mut bytes: &[u8], level: u8, count: usize) -> Option<Vec<MapEntry>> {
    if count > FANOUT || level > MAX_LEVEL {
        return None;
    }
    let mut entries = Vec::with_capacity(count);
    let mut length = 0u64;
    for _ in 0..count {
        let entry = decode_entry(&mut bytes, level)?;
        length = length.checked_add(entry.len()).filter(|sum| *sum <= MAX_CONTENT_BYTES)?;
        if entry.len() == 0 {
            return None;
        }
        entries.push(entry);
    }
    bytes.is_empty().then_some(entries)
}

fn decode_entry(bytes: &mut &[u8], level: u8) -> Option<MapEntry> {
    match (bytes.try_get_u8().ok()?, level) {
        (HOLE, 0) => Some(MapEntry::Piece(Piece::Hole(bytes.try_get_u64_le().ok()?))),
        (CLEARED, 0) => Some(MapEntry::Piece(Piece::Cleared(bytes.try_get_u64_le().ok()?))),
        (DATA, 0) => {
            let extent = decode_ref(bytes)?;
            let (offset, len) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
            let end = offset.checked_add(len)?;
            (end <= extent.length).then_some(MapEntry::Piece(Piece::Data { extent, offset, len }))
        }
        (SUB, 1..) => {
            let link = Link::Stored(decode_ref(bytes)?);
            let (len, allocated) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
            (allocated <= len).then_some(MapEntry::Subtree(Subtree { len, allocated, link }))
        }
        _ => None,
    }
}

fn decode_ref(bytes: &mut &[u8]) -> Option<ExtentRef> {
    let (encoded, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    ExtentRef::decode(encoded)
}

/// Encodes a node whose entries are of `level`.
pub(crate) fn encode(level: u8, entries: &[MapEntry]) -> Bytes {
    debug_assert!(entries.len() <= FANOUT);
    let mut out = Vec::with_capacity(HEADER + entries.len() * MAX_ENTRY_BYTES);
    out.put_u8(VERSION);
    out.put_u8(level);
    out.put_u16_le(entries.len() as u16);
    out.put_u32_le(0);
    encode_entries(entries, &mut out);
    out.into()
}

/// Decodes the payload of a node. Returns `None` if it is invalid.
pub(crate) fn decode(mut payload: &[u8]) -> Option<(u8, Vec<MapEntry>)> {
    if payload.len() < HEADER || payload.get_u8() != VERSION {
        return None;
    }
    let (level, count) = (payload.get_u8(), payload.get_u16_le());
    payload.advance(4);
    Some((level, decode_entries(payload, level, count.into())?))
}

/// Decodes the payload of a node and checks it against what its parent recorded.
pub(crate) fn decode_expected(payload: &[u8], node: &ExtentRef, expected: Expected) -> Result<List, Error> {
    decode(payload)
        .filter(|(level, entries)| {
            expected == Expected { level: *level, len: total(entries), allocated: allocated(entries) }
        })
        .map(|(_, entries)| entries.into())
        .ok_or_else(|| Error::Damaged(format!("{:?} is not the map node it should be", node.id)))
}
