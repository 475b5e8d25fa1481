//! Keys of the rows of a share.
//!
//! ```text
//! space     partition       row                 value
//! a share   d DIRECTORY     .                   the directory itself: it can be written to
//!                           m                   reserves the directory for deletion, see `moves`
//!                           m NAME              reserves a name for a move or deletion, see `moves`
//!                           n NAME              a child: a directory or a file
//!                           o NAME 00 EPOCH     a child at the end of an epoch; or the root
//!                           u                   bytes of the files in it
//!           c               ID                  a copy to a file that may be pending
//!           p               KEY                 a permission, by its key
//!           q               b                   the balance of the quota, see `usage`
//!                           s FRONT-END         the slice of a front end, see `usage`
//! ```
//!
//! DIRECTORY is the node id of the directory. NAME is folded, without zero bytes. EPOCH is an epoch of the
//! share's space. Numbers are big-endian. Why: docs/decisions/0013.
//!
//! Content moves from `m` to `n` and from `n` to `o`, so a reader of the rows in order does not miss it.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_store::{Partition, SpaceId, prefix_range};

use crate::tree::record::NodeId;

/// The row of the directory itself.
pub(crate) const OWN: Bytes = Bytes::from_static(b".");
/// The row that reserves a directory for its deletion. No name is empty, so it is no name.
pub(crate) const DELETION: Bytes = Bytes::from_static(&[MOVING]);
/// The row that counts bytes.
pub(crate) const USAGE: Bytes = Bytes::from_static(b"u");
/// First byte of the partition keys of directories.
pub(crate) const DIRECTORIES: u8 = b'd';
/// The partition that lists pending copies.
pub(crate) const COPIES: &[u8] = b"c";
/// The row with the balance of the quota.
pub(crate) const BALANCE: Bytes = Bytes::from_static(b"b");
const QUOTA: Bytes = Bytes::from_static(b"q");
const SLICE: u8 = b's';
const PERMISSIONS: Bytes = Bytes::from_static(b"p");
const CHILD: u8 = b'n';
const KEPT: u8 = b'o';
const MOVING: u8 = b'm';

/// Returns the partition of a directory.
pub(crate) fn directory(space: SpaceId, id: NodeId) -> Partition {
    Partition::new(space, [&[DIRECTORIES][..], &id.0.to_be_bytes()].concat())
}

/// Returns the directory of a partition key.
pub(crate) fn directory_id(partition: &[u8]) -> Option<NodeId> {
    partition.strip_prefix(&[DIRECTORIES])?.try_into().ok().map(u64::from_be_bytes).map(NodeId)
}

/// Returns the partition of a share's permissions.
pub(crate) fn permissions(space: SpaceId) -> Partition {
    Partition::new(space, PERMISSIONS)
}

/// Returns the partition of a share's quota.
pub(crate) fn quota(space: SpaceId) -> Partition {
    Partition::new(space, QUOTA)
}

/// Returns the row of a front end's slice of the quota.
pub(crate) fn slice(instance: Stamp) -> Bytes {
    [&[SLICE][..], &instance.ticks().to_be_bytes()].concat().into()
}

/// Returns the range of all slices.
pub(crate) fn slices() -> Range<Bytes> {
    prefix_range(&[SLICE])
}

/// Returns the row of a child.
pub(crate) fn child(folded: &[u8]) -> Bytes {
    [&[CHILD], folded].concat().into()
}

/// Returns the range of all children whose folded names have a prefix.
pub(crate) fn children(prefix: &[u8]) -> Range<Bytes> {
    prefix_range(&[&[CHILD], prefix].concat())
}

/// Returns the row that reserves a name for a move.
pub(crate) fn moving(folded: &[u8]) -> Bytes {
    [&[MOVING], folded].concat().into()
}

/// Returns the range of the reservations of a range of children.
pub(crate) fn moving_among(children: &Range<Bytes>) -> Range<Bytes> {
    let moving = |key: &Bytes| match key.split_first() {
        Some((&CHILD, folded)) => moving(folded),
        // The end of all children.
        _ => Bytes::from_static(&[MOVING + 1]),
    };
    moving(&children.start)..moving(&children.end)
}

/// Returns whether a row reserves a name for a move.
pub(crate) fn is_moving(row: &[u8]) -> bool {
    row.first() == Some(&MOVING)
}

/// Returns the row that keeps a child as it was until the end of an epoch.
pub(crate) fn kept(folded: &[u8], last: u64) -> Bytes {
    [&[KEPT], folded, &[0], &last.to_be_bytes()].concat().into()
}

/// Returns the range of rows kept of a child in an epoch or later.
pub(crate) fn kept_since(folded: &[u8], epoch: u64) -> Range<Bytes> {
    kept(folded, epoch)..Bytes::from([&[KEPT], folded, &[1]].concat())
}

/// Returns the range of all kept rows of children whose folded names have a prefix.
pub(crate) fn all_kept(prefix: &[u8]) -> Range<Bytes> {
    prefix_range(&[&[KEPT], prefix].concat())
}

/// Returns the folded name and the last epoch of a kept row.
pub(crate) fn kept_parts(row: &[u8]) -> Option<(&[u8], u64)> {
    let (name, last) = row.strip_prefix(&[KEPT])?.split_last_chunk()?;
    Some((name.strip_suffix(&[0])?, u64::from_be_bytes(*last)))
}

/// Returns whether a row of a directory's partition holds a child, current or kept.
pub(crate) fn is_child(row: &[u8]) -> bool {
    row.first() == Some(&CHILD) || kept_parts(row).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back_and_kept_rows_lie_in_the_order_of_their_epochs() {
        let id = NodeId(0x0102_0304_0506_0708);
        assert_eq!(directory_id(&directory(SpaceId(1), id).key), Some(id));
        assert_eq!(kept_parts(&kept(b"NAME", 7)), Some((&b"NAME"[..], 7)));
        let range = kept_since(b"NAME", 5);
        assert!(range.contains(&kept(b"NAME", 5)) && range.contains(&kept(b"NAME", u64::MAX)));
        assert!(!range.contains(&kept(b"NAME", 4)) && !range.contains(&kept(b"NAME2", 5)));
        assert!(children(b"NA").contains(&child(b"NAME")) && !children(b"NA").contains(&child(b"NB")));
        let among = moving_among(&children(b"NA"));
        assert!(among.contains(&moving(b"NAME")) && !among.contains(&moving(b"NB")));
        let all = moving_among(&children(b""));
        assert!(all.contains(&moving(b"NAME")) && !all.contains(&child(b"")));
        assert!(is_moving(&moving(b"X")) && !is_moving(&child(b"X")));
        assert!(is_child(&child(b"X")) && is_child(&kept(b"X", 1)) && !is_child(&OWN) && !is_child(&USAGE));
    }
}
