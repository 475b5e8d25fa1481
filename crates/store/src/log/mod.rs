//! The log: what makes a commit durable.
//!
//! An append is one write, [past the page cache](direct), and one `fdatasync`; when it returns, the frame survives a power
//! cut. The log is cut into segments so that those whose commits have reached the tree can be retired. [`frame`] tells how a crash is told
//! from damage.
//!
//! Order of effects, which recovery relies on:
//! - a segment gets its name when its header is durable, and its first frame when its name is;
//! - a segment ends with a durable end frame before the next one is created;
//! - segments are retired oldest first, each durably before the next.
//!
//! A retired segment's file becomes the next segment: a sync is faster where the file system has nothing to note about
//! where the bytes lie. What it still holds are frames of another segment, which count for as little as zeros.

mod direct;
mod frame;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use direct::End;
use frame::{Header, Identity, Kind, Tail};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

pub(crate) use frame::FRAME_HEADER_BYTES;

/// A retired segment's file, until it is used again. The flusher sets it aside and the committer takes it away.
const SPARE: &str = "spare";
/// The next segment's file until it has a header.
const NEXT: &str = "next";

/// Bytes of a new segment's file that are written at once.
const ZEROS: usize = 1 << 20;

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
    /// Nothing was written: a frame cannot be as long.
    TooLarge,
    /// Nothing was written: a next segment was needed, and the process is short of file descriptors or memory. The log
    /// goes on.
    Short(io::Error),
    /// The frame may or may not be durable, and nothing more can be.
    Broken(io::Error),
}

/// The open log. It has one owner, the committer.
pub(crate) struct Log {
    dir: PathBuf,
    /// The same, opened: to make a segment's name durable takes no file descriptor that might not be had.
    directory: File,
    identity: Identity,
    /// Where the next frame goes.
    end: End,
    /// Its number.
    number: u64,
    /// Bytes of the segment file.
    size: usize,
    /// Bytes of the next one, unless a frame needs more.
    segment_bytes: usize,
    /// A note stands there.
    noted: bool,
}

/// What a walk over the log found, without changing anything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// Frames with commits in them.
    pub(crate) groups: u64,
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
        let last = found.segments.last().copied();
        if let Some(last) = last {
            settle_last_segment(dir, last)?;
        }
        let directory = File::open(dir)?;
        let size = segment_size(segment_bytes, 0);
        let (identity, file) = begin_segment(dir, &directory, last.unwrap_or(0) + 1, size)?;
        directory.sync_all()?;
        let end = End::new(file, &path(dir, identity.segment), frame::HEADER_BYTES);
        let dir = dir.into();
        let log = Self { dir, directory, identity, end, number: 0, size, segment_bytes, noted: false };
        Ok((log, found.segments))
    }

    /// The segment being written.
    pub(crate) fn segment(&self) -> u64 {
        self.identity.segment
    }

    /// Makes one group durable. `buffer` holds [`FRAME_HEADER_BYTES`] free bytes and then the payload.
    pub(crate) fn append(&mut self, buffer: &mut Vec<u8>) -> Result<(), AppendError> {
        if buffer.len() > frame::MAX_FRAME_BYTES {
            return Err(AppendError::TooLarge);
        }
        let bytes = frame::frame_bytes(buffer.len() - FRAME_HEADER_BYTES);
        // An end frame must always fit behind.
        if self.end.at() + bytes + frame::frame_bytes(0) > self.size {
            self.rotate(bytes)?;
        }
        frame::seal(self.identity, self.number, Kind::Group, buffer);
        if let Err(error) = self.end.write(buffer) {
            return Err(self.take_back(error));
        }
        self.end.sync().map_err(AppendError::Broken)?;
        self.end.advance(buffer);
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
    pub(crate) fn rotate(&mut self, bytes: usize) -> Result<(), AppendError> {
        self.write_mark(Kind::End).and_then(|()| self.end.sync()).map_err(full_or_broken)?;
        let size = segment_size(self.segment_bytes, bytes);
        // Should this fail, the old segment has ended and will be rotated again.
        let (identity, file) = begin_segment(&self.dir, &self.directory, self.identity.segment + 1, size)
            .map_err(
                |error| if is_short(&error) { AppendError::Short(error) } else { full_or_broken(error) },
            )?;
        // Now there is a next segment, or there is none: no frame may go into either.
        self.directory.sync_all().map_err(AppendError::Broken)?;
        self.end = End::new(file, &path(&self.dir, identity.segment), frame::HEADER_BYTES);
        self.identity = identity;
        self.number = 0;
        self.size = size;
        self.noted = false;
        Ok(())
    }

    /// Lets go of segments whose commits have all reached the tree, oldest first.
    pub(crate) fn retire(dir: &Path, segments: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let spare = dir.join(SPARE);
        for segment in segments {
            let path = path(dir, segment);
            let retired =
                if spare.try_exists()? { std::fs::remove_file(path) } else { std::fs::rename(path, &spare) };
            match retired {
                // A try before this one got as far as the sync.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                retired => retired?,
            }
            sync_dir(dir)?;
        }
        Ok(())
    }

    fn write_mark(&mut self, kind: Kind) -> io::Result<()> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        frame::seal(self.identity, self.number, kind, &mut buffer);
        self.end.write(&buffer)
    }

    /// A write failed. If the device is full, what it left is durably erased and the log goes on.
    fn take_back(&mut self, error: io::Error) -> AppendError {
        if !is_full(&error) {
            return AppendError::Broken(error);
        }
        let erased = self.end.write(&[0; FRAME_HEADER_BYTES]);
        self.noted = false;
        match erased.and_then(|()| self.end.sync()) {
            Ok(()) => AppendError::Full,
            Err(error) => AppendError::Broken(error),
        }
    }
}

fn full_or_broken(error: io::Error) -> AppendError {
    if is_full(&error) { AppendError::Full } else { AppendError::Broken(error) }
}

/// Whether an error says that the process, or the machine, has no file descriptor or no memory left for now.
fn is_short(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Whether an error says that there is no room, and nothing else: on the device, in the quota, or by the limit on file
/// sizes that the process was given.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG))
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
            Header::Invalid => return Err(damaged(0, "its header is not readable")),
        };
        match frame::walk(&bytes, identity, 0, |payload| {
            found.groups += 1;
            replay(payload);
        }) {
            (_, Tail::Ended) => {}
            (_, Tail::Open(_)) if newest => {}
            (_, Tail::Open(at)) => return Err(damaged(at, "it has no end, but a segment follows")),
            (_, Tail::Damaged(at)) => return Err(damaged(at, "a durable frame is not readable")),
        }
        found.segments.push(segment);
    }
    Ok(found)
}

/// A copy of one segment.
pub(crate) enum SegmentCopy {
    /// Its header and frames up to the last whole one.
    Whole(Vec<u8>),
    /// It was retired, or a frame was only partly there.
    Changed(&'static str),
}

/// Copies a segment that may be written to or retired meanwhile. Frames that were durable before the call are in the copy.
pub(crate) fn copy_segment(path: &Path) -> io::Result<SegmentCopy> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(SegmentCopy::Changed("it is missing"));
        }
        Err(error) => return Err(error),
    };
    let segment = path.file_name().and_then(|name| segment_id(name.to_str()?));
    let Some(Header::Valid(identity)) = segment.map(|segment| frame::read_header(&bytes, segment)) else {
        return Ok(SegmentCopy::Changed("its header is not readable"));
    };
    let mut end = frame::HEADER_BYTES;
    match frame::walk(&bytes, identity, 0, |payload| end += frame::frame_bytes(payload.len())) {
        // What follows an end is left of an earlier use of the file.
        (_, Tail::Ended) => bytes.truncate(end + frame::frame_bytes(0)),
        (_, Tail::Open(at)) => bytes.truncate(at),
        (_, Tail::Damaged(_)) => return Ok(SegmentCopy::Changed("a durable frame is not readable")),
    }
    Ok(SegmentCopy::Whole(bytes))
}

/// Names of the segment files, oldest first.
pub(crate) fn segment_names(dir: &Path) -> io::Result<Vec<String>> {
    Ok(list(dir)?.into_iter().map(segment_name).collect())
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

/// Bytes of a segment with room for a frame of `bytes`.
fn segment_size(segment_bytes: usize, bytes: usize) -> usize {
    segment_bytes.max(frame::HEADER_BYTES + bytes + frame::frame_bytes(0))
}

/// Makes a segment of `size` bytes, or nothing. Its name is still to be made durable.
fn begin_segment(dir: &Path, directory: &File, segment: u64, size: usize) -> io::Result<(Identity, File)> {
    let identity = Identity { segment, salt: getrandom::u64().map_err(io::Error::other)? };
    let next = dir.join(NEXT);
    let make = || -> io::Result<File> {
        let file = next_file(dir, directory, &next, size as u64)?;
        file.write_all_at(&frame::segment_header(identity), 0)?;
        file.sync_all()?;
        std::fs::rename(&next, path(dir, segment))?;
        Ok(file)
    };
    let file = make().inspect_err(|_| {
        // It takes space, and space may be what was missing.
        let _ = std::fs::remove_file(&next);
    })?;
    Ok((identity, file))
}

/// A file of `size` bytes: the spare one, or a new one.
fn next_file(dir: &Path, directory: &File, next: &Path, size: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match std::fs::rename(dir.join(SPARE), next) {
        Ok(()) => {
            // Its name of a segment must be gone for good before its header is.
            directory.sync_all()?;
            let file = options.open(next)?;
            if file.metadata()?.len() == size {
                return Ok(file);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = options.create(true).truncate(true).open(next)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)?;
    // Written once, so that the first syncs have as little to note as those in a spare file.
    let zeros = vec![0; ZEROS];
    for at in (0..size).step_by(ZEROS) {
        let length = (size - at).min(ZEROS as u64) as usize;
        file.write_all_at(&zeros[..length], at)?;
    }
    Ok(file)
}

fn path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(segment_name(segment))
}

fn segment_name(segment: u64) -> String {
    format!("{segment:016x}.log")
}

fn segment_id(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(".log")?, 16).ok()
}

fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut segments = vec![];
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        segments.extend(name.to_str().and_then(segment_id));
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

    /// Writes into the newest segment as if the disk had.
    fn overwrite(dir: &Path, at: u64, bytes: &[u8]) {
        File::options().write(true).open(newest(dir)).unwrap().write_all_at(bytes, at).unwrap();
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
        Log::retire(dir.path(), old).unwrap();
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
        let torn_at = log.end.at() as u64;
        log.append(&mut group(&[5; 9000])).unwrap();
        overwrite(dir.path(), torn_at + 4096, &[0; 4096]);
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
        let at = log.end.at() as u64;
        log.append(&mut group(b"acknowledged")).unwrap();
        log.note().unwrap();
        overwrite(dir.path(), at + FRAME_HEADER_BYTES as u64, b"X");
        assert!(matches!(open(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn a_segment_whose_header_is_gone_is_damage_even_if_it_was_not_used_yet() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        overwrite(dir.path(), 0, &[0; 64]);
        assert!(matches!(replayed(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn a_retired_segment_is_written_again_and_its_old_frames_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        for _ in 0..3 {
            log.append(&mut group(b"old, and of the same length")).unwrap();
        }
        log.note().unwrap();
        log.rotate(0).unwrap();
        Log::retire(dir.path(), [1]).unwrap();
        log.rotate(0).unwrap();
        assert!(!dir.path().join(SPARE).exists(), "the second rotation took it");
        log.append(&mut group(b"new, and of the same length")).unwrap();
        // Behind the only frame of its own stand the old ones; then this one is lost as well.
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"new, and of the same length".to_vec()]);
        overwrite(dir.path(), (frame::HEADER_BYTES + FRAME_HEADER_BYTES) as u64, b"X");
        assert_eq!(replayed(dir.path()).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn one_retired_segment_is_kept_and_one_of_the_wrong_size_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(dir.path(), SEGMENT_BYTES / 2, |_| ()).unwrap();
        log.append(&mut group(&[9; SEGMENT_BYTES / 4])).unwrap();
        log.rotate(0).unwrap();
        Log::retire(dir.path(), [1]).unwrap();
        let (_, old) = open(dir.path()).unwrap();
        let bytes = std::fs::read(newest(dir.path())).unwrap();
        assert_eq!(bytes.len(), SEGMENT_BYTES);
        assert!(bytes[frame::HEADER_BYTES..].iter().all(|b| *b == 0), "it is a new file");
        Log::retire(dir.path(), old).unwrap();
        let (_, old) = open(dir.path()).unwrap();
        Log::retire(dir.path(), old).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the one in use and a spare one");
    }

    #[test]
    fn what_a_crash_left_of_a_segment_without_a_name_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NEXT), b"half a header").unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept")).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec()]);
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
