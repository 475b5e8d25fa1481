//! Failures of background tasks: when to retry, when to log, and which table caused them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lsm_tree::{AbstractTree, AnyTree, Table, TableId};
use parking_lot::Mutex;

use super::health::{Cause, DamagedTable, Task, TaskFailure};
use crate::{CommitError, RowPosition, SpaceId, keys, log};

/// Delays before retries, which double after each failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The longest delay.
    pub max: Duration,
    /// The longest delay while the device is full. Shorter, because space may become free at any time and
    /// writers wait for it.
    pub max_if_full: Duration,
}

impl Backoff {
    /// The delays of a server.
    pub const USUAL: Self = Self {
        first: Duration::from_millis(250),
        max: Duration::from_secs(60),
        max_if_full: Duration::from_secs(4),
    };

    /// Returns the delay after this many failures in a row.
    pub(super) fn delay(&self, attempts: u32, cause: Cause) -> Duration {
        let max = if cause == Cause::Full { self.max_if_full } else { self.max };
        let doubled = 1u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(max)
    }
}

/// A continuing failure is logged again after this long.
const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of spaces that are named for one table.
pub(super) const MAX_SPACES: usize = 16;

/// A callback that receives each failure that should be logged, instead of the engine's own log line.
pub type FailureListener = Arc<dyn Fn(&TaskFailure) + Send + Sync>;

/// The failures of all tasks.
pub(super) struct Failures {
    backoff: Backoff,
    state: Mutex<FailuresState>,
}

#[derive(Default)]
struct FailuresState {
    tasks: [TaskFailures; 2],
    listener: Option<FailureListener>,
}

#[derive(Default)]
struct TaskFailures {
    failing: Option<TaskFailure>,
    logged: Option<(Instant, Cause)>,
    /// Number of failed attempts since the start.
    total: u64,
}

impl Failures {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { backoff, state: Mutex::default() }
    }

    pub(super) fn listen(&self, listener: FailureListener) {
        self.state.lock().listener = Some(listener);
    }

    /// Records a failed attempt, logs it if that is due, and returns the delay before the next attempt. Calls
    /// `locate` to find the damaged table if the failure will be logged.
    pub(super) fn failed(
        &self,
        task: Task,
        error: &TaskError,
        at: (Timestamp, Instant),
        locate: impl FnOnce() -> Option<DamagedTable>,
    ) -> Duration {
        let cause = error.cause();
        let (mut failure, is_due) = {
            let state = &mut self.state.lock().tasks[task as usize];
            state.total += 1;
            let before = state.failing.take();
            let is_due = state
                .logged
                .is_none_or(|(logged, for_cause)| for_cause != cause || at.1 >= logged + LOG_INTERVAL);
            if is_due {
                state.logged = Some((at.1, cause));
            }
            let failure = TaskFailure {
                task,
                cause,
                error: error.to_string(),
                since: before.as_ref().map_or(at.0, |before| before.since),
                attempts: before.as_ref().map_or(0, |before| before.attempts).saturating_add(1),
                table: before.and_then(|before| before.table).filter(|_| cause == Cause::Damaged),
            };
            state.failing = Some(failure.clone());
            (failure, is_due)
        };
        if is_due {
            if cause == Cause::Damaged {
                // `locate` reads tables, so call it without the lock.
                failure.table = locate();
                self.state.lock().tasks[task as usize].failing = Some(failure.clone());
            }
            let listener = self.state.lock().listener.clone();
            match listener {
                Some(listener) => listener(&failure),
                None => log_failure(&failure, ""),
            }
        }
        self.backoff.delay(failure.attempts, cause)
    }

    /// Records a successful attempt.
    pub(super) fn succeeded(&self, task: Task) {
        let state = &mut self.state.lock().tasks[task as usize];
        state.logged = None;
        if let Some(failure) = state.failing.take() {
            tracing::warn!(attempts = failure.attempts, "{} works again", task.name());
        }
    }

    pub(super) fn failing(&self) -> Vec<TaskFailure> {
        self.state.lock().tasks.iter().filter_map(|task| task.failing.clone()).collect()
    }

    pub(super) fn total(&self, task: Task) -> u64 {
        self.state.lock().tasks[task as usize].total
    }

    /// Returns whether a task fails because the device is full.
    pub(super) fn is_full(&self) -> bool {
        self.has_cause(Cause::Full)
    }

    /// Returns whether a task fails because a table is damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.has_cause(Cause::Damaged)
    }

    fn has_cause(&self, cause: Cause) -> bool {
        let state = self.state.lock();
        let mut failing = state.tasks.iter().filter_map(|task| task.failing.as_ref());
        failing.any(|failure| failure.cause == cause)
    }

    /// Returns the damaged table that makes a task fail, if that is known to be the cause.
    pub(super) fn damage(&self, task: Task) -> Option<DamagedTable> {
        self.state.lock().tasks[task as usize].failing.as_ref()?.table.clone()
    }
}

/// Logs a failure. `objects` names the objects around the damage, if known.
pub fn log_failure(failure: &TaskFailure, objects: &str) {
    let TaskFailure { task, error, attempts, table, .. } = failure;
    let task = task.name();
    match table {
        Some(table) => {
            let position =
                |row: &Option<RowPosition>| row.as_ref().map_or("-".to_owned(), RowPosition::to_string);
            tracing::error!(
                table = %table.path.display(),
                after_row = position(&table.before),
                before_row = position(&table.after),
                objects,
                attempts,
                "{task} fails and is retried: {error}"
            );
        }
        None => tracing::error!(attempts, "{task} fails and is retried: {error}"),
    }
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    #[error("{0}")]
    Tree(#[from] lsm_tree::Error),
    #[error("a log segment could not be retired: {0}")]
    Retire(std::io::Error),
}

impl TaskError {
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Tree(lsm_tree::Error::Io(error)) | Self::Retire(error) if log::is_full(error) => {
                Cause::Full
            }
            // A truncated table is damaged, too.
            Self::Tree(lsm_tree::Error::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Cause::Damaged
            }
            Self::Tree(lsm_tree::Error::Io(_)) | Self::Retire(_) => Cause::Io,
            Self::Tree(_) => Cause::Damaged,
        }
    }
}

impl From<Cause> for CommitError {
    fn from(cause: Cause) -> Self {
        if cause == Cause::Full { Self::Full } else { Self::Busy }
    }
}

/// Finds the first unreadable table for which `skips` returns false. Reads all blocks of all tables up to it.
pub(super) fn locate(tree: &AnyTree, skips: impl Fn(TableId) -> bool) -> Option<DamagedTable> {
    let version = tree.current_version();
    version.iter_tables().filter(|table| !skips(table.id())).find_map(describe_if_damaged)
}

/// Describes the table with this number if it is damaged.
pub(super) fn describe(tree: &AnyTree, id: u64) -> Option<DamagedTable> {
    let name = id.to_string();
    let version = tree.current_version();
    let mut tables = version.iter_tables();
    let table = tables.find(|table| table.path.file_name().is_some_and(|file| *file == *name))?;
    describe_if_damaged(table)
}

/// Describes a table if it is damaged.
fn describe_if_damaged(table: &Table) -> Option<DamagedTable> {
    let position = |key: &lsm_tree::UserKey| keys::position(&Bytes::from(key.clone()));
    let mut before = None;
    let is_damaged = match table.scan() {
        Err(_) => true,
        Ok(rows) => rows.map(|row| row.map(|row| before = Some(row.key.user_key))).any(|row| row.is_err()),
    };
    if !is_damaged {
        return None;
    }
    let after = table.iter().rev().map_while(Result::ok).last().map(|row| row.key.user_key);
    let (spaces, more_spaces) = spaces(table);
    Some(DamagedTable {
        path: table.path.to_path_buf(),
        before: before.as_ref().and_then(position),
        after: after.as_ref().and_then(position),
        spaces,
        more_spaces,
    })
}

/// Returns the spaces that have rows in a table. If a seek hits the damage, only the last space is added.
fn spaces(table: &Table) -> (Vec<SpaceId>, bool) {
    let space = |key: &lsm_tree::UserKey| keys::space_of(&Bytes::from(key.clone()));
    let range = &table.metadata.key_range;
    let (mut spaces, last) = (vec![], space(range.max()));
    let mut next = space(range.min()).or_else(|| first_space(table, SpaceId(0)));
    while let Some(space) = next {
        if spaces.len() == MAX_SPACES {
            return (spaces, true);
        }
        spaces.push(space);
        next = match space.0.checked_add(1) {
            Some(above) if last.is_some_and(|last| last > space) => {
                first_space(table, SpaceId(above)).or(last)
            }
            _ => None,
        };
    }
    (spaces, false)
}

/// Returns the first space at or after `from` that has a row in the table.
fn first_space(table: &Table, from: SpaceId) -> Option<SpaceId> {
    let start: lsm_tree::UserKey = keys::space_from(from, &[], &[]).into();
    let row = table.range(start..).next()?.ok()?;
    keys::space_of(&Bytes::from(row.key.user_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> TaskError {
        TaskError::Tree(std::io::Error::from_raw_os_error(libc::ENOSPC).into())
    }

    #[test]
    fn delay_before_a_retry_doubles_up_to_the_limit() {
        let millis = |attempts, cause| Backoff::USUAL.delay(attempts, cause).as_millis();
        let io = [1, 2, 3, 8, 9, 10, 1000].map(|attempts| millis(attempts, Cause::Io));
        assert_eq!(io, [250, 500, 1000, 32_000, 60_000, 60_000, 60_000]);
        let full = [1, 2, 5, 6, u32::MAX].map(|attempts| millis(attempts, Cause::Full));
        assert_eq!(full, [250, 500, 4000, 4000, 4000]);
    }

    #[test]
    fn continuing_failure_is_logged_at_intervals_and_a_new_cause_at_once() {
        let failures = Failures::new(Backoff::USUAL);
        let logged = Arc::new(Mutex::new(0));
        failures.listen(Arc::new({
            let logged = logged.clone();
            move |_| *logged.lock() += 1
        }));
        let start = Instant::now();
        let other = || TaskError::Tree(std::io::Error::from_raw_os_error(libc::EIO).into());
        // Columns: seconds since the start, error, number of lines logged by then.
        for (seconds, error, lines) in [
            (0, full(), 1),
            (1, full(), 1),
            (599, full(), 1),
            (600, full(), 2),
            (601, full(), 2),
            (602, other(), 3),
            (603, other(), 3),
        ] {
            let at = (Timestamp::from_unix_seconds(seconds), start + Duration::from_secs(seconds));
            failures.failed(Task::Flush, &error, at, || None);
            assert_eq!(*logged.lock(), lines, "after {seconds} s");
        }
        let failing = failures.failing();
        assert_eq!((failing[0].attempts, failing[0].since), (7, Timestamp::from_unix_seconds(0)));
        assert_eq!((failures.total(Task::Flush), failures.total(Task::Compaction)), (7, 0));
        failures.succeeded(Task::Flush);
        assert_eq!(failures.failing(), []);
        failures.failed(Task::Flush, &full(), (Timestamp::from_unix_seconds(604), start), || None);
        assert_eq!(*logged.lock(), 4, "a new failure is logged at once");
        assert!(failures.is_full());
    }
}
