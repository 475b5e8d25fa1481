//! Writes the states of one blob in time order.
//!
//! Snapshots, versions and deleted states have rows of different kinds. Only the rows of one kind are stored
//! in time order, so the kinds are read in parallel and merged. The position of a state is the time of its
//! row, then the key, so a marker that names the row leads back to the same position.

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::Refusal;
use lazuli_store::{Partition, Reads, Row, Scanned, SpaceId, prefix_range};

use super::{BlobInclude, BlobListing, LAST, MAX_ROWS, Position};
use crate::model::keys::{self, RowKind};
use crate::{BlobService, reply};

/// Rows of each kind that are read at once. [`merge_in_time_order`] needs at least two.
const STATES_AT_ONCE: usize = 32;

impl BlobService {
    /// Begins a page in the middle of a blob: writes the states from the position on, except the current one,
    /// which comes last. Returns the position of the next page if this one is full.
    pub(super) async fn resume(
        &self,
        space: SpaceId,
        listing: &mut BlobListing<'_>,
        from: &Position,
        read: &mut usize,
    ) -> Result<Option<Position>, Refusal> {
        let is_version =
            matches!(keys::row_kind(&from.latest), Some(RowKind::Version(_) | RowKind::DeletedVersion(_)));
        let latest = is_version.then(|| from.latest.clone());
        let reads = Reads::keys([keys::BASE].into_iter().chain(latest));
        let set = self.store.read(&Partition::new(space, from.partition.clone()), &reads).await;
        if !listing.begin_blob(from.partition.clone()) {
            return Ok(None);
        }
        let mut rows = set.map_err(reply::read_refusal)?.rows.into_iter();
        listing.current.base = rows.next().flatten().map(|row| listing.decode(&row)).transpose()?;
        if let Some(row) = rows.next().flatten() {
            let version = listing.decode(&row)?;
            listing.remember_version(&row.key, version);
        }
        listing.current.is_merged = true;
        if from.key == LAST {
            Ok(None)
        } else {
            self.write_states(space, listing, from.key.clone(), read).await
        }
    }

    /// Writes the states of the current blob from a row on, except the current one. Returns the position of
    /// the next page if this one is full.
    pub(super) async fn write_states(
        &self,
        space: SpaceId,
        listing: &mut BlobListing<'_>,
        mut from: Bytes,
        read: &mut usize,
    ) -> Result<Option<Position>, Refusal> {
        let partition = listing.current.partition.clone();
        loop {
            let reads = reads_from(listing.include, &from);
            let set = self.store.read(&Partition::new(space, partition.clone()), &reads).await;
            let (rows, next) = merge_in_time_order(set.map_err(reply::read_refusal)?.ranges);
            *read += rows.len();
            for row in rows {
                let full = listing.process_state(&row)?;
                // The page is full, or a prefix stands for the whole blob.
                if full.is_some() || partition < listing.start {
                    return Ok(full);
                }
            }
            let Some(next) = next else { return Ok(None) };
            if *read >= MAX_ROWS {
                return Ok(Some(listing.position_of(next)));
            }
            from = next;
            tokio::task::yield_now().await;
        }
    }
}

/// Returns the kinds of rows that are listed in addition to the current state, each with its first key.
/// Ordered by key.
pub(super) fn kinds() -> [(RowKind<'static>, Bytes); 4] {
    const FIRST: Stamp = Stamp::from_ticks(0);
    let (snapshots, versions) = (keys::snapshots().start, keys::versions().start);
    [
        (RowKind::DeletedSnapshot(FIRST), keys::deleted(&snapshots)),
        (RowKind::DeletedVersion(FIRST), keys::deleted(&versions)),
        (RowKind::Snapshot(FIRST), snapshots),
        (RowKind::Version(FIRST), versions),
    ]
}

/// Returns the first key of the last kind of rows that the listing needs. From that key on, rows are stored
/// in time order.
pub(super) fn last_needed_kind(include: BlobInclude) -> Bytes {
    let wanted = kinds().into_iter().rfind(|(kind, _)| include.needs_kind(*kind));
    wanted.map(|(_, start)| start).unwrap_or_default()
}

/// Returns the reads of all needed kinds, beginning at the time of the row `from`. If `from` has no time,
/// they begin at the first row.
fn reads_from(include: BlobInclude, from: &[u8]) -> Reads {
    let stamp = keys::row_kind(from).and_then(RowKind::stamp);
    let wanted = kinds().into_iter().filter(|(kind, _)| include.needs_kind(*kind));
    wanted.fold(Reads::default(), |reads, (_, kind)| {
        let mut range = prefix_range(&kind);
        if let Some(stamp) = stamp {
            let at = [&kind[..], &stamp.ticks().to_be_bytes()].concat();
            range.start = if at[..] < *from { [&at[..], &[0]].concat().into() } else { at.into() };
        }
        reads.and_range(range, STATES_AT_ONCE)
    })
}

/// Merges the rows of all ranges into time order, up to the first row that may follow unread rows. Returns
/// that row's key if there are more. The caller makes progress because every unfinished range has at least
/// two rows.
fn merge_in_time_order(ranges: Vec<Scanned>) -> (Vec<Row>, Option<Bytes>) {
    let position = |row: &Row| (keys::row_kind(&row.key).and_then(RowKind::stamp), row.key.clone());
    let cut_short = ranges.iter().filter(|range| range.more);
    let end = cut_short.filter_map(|range| range.rows.last()).map(position).min();
    let mut rows: Vec<_> = ranges.into_iter().flat_map(|range| range.rows).collect();
    rows.retain(|row| end.as_ref().is_none_or(|end| position(row) < *end));
    rows.sort_by_cached_key(position);
    (rows, end.map(|(_, key)| key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_store::{RangeToken, Token};

    fn scanned(keys: &[Bytes], more: bool) -> Scanned {
        let row =
            |key: &Bytes| Row { key: key.clone(), value: Bytes::new(), token: Token(Stamp::from_ticks(0)) };
        let rows = keys.iter().map(row).collect();
        Scanned { range: Bytes::new()..Bytes::new(), rows, token: RangeToken(0), more }
    }

    fn snapshot(ticks: u64) -> Bytes {
        keys::snapshot(Stamp::from_ticks(ticks))
    }

    fn deleted(ticks: u64) -> Bytes {
        keys::deleted(&snapshot(ticks))
    }

    #[test]
    fn states_are_merged_up_to_the_first_unread_row() {
        let (gone, live) = ([deleted(2), deleted(4)], [snapshot(1), snapshot(2), snapshot(3), snapshot(9)]);
        for (more, expected, next) in [
            ([false, false], &[&live[0], &gone[0], &live[1], &live[2], &gone[1], &live[3]][..], None),
            ([true, false], &[&live[0], &gone[0], &live[1], &live[2]], Some(&gone[1])),
            ([false, true], &[&live[0], &gone[0], &live[1], &live[2], &gone[1]], Some(&live[3])),
            ([true, true], &[&live[0], &gone[0], &live[1], &live[2]], Some(&gone[1])),
        ] {
            let (rows, from) = merge_in_time_order(vec![scanned(&gone, more[0]), scanned(&live, more[1])]);
            assert_eq!(rows.iter().map(|row| &row.key).collect::<Vec<_>>(), expected, "{more:?}");
            assert_eq!(from.as_ref(), next, "{more:?}");
        }
    }

    #[test]
    fn reads_of_every_kind_begin_at_the_time_of_the_row() {
        let include = BlobInclude { snapshots: true, deleted: true, ..BlobInclude::default() };
        let starts = |from: &[u8]| {
            reads_from(include, from).ranges.into_iter().map(|(range, _)| range.start).collect()
        };
        let after = |key: Bytes| Bytes::from([&key[..], &[0]].concat());
        let all: Vec<Bytes> = vec![keys::deleted(b"s"), Bytes::from_static(b"s")];
        assert_eq!((starts(b""), starts(&keys::BASE), starts(b"s123")), (all.clone(), all.clone(), all));
        assert_eq!(starts(&deleted(7)), [deleted(7), snapshot(7)]);
        assert_eq!(starts(&snapshot(7)), [after(deleted(7)), snapshot(7)]);
    }
}
