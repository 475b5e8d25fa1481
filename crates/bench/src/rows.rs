//! The rows that benchmarks store and read: scattered keys of partitions, and values that do not compress and
//! identify their row.

use bytes::Bytes;
use lazuli_store::{Partition, SpaceId};

/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 500;
/// Rows in one loaded partition.
pub(crate) const PARTITION_ROWS: u64 = 100;

/// Maps numbers one-to-one to scattered numbers (SplitMix64).
pub(crate) const fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the partition with a number.
pub(crate) fn partition(space: SpaceId, number: u64) -> Partition {
    Partition::new(space, format!("bench-{:016x}", scatter(number)))
}

/// Returns the key of a row within its partition.
pub(crate) fn key(row: u64) -> Bytes {
    format!("row-{:02}", row % PARTITION_ROWS).into()
}

/// Returns the value of a row.
pub(crate) fn value(row: u64) -> Bytes {
    let mut value = Vec::with_capacity(VALUE_BYTES + 8);
    let mut state = row;
    while value.len() < VALUE_BYTES {
        state = scatter(state);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(VALUE_BYTES);
    value.into()
}

/// Returns whether length and first bytes are those of the row's value.
pub(crate) fn is_value(row: u64, value: &[u8]) -> bool {
    value.len() == VALUE_BYTES && value.starts_with(&scatter(row).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_partitions_of_rows_differ() {
        let space = SpaceId(7);
        for row in [0, 1, 99, 100, 1 << 40] {
            assert!(is_value(row, &value(row)));
            assert!(!is_value(row + 1, &value(row)));
            assert!(!is_value(row, &value(row)[1..]));
            assert_ne!(partition(space, row), partition(space, row + 1));
        }
        assert!(key(5) < key(17), "rows are ordered by number within their partition");
    }
}
