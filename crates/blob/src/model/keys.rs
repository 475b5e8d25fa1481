//! The keys of rows, and their order.
//!
//! ```text
//! partition   row                   value
//! b NAME      b                     the blob: its current state
//!             d KEY                 a deleted snapshot or version: KEY is its former key
//!             n                     how many blocks are staged
//!             s STAMP               a snapshot
//!             t GENERATION ID       a staged block
//!             u ID                  a staged block of generation 0, which only format 1 began
//!             v STAMP               an earlier version
//! t TAG       VALUE 00 NAME CLAIM   nothing: the blob may have the tag
//! w           ID                    a copy to a blob may be pending
//! ```
//!
//! These are the rows in the space of a container; [`lazuli_generations::keys`] names the rows that refer to
//! the space. Each blob has a partition, so a commit can change all rows of one blob, and never those of two.
//! The row of the current state sorts first, so a listing reads one row of each partition. Names are ordered
//! by their UTF-8 bytes. Stamps are big-endian, so they are in time order. Deleted states have keys of their
//! own: there can be any number of them, and a search for live snapshots must not read them all.
//!
//! Blocks are staged in generations, big-endian. Only blocks of the generation that the row of the current
//! state names exist. The others were committed or dropped, and [`crate::background::dropped`] removes their
//! rows. Generations grow, and none is used again.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_store::{Partition, SpaceId, prefix_range};

/// The prefix of the partition keys of blobs.
pub(crate) const BLOBS: &[u8] = b"b";
/// The prefix of the partition keys of the index of tags.
pub(crate) const TAGS: &[u8] = b"t";
/// The partition that lists running copies.
pub(crate) const COPIES: &[u8] = b"w";

/// The row of a blob's current state.
pub(crate) const BASE: Bytes = Bytes::from_static(b"b");
/// The row that counts staged blocks.
pub(crate) const STAGED_COUNT: Bytes = Bytes::from_static(b"n");
const DELETED_STATE: u8 = b'd';
const SNAPSHOT: u8 = b's';
const STAGED: u8 = b't';
/// Sorts directly after [`STAGED`], so that one range contains all staged blocks.
const STAGED_FIRST_GENERATION: u8 = b'u';
const VERSION: u8 = b'v';

/// Returns the partition of a blob.
pub(crate) fn blob(space: SpaceId, name: &str) -> Partition {
    Partition::new(space, [BLOBS, name.as_bytes()].concat())
}

/// Returns the name of the blob that a partition belongs to.
pub(crate) fn blob_name(partition: &[u8]) -> Option<&str> {
    std::str::from_utf8(partition.strip_prefix(BLOBS)?).ok()
}

/// Returns the key of a snapshot's row.
pub(crate) fn snapshot(stamp: Stamp) -> Bytes {
    stamped(SNAPSHOT, stamp)
}

/// Returns the keys of all snapshots.
pub(crate) fn snapshots() -> Range<Bytes> {
    prefix_range(&[SNAPSHOT])
}

/// Returns the key of an earlier version's row.
pub(crate) fn version(stamp: Stamp) -> Bytes {
    stamped(VERSION, stamp)
}

/// Returns the keys of all earlier versions.
pub(crate) fn versions() -> Range<Bytes> {
    prefix_range(&[VERSION])
}

/// Returns the key of a deleted snapshot or earlier version: its former key with a prefix. A restore removes
/// the prefix.
pub(crate) fn deleted(key: &[u8]) -> Bytes {
    [&[DELETED_STATE], key].concat().into()
}

/// Returns the keys of all deleted snapshots and versions.
pub(crate) fn all_deleted() -> Range<Bytes> {
    prefix_range(&[DELETED_STATE])
}

/// Returns the former key of a deleted snapshot or version.
pub(crate) fn undeleted(key: &Bytes) -> Bytes {
    key.slice(1..)
}

/// Returns the key of a staged block's row.
pub(crate) fn staged(generation: u64, id: &[u8]) -> Bytes {
    [&generation_prefix(generation), id].concat().into()
}

/// Returns the keys of the staged blocks of a generation.
pub(crate) fn staged_in(generation: u64) -> Range<Bytes> {
    prefix_range(&generation_prefix(generation))
}

/// Returns the keys of the staged blocks of all generations except the current one.
pub(crate) fn dropped(current: Option<u64>) -> Vec<Range<Bytes>> {
    let all = prefix_range(&[STAGED]).start..prefix_range(&[STAGED_FIRST_GENERATION]).end;
    match current.map(staged_in) {
        Some(current) => vec![all.start..current.start, current.end..all.end],
        None => vec![all],
    }
}

fn generation_prefix(generation: u64) -> Vec<u8> {
    match generation {
        0 => vec![STAGED_FIRST_GENERATION],
        generation => [&[STAGED][..], &generation.to_be_bytes()].concat(),
    }
}

/// The kinds of rows in the partition of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind<'a> {
    Base,
    DeletedSnapshot(Stamp),
    DeletedVersion(Stamp),
    StagedCount,
    Snapshot(Stamp),
    Staged { generation: u64, id: &'a [u8] },
    Version(Stamp),
}

impl RowKind<'_> {
    /// Returns the stamp that names a snapshot or version.
    pub(crate) fn stamp(self) -> Option<Stamp> {
        match self {
            Self::Snapshot(stamp) | Self::DeletedSnapshot(stamp) => Some(stamp),
            Self::Version(stamp) | Self::DeletedVersion(stamp) => Some(stamp),
            Self::Base | Self::StagedCount | Self::Staged { .. } => None,
        }
    }
}

/// Returns the kind of the row with this key.
pub(crate) fn row_kind(key: &[u8]) -> Option<RowKind<'_>> {
    let stamp = |rest: &[u8]| rest.try_into().ok().map(u64::from_be_bytes).map(Stamp::from_ticks);
    match key {
        b"b" => Some(RowKind::Base),
        [DELETED_STATE, SNAPSHOT, rest @ ..] => stamp(rest).map(RowKind::DeletedSnapshot),
        [DELETED_STATE, VERSION, rest @ ..] => stamp(rest).map(RowKind::DeletedVersion),
        b"n" => Some(RowKind::StagedCount),
        [SNAPSHOT, rest @ ..] => stamp(rest).map(RowKind::Snapshot),
        [STAGED, rest @ ..] => {
            let (generation, id) = rest.split_first_chunk()?;
            Some(RowKind::Staged { generation: u64::from_be_bytes(*generation), id })
        }
        [STAGED_FIRST_GENERATION, id @ ..] => Some(RowKind::Staged { generation: 0, id }),
        [VERSION, rest @ ..] => stamp(rest).map(RowKind::Version),
        _ => None,
    }
}

/// Returns the partition that indexes one tag.
pub(crate) fn tag(space: SpaceId, tag: &str) -> Partition {
    Partition::new(space, [TAGS, tag.as_bytes()].concat())
}

/// Returns the key of a blob's row under a value of a tag, for a claim of the blob. Values are ASCII and
/// contain no zero byte.
pub(crate) fn tag_entry(value: &str, blob: &str, claim: Stamp) -> Bytes {
    [value.as_bytes(), &[0], blob.as_bytes(), &claim.ticks().to_be_bytes()].concat().into()
}

/// Returns the blob and the claim that an index row belongs to.
pub(crate) fn blob_of_tag_entry(row: &[u8]) -> Option<(&str, Stamp)> {
    let name_at = row.iter().position(|byte| *byte == 0)? + 1;
    let (name, claim) = row.get(name_at..)?.split_last_chunk()?;
    Some((std::str::from_utf8(name).ok()?, Stamp::from_ticks(u64::from_be_bytes(*claim))))
}

/// Returns the keys of all blobs that have one value of a tag.
pub(crate) fn tag_value(value: &str) -> Range<Bytes> {
    let bound = |last: u8| Bytes::from([value.as_bytes(), &[last]].concat());
    bound(0)..bound(1)
}

/// Returns the keys of all rows of a tag's partition.
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
    fn current_state_sorts_before_every_other_row_of_its_blob() {
        let stamp = Stamp::from_ticks(7);
        let staged = [staged(0, b"id"), staged(1, b"id")];
        let others = [STAGED_COUNT, snapshot(stamp), version(stamp), deleted(&snapshot(stamp))];
        for key in staged.into_iter().chain(others) {
            assert!(key > BASE, "{key:?}");
        }
    }

    #[test]
    fn dropped_blocks_are_those_of_all_generations_except_the_current_one() {
        let generations = [0, 1, 2, 0x7400_0000_0000_0000, u64::MAX];
        let ids: [&[u8]; 3] = [&[0], b"t12345678", &[0xFF; 64]];
        for current in generations.into_iter().map(Some).chain([None]) {
            let ranges = dropped(current);
            let is_dropped = |key: &Bytes| ranges.iter().any(|range| range.contains(key));
            for (generation, id) in generations.iter().flat_map(|g| ids.map(|id| (*g, id))) {
                let key = staged(generation, id);
                assert!(staged_in(generation).contains(&key));
                assert_eq!(is_dropped(&key), Some(generation) != current, "{generation} {current:?}");
            }
            let stamp = Stamp::from_ticks(u64::MAX);
            let others = [BASE, STAGED_COUNT, snapshot(stamp), version(Stamp::default())];
            assert!(!others.iter().any(is_dropped), "{current:?}");
        }
    }

    #[test]
    fn every_key_round_trips() {
        let stamp = Stamp::from_ticks(0x0102_0304_0506_0708);
        for (key, kind) in [
            (BASE, RowKind::Base),
            (STAGED_COUNT, RowKind::StagedCount),
            (snapshot(stamp), RowKind::Snapshot(stamp)),
            (version(stamp), RowKind::Version(stamp)),
            (deleted(&snapshot(stamp)), RowKind::DeletedSnapshot(stamp)),
            (deleted(&version(stamp)), RowKind::DeletedVersion(stamp)),
            (staged(7, b"x"), RowKind::Staged { generation: 7, id: b"x" }),
            (staged(0, b"12345678x"), RowKind::Staged { generation: 0, id: b"12345678x" }),
        ] {
            assert_eq!(row_kind(&key), Some(kind));
        }
        let entry = tag_entry("value", "a\0b", stamp);
        assert_eq!(blob_of_tag_entry(&entry), Some(("a\0b", stamp)));
        assert!(tag_value("value").contains(&entry) && !tag_value("valu").contains(&entry));
        assert_eq!((row_kind(b"s123"), row_kind(b"t123")), (None, None));
        assert_eq!(undeleted(&deleted(&version(stamp))), version(stamp));
        assert_eq!(blob_name(&blob(SpaceId(1), "ä/b").key), Some("ä/b"));
    }
}
