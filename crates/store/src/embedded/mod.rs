//! The embedded engine: an LSM tree below a write-ahead log, changed by one committer in groups.
//!
//! ```text
//! commit → queue → committer: check, log + fdatasync, apply to memtable, publish, answer
//!                                 sealed memtable → flusher → table files → compaction
//! read   → snapshot → memtables and tables, as of its sequence number; or a run of rows that was read before
//! ```
//!
//! A restart replays the log into the tree. [`crate::log`] says what survives a crash and how damage is
//! recognized. Decision 0002 has the reasons for this tree and for a log outside of it.

mod all_rows;
mod attempts;
pub mod backup;
mod block_cache;
mod committer;
mod damaged_tables;
mod failures;
mod figures;
mod flusher;
mod group;
mod headers;
mod health;
mod loader;
mod manifest;
mod options;
mod queue;
mod recent_changes;
mod rows;
mod runs;
mod salvage;
pub mod scrub;
mod snapshot;
mod threads;
pub mod transfer;
mod view;
mod visit;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Clock, Stamp, Timestamp, WrongTime};
use lsm_tree::config::{BlockSizePolicy, PinningPolicy};
use lsm_tree::{AbstractTree, AnyTree, Cache, SequenceNumberCounter};
use parking_lot::Mutex;

use crate::clock::EngineClock;
use crate::digest::RangeDigest;
use crate::limits::check_limits;
use crate::log::{self, Log, LogError, NextSegment};
use crate::{
    AllVisitor, Commit, CommitError, MAX_SCAN_BYTES, MAX_SCAN_ROWS, Partition, ReadError, ReadSet, Reads,
    Row, RowCounts, RowPosition, RunVisitor, Scanned, SpaceHeader, SpaceId, SpacePage, Store, Visited,
    Visitor, Which, keys,
};
use committer::{Committer, CommitterSizes};
use failures::TaskError;
use flusher::{Directories, Flusher};
use headers::HeaderCache;
use manifest::Manifest;
use queue::{CommitQueue, Work};
use runs::Runs;
use snapshot::{Snapshot, Snapshots};
use threads::{CloseOnDrop, spawn, spawn_watched};
use view::{View, Views};

pub use failures::{Backoff, FailureListener, log_failure};
pub use figures::Figures;
pub use health::{Cause, DamagedTable, Health, Task, TaskFailure};
pub use loader::Loader;
pub use options::Options;
pub use salvage::{Gap, Loss, Losses, Salvage, Salvaged};

/// A scan for first rows steps over this many rows of a partition, then seeks to the next partition.
const STEPS_BEFORE_SEEK: usize = 8;
/// Maximum number of rows that one sweep removes.
const SWEEP_ROWS: usize = 1024;
/// Maximum number of attempts of one call to sweep a space.
const MAX_SWEEP_ATTEMPTS: usize = 4;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The tree cannot be opened.
    #[error("tree: {0}")]
    Tree(String),
    /// A file of the tree is damaged. Nothing was changed.
    #[error("{path}: damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// A description of the damage.
        what: String,
    },
    /// A row cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The clock must be wrong. Nothing was changed.
    #[error(transparent)]
    Time(#[from] WrongTime),
    /// A file system operation failed.
    #[error("store: {0}")]
    Io(#[from] std::io::Error),
}

/// The embedded engine, opened in one directory.
pub struct Embedded {
    shared: Arc<EngineState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    committer: Mutex<Option<JoinHandle<()>>>,
    /// Number of frames that were replayed from the log.
    replayed: u64,
}

/// The state that the engine's threads and its callers share.
pub(crate) struct EngineState {
    /// The tree. Only background threads use it; readers and the committer use a view.
    tree: AnyTree,
    views: Views,
    /// Issues the sequence numbers of operations. The tree also takes numbers from it, for its versions.
    seqno: SequenceNumberCounter,
    snapshots: Snapshots,
    header_cache: HeaderCache,
    runs: Runs,
    clock: EngineClock,
    queue: CommitQueue,
    committer_sizes: CommitterSizes,
    flusher: Flusher,
    /// Whether the disk is full, so that only commits that free space are accepted.
    full: AtomicBool,
    stopped: AtomicBool,
    /// Why the store has stopped.
    stop_reason: Mutex<Option<String>>,
}

impl EngineState {
    /// Stops the store after a disk failure or the death of a thread. Its state may not be what was
    /// acknowledged, so it acknowledges nothing more.
    fn stop(&self, what: &str, error: &std::io::Error) {
        tracing::error!(%error, "{what}; the store stops acknowledging writes");
        self.stop_reason.lock().get_or_insert_with(|| format!("{what}: {error}"));
        self.stopped.store(true, Ordering::SeqCst);
        self.clock.stop();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn peek_time(&self) -> Timestamp {
        self.clock.peek()
    }
}

impl Embedded {
    /// Opens the store in the existing directory `dir` and replays its log.
    pub fn open(dir: &Path, clock: Arc<dyn Clock>, options: Options) -> Result<Self, OpenError> {
        let log_dir = subdirectory(dir, "log")?;
        let seqno = SequenceNumberCounter::default();
        let tree_dir = subdirectory(dir, "tree")?;
        // A killed process may have renamed a new manifest into place without syncing the name. Sync it
        // before anything depends on that manifest.
        log::sync_dir(&tree_dir)?;
        let manifest = Manifest::read(&tree_dir, &log_dir)?;
        let tree = open_tree(&tree_dir, manifest.as_ref(), &seqno, options.cache_bytes)?;
        let flushed = tree.get_highest_persisted_seqno();
        read_first_rows(&tree, manifest.as_ref())?;
        let mut replayed = 0;
        let recovered = Log::recover(&log_dir, |payload| {
            replayed += 1;
            replay(&tree, payload, flushed)
        })?;
        seqno.fetch_max(tree.get_highest_seqno().map_or(1, |highest| highest + 1));
        let ceiling = read_ceiling(&View::of(&tree), seqno.get())?;
        clock.resume(ceiling)?;
        let mut ended_segments = recovered.ended();
        let sealed = match attempts::flush_recovered(&tree, &tree_dir, ended_segments.len())? {
            attempts::FlushedRecovered::All => {
                Log::retire(&log_dir, &NextSegment::default(), ended_segments.drain(..))?;
                vec![]
            }
            attempts::FlushedRecovered::NotYet { sealed } => sealed,
        };
        let log = Log::start(&log_dir, options.log_segment_bytes, recovered)?;
        let log_segment = log.segment();
        let is_sealed = !sealed.is_empty();
        let views = Views::new(&tree, sealed);
        let view = views.current();
        let counts = all_rows::stored_counts(&view, seqno.get())?;
        let shared = Arc::new(EngineState {
            snapshots: Snapshots::new(Snapshot { seqno: seqno.get(), view, headers: Arc::default(), counts }),
            views,
            header_cache: HeaderCache::default(),
            runs: Runs::new(options.run_bytes),
            clock: EngineClock::new(clock, ceiling),
            queue: CommitQueue::new(),
            committer_sizes: CommitterSizes::default(),
            flusher: Flusher::new(
                Directories { log: log_dir, next_segment: log.next(), tree: tree_dir },
                ended_segments,
                log_segment,
                options.backoff,
            ),
            full: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            stop_reason: Mutex::default(),
            tree,
            seqno,
        });
        let committer =
            Committer::new(shared.clone(), log, options.memtable_bytes, Stamp::from_ticks(ceiling.ticks()));
        if is_sealed {
            // Some replayed rows could not be flushed. They may be in any segment before the current one.
            shared.flusher.flush_before(log_segment);
        }
        let store = Self {
            committer: Mutex::new(Some(spawn("lazuli-commit", {
                let shared = shared.clone();
                move || {
                    // Release waiting callers, whether the thread ends or panics.
                    let _closed = CloseOnDrop(shared);
                    committer.run();
                }
            })?)),
            threads: Mutex::new(vec![
                spawn_watched("lazuli-flush", &shared, |shared| shared.flusher.run_flush(shared))?,
                spawn_watched("lazuli-compact", &shared, |shared| shared.flusher.run_compaction(shared))?,
            ]),
            shared,
            replayed,
        };
        store.open_root()?;
        Ok(store)
    }

    /// Returns whether the store acknowledges writes. A store that has stopped must be restarted.
    pub fn is_healthy(&self) -> bool {
        !self.shared.is_stopped()
    }

    /// Returns the current problems.
    pub fn health(&self) -> Health {
        Health {
            stopped: self.shared.stop_reason.lock().clone(),
            failing: self.shared.flusher.failures.failing(),
            full: self.shared.full.load(Ordering::Relaxed) || self.shared.flusher.failures.is_full(),
        }
    }

    /// Returns the number of failed attempts of a background task since the store was opened.
    pub fn failed_attempts(&self, task: Task) -> u64 {
        self.shared.flusher.failures.total(task)
    }

    /// Passes failures that should be logged to `listener`, which logs them instead of the store.
    pub fn on_failure(&self, listener: FailureListener) {
        self.shared.flusher.failures.listen(listener);
    }

    /// Finishes queued commits, flushes, and stops the threads. Dropping the store does the same.
    pub fn close(&self) {
        let Some(committer) = self.committer.lock().take() else { return };
        self.shared.queue.close();
        let _ = committer.join();
        self.shared.flusher.close();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        // All threads have ended. Release the files that the last flush and compaction replaced.
        let Snapshot { headers, counts, .. } = &*self.shared.snapshots.current();
        let (view, seqno) = (self.shared.views.current(), self.shared.seqno.get());
        self.shared.snapshots.publish(Snapshot { seqno, view, headers: headers.clone(), counts: *counts });
        self.shared.views.free_unused();
    }

    /// Rewrites all tables into one sorted level. Drops removed rows.
    pub fn compact(&self) -> Result<(), ReadError> {
        self.shared.flusher.compact_all(&self.shared, 64 << 20).map_err(|error| match error {
            TaskError::Tree(error) => rows::read_error(error, || "compaction".into()),
            error => ReadError::Io(error.to_string()),
        })
    }

    /// Returns the size of the tables on disk, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.tree.disk_space()
    }

    /// Returns the number of log frames that were replayed when the store was opened.
    pub const fn replayed_frames(&self) -> u64 {
        self.replayed
    }

    /// Returns all spaces with their headers. For checks, because it reads every header.
    pub fn spaces(&self) -> Result<Vec<(SpaceId, SpaceHeader)>, ReadError> {
        all_rows::spaces(&self.shared)
    }

    /// Passes all rows of all spaces to `visit`, from one snapshot, in the order of space, partition and key.
    pub fn for_each_row(
        &self,
        visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let snapshot = self.shared.snapshots.current();
        for_each_row(&snapshot.view, snapshot.seqno, visit)
    }

    /// Opens the root space of a new directory, and waits until its header is committed.
    fn open_root(&self) -> Result<(), OpenError> {
        let is_open = || self.header(&self.shared.snapshots.current(), SpaceId::ROOT).map(|h| h.is_some());
        if is_open()? {
            return Ok(());
        }
        let to = SpaceHeader { epoch: 0, open: true };
        self.shared.queue.post(Work::SetSpace { space: SpaceId::ROOT, from: None, to, stamp: self.stamp() });
        while !is_open()? {
            if !self.is_healthy() {
                return Err(std::io::Error::other("a new store could not be written").into());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    fn header(&self, snapshot: &Snapshot, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        if let Some(header) = snapshot.headers.get(&space) {
            return Ok(*header);
        }
        if let Some(header) = self.shared.header_cache.get(space, snapshot.seqno) {
            return Ok(header);
        }
        let header = rows::header(&snapshot.view, space, snapshot.seqno)?;
        self.shared.header_cache.put(space, header, snapshot.seqno);
        Ok(header)
    }

    fn scan(
        &self,
        snapshot: &Snapshot,
        prefix: &Bytes,
        asked: &std::ops::Range<Bytes>,
        limit: usize,
    ) -> Result<Scanned, ReadError> {
        let limit = limit.min(MAX_SCAN_ROWS);
        let mut scanned = Scanned {
            range: asked.clone(),
            rows: vec![],
            token: RangeDigest::default().token(),
            more: false,
        };
        let mut digest = RangeDigest::default();
        for row in rows::range(&snapshot.view, keys::range(prefix, asked), snapshot.seqno) {
            let (full, stored) = row?;
            let key = full.slice(prefix.len()..);
            if scanned.rows.len() == limit {
                scanned.range.end = key;
                scanned.more = true;
                break;
            }
            digest.add(&key, stored.token);
            scanned.rows.push(Row { key, value: stored.value, token: stored.token });
        }
        scanned.token = digest.token();
        Ok(scanned)
    }

    /// Makes one attempt of [`Store::sweep_space`].
    async fn sweep_rows(
        &self,
        space: SpaceId,
        from: &(Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        let (keys, read_at) = {
            let snapshot = self.shared.snapshots.current();
            let rest = keys::space_from(space, &from.0, &from.1)..keys::space_end(space);
            let keys = rows::range(&snapshot.view, rest, snapshot.seqno)
                .take(limit.min(SWEEP_ROWS))
                .map(|row| row.map(|(key, _)| key))
                .collect::<Result<Vec<_>, _>>()
                .map_err(committer::unreadable)?;
            (keys, snapshot.seqno)
        };
        let last = keys.is_empty() && from.0.is_empty() && from.1.is_empty();
        let next = match keys.last() {
            None => None,
            Some(key) => {
                let (_, partition, row) = keys::split(key).ok_or(CommitError::Unreadable)?;
                // The next possible key.
                Some((partition, [&row[..], &[0]].concat().into()))
            }
        };
        if last || next.is_some() {
            self.shared.queue.submit(Work::Sweep { space, keys, read_at, last }).await?;
        }
        Ok(next)
    }

    /// Passes rows to the visitor in order, until it breaks or has seen [`MAX_SCAN_BYTES`].
    fn walk(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        mut visitor: impl FnMut(Bytes, Row) -> ControlFlow<()>,
    ) -> Result<Visited, ReadError> {
        let snapshot = self.shared.snapshots.current();
        let end = match end {
            Some((partition, key)) => keys::space_from(space, &partition, &key),
            None => keys::space_end(space),
        };
        let seek = |from| rows::range(&snapshot.view, from..end.clone(), snapshot.seqno);
        let mut visited = Visited { space: self.header(&snapshot, space)?, next: None };
        let mut bytes = 0;
        let mut remaining = seek(keys::space_from(space, &from.0, &from.1));
        // The last visited row, the length of its partition's prefix, and the rows of that partition skipped
        // since.
        let (mut last, mut prefix, mut steps) = (Bytes::new(), 0, 0);
        while let Some(row) = remaining.next() {
            let (full, stored) = row?;
            if which == Which::First && prefix > 0 && full.starts_with(&last[..prefix]) {
                steps += 1;
                if steps == STEPS_BEFORE_SEEK {
                    remaining = seek(keys::after_partition(&last[..prefix]));
                }
                continue;
            }
            let (length, partition, key) = keys::split(&full).ok_or_else(|| keys::malformed(&full))?;
            (last, prefix, steps) = (full, length, 0);
            let size = last.len() + stored.value.len();
            let row = Row { key, value: stored.value, token: stored.token };
            if bytes >= MAX_SCAN_BYTES || visitor(partition, row).is_break() {
                visited.next = keys::split(&last).map(|(_, partition, key)| (partition, key));
                break;
            }
            bytes += size;
        }
        Ok(visited)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl Store for Embedded {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        let snapshot = self.shared.snapshots.current();
        let prefix = keys::prefix(partition);
        let mut set = ReadSet {
            space: self.header(&snapshot, partition.space)?,
            rows: Vec::with_capacity(reads.keys.len()),
            ranges: Vec::with_capacity(reads.ranges.len()),
        };
        for key in &reads.keys {
            let stored = rows::get(&snapshot.view, &keys::row(&prefix, key), snapshot.seqno)?;
            set.rows.push(stored.map(|s| Row { key: key.clone(), value: s.value, token: s.token }));
        }
        for (range, limit) in &reads.ranges {
            set.ranges.push(self.scan(&snapshot, &prefix, range, *limit)?);
        }
        Ok(set)
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        let mut rows = vec![];
        let limit = limit.min(MAX_SCAN_ROWS);
        let visited = self.walk(space, from, end, which, |partition, row| {
            if rows.len() == limit {
                return ControlFlow::Break(());
            }
            rows.push((partition, row));
            ControlFlow::Continue(())
        })?;
        Ok(SpacePage { space: visited.space, rows, next: visited.next })
    }

    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError> {
        let mut rows = 0;
        self.walk(space, from, end, Which::All, |partition, row| {
            if rows == MAX_SCAN_ROWS {
                return ControlFlow::Break(());
            }
            rows += 1;
            visitor(partition, row)
        })
    }

    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        self.walk_runs(space, &from, end.as_ref(), visitor)
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        all_rows::visit_page(&self.shared, from, visitor)
    }

    async fn wait_for_commits(&self) -> Result<(), CommitError> {
        self.shared.queue.submit(Work::Republish).await
    }

    fn row_counts(&self) -> Option<RowCounts> {
        Some(self.shared.snapshots.current().counts)
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        check_limits(partition, &commit)?;
        let prefix = keys::prefix(partition);
        // A held snapshot keeps its rows in the tree, so read them before dropping it.
        let snapshot = self.shared.snapshots.current();
        let preview = rows::preview(&snapshot.view, &prefix, &commit, snapshot.seqno);
        drop(snapshot);
        self.shared.queue.submit(Work::Commit { space: partition.space, prefix, commit, preview }).await
    }

    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        self.header(&self.shared.snapshots.current(), space)
    }

    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        let stamp = self.stamp();
        self.shared.queue.submit(Work::SetSpace { space, from, to, stamp }).await
    }

    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        for _ in 1..MAX_SWEEP_ATTEMPTS {
            match self.sweep_rows(space, &from, limit).await {
                // The header changed, or so much else did that this is not known. Read again.
                Err(CommitError::Conflict) => {}
                swept => return swept,
            }
        }
        self.sweep_rows(space, &from, limit).await
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        // A stamp is never issued twice, so neither is a space.
        Ok(SpaceId(self.stamp().ticks()))
    }

    fn stamp(&self) -> Stamp {
        self.shared.clock.stamp(|| self.shared.queue.post(Work::Ceiling))
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now(|| self.shared.queue.post(Work::Ceiling))
    }
}

/// Verifies a store that no process has open: all log frames, and all blocks of tables that hold rows. Passes
/// the rows to `visit`. Changes nothing in `dir`, which may be read-only. Opening the tree changes files, so
/// it is opened on a view of them in the system's temporary folder.
pub fn check(
    dir: &Path,
    visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>,
) -> Result<(), OpenError> {
    let (_copy, tree, latest) = transfer::open_view(dir)?;
    Ok(for_each_row(&View::of(&tree), latest, visit)?)
}

/// Reads all bytes of all tables, including those that no row needs. Returns the damaged files with a
/// description each. Reports progress as the number of tables read and the total. Changes nothing.
pub fn damaged_tables(
    dir: &Path,
    progress: impl FnMut(u64, u64),
) -> Result<Vec<(PathBuf, &'static str)>, OpenError> {
    match Manifest::read(&dir.join("tree"), &dir.join("log"))? {
        Some(manifest) => Ok(manifest.damaged_tables(progress)?),
        None => Ok(vec![]),
    }
}

fn for_each_row(
    view: &View,
    seqno: u64,
    mut visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let all = keys::space_from(SpaceId(0), &[], &[])..keys::space_end(SpaceId(u64::MAX));
    for row in rows::range(view, all, seqno) {
        let (full, stored) = row?;
        let RowPosition { space, partition, key } =
            keys::position(&full).ok_or_else(|| keys::malformed(&full))?;
        visit(space, &partition, &Row { key, value: stored.value, token: stored.token })?;
    }
    Ok(())
}

/// Opens a tree after verifying its manifest, or creates a new one.
fn open_tree(
    path: &Path,
    manifest: Option<&Manifest>,
    seqno: &SequenceNumberCounter,
    cache_bytes: u64,
) -> Result<AnyTree, OpenError> {
    if let Some(manifest) = manifest {
        manifest.verify_contents()?;
    }
    // The tree's own visibility counter is not used: readers use published snapshots.
    let visible = SequenceNumberCounter::default();
    lsm_tree::Config::new(path, seqno.clone(), visible)
        .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
        .data_block_size_policy(BlockSizePolicy::all(4096))
        .filter_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .open()
        .map_err(|error| match manifest {
            Some(manifest) => manifest.explain(error.to_string()),
            None => OpenError::Tree(error.to_string()),
        })
}

fn replay(tree: &AnyTree, payload: &[u8], flushed: Option<u64>) {
    for operation in group::decode(payload) {
        let Some(group::RowOperation { seqno, key, value }) = operation else {
            tracing::error!("a log frame with a valid checksum holds no operations");
            return;
        };
        if flushed.is_some_and(|flushed| seqno <= flushed) {
            continue;
        }
        match value {
            Some(value) => tree.insert(key, value, seqno),
            None => tree.remove(key, seqno),
        };
    }
}

/// Reads the rows that every start needs from the tables. So damage to their blocks is found, and the store
/// is refused, before anything is written.
fn read_first_rows(tree: &AnyTree, manifest: Option<&Manifest>) -> Result<(), OpenError> {
    let seqno = tree.get_highest_persisted_seqno().map_or(1, |highest| highest + 1);
    let view = View::of(tree);
    let read = rows::get(&view, keys::CLOCK, seqno).and_then(|_| rows::header(&view, SpaceId::ROOT, seqno));
    match (read, manifest) {
        (Ok(_), _) => Ok(()),
        (Err(error), Some(manifest)) => Err(manifest.explain(error.to_string())),
        (Err(error), None) => Err(error.into()),
    }
}

fn read_ceiling(view: &View, seqno: u64) -> Result<Timestamp, OpenError> {
    let stored = rows::get(view, keys::CLOCK, seqno)?;
    let ticks = stored.and_then(|s| s.value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
    Ok(Timestamp::from_ticks(ticks.unwrap_or(0)))
}

fn subdirectory(dir: &Path, name: &str) -> std::io::Result<PathBuf> {
    let path = dir.join(name);
    if !path.exists() {
        std::fs::create_dir(&path)?;
    }
    log::sync_dir(dir)?;
    Ok(path)
}
