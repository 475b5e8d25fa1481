//! Attempts to flush and to compact, and the files that a failed one leaves behind.
//!
//! The tree writes new tables under new numbers and then names them in a new manifest. When an attempt fails, its tables
//! stay on disk until the next start, and each retry adds more. So after a failure the files that no manifest names are
//! removed. Two rules make that safe beside the other task and beside readers:
//!
//! - nothing is removed while the other task is at work, since its new tables are not in a manifest yet;
//! - a table that was in a manifest once is never removed here: a snapshot may still read it, and the tree removes it.
//!
//! A manifest that could not be written is a special case. Its name may have reached the disk although the call failed:
//! then the disk and the memory disagree, and a retry would truncate the very manifest that a restart needs. The engine
//! compares both after each failure and stops if they differ. If they agree, no file names the new manifest and a retry is
//! safe.

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
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// For each task at work: tables that it makes have this number or a higher one.
    at_work: [Option<TableId>; 2],
    /// Tables that were in a manifest at some time since the older attempt at work began.
    named: HashSet<TableId>,
    /// Failed attempts that wait to remove their files. No attempt begins meanwhile.
    cleaning: usize,
    /// An attempt failed and the manifest on disk could not be read since.
    manifest_unknown: bool,
}

/// Why no attempt may begin.
#[derive(Debug)]
pub(super) enum Refused {
    /// The manifest on disk is not the one in memory. No attempt may follow in this process.
    ManifestInDoubt,
    /// The manifest on disk cannot be read for now.
    Unreadable(io::Error),
}

impl Attempts {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for its turn: one attempt of each task at a time, and none while files are removed.
    pub(super) fn begin<'a>(&'a self, tree: &'a AnyTree, task: Task) -> Result<Attempt<'a>, Refused> {
        let mut state = self.state.lock();
        while state.cleaning > 0 || state.at_work[task as usize].is_some() {
            self.changed.wait(&mut state);
        }
        if state.manifest_unknown {
            self.check_manifest(tree)?;
            state.manifest_unknown = false;
        }
        state.at_work[task as usize] = Some(tree.next_table_id());
        Ok(Attempt { attempts: self, tree, task, is_over: false })
    }

    /// Removes the files that a failed attempt left. What cannot be removed is left to the next start.
    fn clean(&self, tree: &AnyTree, first: TableId, named: &HashSet<TableId>) {
        let version = tree.current_version();
        let current: HashSet<TableId> = version.iter_tables().map(|table| table.id()).collect();
        let is_left_table =
            |number: u64| number >= first && !current.contains(&number) && !named.contains(&number);
        let is_left_manifest = |number: u64| number > version.id();
        let tables = remove_files(&self.dir.join(TABLES), |name| name.parse().is_ok_and(is_left_table));
        let manifests = remove_files(&self.dir, |name| {
            name.strip_prefix('v').is_some_and(|number| number.parse().is_ok_and(is_left_manifest))
        });
        if let Err(error) = tables.and(manifests) {
            tracing::warn!(%error, "files of a failed attempt stay until the next start");
        }
    }

    /// Compares the manifest that a restart would read with the one in memory.
    fn check_manifest(&self, tree: &AnyTree) -> Result<(), Refused> {
        let bytes = std::fs::read(self.dir.join(CURRENT)).map_err(Refused::Unreadable)?;
        let id = bytes.first_chunk().map(|id| u64::from_le_bytes(*id));
        if id == Some(tree.current_version().id()) { Ok(()) } else { Err(Refused::ManifestInDoubt) }
    }
}

fn remove_files(dir: &Path, is_left: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_left) && entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Flushes replayed rows if log segments besides the last one hold some of them, so that neither the log nor the time to
/// open grows with the number of crashes.
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

/// What became of replayed rows.
pub(super) enum FlushedRecovered {
    /// The tables hold all of them.
    All,
    /// They are in memory.
    NotYet {
        /// The memtable that could not be flushed.
        sealed: Vec<Arc<Memtable>>,
    },
}

/// An attempt at work. Dropping it without a result, as a panic does, leaves its files for the next start.
pub(super) struct Attempt<'a> {
    attempts: &'a Attempts,
    tree: &'a AnyTree,
    task: Task,
    is_over: bool,
}

impl Attempt<'_> {
    /// The attempt succeeded. Its tables are in the manifest now; one of them may be compacted away before the other task
    /// fails, so their numbers are remembered.
    pub(super) fn succeed(self) {
        let mut state = self.attempts.state.lock();
        let other = state.at_work[1 - self.task as usize];
        if let Some(first) = other {
            let version = self.tree.current_version();
            state.named.extend(version.iter_tables().map(|table| table.id()).filter(|id| *id >= first));
        } else {
            state.named.clear();
        }
    }

    /// The attempt failed. Waits until the other task is not at work, then removes the files that this one left. Fails
    /// if no attempt may follow for now.
    pub(super) fn fail(mut self) -> Result<(), Refused> {
        let Attempts { state, changed, .. } = self.attempts;
        let mut state = state.lock();
        let first = state.at_work[self.task as usize].take().unwrap_or(TableId::MAX);
        self.is_over = true;
        state.cleaning += 1;
        changed.notify_all();
        while state.at_work.iter().any(Option::is_some) {
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

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.attempts.state.lock().at_work[self.task as usize] = None;
            self.attempts.changed.notify_all();
        }
    }
}
