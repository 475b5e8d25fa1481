//! The data directory that backups and exports read: a snapshot of a running server, or a stopped directory
//! itself.

use std::path::{Path, PathBuf};

use lazuli_extents::LocalExtents;
use lazuli_store::Directory;
use lazuli_store::embedded::backup;

use super::snapshot::{FORMAT, SEGMENTS, SNAPSHOT, Segment};
use crate::Failure;
use crate::control::{self, HeldSnapshot};
use crate::data::{self, STORE};

/// A file to back up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceFile {
    /// Path in the data directory.
    pub(crate) path: String,
    /// Of two files with the same path and identity, the shorter is a prefix of the longer, except for freed
    /// ranges. `None` if nothing is known about the bytes.
    pub(crate) identity: Option<String>,
    /// Bytes to back up.
    pub(crate) length: u64,
}

/// A data directory that does not change while this exists.
pub(crate) struct BackupSource {
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<SourceFile>,
    guard: SourceGuard,
}

/// Keeps the data directory from changing.
enum SourceGuard {
    /// A server keeps the snapshot while the connection lasts.
    ByServer(HeldSnapshot),
    ByLock(#[allow(dead_code, reason = "kept for its lock")] Directory),
}

impl BackupSource {
    /// Requests a snapshot from the server of a data directory, or locks a directory without a server.
    pub(crate) fn open(data: &Path) -> Result<Self, Failure> {
        let (dir, segments, guard) = match control::hold_snapshot(data)? {
            Some((snapshot, segments)) => (data.join(SNAPSHOT), segments, SourceGuard::ByServer(snapshot)),
            None => {
                let lock = data::lock_to_read(data)?;
                (data.to_owned(), stopped_segments(data)?, SourceGuard::ByLock(lock))
            }
        };
        let mut source = Self { dir, files: vec![], guard };
        source.add(FORMAT.into(), None, None)?;
        for file in backup::files(&source.dir.join(STORE)).map_err(Failure::failed)? {
            source.add(Path::new(STORE).join(file.path), file.identity, file.length)?;
        }
        for Segment { name, identity, length } in segments {
            source.add(Path::new(SEGMENTS).join(name), identity, Some(length))?;
        }
        Ok(source)
    }

    /// Returns an error if the snapshot was not kept until now.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.guard {
            SourceGuard::ByServer(snapshot) => snapshot.finish(),
            SourceGuard::ByLock(_) => Ok(()),
        }
    }

    fn add(&mut self, path: PathBuf, identity: Option<String>, length: Option<u64>) -> Result<(), Failure> {
        let full = self.dir.join(&path);
        let failed = |what: String| Failure::Failed(format!("{}: {what}", full.display()));
        let length = match length {
            Some(length) => length,
            None => full.metadata().map_err(|error| failed(error.to_string()))?.len(),
        };
        let path = path.to_str().ok_or_else(|| failed("its name is not UTF-8".into()))?.to_owned();
        self.files.push(SourceFile { path, identity, length });
        Ok(())
    }
}

fn stopped_segments(data: &Path) -> Result<Vec<Segment>, Failure> {
    if !data.join(SEGMENTS).is_dir() {
        return Ok(vec![]);
    }
    let extents = LocalExtents::open_read_only(data).map_err(Failure::failed)?;
    let segments = extents.list_segments().map_err(Failure::failed)?;
    Ok(segments.into_iter().map(Segment::from).collect())
}
