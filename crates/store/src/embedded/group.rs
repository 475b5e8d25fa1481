//! A group of commits: what they change above the published state, and how they are written to the log.
//!
//! ```text
//! payload   = operation*
//! operation = seqno:u64  key-length:u32  value-length:u32 (all ones: removed)  key  value
//! ```

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lsm_tree::SeqNo;

use super::everything::CountChange;
use super::rows::Stored;
use crate::log::FRAME_HEADER_BYTES;
use crate::{ReadError, SpaceHeader, SpaceId, Token};

const REMOVED: u32 = u32::MAX;

/// What changed, by full key. `None`: removed.
pub(crate) type Changes = BTreeMap<Bytes, Option<Stored>>;

/// One change of one row, as the log and the tree take it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) seqno: SeqNo,
    pub(crate) key: Bytes,
    /// The stored value with its stamp; `None`: removed.
    pub(crate) value: Option<Bytes>,
}

/// The commits of a group that held so far.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) operations: Vec<Operation>,
    /// Of the operations in the log.
    pub(crate) bytes: usize,
    pub(crate) changes: Changes,
    pub(crate) headers: HashMap<SpaceId, Option<SpaceHeader>>,
    /// A header is written or removed, not only looked up.
    pub(crate) changes_headers: bool,
    pub(crate) ceiling: Option<Timestamp>,
    /// Rows that the group adds and removes.
    pub(super) count_change: CountChange,
}

impl Group {
    /// Adds a row to write.
    pub(crate) fn put(&mut self, seqno: SeqNo, key: Bytes, stamp: Stamp, value: &[u8]) {
        let encoded = Stored::encode(stamp, value);
        let stored = Stored { token: Token(stamp), value: encoded.slice(8..) };
        self.add(Operation { seqno, key: key.clone(), value: Some(encoded) });
        self.changes.insert(key, Some(stored));
    }

    /// Adds a row to remove.
    pub(crate) fn remove(&mut self, seqno: SeqNo, key: Bytes) {
        self.add(Operation { seqno, key: key.clone(), value: None });
        self.changes.insert(key, None);
    }

    fn add(&mut self, operation: Operation) {
        self.bytes += 16 + operation.key.len() + operation.value.as_ref().map_or(0, Bytes::len);
        self.operations.push(operation);
    }

    /// The log's payload, behind room for a frame header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(FRAME_HEADER_BYTES + self.bytes + 8);
        buffer.resize(FRAME_HEADER_BYTES, 0);
        for Operation { seqno, key, value } in &self.operations {
            buffer.extend_from_slice(&seqno.to_le_bytes());
            buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
            let length = value.as_ref().map_or(REMOVED, |v| v.len() as u32);
            buffer.extend_from_slice(&length.to_le_bytes());
            buffer.extend_from_slice(key);
            buffer.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        buffer
    }
}

/// Reads a log payload back. `None` in place of an operation that makes no sense, which a checksum rules out.
pub(crate) fn decode(mut payload: &[u8]) -> impl Iterator<Item = Option<Operation>> {
    std::iter::from_fn(move || {
        if payload.is_empty() {
            return None;
        }
        let mut take = |n: usize| payload.split_off(..n);
        let mut operation = || {
            let seqno = u64::from_le_bytes(take(8)?.try_into().ok()?);
            let key_length = u32::from_le_bytes(take(4)?.try_into().ok()?);
            let value_length = u32::from_le_bytes(take(4)?.try_into().ok()?);
            let key = Bytes::copy_from_slice(take(key_length as usize)?);
            let value = match value_length {
                REMOVED => None,
                n => Some(Bytes::copy_from_slice(take(n as usize)?)),
            };
            Some(Operation { seqno, key, value })
        };
        let read = operation();
        if read.is_none() {
            payload = &[];
        }
        Some(read)
    })
}

/// Rows in order: those of the tree with changes laid over them, later layers last.
pub(crate) struct Merged<T: Iterator> {
    tree: Peekable<T>,
    changed: Peekable<std::collections::btree_map::IntoIter<Bytes, Option<Stored>>>,
}

impl<T: Iterator<Item = Result<(Bytes, Stored), ReadError>>> Merged<T> {
    pub(crate) fn new(tree: T, range: &Range<Bytes>, layers: [&Changes; 2]) -> Self {
        let mut changed = Changes::new();
        if range.start < range.end {
            for layer in layers {
                changed.extend(layer.range(range.clone()).map(|(k, v)| (k.clone(), v.clone())));
            }
        }
        Self { tree: tree.peekable(), changed: changed.into_iter().peekable() }
    }
}

impl<T: Iterator<Item = Result<(Bytes, Stored), ReadError>>> Iterator for Merged<T> {
    type Item = Result<(Bytes, Stored), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match (self.tree.peek(), self.changed.peek()) {
                (Some(Err(_)), _) | (Some(_), None) => return self.tree.next(),
                (Some(Ok((tree, _))), Some((changed, _))) if tree < changed => return self.tree.next(),
                (tree, Some((changed, _))) => {
                    if matches!(tree, Some(Ok((key, _))) if key == changed) {
                        self.tree.next();
                    }
                    if let Some((key, Some(stored))) = self.changed.next() {
                        return Some(Ok((key, stored)));
                    }
                }
                (None, None) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(n: u64) -> Stored {
        Stored { token: Token(Stamp::from_ticks(n)), value: Bytes::new() }
    }

    fn key(n: u8) -> Bytes {
        vec![n].into()
    }

    proptest! {
        #[test]
        fn merging_is_laying_one_map_over_another(
            tree in prop::collection::btree_map(0u8..12, 0u64..9, 0..10),
            first in prop::collection::btree_map(0u8..12, prop::option::of(10u64..19), 0..10),
            second in prop::collection::btree_map(0u8..12, prop::option::of(20u64..29), 0..10),
            from in 0u8..12, to in 0u8..12,
        ) {
            let layer = |m: &BTreeMap<u8, Option<u64>>| -> Changes {
                m.iter().map(|(k, v)| (key(*k), v.map(stored))).collect()
            };
            let range = key(from)..key(to);
            let rows = tree.iter().map(|(k, v)| (key(*k), stored(*v))).filter(|(k, _)| range.contains(k));
            let merged: Vec<_> = Merged::new(rows.map(Ok), &range, [&layer(&first), &layer(&second)])
                .map(Result::unwrap)
                .collect();

            let mut model: BTreeMap<u8, Option<u64>> = tree.into_iter().map(|(k, v)| (k, Some(v))).collect();
            model.extend(first);
            model.extend(second);
            let expected: Vec<_> = model
                .into_iter()
                .filter_map(|(k, v)| Some((key(k), stored(v?))))
                .filter(|(k, _)| range.contains(k))
                .collect();
            prop_assert_eq!(merged, expected);
        }

        #[test]
        fn operations_are_read_back_as_written(
            ops in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(any::<u8>(), 0..9), prop::option::of(prop::collection::vec(any::<u8>(), 0..9))),
                0..9),
        ) {
            let mut group = Group::default();
            for (seqno, key, value) in ops {
                let value = value.map(Bytes::from);
                group.operations.push(Operation { seqno, key: key.into(), value });
            }
            let encoded = group.encode();
            let read: Vec<_> = decode(&encoded[FRAME_HEADER_BYTES..]).map(Option::unwrap).collect();
            prop_assert_eq!(read, group.operations);
        }

        #[test]
        fn decoding_anything_ends_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(decode(&bytes).count() <= bytes.len());
        }
    }
}
