//! Builds a data directory that becomes visible only when it is complete.
//!
//! The directory is built in a folder within the target, so that the target may be a mount point, and then
//! moved up. The file `FORMAT` is moved last: without it, no program takes the target for a data directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::snapshot::{FORMAT, SEGMENTS};
use crate::Failure;
use crate::data::STORE;

/// The folder in the target.
const INCOMING: &str = "incoming";
/// Names that an empty target may contain: the folder of a new file system, and the remains of an earlier
/// attempt.
const EMPTY: [&str; 2] = ["lost+found", INCOMING];

/// A data directory that is being built.
pub(crate) struct NewDirectory {
    target: PathBuf,
    lock: File,
}

impl NewDirectory {
    /// Creates the folder in a target that does not exist or is empty.
    pub(crate) fn begin(target: &Path) -> Result<Self, Failure> {
        let io = |error| failed(target, &error);
        fs::create_dir_all(target).map_err(io)?;
        let lock = File::open(target).map_err(io)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Failure::Failed(format!("{} is in use by another process", target.display())));
        }
        for entry in fs::read_dir(target).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            if !EMPTY.iter().any(|allowed| name == *allowed) {
                return Err(Failure::Failed(format!(
                    "{} is not empty: it holds {}. Name a new directory with --into.",
                    target.display(),
                    name.to_string_lossy()
                )));
            }
        }
        let fresh = Self { target: target.into(), lock };
        fresh.clear().map_err(io)?;
        fs::create_dir(fresh.dir()).map_err(io)?;
        Ok(fresh)
    }

    /// Returns the folder in which to build the directory.
    pub(crate) fn dir(&self) -> PathBuf {
        self.target.join(INCOMING)
    }

    /// Makes the directory durable, then visible.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let dir = self.dir();
        let finish = || -> io::Result<()> {
            sync_tree(&dir)?;
            for name in [STORE, SEGMENTS, FORMAT] {
                match fs::rename(dir.join(name), self.target.join(name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound && name != FORMAT => {}
                    renamed => renamed?,
                }
                self.lock.sync_all()?;
            }
            self.clear()?;
            self.lock.sync_all()
        };
        finish().map_err(|error| failed(&self.target, &error))
    }

    /// Removes what was built so far.
    pub(crate) fn abandon(self) {
        let _ = self.clear();
    }

    fn clear(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.dir()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => sync_tree(&entry.path())?,
            kind if kind.is_file() => File::open(entry.path())?.sync_all()?,
            _ => {}
        }
    }
    File::open(dir)?.sync_all()
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}
