//! Entry points for fuzzers. No input may cause a panic. Each returns whether the input is valid, and
//! [`seeds`] has valid inputs for each.

pub mod seeds;

use crate::{keys, list};

/// Parses the marker of a listing, which a client may have forged.
pub fn marker(data: &[u8]) -> bool {
    let account = b"kind/account/0000000000000000/";
    let (partition, key) = list::position(account, data);
    assert!(partition.starts_with(account));
    let is_known =
        key == keys::CURRENT || keys::deleted_at(&key).is_some() || keys::snapshot_parts(&key).is_some();
    keys::name(&partition).is_some_and(|name| !name.is_empty()) && is_known
}
