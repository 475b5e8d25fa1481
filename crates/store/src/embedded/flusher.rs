//! What happens behind the committer's back: sealed memtables become tables, tables are compacted, log segments that
//! are no longer needed are retired.
//!
//! None of it changes what a reader sees, and none of it is needed for durability: a flush that fails is tried again,
//! its commits stay in the log.
//!
//! Its threads have the priority of all others, only longer turns. The tree is locked while they make a new list of tables
//! durable, five syncs long, so on a busy machine a thread that steps back would hold up every commit and every read.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm_tree::compaction::Leveled;
use lsm_tree::{AbstractTree, AnyTree};
use parking_lot::{Condvar, Mutex};

use super::Shared;
use super::queue::Work;
use super::scheduling;
use crate::CommitError;
use crate::log::{self, Log};

/// Commits wait while more sealed memtables than this are not flushed.
const MAX_SEALED: usize = 2;
/// Commits wait while the tree's first level has more runs than this.
const MAX_RUNS: usize = 24;
/// After a failure, the next try.
const RETRY: Duration = Duration::from_secs(1);

/// The flusher's orders.
pub(crate) struct Flusher {
    log_dir: PathBuf,
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
    /// The last flush failed, for want of space or otherwise.
    failing: Option<CommitError>,
}

impl Flusher {
    /// `segments`: those that recovery found and that the memtable still needs. `in_use`: the one written to.
    pub(crate) fn new(log_dir: PathBuf, segments: Vec<u64>, in_use: u64) -> Self {
        let state =
            State { segments: segments.into(), next_segment: in_use, compact: true, ..State::default() };
        Self { log_dir, state: Mutex::new(state), changed: Condvar::new() }
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
            if state.failing == Some(CommitError::Full) {
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
            match self.flush(shared, up_to) {
                Ok(()) => {
                    let mut state = self.state.lock();
                    state.failing = None;
                    state.compact = true;
                    if state.up_to == Some(up_to) {
                        state.up_to = None;
                    }
                }
                Err(Failure { error, what }) => {
                    tracing::error!(%error, "{what}; the commits stay in the log and it is tried again");
                    let mut state = self.state.lock();
                    state.failing = Some(error);
                    if state.closing {
                        return;
                    }
                    self.changed.wait_for(&mut state, RETRY);
                }
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
                if let Err(error) = shared.tree.compact(strategy.clone(), shared.snapshots.oldest()) {
                    tracing::error!(%error, "compaction failed; it is tried again");
                    let mut state = self.state.lock();
                    state.compact = true;
                    self.changed.wait_for(&mut state, RETRY);
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

    fn next_flush(&self) -> Option<u64> {
        let mut state = self.state.lock();
        loop {
            match state.up_to {
                Some(up_to) => return Some(up_to),
                None if state.closing => return None,
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn next_compaction(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.closing {
                return false;
            }
            if std::mem::take(&mut state.compact) {
                return true;
            }
            self.changed.wait(&mut state);
        }
    }

    fn flush(&self, shared: &Shared, up_to: u64) -> Result<(), Failure> {
        let tree = &shared.tree;
        tree.flush(&tree.get_flush_lock(), shared.snapshots.oldest()).map_err(|error| Failure {
            error: if is_full(&error) { CommitError::Full } else { CommitError::Busy },
            what: format!("a memtable could not be flushed: {error}"),
        })?;
        shared.queue.post(Work::Republish);
        // The table and the manifest that names it are durable: the log's copy is not needed any more. Oldest first, and
        // one that cannot be retired is tried again before any younger one, so that no gap arises.
        let oldest = || self.state.lock().segments.front().copied().filter(|s| *s <= up_to);
        while let Some(oldest) = oldest() {
            Log::retire(&self.log_dir, [oldest]).map_err(|error| Failure {
                error: CommitError::Busy,
                what: format!("a log segment could not be retired: {error}"),
            })?;
            self.state.lock().segments.pop_front();
        }
        Ok(())
    }
}

struct Failure {
    error: CommitError,
    what: String,
}

fn is_full(error: &lsm_tree::Error) -> bool {
    matches!(error, lsm_tree::Error::Io(error) if log::is_full(error))
}
