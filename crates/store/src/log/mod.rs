//! The log: what makes a commit durable.
//!
//! An append is one write, [past the page cache](direct), and one `fdatasync`; when it returns, the frame survives a power
//! cut. The log is cut into segments so that those whose commits have reached the tree can be retired. [`frame`] tells how a crash is told
//! from damage.
//!
//! Order of effects, which recovery relies on:
//! - a segment gets its name when its header is durable, and its first frame when its name is;
//! - a segment ends with a durable end frame before the next one gets its name;
//! - segments are retired oldest first, each durably before the next.
//!
//! A restart goes on in the last segment, so a crash costs no space. Segments start small and grow with use. The end of
//! each segment is kept for commits that free space, so that a full disk can be emptied.
//!
//! A background thread prepares the next segment, so that a rotation is two syncs long. If it is not ready, the log goes on
//! in a segment without zeros, where syncs take longer, rather than wait.
//!
//! A retired segment's file becomes the next segment: a sync is faster where the file system has nothing to note about
//! where the bytes lie. What it still holds are frames of another segment, which count for as little as zeros.

mod copy;
mod direct;
mod frame;
mod salvage;
mod segments;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use direct::End;
pub(crate) use direct::SYNC_TIMES;
use frame::{Header, Identity, Kind, Tail};
use rustix::io::Errno;

pub(crate) use copy::{SegmentCopy, copy_segment, segment_names};
pub(crate) use frame::FRAME_HEADER_BYTES;
pub(crate) use salvage::salvage;
use segments::{Filled, Sizes, room_for};
pub(crate) use segments::{NextSegment, Wanted};

/// Bytes of the first segment.
const FIRST_BYTES: usize = 1 << 20;
/// A segment that was used at least by half is followed by one this many times larger, up to the size that was chosen.
const GROWTH: usize = 4;
/// Bytes at the end of a segment that are kept for commits that free space; less in a small segment.
const RESERVE_BYTES: usize = 512 << 10;
/// The next segment is prepared when this part of a segment of full size is used.
const PREPARE_AT: usize = 4;
/// A restart goes on in the last segment if it has this much room.
const RESUME_BYTES: usize = 64 << 10;

/// How much of a segment a frame may use before a new segment is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// All but the reserve.
    Usual,
    /// Half of the reserve: frames that let time go on.
    Ceiling,
    /// All of the reserve: frames that free space.
    Reclaim,
}

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
    /// The next segment, if it is prepared.
    next: Arc<NextSegment>,
    /// Its preparation was asked for.
    asked: bool,
}

/// A log whose groups were replayed.
pub(crate) struct Recovered {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// The last segment, if frames go on in it.
    resumed: Option<(File, OpenEnd)>,
}

impl Recovered {
    /// The segments that no frame is written to any more.
    pub(crate) fn ended(&self) -> Vec<u64> {
        let ended = self.segments.len() - usize::from(self.resumed.is_some());
        self.segments[..ended].to_vec()
    }
}

/// Where frames go on in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenEnd {
    identity: Identity,
    /// Of the next frame.
    number: u64,
    at: usize,
    /// Bytes of the segment.
    size: usize,
}

/// What a walk over the log found, without changing anything.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Ids of the segments, oldest first.
    pub(crate) segments: Vec<u64>,
    /// Where frames go on in the last segment, if it has no end.
    pub(crate) open: Option<OpenEnd>,
    /// Frames with commits in them.
    pub(crate) groups: u64,
}

impl Log {
    /// Hands every group that the log in `dir` holds to `replay` in order.
    pub(crate) fn recover(dir: &Path, replay: impl FnMut(&[u8])) -> Result<Recovered, LogError> {
        let found = read(dir, replay)?;
        let open = found.segments.last().and_then(|last| found.open.map(|open| (*last, open)));
        segments::recover_unnamed(dir)?;
        let resumed = match open {
            Some((segment, OpenEnd { identity, number, at, size })) => {
                let has_room = at + RESUME_BYTES + frame::frame_bytes(0) <= size;
                let file = settle(dir, segment, (!has_room).then_some((identity, number, at)))?;
                has_room.then_some((file, OpenEnd { identity, number, at, size }))
            }
            None => {
                if let Some(last) = found.segments.last() {
                    settle(dir, *last, None)?;
                }
                None
            }
        };
        Ok(Recovered { segments: found.segments, resumed })
    }

    /// Goes on in the last segment, or begins a new one if that has no room.
    pub(crate) fn start(dir: &Path, segment_bytes: usize, recovered: Recovered) -> Result<Self, LogError> {
        let directory = File::open(dir)?;
        let next = Arc::new(NextSegment::default());
        let last = recovered.segments.last().copied().unwrap_or(0);
        let (identity, number, end, size) = match recovered.resumed {
            Some((file, OpenEnd { identity, number, at, size })) => {
                (identity, number, End::resume(file, &path(dir, last), at)?, size)
            }
            None => {
                let sizes = Sizes {
                    wanted: FIRST_BYTES.min(segment_bytes),
                    needed: room_for(0),
                    most: segment_bytes,
                };
                let first = next.make(dir, &directory, last + 1, sizes, Filled::Yes)?;
                let (identity, size) = (first.identity, first.size);
                let file = first.name(dir)?;
                directory.sync_all()?;
                (identity, 0, End::new(file, &path(dir, identity.segment), frame::HEADER_BYTES), size)
            }
        };
        let dir = dir.into();
        Ok(Self {
            dir,
            directory,
            identity,
            end,
            number,
            size,
            segment_bytes,
            noted: false,
            next,
            asked: false,
        })
    }

    /// Where a background thread puts the next segment.
    pub(crate) fn next(&self) -> Arc<NextSegment> {
        self.next.clone()
    }

    /// Which segment should be prepared by now, once for each. A store that is hardly used has none prepared.
    pub(crate) fn wanted(&mut self) -> Option<Wanted> {
        // A segment that may grow shows only at half whether it does.
        let part = if self.size < self.segment_bytes { 2 } else { PREPARE_AT };
        let is_due = self.identity.segment > 1 && self.end.at() >= self.size / part;
        if !is_due || std::mem::replace(&mut self.asked, true) {
            return None;
        }
        let wanted = (self.size * GROWTH).min(self.segment_bytes);
        let sizes = Sizes { wanted, needed: room_for(0), most: self.segment_bytes };
        Some(Wanted { segment: self.identity.segment + 1, sizes })
    }

    /// The segment being written.
    pub(crate) fn segment(&self) -> u64 {
        self.identity.segment
    }

    /// Makes one group durable. `buffer` holds [`FRAME_HEADER_BYTES`] free bytes and then the payload.
    pub(crate) fn append(&mut self, buffer: &mut Vec<u8>, lane: Lane) -> Result<(), AppendError> {
        if buffer.len() > frame::MAX_FRAME_BYTES {
            return Err(AppendError::TooLarge);
        }
        let bytes = frame::frame_bytes(buffer.len() - FRAME_HEADER_BYTES);
        // An end frame must always fit behind.
        if self.end.at() + bytes + frame::frame_bytes(0) > self.limit(lane) {
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

    /// Where frames of a lane end in the segment.
    fn limit(&self, lane: Lane) -> usize {
        let reserve = (self.size / 4).min(RESERVE_BYTES);
        match lane {
            Lane::Usual => self.size - reserve,
            Lane::Ceiling => self.size - reserve / 2,
            Lane::Reclaim => self.size,
        }
    }

    /// Ends the segment and goes on in a new one with room for a frame of `bytes`. If that cannot be had, the old one
    /// stays in use.
    pub(crate) fn rotate(&mut self, bytes: usize) -> Result<(), AppendError> {
        let factor = if self.end.at() >= self.size / 2 { GROWTH } else { 1 };
        let sizes = Sizes {
            wanted: (self.size * factor).clamp(FIRST_BYTES.min(self.segment_bytes), self.segment_bytes),
            needed: room_for(bytes),
            most: self.segment_bytes,
        };
        let number = self.identity.segment + 1;
        let next =
            match self.next.take(&self.dir, number, sizes.needed) {
                Some(next) => next,
                // Zeros would take long, and every commit waits.
                None => self.next.make(&self.dir, &self.directory, number, sizes, Filled::No).map_err(
                    |error| if is_short(&error) { AppendError::Short(error) } else { full_or_broken(error) },
                )?,
            };
        self.write_mark(Kind::End).and_then(|()| self.end.sync()).map_err(full_or_broken)?;
        let (identity, size) = (next.identity, next.size);
        let file = next.name(&self.dir).map_err(AppendError::Broken)?;
        // Now there is a next segment, or there is none: no frame may go into either.
        self.directory.sync_all().map_err(AppendError::Broken)?;
        self.end = End::new(file, &path(&self.dir, identity.segment), frame::HEADER_BYTES);
        self.identity = identity;
        self.number = 0;
        self.size = size;
        self.noted = false;
        self.asked = false;
        Ok(())
    }

    /// Lets go of segments whose commits have all reached the tree, oldest first. The largest are kept to be used again.
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
            (number, Tail::Open(at)) if newest => {
                found.open = Some(OpenEnd { identity, number, at, size: bytes.len() });
            }
            (_, Tail::Open(at)) => return Err(damaged(at, "it has no end, but a segment follows")),
            (_, Tail::Damaged(at)) => return Err(damaged(at, "a durable frame is not readable")),
        }
        found.segments.push(segment);
    }
    Ok(found)
}

/// Makes durable what recovery read, and puts an end behind it if one is given. A process that was killed may have left
/// frames, an end or a header whole but not synced: what is built on them next must not outlive them.
fn settle(dir: &Path, segment: u64, end: Option<(Identity, u64, usize)>) -> Result<File, LogError> {
    let file = OpenOptions::new().read(true).write(true).open(path(dir, segment))?;
    if let Some((identity, number, at)) = end {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame::seal(identity, number, Kind::End, &mut frame);
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
    fn a_frame_larger_than_a_segment_gets_a_segment_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let large = vec![9; SEGMENT_BYTES + 5];
        log.append(&mut group(&large), Lane::Usual).unwrap();
        log.append(&mut group(b"after"), Lane::Usual).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![large, b"after".to_vec()]);
    }

    #[test]
    fn a_torn_last_frame_is_dropped_and_writing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept"), Lane::Usual).unwrap();
        let torn_at = log.end.at() as u64;
        log.append(&mut group(&[5; 9000]), Lane::Usual).unwrap();
        overwrite(dir.path(), torn_at + 4096, &[0; 4096]);
        drop(log);
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec()]);
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"next"), Lane::Usual).unwrap();
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"kept".to_vec(), b"next".to_vec()]);
    }

    #[test]
    fn a_flipped_bit_in_an_acknowledged_frame_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        let at = log.end.at() as u64;
        log.append(&mut group(b"acknowledged"), Lane::Usual).unwrap();
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
            log.append(&mut group(b"old, and of the same length"), Lane::Usual).unwrap();
        }
        log.note().unwrap();
        log.rotate(0).unwrap();
        Log::retire(dir.path(), &log.next(), [1]).unwrap();
        log.rotate(0).unwrap();
        assert!(!dir.path().join(SPARES[0]).exists(), "the second rotation took it");
        log.append(&mut group(b"new, and of the same length"), Lane::Usual).unwrap();
        // Behind the only frame of its own stand the old ones; then this one is lost as well.
        assert_eq!(replayed(dir.path()).unwrap(), vec![b"new, and of the same length".to_vec()]);
        overwrite(dir.path(), (frame::HEADER_BYTES + FRAME_HEADER_BYTES) as u64, b"X");
        assert_eq!(replayed(dir.path()).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn segments_start_small_and_grow_with_use_and_the_largest_retired_one_is_kept() {
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
    fn crashes_cost_no_space_and_frames_go_on_where_they_were() {
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
    fn the_end_of_a_segment_is_kept_for_frames_that_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        // No segment can be made while a directory has its name.
        std::fs::create_dir(dir.path().join(NEXT)).unwrap();
        let mut fill = |lane| {
            let mut frames = 0;
            while log.end.at() + 2000 <= log.limit(lane) {
                log.append(&mut group(&[1; 1000]), lane).unwrap();
                frames += 1;
            }
            assert!(log.append(&mut group(&[1; 2000]), lane).is_err(), "{lane:?} ends");
            frames
        };
        assert!(fill(Lane::Usual) > 700 && fill(Lane::Ceiling) > 100 && fill(Lane::Reclaim) > 100);
    }

    #[test]
    fn what_a_crash_left_of_a_segment_without_a_name_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NEXT), b"half a header").unwrap();
        let (mut log, _) = open(dir.path()).unwrap();
        log.append(&mut group(b"kept"), Lane::Usual).unwrap();
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
