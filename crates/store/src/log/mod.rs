//! The write-ahead log, which makes commits durable.
//!
//! An append is one write, [past the page cache](direct), and one `fdatasync`. When it returns, the frame
//! survives a power cut. The log consists of segments, so that those whose commits have reached the tree can
//! be retired. [`frame`] explains how a crash is distinguished from damage.
//!
//! Recovery relies on this order of effects:
//! - A segment gets its name after its header is durable, and its first frame after its name is durable.
//! - A segment ends with a durable end frame before the next one gets its name.
//! - Segments are retired oldest first. Each removal is durable before the next one.
//!
//! A restart continues in the last segment, so crashes use no additional space. Segments start small and grow
//! with use. The end of each segment is reserved for commits that free space, so that a full disk can be
//! emptied.
//!
//! A background thread prepares the next segment, so that a rotation takes only two syncs. If no segment is
//! ready, the log does not wait: it continues in a segment that is not filled with zeros, where syncs take
//! longer.
//!
//! The file of a retired segment is reused for a later one. Syncs are faster there, because the file system
//! already knows the location of all blocks. The old frames in it belong to another segment and are ignored
//! like zeros.

mod copy;
mod direct;
mod frame;
mod range_crc;
mod salvage;
mod segments;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use direct::SYNC_TIMES;
use direct::WritePosition;
use frame::{FrameKind, Identity, SegmentHeader, Tail};
use rustix::io::Errno;

pub(crate) use copy::{SegmentCopy, copy_segment, segment_names};
pub(crate) use frame::FRAME_HEADER_BYTES;
pub(crate) use salvage::salvage;
pub(crate) use segments::{NextSegment, SegmentRequest};
use segments::{SegmentSizes, ZeroFill, size_for};

/// Size of the first segment in bytes.
const FIRST_BYTES: usize = 1 << 20;
/// If at least half of a segment was used, the next one is this many times larger, up to the configured size.
const GROWTH: usize = 4;
/// Bytes at the end of a segment that are reserved for commits that free space. Small segments have a smaller
/// reserve.
const RESERVE_BYTES: usize = 512 << 10;
/// The next segment is prepared when this fraction (1/n) of a segment of full size is used.
const PREPARE_AT: usize = 4;
/// A restart continues in the last segment if it has this many free bytes.
const RESUME_BYTES: usize = 64 << 10;

/// The part of a segment that a frame may use before a new segment is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// All but the reserve.
    Usual,
    /// All but half of the reserve: for frames that raise the clock's ceiling.
    Ceiling,
    /// All, including the reserve: for frames that free space.
    Reclaim,
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Durable data can no longer be read.
    #[error("{path}: damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The offset in the segment.
        offset: usize,
        /// A description of the damage.
        what: &'static str,
    },
    /// A newer version of the program wrote the segment.
    #[error("{path}: written in format {found}, newer than this program's {FORMAT}", FORMAT = frame::FORMAT)]
    Newer {
        /// The segment.
        path: PathBuf,
        /// The segment's format.
        found: u32,
    },
    /// A file system operation failed.
    #[error("log: {0}")]
    Io(#[from] io::Error),
}

/// Why an append failed.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The device is full. Nothing was written, or it was durably erased. The log can continue.
    Full,
    /// The frame is longer than a frame can be. Nothing was written.
    TooLarge,
    /// A new segment was needed, but the process has too few file descriptors or too little memory. Nothing
    /// was written. The log can continue.
    Short(io::Error),
    /// The frame may or may not be durable. The log cannot continue.
    Broken(io::Error),
}

/// The open log. It has one owner, the committer.
pub(crate) struct Log {
    dir: PathBuf,
    /// The opened `dir`, so that making a segment's name durable needs no further file descriptor.
    directory: File,
    identity: Identity,
    /// The position of the next frame in the current segment.
    position: WritePosition,
    /// The number of the next frame.
    number: u64,
    /// Size of the current segment in bytes.
    size: usize,
    /// Maximum size of the next segment in bytes, unless a frame needs more.
    segment_bytes: usize,
    /// Whether there is a note after the last frame.
    has_note: bool,
    /// The next segment, if it is prepared.
    next: Arc<NextSegment>,
    /// Whether preparation of the next segment was requested.
    is_requested: bool,
}

/// A log after its groups were replayed.
pub(crate) struct RecoveredLog {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// The last segment and the position in it, if the log continues there.
    resumed: Option<(File, ResumePoint)>,
}

impl RecoveredLog {
    /// Returns the segments that get no further frames.
    pub(crate) fn ended(&self) -> Vec<u64> {
        let ended = self.segments.len() - usize::from(self.resumed.is_some());
        self.segments[..ended].to_vec()
    }
}

/// The position in a segment at which frames continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    identity: Identity,
    /// The number of the next frame.
    number: u64,
    at: usize,
    /// Size of the segment in bytes.
    size: usize,
}

/// The result of reading the whole log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogContents {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// The position at which frames continue in the last segment, if it has no end frame.
    pub(crate) open: Option<ResumePoint>,
    /// Number of frames with commits.
    pub(crate) groups: u64,
}

impl Log {
    /// Passes all groups of the log in `dir` to `replay`, in order.
    pub(crate) fn recover(dir: &Path, replay: impl FnMut(&[u8])) -> Result<RecoveredLog, LogError> {
        let contents = read(dir, replay)?;
        let open = contents.segments.last().and_then(|last| contents.open.map(|open| (*last, open)));
        segments::recover_unnamed(dir)?;
        let resumed = match open {
            Some((segment, ResumePoint { identity, number, at, size })) => {
                let has_room = at + RESUME_BYTES + frame::frame_bytes(0) <= size;
                let file = sync_recovered(dir, segment, (!has_room).then_some((identity, number, at)))?;
                has_room.then_some((file, ResumePoint { identity, number, at, size }))
            }
            None => {
                if let Some(last) = contents.segments.last() {
                    sync_recovered(dir, *last, None)?;
                }
                None
            }
        };
        Ok(RecoveredLog { segments: contents.segments, resumed })
    }

    /// Opens the log after recovery. Continues in the last segment, or creates a new one if that has no
    /// space.
    pub(crate) fn start(dir: &Path, segment_bytes: usize, recovered: RecoveredLog) -> Result<Self, LogError> {
        let directory = File::open(dir)?;
        let next = Arc::new(NextSegment::default());
        let last = recovered.segments.last().copied().unwrap_or(0);
        let (identity, number, position, size) = match recovered.resumed {
            Some((file, ResumePoint { identity, number, at, size })) => {
                (identity, number, WritePosition::resume(file, &path(dir, last), at)?, size)
            }
            None => {
                let sizes = SegmentSizes {
                    wanted: FIRST_BYTES.min(segment_bytes),
                    needed: size_for(0),
                    max: segment_bytes,
                };
                let first = next.make(dir, &directory, last + 1, sizes, ZeroFill::Yes)?;
                let (identity, size) = (first.identity, first.size);
                let file = first.name(dir)?;
                directory.sync_all()?;
                (
                    identity,
                    0,
                    WritePosition::new(file, &path(dir, identity.segment), frame::HEADER_BYTES),
                    size,
                )
            }
        };
        let dir = dir.into();
        Ok(Self {
            dir,
            directory,
            identity,
            position,
            number,
            size,
            segment_bytes,
            has_note: false,
            next,
            is_requested: false,
        })
    }

    /// Returns where a background thread puts the next segment.
    pub(crate) fn next(&self) -> Arc<NextSegment> {
        self.next.clone()
    }

    /// Returns a request for the next segment when it should be prepared, once for each segment. A store that
    /// is hardly used gets none.
    pub(crate) fn segment_request(&mut self) -> Option<SegmentRequest> {
        // A segment below full size may grow, which is only known once half of it is used.
        let part = if self.size < self.segment_bytes { 2 } else { PREPARE_AT };
        let is_due = self.identity.segment > 1 && self.position.at() >= self.size / part;
        if !is_due || std::mem::replace(&mut self.is_requested, true) {
            return None;
        }
        let wanted = (self.size * GROWTH).min(self.segment_bytes);
        let sizes = SegmentSizes { wanted, needed: size_for(0), max: self.segment_bytes };
        Some(SegmentRequest { segment: self.identity.segment + 1, sizes })
    }

    /// Returns the id of the current segment.
    pub(crate) fn segment(&self) -> u64 {
        self.identity.segment
    }

    /// Makes one group durable. `buffer` holds [`FRAME_HEADER_BYTES`] free bytes, then the payload.
    pub(crate) fn append(&mut self, buffer: &mut Vec<u8>, lane: Lane) -> Result<(), AppendError> {
        if buffer.len() > frame::MAX_FRAME_BYTES {
            return Err(AppendError::TooLarge);
        }
        let bytes = frame::frame_bytes(buffer.len() - FRAME_HEADER_BYTES);
        // An end frame must always fit after it.
        if self.position.at() + bytes + frame::frame_bytes(0) > self.limit(lane) {
            self.rotate(bytes)?;
        }
        frame::seal(self.identity, self.number, FrameKind::Group, buffer);
        if let Err(error) = self.position.write(buffer) {
            return Err(self.erase_failed_write(error));
        }
        self.position.sync().map_err(AppendError::Broken)?;
        self.position.advance(buffer);
        self.number += 1;
        self.has_note = false;
        Ok(())
    }

    /// Notes in the log that the last frame is durable. Called when no work waits. Losing the note does no
    /// harm.
    pub(crate) fn note(&mut self) -> io::Result<()> {
        if !self.has_note {
            self.write_marker(FrameKind::Note)?;
            self.has_note = true;
        }
        Ok(())
    }

    /// Returns the offset in the segment at which frames of a lane must end.
    fn limit(&self, lane: Lane) -> usize {
        let reserve = (self.size / 4).min(RESERVE_BYTES);
        match lane {
            Lane::Usual => self.size - reserve,
            Lane::Ceiling => self.size - reserve / 2,
            Lane::Reclaim => self.size,
        }
    }

    /// Ends the segment and continues in a new one with space for a frame of `bytes`. If no segment can be
    /// created, the current one stays in use.
    pub(crate) fn rotate(&mut self, bytes: usize) -> Result<(), AppendError> {
        let factor = if self.position.at() >= self.size / 2 { GROWTH } else { 1 };
        let sizes = SegmentSizes {
            wanted: (self.size * factor).clamp(FIRST_BYTES.min(self.segment_bytes), self.segment_bytes),
            needed: size_for(bytes),
            max: self.segment_bytes,
        };
        let number = self.identity.segment + 1;
        let next =
            match self.next.take(&self.dir, number, sizes.needed) {
                Some(next) => next,
                // Filling it with zeros would take long, and all commits would wait.
                None => self.next.make(&self.dir, &self.directory, number, sizes, ZeroFill::No).map_err(
                    |error| if is_short(&error) { AppendError::Short(error) } else { full_or_broken(error) },
                )?,
            };
        self.write_marker(FrameKind::End).and_then(|()| self.position.sync()).map_err(full_or_broken)?;
        let (identity, size) = (next.identity, next.size);
        let file = next.name(&self.dir).map_err(AppendError::Broken)?;
        // The rename may or may not be durable, so no frame may go into either segment before this sync.
        self.directory.sync_all().map_err(AppendError::Broken)?;
        self.position = WritePosition::new(file, &path(&self.dir, identity.segment), frame::HEADER_BYTES);
        self.identity = identity;
        self.number = 0;
        self.size = size;
        self.has_note = false;
        self.is_requested = false;
        Ok(())
    }

    /// Retires segments whose commits have all reached the tree, oldest first. The largest files are kept for
    /// reuse.
    pub(crate) fn retire(
        dir: &Path,
        next: &NextSegment,
        segments: impl IntoIterator<Item = u64>,
    ) -> io::Result<()> {
        for segment in segments {
            next.retire(dir, &path(dir, segment))?;
            sync_dir(dir)?;
        }
        Ok(())
    }

    fn write_marker(&mut self, kind: FrameKind) -> io::Result<()> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        frame::seal(self.identity, self.number, kind, &mut buffer);
        self.position.write(&buffer)
    }

    /// Handles a failed write. If the device is full, durably erases what was written, so that the log can
    /// continue.
    fn erase_failed_write(&mut self, error: io::Error) -> AppendError {
        if !is_full(&error) {
            return AppendError::Broken(error);
        }
        let erased = self.position.write(&[0; FRAME_HEADER_BYTES]);
        self.has_note = false;
        match erased.and_then(|()| self.position.sync()) {
            Ok(()) => AppendError::Full,
            Err(error) => AppendError::Broken(error),
        }
    }
}

fn full_or_broken(error: io::Error) -> AppendError {
    if is_full(&error) { AppendError::Full } else { AppendError::Broken(error) }
}

/// Returns whether an error means that the process or the machine has no free file descriptors or memory at
/// the moment.
fn is_short(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Returns whether an error means exactly that there is no space: on the device, in the quota, or within the
/// process's limit on file sizes.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG))
}

/// Reads the whole log without changing it.
pub(crate) fn read(dir: &Path, mut replay: impl FnMut(&[u8])) -> Result<LogContents, LogError> {
    let segments = list(dir)?;
    let mut contents = LogContents::default();
    for (i, &segment) in segments.iter().enumerate() {
        let path = path(dir, segment);
        let newest = i + 1 == segments.len();
        let damaged = |offset, what| LogError::Damaged { path: path.clone(), offset, what };
        if i > 0 && segments[i - 1] + 1 != segment {
            return Err(damaged(0, "the segment before it is missing"));
        }
        let bytes = std::fs::read(&path)?;
        let identity = match frame::read_header(&bytes, segment) {
            SegmentHeader::Valid(identity) => identity,
            SegmentHeader::Newer(found) => return Err(LogError::Newer { path, found }),
            SegmentHeader::Invalid => return Err(damaged(0, "its header is not readable")),
        };
        match frame::walk(&bytes, identity, 0, |payload| {
            contents.groups += 1;
            replay(payload);
        }) {
            (_, Tail::Ended) => {}
            (number, Tail::Open(at)) if newest => {
                contents.open = Some(ResumePoint { identity, number, at, size: bytes.len() });
            }
            (_, Tail::Open(at)) => return Err(damaged(at, "it has no end, but a segment follows")),
            (_, Tail::Damaged(at)) => return Err(damaged(at, "a durable frame is not readable")),
        }
        contents.segments.push(segment);
    }
    Ok(contents)
}

/// Makes durable what recovery read, and writes an end frame if its position is given. A killed process may
/// have left frames, an end or a header complete but not synced. Later frames must not become durable before
/// them.
fn sync_recovered(dir: &Path, segment: u64, end: Option<(Identity, u64, usize)>) -> Result<File, LogError> {
    let file = OpenOptions::new().read(true).write(true).open(path(dir, segment))?;
    if let Some((identity, number, at)) = end {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame::seal(identity, number, FrameKind::End, &mut frame);
        file.write_all_at(&frame, at as u64)?;
    }
    file.sync_all()?;
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
    use super::segments::{NEXT, SPARES, length};
    use super::*;

    const SEGMENT_BYTES: usize = 1 << 20;

    fn open(dir: &Path) -> Result<(Log, Vec<u64>), LogError> {
        open_with(dir, SEGMENT_BYTES)
    }

    fn open_with(dir: &Path, segment_bytes: usize) -> Result<(Log, Vec<u64>), LogError> {
        let recovered = Log::recover(dir, |_| ())?;
        let ended = recovered.ended();
        Ok((Log::start(dir, segment_bytes, recovered)?, ended))
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

    /// Overwrites bytes of the newest segment, as a disk failure would.
    fn overwrite(dir: &Path, at: u64, bytes: &[u8]) {
        File::options().write(true).open(newest(dir)).unwrap().write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn appended_groups_are_replayed_across_rotations_and_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = vec![];
        for round in 0..3u8 {
            let (mut log, _) = open(dir.path()).unwrap();
            for i in 0..5u8 {
                log.append(&mut group(&[round, i]), Lane::Usual).unwrap();
                expected.push(vec![round, i]);
                if i == 2 {
                    log.rotate(0).unwrap();
                }
                log.note().unwrap();
            }
        }
        assert_eq!(replayed(dir.path()).unwrap(), expected);
        let (mut log, mut old) = open(dir.path()).unwrap();
        old.push(log.segment());
        log.rotate(0).unwrap();
        Log::retire(dir.path(), &log.next(), old).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn frame_larger_than_a_segment_gets_its_own_segment() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let large = vec![9; SEGMENT_BYTES + 5];
        log.append(&mut group(&large), Lane::Usual).unwrap();
        log.append(&mut group(b"after"), Lane::Usual).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![large, b"after".to_vec()]);
    }

    #[test]
    fn torn_last_frame_is_dropped_and_the_log_continues() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept"), Lane::Usual).unwrap();
        let torn_at = log.position.at() as u64;
        log.append(&mut group(&[5; 9000]), Lane::Usual).unwrap();
        overwrite(dir.path(), torn_at + 4096, &[0; 4096]);
        drop(log);
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec()]);
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"next"), Lane::Usual).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec(), b"next".to_vec()]);
    }

    #[test]
    fn flipped_bit_in_an_acknowledged_frame_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let at = log.position.at() as u64;
        log.append(&mut group(b"acknowledged"), Lane::Usual).unwrap();
        log.note().unwrap();
        overwrite(dir.path(), at + FRAME_HEADER_BYTES as u64, b"X");
        assert!(matches!(open(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn missing_header_of_an_unused_segment_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        overwrite(dir.path(), 0, &[0; 64]);
        assert!(matches!(replayed(dir.path()), Err(LogError::Damaged { .. })));
    }

    #[test]
    fn retired_segment_is_reused_and_its_old_frames_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        for _ in 0..3 {
            log.append(&mut group(b"old, and of the same length"), Lane::Usual).unwrap();
        }
        log.note().unwrap();
        log.rotate(0).unwrap();
        Log::retire(dir.path(), &log.next(), [1]).unwrap();
        log.rotate(0).unwrap();
        assert!(!dir.path().join(SPARES[0]).exists(), "the second rotation took it");
        log.append(&mut group(b"new, and of the same length"), Lane::Usual).unwrap();
        // The old frames follow the segment's only frame, which is then damaged as well.
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"new, and of the same length".to_vec()]);
        overwrite(dir.path(), (frame::HEADER_BYTES + FRAME_HEADER_BYTES) as u64, b"X");
        assert_eq!(replayed(dir.path()).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn segments_grow_with_use_and_the_largest_retired_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open_with(dir.path(), 16 << 20).unwrap();
        let mut sizes = vec![log.size >> 20];
        for _ in 0..3 {
            log.rotate(0).unwrap();
            sizes.push(log.size >> 20);
        }
        for _ in 0..4 {
            log.append(&mut group(&vec![9; log.size / 2]), Lane::Usual).unwrap();
            let retired = log.segment();
            log.rotate(0).unwrap();
            Log::retire(dir.path(), &log.next(), [retired]).unwrap();
            sizes.push(log.size >> 20);
        }
        assert_eq!(sizes, [1, 1, 1, 1, 4, 16, 16, 16]);
        assert_eq!(length(&dir.path().join(SPARES[0])).unwrap(), Some(16 << 20));
    }

    #[test]
    fn crashes_use_no_space_and_the_log_continues_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = vec![];
        for crash in 0..50u8 {
            let (mut log, ended) = open(dir.path()).unwrap();
            assert_eq!((log.segment(), ended), (1, vec![]), "after {crash} crashes");
            log.append(&mut group(&[crash; 700]), Lane::Usual).unwrap();
            expected.push(vec![crash; 700]);
            if crash % 2 == 0 {
                log.note().unwrap();
            }
        }
        assert_eq!(replayed(dir.path()).unwrap(), expected);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn end_of_a_segment_is_reserved_for_frames_that_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        // No segment can be created while a directory has its name.
        std::fs::create_dir(dir.path().join(NEXT)).unwrap();
        let mut fill = |lane| {
            let mut frames = 0;
            while log.position.at() + 2000 <= log.limit(lane) {
                log.append(&mut group(&[1; 1000]), lane).unwrap();
                frames += 1;
            }
            assert!(log.append(&mut group(&[1; 2000]), lane).is_err(), "{lane:?} ends");
            frames
        };
        assert!(fill(Lane::Usual) > 700 && fill(Lane::Ceiling) > 100 && fill(Lane::Reclaim) > 100);
    }

    #[test]
    fn unnamed_segment_of_a_crash_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NEXT), b"half a header").unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept"), Lane::Usual).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec()]);
    }

    #[test]
    fn missing_segment_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.rotate(0).unwrap();
        log.rotate(0).unwrap();
        std::fs::remove_file(path(dir.path(), 2)).unwrap();
        assert!(matches!(replayed(dir.path()), Err(LogError::Damaged { .. })));
    }
}
