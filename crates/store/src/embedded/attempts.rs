//! Attempts to flush and to compact, and the cleanup after failed ones.
//!
//! The tree writes new tables under new numbers and then names them in a new manifest. When an attempt fails,
//! its tables stay on disk until the next start, and each retry adds more. So after a failure, files that no
//! manifest names are removed. Two rules make that safe for the other task and for readers:
//!
//! - Nothing is removed while the other task runs, because its new tables are not in a manifest yet.
//! - A table that has been in a manifest is never removed here. A snapshot may still read it; the tree
//!   removes it.
//!
//! A failed write of the manifest is a special case. The new name may have reached the disk although the call
//! failed. Then disk and memory disagree, and a retry would truncate the manifest that a restart needs. The
//! engine compares both after each failure and stops if they differ. If they agree, no file names the new
//! manifest and a retry is safe.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_tree::{AbstractTree, AnyTree, Memtable, TableId};
use parking_lot::{Condvar, Mutex};

use super::OpenError;
use super::health::Task;

const TABLES: &str = "tables";
const CURRENT: &str = "current";

pub(super) struct Attempts {
    /// The tree's directory.
    dir: PathBuf,
    state: Mutex<AttemptsState>,
    changed: Condvar,
}

#[derive(Default)]
struct AttemptsState {
    /// For each running task, the lowest number that its new tables can have.
    running: [Option<TableId>; 2],
    /// Tables that have been in a manifest since the older running attempt began.
    named: HashSet<TableId>,
    /// Number of failed attempts that wait to remove their files. No attempt begins meanwhile.
    cleaning: usize,
    /// Whether an attempt failed and the manifest on disk could not be read since.
    manifest_unknown: bool,
}

/// Why no attempt may begin.
#[derive(Debug)]
pub(super) enum AttemptRefusal {
    /// The manifest on disk differs from the one in memory. No further attempt may begin in this process.
    ManifestInDoubt,
    /// The manifest on disk cannot be read at the moment.
    Unreadable(io::Error),
}

impl Attempts {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until the attempt may begin: each task makes one attempt at a time, and none begins while files
    /// are removed.
    pub(super) fn begin<'a>(
        &'a self,
        tree: &'a AnyTree,
        task: Task,
    ) -> Result<TaskAttempt<'a>, AttemptRefusal> {
        let mut state = self.state.lock();
        while state.cleaning > 0 || state.running[task as usize].is_some() {
            self.changed.wait(&mut state);
        }
        if state.manifest_unknown {
            self.check_manifest(tree)?;
            state.manifest_unknown = false;
        }
        state.running[task as usize] = Some(tree.next_table_id());
        Ok(TaskAttempt { attempts: self, tree, task, is_finished: false })
    }

    /// Removes the files of a failed attempt. Files that cannot be removed stay until the next start.
    fn clean(&self, tree: &AnyTree, first: TableId, named: &HashSet<TableId>) {
        let version = tree.current_version();
        let current: HashSet<TableId> = version.iter_tables().map(|table| table.id()).collect();
        let is_leftover_table =
            |number: u64| number >= first && !current.contains(&number) && !named.contains(&number);
        let is_leftover_manifest = |number: u64| number > version.id();
        let tables = remove_files(&self.dir.join(TABLES), |name| name.parse().is_ok_and(is_leftover_table));
        let manifests = remove_files(&self.dir, |name| {
            name.strip_prefix('v').is_some_and(|number| number.parse().is_ok_and(is_leftover_manifest))
        });
        if let Err(error) = tables.and(manifests) {
            tracing::warn!(%error, "files of a failed attempt stay until the next start");
        }
    }

    /// Checks that the manifest that a restart would read is the one in memory.
    fn check_manifest(&self, tree: &AnyTree) -> Result<(), AttemptRefusal> {
        let bytes = std::fs::read(self.dir.join(CURRENT)).map_err(AttemptRefusal::Unreadable)?;
        let id = bytes.first_chunk().map(|id| u64::from_le_bytes(*id));
        if id == Some(tree.current_version().id()) { Ok(()) } else { Err(AttemptRefusal::ManifestInDoubt) }
    }
}

fn remove_files(dir: &Path, is_leftover: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_leftover) && entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Flushes replayed rows if log segments other than the last one hold some of them. So neither the log nor
/// the time to open grows with the number of crashes.
pub(super) fn flush_recovered(
    tree: &AnyTree,
    dir: &Path,
    ended_segments: usize,
) -> Result<FlushedRecovered, OpenError> {
    if tree.active_memtable().is_empty() {
        return Ok(FlushedRecovered::All);
    }
    if ended_segments == 0 {
        return Ok(FlushedRecovered::NotYet { sealed: vec![] });
    }
    let attempts = Attempts::new(dir.into());
    let in_doubt = |refused| OpenError::Tree(format!("after a failed flush: {refused:?}"));
    let attempt = attempts.begin(tree, Task::Flush).map_err(in_doubt)?;
    let sealed = tree.rotate_memtable();
    match tree.flush(&tree.get_flush_lock(), 0) {
        Ok(_) => {
            attempt.succeed();
            Ok(FlushedRecovered::All)
        }
        Err(error) => {
            tracing::warn!(%error, "replayed rows could not be flushed; they stay in the log");
            attempt.fail().map_err(in_doubt)?;
            Ok(FlushedRecovered::NotYet { sealed: sealed.into_iter().collect() })
        }
    }
}

/// The result of flushing replayed rows.
pub(super) enum FlushedRecovered {
    /// All rows are in tables.
    All,
    /// The rows are only in memory.
    NotYet {
        /// The memtable that could not be flushed.
        sealed: Vec<Arc<Memtable>>,
    },
}

/// A running attempt. If it is dropped without a result, for example by a panic, its files stay until the
/// next start.
pub(super) struct TaskAttempt<'a> {
    attempts: &'a Attempts,
    tree: &'a AnyTree,
    task: Task,
    is_finished: bool,
}

impl TaskAttempt<'_> {
    /// Ends a successful attempt. Remembers its tables, which are in the manifest now: one may be compacted
    /// away before the other task fails.
    pub(super) fn succeed(self) {
        let mut state = self.attempts.state.lock();
        let other = state.running[1 - self.task as usize];
        if let Some(first) = other {
            let version = self.tree.current_version();
            state.named.extend(version.iter_tables().map(|table| table.id()).filter(|id| *id >= first));
        } else {
            state.named.clear();
        }
    }

    /// Ends a failed attempt. Waits until the other task is idle, then removes the files of this attempt.
    /// Fails if no further attempt may begin at the moment.
    pub(super) fn fail(mut self) -> Result<(), AttemptRefusal> {
        let Attempts { state, changed, .. } = self.attempts;
        let mut state = state.lock();
        let first = state.running[self.task as usize].take().unwrap_or(TableId::MAX);
        self.is_finished = true;
        state.cleaning += 1;
        changed.notify_all();
        while state.running.iter().any(Option::is_some) {
            changed.wait(&mut state);
        }
        let checked = self.attempts.check_manifest(self.tree);
        match checked {
            Ok(()) => self.attempts.clean(self.tree, first, &state.named),
            Err(_) => state.manifest_unknown = true,
        }
        state.cleaning -= 1;
        if state.cleaning == 0 {
            state.named.clear();
        }
        changed.notify_all();
        checked
    }
}

impl Drop for TaskAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.attempts.state.lock().running[self.task as usize] = None;
            self.attempts.changed.notify_all();
        }
    }
}
