//! The data directory. Ensures that only one process uses it, and only in a format that the process knows.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::log::sync_dir;

/// The format of data directories that this program writes. Decision 0021 says when to raise it.
const FORMAT: u32 = 2;
/// The oldest format that this program reads.
const OLDEST_FORMAT: u32 = 1;
const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "LOCK";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has the directory open.
    #[error("{path} is in use by another process{owner}")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process id in parentheses, or empty if unknown.
        owner: String,
    },
    /// A newer version of the program wrote the directory.
    #[error("{path} has format {found}; this program reads up to format {FORMAT}. Use a newer Lazuli.")]
    Newer {
        /// The directory.
        path: PathBuf,
        /// The directory's format.
        found: u32,
    },
    /// The directory has other files.
    #[error("{path} is not a Lazuli data directory: {why}")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file system operation failed.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory of the operation.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// A data directory that this process has locked. The lock ends with this value, or with the process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Locks a data directory. Creates it if the path does not exist or is empty.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let io = |error| DirectoryError::Io { path: path.into(), error };
        let created: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
        std::fs::create_dir_all(path).map_err(io)?;
        for dir in created {
            // A new name is durable only when its parent directory is synced.
            let parent = dir
                .parent()
                .map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
            parent.map_or(Ok(()), sync_dir).map_err(io)?;
        }
        let lock = DirectoryLock::acquire(path)?;
        if let Err(error) = upgrade_format(path, OLDEST_FORMAT..=FORMAT) {
            lock.restore();
            return Err(error);
        }
        Ok(Self { path: path.into(), _lock: lock.keep() })
    }

    /// Locks an existing data directory.
    pub fn open_existing(path: &Path) -> Result<Self, DirectoryError> {
        if !path.join(FORMAT_FILE).exists() {
            return Err(no_format(path));
        }
        Self::open(path)
    }

    /// Locks an existing data directory for reading. Changes nothing in it, so it may be read-only. Several
    /// processes may have it locked this way.
    pub fn open_read_only(path: &Path) -> Result<Self, DirectoryError> {
        let io = |error| DirectoryError::Io { path: path.into(), error };
        let text = match std::fs::read_to_string(path.join(FORMAT_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_format(path)),
            Err(error) => return Err(io(error)),
        };
        let lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            // The directory is a copy without the lock file. Lock the directory itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path).map_err(io)?,
            Err(error) => return Err(io(error)),
        };
        lock_file(&lock, path, FlockOperation::NonBlockingLockShared)?;
        check_format(path, &text, &(OLDEST_FORMAT..=FORMAT))?;
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a subdirectory. Creates it durably if it does not exist.
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

/// The lock of a directory that may turn out to be foreign.
struct DirectoryLock {
    file: File,
    path: PathBuf,
    /// Whether this process created the lock file.
    created: bool,
}

impl DirectoryLock {
    fn acquire(directory: &Path) -> Result<Self, DirectoryError> {
        let path = directory.join(LOCK_FILE);
        let io = |error| DirectoryError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let (file, created) = match options.clone().create_new(true).open(&path) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.create(true).truncate(false).open(&path).map_err(io)?, false)
            }
            Err(error) => return Err(io(error)),
        };
        lock_file(&file, directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file, path, created })
    }

    /// Keeps the lock. Writes the process id for error messages; nothing depends on it.
    fn keep(mut self) -> File {
        let file = &mut self.file;
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        self.file
    }

    /// Restores a foreign directory to the state in which it was found.
    fn restore(self) {
        if self.created {
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
    // A process that only reads keeps the id of an earlier process in the file.
    let is_running = !pid.is_empty() && Path::new("/proc").join(pid).exists();
    let owner = if is_running { format!(" (pid {pid})") } else { String::new() };
    Err(DirectoryError::InUse { path: directory.into(), owner })
}

fn no_format(path: &Path) -> DirectoryError {
    DirectoryError::Foreign { path: path.into(), why: format!("no {FORMAT_FILE} file in it") }
}

/// Ensures that a locked directory has the newest of these formats. Initializes an empty directory. Upgrades
/// an older format now, before anything is written that an older program does not know.
fn upgrade_format(path: &Path, formats: RangeInclusive<u32>) -> Result<(), DirectoryError> {
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

/// Returns the format in the text of a format file. Any text that this program would not write is refused as
/// damaged.
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
        if !ALLOWED_IF_EMPTY.iter().any(|allowed| name == *allowed) {
            let why = format!("it holds {} but no {FORMAT_FILE} file", name.to_string_lossy());
            return Err(DirectoryError::Foreign { path: path.into(), why });
        }
    }
    Ok(())
}

const TEMPORARY_FORMAT_FILE: &str = "FORMAT.new";
/// The names that an empty directory may contain: files of an interrupted start, and the directory of a new
/// file system.
const ALLOWED_IF_EMPTY: [&str; 3] = [LOCK_FILE, TEMPORARY_FORMAT_FILE, "lost+found"];

fn write_format(path: &Path, format: u32) -> io::Result<()> {
    let temporary = path.join(TEMPORARY_FORMAT_FILE);
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
    fn directory_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let owner = Directory::open(&path).unwrap();
        let refused = Directory::open(&path).unwrap_err();
        assert!(refused.to_string().contains(&format!("(pid {})", std::process::id())), "{refused}");
        drop(owner);
        Directory::open(&path).unwrap();
    }

    #[test]
    fn newer_formats_and_foreign_files_are_refused_and_left_untouched() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::Foreign { .. })));
        assert!(!dir.path().join(LOCK_FILE).exists());
        std::fs::write(dir.path().join(LOCK_FILE), "another program's").unwrap();
        assert!(matches!(Directory::open(dir.path()), Err(DirectoryError::Foreign { .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap(), "another program's");
        let data = dir.path().join("data");
        drop(Directory::open(&data).unwrap());
        std::fs::write(data.join(FORMAT_FILE), format_text(FORMAT + 1)).unwrap();
        assert!(matches!(Directory::open(&data), Err(DirectoryError::Newer { .. })));
        assert!(matches!(
            Directory::open_existing(&dir.path().join("none")),
            Err(DirectoryError::Foreign { .. })
        ));
    }

    #[test]
    fn older_format_is_read_and_upgraded_only_by_a_writer() {
        let dir = tempfile::tempdir().unwrap();
        drop(Directory::open(dir.path()).unwrap());
        let format_file = || std::fs::read_to_string(dir.path().join(FORMAT_FILE)).unwrap();
        // A program of the next format.
        let next = || OLDEST_FORMAT..=FORMAT + 1;
        assert_eq!(check_format(dir.path(), &format_file(), &next()).unwrap(), FORMAT);
        assert_eq!(format_file(), format_text(FORMAT), "reading does not upgrade it");
        upgrade_format(dir.path(), next()).unwrap();
        assert_eq!(format_file(), format_text(FORMAT + 1));
        for opened in [Directory::open(dir.path()), Directory::open_read_only(dir.path())] {
            let found = FORMAT + 1;
            assert!(
                matches!(opened, Err(DirectoryError::Newer { found: f, .. }) if f == found),
                "{opened:?}"
            );
        }
        // A program that no longer reads the format.
        assert!(matches!(
            upgrade_format(dir.path(), FORMAT + 2..=FORMAT + 3),
            Err(DirectoryError::Foreign { .. })
        ));
        assert_eq!(format_file(), format_text(FORMAT + 1));
    }

    #[test]
    fn format_file_with_other_text_is_refused() {
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
    fn readers_share_a_directory_and_exclude_an_owner() {
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
    fn root_of_a_new_file_system_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(Directory::open(dir.path()).unwrap());
        Directory::open(dir.path()).unwrap();
    }
}
