//! Background work of the engine: it turns sealed memtables into tables, compacts tables, and retires log
//! segments that are no longer needed.
//!
//! Background work never changes what readers see, and durability does not depend on it: if a flush fails, it
//! is retried, and its commits stay in the log.
//!
//! The tree is locked while a new list of tables is made durable, which takes five syncs. Reads and commits
//! do not take that lock: they use a [view](super::view). Sealing the memtable takes the lock too, so the
//! flusher does that for the committer:
//!
//! ```text
//! committer: large memtable → seal()            switches to next memtable and segment → flush_before()
//! flusher:                    → rotates memtable →                                      → flushes, retires
//! ```
//!
//! [`scheduling`] says how these threads share the processors with all others.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;
use parking_lot::{Condvar, Mutex};

use super::EngineState;
use super::attempts::{AttemptRefusal, Attempts};
use super::damaged_tables::DamagedTables;
use super::failures::{self, Backoff, Failures, TaskError};
use super::health::Task;
use super::queue::Work;
use super::view::View;
use crate::CommitError;
use crate::log::{Log, NextSegment, SegmentRequest};
use crate::scheduling;

/// Commits wait while more sealed memtables than this wait to be flushed.
const MAX_SEALED: usize = 2;
/// Commits wait while the active memtable has this many times the size at which it should be sealed.
const MAX_GROWTH: u64 = 3;
/// Size of a table in bytes. A table is written with one sync, which delays syncs of the log.
const TABLE_BYTES: u64 = 16 << 20;
/// Commits wait while the tree's first level has more runs than this.
const MAX_RUNS: usize = 24;
/// The limit while a damaged table prevents merging them: reads are slower, but commits continue.
const MAX_RUNS_IF_DAMAGED: usize = 512;

/// Interval at which old versions and views are freed while snapshots still use some of them.
const FREE_INTERVAL: Duration = Duration::from_millis(100);

/// The requests to the background threads, and the state of their work.
pub(crate) struct Flusher {
    pub(super) log_dir: PathBuf,
    next_segment: Arc<NextSegment>,
    attempts: Attempts,
    pub(super) failures: Failures,
    state: Mutex<FlusherState>,
    changed: Condvar,
}

#[derive(Default)]
struct FlusherState {
    /// Existing log segments, oldest first, up to the last seal.
    segments: VecDeque<u64>,
    /// The first segment that is not in `segments`.
    next_segment: u64,
    /// A request to prepare a log segment.
    prepare: Option<SegmentRequest>,
    /// A request to seal the memtable.
    seal: bool,
    /// A request to flush the sealed memtables, which get no more rows, and then to retire the segments up to
    /// this one.
    flush_up_to: Option<u64>,
    /// Whether a flush has added a table, so that there may be something to compact.
    compact: bool,
    closing: bool,
    /// Whether no further attempt may be made.
    halted: bool,
}

/// The next step of the flushing thread.
enum FlushStep {
    Prepare(SegmentRequest),
    Seal,
    Flush(u64),
}

/// The directories in which the flusher works.
pub(crate) struct Directories {
    pub(crate) log: PathBuf,
    /// The slot from which the committer takes the next log segment.
    pub(crate) next_segment: Arc<NextSegment>,
    pub(crate) tree: PathBuf,
}

impl Flusher {
    /// Makes the flusher. `segments` are those that recovery found and that the memtable still needs;
    /// `in_use` is the current segment.
    pub(crate) fn new(dirs: Directories, segments: Vec<u64>, in_use: u64, backoff: Backoff) -> Self {
        let state = FlusherState {
            segments: segments.into(),
            next_segment: in_use,
            compact: true,
            ..FlusherState::default()
        };
        Self {
            log_dir: dirs.log,
            next_segment: dirs.next_segment,
            attempts: Attempts::new(dirs.tree),
            failures: Failures::new(backoff),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Requests preparation of the next log segment.
    pub(crate) fn prepare(&self, wanted: SegmentRequest) {
        self.state.lock().prepare = Some(wanted);
        self.changed.notify_all();
    }

    /// Requests another memtable. The committer gets it with the next view.
    pub(crate) fn seal(&self) {
        let mut state = self.state.lock();
        if !state.seal {
            state.seal = true;
            self.changed.notify_all();
        }
    }

    /// Requests a flush after the committer has switched to another memtable. Segments before `in_use` hold
    /// the commits of the sealed one. The commits in `in_use` are kept, whichever memtable they are in.
    pub(crate) fn flush_before(&self, in_use: u64) {
        let mut state = self.state.lock();
        let ended = state.next_segment..in_use;
        state.segments.extend(ended);
        state.next_segment = in_use;
        state.flush_up_to = Some(in_use - 1);
        self.changed.notify_all();
    }

    /// Returns the number of log segments before the current one.
    pub(crate) fn ended_segments(&self) -> usize {
        self.state.lock().segments.len()
    }

    /// Finishes the requested work and ends both threads.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
    }

    /// Waits while too much is in memory or not yet compacted.
    pub(crate) fn wait_until_caught_up(
        &self,
        view: impl Fn() -> Arc<View>,
        memtable_bytes: u64,
        deadline: Instant,
    ) -> Result<(), CommitError> {
        let max_runs = || if self.failures.is_damaged() { MAX_RUNS_IF_DAMAGED } else { MAX_RUNS };
        let is_behind = || {
            let view = view();
            view.sealed_count() > MAX_SEALED
                || (view.level0_runs > MAX_RUNS && view.level0_runs > max_runs())
                || view.active_bytes() > MAX_GROWTH * memtable_bytes
        };
        if !is_behind() {
            return Ok(());
        }
        let mut state = self.state.lock();
        while is_behind() {
            if self.failures.is_full() {
                return Err(CommitError::Full);
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(CommitError::Busy);
            }
        }
        Ok(())
    }

    /// Runs the flushing thread.
    pub(crate) fn run_flush(&self, shared: &EngineState) {
        scheduling::flusher();
        while let Some(step) = self.next_step(shared) {
            let flush_up_to = match step {
                FlushStep::Prepare(wanted) => {
                    // If this fails, the committer creates the segment itself and reports the error.
                    if let Err(error) = self.next_segment.prepare(&self.log_dir, wanted) {
                        tracing::debug!(%error, "no log segment could be prepared");
                    }
                    continue;
                }
                FlushStep::Seal => {
                    shared.views.rotate(&shared.tree);
                    self.state.lock().seal = false;
                    self.changed.notify_all();
                    // The committer switches to the view with its next group, even if that is empty.
                    shared.queue.post(Work::Republish);
                    continue;
                }
                FlushStep::Flush(flush_up_to) => flush_up_to,
            };
            if let Err(delay) = self.attempt(shared, Task::Flush, || self.flush(shared, flush_up_to)) {
                self.pause(delay);
                if self.state.lock().closing {
                    return;
                }
                continue;
            }
            self.failures.succeeded(Task::Flush);
            let mut state = self.state.lock();
            state.compact = true;
            if state.flush_up_to == Some(flush_up_to) {
                state.flush_up_to = None;
            }
            self.changed.notify_all();
        }
    }

    /// Runs the compacting thread.
    pub(crate) fn run_compaction(&self, shared: &EngineState) {
        scheduling::compactor();
        let strategy = Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES));
        let mut damage = DamagedTables::default();
        while self.next_compaction(damage.retry_at) {
            loop {
                let before = shared.tree.current_version().id();
                let (oldest, avoids_damage) = (shared.snapshots.oldest(), damage.is_avoided());
                let compact = || match avoids_damage {
                    true => Ok(damage.compact_around(&shared.tree, oldest)?),
                    false => Ok(shared.tree.compact(strategy.clone(), oldest)?),
                };
                if let Err(delay) = self.attempt(shared, Task::Compaction, compact) {
                    self.state.lock().compact = true;
                    if !self.note_damage(shared, &mut damage, avoids_damage) {
                        self.pause(delay);
                    }
                    damage.retry_at = Some(Instant::now() + delay);
                    break;
                }
                if !avoids_damage {
                    self.failures.succeeded(Task::Compaction);
                    damage.clear();
                }
                if shared.tree.current_version().id() == before || self.state.lock().closing {
                    break;
                }
                self.changed.notify_all();
            }
        }
    }

    /// Remembers the table that made a compaction fail. Returns false if no table caused the failure, or if a
    /// table that was already known did.
    fn note_damage(&self, shared: &EngineState, damage: &mut DamagedTables, avoided_damage: bool) -> bool {
        let Some(failure) = self.failures.damage(Task::Compaction) else { return false };
        if avoided_damage {
            let other =
                failures::locate(&shared.tree, |table| self.state.lock().closing || damage.contains(table));
            return other.is_some_and(|table| damage.add(&table));
        }
        damage.add(&failure);
        true
    }

    /// Rewrites all tables into one sorted level.
    pub(crate) fn compact_all(&self, shared: &EngineState, table_bytes: u64) -> Result<(), TaskError> {
        let compact = || Ok(shared.tree.major_compact(table_bytes, shared.snapshots.oldest())?);
        self.try_once(shared, Task::Compaction, compact)
    }

    /// Makes one attempt. After a failure, returns the delay before the next one.
    fn attempt(
        &self,
        shared: &EngineState,
        task: Task,
        run: impl FnOnce() -> Result<(), TaskError>,
    ) -> Result<(), Duration> {
        let Err(error) = self.try_once(shared, task, run) else { return Ok(()) };
        let at = (shared.peek_time(), Instant::now());
        let locate = || failures::locate(&shared.tree, |_| self.state.lock().closing);
        let delay = self.failures.failed(task, &error, at, locate);
        self.changed.notify_all();
        Err(delay)
    }

    /// Makes one attempt. After a failure, removes its files.
    fn try_once(
        &self,
        shared: &EngineState,
        task: Task,
        run: impl FnOnce() -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        let attempt =
            self.attempts.begin(&shared.tree, task).map_err(|refusal| self.task_error(shared, refusal))?;
        match run() {
            Ok(()) => {
                attempt.succeed();
                if task == Task::Compaction && shared.views.capture_compacted(&shared.tree) {
                    shared.queue.post(Work::Republish);
                }
                shared.views.free_unused();
                Ok(())
            }
            Err(error) => match attempt.fail() {
                Err(refusal @ AttemptRefusal::ManifestInDoubt) => Err(self.task_error(shared, refusal)),
                Ok(()) | Err(AttemptRefusal::Unreadable(_)) => Err(error),
            },
        }
    }

    fn task_error(&self, shared: &EngineState, refusal: AttemptRefusal) -> TaskError {
        match refusal {
            AttemptRefusal::Unreadable(error) => TaskError::Tree(error.into()),
            AttemptRefusal::ManifestInDoubt => {
                let error = io::Error::other("the manifest on disk is not the one in memory");
                self.state.lock().halted = true;
                shared.stop("the manifest could not be written", &error);
                TaskError::Tree(error.into())
            }
        }
    }

    /// Waits for a delay, or until the store closes.
    fn pause(&self, delay: Duration) {
        let deadline = Instant::now() + delay;
        let mut state = self.state.lock();
        while !state.closing && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    /// Waits for the next request. Meanwhile frees old versions and views.
    fn next_step(&self, shared: &EngineState) -> Option<FlushStep> {
        let mut has_old_versions = true;
        loop {
            {
                let mut state = self.state.lock();
                if !state.closing
                    && !state.halted
                    && let Some(wanted) = state.prepare.take()
                {
                    return Some(FlushStep::Prepare(wanted));
                }
                // Flush before sealing: a flush would also take a memtable that is sealed but not yet
                // replaced in the committer's view.
                match state.flush_up_to {
                    _ if state.halted => return None,
                    Some(flush_up_to) => return Some(FlushStep::Flush(flush_up_to)),
                    None if state.closing => return None,
                    None if state.seal => return Some(FlushStep::Seal),
                    None if has_old_versions => {
                        let _ = self.changed.wait_for(&mut state, FREE_INTERVAL);
                    }
                    None => self.changed.wait(&mut state),
                }
            }
            // Free the tree's references to memtables and tables first. The views that hold them are freed
            // without its lock.
            has_old_versions = free_old_versions(shared) | shared.views.free_unused();
        }
    }

    /// Waits until there is something to compact, or until `retry_at`. Returns false if no compaction will
    /// follow.
    fn next_compaction(&self, retry_at: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.closing || state.halted {
                return false;
            }
            if std::mem::take(&mut state.compact) {
                return true;
            }
            match retry_at {
                None => self.changed.wait(&mut state),
                Some(at) if self.changed.wait_until(&mut state, at).timed_out() => return !state.closing,
                Some(_) => {}
            }
        }
    }

    fn flush(&self, shared: &EngineState, flush_up_to: u64) -> Result<(), TaskError> {
        let tree = &shared.tree;
        tree.flush(&tree.get_flush_lock(), shared.snapshots.oldest())?;
        shared.views.capture_flushed(tree);
        shared.queue.post(Work::Republish);
        // The table and its manifest are durable, so the log's copy is no longer needed. Retire segments
        // in order, oldest first, and stop at the first failure, so that the log has no gap.
        let oldest = || self.state.lock().segments.front().copied().filter(|s| *s <= flush_up_to);
        while let Some(oldest) = oldest() {
            Log::retire(&self.log_dir, &self.next_segment, [oldest]).map_err(TaskError::Retire)?;
            self.state.lock().segments.pop_front();
        }
        Ok(())
    }
}

/// Frees versions of the tree that no snapshot needs. The tree itself does so only when it makes the next
/// version, and never for the version that was just replaced: the flushed memtable would stay in memory until
/// the next flush. Returns whether an old version is left.
fn free_old_versions(shared: &EngineState) -> bool {
    let tree = &shared.tree;
    if tree.version_free_list_len() > 0 {
        let oldest = shared.snapshots.oldest();
        if let Err(error) = tree.get_version_history_lock().maintenance(&tree.tree_config().path, oldest) {
            tracing::debug!(%error, "an old version of the tree could not be removed");
        }
    }
    tree.version_free_list_len() > 0
}

#[cfg(test)]
mod tests {
    use lsm_tree::{AnyTree, SequenceNumberCounter};

    use super::*;
    use lazuli_concurrency::Timestamp;

    /// Returns a tree whose first level has more runs than commits may add to.
    fn unsorted_tree(dir: &std::path::Path) -> AnyTree {
        let seqno = SequenceNumberCounter::default();
        let tree = super::super::open_tree(dir, None, &seqno, 1 << 20).unwrap();
        for _ in 0..=MAX_RUNS {
            tree.insert("key", "value", seqno.next());
            tree.flush_active_memtable(0).unwrap();
        }
        tree
    }

    #[test]
    fn commits_waiting_for_a_failing_compaction_fail_as_full_or_busy() {
        let dir = tempfile::tempdir().unwrap();
        let tree = unsorted_tree(dir.path());
        let at = (Timestamp::from_unix_seconds(0), Instant::now());
        for (errno, expected) in [(libc::ENOSPC, CommitError::Full), (libc::EIO, CommitError::Busy)] {
            let dirs =
                Directories { log: dir.path().into(), next_segment: Arc::default(), tree: dir.path().into() };
            let flusher = Flusher::new(dirs, vec![], 1, Backoff::USUAL);
            let error = TaskError::Tree(io::Error::from_raw_os_error(errno).into());
            flusher.failures.failed(Task::Compaction, &error, at, || None);
            let view = || Arc::new(View::of(&tree));
            assert_eq!(flusher.wait_until_caught_up(view, 1 << 20, Instant::now()), Err(expected));
        }
    }
}
