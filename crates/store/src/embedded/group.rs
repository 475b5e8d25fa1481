//! A group of commits: its changes to the published state, and its encoding in the log.
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

use super::all_rows::CountChange;
use super::rows::Stored;
use crate::log::FRAME_HEADER_BYTES;
use crate::{ReadError, SpaceHeader, SpaceId, Token};

const REMOVED: u32 = u32::MAX;

/// Changed rows by full key. `None` means removed.
pub(crate) type Changes = BTreeMap<Bytes, Option<Stored>>;

/// One change of one row, for the log and the tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowOperation {
    pub(crate) seqno: SeqNo,
    pub(crate) key: Bytes,
    /// The stored value with its stamp, or `None` for a removal.
    pub(crate) value: Option<Bytes>,
}

/// The accepted commits of a group, so far.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) operations: Vec<RowOperation>,
    /// Bytes of the operations in the log.
    pub(crate) bytes: usize,
    pub(crate) changes: Changes,
    pub(crate) headers: HashMap<SpaceId, Option<SpaceHeader>>,
    /// Whether a header is written or removed, not only looked up.
    pub(crate) changes_headers: bool,
    pub(crate) ceiling: Option<Timestamp>,
    /// Rows that the group adds and removes.
    pub(super) count_change: CountChange,
}

impl Group {
    /// Adds the write of a row.
    pub(crate) fn put(&mut self, seqno: SeqNo, key: Bytes, stamp: Stamp, value: &[u8]) {
        let encoded = Stored::encode(stamp, value);
        let stored = Stored { token: Token(stamp), value: encoded.slice(8..) };
        self.add(RowOperation { seqno, key: key.clone(), value: Some(encoded) });
        self.changes.insert(key, Some(stored));
    }

    /// Adds the removal of a row.
    pub(crate) fn remove(&mut self, seqno: SeqNo, key: Bytes) {
        self.add(RowOperation { seqno, key: key.clone(), value: None });
        self.changes.insert(key, None);
    }

    fn add(&mut self, operation: RowOperation) {
        self.bytes += 16 + operation.key.len() + operation.value.as_ref().map_or(0, Bytes::len);
        self.operations.push(operation);
    }

    /// Returns the log's payload, after space for a frame header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut buffer = Vec::with_capacity(FRAME_HEADER_BYTES + self.bytes + 8);
        buffer.resize(FRAME_HEADER_BYTES, 0);
        for RowOperation { seqno, key, value } in &self.operations {
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

/// Decodes a log payload. Yields `None` for a malformed operation, which the frame's checksum rules out.
pub(crate) fn decode(mut payload: &[u8]) -> impl Iterator<Item = Option<RowOperation>> {
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
            Some(RowOperation { seqno, key, value })
        };
        let read = operation();
        if read.is_none() {
            payload = &[];
        }
        Some(read)
    })
}

/// Iterates over the tree's rows with changes applied, in order.
pub(crate) struct Merged<T: Iterator> {
    tree: Peekable<T>,
    changed: Peekable<std::collections::btree_map::IntoIter<Bytes, Option<Stored>>>,
}

impl<T: Iterator<Item = Result<(Bytes, Stored), ReadError>>> Merged<T> {
    pub(crate) fn new(tree: T, range: &Range<Bytes>, changes: &Changes) -> Self {
        let mut changed = Changes::new();
        if range.start < range.end {
            changed.extend(changes.range(range.clone()).map(|(k, v)| (k.clone(), v.clone())));
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
        fn merging_overlays_the_changes_on_the_tree(
            tree in prop::collection::btree_map(0u8..12, 0u64..9, 0..10),
            changes in prop::collection::btree_map(0u8..12, prop::option::of(10u64..19), 0..10),
            from in 0u8..12, to in 0u8..12,
        ) {
            let layer = |m: &BTreeMap<u8, Option<u64>>| -> Changes {
                m.iter().map(|(k, v)| (key(*k), v.map(stored))).collect()
            };
            let range = key(from)..key(to);
            let rows = tree.iter().map(|(k, v)| (key(*k), stored(*v))).filter(|(k, _)| range.contains(k));
            let merged: Vec<_> =
                Merged::new(rows.map(Ok), &range, &layer(&changes)).map(Result::unwrap).collect();

            let mut model: BTreeMap<u8, Option<u64>> = tree.into_iter().map(|(k, v)| (k, Some(v))).collect();
            model.extend(changes);
            let expected: Vec<_> = model
                .into_iter()
                .filter_map(|(k, v)| Some((key(k), stored(v?))))
                .filter(|(k, _)| range.contains(k))
                .collect();
            prop_assert_eq!(merged, expected);
        }

        #[test]
        fn operations_decode_as_encoded(
            ops in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(any::<u8>(), 0..9), prop::option::of(prop::collection::vec(any::<u8>(), 0..9))),
                0..9),
        ) {
            let mut group = Group::default();
            for (seqno, key, value) in ops {
                let value = value.map(Bytes::from);
                group.operations.push(RowOperation { seqno, key: key.into(), value });
            }
            let encoded = group.encode();
            let read: Vec<_> = decode(&encoded[FRAME_HEADER_BYTES..]).map(Option::unwrap).collect();
            prop_assert_eq!(read, group.operations);
        }

        #[test]
        fn decoding_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(decode(&bytes).count() <= bytes.len());
        }
    }
}
