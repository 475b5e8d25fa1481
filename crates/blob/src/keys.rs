//! How rows are named and ordered.
//!
//! ```text
//! partition   row                   value
//! b NAME      b                     the blob: its current state
//!             d KEY                 a snapshot or version that was deleted: its key
//!             n                     how many blocks are staged
//!             s STAMP               a snapshot
//!             u ID                  a staged block
//!             v STAMP               an earlier version
//! t TAG       VALUE 00 NAME CLAIM   nothing: the blob may have the tag
//! w           ID                    a copy to a blob may be under way
//! ```
//!
//! These are the rows in the space of a container; how the space comes by its name is told in [`lazuli_generations::keys`].
//! A blob name is a partition, so everything about one blob changes atomically and nothing about two does. The row of
//! the current state sorts first, so a listing reads one row of each partition. Names are ordered by their UTF-8 bytes.
//! Stamps are big-endian: time order. What was deleted and is kept for a while has keys of its own, because there can be
//! any number of it and whoever looks for a live snapshot must not have to read it all.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_store::{Partition, SpaceId, prefix_range};

/// What partition keys of blobs start with.
pub(crate) const BLOBS: &[u8] = b"b";
/// What partition keys of the index of tags start with.
pub(crate) const TAGS: &[u8] = b"t";
/// The partition that lists copies under way.
pub(crate) const COPIES: &[u8] = b"w";

/// The row of a blob's current state.
pub(crate) const BASE: Bytes = Bytes::from_static(b"b");
/// The row that counts staged blocks.
pub(crate) const STAGED_COUNT: Bytes = Bytes::from_static(b"n");
const DELETED_STATE: u8 = b'd';
const SNAPSHOT: u8 = b's';
const STAGED: u8 = b'u';
const VERSION: u8 = b'v';

/// The partition of a blob.
pub(crate) fn blob(space: SpaceId, name: &str) -> Partition {
    Partition::new(space, [BLOBS, name.as_bytes()].concat())
}

/// The blob that a partition key is of.
pub(crate) fn blob_name(partition: &[u8]) -> Option<&str> {
    std::str::from_utf8(partition.strip_prefix(BLOBS)?).ok()
}

/// The row of a snapshot.
pub(crate) fn snapshot(stamp: Stamp) -> Bytes {
    stamped(SNAPSHOT, stamp)
}

/// All snapshots.
pub(crate) fn snapshots() -> Range<Bytes> {
    prefix_range(&[SNAPSHOT])
}

/// The row of an earlier version.
pub(crate) fn version(stamp: Stamp) -> Bytes {
    stamped(VERSION, stamp)
}

/// All earlier versions.
pub(crate) fn versions() -> Range<Bytes> {
    prefix_range(&[VERSION])
}

/// The row of a snapshot or earlier version that was deleted, made of the key that it had and has again if it is restored.
pub(crate) fn deleted(key: &[u8]) -> Bytes {
    [&[DELETED_STATE], key].concat().into()
}

/// All deleted snapshots and versions.
pub(crate) fn all_deleted() -> Range<Bytes> {
    prefix_range(&[DELETED_STATE])
}

/// The key that a deleted snapshot or version had.
pub(crate) fn undeleted(key: &Bytes) -> Bytes {
    key.slice(1..)
}

/// The row of a staged block.
pub(crate) fn staged(id: &[u8]) -> Bytes {
    [&[STAGED], id].concat().into()
}

/// All staged blocks.
pub(crate) fn all_staged() -> Range<Bytes> {
    prefix_range(&[STAGED])
}

/// What a row of a blob's partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind<'a> {
    Base,
    DeletedSnapshot(Stamp),
    DeletedVersion(Stamp),
    StagedCount,
    Snapshot(Stamp),
    Staged(&'a [u8]),
    Version(Stamp),
}

impl RowKind<'_> {
    /// The time of a snapshot or version.
    pub(crate) fn stamp(self) -> Option<Stamp> {
        match self {
            Self::Snapshot(stamp) | Self::DeletedSnapshot(stamp) => Some(stamp),
            Self::Version(stamp) | Self::DeletedVersion(stamp) => Some(stamp),
            Self::Base | Self::StagedCount | Self::Staged(_) => None,
        }
    }
}

/// What the key of a row says it is.
pub(crate) fn row_kind(key: &[u8]) -> Option<RowKind<'_>> {
    let stamp = |rest: &[u8]| rest.try_into().ok().map(u64::from_be_bytes).map(Stamp::from_ticks);
    match key {
        b"b" => Some(RowKind::Base),
        [DELETED_STATE, SNAPSHOT, rest @ ..] => stamp(rest).map(RowKind::DeletedSnapshot),
        [DELETED_STATE, VERSION, rest @ ..] => stamp(rest).map(RowKind::DeletedVersion),
        b"n" => Some(RowKind::StagedCount),
        [SNAPSHOT, rest @ ..] => stamp(rest).map(RowKind::Snapshot),
        [STAGED, id @ ..] => Some(RowKind::Staged(id)),
        [VERSION, rest @ ..] => stamp(rest).map(RowKind::Version),
        _ => None,
    }
}

/// The partition of the index of one tag.
pub(crate) fn tag(space: SpaceId, tag: &str) -> Partition {
    Partition::new(space, [TAGS, tag.as_bytes()].concat())
}

/// The row of a blob under a value of a tag, for a claim of the blob. Values are ASCII and hold no zero byte.
pub(crate) fn tag_entry(value: &str, blob: &str, claim: Stamp) -> Bytes {
    [value.as_bytes(), &[0], blob.as_bytes(), &claim.ticks().to_be_bytes()].concat().into()
}

/// The blob and the claim that a row of the index is of.
pub(crate) fn blob_of_tag_entry(row: &[u8]) -> Option<(&str, Stamp)> {
    let name_at = row.iter().position(|byte| *byte == 0)? + 1;
    let (name, claim) = row.get(name_at..)?.split_last_chunk()?;
    Some((std::str::from_utf8(name).ok()?, Stamp::from_ticks(u64::from_be_bytes(*claim))))
}

/// All rows of blobs that have one value of a tag.
pub(crate) fn tag_value(value: &str) -> Range<Bytes> {
    let bound = |last: u8| Bytes::from([value.as_bytes(), &[last]].concat());
    bound(0)..bound(1)
}

/// All rows of a tag.
pub(crate) fn all_tag_values() -> Range<Bytes> {
    Bytes::new()..Bytes::from_static(&[0xFF])
}

fn stamped(kind: u8, stamp: Stamp) -> Bytes {
    [&[kind][..], &stamp.ticks().to_be_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_state_sorts_before_every_other_row_of_its_blob() {
        let stamp = Stamp::from_ticks(7);
        for key in [STAGED_COUNT, snapshot(stamp), staged(b"id"), version(stamp), deleted(&snapshot(stamp))] {
            assert!(key > BASE, "{key:?}");
        }
    }

    #[test]
    fn every_key_is_read_back_as_what_it_was_made_of() {
        let stamp = Stamp::from_ticks(0x0102_0304_0506_0708);
        for (key, kind) in [
            (BASE, RowKind::Base),
            (STAGED_COUNT, RowKind::StagedCount),
            (snapshot(stamp), RowKind::Snapshot(stamp)),
            (version(stamp), RowKind::Version(stamp)),
            (deleted(&snapshot(stamp)), RowKind::DeletedSnapshot(stamp)),
            (deleted(&version(stamp)), RowKind::DeletedVersion(stamp)),
            (staged(b"x"), RowKind::Staged(b"x")),
        ] {
            assert_eq!(row_kind(&key), Some(kind));
        }
        let entry = tag_entry("value", "a\0b", stamp);
        assert_eq!(blob_of_tag_entry(&entry), Some(("a\0b", stamp)));
        assert!(tag_value("value").contains(&entry) && !tag_value("valu").contains(&entry));
        assert_eq!(row_kind(b"s123"), None);
        assert_eq!(undeleted(&deleted(&version(stamp))), version(stamp));
        assert_eq!(blob_name(&blob(SpaceId(1), "ä/b").key), Some("ä/b"));
    }
}
