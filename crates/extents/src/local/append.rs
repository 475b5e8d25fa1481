//! Appends extents: a place is reserved under a short lock, then writers write to their own places
//! concurrently.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rustix::fs::ftruncate;
use rustix::io::Errno;

use super::LocalShared;
use super::direct;
use super::disk::{Disk, is_full};
use crate::extent::{Error, ExtentId, ExtentRef};
use crate::gather::Gathered;
use crate::pin::{Appended, Writer};
use crate::segment::{BLOCK, Checksums, FrameHeader, SegmentHeader, frame_bytes, frame_offset};

/// Frames of at least this many bytes are written past the page cache.
const LARGE_BYTES: u64 = 256 << 10;

/// Assigns places to frames.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    /// The segment being filled; `None` until the first append of this process.
    active: Option<Active>,
    /// The highest segment id that was ever tried.
    last_id: u64,
    /// Frames that have a place and are not yet written.
    in_flight: BTreeSet<ExtentId>,
}

#[derive(Debug)]
struct Active {
    header: SegmentHeader,
    file: Arc<File>,
    /// The segment file, opened for writes past the page cache.
    direct: Option<Arc<File>>,
    /// Offset of the next frame, in bytes.
    end: u64,
    /// End of the preallocated space, in bytes.
    allocated_end: u64,
}

/// The place of one frame.
struct FramePlace {
    id: ExtentId,
    salt: u64,
    file: Arc<File>,
    direct: Option<Arc<File>>,
}

impl FramePlace {
    fn offset(&self) -> u64 {
        frame_offset(self.id)
    }
}

impl Appender {
    pub(crate) fn starting_after(last_id: u64) -> Self {
        Self { last_id, ..Self::default() }
    }

    /// Returns the first id that has not been assigned.
    pub(crate) fn next(&self) -> ExtentId {
        match &self.active {
            // If the segment is full, this is the id after its last block.
            Some(active) => ExtentId::from_raw(ExtentId::new(active.header.id, 0).raw() + active.end / BLOCK),
            None => ExtentId::new(self.last_id + 1, 0),
        }
    }

    /// Returns an id below which every frame is written, or never will be.
    pub(crate) fn written_below(&self) -> ExtentId {
        self.in_flight.first().copied().unwrap_or_else(|| self.next())
    }

    /// Returns whether a frame is being written.
    pub(crate) fn is_writing(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Cuts off the unused preallocation when the process ends.
    pub(crate) fn trim(&self) {
        if let Some(active) = &self.active
            && let Err(e) = ftruncate(&active.file, active.end)
        {
            tracing::warn!(segment = active.header.id, %e, "could not trim the unused end of a segment");
        }
    }
}

impl LocalShared {
    /// Writes one extent. Blocks.
    pub(crate) fn append(&self, writer: &Writer, payload: &[Bytes]) -> Result<ExtentRef, Error> {
        self.check_running()?;
        let sums = Checksums::of(payload).ok_or(Error::Size)?;
        let is_large = u64::from(sums.length) >= LARGE_BYTES;
        self.write_frame(writer, sums, |place, header| {
            let buffers: Vec<&[u8]> =
                std::iter::once(header).chain(payload.iter().map(Bytes::as_ref)).collect();
            match &place.direct {
                Some(direct) if is_large => {
                    direct::write_in_blocks(&mut self.buffer_pool.take(), &buffers, |blocks, at| {
                        self.disk.write_direct(direct, &place.file, blocks, place.offset() + at)
                    })
                }
                _ => self.disk.write(&place.file, &buffers, place.offset()),
            }
        })
    }

    /// Writes one extent that was gathered in memory. Blocks.
    pub(crate) fn append_gathered(&self, writer: &Writer, mut payload: Gathered) -> Result<ExtentRef, Error> {
        self.check_running()?;
        let sums = payload.sums().ok_or(Error::Size)?;
        let is_large = u64::from(sums.length) >= LARGE_BYTES;
        self.write_frame(writer, sums, |place, header| {
            let frame = payload.frame(header);
            match &place.direct {
                Some(direct) if is_large => {
                    self.disk.write_direct(direct, &place.file, frame, place.offset())
                }
                _ => self.disk.write(&place.file, &[frame], place.offset()),
            }
        })
    }

    /// Assigns a place to a frame and writes the frame there.
    fn write_frame(
        &self,
        writer: &Writer,
        sums: Checksums,
        write: impl FnOnce(&FramePlace, &[u8]) -> Result<(), Errno>,
    ) -> Result<ExtentRef, Error> {
        let length = sums.length;
        let place = self.reserve(length, writer)?;
        let (id, file) = (place.id, &place.file);
        let header = FrameHeader { id, salt: place.salt, sums };
        let written = write(&place, &header.encode());
        if place.direct.is_none() && u64::from(length) >= LARGE_BYTES {
            Disk::begin_write_out(file, place.offset(), frame_bytes(length));
        }
        // Before the frame counts as written, and even if the write failed: a part may have been written.
        self.sync.mark_dirty(id.segment(), file);
        self.appender.lock().in_flight.remove(&id);
        match written {
            Ok(()) => {
                self.full.store(false, Ordering::Relaxed);
                Ok(header.extent())
            }
            Err(e) if is_full(e) => Err(self.full()),
            Err(e) => Err(self.stop("write", id.segment(), e)),
        }
    }

    fn reserve(&self, length: u32, writer: &Writer) -> Result<FramePlace, Error> {
        let need = frame_bytes(length);
        let mut appender = self.appender.lock();
        if appender.active.as_ref().is_none_or(|active| active.end + need > self.options.segment_bytes) {
            self.start_segment(&mut appender, need)?;
        }
        let Some(active) = &mut appender.active else { return Err(Error::Stopped) };
        if active.end + need > active.allocated_end {
            self.preallocate(active, need)?;
        }
        let place = FramePlace {
            id: ExtentId::new(active.header.id, (active.end / BLOCK) as u16),
            salt: active.header.salt,
            file: active.file.clone(),
            direct: active.direct.clone(),
        };
        active.end += need;
        self.appended.fetch_add(need, Ordering::AcqRel);
        appender.in_flight.insert(place.id);
        // Under the lock, so that a mark whose horizon is above this place also sees its writer.
        writer.note(Appended { id: place.id, length });
        Ok(place)
    }

    /// Preallocates space for at least one frame, and for more if there is enough.
    fn preallocate(&self, active: &mut Active, need: u64) -> Result<(), Error> {
        let required = active.end + need;
        let preferred =
            (active.allocated_end + self.preallocation_bytes()).clamp(required, self.options.segment_bytes);
        let allocate = |to| self.disk.allocate(&active.file, active.allocated_end, to).map(|()| to);
        active.allocated_end = match allocate(preferred) {
            Err(e) if is_full(e) => allocate(required),
            result => result,
        }
        .map_err(|e| self.allocation_error(active.header.id, e))?;
        self.directory.set_allocated(active.header.id, &active.file)?;
        Ok(())
    }

    /// Returns how many bytes to preallocate at a time. Preallocation is slow and blocks all appends, so a
    /// large store does more at a time.
    fn preallocation_bytes(&self) -> u64 {
        let (_, allocated) = self.directory.totals();
        (allocated / 8).clamp(self.options.grow_bytes, 4 * self.options.grow_bytes)
    }

    /// Gives back preallocated space that a smaller store does not need, at most `step` bytes. Returns
    /// whether there may be more. Blocks.
    pub(crate) fn shrink_preallocation(&self, step: u64) -> Result<bool, Error> {
        let mut appender = self.appender.lock();
        let Some(active) = &mut appender.active else { return Ok(false) };
        let needed_end = active.end + self.preallocation_bytes();
        if active.allocated_end <= needed_end {
            return Ok(false);
        }
        let allocated_end = needed_end.max(active.allocated_end.saturating_sub(step));
        ftruncate(&active.file, allocated_end)?;
        active.allocated_end = allocated_end;
        self.directory.set_allocated(active.header.id, &active.file)?;
        Ok(true)
    }

    /// Converts the error of creating or extending a segment. Nothing was written, so the state of the disk
    /// is known.
    fn allocation_error(&self, segment: u64, e: Errno) -> Error {
        if is_full(e) { self.full() } else { Error::from(e).at(format_args!("segment {segment}")) }
    }

    /// Begins a new segment and makes it durable before its first frame. If there is no space, the old
    /// segment stays active.
    fn start_segment(&self, appender: &mut Appender, need: u64) -> Result<(), Error> {
        // Counted before the attempt, so that no id is tried twice.
        appender.last_id += 1;
        let salt = getrandom::u64().map_err(|e| Error::Io(e.to_string()))?;
        let header = SegmentHeader { id: appender.last_id, salt };
        let active = self.begin_segment(header, need)?;
        if let Some(old) = appender.active.replace(active) {
            // Ids from `end` on are never assigned. Frames in flight lie before it.
            if let Err(e) = ftruncate(&old.file, old.end) {
                tracing::warn!(segment = old.header.id, %e, "could not trim the unused end of a segment");
            }
            self.sync.mark_dirty(old.header.id, &old.file);
            self.directory.set_allocated(old.header.id, &old.file)?;
        }
        Ok(())
    }

    fn begin_segment(&self, header: SegmentHeader, need: u64) -> Result<Active, Error> {
        let id = header.id;
        let file = self.directory.create(id).map_err(|e| match Errno::from_io_error(&e) {
            Some(e) => self.allocation_error(id, e),
            None => e.into(),
        })?;
        let direct = direct::open(&self.directory.path_of(id)).map(Arc::new);
        let mut active = Active { header, file: Arc::new(file), direct, end: BLOCK, allocated_end: 0 };
        let begun = self.preallocate(&mut active, need).and_then(|()| {
            let written = self.disk.write(&active.file, &[&header.encode()], 0);
            let synced = written.and_then(|()| {
                self.disk.sync_all(&active.file)?;
                self.disk.sync_all(&self.directory.handle)
            });
            match synced {
                Ok(()) => Ok(()),
                Err(e) if is_full(e) && written.is_err() => Err(self.full()),
                Err(e) => Err(self.stop("begin", id, e)),
            }
        });
        if let Err(e) = begun {
            // The segment was never used, so its name can be removed.
            if let Err(e) = self.directory.remove(id) {
                tracing::warn!(segment = id, %e, "could not remove a segment that was never used");
            }
            return Err(e);
        }
        self.directory.keep_open(id, &active.file);
        Ok(active)
    }
}
