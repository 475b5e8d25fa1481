//! The files of segments before they have a name and after they are retired.
//!
//! ```text
//! retired segment → spare → next (header is made durable) → segment
//! ```
//!
//! The flusher retires segments and prepares the next one ahead of time; the committer gives it its name. The
//! committer prepares a segment itself only if none is ready.
//!
//! Both threads rename files here. While one of them writes to a file, the other must not touch it: zeros or
//! a header would end up in a segment in use. So only the committer uses [`NEXT`]. Only the flusher uses
//! [`READY`] until it has published the file. Every rename between these names and the spares happens under
//! the lock of [`NextSegment`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::frame::{self, Identity};
use super::{FIRST_BYTES, RESERVE_BYTES, is_full, path};

/// The files of retired segments until they are reused.
pub(super) const SPARES: [&str; 2] = ["spare", "spare2"];
/// The committer's next segment, until it gets its name.
pub(super) const NEXT: &str = "next";
/// The segment that the flusher prepares, until the committer takes it.
const READY: &str = "ready";

/// A new segment's file is filled with this many bytes of zeros at a time, each followed by a sync, so that
/// no sync of the log waits for more.
const ZEROS_AT_ONCE: usize = 1 << 20;

/// Whether to fill a new segment's file with zeros. Syncs are faster then, because the file system need not
/// record where blocks were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroFill {
    Yes,
    No,
}

/// The sizes that a new segment may have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentSizes {
    /// The size if there is enough disk space.
    pub(super) wanted: usize,
    /// The minimum size.
    pub(super) needed: usize,
    /// The maximum size, unless `needed` is larger.
    pub(super) max: usize,
}

/// A request to prepare a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRequest {
    pub(super) segment: u64,
    pub(super) sizes: SegmentSizes,
}

/// A prepared segment without a name.
pub(super) struct Prepared {
    pub(super) identity: Identity,
    file: File,
    pub(super) size: usize,
    unnamed: PathBuf,
}

impl Prepared {
    /// Gives the segment its name. The caller must make the name durable.
    pub(super) fn name(self, dir: &Path) -> io::Result<File> {
        std::fs::rename(&self.unnamed, path(dir, self.identity.segment))?;
        Ok(self.file)
    }
}

/// The next segment, if it is prepared. A background thread puts it here and the committer takes it. The lock
/// also covers the spares. It is never held during a write or a sync.
#[derive(Default)]
pub(crate) struct NextSegment(Mutex<Option<Prepared>>);

impl NextSegment {
    /// Prepares a segment. Blocks until its file is written. Only one thread may prepare segments.
    pub(crate) fn prepare(&self, dir: &Path, wanted: SegmentRequest) -> io::Result<()> {
        let SegmentRequest { segment, sizes } = wanted;
        {
            let mut next = self.0.lock();
            if let Some(other) = next.take_if(|next| next.identity.segment != segment) {
                // The committer did not wait for this one and has made the segment itself.
                make_spare(dir, &other.unnamed)?;
            }
            if next.is_some() {
                return Ok(());
            }
        }
        let directory = File::open(dir)?;
        let prepared = self.prepare_as(dir, READY, &directory, segment, sizes, ZeroFill::Yes)?;
        *self.0.lock() = Some(prepared);
        Ok(())
    }

    /// Takes the prepared segment if it has the right number and size. Otherwise its file becomes a spare.
    pub(super) fn take(&self, dir: &Path, segment: u64, needed: usize) -> Option<Prepared> {
        let mut slot = self.0.lock();
        let mut next = slot.take()?;
        if next.identity.segment == segment && next.size >= needed {
            // The flusher may use the name again once the slot is empty.
            let taken = dir.join(NEXT);
            std::fs::rename(&next.unnamed, &taken).ok()?;
            next.unnamed = taken;
            return Some(next);
        }
        let _ = make_spare(dir, &next.unnamed);
        None
    }

    /// Creates a segment with a durable header. On a full disk it may be smaller than wanted. Only the
    /// committer may call this.
    pub(super) fn make(
        &self,
        dir: &Path,
        directory: &File,
        segment: u64,
        sizes: SegmentSizes,
        zero_fill: ZeroFill,
    ) -> io::Result<Prepared> {
        self.prepare_as(dir, NEXT, directory, segment, sizes, zero_fill)
    }

    /// Removes a segment's name and keeps its file as a spare if possible. The caller must make that durable.
    pub(super) fn retire(&self, dir: &Path, segment: &Path) -> io::Result<()> {
        let _lock = self.0.lock();
        match make_spare(dir, segment) {
            // An earlier attempt failed at the sync.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            make_spare => make_spare,
        }
    }

    fn prepare_as(
        &self,
        dir: &Path,
        name: &str,
        directory: &File,
        segment: u64,
        sizes: SegmentSizes,
        zero_fill: ZeroFill,
    ) -> io::Result<Prepared> {
        let identity = Identity { segment, salt: getrandom::u64().map_err(io::Error::other)? };
        let unnamed = dir.join(name);
        let wanted = sizes.wanted.max(sizes.needed);
        let min = FIRST_BYTES.min(sizes.wanted).max(sizes.needed);
        let make = |size: usize| -> io::Result<Prepared> {
            let spare = {
                let _lock = self.0.lock();
                take_spare(dir, &unnamed, size, sizes.max.max(sizes.needed))?
            };
            let file = match spare {
                Some(file) => {
                    // The file's old name must be durably gone before its new header is written.
                    directory.sync_all()?;
                    file
                }
                None => new_file(&unnamed, size, zero_fill)?,
            };
            file.write_all_at(&frame::segment_header(identity), 0)?;
            file.sync_all()?;
            let size = file.metadata()?.len() as usize;
            Ok(Prepared { identity, file, size, unnamed: unnamed.clone() })
        };
        let made = match make(wanted) {
            Err(error) if is_full(&error) && min < wanted => make(min),
            made => made,
        };
        made.inspect_err(|_| {
            // The file may take the space that was missing.
            let _ = std::fs::remove_file(&unnamed);
        })
    }
}

/// Keeps the files of unnamed segments that a crash left, so that their space can be used.
pub(super) fn recover_unnamed(dir: &Path) -> io::Result<()> {
    for name in [NEXT, READY] {
        if length(&dir.join(name))?.is_some() {
            make_spare(dir, &dir.join(name))?;
        }
    }
    Ok(())
}

/// Makes a file a spare. If there are enough spares, it replaces a smaller one or is removed.
fn make_spare(dir: &Path, file: &Path) -> io::Result<()> {
    let bytes = length(file)?.unwrap_or(0);
    for spare in SPARES.map(|name| dir.join(name)) {
        if length(&spare)?.is_none_or(|spare| spare < bytes) {
            return std::fs::rename(file, spare);
        }
    }
    std::fs::remove_file(file)
}

/// Returns the size of a segment with space for a frame of `bytes` in addition to its reserve.
pub(super) fn size_for(bytes: usize) -> usize {
    let used = frame::HEADER_BYTES + bytes + frame::frame_bytes(0);
    used + (used / 3 + 8).min(RESERVE_BYTES)
}

/// Takes a spare file of `size` to `max` bytes. Removes larger ones, which were made for large commits.
fn take_spare(dir: &Path, unnamed: &Path, size: usize, max: usize) -> io::Result<Option<File>> {
    for spare in SPARES.map(|name| dir.join(name)) {
        let Some(bytes) = length(&spare)? else { continue };
        if bytes > max as u64 {
            let _ = std::fs::remove_file(&spare);
        } else if bytes >= size as u64 {
            std::fs::rename(&spare, unnamed)?;
            return OpenOptions::new().read(true).write(true).open(unnamed).map(Some);
        }
    }
    Ok(None)
}

fn new_file(unnamed: &Path, size: usize, zero_fill: ZeroFill) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(unnamed)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
    if zero_fill == ZeroFill::Yes {
        let zeros = vec![0; ZEROS_AT_ONCE];
        for at in (0..size).step_by(ZEROS_AT_ONCE) {
            file.write_all_at(&zeros[..(size - at).min(ZEROS_AT_ONCE)], at as u64)?;
            file.sync_data()?;
        }
    }
    Ok(file)
}

/// Returns the length of a file, or `None` if it does not exist.
pub(super) fn length(path: &Path) -> io::Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{SeekFrom, seek};

    use super::super::{FRAME_HEADER_BYTES, Lane, Log, read};
    use super::*;

    const SEGMENT_BYTES: usize = 4 << 20;

    /// Returns a log in its second segment, half of which is used.
    fn used_log(dir: &Path) -> Log {
        let mut log = Log::start(dir, SEGMENT_BYTES, Log::recover(dir, |_| ()).unwrap()).unwrap();
        append(&mut log, 600 << 10);
        assert_eq!(log.segment_request(), None, "a store that is hardly used has no segment prepared");
        log.rotate(0).unwrap();
        append(&mut log, 2 << 20);
        log
    }

    fn append(log: &mut Log, bytes: usize) {
        log.append(&mut vec![7; FRAME_HEADER_BYTES + bytes], Lane::Usual).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".log"));
        names.sort();
        names
    }

    /// Returns whether bytes after the header of a segment were ever written.
    fn is_filled(dir: &Path, segment: u64) -> bool {
        let file = File::open(path(dir, segment)).unwrap();
        seek(&file, SeekFrom::Data(2 * frame::HEADER_BYTES as u64)).is_ok()
    }

    #[test]
    fn rotation_takes_the_prepared_segment_and_never_writes_zeros_itself() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.segment_request().unwrap();
        assert_eq!((wanted.segment, log.segment_request()), (3, None), "once for each segment");
        log.next().prepare(dir, wanted).unwrap();
        assert_eq!(names(dir), ["ready"]);
        log.rotate(0).unwrap();
        assert_eq!((names(dir).len(), log.segment(), is_filled(dir, 3)), (0, 3, true));
        append(&mut log, 2 << 20);
        log.rotate(0).unwrap();
        assert!(!is_filled(dir, 4), "no segment was prepared, so none is filled");
        append(&mut log, 10);
        let mut groups = 0;
        read(dir, |_| groups += 1).unwrap();
        assert_eq!(groups, 4);
    }

    #[test]
    fn prepared_segment_that_does_not_fit_becomes_a_spare() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.segment_request().unwrap();
        log.next().prepare(dir, wanted).unwrap();
        append(&mut log, 2 * SEGMENT_BYTES);
        assert_eq!((names(dir), log.segment()), (vec!["spare".to_owned()], 3), "too small");

        // Prepared too late: the log is in that segment already.
        log.next().prepare(dir, wanted).unwrap();
        assert_eq!(names(dir), ["ready"]);
        let next = SegmentRequest { segment: 4, ..wanted };
        log.next().prepare(dir, next).unwrap();
        log.next().prepare(dir, next).unwrap();
        assert_eq!(names(dir), ["ready"]);
        log.rotate(0).unwrap();
        assert_eq!((names(dir).len(), log.segment()), (0, 4));
    }

    #[test]
    fn prepared_segments_become_spares_after_a_crash_and_the_largest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.segment_request().unwrap();
        log.next().prepare(dir, wanted).unwrap();
        drop(log);
        let log = Log::start(dir, SEGMENT_BYTES, Log::recover(dir, |_| ()).unwrap()).unwrap();
        assert_eq!((names(dir), log.segment()), (vec!["spare".to_owned()], 2));
        for (bytes, spares) in [(100, [4 << 20, 100]), (300, [4 << 20, 300]), (200, [4 << 20, 300])] {
            let file = dir.join("retired");
            std::fs::write(&file, vec![0; bytes]).unwrap();
            log.next().retire(dir, &file).unwrap();
            log.next().retire(dir, &file).unwrap();
            assert_eq!(SPARES.map(|name| length(&dir.join(name)).unwrap().unwrap()), spares);
        }
    }

    // Because of frames of different sizes, some prepared segments are too small, so the committer makes
    // them spares while the flusher prepares the next one. Segments are retired meanwhile, so both threads
    // take spares.
    #[test]
    fn segment_in_use_is_never_written_by_the_preparing_thread() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let next = log.next();
        let (requests, received) = std::sync::mpsc::channel::<(SegmentRequest, Option<u64>)>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (wanted, retired) in received {
                    next.prepare(dir, wanted).unwrap();
                    if let Some(segment) = retired {
                        next.retire(dir, &path(dir, segment)).unwrap();
                    }
                }
            });
            let mut first = 1;
            for round in 0..400 {
                let large = if round % 2 == 0 { SEGMENT_BYTES + (64 << 10) } else { 10 };
                append(&mut log, large);
                // Each segment is followed by a request for one that is soon too old.
                let sizes = SegmentSizes { wanted: 1 << 20, needed: size_for(0), max: 2 * SEGMENT_BYTES };
                let wanted = SegmentRequest { segment: log.segment() + 1, sizes };
                let retired = (log.segment() > first + 2).then_some(first);
                first += u64::from(retired.is_some());
                requests.send((wanted, retired)).unwrap();
                if round % 3 == 0 {
                    log.rotate(0).unwrap();
                }
            }
            drop(requests);
        });
        append(&mut log, 10);
        let found = read(dir, |_| ()).unwrap();
        assert_eq!(found.segments.last(), Some(&log.segment()));
    }
}
