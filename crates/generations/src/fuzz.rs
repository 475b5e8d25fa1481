//! Entry points for fuzzers. No input may cause a panic.

use crate::{keys, list};

/// Parses the marker of a listing, which a client may have forged.
pub fn marker(data: &[u8]) {
    let account = b"kind/account/0000000000000000/";
    let (partition, _) = list::position(account, data);
    assert!(partition.starts_with(account));
    let _ = keys::name(&partition);
}
