//! The data directory: one process at a time, one format at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::log::sync_dir;

/// The format of data directories that this program writes.
const FORMAT: u32 = 1;
const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has it open.
    #[error("{path} is in use by another process{owner}")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// What is known of that process.
        owner: String,
    },
    /// Written by a newer version of the program.
    #[error("{path} has format {found}; this program reads up to format {FORMAT}. Use a newer Lazuli.")]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It holds something else.
    #[error("{path} is not a Lazuli data directory: {why}")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The file system refused.
    #[error("{path}: {error}")]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

/// A data directory that this process has locked. The lock ends with the value, or with the process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Locks a data directory, making a new one if the path does not exist or is empty.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let io = |error| DirectoryError::Io { path: path.into(), error };
        if !path.exists() {
            std::fs::create_dir_all(path).map_err(io)?;
            if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
                sync_dir(parent).map_err(io)?;
            }
        }
        let lock = lock(path)?;
        match std::fs::read_to_string(path.join(FORMAT_FILE)) {
            Ok(text) => check_format(path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse_foreign(path)?;
                write_format(path).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// Locks a data directory that must exist already.
    pub fn open_existing(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(FORMAT_FILE).exists() {
            return Err(DirectoryError::Foreign {
                path: path.into(),
                why: format!("no {FORMAT_FILE} file in it"),
            });
        }
        Self::open(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory within it, made durably if it is not there.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let path = self.path.join(name);
        let io = |error| DirectoryError::Io { path: path.clone(), error };
        if !path.exists() {
            std::fs::create_dir(&path).map_err(io)?;
        }
        sync_dir(&self.path).map_err(io)?;
        Ok(path)
    }
}

fn lock(path: &Path) -> Result<File, DirectoryError> {
    let file_path = path.join(LOCK_FILE);
    let io = |error| DirectoryError::Io { path: file_path.clone(), error };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&file_path)
        .map_err(io)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid);
        let owner = if pid.trim().is_empty() { String::new() } else { format!(" (pid {})", pid.trim()) };
        return Err(DirectoryError::InUse { path: path.into(), owner });
    }
    // The id helps whoever finds the directory in use; nothing depends on it.
    let _ =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
    Ok(file)
}

fn check_format(path: &Path, text: &str) -> Result<(), DirectoryError> {
    let found = text.strip_prefix("lazuli ").and_then(|v| v.trim().parse::<u32>().ok());
    match found {
        Some(FORMAT) => Ok(()),
        Some(found) if found > FORMAT => Err(DirectoryError::Newer { path: path.into(), found }),
        _ => Err(DirectoryError::Foreign {
            path: path.into(),
            why: format!("{FORMAT_FILE} says {:?}", text.trim()),
        }),
    }
}

fn refuse_foreign(path: &Path) -> Result<(), DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.into(), error };
    for entry in std::fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        // A start that was cut short leaves only these.
        if name != LOCK_FILE && name != TEMPORARY {
            let why = format!("it holds {} but no {FORMAT_FILE} file", name.to_string_lossy());
            return Err(DirectoryError::Foreign { path: path.into(), why });
        }
    }
    Ok(())
}

const TEMPORARY: &str = "FORMAT.new";

fn write_format(path: &Path) -> io::Result<()> {
    let temporary = path.join(TEMPORARY);
    let mut file = File::create(&temporary)?;
    writeln!(file, "lazuli {FORMAT}")?;
    file.sync_all()?;
    std::fs::rename(&temporary, path.join(FORMAT_FILE))?;
    sync_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let owner = Directory::open(&path).unwrap();
        let refused = Directory::open(&path).unwrap_err();
        assert!(refused.to_string().contains(&format!("(pid {})", std::process::id())), "{refused}");
        drop(owner);
        Directory::open(&path).unwrap();
    }

    #[test]
    fn a_newer_format_and_foreign_files_are_refused_untouched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::Foreign { .. })));
        let data = dir.path().join("data");
        drop(Directory::open(&data).unwrap());
        std::fs::write(data.join(FORMAT_FILE), "lazuli 2\n").unwrap();
        assert!(matches!(Directory::open(&data), Err(DirectoryError::Newer { found: 2, .. })));
        assert!(matches!(
            Directory::open_existing(&dir.path().join("none")),
            Err(DirectoryError::Foreign { .. })
        ));
    }
}
