//! The state of the engine as an operator sees it: what failed, since when, and which table is to blame.

use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;

use crate::SpaceId;

/// Work that the engine does beside commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Writes a sealed memtable to tables and retires log segments.
    Flush,
    /// Merges tables.
    Compaction,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 2] = [Self::Flush, Self::Compaction];

    /// The name in logs, in metrics and on `/readyz`.
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
    /// A table holds other bytes than were written.
    Damaged,
    /// Any other failure of the disk.
    Io,
}

/// A row, by its place in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// Its space.
    pub space: SpaceId,
    /// Its partition key.
    pub partition: Bytes,
    /// Its key within the partition.
    pub key: Bytes,
}

impl fmt::Display for RowPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (space, partition, key) = (self.space.0, self.partition.escape_ascii(), self.key.escape_ascii());
        write!(f, "space {space:016x} partition \"{partition}\" row \"{key}\"")
    }
}

/// A table with a block that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTable {
    /// Its file.
    pub path: PathBuf,
    /// The last row before the damage that can be read.
    pub before: Option<RowPlace>,
    /// The first row after the damage that can be read.
    pub after: Option<RowPlace>,
    /// Spaces with rows in this table, at most [`MAX_SPACES`](super::failures::MAX_SPACES) of them.
    pub spaces: Vec<SpaceId>,
    /// Whether the table holds rows of more spaces than are listed.
    pub more_spaces: bool,
}

/// A task whose last attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// The task.
    pub task: Task,
    /// Why it fails.
    pub cause: Cause,
    /// The error of the last attempt.
    pub error: String,
    /// When the first of these failures happened, by the engine's clock.
    pub since: Timestamp,
    /// Failed attempts in a row.
    pub attempts: u32,
    /// The table that cannot be read, if that is the cause.
    pub table: Option<DamagedTable>,
}

impl fmt::Display for TaskFailure {
    /// One line without names of data: `/readyz` shows it to clients without credentials.
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

/// The engine's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Why the engine acknowledges no writes; only a restart helps.
    pub stopped: Option<String>,
    /// Tasks that fail and are retried.
    pub failing: Vec<TaskFailure>,
    /// Whether the device is full: only commits that remove rows are accepted.
    pub full: bool,
}
