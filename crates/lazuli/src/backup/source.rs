//! A data directory as backups and exports read it: a snapshot of a running server's, or a stopped one
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
    /// In the data directory.
    pub(crate) path: String,
    /// Among files with the same path and identity, the shorter one is the beginning of the longer one,
    /// except for what was freed. None if nothing is known about the bytes.
    pub(crate) identity: Option<String>,
    /// Bytes to back up.
    pub(crate) length: u64,
}

/// A data directory that does not change as long as this exists.
pub(crate) struct BackupSource {
    pub(crate) dir: PathBuf,
    pub(crate) files: Vec<SourceFile>,
    held: Held,
}

enum Held {
    /// A server keeps the snapshot as long as the connection lasts.
    ByServer(HeldSnapshot),
    ByLock(#[allow(dead_code, reason = "held, not read")] Directory),
}

impl BackupSource {
    /// Asks the server of a data directory for a snapshot, or locks a directory that has no server.
    pub(crate) fn open(data: &Path) -> Result<Self, Failure> {
        let (dir, segments, held) = match control::hold_snapshot(data)? {
            Some((held, segments)) => (data.join(SNAPSHOT), segments, Held::ByServer(held)),
            None => {
                let lock = data::lock_to_read(data)?;
                (data.to_owned(), stopped_segments(data)?, Held::ByLock(lock))
            }
        };
        let mut source = Self { dir, files: vec![], held };
        source.add(FORMAT.into(), None, None)?;
        for file in backup::files(&source.dir.join(STORE)).map_err(Failure::failed)? {
            source.add(Path::new(STORE).join(file.path), file.identity, file.length)?;
        }
        for Segment { name, identity, length } in segments {
            source.add(Path::new(SEGMENTS).join(name), identity, Some(length))?;
        }
        Ok(source)
    }

    /// Fails if the snapshot was not kept to the end.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.held {
            Held::ByServer(held) => held.finish(),
            Held::ByLock(_) => Ok(()),
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
