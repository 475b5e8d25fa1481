//! What happens behind the committer's back: sealed memtables become tables, tables are compacted, log segments that
//! are no longer needed are retired.
//!
//! None of it changes what a reader sees, and none of it is needed for durability: a flush that fails is tried again,
//! its commits stay in the log.
//!
//! The tree is locked while they make a new list of tables durable, five syncs long. Reads and commits do not take that
//! lock: they use a [view](super::view). To seal the memtable takes the lock, too, so the flusher does that as well:
//!
//! ```text
//! committer: memtable is large → seal()              adopts the view: next memtable, next log segment → flush_before()
//! flusher:                       → rotates memtable →                                                 → flushes, retires
//! ```
//!
//! Its threads have the priority of all others, only longer turns.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm_tree::AbstractTree;
use lsm_tree::compaction::Leveled;
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::attempts::{Attempts, Refused};
use super::detour::Damage;
use super::failures::{self, Backoff, Failures, TaskError};
use super::health::Task;
use super::queue::Work;
use super::scheduling;
use super::view::View;
use crate::CommitError;
use crate::log::{Log, NextSegment, Wanted};

/// Commits wait while more sealed memtables than this are not flushed.
const MAX_SEALED: usize = 2;
/// Commits wait while the active memtable is this many times as large as one that should be sealed.
const MAX_GROWTH: u64 = 3;
/// Bytes of a table. A table is synced at once, and syncs of the log wait behind it.
const TABLE_BYTES: u64 = 16 << 20;
/// Commits wait while the tree's first level has more runs than this.
const MAX_RUNS: usize = 24;
/// The same while a damaged table keeps them from being merged: reads are slower, but commits go on.
const MAX_RUNS_IF_DAMAGED: usize = 512;

/// How often versions and views are freed that a snapshot needed when they were replaced.
const FORGET_EVERY: Duration = Duration::from_millis(100);

/// The flusher's orders.
pub(crate) struct Flusher {
    pub(super) log_dir: PathBuf,
    next_segment: Arc<NextSegment>,
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
    /// Prepare a log segment.
    prepare: Option<Wanted>,
    /// Seal the memtable.
    seal: bool,
    /// No row will be added to any sealed memtable: flush, and then retire the segments up to this one.
    up_to: Option<u64>,
    /// Compact, a flush has added a table.
    compact: bool,
    closing: bool,
    /// No attempt may be made any more.
    halted: bool,
}

/// What the flushing thread does next.
enum Order {
    Prepare(Wanted),
    Seal,
    Flush(u64),
}

/// Where the flusher works.
pub(crate) struct Directories {
    pub(crate) log: PathBuf,
    /// Where the committer looks for the next log segment.
    pub(crate) next_segment: Arc<NextSegment>,
    pub(crate) tree: PathBuf,
}

impl Flusher {
    /// `segments`: those that recovery found and that the memtable still needs. `in_use`: the one written to.
    pub(crate) fn new(dirs: Directories, segments: Vec<u64>, in_use: u64, backoff: Backoff) -> Self {
        let state =
            State { segments: segments.into(), next_segment: in_use, compact: true, ..State::default() };
        Self {
            log_dir: dirs.log,
            next_segment: dirs.next_segment,
            attempts: Attempts::new(dirs.tree),
            failures: Failures::new(backoff),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The committer will need another log segment.
    pub(crate) fn prepare(&self, wanted: Wanted) {
        self.state.lock().prepare = Some(wanted);
        self.changed.notify_all();
    }

    /// The committer wants another memtable. It gets it with the next view.
    pub(crate) fn seal(&self) {
        let mut state = self.state.lock();
        if !state.seal {
            state.seal = true;
            self.changed.notify_all();
        }
    }

    /// The committer has adopted another memtable; segments before `in_use` hold the commits of the sealed one. Those of
    /// `in_use` are kept, whichever memtable they are in.
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

    /// Waits while more is in memory or unsorted than is good.
    pub(crate) fn wait_while_behind(
        &self,
        view: impl Fn() -> Arc<View>,
        memtable_bytes: u64,
        deadline: Instant,
    ) -> Result<(), CommitError> {
        let max_runs = || if self.failures.is_damaged() { MAX_RUNS_IF_DAMAGED } else { MAX_RUNS };
        let behind = || {
            let view = view();
            view.sealed_count() > MAX_SEALED
                || (view.level0_runs > MAX_RUNS && view.level0_runs > max_runs())
                || view.active_bytes() > MAX_GROWTH * memtable_bytes
        };
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
        while let Some(order) = self.next_order(shared) {
            let up_to = match order {
                Order::Prepare(wanted) => {
                    // If this fails, the committer makes the segment itself, and reports what is wrong.
                    if let Err(error) = self.next_segment.prepare(&self.log_dir, wanted) {
                        tracing::debug!(%error, "no log segment could be prepared");
                    }
                    continue;
                }
                Order::Seal => {
                    shared.views.rotate(&shared.tree);
                    self.state.lock().seal = false;
                    self.changed.notify_all();
                    // The committer adopts the view with its next group, even if that is empty.
                    shared.queue.post(Work::Republish);
                    continue;
                }
                Order::Flush(up_to) => up_to,
            };
            if let Err(delay) = self.attempt(shared, Task::Flush, || self.flush(shared, up_to)) {
                self.pause(delay);
                if self.state.lock().closing {
                    return;
                }
                continue;
            }
            self.failures.succeeded(Task::Flush);
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
        let strategy = Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES));
        let mut damage = Damage::default();
        while self.next_compaction(damage.retry_at) {
            loop {
                let before = shared.tree.current_version().id();
                let (oldest, is_around) = (shared.snapshots.oldest(), damage.is_avoided());
                let compact = || match is_around {
                    true => Ok(damage.compact_around(&shared.tree, oldest)?),
                    false => Ok(shared.tree.compact(strategy.clone(), oldest)?),
                };
                if let Err(delay) = self.attempt(shared, Task::Compaction, compact) {
                    self.state.lock().compact = true;
                    if !self.learn_damage(shared, &mut damage, is_around) {
                        self.pause(delay);
                    }
                    damage.retry_at = Some(Instant::now() + delay);
                    break;
                }
                if !is_around {
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

    /// Takes note of the table that made a compaction fail. False if no table is to blame, or if it was known and yet in the
    /// way.
    fn learn_damage(&self, shared: &Shared, damage: &mut Damage, was_around: bool) -> bool {
        let Some(failure) = self.failures.damage(Task::Compaction) else { return false };
        if was_around {
            let other =
                failures::locate(&shared.tree, |table| self.state.lock().closing || damage.contains(table));
            return other.is_some_and(|table| damage.add(&table));
        }
        damage.add(&failure);
        true
    }

    /// Rewrites all tables into one sorted level.
    pub(crate) fn compact_all(&self, shared: &Shared, table_bytes: u64) -> Result<(), TaskError> {
        let compact = || Ok(shared.tree.major_compact(table_bytes, shared.snapshots.oldest())?);
        self.try_once(shared, Task::Compaction, compact)
    }

    /// Makes one attempt. After a failure it returns how long to wait before the next one.
    fn attempt(
        &self,
        shared: &Shared,
        task: Task,
        run: impl FnOnce() -> Result<(), TaskError>,
    ) -> Result<(), Duration> {
        let Err(error) = self.try_once(shared, task, run) else { return Ok(()) };
        let at = (shared.shown(), Instant::now());
        let locate = || failures::locate(&shared.tree, |_| self.state.lock().closing);
        let delay = self.failures.failed(task, &error, at, locate);
        self.changed.notify_all();
        Err(delay)
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
                if task == Task::Compaction && shared.views.compacted(&shared.tree) {
                    shared.queue.post(Work::Republish);
                }
                shared.views.free_unused();
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

    /// Waits for the next order. Meanwhile has the tree forget old versions, and frees views.
    fn next_order(&self, shared: &Shared) -> Option<Order> {
        let mut are_old_used = true;
        loop {
            {
                let mut state = self.state.lock();
                if !state.closing
                    && !state.halted
                    && let Some(wanted) = state.prepare.take()
                {
                    return Some(Order::Prepare(wanted));
                }
                // A flush comes before a seal: it would take a memtable that was sealed and is not adopted yet.
                match state.up_to {
                    _ if state.halted => return None,
                    Some(up_to) => return Some(Order::Flush(up_to)),
                    None if state.closing => return None,
                    None if state.seal => return Some(Order::Seal),
                    None if are_old_used => {
                        let _ = self.changed.wait_for(&mut state, FORGET_EVERY);
                    }
                    None => self.changed.wait(&mut state),
                }
            }
            // The tree lets go of memtables and tables first: the views that hold them are freed without its lock.
            are_old_used = forget_old_versions(shared) | shared.views.free_unused();
        }
    }

    /// Waits until there is something to compact, or until a time. False if there will be nothing more.
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

    fn flush(&self, shared: &Shared, up_to: u64) -> Result<(), TaskError> {
        let tree = &shared.tree;
        tree.flush(&tree.get_flush_lock(), shared.snapshots.oldest())?;
        shared.views.flushed(tree);
        shared.queue.post(Work::Republish);
        // The table and the manifest that names it are durable: the log's copy is not needed any more. Oldest first, and
        // one that cannot be retired is tried again before any younger one, so that no gap arises.
        let oldest = || self.state.lock().segments.front().copied().filter(|s| *s <= up_to);
        while let Some(oldest) = oldest() {
            Log::retire(&self.log_dir, &self.next_segment, [oldest]).map_err(TaskError::Retire)?;
            self.state.lock().segments.pop_front();
        }
        Ok(())
    }
}

/// Lets the tree forget versions that no snapshot needs. The tree itself does so only when it makes the next version, and never
/// for the one just replaced: the flushed memtable would stay in memory until the next flush. Returns whether an old version
/// is left.
fn forget_old_versions(shared: &Shared) -> bool {
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
            let dirs =
                Directories { log: dir.path().into(), next_segment: Arc::default(), tree: dir.path().into() };
            let flusher = Flusher::new(dirs, vec![], 1, Backoff::USUAL);
            let error = TaskError::Tree(io::Error::from_raw_os_error(errno).into());
            flusher.failures.failed(Task::Compaction, &error, at, || None);
            let view = || Arc::new(View::of(&tree));
            assert_eq!(flusher.wait_while_behind(view, 1 << 20, Instant::now()), Err(expected));
        }
    }
}
