//! Figures of the engine for operators, read on request.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lazuli_metrics::{Histogram, StructureSize};
use lsm_tree::AbstractTree;

use super::rows::DAMAGED_READS;
use super::{Embedded, committer, headers};
use crate::log;
use crate::tombstones::MAX_TOMBSTONES;

/// The engine's state at one moment, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Number of jobs that wait for the committer.
    pub queue_depth: usize,
    /// Number of runs in the tree's first level.
    pub level0_runs: usize,
    /// Number of memtables that wait to be flushed.
    pub sealed_memtables: usize,
    /// Bytes of rows in the active memtable.
    pub memtable_bytes: u64,
    /// Bytes of cached table blocks.
    pub cached_block_bytes: u64,
    /// Bytes of rows in runs that are kept in memory.
    pub run_bytes: usize,
    /// Bytes of the tables' filters and indexes, which stay in memory as long as their tables.
    pub pinned_bytes: usize,
    /// Number of versions of the list of tables that a snapshot may still need.
    pub old_versions: usize,
    /// Time since the oldest held snapshot was replaced.
    pub oldest_snapshot: Duration,
}

impl Embedded {
    /// Returns the engine's current figures.
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

    /// Returns the sizes of the engine's structures in memory. May wait while a list of tables is made
    /// durable.
    pub fn structures(&self) -> Vec<StructureSize> {
        let shared = &self.shared;
        let (views, tables) = shared.views.replaced();
        let sizes = &shared.committer_sizes;
        let recent_changes = sizes.recent_changes.load(Ordering::Relaxed);
        let tombstones = sizes.tombstones.load(Ordering::Relaxed);
        let published = shared.snapshots.current().headers.len();
        vec![
            StructureSize::limited("space_headers", shared.header_cache.len(), headers::MAX_ENTRIES),
            StructureSize::limited("published_space_headers", published, committer::MAX_HEADERS),
            StructureSize::limited("recent_changes", recent_changes, committer::MAX_RECENT_CHANGES),
            StructureSize::limited("tombstones", tombstones, MAX_TOMBSTONES),
            StructureSize::derived("engine_snapshots", shared.snapshots.tracked()),
            StructureSize::derived("replaced_views", views),
            StructureSize::derived("replaced_tables", tables),
            StructureSize::derived("ended_log_segments", shared.flusher.ended_segments()),
        ]
    }

    /// Returns the times of commits, from submission to the answer.
    pub fn commit_times(&self) -> &Histogram {
        &self.shared.queue.times
    }

    /// Returns the numbers of jobs that were made durable together.
    pub fn group_sizes(&self) -> &Histogram {
        &self.shared.queue.groups
    }

    /// Returns the times of log syncs in this process.
    pub fn log_sync_times(&self) -> &'static Histogram {
        &log::SYNC_TIMES
    }

    /// Returns how many reads of rows in this process found a damaged table.
    pub fn damaged_reads(&self) -> u64 {
        DAMAGED_READS.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the log uses on disk. Reads the metadata of a few files.
    pub fn log_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        let mut bytes = 0;
        for entry in std::fs::read_dir(&self.shared.flusher.log_dir)? {
            match entry?.metadata() {
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // The segment was retired meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }
}
