//! Appending: a place is reserved under a short lock, then everybody writes to his own place at the same time.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rustix::fs::ftruncate;
use rustix::io::Errno;

use super::Shared;
use super::direct;
use super::disk::{Disk, is_full};
use crate::extent::{Error, ExtentId, ExtentRef};
use crate::gather::Gathered;
use crate::pin::{Appended, Writer};
use crate::segment::{BLOCK, Checksums, FrameHeader, SegmentHeader, frame_bytes, frame_offset};

/// A frame of so many bytes goes past the page cache.
const LARGE_BYTES: u64 = 256 << 10;

/// Where the next frame goes.
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
    /// The same for writes past the page cache.
    direct: Option<Arc<File>>,
    /// Where the next frame starts.
    end: u64,
    /// Up to where room is set aside.
    room: u64,
}

/// A frame's place, its own.
struct Place {
    id: ExtentId,
    salt: u64,
    file: Arc<File>,
    direct: Option<Arc<File>>,
}

impl Place {
    fn offset(&self) -> u64 {
        frame_offset(self.id)
    }
}

impl Appender {
    pub(crate) fn starting_after(last_id: u64) -> Self {
        Self { last_id, ..Self::default() }
    }

    /// The first id that has not been given out.
    pub(crate) fn next(&self) -> ExtentId {
        match &self.active {
            // A full segment ends where the next one would begin.
            Some(active) => ExtentId::from_raw(ExtentId::new(active.header.id, 0).raw() + active.end / BLOCK),
            None => ExtentId::new(self.last_id + 1, 0),
        }
    }

    /// All ids below this are written, or never will be.
    pub(crate) fn quiet_below(&self) -> ExtentId {
        self.in_flight.first().copied().unwrap_or_else(|| self.next())
    }

    /// Whether a frame is being written.
    pub(crate) fn is_writing(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Gives back the room that is left, when the process ends.
    pub(crate) fn trim(&self) {
        if let Some(active) = &self.active
            && let Err(e) = ftruncate(&active.file, active.end)
        {
            tracing::warn!(segment = active.header.id, %e, "room at the end of a segment was not given back");
        }
    }
}

impl Shared {
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
                    direct::in_blocks(&mut self.rooms.take(), &buffers, |blocks, at| {
                        self.disk.write_direct(direct, &place.file, blocks, place.offset() + at)
                    })
                }
                _ => self.disk.write(&place.file, &buffers, place.offset()),
            }
        })
    }

    /// The same for one that was gathered.
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

    /// Gives a frame a place, and has it written there with its header.
    fn write_frame(
        &self,
        writer: &Writer,
        sums: Checksums,
        write: impl FnOnce(&Place, &[u8]) -> Result<(), Errno>,
    ) -> Result<ExtentRef, Error> {
        let length = sums.length;
        let place = self.reserve(length, writer)?;
        let (id, file) = (place.id, &place.file);
        let header = FrameHeader { id, salt: place.salt, sums };
        let written = write(&place, &header.encode());
        if place.direct.is_none() && u64::from(length) >= LARGE_BYTES {
            Disk::begin_write_out(file, place.offset(), frame_bytes(length));
        }
        // Noted whatever became of it, before the frame counts as quiet: a part may have been written.
        self.sync.wrote(id.segment(), file);
        self.appender.lock().in_flight.remove(&id);
        match written {
            Ok(()) => Ok(header.extent()),
            Err(e) if is_full(e) => Err(self.full()),
            Err(e) => Err(self.stop("write", id.segment(), e)),
        }
    }

    fn reserve(&self, length: u32, writer: &Writer) -> Result<Place, Error> {
        let need = frame_bytes(length);
        let mut appender = self.appender.lock();
        if appender.active.as_ref().is_none_or(|active| active.end + need > self.options.segment_bytes) {
            self.roll(&mut appender, need)?;
        }
        let Some(active) = &mut appender.active else { return Err(Error::Stopped) };
        if active.end + need > active.room {
            self.make_room(active, need)?;
        }
        let place = Place {
            id: ExtentId::new(active.header.id, (active.end / BLOCK) as u16),
            salt: active.header.salt,
            file: active.file.clone(),
            direct: active.direct.clone(),
        };
        active.end += need;
        self.appended.fetch_add(need, Ordering::AcqRel);
        appender.in_flight.insert(place.id);
        // Under the lock: a mark that sees the place given out sees its writer too.
        writer.note(Appended { id: place.id, length });
        Ok(place)
    }

    /// Sets room aside for one frame at least, and for more if there is enough.
    fn make_room(&self, active: &mut Active, need: u64) -> Result<(), Error> {
        let least = active.end + need;
        let most = (active.room + self.room_ahead()).clamp(least, self.options.segment_bytes);
        let allocate = |to| self.disk.allocate(&active.file, active.room, to).map(|()| to);
        active.room = match allocate(most) {
            Err(e) if is_full(e) => allocate(least),
            result => result,
        }
        .map_err(|e| self.refused(e))?;
        self.directory.set_allocated(active.header.id, &active.file)?;
        Ok(())
    }

    /// Bytes to set aside at a time. That takes the file system a while, and everybody waits: where much lies, much is set aside.
    fn room_ahead(&self) -> u64 {
        let (_, allocated) = self.directory.totals();
        (allocated / 8).clamp(self.options.grow_bytes, 4 * self.options.grow_bytes)
    }

    /// Gives back room that was set aside while more lay there, `step` bytes of it at most. Whether there may be more. Blocks.
    pub(crate) fn give_back_room(&self, step: u64) -> Result<bool, Error> {
        let mut appender = self.appender.lock();
        let Some(active) = &mut appender.active else { return Ok(false) };
        let enough = active.end + self.room_ahead();
        if active.room <= enough {
            return Ok(false);
        }
        let room = enough.max(active.room.saturating_sub(step));
        ftruncate(&active.file, room)?;
        active.room = room;
        self.directory.set_allocated(active.header.id, &active.file)?;
        Ok(true)
    }

    /// What to answer when a file could not be made or extended: nothing was written, so nothing is in doubt.
    fn refused(&self, e: Errno) -> Error {
        if is_full(e) { self.full() } else { e.into() }
    }

    /// Begins a new segment, durable before its first frame. With no room for it the old one stays.
    fn roll(&self, appender: &mut Appender, need: u64) -> Result<(), Error> {
        // Counted before it is tried, so that no id is tried twice.
        appender.last_id += 1;
        let salt = getrandom::u64().map_err(|e| Error::Io(e.to_string()))?;
        let header = SegmentHeader { id: appender.last_id, salt };
        let active = self.begin_segment(header, need)?;
        if let Some(old) = appender.active.replace(active) {
            // Ids above `end` are never given out. What is in flight lies below it.
            if let Err(e) = ftruncate(&old.file, old.end) {
                tracing::warn!(segment = old.header.id, %e, "room at the end of a segment was not given back");
            }
            self.sync.wrote(old.header.id, &old.file);
            self.directory.set_allocated(old.header.id, &old.file)?;
        }
        Ok(())
    }

    fn begin_segment(&self, header: SegmentHeader, need: u64) -> Result<Active, Error> {
        let id = header.id;
        let file = self.directory.create(id).map_err(|e| match Errno::from_io_error(&e) {
            Some(e) => self.refused(e),
            None => e.into(),
        })?;
        let direct = direct::open(&self.directory.path_of(id)).map(Arc::new);
        let mut active = Active { header, file: Arc::new(file), direct, end: BLOCK, room: 0 };
        let begun = self.make_room(&mut active, need).and_then(|()| {
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
            // Never used, so its name may go.
            if let Err(e) = self.directory.remove(id) {
                tracing::warn!(segment = id, %e, "a segment that was never begun was not removed");
            }
            return Err(e);
        }
        self.directory.keep_open(id, &active.file);
        Ok(active)
    }
}
