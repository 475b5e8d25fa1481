//! How rows of a share are named and ordered.
//!
//! ```text
//! space     partition       row                 value
//! a share   d DIRECTORY     .                   the directory itself: whether it may be written to
//!                           m                   that the directory is to be deleted, see [`crate::moves`]
//!                           m NAME              that something comes to this name or leaves it
//!                           n NAME              a child: a directory or a file
//!                           o NAME 00 EPOCH     what a child was, for the last time in that epoch; without a name, the root
//!                           u                   bytes that the files in it amount to
//!           c               ID                  a copy to a file that may be under way
//!           p               KEY                 a permission, by its key
//!           q               b                   bytes that were counted for the quota, see [`crate::usage`]
//!                           s FRONT-END         the most that commits of a front end can have added to that
//! ```
//!
//! DIRECTORY is the directory's node id, NAME is folded for comparison and holds no zero byte, EPOCH is one of the share's
//! space. Numbers are big-endian. Why so: docs/decisions/0013.
//!
//! Content goes from `m` to `n` and from `n` to `o`, so whoever reads the rows of a directory in their order, while they
//! change, does not miss it.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_store::{Partition, SpaceId, prefix_range};

use crate::record::NodeId;

/// The row of the directory itself.
pub(crate) const OWN: Bytes = Bytes::from_static(b".");
/// The row that reserves a directory for its deletion: as if it were a name, which none is empty.
pub(crate) const GOING: Bytes = Bytes::from_static(&[MOVING]);
/// The row that counts bytes.
pub(crate) const USAGE: Bytes = Bytes::from_static(b"u");
/// What partition keys of directories start with.
pub(crate) const DIRECTORIES: u8 = b'd';
/// The partition that lists copies under way.
pub(crate) const COPIES: &[u8] = b"c";
/// The row of what was counted.
pub(crate) const BALANCE: Bytes = Bytes::from_static(b"b");
const QUOTA: Bytes = Bytes::from_static(b"q");
const SLICE: u8 = b's';
const PERMISSIONS: Bytes = Bytes::from_static(b"p");
const CHILD: u8 = b'n';
const KEPT: u8 = b'o';
const MOVING: u8 = b'm';

/// The partition of a directory.
pub(crate) fn directory(space: SpaceId, id: NodeId) -> Partition {
    Partition::new(space, [&[DIRECTORIES][..], &id.0.to_be_bytes()].concat())
}

/// The directory that a partition key is of.
pub(crate) fn directory_id(partition: &[u8]) -> Option<NodeId> {
    partition.strip_prefix(&[DIRECTORIES])?.try_into().ok().map(u64::from_be_bytes).map(NodeId)
}

/// The partition of a share's permissions.
pub(crate) fn permissions(space: SpaceId) -> Partition {
    Partition::new(space, PERMISSIONS)
}

/// The partition of a share's quota.
pub(crate) fn quota(space: SpaceId) -> Partition {
    Partition::new(space, QUOTA)
}

/// The row of a front end's slice of the quota.
pub(crate) fn slice(instance: Stamp) -> Bytes {
    [&[SLICE][..], &instance.ticks().to_be_bytes()].concat().into()
}

/// All slices.
pub(crate) fn slices() -> Range<Bytes> {
    prefix_range(&[SLICE])
}

/// The row of a child.
pub(crate) fn child(folded: &[u8]) -> Bytes {
    [&[CHILD], folded].concat().into()
}

/// All children whose folded names begin so.
pub(crate) fn children(prefix: &[u8]) -> Range<Bytes> {
    prefix_range(&[&[CHILD], prefix].concat())
}

/// The row that reserves a name for a move.
pub(crate) fn moving(folded: &[u8]) -> Bytes {
    [&[MOVING], folded].concat().into()
}

/// The names that are reserved among a range of children.
pub(crate) fn moving_among(children: &Range<Bytes>) -> Range<Bytes> {
    let moving = |key: &Bytes| match key.split_first() {
        Some((&CHILD, folded)) => moving(folded),
        // The end of all children.
        _ => Bytes::from_static(&[MOVING + 1]),
    };
    moving(&children.start)..moving(&children.end)
}

/// Whether a row reserves a name for a move.
pub(crate) fn is_moving(row: &[u8]) -> bool {
    row.first() == Some(&MOVING)
}

/// The row that keeps what a child was until the end of an epoch.
pub(crate) fn kept(folded: &[u8], last: u64) -> Bytes {
    [&[KEPT], folded, &[0], &last.to_be_bytes()].concat().into()
}

/// What was kept of a child from that epoch on.
pub(crate) fn kept_since(folded: &[u8], epoch: u64) -> Range<Bytes> {
    kept(folded, epoch)..Bytes::from([&[KEPT], folded, &[1]].concat())
}

/// All that was kept of children whose folded names begin so.
pub(crate) fn all_kept(prefix: &[u8]) -> Range<Bytes> {
    prefix_range(&[&[KEPT], prefix].concat())
}

/// The folded name and the last epoch that a kept row is of.
pub(crate) fn kept_parts(row: &[u8]) -> Option<(&[u8], u64)> {
    let (name, last) = row.strip_prefix(&[KEPT])?.split_last_chunk()?;
    Some((name.strip_suffix(&[0])?, u64::from_be_bytes(*last)))
}

/// Whether a row of a directory's partition holds a child, current or kept.
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
