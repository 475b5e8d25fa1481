//! The keys of a shard, and the names of shards.
//!
//! ```text
//! a INSTANCE          a front end's last batch: sequence number, rows and bytes that it added
//! c                   deadline fence: commits whose deadline is not later can no longer take effect
//! g                   generation of the header: a stamp, newly drawn with every change of the header
//! h                   header
//! m LOWER             root only, a hint: the shard whose range begins at LOWER
//! r PARTITION 01 ROW  a row
//! v 00..3f            stamp of the last batch that changed a partition in this bucket
//! ```
//!
//! Keys contain no zero byte, because cursors of omap pages are C strings. In partition and row keys, the
//! bytes 00, 01 and 02 are escaped as 02 01, 02 02 and 02 03. So the encoding preserves order, and 01 ends a
//! partition key.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_concurrency::Stamp;
use lazuli_rados::ObjectName;
use lazuli_store::SpaceId;
use xxhash_rust::xxh3::xxh3_64;

/// Key of the header's generation.
pub(crate) const GENERATION: Bytes = Bytes::from_static(b"g");
/// Key of the header.
pub(crate) const HEADER: Bytes = Bytes::from_static(b"h");
/// Key of the deadline fence.
pub(crate) const DEADLINE_FENCE: Bytes = Bytes::from_static(b"c");
/// Number of buckets that a shard's partitions fall into.
const BUCKETS: u8 = 64;

const ESCAPE: u8 = 2;
const TERMINATOR: u8 = 1;
const ROWS: u8 = b'r';

/// Returns the name of a space's first shard.
pub(crate) fn root_name(space: SpaceId) -> ObjectName {
    ObjectName(format!("s{:016x}", space.0))
}

/// Returns the name of a shard that a split makes. No name is ever used again.
pub(crate) fn shard_name(space: SpaceId, stamp: Stamp) -> ObjectName {
    ObjectName(format!("s{:016x}.{:016x}", space.0, stamp.ticks()))
}

/// Returns the space whose first shard has this name.
pub(crate) fn space_of_root(name: &ObjectName) -> Option<SpaceId> {
    let digits = name.0.strip_prefix('s').filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(SpaceId)
}

/// Returns the key of an instance's last batch.
pub(crate) fn batch_key(instance: &str) -> Bytes {
    [&b"a"[..], instance.as_bytes()].concat().into()
}

/// Returns the range of all instances' last batches.
pub(crate) fn batch_keys() -> Range<Bytes> {
    Bytes::from_static(b"a")..Bytes::from_static(b"b")
}

/// Returns the key of the bucket of a partition.
pub(crate) fn bucket_key(partition: &[u8]) -> Bytes {
    numbered_bucket_key((xxh3_64(partition) % u64::from(BUCKETS)) as u8)
}

/// Returns the keys of all buckets.
pub(crate) fn bucket_keys() -> impl Iterator<Item = Bytes> {
    (0..BUCKETS).map(numbered_bucket_key)
}

fn numbered_bucket_key(bucket: u8) -> Bytes {
    format!("v{bucket:02x}").into_bytes().into()
}

/// Returns the key of the hint to the shard whose range begins at a partition.
pub(crate) fn hint_key(lower: &[u8]) -> Bytes {
    let mut key = BytesMut::from(&b"m"[..]);
    escape(lower, &mut key);
    key.freeze()
}

/// Returns the range of all hints.
pub(crate) fn hint_keys() -> Range<Bytes> {
    Bytes::from_static(b"m")..Bytes::from_static(b"n")
}

/// Returns the partition of a hint.
pub(crate) fn hint_partition(key: &[u8]) -> Option<Bytes> {
    unescape(key.strip_prefix(b"m")?)
}

/// Returns the key of a row.
pub(crate) fn row_key(partition: &[u8], row: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(partition.len() + row.len() + 8);
    key.put_u8(ROWS);
    escape(partition, &mut key);
    key.put_u8(TERMINATOR);
    escape(row, &mut key);
    key.freeze()
}

/// Returns a key at or below all rows of a partition and of later ones, and above those of earlier ones.
pub(crate) fn partition_start(partition: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(partition.len() + 8);
    key.put_u8(ROWS);
    escape(partition, &mut key);
    key.freeze()
}

/// Returns a key above all rows of all partitions.
pub(crate) fn rows_end() -> Bytes {
    Bytes::from_static(&[ROWS + 1])
}

/// Returns a key above all rows of a partition and at or below those of later ones.
pub(crate) fn partition_end(partition: &[u8]) -> Bytes {
    let mut key = BytesMut::from(&partition_start(partition)[..]);
    key.put_u8(ESCAPE);
    key.freeze()
}

/// Returns the partition key and row key of a row, or `None` if the key is not that of a row.
pub(crate) fn split_row_key(key: &[u8]) -> Option<(Bytes, Bytes)> {
    let rest = key.strip_prefix(&[ROWS])?;
    let mut end = 0;
    while *rest.get(end)? != TERMINATOR {
        // The second byte of an escape may look like the terminator.
        end += if rest[end] == ESCAPE { 2 } else { 1 };
    }
    Some((unescape(&rest[..end])?, unescape(&rest[end + 1..])?))
}

/// Returns the least key above a key.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// Returns a stored key that is above a stored key and at or below all later ones.
pub(crate) fn after_stored(key: &[u8]) -> Bytes {
    [key, &[1]].concat().into()
}

fn escape(bytes: &[u8], out: &mut BytesMut) {
    for byte in bytes {
        if *byte <= ESCAPE {
            out.put_slice(&[ESCAPE, byte + 1]);
        } else {
            out.put_u8(*byte);
        }
    }
}

fn unescape(bytes: &[u8]) -> Option<Bytes> {
    let mut out = BytesMut::with_capacity(bytes.len());
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match *byte {
            ESCAPE => out.put_u8(bytes.next()?.checked_sub(1).filter(|byte| *byte <= ESCAPE)?),
            0 | TERMINATOR => return None,
            byte => out.put_u8(byte),
        }
    }
    Some(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all byte strings of up to two of some bytes around the escaped ones.
    fn strings() -> Vec<Vec<u8>> {
        let bytes = [0, 1, 2, 3, b'a', 0xFF];
        let mut all = vec![vec![]];
        for length in 1..=2 {
            let shorter: Vec<_> = all.iter().filter(|s: &&Vec<u8>| s.len() == length - 1).cloned().collect();
            for (prefix, byte) in shorter.iter().flat_map(|s| bytes.map(|byte| (s, byte))) {
                all.push([&prefix[..], &[byte]].concat());
            }
        }
        all
    }

    #[test]
    fn encoding_preserves_order_has_no_zero_byte_and_can_be_reversed() {
        let mut rows: Vec<_> =
            strings().iter().flat_map(|p| strings().into_iter().map(|r| (p.clone(), r))).collect();
        rows.sort();
        let keys: Vec<_> = rows.iter().map(|(partition, row)| row_key(partition, row)).collect();
        assert!(keys.is_sorted());
        for ((partition, row), key) in rows.iter().zip(&keys) {
            assert!(!key.contains(&0));
            let split = split_row_key(key).unwrap();
            assert_eq!((&split.0[..], &split.1[..]), (&partition[..], &row[..]));
        }
    }

    #[test]
    fn partition_bounds_separate_partitions() {
        for (a, b) in strings().iter().flat_map(|a| strings().into_iter().map(move |b| (a.clone(), b))) {
            let row = row_key(&a, &[0xFF; 3]);
            assert_eq!(row >= partition_start(&b), a >= b, "{a:?} {b:?}");
            assert_eq!(row < partition_end(&b), a <= b, "{a:?} {b:?}");
            assert!(row < rows_end());
        }
    }

    #[test]
    fn keys_that_are_not_rows_are_recognized() {
        for key in [&b"g"[..], b"r", b"ra", b"ra\x01\x02", b"r\x02\x09\x01", b"r\x00\x01"] {
            assert_eq!(split_row_key(key), None, "{key:?}");
        }
        assert_eq!(hint_partition(&hint_key(b"\x00a")), Some(Bytes::from_static(b"\x00a")));
        assert_eq!(space_of_root(&root_name(SpaceId(77))), Some(SpaceId(77)));
        assert_eq!(space_of_root(&shard_name(SpaceId(77), Stamp::from_ticks(5))), None);
    }
}
