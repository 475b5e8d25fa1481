//! `lsm-tree`, with the options of Lazuli's store.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use arc_swap::ArcSwap;
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{BlockSizePolicy, PinningPolicy};
use lsm_tree::table::filter::standard_bloom::Builder as Filter;
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, Guard, InternalValue, Memtable, SeqNo, SequenceNumberCounter,
    ValueType,
};

use super::{Sizes, Tree};
use crate::rows::Row;

/// Commits wait while more sealed memtables or runs of the first level than this exist, as in Lazuli.
const MAX_SEALED: usize = 2;
const MAX_RUNS: usize = 24;
/// Commits wait while the active memtable has this many times its usual size, as in Lazuli.
const MAX_GROWTH: u64 = 3;
/// Readers are done with a snapshot after this time. The store tracks its snapshots instead.
const SNAPSHOT_AGE: Duration = Duration::from_secs(1);

/// How reads and inserts find memtables and tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the tree, which guards its list with a lock.
    Tree,
    /// Through copies of the list, as in Lazuli (decision 0029).
    Views,
}

type Find = dyn Fn(&[u8], SeqNo) -> lsm_tree::Result<Option<InternalValue>> + Send + Sync;

/// The memtables and tables at one moment.
struct View {
    active: Arc<Memtable>,
    sealed: Option<Arc<Memtable>>,
    /// Runs in the first level.
    level0_runs: usize,
    /// Looks in all tables. The type of a run has no public name.
    find_in_tables: Box<Find>,
}

impl View {
    fn capture(tree: &AnyTree, sealed: Option<Arc<Memtable>>) -> Self {
        let latest = tree.get_version_history_lock().latest_version();
        let version = tree.current_version();
        let runs: Vec<_> = version.iter_levels().flat_map(|level| level.iter().cloned()).collect();
        Self {
            active: latest.active_memtable.clone(),
            sealed,
            level0_runs: version.level(0).map_or(0, |level| level.run_count()),
            find_in_tables: Box::new(move |key, seqno| {
                let hash = Filter::get_hash(key);
                for table in runs.iter().filter_map(|run| run.get_for_key(key)) {
                    if let Some(found) = table.get(key, seqno, hash)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }),
        }
    }

    fn get(&self, key: &[u8], seqno: SeqNo) -> lsm_tree::Result<Option<Vec<u8>>> {
        let mut memtables = std::iter::once(&self.active).chain(&self.sealed);
        let found = match memtables.find_map(|memtable| memtable.get(key, seqno)) {
            None => (self.find_in_tables)(key, seqno)?,
            found => found,
        };
        Ok(found.filter(|entry| !entry.is_tombstone()).map(|entry| entry.value.to_vec()))
    }
}

pub struct Lsm {
    tree: AnyTree,
    access: Access,
    sequence: SequenceNumberCounter,
    /// Readers see operations below this number.
    published: AtomicU64,
    view: ArcSwap<View>,
    /// Held while a group is inserted, so that the flusher knows that no insert uses an older view.
    inserting: Mutex<()>,
    /// Held while the view is replaced.
    changing: Mutex<()>,
    older: Mutex<(Instant, SeqNo, SeqNo)>,
    sizes: Sizes,
}

impl Lsm {
    pub fn open(dir: &Path, sizes: Sizes, access: Access) -> Result<Self> {
        let sequence = SequenceNumberCounter::default();
        let tree = Config::new(dir, sequence.clone(), SequenceNumberCounter::default())
            .use_cache(Arc::new(Cache::with_capacity_bytes(sizes.cache_bytes as u64)))
            .data_block_size_policy(BlockSizePolicy::all(4096))
            .filter_block_pinning_policy(PinningPolicy::new([true, true, false]))
            .open()?;
        let next = tree.get_highest_persisted_seqno().map_or(1, |last| last + 1);
        sequence.set(next);
        Ok(Self {
            view: ArcSwap::from_pointee(View::capture(&tree, None)),
            tree,
            access,
            sequence,
            published: AtomicU64::new(next),
            inserting: Mutex::new(()),
            changing: Mutex::new(()),
            older: Mutex::new((Instant::now(), 0, next)),
            sizes,
        })
    }

    fn snapshot(&self) -> SeqNo {
        self.published.load(Ordering::Acquire)
    }

    /// Returns a sequence number that no reader's snapshot is below.
    fn watermark(&self) -> SeqNo {
        let mut older = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        if older.0.elapsed() > SNAPSHOT_AGE {
            *older = (Instant::now(), older.2, self.snapshot());
        }
        older.1
    }

    fn replace_view(&self, sealed: Option<Arc<Memtable>>) -> Arc<View> {
        self.view.swap(Arc::new(View::capture(&self.tree, sealed)))
    }
}

impl Tree for Lsm {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let snapshot = self.snapshot();
        Ok(match self.access {
            Access::Tree => self.tree.get(key, snapshot)?.map(|value| value.to_vec()),
            Access::Views => self.view.load().get(key, snapshot)?,
        })
    }

    fn all(&self) -> Result<Vec<Row>> {
        let rows = self.tree.range::<&[u8], _>(.., self.snapshot(), None).map(|row| {
            let (key, value) = row.into_inner()?;
            Ok((key.to_vec(), value.to_vec()))
        });
        rows.collect()
    }

    fn insert(&self, rows: &[Row]) -> Result<()> {
        let _inserting = self.inserting.lock().unwrap_or_else(PoisonError::into_inner);
        let seqno = self.sequence.next();
        let view = self.view.load();
        for (key, value) in rows {
            match self.access {
                Access::Tree => {
                    self.tree.insert(key.as_slice(), value.as_slice(), seqno);
                }
                Access::Views => {
                    view.active.insert(InternalValue::from_components(
                        key.as_slice(),
                        value.as_slice(),
                        seqno,
                        ValueType::Value,
                    ));
                }
            }
        }
        self.published.store(seqno + 1, Ordering::Release);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let sealed = {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let sealed = self.tree.rotate_memtable();
            drop(self.replace_view(sealed.clone()));
            sealed
        };
        if sealed.is_none() && self.tree.sealed_memtable_count() == 0 {
            return Ok(());
        }
        drop(self.inserting.lock());
        self.tree.flush(&self.tree.get_flush_lock(), self.watermark())?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.replace_view(None));
        Ok(())
    }

    fn compact(&self) -> Result<bool> {
        let before = self.tree.current_version().id();
        let strategy = Leveled::default().with_table_target_size(self.sizes.table_bytes);
        self.tree.compact(Arc::new(strategy), self.watermark())?;
        let is_changed = self.tree.current_version().id() != before;
        if is_changed {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let sealed = self.view.load().sealed.clone();
            // If a flush has just finished, the sealed memtable is in a table, too.
            drop(self.replace_view(sealed));
        }
        Ok(is_changed)
    }

    fn is_behind(&self) -> bool {
        match self.access {
            Access::Tree => {
                self.tree.sealed_memtable_count() > MAX_SEALED || self.tree.l0_run_count() > MAX_RUNS
            }
            Access::Views => {
                let view = self.view.load();
                view.level0_runs > MAX_RUNS || view.active.size() > MAX_GROWTH * self.sizes.memtable_bytes
            }
        }
    }

    fn compact_all(&self) -> Result<()> {
        self.tree.major_compact(self.sizes.table_bytes, self.snapshot())?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace_view(None);
        Ok(())
    }
}
