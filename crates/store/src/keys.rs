//! The row keys of the embedded engine, encoded so that byte order is the order that [`crate::Store`]
//! promises.
//!
//! ```text
//! 00 "clock"                                   the clock's ceiling
//! 00 "rows"                                    numbers of rows added and removed
//! 01 space:u64                                 a space's header
//! 02 space:u64 escaped(partition) row-key      a row
//! ```
//!
//! Partition keys are escaped so that the rows of two partitions never mix: `00` becomes `00 FF`, and `00 01`
//! ends the key. Escaping keeps the order: a key that is a prefix of another sorts first.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{Partition, ReadError, RowPosition, SpaceId};

/// The key of the row that holds the clock's ceiling.
pub(crate) const CLOCK: &[u8] = b"\x00clock";

/// The key of the row that counts rows.
pub(crate) const COUNTS: &[u8] = b"\x00rows";

const HEADER: u8 = 1;
const ROW: u8 = 2;
const END_OF_PARTITION: [u8; 2] = [0, 1];
const ESCAPED_NUL: [u8; 2] = [0, 0xFF];

/// Returns the key of a space's header.
pub(crate) fn header(space: SpaceId) -> [u8; 9] {
    let mut key = [HEADER; 9];
    key[1..].copy_from_slice(&space.0.to_be_bytes());
    key
}

/// Returns the range of the keys of all headers.
pub(crate) fn headers() -> Range<Bytes> {
    Bytes::from_static(&[HEADER])..Bytes::from_static(&[ROW])
}

/// Returns the prefix of every row key of a partition.
pub(crate) fn prefix(partition: &Partition) -> Bytes {
    let mut key = BytesMut::with_capacity(16 + partition.key.len());
    put_partition(&mut key, partition.space, &partition.key);
    key.extend_from_slice(&END_OF_PARTITION);
    key.freeze()
}

/// Returns the full key of one row, from its partition's prefix.
pub(crate) fn row(prefix: &[u8], key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(prefix.len() + key.len());
    full.extend_from_slice(prefix);
    full.extend_from_slice(key);
    full.freeze()
}

/// Returns the range of full keys for a range of row keys, from its partition's prefix.
pub(crate) fn range(prefix: &[u8], range: &Range<Bytes>) -> Range<Bytes> {
    row(prefix, &range.start)..row(prefix, &range.end)
}

/// Returns the key at which a scan over a space starts, or before which it ends. The row need not exist.
pub(crate) fn space_from(space: SpaceId, partition: &[u8], key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(16 + partition.len() + key.len());
    put_partition(&mut full, space, partition);
    full.extend_from_slice(&END_OF_PARTITION);
    full.extend_from_slice(key);
    full.freeze()
}

/// Returns the end of a space, above every row in it.
pub(crate) fn space_end(space: SpaceId) -> Bytes {
    let mut full = BytesMut::new();
    match space.0.checked_add(1) {
        Some(next) => {
            full.put_u8(ROW);
            full.put_u64(next);
        }
        None => full.put_u8(ROW + 1),
    }
    full.freeze()
}

/// Returns the first key after all rows of the partition with this prefix.
pub(crate) fn after_partition(prefix: &[u8]) -> Bytes {
    let mut key = BytesMut::from(&prefix[..prefix.len() - END_OF_PARTITION.len()]);
    key.extend_from_slice(&[0, 2]);
    key.freeze()
}

/// Splits a full key into the length of its partition's prefix, the partition key and the row key.
pub(crate) fn split(full: &Bytes) -> Option<(usize, Bytes, Bytes)> {
    if full.first() != Some(&ROW) || full.len() < 11 {
        return None;
    }
    // Most partition keys have no zero byte and can be slices of the full key.
    let end = 9 + full[9..].iter().position(|byte| *byte == 0)?;
    if full[end..].starts_with(&END_OF_PARTITION) {
        let row = end + END_OF_PARTITION.len();
        return Some((row, full.slice(9..end), full.slice(row..)));
    }
    let mut partition = BytesMut::from(&full[9..end]);
    let mut at = end;
    loop {
        match (full.get(at)?, full.get(at + 1)) {
            (0, Some(0xFF)) => {
                partition.put_u8(0);
                at += 2;
            }
            (0, Some(1)) => return Some((at + 2, partition.freeze(), full.slice(at + 2..))),
            (0, _) => return None,
            (byte, _) => {
                partition.put_u8(*byte);
                at += 1;
            }
        }
    }
}

/// Returns the position of the row with a full key.
pub(crate) fn position(full: &Bytes) -> Option<RowPosition> {
    let (_, partition, key) = split(full)?;
    Some(RowPosition { space: space_of(full)?, partition, key })
}

/// Names the row with a full key, for errors.
pub(crate) fn describe(full: &[u8]) -> String {
    match (header_of(full), position(&Bytes::copy_from_slice(full))) {
        (Some(space), _) => format!("header of {space}"),
        (None, Some(position)) => position.to_string(),
        (None, None) => format!("key \"{}\"", full.escape_ascii()),
    }
}

/// Returns the error for a full key that cannot be split.
pub(crate) fn malformed(full: &[u8]) -> ReadError {
    ReadError::Damaged(format!("{}: the key of a row is malformed", describe(full)))
}

/// Returns the space of a full row key.
pub(crate) fn space_of(full: &[u8]) -> Option<SpaceId> {
    if full.first() != Some(&ROW) {
        return None;
    }
    Some(SpaceId(u64::from_be_bytes(full.get(1..9)?.try_into().ok()?)))
}

/// Returns the space whose header has this key.
pub(crate) fn header_of(full: &[u8]) -> Option<SpaceId> {
    match full.split_first() {
        Some((&HEADER, space)) => Some(SpaceId(u64::from_be_bytes(space.try_into().ok()?))),
        _ => None,
    }
}

fn put_partition(into: &mut BytesMut, space: SpaceId, partition: &[u8]) {
    into.put_u8(ROW);
    into.put_u64(space.0);
    for &byte in partition {
        if byte == 0 {
            into.extend_from_slice(&ESCAPED_NUL);
        } else {
            into.put_u8(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(space: u64, partition: &[u8], key: &[u8]) -> Bytes {
        row(&prefix(&Partition::new(SpaceId(space), partition.to_vec())), key)
    }

    proptest! {
        #[test]
        fn keys_order_by_space_then_partition_then_row(
            a in (0u64..3, prop::collection::vec(0u8..3, 0..4), prop::collection::vec(0u8..3, 0..4)),
            b in (0u64..3, prop::collection::vec(0u8..3, 0..4), prop::collection::vec(0u8..3, 0..4)),
        ) {
            prop_assert_eq!(full(a.0, &a.1, &a.2).cmp(&full(b.0, &b.1, &b.2)), a.cmp(&b));
        }

        #[test]
        fn key_splits_into_its_parts(
            partition in prop::collection::vec(any::<u8>(), 0..20),
            key in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let made = full(7, &partition, &key);
            let (at, p, k) = split(&made).unwrap();
            prop_assert_eq!((&p[..], &k[..]), (&partition[..], &key[..]));
            prop_assert_eq!(&made[..at], &prefix(&Partition::new(SpaceId(7), partition))[..]);
            prop_assert!(after_partition(&made[..at]) > made);
            prop_assert_eq!((space_of(&made), header_of(&made)), (Some(SpaceId(7)), None));
            prop_assert_eq!(header_of(&header(SpaceId(7))), Some(SpaceId(7)));
        }

        #[test]
        fn splitting_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = split(&bytes.into());
        }
    }
}
