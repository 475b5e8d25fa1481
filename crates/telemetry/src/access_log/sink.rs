//! Where the lines of the access log go.

use std::fs::{File, OpenOptions};
use std::io::{self, Write, stderr};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where an access log is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard error of the process.
    Stderr,
    /// The end of a file, which is created if it does not exist.
    File(PathBuf),
}

/// Why an access log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The path names a pipe. Opening it would wait for a reader.
    #[error("{} is a pipe; name a file, or - for stderr", .0.display())]
    Pipe(PathBuf),
    /// The writer thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// An open destination.
#[derive(Debug)]
pub(super) enum Sink {
    Stderr,
    File {
        path: PathBuf,
        /// The path for the log.
        name: String,
        file: File,
        /// The last write ended within a line.
        is_torn: bool,
    },
}

impl Sink {
    pub(super) fn open(destination: Destination) -> Result<Self, OpenError> {
        match destination {
            Destination::Stderr => Ok(Self::Stderr),
            Destination::File(path) => {
                let file = open(&path)?;
                Ok(Self::File { name: path.display().to_string(), path, file, is_torn: false })
            }
        }
    }

    /// Returns the name for the server's log.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Stderr => "stderr",
            Self::File { name, .. } => name,
        }
    }

    /// Opens the file again, which may have been renamed. If that fails, keeps the open one.
    pub(super) fn reopen(&mut self) {
        let Self::File { path, file, is_torn, .. } = self else { return };
        match open(path) {
            Ok(opened) => {
                (*file, *is_torn) = (opened, false);
                tracing::info!(path = %path.display(), "reopened the access log");
            }
            Err(error) => {
                tracing::error!(%error, "could not reopen the access log; lines go on to the old file");
            }
        }
    }

    /// Writes lines. Returns how many complete lines were written, and the error that ended the write.
    pub(super) fn write(&mut self, lines: &[u8]) -> (u64, Option<io::Error>) {
        match self {
            Self::Stderr => write_lines(&mut stderr().lock(), lines, &mut false),
            Self::File { file, is_torn, .. } => write_lines(file, lines, is_torn),
        }
    }
}

fn open(path: &Path) -> Result<File, OpenError> {
    let is_pipe = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    if is_pipe {
        return Err(OpenError::Pipe(path.into()));
    }
    // The log names objects and addresses, so other users cannot read it.
    let opened = OpenOptions::new().append(true).create(true).mode(0o640).open(path);
    opened.map_err(|error| OpenError::File { path: path.into(), error })
}

/// Returns the number of lines.
pub(super) fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Writes lines, and first ends the line that the last write tore. Returns how many complete lines were
/// written, and the error that ended the write.
fn write_lines(to: &mut impl Write, lines: &[u8], is_torn: &mut bool) -> (u64, Option<io::Error>) {
    if *is_torn {
        match to.write_all(b"\n") {
            Ok(()) => *is_torn = false,
            Err(error) => return (0, Some(error)),
        }
    }
    let mut written = 0;
    let error = loop {
        match to.write(&lines[written..]) {
            Ok(0) if written < lines.len() => break Some(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
        if written == lines.len() {
            break None;
        }
    };
    *is_torn = written > 0 && lines[written - 1] != b'\n';
    (count_lines(&lines[..written]), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a number of bytes and then fails.
    struct Full(Vec<u8>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.1 -= count;
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn torn_line_is_ended_before_the_next_and_counts_as_lost() {
        let (mut disk, mut is_torn) = (Full(vec![], 8), false);
        let (written, error) = write_lines(&mut disk, b"first\nsecond\n", &mut is_torn);
        assert_eq!((written, error.map(|error| error.kind())), (1, Some(io::ErrorKind::StorageFull)));
        let (written, error) = write_lines(&mut disk, b"third\n", &mut is_torn);
        assert!(written == 0 && error.is_some() && is_torn);
        disk.1 = 100;
        assert_eq!(write_lines(&mut disk, b"fourth\n", &mut is_torn).0, 1);
        assert_eq!(disk.0, b"first\nse\nfourth\n");
    }
}
