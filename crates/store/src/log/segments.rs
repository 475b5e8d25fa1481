//! Files of segments before they have a name and after they are retired.
//!
//! ```text
//! retired segment → spare → next (header is made durable) → segment
//! ```
//!
//! The flusher retires segments and prepares the next one ahead of time; the committer names it. The committer prepares one
//! itself only if none is ready.
//!
//! Both threads rename files here. While one of them writes to a file, the other must not touch it: zeros or a header would
//! end up in a segment in use. So only the committer uses [`NEXT`], only the flusher uses [`READY`] until it has published
//! the file, and every rename between these names and the spares happens under the lock of [`NextSegment`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use super::frame::{self, Identity};
use super::{FIRST_BYTES, RESERVE_BYTES, is_full, path};

/// Files of retired segments until they are used again.
pub(super) const SPARES: [&str; 2] = ["spare", "spare2"];
/// The committer's next segment, until it gets its name.
pub(super) const NEXT: &str = "next";
/// The segment that the flusher prepares, until the committer takes it.
const READY: &str = "ready";

/// Bytes of zeros that are written at once to a new segment's file, and synced, so that no sync of the log waits behind
/// more.
const ZEROS: usize = 1 << 20;

/// Whether a new segment's file is filled with zeros. A sync is faster there: the file system has nothing to note about
/// where the bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    Yes,
    No,
}

/// Sizes that a next segment may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// If there is space.
    pub(super) wanted: usize,
    /// At least.
    pub(super) needed: usize,
    /// At most, unless more is needed.
    pub(super) most: usize,
}

/// A segment that should be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(super) segment: u64,
    pub(super) sizes: Sizes,
}

/// A segment without a name.
pub(super) struct Prepared {
    pub(super) identity: Identity,
    file: File,
    pub(super) size: usize,
    unnamed: PathBuf,
}

impl Prepared {
    /// Gives it its name, which is still to be made durable.
    pub(super) fn name(self, dir: &Path) -> io::Result<File> {
        std::fs::rename(&self.unnamed, path(dir, self.identity.segment))?;
        Ok(self.file)
    }
}

/// The next segment, if it is prepared. A background thread puts it there and the committer takes it. The lock also covers
/// the spares. It is never held during a write or a sync.
#[derive(Default)]
pub(crate) struct NextSegment(Mutex<Option<Prepared>>);

impl NextSegment {
    /// Prepares a segment. Blocks for as long as its file takes to be written. Only one thread may prepare segments.
    pub(crate) fn prepare(&self, dir: &Path, wanted: Wanted) -> io::Result<()> {
        let Wanted { segment, sizes } = wanted;
        {
            let mut next = self.0.lock();
            if let Some(other) = next.take_if(|next| next.identity.segment != segment) {
                // The committer did not wait for it and has made this segment itself.
                set_aside(dir, &other.unnamed)?;
            }
            if next.is_some() {
                return Ok(());
            }
        }
        let directory = File::open(dir)?;
        let prepared = self.prepare_as(dir, READY, &directory, segment, sizes, Filled::Yes)?;
        *self.0.lock() = Some(prepared);
        Ok(())
    }

    /// Takes the segment if it has the number and the size. Otherwise its file becomes a spare.
    pub(super) fn take(&self, dir: &Path, segment: u64, needed: usize) -> Option<Prepared> {
        let mut slot = self.0.lock();
        let mut next = slot.take()?;
        if next.identity.segment == segment && next.size >= needed {
            // The flusher may use its name again once the slot is empty.
            let taken = dir.join(NEXT);
            std::fs::rename(&next.unnamed, &taken).ok()?;
            next.unnamed = taken;
            return Some(next);
        }
        let _ = set_aside(dir, &next.unnamed);
        None
    }

    /// Makes a segment with a durable header, or nothing. On a full disk it may be smaller than wanted. Only the committer
    /// may call this.
    pub(super) fn make(
        &self,
        dir: &Path,
        directory: &File,
        segment: u64,
        sizes: Sizes,
        filled: Filled,
    ) -> io::Result<Prepared> {
        self.prepare_as(dir, NEXT, directory, segment, sizes, filled)
    }

    /// Takes a segment's name away. The caller makes that durable.
    pub(super) fn retire(&self, dir: &Path, segment: &Path) -> io::Result<()> {
        let _lock = self.0.lock();
        match set_aside(dir, segment) {
            // An earlier attempt got as far as the sync.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            set_aside => set_aside,
        }
    }

    fn prepare_as(
        &self,
        dir: &Path,
        name: &str,
        directory: &File,
        segment: u64,
        sizes: Sizes,
        filled: Filled,
    ) -> io::Result<Prepared> {
        let identity = Identity { segment, salt: getrandom::u64().map_err(io::Error::other)? };
        let unnamed = dir.join(name);
        let wanted = sizes.wanted.max(sizes.needed);
        let least = FIRST_BYTES.min(sizes.wanted).max(sizes.needed);
        let make = |size: usize| -> io::Result<Prepared> {
            let spare = {
                let _lock = self.0.lock();
                take_spare(dir, &unnamed, size, sizes.most.max(sizes.needed))?
            };
            let file = match spare {
                Some(file) => {
                    // Its name of a segment must be gone for good before its header is.
                    directory.sync_all()?;
                    file
                }
                None => new_file(&unnamed, size, filled)?,
            };
            file.write_all_at(&frame::segment_header(identity), 0)?;
            file.sync_all()?;
            let size = file.metadata()?.len() as usize;
            Ok(Prepared { identity, file, size, unnamed: unnamed.clone() })
        };
        let made = match make(wanted) {
            Err(error) if is_full(&error) && least < wanted => make(least),
            made => made,
        };
        made.inspect_err(|_| {
            // It takes space, and space may be what was missing.
            let _ = std::fs::remove_file(&unnamed);
        })
    }
}

/// A crash may have left segments without a name. Their space can be used.
pub(super) fn recover_unnamed(dir: &Path) -> io::Result<()> {
    for name in [NEXT, READY] {
        if length(&dir.join(name))?.is_some() {
            set_aside(dir, &dir.join(name))?;
        }
    }
    Ok(())
}

/// Makes a file a spare, in place of a smaller one if there are enough, or removes it.
fn set_aside(dir: &Path, file: &Path) -> io::Result<()> {
    let bytes = length(file)?.unwrap_or(0);
    for spare in SPARES.map(|name| dir.join(name)) {
        if length(&spare)?.is_none_or(|spare| spare < bytes) {
            return std::fs::rename(file, spare);
        }
    }
    std::fs::remove_file(file)
}

/// Bytes of a segment with room for a frame of `bytes` beside its reserve.
pub(super) fn room_for(bytes: usize) -> usize {
    let used = frame::HEADER_BYTES + bytes + frame::frame_bytes(0);
    used + (used / 3 + 8).min(RESERVE_BYTES)
}

/// Takes a spare file of at least `size` bytes and at most `most`. Removes larger ones: they were made for large commits.
fn take_spare(dir: &Path, unnamed: &Path, size: usize, most: usize) -> io::Result<Option<File>> {
    for spare in SPARES.map(|name| dir.join(name)) {
        let Some(bytes) = length(&spare)? else { continue };
        if bytes > most as u64 {
            let _ = std::fs::remove_file(&spare);
        } else if bytes >= size as u64 {
            std::fs::rename(&spare, unnamed)?;
            return OpenOptions::new().read(true).write(true).open(unnamed).map(Some);
        }
    }
    Ok(None)
}

fn new_file(unnamed: &Path, size: usize, filled: Filled) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(unnamed)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
    if filled == Filled::Yes {
        let zeros = vec![0; ZEROS];
        for at in (0..size).step_by(ZEROS) {
            file.write_all_at(&zeros[..(size - at).min(ZEROS)], at as u64)?;
            file.sync_data()?;
        }
    }
    Ok(file)
}

/// The length of a file, if it is there.
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

    /// A log in its second segment, used by half.
    fn used_log(dir: &Path) -> Log {
        let mut log = Log::start(dir, SEGMENT_BYTES, Log::recover(dir, |_| ()).unwrap()).unwrap();
        append(&mut log, 600 << 10);
        assert_eq!(log.wanted(), None, "a store that is hardly used has no segment prepared");
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

    /// Whether bytes behind the header of a segment were ever written.
    fn is_filled(dir: &Path, segment: u64) -> bool {
        let file = File::open(path(dir, segment)).unwrap();
        seek(&file, SeekFrom::Data(2 * frame::HEADER_BYTES as u64)).is_ok()
    }

    #[test]
    fn a_rotation_takes_the_segment_that_was_prepared_and_never_writes_zeros_itself() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.wanted().unwrap();
        assert_eq!((wanted.segment, log.wanted()), (3, None), "once for each segment");
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
    fn a_prepared_segment_that_does_not_fit_becomes_a_spare() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.wanted().unwrap();
        log.next().prepare(dir, wanted).unwrap();
        append(&mut log, 2 * SEGMENT_BYTES);
        assert_eq!((names(dir), log.segment()), (vec!["spare".to_owned()], 3), "too small");

        // Prepared too late: the log is in that segment already.
        log.next().prepare(dir, wanted).unwrap();
        assert_eq!(names(dir), ["ready"]);
        let next = Wanted { segment: 4, ..wanted };
        log.next().prepare(dir, next).unwrap();
        log.next().prepare(dir, next).unwrap();
        assert_eq!(names(dir), ["ready"]);
        log.rotate(0).unwrap();
        assert_eq!((names(dir).len(), log.segment()), (0, 4));
    }

    #[test]
    fn a_crash_leaves_prepared_segments_as_spares_and_the_largest_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let wanted = log.wanted().unwrap();
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

    /// Frames of different sizes make some prepared segments too small, so that the committer sets them aside while the
    /// flusher prepares the next one. Segments are retired meanwhile, so both threads take spares.
    #[test]
    fn a_segment_in_use_is_never_written_by_the_thread_that_prepares_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut log = used_log(dir);
        let next = log.next();
        let (orders, received) = std::sync::mpsc::channel::<(Wanted, Option<u64>)>();
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
                // Each segment is followed by an order for one that is soon too old.
                let sizes = Sizes { wanted: 1 << 20, needed: room_for(0), most: 2 * SEGMENT_BYTES };
                let wanted = Wanted { segment: log.segment() + 1, sizes };
                let retired = (log.segment() > first + 2).then_some(first);
                first += u64::from(retired.is_some());
                orders.send((wanted, retired)).unwrap();
                if round % 3 == 0 {
                    log.rotate(0).unwrap();
                }
            }
            drop(orders);
        });
        append(&mut log, 10);
        let found = read(dir, |_| ()).unwrap();
        assert_eq!(found.segments.last(), Some(&log.segment()));
    }
}
