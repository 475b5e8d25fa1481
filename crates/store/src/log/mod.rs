//! The log: what makes a commit durable.
//!
//! An append is one write and one `fdatasync`; when it returns, the frame survives a power cut. The log is cut into
//! segments so that those whose commits have reached the tree can be removed. [`frame`] tells how a crash is told
//! from damage.
//!
//! Order of effects, which recovery relies on:
//! - a segment file and its directory entry are durable before its first frame is written;
//! - a segment ends with a durable end frame before the next one is created;
//! - segments are removed oldest first, each removal durable before the next.

mod frame;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use frame::{Header, Identity, Kind, Tail};
use rustix::fs::FallocateFlags;

pub(crate) use frame::FRAME_HEADER_BYTES;

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// What was durable once cannot be read any more.
    #[error("{path}: damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// Written by a newer version of the program.
    #[error("{path}: written in format {found}, newer than this program's {FORMAT}", FORMAT = frame::FORMAT)]
    Newer {
        /// The segment.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The file system refused.
    #[error("log: {0}")]
    Io(#[from] io::Error),
}

/// Why an append did not happen.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Nothing was written, or it was durably taken back: the log goes on. The device is full.
    Full,
    /// The frame may or may not be durable, and nothing more can be.
    Broken(io::Error),
}

/// The open log. It has one owner, the committer.
pub(crate) struct Log {
    dir: PathBuf,
    file: File,
    identity: Identity,
    /// Where the next frame goes.
    at: usize,
    /// Its number.
    number: u64,
    /// Bytes of the segment file.
    size: usize,
    /// Bytes of the next one, unless a frame needs more.
    segment_bytes: usize,
    /// A note stands at `at`.
    noted: bool,
}

/// What a walk over the log found, without changing anything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// Frames with commits in them.
    pub(crate) groups: u64,
    /// A file that was being created when the program stopped, and never used.
    unused: Option<u64>,
}

impl Log {
    /// Opens the log in `dir`, hands every group that it holds to `replay` in order, and starts a new segment behind
    /// them. Returns the segments that were replayed.
    pub(crate) fn open(
        dir: &Path,
        segment_bytes: usize,
        replay: impl FnMut(&[u8]),
    ) -> Result<(Self, Vec<u64>), LogError> {
        let found = read(dir, replay)?;
        if let Some(unused) = found.unused {
            std::fs::remove_file(path(dir, unused))?;
            sync_dir(dir)?;
        }
        let last = found.segments.last().copied();
        if let Some(last) = last {
            settle_last_segment(dir, last)?;
        }
        let next = last.or(found.unused).unwrap_or(0) + 1;
        Ok((Self::create(dir, next, segment_bytes, 0)?, found.segments))
    }

    /// The segment being written.
    pub(crate) fn segment(&self) -> u64 {
        self.identity.segment
    }

    /// Makes one group durable. `buffer` holds [`FRAME_HEADER_BYTES`] free bytes and then the payload.
    pub(crate) fn append(&mut self, buffer: &mut Vec<u8>) -> Result<(), AppendError> {
        let bytes = frame::frame_bytes(buffer.len() - FRAME_HEADER_BYTES);
        // An end frame must always fit behind.
        if self.at + bytes + frame::frame_bytes(0) > self.size {
            self.rotate(bytes).map_err(full_or_broken)?;
        }
        frame::seal(self.identity, self.number, Kind::Group, buffer);
        if let Err(error) = self.file.write_all_at(buffer, self.at as u64) {
            return Err(self.take_back(error));
        }
        self.file.sync_data().map_err(AppendError::Broken)?;
        self.at += bytes;
        self.number += 1;
        self.noted = false;
        Ok(())
    }

    /// Says behind the last frame that it is durable. Called when nothing waits; a lost note loses nothing.
    pub(crate) fn note(&mut self) -> io::Result<()> {
        if !self.noted {
            self.write_mark(Kind::Note)?;
            self.noted = true;
        }
        Ok(())
    }

    /// Ends the segment and goes on in a new one with room for a frame of `bytes`.
    pub(crate) fn rotate(&mut self, bytes: usize) -> io::Result<()> {
        self.write_mark(Kind::End)?;
        self.file.sync_data()?;
        *self = Self::create(&self.dir, self.identity.segment + 1, self.segment_bytes, bytes)?;
        Ok(())
    }

    /// Removes segments whose commits have all reached the tree, oldest first.
    pub(crate) fn remove(dir: &Path, segments: impl IntoIterator<Item = u64>) -> io::Result<()> {
        for segment in segments {
            std::fs::remove_file(path(dir, segment))?;
            sync_dir(dir)?;
        }
        Ok(())
    }

    /// Makes a segment with room for a frame of `bytes`.
    fn create(dir: &Path, segment: u64, segment_bytes: usize, bytes: usize) -> io::Result<Self> {
        let size = segment_bytes.max(frame::HEADER_BYTES + bytes + frame::frame_bytes(0));
        let identity = Identity { segment, salt: getrandom::u64().map_err(io::Error::other)? };
        let path = path(dir, segment);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let made = (|| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
            file.write_all_at(&frame::segment_header(identity), 0)?;
            file.sync_all()?;
            sync_dir(dir)
        })();
        if let Err(error) = made {
            // An unused segment is recognised at the next start if it cannot be removed now.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self {
            dir: dir.into(),
            file,
            identity,
            at: frame::HEADER_BYTES,
            number: 0,
            size,
            segment_bytes,
            noted: false,
        })
    }

    fn write_mark(&self, kind: Kind) -> io::Result<()> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        frame::seal(self.identity, self.number, kind, &mut buffer);
        self.file.write_all_at(&buffer, self.at as u64)
    }

    /// A write failed. If the device is full, what it left is durably erased and the log goes on.
    fn take_back(&mut self, error: io::Error) -> AppendError {
        if error.raw_os_error() != Some(rustix::io::Errno::NOSPC.raw_os_error()) {
            return AppendError::Broken(error);
        }
        let erased = self.file.write_all_at(&[0; FRAME_HEADER_BYTES], self.at as u64);
        self.noted = false;
        match erased.and_then(|()| self.file.sync_data()) {
            Ok(()) => AppendError::Full,
            Err(error) => AppendError::Broken(error),
        }
    }
}

fn full_or_broken(error: io::Error) -> AppendError {
    match error.raw_os_error() {
        // Creating the next segment failed; the old one ended and will be rotated again.
        Some(code) if code == rustix::io::Errno::NOSPC.raw_os_error() => AppendError::Full,
        _ => AppendError::Broken(error),
    }
}

/// Walks the whole log without changing it.
pub(crate) fn read(dir: &Path, mut replay: impl FnMut(&[u8])) -> Result<Found, LogError> {
    let segments = list(dir)?;
    let mut found = Found::default();
    for (i, &segment) in segments.iter().enumerate() {
        let path = path(dir, segment);
        let newest = i + 1 == segments.len();
        let damaged = |offset, what| LogError::Damaged { path: path.clone(), offset, what };
        if i > 0 && segments[i - 1] + 1 != segment {
            return Err(damaged(0, "the segment before it is missing"));
        }
        let bytes = std::fs::read(&path)?;
        let identity = match frame::read_header(&bytes, segment) {
            Header::Valid(identity) => identity,
            Header::Newer(found) => return Err(LogError::Newer { path, found }),
            Header::Invalid => {
                let used = bytes.iter().skip(frame::HEADER_BYTES).any(|b| *b != 0);
                if newest && !used {
                    found.unused = Some(segment);
                    break;
                }
                return Err(damaged(0, "its header is not readable"));
            }
        };
        match frame::walk(&bytes, identity, 0, |payload| {
            found.groups += 1;
            replay(payload);
        }) {
            (_, Tail::Ended) => {}
            (_, Tail::Open(_)) if newest => {}
            // The newest file may exist already while it is not in use: then this one is the last.
            (_, Tail::Open(at)) => return Err(damaged(at, "it has no end, but a segment follows")),
            (_, Tail::Damaged(at)) => return Err(damaged(at, "a durable frame is not readable")),
        }
        found.segments.push(segment);
    }
    Ok(found)
}

/// Makes durable what recovery read, and puts an end behind it. A process that was killed may have left frames, an end or
/// a header whole but not synced: what is built on them next must not outlive them.
fn settle_last_segment(dir: &Path, segment: u64) -> Result<(), LogError> {
    let path = path(dir, segment);
    let file = OpenOptions::new().write(true).open(&path)?;
    let bytes = std::fs::read(&path)?;
    if let Header::Valid(identity) = frame::read_header(&bytes, segment)
        && let (number, Tail::Open(at)) = frame::walk(&bytes, identity, 0, |_| ())
    {
        let mut end = vec![0; FRAME_HEADER_BYTES];
        frame::seal(identity, number, Kind::End, &mut end);
        file.write_all_at(&end, at as u64)?;
    }
    file.sync_all()?;
    Ok(())
}

fn path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{segment:016x}.log"))
}

fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut segments = vec![];
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if let Some(id) = name.to_str().and_then(|n| n.strip_suffix(".log"))
            && let Ok(id) = u64::from_str_radix(id, 16)
        {
            segments.push(id);
        }
    }
    segments.sort_unstable();
    Ok(segments)
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_BYTES: usize = 1 << 20;

    fn open(dir: &Path) -> Result<(Log, Vec<u64>), LogError> {
        Log::open(dir, SEGMENT_BYTES, |_| ())
    }

    fn group(payload: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        buffer.extend_from_slice(payload);
        buffer
    }

    fn replayed(dir: &Path) -> Result<Vec<Vec<u8>>, LogError> {
        let mut groups = vec![];
        read(dir, |g| groups.push(g.to_vec()))?;
        Ok(groups)
    }

    fn newest(dir: &Path) -> PathBuf {
        path(dir, *list(dir).unwrap().last().unwrap())
    }

    #[test]
    fn what_was_appended_is_replayed_over_rotations_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = vec![];
        for round in 0..3u8 {
            let (mut log, _) = open(dir.path()).unwrap();
            for i in 0..5u8 {
                log.append(&mut group(&[round, i])).unwrap();
                expected.push(vec![round, i]);
                if i == 2 {
                    log.rotate(0).unwrap();
                }
                log.note().unwrap();
            }
        }
        assert_eq!(replayed(dir.path()).unwrap(), expected);
        let (_, old) = open(dir.path()).unwrap();
        Log::remove(dir.path(), old).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_frame_larger_than_a_segment_gets_a_segment_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let large = vec![9; SEGMENT_BYTES + 5];
        log.append(&mut group(&large)).unwrap();
        log.append(&mut group(b"after")).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![large, b"after".to_vec()]);
    }

    #[test]
    fn a_torn_last_frame_is_dropped_and_writing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept")).unwrap();
        let torn_at = log.at as u64;
        log.append(&mut group(&[5; 9000])).unwrap();
        log.file.write_all_at(&[0; 4096], torn_at + 4096).unwrap();
        drop(log);
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec()]);
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"next")).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec(), b"next".to_vec()]);
    }

    #[test]
    fn a_flipped_bit_in_an_acknowledged_frame_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let at = log.at as u64;
        log.append(&mut group(b"acknowledged")).unwrap();
        log.note().unwrap();
        log.file.write_all_at(b"X", at + FRAME_HEADER_BYTES as u64).unwrap();
        assert!(matches!(open(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn a_segment_that_was_being_created_is_not_missed_and_a_used_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept")).unwrap();
        log.rotate(0).unwrap();
        File::options().write(true).open(newest(dir.path())).unwrap().write_all_at(&[0; 64], 0).unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"more")).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec(), b"more".to_vec()]);
        File::options().write(true).open(newest(dir.path())).unwrap().write_all_at(&[0; 64], 0).unwrap();
        assert!(matches!(replayed(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn a_missing_segment_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.rotate(0).unwrap();
        log.rotate(0).unwrap();
        std::fs::remove_file(path(dir.path(), 2)).unwrap();
        assert!(matches!(replayed(dir.path()), Err(LogError::Damaged { .. })));
    }
}
