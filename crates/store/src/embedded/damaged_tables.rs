//! Compactions that leave damaged tables out.
//!
//! A table with a damaged block cannot be merged, and neither can tables above it with overlapping keys. The
//! tree would try the same merge again and again while its first level grows. So the first level is merged to
//! a level that no damaged table blocks, and commits and reads of everything else go on. See decision 0022.

use std::collections::HashSet;
use std::time::Instant;

use lsm_tree::compaction::PullDown;
use lsm_tree::{AbstractTree, AnyTree, SeqNo, TableId};

use super::health::DamagedTable;

/// Number of runs in the first level from which they are merged around damage. Each merge rewrites the whole
/// target level, so this is more than the tree's own limit.
const MIN_RUNS: usize = 12;

/// The tables that cannot be merged.
#[derive(Default)]
pub(super) struct DamagedTables {
    tables: HashSet<TableId>,
    /// Time of the next attempt to merge these tables. The read may have failed for another reason than
    /// damage.
    pub(super) retry_at: Option<Instant>,
}

/// The level that the first level can be merged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeTarget {
    /// A level below which nothing changes.
    Level(u8),
    /// The first level itself, because the level below it is damaged.
    FirstLevel,
    /// No level, because the first level itself is damaged.
    None,
}

impl DamagedTables {
    /// Adds a table. Returns false if it was already known.
    pub(super) fn add(&mut self, table: &DamagedTable) -> bool {
        let name = table.path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.parse().ok()).is_some_and(|id| self.tables.insert(id))
    }

    pub(super) fn contains(&self, table: TableId) -> bool {
        self.tables.contains(&table)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether only merges without the damaged tables should be tried at the moment.
    pub(super) fn is_avoided(&self) -> bool {
        !self.tables.is_empty() && self.retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// Merges the runs of the first level, if there are many and a level is free of damage.
    pub(super) fn compact_around(&self, tree: &AnyTree, oldest: SeqNo) -> lsm_tree::Result<()> {
        if tree.l0_run_count() < MIN_RUNS {
            return Ok(());
        }
        match self.merge_target(tree) {
            MergeTarget::None => Ok(()),
            MergeTarget::Level(level) => tree.compact(std::sync::Arc::new(PullDown(0, level)), oldest),
            MergeTarget::FirstLevel => {
                // The merged run becomes the newest of its level, so no flush may add a newer one meanwhile.
                let _no_flush = tree.get_flush_lock();
                tree.compact(std::sync::Arc::new(PullDown(0, 0)), oldest)
            }
        }
    }

    fn merge_target(&self, tree: &AnyTree) -> MergeTarget {
        let version = tree.current_version();
        let is_damaged = |level: usize| {
            version.level(level).is_some_and(|level| level.list_ids().iter().any(|id| self.contains(*id)))
        };
        let is_empty = |level: usize| version.level(level).is_none_or(|level| level.is_empty());
        merge_target(version.level_count(), is_empty, is_damaged)
    }
}

fn merge_target(
    levels: usize,
    is_empty: impl Fn(usize) -> bool,
    is_damaged: impl Fn(usize) -> bool,
) -> MergeTarget {
    if is_damaged(0) {
        return MergeTarget::None;
    }
    let first = (1..levels).find(|level| !is_empty(*level)).unwrap_or(levels - 1);
    // A level above the first one with tables is empty, so the merged rows stay above all older ones.
    let level = if is_damaged(first) { first - 1 } else { first };
    match u8::try_from(level) {
        Ok(0) | Err(_) => MergeTarget::FirstLevel,
        Ok(level) => MergeTarget::Level(level),
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::SequenceNumberCounter;

    use super::*;

    // Rows merged within the first level stay newer than the damaged level below, and older than later
    // flushes.
    #[test]
    fn rows_merged_within_the_first_level_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let seqno = SequenceNumberCounter::default();
        let tree = super::super::open_tree(dir.path(), None, &seqno, 1 << 20).unwrap();
        let write = |value: &str| {
            tree.insert("key", value, seqno.next());
            tree.flush_active_memtable(0).unwrap();
        };
        write("oldest");
        tree.compact(std::sync::Arc::new(PullDown(0, 1)), 0).unwrap();
        let below = tree.current_version().level(1).unwrap().list_ids();
        let damage = DamagedTables { tables: below.into_iter().collect(), retry_at: None };
        for round in 0..40 {
            write(&round.to_string());
            assert!(tree.l0_run_count() <= MIN_RUNS, "{}", tree.l0_run_count());
            damage.compact_around(&tree, seqno.get()).unwrap();
            let found = tree.get("key", lsm_tree::SeqNo::MAX).unwrap().unwrap();
            assert_eq!(found, round.to_string().as_bytes());
        }
        assert_eq!(tree.current_version().level(1).unwrap().table_count(), 1, "the damaged table stays");
    }

    #[test]
    fn first_level_is_merged_above_damaged_tables() {
        // Columns: levels with tables, damaged levels, target.
        for (filled, damaged, expected) in [
            (&[0, 6][..], &[6][..], MergeTarget::Level(5)),
            (&[0, 5, 6], &[6], MergeTarget::Level(5)),
            (&[0, 5, 6], &[5], MergeTarget::Level(4)),
            (&[0, 1, 6], &[6], MergeTarget::Level(1)),
            (&[0, 1, 6], &[1], MergeTarget::FirstLevel),
            (&[0, 6], &[0], MergeTarget::None),
            (&[0], &[], MergeTarget::Level(6)),
        ] {
            let found = merge_target(7, |level| !filled.contains(&level), |level| damaged.contains(&level));
            assert_eq!(found, expected, "{filled:?} {damaged:?}");
        }
    }
}
