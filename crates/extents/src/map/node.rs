//! The stored form of map entries, and of nodes, which hold nothing else.
//!
//! A node is the payload of an extent: format version (1), level of its entries, their number (u16), 4 bytes of zeros,
//! the entries. An entry is a tag and, little-endian: a hole (0), or one that was cleared (3), its length (u64); data (1)
//! the extent's reference, offset and length within it (u32 each); a subtree (2) its node's reference, the length it
//! stands for, and how much of that is not in holes (u64 each).
//! Entries of level 0 are holes and data, those of higher levels are subtrees. Decoding takes any bytes and never
//! panics; what it accepts has no empty entry, no part outside its extent and no sum that overflows.

use bytes::{Buf, BufMut, Bytes};

use super::tree::{Entry, Expected, FANOUT, Link, List, MAX_LEVEL, Sub, allocated, total};
use super::{MAX_CONTENT_BYTES, Piece};
use crate::extent::{Error, ExtentRef};

const VERSION: u8 = 1;
const HEADER: usize = 8;
const HOLE: u8 = 0;
const DATA: u8 = 1;
const SUB: u8 = 2;
const CLEARED: u8 = 3;

/// Bytes that an entry takes at most.
pub(crate) const MAX_ENTRY_BYTES: usize = 1 + ExtentRef::ENCODED + 8 + 8;

/// Writes entries that are all stored; bytes that are not (they never are in a stored map) are left out.
pub(crate) fn encode_entries(entries: &[Entry], out: &mut Vec<u8>) {
    for entry in entries {
        match entry {
            Entry::Piece(Piece::Hole(len)) => {
                out.put_u8(HOLE);
                out.put_u64_le(*len);
            }
            Entry::Piece(Piece::Cleared(len)) => {
                out.put_u8(CLEARED);
                out.put_u64_le(*len);
            }
            Entry::Piece(Piece::Data { extent, offset, len }) => {
                out.put_u8(DATA);
                out.put_slice(&extent.encode());
                out.put_u32_le(*offset);
                out.put_u32_le(*len);
            }
            Entry::Sub(Sub { len, allocated, link: Link::Stored(node) }) => {
                out.put_u8(SUB);
                out.put_slice(&node.encode());
                out.put_u64_le(*len);
                out.put_u64_le(*allocated);
            }
            Entry::Piece(Piece::Inline(_)) | Entry::Sub(Sub { link: Link::Fresh(_), .. }) => {
                debug_assert!(false, "stored before its parts were");
            }
        }
    }
}

/// Reads exactly `count` entries of a level out of all of `bytes`.
pub(crate) fn decode_entries(mut bytes: &[u8], level: u8, count: usize) -> Option<Vec<Entry>> {
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

fn decode_entry(bytes: &mut &[u8], level: u8) -> Option<Entry> {
    match (bytes.try_get_u8().ok()?, level) {
        (HOLE, 0) => Some(Entry::Piece(Piece::Hole(bytes.try_get_u64_le().ok()?))),
        (CLEARED, 0) => Some(Entry::Piece(Piece::Cleared(bytes.try_get_u64_le().ok()?))),
        (DATA, 0) => {
            let extent = decode_ref(bytes)?;
            let (offset, len) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
            let end = offset.checked_add(len)?;
            (end <= extent.length).then_some(Entry::Piece(Piece::Data { extent, offset, len }))
        }
        (SUB, 1..) => {
            let link = Link::Stored(decode_ref(bytes)?);
            let (len, allocated) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
            (allocated <= len).then_some(Entry::Sub(Sub { len, allocated, link }))
        }
        _ => None,
    }
}

fn decode_ref(bytes: &mut &[u8]) -> Option<ExtentRef> {
    let (encoded, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    ExtentRef::decode(encoded)
}

/// The payload of a node whose entries are of `level`.
pub(crate) fn encode(level: u8, entries: &[Entry]) -> Bytes {
    debug_assert!(entries.len() <= FANOUT);
    let mut out = Vec::with_capacity(HEADER + entries.len() * MAX_ENTRY_BYTES);
    out.put_u8(VERSION);
    out.put_u8(level);
    out.put_u16_le(entries.len() as u16);
    out.put_u32_le(0);
    encode_entries(entries, &mut out);
    out.into()
}

/// Reads the payload of a node; `None` if it is not one.
pub(crate) fn decode(mut payload: &[u8]) -> Option<(u8, Vec<Entry>)> {
    if payload.len() < HEADER || payload.get_u8() != VERSION {
        return None;
    }
    let (level, count) = (payload.get_u8(), payload.get_u16_le());
    payload.advance(4);
    Some((level, decode_entries(payload, level, count.into())?))
}

/// Reads the payload of a node of which it is known what it must hold.
pub(crate) fn decode_expected(payload: &[u8], node: &ExtentRef, expected: Expected) -> Result<List, Error> {
    decode(payload)
        .filter(|(level, entries)| {
            expected == Expected { level: *level, len: total(entries), allocated: allocated(entries) }
        })
        .map(|(_, entries)| entries.into())
        .ok_or_else(|| Error::Damaged(format!("{:?} is not the map node it should be", node.id)))
}
