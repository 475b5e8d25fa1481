//! The embedded engine: an LSM tree under a log of our own, changed by one committer that does group commit.
//!
//! ```text
//! commit → queue → committer: judge, log + fdatasync, apply to memtable, publish, answer
//!                                 sealed memtable → flusher → table files → compaction
//! read   → snapshot → memtables and tables, as of its sequence number; or a run of rows that was read before
//! ```
//!
//! A restart replays the log over the tree. See [`crate::log`] for what survives a crash and how damage is told from
//! it, and decision 0002 for why this tree and why a log of our own.

mod attempts;
pub mod backup;
mod committer;
mod detour;
mod everything;
mod failures;
mod figures;
mod flusher;
mod graves;
mod group;
mod headers;
mod health;
mod lately;
mod loader;
mod manifest;
mod options;
mod queue;
mod rows;
mod runs;
mod salvage;
mod scheduling;
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

use crate::clock::{self, EngineClock};
use crate::log::{self, Log, LogError, NextSegment};
use crate::{
    AllVisitor, Commit, CommitError, MAX_BULK_COMMIT_BYTES, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_MUTATIONS,
    MAX_SCAN_BYTES, MAX_SCAN_ROWS, MAX_VALUE_BYTES, Mutation, Partition, ReadError, ReadSet, Reads, Row,
    RowCounts, RowPosition, RunVisitor, Scanned, SpaceHeader, SpaceId, SpacePage, Store, Visited, Visitor,
    Which, keys,
};
use committer::Committer;
use failures::TaskError;
use flusher::{Directories, Flusher};
use headers::HeaderCache;
use manifest::Manifest;
use queue::{Queue, Work};
use rows::RangeDigest;
use runs::Runs;
use snapshot::{Snapshot, Snapshots};
use threads::{CloseOnDrop, spawn, spawn_watched};
use view::{View, Views};

pub use failures::{Backoff, FailureListener, log_failure};
pub use figures::Figures;
pub use health::{Cause, DamagedTable, Health, RowPlace, Task, TaskFailure};
pub use loader::Loader;
pub use options::Options;
pub use salvage::{Gap, Loss, Losses, Salvage, Salvaged};

/// Rows of one partition that a scan for first rows steps over before it seeks.
const STEPS_BEFORE_SEEK: usize = 8;
/// Rows that one sweep removes.
const SWEEP_ROWS: usize = 1024;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The tree.
    #[error("tree: {0}")]
    Tree(String),
    /// A file of the tree is not as it was written. Nothing was changed.
    #[error("{path}: damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A row.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The clock must be wrong. Nothing was changed.
    #[error(transparent)]
    Time(#[from] WrongTime),
    /// The file system refused.
    #[error("store: {0}")]
    Io(#[from] std::io::Error),
}

/// The embedded engine, open on one directory.
pub struct Embedded {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    committer: Mutex<Option<JoinHandle<()>>>,
    /// Frames of the log that were read when it was opened.
    replayed: u64,
}

/// What the engine's threads and its callers share.
pub(crate) struct Shared {
    /// Only background threads use it. All others use a view.
    tree: AnyTree,
    views: Views,
    /// Numbers operations. The tree takes numbers from it too, for its versions.
    seqno: SequenceNumberCounter,
    snapshots: Snapshots,
    header_cache: HeaderCache,
    runs: Runs,
    clock: EngineClock,
    queue: Queue,
    flusher: Flusher,
    /// The disk is full: only commits that free space are accepted.
    full: AtomicBool,
    stopped: AtomicBool,
    /// Why it has stopped.
    stop_reason: Mutex<Option<String>>,
}

impl Shared {
    /// The disk has failed, or a thread has died: what holds is no longer known, so nothing more is acknowledged.
    fn stop(&self, what: &str, error: &std::io::Error) {
        tracing::error!(%error, "{what}; the store stops acknowledging writes");
        self.stop_reason.lock().get_or_insert_with(|| format!("{what}: {error}"));
        self.stopped.store(true, Ordering::SeqCst);
        self.clock.stop();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn shown(&self) -> Timestamp {
        self.clock.peek()
    }
}

impl Embedded {
    /// Opens the store in `dir`, which must exist, and replays what its log holds.
    pub fn open(dir: &Path, clock: Arc<dyn Clock>, options: Options) -> Result<Self, OpenError> {
        let log_dir = subdirectory(dir, "log")?;
        let seqno = SequenceNumberCounter::default();
        let tree_dir = subdirectory(dir, "tree")?;
        // A process that was killed may have named a new manifest without syncing the name. What follows from it must not
        // outlive it.
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
        let mut old = recovered.ended();
        let sealed = match attempts::flush_recovered(&tree, &tree_dir, old.len())? {
            attempts::FlushedRecovered::All => {
                Log::retire(&log_dir, &NextSegment::default(), old.drain(..))?;
                vec![]
            }
            attempts::FlushedRecovered::NotYet { sealed } => sealed,
        };
        let log = Log::start(&log_dir, options.log_segment_bytes, recovered)?;
        let log_segment = log.segment();
        let is_sealed = !sealed.is_empty();
        let views = Views::new(&tree, sealed);
        let view = views.current();
        let counts = everything::stored_counts(&view, seqno.get())?;
        let shared = Arc::new(Shared {
            snapshots: Snapshots::new(Snapshot { seqno: seqno.get(), view, headers: Arc::default(), counts }),
            views,
            header_cache: HeaderCache::default(),
            runs: Runs::new(options.run_bytes),
            clock: EngineClock::new(clock, ceiling),
            queue: Queue::new(),
            flusher: Flusher::new(
                Directories { log: log_dir, next_segment: log.next(), tree: tree_dir },
                old,
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
            // Replayed rows that could not be flushed. Every segment before the one in use holds some of them.
            shared.flusher.flush_before(log_segment);
        }
        let store = Self {
            committer: Mutex::new(Some(spawn("lazuli-commit", {
                let shared = shared.clone();
                move || {
                    // Whether it ends or dies, nobody may wait for it any longer.
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

    /// Whether the store acknowledges writes. Once it has stopped, only a restart helps.
    pub fn is_healthy(&self) -> bool {
        !self.shared.is_stopped()
    }

    /// What is wrong, if anything is.
    pub fn health(&self) -> Health {
        Health {
            stopped: self.shared.stop_reason.lock().clone(),
            failing: self.shared.flusher.failures.failing(),
            full: self.shared.full.load(Ordering::Relaxed) || self.shared.flusher.failures.is_full(),
        }
    }

    /// Failed attempts of a background task since the store was opened.
    pub fn failed_attempts(&self, task: Task) -> u64 {
        self.shared.flusher.failures.total(task)
    }

    /// Hands failures that are due for the log to `listener`, which logs them in place of the store.
    pub fn on_failure(&self, listener: FailureListener) {
        self.shared.flusher.failures.listen(listener);
    }

    /// Finishes what waits, flushes and stops. Also done when the store is dropped.
    pub fn close(&self) {
        let Some(committer) = self.committer.lock().take() else { return };
        self.shared.queue.close();
        let _ = committer.join();
        self.shared.flusher.close();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        // No thread publishes any more. Let go of files that the last flush and compaction replaced.
        let Snapshot { headers, counts, .. } = &*self.shared.snapshots.current();
        let (view, seqno) = (self.shared.views.current(), self.shared.seqno.get());
        self.shared.snapshots.publish(Snapshot { seqno, view, headers: headers.clone(), counts: *counts });
        self.shared.views.free_unused();
    }

    /// Rewrites all tables into one sorted level, dropping what was removed.
    pub fn compact(&self) -> Result<(), ReadError> {
        self.shared.flusher.compact_all(&self.shared, 64 << 20).map_err(|error| match error {
            TaskError::Tree(error) => rows::read_error(error),
            error => ReadError::Io(error.to_string()),
        })
    }

    /// Bytes of its tables on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.shared.tree.disk_space()
    }

    /// Frames of the log that were replayed when the store was opened: what a start costs.
    pub const fn replayed_frames(&self) -> u64 {
        self.replayed
    }

    /// Every space that has a header, with the header. For checks: reads all headers.
    pub fn spaces(&self) -> Result<Vec<(SpaceId, SpaceHeader)>, ReadError> {
        everything::spaces(&self.shared)
    }

    /// About how many rows it holds, old versions counted.
    pub fn approximate_rows(&self) -> usize {
        self.shared.tree.approximate_len()
    }

    /// Hands every row of every space to `visit`, in order of space, partition and key, as of one state.
    pub fn for_each_row(
        &self,
        visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let snapshot = self.shared.snapshots.current();
        for_each_row(&snapshot.view, snapshot.seqno, visit)
    }

    /// The root is there from the start: once in a directory's life this waits for its header to be committed.
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

    /// Shows rows in order until the visitor breaks off or it has seen many bytes.
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
        // The row that was shown last, how much of its key is its partition, and rows of that stepped over since.
        let (mut shown, mut prefix, mut steps) = (Bytes::new(), 0, 0);
        while let Some(row) = remaining.next() {
            let (full, stored) = row?;
            if which == Which::First && prefix > 0 && full.starts_with(&shown[..prefix]) {
                steps += 1;
                if steps == STEPS_BEFORE_SEEK {
                    remaining = seek(keys::after_partition(&shown[..prefix]));
                }
                continue;
            }
            let Some((length, partition, key)) = keys::split(&full) else {
                return Err(ReadError::Damaged("a row with a malformed key".into()));
            };
            (shown, prefix, steps) = (full, length, 0);
            let size = shown.len() + stored.value.len();
            let row = Row { key, value: stored.value, token: stored.token };
            if bytes >= MAX_SCAN_BYTES || visitor(partition, row).is_break() {
                visited.next = keys::split(&shown).map(|(_, partition, key)| (partition, key));
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
        everything::visit_page(&self.shared, from, visitor)
    }

    async fn settled(&self) -> Result<(), CommitError> {
        self.shared.queue.submit(Work::Republish).await
    }

    fn row_counts(&self) -> Option<RowCounts> {
        Some(self.shared.snapshots.current().counts)
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        check_limits(partition, &commit)?;
        let prefix = keys::prefix(partition);
        // The tree keeps what a held snapshot shows, and the rows are read before it is let go of.
        let snapshot = self.shared.snapshots.current();
        let preview = {
            let read = || rows::preview(&snapshot.view, &prefix, &commit, snapshot.seqno);
            let removes_many = commit.mutations.iter().any(|m| matches!(m, Mutation::DeleteRange(_)));
            if removes_many { clock::block_in_place(read) } else { read() }
        };
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
        let (keys, seen) = {
            let snapshot = self.shared.snapshots.current();
            let rest = keys::space_from(space, &from.0, &from.1)..keys::space_end(space);
            let keys = rows::range(&snapshot.view, rest, snapshot.seqno)
                .take(limit.min(SWEEP_ROWS))
                .map(|row| row.map(|(key, _)| key))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| CommitError::Unreadable)?;
            (keys, snapshot.seqno)
        };
        let last = keys.is_empty() && from.0.is_empty() && from.1.is_empty();
        let next = match keys.last() {
            None => None,
            Some(key) => {
                let (_, partition, row) = keys::split(key).ok_or(CommitError::Unreadable)?;
                // The least key after it.
                Some((partition, [&row[..], &[0]].concat().into()))
            }
        };
        if last || next.is_some() {
            self.shared.queue.submit(Work::Sweep { space, keys, seen, last }).await?;
        }
        Ok(next)
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        // A stamp is never given out twice, so neither is a space.
        Ok(SpaceId(self.stamp().ticks()))
    }

    fn stamp(&self) -> Stamp {
        self.shared.clock.stamp(|| self.shared.queue.post(Work::Ceiling))
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now(|| self.shared.queue.post(Work::Ceiling))
    }
}

/// Verifies a store that no process has open: every log frame, and every block of every table on the way to the rows,
/// which are handed to `visit`. Changes nothing in `dir`, which may be read-only: the tree, which tidies up when it is
/// opened, is opened on a view of its files in the system's temporary folder.
pub fn check(
    dir: &Path,
    visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>,
) -> Result<(), OpenError> {
    let (_copy, tree, latest) = transfer::open_view(dir)?;
    Ok(for_each_row(&View::of(&tree), latest, visit)?)
}

/// Reads every byte of every table, also those that no row needs. Returns the damaged files, each with what is wrong with
/// it. Changes nothing.
pub fn damaged_tables(dir: &Path) -> Result<Vec<(PathBuf, &'static str)>, OpenError> {
    match Manifest::read(&dir.join("tree"), &dir.join("log"))? {
        Some(manifest) => Ok(manifest.damaged_tables()?),
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
        let (Some(space), Some((_, partition, key))) = (keys::space_of(&full), keys::split(&full)) else {
            return Err(ReadError::Damaged("a row with a malformed key".into()));
        };
        visit(space, &partition, &Row { key, value: stored.value, token: stored.token })?;
    }
    Ok(())
}

fn check_limits(partition: &Partition, commit: &Commit) -> Result<(), CommitError> {
    let most = if commit.bulk { MAX_BULK_COMMIT_BYTES } else { MAX_COMMIT_BYTES };
    let fits = |key: &Bytes| key.len() <= MAX_KEY_BYTES;
    let each = commit.mutations.iter().all(|mutation| match mutation {
        Mutation::Put(key, value) => fits(key) && value.len() <= MAX_VALUE_BYTES,
        Mutation::Delete(key) | Mutation::Add(key, _) => fits(key),
        Mutation::DeleteRange(range) => fits(&range.start) && fits(&range.end),
    });
    let fits = each
        && fits(&partition.key)
        && commit.mutations.len() <= MAX_MUTATIONS
        && queue::commit_bytes(commit) <= most;
    if fits { Ok(()) } else { Err(CommitError::TooLarge) }
}

/// Opens a tree whose manifest was verified, or makes one where there is none.
fn open_tree(
    path: &Path,
    manifest: Option<&Manifest>,
    seqno: &SequenceNumberCounter,
    cache_bytes: u64,
) -> Result<AnyTree, OpenError> {
    if let Some(manifest) = manifest {
        manifest.verify_contents()?;
    }
    // The tree's own idea of what is visible is not used: readers go by published snapshots.
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
        let Some(group::Operation { seqno, key, value }) = operation else {
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

/// Reads the rows that every start needs, as the tables have them. Damage to their blocks is found so before anything is
/// written, and the store is refused as it is.
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
