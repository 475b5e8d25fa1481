//! Compactions that leave damaged tables out.
//!
//! A table with a damaged block cannot be merged, and neither can tables above it whose keys overlap. The tree would choose the
//! same merge again and again while its first level grows. So the first level is merged to where no damaged table is in the
//! way, and commits and reads of everything else go on. See decision 0022.

use std::collections::HashSet;
use std::time::Instant;

use lsm_tree::compaction::PullDown;
use lsm_tree::{AbstractTree, AnyTree, SeqNo, TableId};

use super::health::DamagedTable;

/// Runs in the first level from which on they are merged around damage. Each merge writes the whole target level again, so
/// this is more than the tree waits for by itself.
const MIN_RUNS: usize = 12;

/// Tables that cannot be merged.
#[derive(Default)]
pub(super) struct Damage {
    tables: HashSet<TableId>,
    /// When a merge of these tables is tried again: what failed may have been a read, not the table.
    pub(super) retry_at: Option<Instant>,
}

/// Where the first level can be merged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Into a level below which nothing changes.
    Level(u8),
    /// Within the first level: the level below it is damaged.
    FirstLevel,
    /// Nowhere: the first level itself is damaged.
    None,
}

impl Damage {
    /// Takes note of a table. False if it was known already.
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

    /// Whether only merges that leave the damaged tables out are to be tried for now.
    pub(super) fn is_avoided(&self) -> bool {
        !self.tables.is_empty() && self.retry_at.is_some_and(|at| Instant::now() < at)
    }

    /// Merges the runs of the first level, if there are many and no damaged table is in the way.
    pub(super) fn compact_around(&self, tree: &AnyTree, oldest: SeqNo) -> lsm_tree::Result<()> {
        if tree.l0_run_count() < MIN_RUNS {
            return Ok(());
        }
        match self.target(tree) {
            Target::None => Ok(()),
            Target::Level(level) => tree.compact(std::sync::Arc::new(PullDown(0, level)), oldest),
            Target::FirstLevel => {
                // The merged run becomes the newest of its level, so no flush may add a newer one meanwhile.
                let _no_flush = tree.get_flush_lock();
                tree.compact(std::sync::Arc::new(PullDown(0, 0)), oldest)
            }
        }
    }

    fn target(&self, tree: &AnyTree) -> Target {
        let version = tree.current_version();
        let is_damaged = |level: usize| {
            version.level(level).is_some_and(|level| level.list_ids().iter().any(|id| self.contains(*id)))
        };
        let is_empty = |level: usize| version.level(level).is_none_or(|level| level.is_empty());
        target(version.level_count(), is_empty, is_damaged)
    }
}

fn target(levels: usize, is_empty: impl Fn(usize) -> bool, is_damaged: impl Fn(usize) -> bool) -> Target {
    if is_damaged(0) {
        return Target::None;
    }
    let first = (1..levels).find(|level| !is_empty(*level)).unwrap_or(levels - 1);
    // A level above the first one with tables is empty, so its rows are newer than all below it.
    let level = if is_damaged(first) { first - 1 } else { first };
    match u8::try_from(level) {
        Ok(0) | Err(_) => Target::FirstLevel,
        Ok(level) => Target::Level(level),
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::SequenceNumberCounter;

    use super::*;

    /// What is merged within the first level stays newer than the damaged level below, and older than what comes later.
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
        let damage = Damage { tables: below.into_iter().collect(), retry_at: None };
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
    fn the_first_level_is_merged_to_where_no_damaged_table_is_in_the_way() {
        // (levels with tables, damaged levels, target)
        for (filled, damaged, expected) in [
            (&[0, 6][..], &[6][..], Target::Level(5)),
            (&[0, 5, 6], &[6], Target::Level(5)),
            (&[0, 5, 6], &[5], Target::Level(4)),
            (&[0, 1, 6], &[6], Target::Level(1)),
            (&[0, 1, 6], &[1], Target::FirstLevel),
            (&[0, 6], &[0], Target::None),
            (&[0], &[], Target::Level(6)),
        ] {
            let found = target(7, |level| !filled.contains(&level), |level| damaged.contains(&level));
            assert_eq!(found, expected, "{filled:?} {damaged:?}");
        }
    }
}
