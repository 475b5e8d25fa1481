//! What fuzzers run: whatever the bytes, nothing panics.

use crate::{keys, list};

/// The marker of a listing, which a client may have made up.
pub fn marker(data: &[u8]) {
    let account = b"kind/account/0000000000000000/";
    let (partition, _) = list::position(account, data);
    assert!(partition.starts_with(account));
    let _ = keys::name(&partition);
}
