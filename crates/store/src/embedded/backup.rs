//! Captures the rows of a store, also while a process writes to it.
//!
//! The order of the steps makes the capture consistent: the log first, then the tree. Log segments are
//! retired only after the tree holds their commits, so whatever is missing in the captured log is in the tree
//! captured later. The capture is one state: it has every commit acknowledged before it began, and none
//! submitted after it ended.
//!
//! - The log is copied up to the last whole frame. Links would not do, because the file of a retired segment
//!   is reused.
//! - Tables are linked, because they never change. The tree removes old manifests and tables when it makes
//!   new ones, so a capture that misses a file begins again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::OpenError;
use super::manifest::Manifest;
use crate::log::{self, SegmentCopy};

/// Maximum number of attempts to capture the log or the tree, whose files change meanwhile.
const MAX_ATTEMPTS: u32 = 1000;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// A file of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFile {
    /// The path in the store's directory.
    pub path: PathBuf,
    /// Identifies the file's bytes: files with the same path and identity are equal. `None` if the bytes may
    /// change.
    pub identity: Option<String>,
    /// The length to copy, in bytes. `None` for the whole file.
    pub length: Option<u64>,
}

/// Captures the store in `dir` into `into`, which must not exist and must be on the same file system. `into`
/// can then be opened or checked like any store. Blocks.
pub fn capture(dir: &Path, into: &Path) -> Result<(), OpenError> {
    capture_with(dir, into, || ())
}

/// Captures like [`capture`], but calls `between` after capturing the log.
fn capture_with(dir: &Path, into: &Path, between: impl FnOnce()) -> Result<(), OpenError> {
    let (log_dir, tree_dir) = (into.join("log"), into.join("tree"));
    fs::create_dir_all(&log_dir)?;
    retry_capture(|| capture_log(&dir.join("log"), &log_dir))?;
    between();
    retry_capture(|| capture_tree(dir, &tree_dir))
}

/// Lists the files of the store in `dir`, which no process may write to.
pub fn files(dir: &Path) -> Result<Vec<StoreFile>, OpenError> {
    let (tree, log_dir) = (Path::new("tree"), Path::new("log"));
    let mut files = vec![];
    if let Some(manifest) = Manifest::read(&dir.join(tree), &dir.join(log_dir))? {
        for name in manifest.own_files() {
            files.push(StoreFile { path: tree.join(name), identity: None, length: None });
        }
        for (table, checksum) in manifest.tables() {
            let identity = Some(format!("{checksum:032x}"));
            files.push(StoreFile { path: tree.join(table), identity, length: None });
        }
    }
    if dir.join(log_dir).is_dir() {
        for name in log::segment_names(&dir.join(log_dir))? {
            let path = log_dir.join(name);
            // Copy a damaged segment as it is, so that a check reports it.
            let length = match log::copy_segment(&dir.join(&path))? {
                SegmentCopy::Whole(bytes) => Some(bytes.len() as u64),
                SegmentCopy::Changed(_) => None,
            };
            files.push(StoreFile { path, identity: None, length });
        }
    }
    Ok(files)
}

/// The result of an attempt.
enum CaptureAttempt {
    Done,
    /// A file was replaced meanwhile.
    Again(OpenError),
}

fn retry_capture(mut capture: impl FnMut() -> Result<CaptureAttempt, OpenError>) -> Result<(), OpenError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match capture()? {
            CaptureAttempt::Done => return Ok(()),
            CaptureAttempt::Again(error) if attempts == MAX_ATTEMPTS => return Err(error),
            CaptureAttempt::Again(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Copies all segments. Begins again if one was retired meanwhile, because then the earlier ones are not
/// needed either.
fn capture_log(dir: &Path, into: &Path) -> Result<CaptureAttempt, OpenError> {
    for entry in fs::read_dir(into)? {
        fs::remove_file(entry?.path())?;
    }
    for name in log::segment_names(dir)? {
        let path = dir.join(&name);
        match log::copy_segment(&path)? {
            SegmentCopy::Whole(bytes) => fs::write(into.join(name), bytes)?,
            SegmentCopy::Changed(what) => {
                return Ok(CaptureAttempt::Again(OpenError::Damaged { path, what: what.into() }));
            }
        }
    }
    Ok(CaptureAttempt::Done)
}

/// Links the tables of the manifest. Begins again if the tree has replaced the manifest meanwhile.
fn capture_tree(dir: &Path, into: &Path) -> Result<CaptureAttempt, OpenError> {
    match fs::remove_dir_all(into) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let manifest = match Manifest::read(&dir.join("tree"), &dir.join("log")) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return Ok(CaptureAttempt::Done),
        Err(error @ OpenError::Damaged { .. }) => return Ok(CaptureAttempt::Again(error)),
        Err(error) => return Err(error),
    };
    match manifest.link_into(into) {
        Ok(()) => Ok(CaptureAttempt::Done),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CaptureAttempt::Again(error.into())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use lazuli_concurrency::SystemClock;

    use super::*;
    use crate::embedded::transfer::{self, Item};
    use crate::{Commit, Embedded, Mutation, Options, Partition, SpaceId, Store};

    /// Commits these rows one at a time.
    async fn put(store: &Embedded, rows: std::ops::Range<u32>) {
        for n in rows {
            let row = Mutation::Put(Bytes::copy_from_slice(&n.to_be_bytes()), vec![1; 8000].into());
            let (stamp, mutations) = (store.stamp(), vec![row]);
            let commit = Commit {
                stamp,
                epoch: 0,
                conditions: vec![],
                mutations,
                valid_until: None,
                fence: None,
                bulk: false,
            };
            store.commit(&Partition::new(SpaceId::ROOT, "p"), commit).await.unwrap();
        }
    }

    #[test]
    fn commits_whose_log_is_retired_during_a_capture_are_in_the_captured_tree() {
        let dir = tempfile::tempdir().unwrap();
        let [source, captured] = ["source", "captured"].map(|name| dir.path().join(name));
        fs::create_dir(&source).unwrap();
        let store = Embedded::open(&source, Arc::new(SystemClock), Options::SMALL).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(put(&store, 0..20));
        let segments = || log::segment_names(&source.join("log")).unwrap();
        let first = segments();
        capture_with(&source, &captured, || {
            runtime.block_on(put(&store, 20..200));
            while segments().iter().any(|segment| first.contains(segment)) {
                std::thread::sleep(PAUSE);
            }
        })
        .unwrap();
        let mut found = vec![];
        transfer::read_all(&captured, |item| {
            if let Item::Row { partition, row, .. } = item
                && partition == "p"
            {
                found.push(u32::from_be_bytes(*row.key.first_chunk().unwrap()));
            }
            Ok(())
        })
        .unwrap();
        assert!(found.len() >= 20, "{found:?}");
        assert_eq!(found, (0..found.len() as u32).collect::<Vec<_>>(), "a gap");
    }
}
