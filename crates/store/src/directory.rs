//! The data directory: one process at a time, one format at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::log::sync_dir;

/// The format of data directories that this program writes. Decision 0021 says when to raise it.
const FORMAT: u32 = 1;
/// The oldest format that this program reads.
const OLDEST: u32 = 1;
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
        let created: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
        std::fs::create_dir_all(path).map_err(io)?;
        for dir in created {
            // Each name is durable only when the directory that holds it is synced.
            let parent = dir
                .parent()
                .map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
            parent.map_or(Ok(()), sync_dir).map_err(io)?;
        }
        let lock = Lock::take(path)?;
        if let Err(error) = claim(path, OLDEST..=FORMAT) {
            lock.give_back();
            return Err(error);
        }
        Ok(Self { path: path.into(), _lock: lock.keep() })
    }

    /// Locks a data directory that must exist already.
    pub fn open_existing(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(FORMAT_FILE).exists() {
            return Err(no_format(path));
        }
        Self::open(path)
    }

    /// Locks a data directory that must exist already, to look at it: changes nothing in it, so it may be read-only.
    /// Others may look at it at the same time.
    pub fn open_read_only(path: &Path) -> Result<Self, DirectoryError> {
        let io = |error| DirectoryError::Io { path: path.into(), error };
        let text = match std::fs::read_to_string(path.join(FORMAT_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_format(path)),
            Err(error) => return Err(io(error)),
        };
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            // A copy without the file: no process has ever opened it. The directory itself can be locked as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path).map_err(io)?,
            Err(error) => return Err(io(error)),
        };
        lock_file(&lock, path, FlockOperation::NonBlockingLockShared)?;
        check_format(path, &text, &(OLDEST..=FORMAT))?;
        Ok(Self { path: path.into(), _lock: lock })
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

/// The lock of a directory that may turn out not to be ours.
struct Lock {
    file: File,
    path: PathBuf,
    /// It was not there before.
    made: bool,
}

impl Lock {
    fn take(directory: &Path) -> Result<Self, DirectoryError> {
        let path = directory.join(LOCK_FILE);
        let io = |error| DirectoryError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (file, made) = match options.clone().create_new(true).open(&path) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(&path).map_err(io)?, false)
            }
            Err(error) => return Err(io(error)),
        };
        lock_file(&file, directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file, path, made })
    }

    /// The directory is ours. The process id helps whoever finds it in use; nothing depends on it.
    fn keep(mut self) -> File {
        let file = &mut self.file;
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        self.file
    }

    /// The directory is not ours: it stays as it was found.
    fn give_back(self) {
        if self.made {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock_file(mut file: &File, directory: &Path, how: FlockOperation) -> Result<(), DirectoryError> {
    if flock(file, how).is_ok() {
        return Ok(());
    }
    let mut pid = String::new();
    let _ = file.read_to_string(&mut pid);
    let pid = pid.trim();
    // A process that only looks leaves the id of an earlier one there.
    let runs = !pid.is_empty() && Path::new("/proc").join(pid).exists();
    let owner = if runs { format!(" (pid {pid})") } else { String::new() };
    Err(DirectoryError::InUse { path: directory.into(), owner })
}

fn no_format(path: &Path) -> DirectoryError {
    DirectoryError::Foreign { path: path.into(), why: format!("no {FORMAT_FILE} file in it") }
}

/// Makes sure that a locked directory has the newest of these formats: a directory with an older one of them is given it
/// now, before anything is written that an older program does not know; an empty directory becomes a new one.
fn claim(path: &Path, formats: RangeInclusive<u32>) -> Result<(), DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.into(), error };
    match std::fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(text) => {
            let found = check_format(path, &text, &formats)?;
            if found < *formats.end() { write_format(path, *formats.end()).map_err(io) } else { Ok(()) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_foreign(path)?;
            write_format(path, *formats.end()).map_err(io)
        }
        Err(error) => Err(io(error)),
    }
}

/// Returns the format that a file of formats names. It holds exactly what was written there, or it is damaged.
fn check_format(path: &Path, text: &str, formats: &RangeInclusive<u32>) -> Result<u32, DirectoryError> {
    let number = text.strip_prefix("lazuli ").and_then(|rest| rest.strip_suffix('\n')?.parse::<u32>().ok());
    match number.filter(|number| text == format_text(*number)) {
        Some(found) if formats.contains(&found) => Ok(found),
        Some(found) if found > *formats.end() => Err(DirectoryError::Newer { path: path.into(), found }),
        _ => Err(DirectoryError::Foreign {
            path: path.into(),
            why: format!("{FORMAT_FILE} says {:?}, so it is another program's or damaged", text.trim()),
        }),
    }
}

fn format_text(format: u32) -> String {
    format!("lazuli {format}\n")
}

fn refuse_foreign(path: &Path) -> Result<(), DirectoryError> {
    let io = |error| DirectoryError::Io { path: path.into(), error };
    for entry in std::fs::read_dir(path).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if !EMPTY.iter().any(|of_empty| name == *of_empty) {
            let why = format!("it holds {} but no {FORMAT_FILE} file", name.to_string_lossy());
            return Err(DirectoryError::Foreign { path: path.into(), why });
        }
    }
    Ok(())
}

const TEMPORARY: &str = "FORMAT.new";
/// What an empty directory may hold: the leavings of a start that was cut short, and what a new file system comes with.
const EMPTY: [&str; 3] = [LOCK_FILE, TEMPORARY, "lost+found"];

fn write_format(path: &Path, format: u32) -> io::Result<()> {
    let temporary = path.join(TEMPORARY);
    let mut file = File::create(&temporary)?;
    file.write_all(format_text(format).as_bytes())?;
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
        assert!(!dir.path().join(LOCK_FILE).exists());
        std::fs::write(dir.path().join(LOCK_FILE), "another program's").unwrap();
        assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::Foreign { .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap(), "another program's");
        let data = dir.path().join("data");
        drop(Directory::open(&data).unwrap());
        std::fs::write(data.join(FORMAT_FILE), "lazuli 2\n").unwrap();
        assert!(matches!(Directory::open(&data), Err(DirectoryError::Newer { found: 2, .. })));
        assert!(matches!(
            Directory::open_existing(&dir.path().join("none")),
            Err(DirectoryError::Foreign { .. })
        ));
    }

    #[test]
    fn a_directory_of_an_older_format_is_read_and_raised_only_by_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path()).unwrap());
        let said = || std::fs::read_to_string(dir.path().join(FORMAT_FILE)).unwrap();
        // A program of the next format.
        let next = || OLDEST..=FORMAT + 1;
        assert_eq!(check_format(dir.path(), &said(), &next()).unwrap(), FORMAT);
        assert_eq!(said(), format_text(FORMAT), "to look at it does not raise it");
        claim(dir.path(), next()).unwrap();
        assert_eq!(said(), format_text(FORMAT + 1));
        for opened in [Directory::open(dir.path()), Directory::open_read_only(dir.path())] {
            let found = FORMAT + 1;
            assert!(
                matches!(opened, Err(DirectoryError::Newer { found: f, .. }) if f == found),
                "{opened:?}"
            );
        }
        // A program that no longer reads it.
        assert!(matches!(claim(dir.path(), FORMAT + 2..=FORMAT + 3), Err(DirectoryError::Foreign { .. })));
        assert_eq!(said(), format_text(FORMAT + 1));
    }

    #[test]
    fn a_format_file_that_is_not_exactly_what_was_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path()).unwrap());
        for text in [
            "lazuli 1",
            "lazuli 1\u{b}",
            "lazuli 01\n",
            "lazuli +1\n",
            "lazuli 1 \n",
            "lazuli 1\n\n",
            "Lazuli 1\n",
            "",
        ] {
            std::fs::write(dir.path().join(FORMAT_FILE), text).unwrap();
            assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::Foreign { .. })), "{text:?}");
            assert!(
                matches!(Directory::open_read_only(dir.path()), Err(DirectoryError::Foreign { .. })),
                "{text:?}"
            );
        }
    }

    #[test]
    fn readers_share_a_directory_and_keep_its_owner_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Directory::open_read_only(dir.path()), Err(DirectoryError::Foreign { .. })));
        let owner = Directory::open(dir.path()).unwrap();
        assert!(matches!(Directory::open_read_only(dir.path()), Err(DirectoryError::InUse { .. })));
        drop(owner);
        let readers =
            [Directory::open_read_only(dir.path()).unwrap(), Directory::open_read_only(dir.path()).unwrap()];
        assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::InUse { .. })));
        drop(readers);
        Directory::open(dir.path()).unwrap();
    }

    #[test]
    fn a_new_file_system_is_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(Directory::open(dir.path()).unwrap());
        Directory::open(dir.path()).unwrap();
    }
}
