//! Figures of the engine for operators, read when they are asked for.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lazuli_metrics::Histogram;
use lsm_tree::AbstractTree;

use super::Embedded;
use super::rows::DAMAGED_READS;
use crate::log;

/// How the engine is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Work that waits for the committer.
    pub queue_depth: usize,
    /// Runs in the tree's first level.
    pub level0_runs: usize,
    /// Memtables that wait to be flushed.
    pub sealed_memtables: usize,
    /// Bytes of rows in the memtable that commits go to.
    pub memtable_bytes: u64,
    /// Bytes of table blocks that are cached.
    pub cached_block_bytes: u64,
    /// Bytes of rows that scans keep.
    pub run_bytes: usize,
    /// Bytes of the tables' filters and indexes that stay in memory as long as their tables.
    pub pinned_bytes: usize,
    /// Versions of the list of tables that a snapshot may still need.
    pub old_versions: usize,
    /// For how long the oldest snapshot that a reader holds has been out of date.
    pub oldest_snapshot: Duration,
}

impl Embedded {
    /// How the engine is now.
    pub fn figures(&self) -> Figures {
        let shared = &self.shared;
        let view = shared.views.current();
        Figures {
            queue_depth: shared.queue.depth(),
            level0_runs: view.level0_runs,
            sealed_memtables: view.sealed_count(),
            memtable_bytes: view.active_bytes(),
            cached_block_bytes: shared.tree.tree_config().cache.size(),
            run_bytes: shared.runs.bytes(),
            pinned_bytes: shared.tree.pinned_filter_size() + shared.tree.pinned_block_index_size(),
            old_versions: shared.tree.version_free_list_len(),
            oldest_snapshot: shared.snapshots.oldest_age(),
        }
    }

    /// How long commits took, from being handed over to their answer.
    pub fn commit_times(&self) -> &Histogram {
        &self.shared.queue.times
    }

    /// How many commits were made durable together.
    pub fn group_sizes(&self) -> &Histogram {
        &self.shared.queue.groups
    }

    /// How long syncs of the log took, in this process.
    pub fn log_sync_times(&self) -> &'static Histogram {
        &log::SYNC_TIMES
    }

    /// Reads of rows that found a table damaged, in this process.
    pub fn damaged_reads(&self) -> u64 {
        DAMAGED_READS.load(Ordering::Relaxed)
    }

    /// Bytes that the log takes on disk. Looks at a few files.
    pub fn log_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let mut bytes = 0;
        for entry in std::fs::read_dir(&self.shared.flusher.log_dir)? {
            match entry?.metadata() {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // Retired meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}
