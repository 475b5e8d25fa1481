//! How rows of the directory are named.
//!
//! ```text
//! space   partition                       row             value
//! ROOT    KIND/ACCOUNT/GENERATION/NAME    current         the generation that has the name, or a rename under way
//!                                         deleted/STAMP   one that can be restored
//!                                         garbage/SPACE   nothing: a space whose rows are to be swept
//!                                         guard           a version: raised before anything that forbids a delete
//!                                         snapshot/SPACE STAMP   what a generation was, to be read
//!                                         FE ID, FF ID    a rename from this name, and the mark of a rename
//! ```
//!
//! The current row sorts first, so a listing reads one row of each partition. GENERATION is that of the account: what an
//! account left behind is out of reach for another one of the same name.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::Account;
use lazuli_store::{Partition, SpaceId, prefix_range};

/// The row of the generation that has the name.
pub const CURRENT: Bytes = Bytes::from_static(b"current");
/// The row whose version a service raises before it changes anything that may forbid deleting the generation. A delete judges
/// what the generation holds and then commits on this version. Goes when the current row leaves the name.
pub const GUARD: Bytes = Bytes::from_static(b"guard");
const DELETED: &[u8] = b"deleted/";
const GARBAGE: &[u8] = b"garbage/";
const SNAPSHOT: &[u8] = b"snapshot/";

/// What partition keys of a kind start with.
pub fn kind(kind: &str) -> Vec<u8> {
    format!("{kind}/").into_bytes()
}

/// What partition keys of a kind start with in an account.
pub fn account(kind: &str, account: &Account) -> Vec<u8> {
    format!("{kind}/{}/{:016x}/", account.name, account.generation).into_bytes()
}

/// The partition of a name.
pub fn partition(kind: &str, owner: &Account, name: &str) -> Partition {
    Partition::new(SpaceId::ROOT, [&account(kind, owner), name.as_bytes()].concat())
}

/// The name that a partition key is of: what follows the last slash.
pub fn name(partition: &[u8]) -> Option<&str> {
    std::str::from_utf8(partition.rsplit(|b| *b == b'/').next()?).ok()
}

/// The account that a partition key is of, and its generation.
pub(crate) fn owner<'a>(kind: &str, partition: &'a [u8]) -> Option<(&'a str, u64)> {
    let rest = std::str::from_utf8(partition).ok()?.strip_prefix(kind)?.strip_prefix('/')?;
    let (account, rest) = rest.split_once('/')?;
    let (generation, _) = rest.split_once('/')?;
    Some((account, u64::from_str_radix(generation, 16).ok()?))
}

/// The row of one that was deleted at that stamp and can be restored.
pub fn deleted(stamp: Stamp) -> Bytes {
    [DELETED, &stamp.ticks().to_be_bytes()].concat().into()
}

/// When one was deleted, as its row says.
pub fn deleted_at(row: &[u8]) -> Option<Stamp> {
    row.strip_prefix(DELETED)?.try_into().ok().map(u64::from_be_bytes).map(Stamp::from_ticks)
}

/// The row of a space whose rows are to be swept.
pub fn garbage(space: SpaceId) -> Bytes {
    [GARBAGE, &space.0.to_be_bytes()].concat().into()
}

/// The space that a row of garbage names.
pub fn garbage_space(row: &[u8]) -> Option<SpaceId> {
    row.strip_prefix(GARBAGE)?.try_into().ok().map(u64::from_be_bytes).map(SpaceId)
}

/// The row of a snapshot of the generation that names a space. It lies beside the generation's own row, current or deleted.
pub fn snapshot(space: SpaceId, stamp: Stamp) -> Bytes {
    [SNAPSHOT, &space.0.to_be_bytes(), &stamp.ticks().to_be_bytes()].concat().into()
}

/// All snapshots of the generation that names a space, oldest first.
pub fn snapshots(space: SpaceId) -> Range<Bytes> {
    prefix_range(&[SNAPSHOT, &space.0.to_be_bytes()].concat())
}

/// The space that a snapshot is of, and when it was taken.
pub fn snapshot_parts(row: &[u8]) -> Option<(SpaceId, Stamp)> {
    let (space, stamp) = row.strip_prefix(SNAPSHOT)?.split_first_chunk()?;
    let stamp = stamp.try_into().ok().map(u64::from_be_bytes)?;
    Some((SpaceId(u64::from_be_bytes(*space)), Stamp::from_ticks(stamp)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_row_sorts_first_and_every_key_is_read_back() {
        let stamp = Stamp::from_ticks(0x0102_0304_0506_0708);
        assert!(CURRENT < GUARD && CURRENT < deleted(stamp) && CURRENT < garbage(SpaceId(0)));
        assert!(CURRENT < snapshot(SpaceId(0), stamp));
        assert_eq!(deleted_at(&deleted(stamp)), Some(stamp));
        assert_eq!(garbage_space(&garbage(SpaceId(9))), Some(SpaceId(9)));
        assert_eq!(snapshot_parts(&snapshot(SpaceId(9), stamp)), Some((SpaceId(9), stamp)));
        assert!(snapshots(SpaceId(9)).contains(&snapshot(SpaceId(9), stamp)));
        assert!(!snapshots(SpaceId(8)).contains(&snapshot(SpaceId(9), stamp)));
        assert_eq!(owner("blob", b"blob/lapis/00000000000000ff/con"), Some(("lapis", 255)));
        assert_eq!(owner("blob", b"blobs/lapis/00000000000000ff/con"), None);
        assert_eq!(name(b"blob/lapis/00000000000000ff/con"), Some("con"));
    }
}
