//! All rows of a store: walks over them in pages, and counts of them.
//!
//! A walk holds a snapshot only while it reads a page. The tree keeps every memtable and table that a held
//! snapshot may need, so a walk in one snapshot would keep everything that is written meanwhile.
//!
//! The committer counts the rows that it adds and removes, in a row that is part of every group that changes
//! the counts. If a walk finds fewer rows than were counted, rows were lost.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lsm_tree::SeqNo;

use super::view::View;
use super::{EngineState, rows};
use crate::{
    AllVisitor, MAX_SCAN_BYTES, MAX_SCAN_ROWS, ReadError, Row, RowCounts, RowPosition, SpaceHeader, SpaceId,
    keys,
};

/// Implements [`crate::Store::visit_all`].
pub(super) fn visit_page(
    shared: &EngineState,
    from: Option<RowPosition>,
    visitor: &mut AllVisitor<'_>,
) -> Result<Option<RowPosition>, ReadError> {
    let snapshot = shared.snapshots.current();
    let start = match &from {
        Some(position) => keys::space_from(position.space, &position.partition, &position.key),
        None => keys::space_from(SpaceId(0), &[], &[]),
    };
    let end = keys::space_end(SpaceId(u64::MAX));
    let (mut seen, mut bytes) = (0, 0);
    for row in rows::range(&snapshot.view, start..end, snapshot.seqno) {
        let (full, stored) = row?;
        let position = keys::position(&full).ok_or_else(|| keys::malformed(&full))?;
        let RowPosition { space, partition, key } = position.clone();
        let size = full.len() + stored.value.len();
        let row = Row { key, value: stored.value, token: stored.token };
        if seen == MAX_SCAN_ROWS || bytes >= MAX_SCAN_BYTES || visitor(space, partition, row).is_break() {
            return Ok(Some(position));
        }
        seen += 1;
        bytes += size;
    }
    Ok(None)
}

/// Returns all spaces that have headers.
pub(super) fn spaces(shared: &EngineState) -> Result<Vec<(SpaceId, SpaceHeader)>, ReadError> {
    let snapshot = shared.snapshots.current();
    let headers = rows::range(&snapshot.view, keys::headers(), snapshot.seqno).map(|row| {
        let (key, stored) = row?;
        let space = keys::header_of(&key).ok_or_else(|| keys::malformed(&key))?;
        Ok((space, rows::decode_header(space, &stored.value)?))
    });
    headers.collect()
}

/// The rows that a commit or a group adds and removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CountChange {
    pub(super) added: u64,
    pub(super) removed: u64,
}

impl CountChange {
    pub(super) fn add(&mut self, other: Self) {
        self.added += other.added;
        self.removed += other.removed;
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(super) fn applied_to(self, counts: RowCounts) -> RowCounts {
        RowCounts {
            added: counts.added + self.added,
            removed: counts.removed + self.removed,
            complete: counts.complete,
        }
    }
}

/// Encodes the value of the row that counts rows.
pub(super) fn encode_counts(counts: RowCounts) -> Bytes {
    let mut value = BytesMut::with_capacity(17);
    value.put_u64_le(counts.added);
    value.put_u64_le(counts.removed);
    value.put_u8(counts.complete.into());
    value.freeze()
}

/// Reads the row counts from a tree. A tree without rows begins to count; one with rows but no counts was
/// made by an earlier version.
pub(super) fn stored_counts(view: &View, seqno: SeqNo) -> Result<RowCounts, ReadError> {
    if let Some(mut stored) = rows::get(view, keys::COUNTS, seqno)? {
        let value = &mut stored.value;
        let counts = (value.try_get_u64_le(), value.try_get_u64_le(), value.try_get_u8());
        return match counts {
            (Ok(added), Ok(removed), Ok(complete)) => {
                Ok(RowCounts { added, removed, complete: complete == 1 })
            }
            _ => Err(ReadError::Damaged("the counts of rows are too short".into())),
        };
    }
    let all = keys::space_from(SpaceId(0), &[], &[])..keys::space_end(SpaceId(u64::MAX));
    let is_empty = rows::range(view, all, seqno).next().transpose()?.is_none();
    Ok(RowCounts { complete: is_empty, ..RowCounts::default() })
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use lazuli_concurrency::SystemClock;

    use crate::embedded::{Embedded, Options};
    use crate::{Commit, Mutation, Partition, Row, SpaceHeader, SpaceId, Store};

    // The tree keeps the data of held snapshots, so memory and disk are bounded only if walks hold none
    // between pages.
    #[tokio::test]
    async fn walk_has_no_snapshot_between_pages_and_each_page_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        let space = SpaceId(7);
        store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        let put = async |key: String, value: &'static str| {
            let mutations = vec![Mutation::Put(key.into(), value.into())];
            let (stamp, conditions) = (store.stamp(), vec![]);
            let commit = Commit {
                stamp,
                epoch: 0,
                conditions,
                mutations,
                valid_until: None,
                fence: None,
                bulk: false,
            };
            store.commit(&Partition::new(space, "p"), commit).await.unwrap();
        };
        for row in 0..60 {
            put(format!("{row:02}"), "old").await;
        }
        let (mut from, mut pages) = (None, 0);
        loop {
            let mut values = vec![];
            let mut visitor = |_, _, row: Row| {
                if values.len() == 10 {
                    return ControlFlow::Break(());
                }
                values.push(row.value);
                ControlFlow::Continue(())
            };
            from = store.visit_all(from, &mut visitor).await.unwrap();
            pages += 1;
            let value = if pages == 1 { "old" } else { "new" };
            assert!(values.iter().all(|read| read == value), "page {pages}");
            for row in 0..60 {
                put(format!("{row:02}"), "new").await;
            }
            let snapshots = &store.shared.snapshots;
            assert_eq!(snapshots.oldest(), snapshots.current().seqno, "page {pages}");
            if from.is_none() {
                break;
            }
        }
        assert_eq!(pages, 6);
    }
}
