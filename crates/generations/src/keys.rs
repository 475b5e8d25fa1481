//! Keys of the rows of the directory.
//!
//! ```text
//! space   partition                       row             value
//! ROOT    KIND/ACCOUNT/GENERATION/NAME    current         the generation that has the name, or a rename
//!                                         deleted/STAMP   a retired generation, which can be restored
//!                                         garbage/SPACE   empty: the rows of the space are to be swept
//!                                         guard           a version, raised before a delete is forbidden
//!                                         snapshot/SPACE STAMP   a read-only state of a generation
//!                                         FE ID, FF ID    a rename from this name, the mark of a rename
//! ```
//!
//! The current row sorts first, so a listing reads one row of each partition. GENERATION is the generation of
//! the account: an account cannot reach what a removed account of the same name has left.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::Account;
use lazuli_store::{Partition, SpaceId, prefix_range};

/// The row of the generation that has the name.
pub const CURRENT: Bytes = Bytes::from_static(b"current");
/// The row whose version a service raises before it changes anything that may forbid deleting the generation.
/// A delete examines the content of the generation and then commits on condition that the version is
/// unchanged. Removed together with the current row.
pub const GUARD: Bytes = Bytes::from_static(b"guard");
const DELETED: &[u8] = b"deleted/";
const GARBAGE: &[u8] = b"garbage/";
const SNAPSHOT: &[u8] = b"snapshot/";

/// Returns the prefix of all partition keys of a kind.
pub fn kind(kind: &str) -> Vec<u8> {
    format!("{kind}/").into_bytes()
}

/// Returns the prefix of the partition keys of a kind in an account.
pub fn account(kind: &str, account: &Account) -> Vec<u8> {
    format!("{kind}/{}/{:016x}/", account.name, account.generation).into_bytes()
}

/// Returns the partition of a name.
pub fn partition(kind: &str, owner: &Account, name: &str) -> Partition {
    Partition::new(SpaceId::ROOT, [&account(kind, owner), name.as_bytes()].concat())
}

/// Returns the name in a partition key: the part after the last slash.
pub fn name(partition: &[u8]) -> Option<&str> {
    std::str::from_utf8(partition.rsplit(|b| *b == b'/').next()?).ok()
}

/// The parts of a partition key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The kind.
    pub kind: &'a str,
    /// The name of the account.
    pub account: &'a str,
    /// The generation of the account.
    pub generation: u64,
    /// The name within the account.
    pub name: &'a str,
}

/// Splits the partition key of a name into its parts. Returns `None` for other keys.
pub fn parts(partition: &[u8]) -> Option<Parts<'_>> {
    let mut parts = std::str::from_utf8(partition).ok()?.splitn(4, '/');
    let (kind, account, generation, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    Some(Parts { kind, account, generation: u64::from_str_radix(generation, 16).ok()?, name })
}

/// Returns the account in a partition key, and the account's generation.
pub(crate) fn owner<'a>(kind: &str, partition: &'a [u8]) -> Option<(&'a str, u64)> {
    parts(partition).filter(|parts| parts.kind == kind).map(|parts| (parts.account, parts.generation))
}

/// Returns the key of a generation that was retired at the stamp.
pub fn deleted(stamp: Stamp) -> Bytes {
    [DELETED, &stamp.ticks().to_be_bytes()].concat().into()
}

/// Returns when a generation was retired, given the key of its row.
pub fn deleted_at(row: &[u8]) -> Option<Stamp> {
    row.strip_prefix(DELETED)?.try_into().ok().map(u64::from_be_bytes).map(Stamp::from_ticks)
}

/// Returns the key of the garbage row of a space.
pub fn garbage(space: SpaceId) -> Bytes {
    [GARBAGE, &space.0.to_be_bytes()].concat().into()
}

/// Returns the space that a garbage row names.
pub fn garbage_space(row: &[u8]) -> Option<SpaceId> {
    row.strip_prefix(GARBAGE)?.try_into().ok().map(u64::from_be_bytes).map(SpaceId)
}

/// Returns the key of a snapshot of the generation that names a space. The row lies in the same partition as
/// the generation's own row, current or deleted.
pub fn snapshot(space: SpaceId, stamp: Stamp) -> Bytes {
    [SNAPSHOT, &space.0.to_be_bytes(), &stamp.ticks().to_be_bytes()].concat().into()
}

/// Returns the key range of all snapshots of the generation that names a space, oldest first.
pub fn snapshots(space: SpaceId) -> Range<Bytes> {
    prefix_range(&[SNAPSHOT, &space.0.to_be_bytes()].concat())
}

/// Returns the space of a snapshot and when the snapshot was taken.
pub fn snapshot_parts(row: &[u8]) -> Option<(SpaceId, Stamp)> {
    let (space, stamp) = row.strip_prefix(SNAPSHOT)?.split_first_chunk()?;
    let stamp = stamp.try_into().ok().map(u64::from_be_bytes)?;
    Some((SpaceId(u64::from_be_bytes(*space)), Stamp::from_ticks(stamp)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_row_sorts_first_and_every_key_can_be_parsed() {
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
        let parts = |key: &'static [u8]| parts(key);
        let found = Parts { kind: "file", account: "lapis", generation: 255, name: "docs" };
        assert_eq!(parts(b"file/lapis/00000000000000ff/docs"), Some(found));
        assert_eq!(parts(b"account/lapis"), None);
    }
}
