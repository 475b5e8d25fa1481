//! An engine that keeps extents in a directory of segment files, described in [`segment`](crate::segment).
//!
//! - Frames are appended to one active segment. A process never appends to a segment of an earlier process.
//! - After a failed write or sync the engine stops until the process restarts ([`Error::Stopped`]): the state
//!   of the disk is unknown, and the next start inspects it. A full disk does not stop it: space is
//!   preallocated before it is assigned.
//! - Space is freed by punching holes. So a reference stays valid as long as it is in use, and nothing is
//!   ever moved. On a file system without holes, only whole segments and ends of segments are freed.
//! - Recovery only inspects the files. No record refers to a torn frame, and the next sweep frees it.

mod append;
mod capture;
mod direct;
mod directory;
mod disk;
mod live;
mod mark;
mod read;
mod salvage;
mod scrub;
mod sync;
#[cfg(test)]
mod tests;
mod verify;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_metrics::StructureSize;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::engine::{AppendHint, Extents, Mark, Payload, StorageUse};
use crate::extent::{Error, ExtentRef};
use crate::gather::{self, BufferPool, Gathered};
use crate::pin::{Pins, Writer};
use crate::segment::{BLOCK, MAX_SEGMENT_BYTES};
use append::Appender;
use directory::Directory;
use disk::Disk;
use mark::LocalMark;
use read::{PageCacheReader, read_extent};
use sync::GroupSync;

pub use capture::CapturedSegment;
pub use salvage::frame_range;
pub use scrub::{Damage, DamageKind, ReadAt, ScrubProgress, ScrubReport, ScrubbedPart, SegmentPosition};
pub use verify::{Verifier, VerifyReport};

/// Reads up to this many bytes are first tried on the caller's thread: reading from the page cache takes
/// microseconds.
const MAX_READ_IN_PLACE: u32 = 256 << 10;

/// The layout of segments. Change the defaults only in tests.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum size of a segment: 16 MiB to 256 MiB.
    pub segment_bytes: u64,
    /// Bytes preallocated at a time for appending. A large store preallocates up to four times as many.
    pub grow_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: MAX_SEGMENT_BYTES, grow_bytes: 16 << 20 }
    }
}

impl Options {
    /// Rounds to whole blocks and clamps to the format's limits: any extent fits in a segment, and any
    /// block has a number.
    fn checked(self) -> Self {
        let segment_bytes = self.segment_bytes.clamp(16 << 20, MAX_SEGMENT_BYTES) / BLOCK * BLOCK;
        Self { segment_bytes, grow_bytes: self.grow_bytes.clamp(BLOCK, segment_bytes) / BLOCK * BLOCK }
    }
}

/// Why a directory of segments could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the directory.
    #[error("the directory of segments is in use by another process")]
    Locked,
    /// A segment was written by a newer version of Lazuli. Nothing was changed.
    #[error(
        "segment {segment:016x} has format {version}; this version of Lazuli knows formats up to {}",
        crate::segment::VERSION
    )]
    NewerFormat {
        /// The format version of the segment.
        version: u32,
        /// The id of the segment.
        segment: u64,
    },
    /// The directory cannot be read or created.
    #[error("{0}")]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ReadWrite,
    ReadOnly,
}

/// Extents in a directory of segment files. Clones share the engine.
#[derive(Clone, Debug)]
pub struct LocalExtents(Arc<LocalShared>);

#[derive(Debug)]
struct LocalShared {
    options: Options,
    mode: Mode,
    directory: Directory,
    disk: Disk,
    buffer_pool: Arc<BufferPool>,
    /// Locked during disk operations, so lock it only on threads that may block.
    appender: Mutex<Appender>,
    /// Bytes of all frames that were assigned a place.
    appended: AtomicU64,
    sync: GroupSync,
    page_cache: PageCacheReader,
    pins: Arc<Pins>,
    stopped: AtomicBool,
    /// The last append found no space, and no sweep has freed any since.
    full: AtomicBool,
    /// A mark has begun and has not ended.
    marking: AtomicBool,
    accounting: Mutex<SweepAccounting>,
}

/// The figures behind [`Extents::storage_use`], apart from the sizes of the segments.
#[derive(Debug, Default)]
struct SweepAccounting {
    /// Bytes that the last sweep found in use.
    live_bytes: Option<u64>,
    /// `appended` when the last mark began.
    appended_before_mark: u64,
    released: u64,
    full: bool,
}

impl LocalExtents {
    /// Opens `data/segments`, creating it if it does not exist. Blocks.
    pub fn open(data: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_as(data, options, Mode::ReadWrite)
    }

    /// Opens `data/segments` without changing it. Appends and sweeps are refused. Blocks.
    pub fn open_read_only(data: &Path) -> Result<Self, OpenError> {
        Self::open_as(data, Options::default(), Mode::ReadOnly)
    }

    /// Returns whether a failed write or sync has stopped the engine. Nothing is stored until the process
    /// restarts.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// Returns whether the last append found no space on the device.
    pub fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Relaxed)
    }

    /// Returns the histogram of sync durations.
    pub fn sync_times(&self) -> &lazuli_metrics::Histogram {
        &self.0.disk.sync_times
    }

    /// Returns how many reads of this process found damage.
    pub fn damaged_reads(&self) -> u64 {
        read::DAMAGED_READS.load(Ordering::Relaxed)
    }

    /// Returns the sizes of the engine's structures in memory.
    pub fn structures(&self) -> Vec<StructureSize> {
        let shared = &self.0;
        let (held, writers) = shared.pins.counts();
        let (huge_pages, idle_buffers) = shared.buffer_pool.buffers();
        vec![
            StructureSize::derived("content_holds", held),
            StructureSize::derived("content_writers", writers),
            StructureSize::derived("segments", shared.directory.totals().0 as usize),
            StructureSize::limited("open_segments", shared.directory.open_files(), directory::MAX_OPEN),
            StructureSize::derived("unsynced_segments", shared.sync.dirty_segments()),
            StructureSize::limited("huge_pages", huge_pages, gather::MAX_IDLE),
            StructureSize::limited("idle_buffers", idle_buffers, gather::MAX_IDLE),
        ]
    }

    fn open_as(data: &Path, options: Options, mode: Mode) -> Result<Self, OpenError> {
        let directory = Directory::open(data, mode)?;
        let appender = Appender::starting_after(directory.highest());
        Ok(Self(Arc::new(LocalShared {
            options: options.checked(),
            mode,
            directory,
            disk: Disk::default(),
            buffer_pool: Arc::default(),
            appender: Mutex::new(appender),
            appended: AtomicU64::new(0),
            sync: GroupSync::default(),
            page_cache: PageCacheReader::default(),
            pins: Arc::default(),
            stopped: AtomicBool::new(false),
            full: AtomicBool::new(false),
            marking: AtomicBool::new(false),
            accounting: Mutex::default(),
        })))
    }
}

impl LocalShared {
    fn check_running(&self) -> Result<(), Error> {
        match self.mode == Mode::ReadOnly || self.stopped.load(Ordering::Acquire) {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }

    /// Stops the engine after a failed system call.
    fn stop(&self, what: &str, segment: u64, e: Errno) -> Error {
        self.stop_because(&format_args!("the disk failed: {what} of segment {segment}: {e}"))
    }

    /// Stops the engine until the process restarts.
    fn stop_because(&self, why: &dyn std::fmt::Display) -> Error {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            tracing::error!("{why}; no more content is stored until the server restarts");
        }
        self.sync.stop();
        Error::Stopped
    }

    fn full(&self) -> Error {
        self.accounting.lock().full = true;
        self.full.store(true, Ordering::Relaxed);
        Error::Full
    }
}

impl Drop for LocalShared {
    fn drop(&mut self) {
        self.appender.lock().trim();
    }
}

/// Runs a closure on a thread where blocking is allowed.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(f).await.map_err(|e| Error::Io(e.to_string()))?
}

#[async_trait]
impl Extents for LocalExtents {
    async fn append_with_hint(
        &self,
        writer: &Writer,
        payload: Payload,
        hint: AppendHint,
    ) -> Result<ExtentRef, Error> {
        // The clone keeps the writer until the write has ended, even if the caller is canceled.
        let (shared, writer) = (self.0.clone(), writer.clone());
        blocking(move || {
            let extent = match payload {
                Payload::Parts(parts) => shared.append(&writer, &parts),
                Payload::Gathered(gathered) => shared.append_gathered(&writer, *gathered),
            }?;
            if hint == AppendHint::SyncFollows {
                GroupSync::sync_on_this_thread(shared);
            }
            Ok(extent)
        })
        .await
    }

    fn gather(&self, bytes: usize) -> Gathered {
        Gathered::new(&self.0.buffer_pool, bytes)
    }

    async fn sync(&self) -> Result<(), Error> {
        GroupSync::sync(&self.0).await
    }

    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error> {
        if range.end.saturating_sub(range.start) <= MAX_READ_IN_PLACE
            && let Some(file) = self.0.directory.opened(extent.id.segment())
            && let Some(bytes) = self.0.page_cache.read(&file, extent, range.clone())?
        {
            return Ok(bytes);
        }
        let (shared, extent) = (self.0.clone(), *extent);
        let read = blocking(move || {
            let file = shared.directory.file(extent.id.segment());
            match file.map_err(|error| Error::from(error).at(extent.id))? {
                Some(file) => read_extent(&file, &extent, range),
                None => Err(Error::Damaged(format!("{:?}: no such segment", extent.id))),
            }
        });
        read.await
    }

    fn preferred_bytes(&self) -> usize {
        gather::CAPACITY
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.0.pins
    }

    fn storage_use(&self) -> StorageUse {
        let (segments, allocated_bytes) = self.0.directory.totals();
        let accounting = self.0.accounting.lock();
        let appended = self.0.appended.load(Ordering::Acquire);
        StorageUse {
            segments,
            allocated_bytes,
            live_bytes: accounting.live_bytes,
            appended_since_mark: appended - accounting.appended_before_mark,
            released_since_mark: accounting.released,
            full: accounting.full,
        }
    }

    fn released(&self, bytes: u64) {
        let mut accounting = self.0.accounting.lock();
        accounting.released = accounting.released.saturating_add(bytes);
    }

    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error> {
        let shared = self.0.clone();
        Ok(Box::new(blocking(move || LocalMark::begin(&shared)).await?))
    }
}
