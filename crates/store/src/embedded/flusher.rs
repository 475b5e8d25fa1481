//! What happens behind the committer's back: sealed memtables become tables, tables are compacted, log segments that
//! are no longer needed are retired.
//!
//! None of it changes what a reader sees, and none of it is needed for durability: a flush that fails is tried again,
//! its commits stay in the log.
//!
//! Its threads have the priority of all others, only longer turns. The tree is locked while they make a new list of tables
//! durable, five syncs long, so on a busy machine a thread that steps back would hold up every commit and every read.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree};
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::attempts::{Attempts, Refused};
use super::failures::{self, Backoff, Failures, TaskError};
use super::health::Task;
use super::queue::Work;
use super::scheduling;
use crate::CommitError;
use crate::log::Log;

/// Commits wait while more sealed memtables than this are not flushed.
const MAX_SEALED: usize = 2;
/// Commits wait while the tree's first level has more runs than this.
const MAX_RUNS: usize = 24;

/// The flusher's orders.
pub(crate) struct Flusher {
    pub(super) log_dir: PathBuf,
    attempts: Attempts,
    pub(super) failures: Failures,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Log segments that exist, oldest first, those since the last seal not counted.
    segments: VecDeque<u64>,
    /// The first segment that is not counted.
    next_segment: u64,
    /// Flush, and then retire the segments up to this one.
    up_to: Option<u64>,
    /// Compact, a flush has added a table.
    compact: bool,
    closing: bool,
    /// No attempt may be made any more.
    halted: bool,
}

/// Where the flusher works.
pub(crate) struct Directories {
    pub(crate) log: PathBuf,
    pub(crate) tree: PathBuf,
}

impl Flusher {
    /// `segments`: those that recovery found and that the memtable still needs. `in_use`: the one written to.
    pub(crate) fn new(dirs: Directories, segments: Vec<u64>, in_use: u64, backoff: Backoff) -> Self {
        let state =
            State { segments: segments.into(), next_segment: in_use, compact: true, ..State::default() };
        Self {
            log_dir: dirs.log,
            attempts: Attempts::new(dirs.tree),
            failures: Failures::new(backoff),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The memtable was sealed; segments before `in_use` hold its commits.
    pub(crate) fn flush_before(&self, in_use: u64) {
        let mut state = self.state.lock();
        let ended = state.next_segment..in_use;
        state.segments.extend(ended);
        state.next_segment = in_use;
        state.up_to = Some(in_use - 1);
        self.changed.notify_all();
    }

    /// Finishes what was ordered and ends both threads.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
    }

    /// Waits while more is sealed or unsorted than is good.
    pub(crate) fn wait_while_behind(&self, tree: &AnyTree, deadline: Instant) -> Result<(), CommitError> {
        let behind = || tree.sealed_memtable_count() > MAX_SEALED || tree.l0_run_count() > MAX_RUNS;
        if !behind() {
            return Ok(());
        }
        let mut state = self.state.lock();
        while behind() {
            if self.failures.is_full() {
                return Err(CommitError::Full);
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(CommitError::Busy);
            }
        }
        Ok(())
    }

    /// The flushing thread.
    pub(crate) fn run_flush(&self, shared: &Shared) {
        scheduling::patient();
        while let Some(up_to) = self.next_flush() {
            if self.attempt(shared, Task::Flush, || self.flush(shared, up_to)).is_err() {
                if self.state.lock().closing {
                    return;
                }
                continue;
            }
            let mut state = self.state.lock();
            state.compact = true;
            if state.up_to == Some(up_to) {
                state.up_to = None;
            }
            self.changed.notify_all();
        }
    }

    /// The compacting thread.
    pub(crate) fn run_compaction(&self, shared: &Shared) {
        scheduling::patient();
        let strategy = Arc::new(Leveled::default());
        while self.next_compaction() {
            loop {
                let before = shared.tree.current_version().id();
                let compact = || Ok(shared.tree.compact(strategy.clone(), shared.snapshots.oldest())?);
                if self.attempt(shared, Task::Compaction, compact).is_err() {
                    self.state.lock().compact = true;
                    break;
                }
                if shared.tree.current_version().id() == before || self.state.lock().closing {
                    break;
                }
                shared.queue.post(Work::Republish);
                self.changed.notify_all();
            }
        }
    }

    /// Rewrites all tables into one sorted level.
    pub(crate) fn compact_all(&self, shared: &Shared, table_bytes: u64) -> Result<(), TaskError> {
        let compact = || Ok(shared.tree.major_compact(table_bytes, shared.snapshots.oldest())?);
        self.try_once(shared, Task::Compaction, compact)
    }

    /// Makes one attempt. After a failure it returns when the next one is due, or when the store closes.
    fn attempt(
        &self,
        shared: &Shared,
        task: Task,
        run: impl FnOnce() -> Result<(), TaskError>,
    ) -> Result<(), ()> {
        let Err(error) = self.try_once(shared, task, run) else {
            self.failures.succeeded(task);
            return Ok(());
        };
        let at = (shared.shown(), Instant::now());
        let locate = || failures::locate(&shared.tree, || self.state.lock().closing);
        let delay = self.failures.failed(task, &error, at, locate);
        self.changed.notify_all();
        self.pause(delay);
        Err(())
    }

    /// Makes one attempt and removes what it left if it failed.
    fn try_once(
        &self,
        shared: &Shared,
        task: Task,
        run: impl FnOnce() -> Result<(), TaskError>,
    ) -> Result<(), TaskError> {
        let attempt =
            self.attempts.begin(&shared.tree, task).map_err(|refused| self.refused(shared, refused))?;
        match run() {
            Ok(()) => {
                attempt.succeed();
                Ok(())
            }
            Err(error) => match attempt.fail() {
                Err(refused @ Refused::ManifestInDoubt) => Err(self.refused(shared, refused)),
                Ok(()) | Err(Refused::Unreadable(_)) => Err(error),
            },
        }
    }

    fn refused(&self, shared: &Shared, refused: Refused) -> TaskError {
        match refused {
            Refused::Unreadable(error) => TaskError::Tree(error.into()),
            Refused::ManifestInDoubt => {
                let error = io::Error::other("the manifest on disk is not the one in memory");
                self.state.lock().halted = true;
                shared.stop("the manifest could not be written", &error);
                TaskError::Tree(error.into())
            }
        }
    }

    /// Waits for the time, or until the store closes.
    fn pause(&self, delay: Duration) {
        let deadline = Instant::now() + delay;
        let mut state = self.state.lock();
        while !state.closing && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    fn next_flush(&self) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            match state.up_to {
                _ if state.halted => return None,
                Some(up_to) => return Some(up_to),
                None if state.closing => return None,
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn next_compaction(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.closing || state.halted {
                return false;
            }
            if std::mem::take(&mut state.compact) {
                return true;
            }
            self.changed.wait(&mut state);
        }
    }

    fn flush(&self, shared: &Shared, up_to: u64) -> Result<(), TaskError> {
        let tree = &shared.tree;
        tree.flush(&tree.get_flush_lock(), shared.snapshots.oldest())?;
        shared.queue.post(Work::Republish);
        // The table and the manifest that names it are durable: the log's copy is not needed any more. Oldest first, and
        // one that cannot be retired is tried again before any younger one, so that no gap arises.
        let oldest = || self.state.lock().segments.front().copied().filter(|s| *s <= up_to);
        while let Some(oldest) = oldest() {
            Log::retire(&self.log_dir, [oldest]).map_err(TaskError::Retire)?;
            self.state.lock().segments.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lsm_tree::SequenceNumberCounter;

    use super::*;
    use lazuli_concurrency::Timestamp;

    /// A tree whose first level has more runs than commits may add to.
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
    fn commits_that_wait_for_a_failing_compaction_hear_full_if_the_device_is_full_and_else_busy() {
        let dir = tempfile::tempdir().unwrap();
        let tree = unsorted_tree(dir.path());
        let at = (Timestamp::from_unix_seconds(0), Instant::now());
        for (errno, expected) in [(libc::ENOSPC, CommitError::Full), (libc::EIO, CommitError::Busy)] {
            let dirs = Directories { log: dir.path().into(), tree: dir.path().into() };
            let flusher = Flusher::new(dirs, vec![], 1, Backoff::USUAL);
            let error = TaskError::Tree(io::Error::from_raw_os_error(errno).into());
            flusher.failures.failed(Task::Compaction, &error, at, || None);
            assert_eq!(flusher.wait_while_behind(&tree, Instant::now()), Err(expected));
        }
    }
}
