//! The engine's state for operators: what failed, since when, and which table caused it.

use std::fmt;
use std::path::PathBuf;

use lazuli_concurrency::Timestamp;

use crate::{RowPosition, SpaceId};

/// A background task of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Writing a sealed memtable to tables, and retiring log segments.
    Flush,
    /// Merging tables.
    Compaction,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 2] = [Self::Flush, Self::Compaction];

    /// Returns the task's name in logs, in metrics and on `/readyz`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Compaction => "compaction",
        }
    }
}

/// Why a task fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No space is left on the device.
    Full,
    /// A table is damaged.
    Damaged,
    /// Any other disk failure.
    Io,
}

/// A table with an unreadable block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTable {
    /// The table's file.
    pub path: PathBuf,
    /// The last readable row before the damage.
    pub before: Option<RowPosition>,
    /// The first readable row after the damage.
    pub after: Option<RowPosition>,
    /// The spaces with rows in the table, at most [`MAX_SPACES`](super::failures::MAX_SPACES) of them.
    pub spaces: Vec<SpaceId>,
    /// Whether the table has rows of further spaces.
    pub more_spaces: bool,
}

/// A task whose last attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// The task.
    pub task: Task,
    /// Why the task fails.
    pub cause: Cause,
    /// The error of the last attempt.
    pub error: String,
    /// The time of the first of these failures, by the engine's clock.
    pub since: Timestamp,
    /// Number of consecutive failed attempts.
    pub attempts: u32,
    /// The damaged table, if that is the cause.
    pub table: Option<DamagedTable>,
}

impl fmt::Display for TaskFailure {
    /// Formats one line without names of data: `/readyz` shows it to clients without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, cause, error, attempts, table, .. } = self;
        write!(f, "{} fails ({attempts} attempts): ", task.name())?;
        match (cause, table.as_ref().and_then(|table| table.path.file_name())) {
            (Cause::Full, _) => write!(f, "no space left on the device"),
            (Cause::Damaged, Some(name)) => write!(f, "table {} is damaged", name.display()),
            (Cause::Damaged | Cause::Io, _) => write!(f, "{error}"),
        }
    }
}

/// The problems of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why the engine has stopped acknowledging writes. It must be restarted.
    pub stopped: Option<String>,
    /// The tasks that fail and are retried.
    pub failing: Vec<TaskFailure>,
    /// Whether the device is full, so that only commits that remove rows are accepted.
    pub full: bool,
}
