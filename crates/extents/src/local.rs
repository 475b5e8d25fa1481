//! Extents in a directory of segment files, described in [`segment`](crate::segment).
//!
//! - Appends go to one active segment; a process never appends to a segment that another one began.
//! - A failed write or sync stops it for good ([`Error::Stopped`]): what the disk holds is then unknown, and the next
//!   start finds out. Lack of space stops nothing: room is set aside before it is given out.
//! - Space is freed by punching holes, so a reference is valid for as long as it is alive and nothing is ever moved.
//!   On a file system without holes only whole segments, and ends of segments, are freed.
//! - Recovery is nothing but looking: a torn frame is one that no record refers to, and the next sweep frees it.

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
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::engine::{Extents, Mark, Next, Payload, Space};
use crate::extent::{Error, ExtentRef};
use crate::gather::{self, Gathered, Rooms};
use crate::pin::{Pins, Writer};
use crate::segment::{BLOCK, MAX_SEGMENT_BYTES};
use append::Appender;
use directory::Directory;
use disk::Disk;
use mark::LocalMark;
use read::{Cached, read_extent};
use sync::GroupSync;

pub use capture::CapturedSegment;
pub use salvage::frame_range;
pub use scrub::{Damage, DamageKind, ReadAt, ScrubProgress, ScrubReport, ScrubbedPart, SegmentPlace};
pub use verify::{Verifier, VerifyReport};

/// Reads up to this are tried on the caller's thread first: what is in memory takes microseconds.
const MAX_READ_IN_PLACE: u32 = 256 << 10;

/// How segments are laid out. The default is right; tests use less.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes in a segment at most: 16 MiB to 256 MiB.
    pub segment_bytes: u64,
    /// Bytes set aside at a time for appending; where much is stored, up to four times as many.
    pub grow_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: MAX_SEGMENT_BYTES, grow_bytes: 16 << 20 }
    }
}

impl Options {
    /// The same in whole blocks and within the format's limits: any extent fits in a segment, any block has a number.
    fn checked(self) -> Self {
        let segment_bytes = self.segment_bytes.clamp(16 << 20, MAX_SEGMENT_BYTES) / BLOCK * BLOCK;
        Self { segment_bytes, grow_bytes: self.grow_bytes.clamp(BLOCK, segment_bytes) / BLOCK * BLOCK }
    }
}

/// Why a directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses it.
    #[error("the directory of segments is in use by another process")]
    Locked,
    /// It was written by a newer Lazuli. Nothing was changed.
    #[error(
        "segment {segment:016x} has format {version}; this version of Lazuli knows formats up to {}",
        crate::segment::VERSION
    )]
    NewerFormat {
        /// Its format.
        version: u32,
        /// The segment.
        segment: u64,
    },
    /// It cannot be read or made.
    #[error("{0}")]
    Io(#[from] io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ReadWrite,
    ReadOnly,
}

/// Extents in a directory. Clones are the same.
#[derive(Clone, Debug)]
pub struct LocalExtents(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Options,
    mode: Mode,
    directory: Directory,
    disk: Disk,
    rooms: Arc<Rooms>,
    /// Held while the disk is at work, so only to be locked where blocking is allowed.
    appender: Mutex<Appender>,
    /// Bytes of frames that were given a place.
    appended: AtomicU64,
    sync: GroupSync,
    cached: Cached,
    pins: Arc<Pins>,
    stopped: AtomicBool,
    /// A mark has begun and is not over.
    marking: AtomicBool,
    accounts: Mutex<Accounts>,
}

/// What `space` is told from.
#[derive(Debug, Default)]
struct Accounts {
    live: Option<u64>,
    /// `appended` when the last mark began.
    appended_before_mark: u64,
    released: u64,
    full: bool,
}

impl LocalExtents {
    /// Opens `data/segments`, making it if it is not there. Blocks.
    pub fn open(data: &Path, options: Options) -> Result<Self, OpenError> {
        Self::open_as(data, options, Mode::ReadWrite)
    }

    /// Opens `data/segments` to look at only: changes nothing there, and refuses to append or sweep. Blocks.
    pub fn open_read_only(data: &Path) -> Result<Self, OpenError> {
        Self::open_as(data, Options::default(), Mode::ReadOnly)
    }

    /// Whether a failed write or sync has stopped it: nothing is stored until the next start.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// How long syncs of segments took.
    pub fn sync_times(&self) -> &lazuli_metrics::Histogram {
        &self.0.disk.sync_times
    }

    /// Reads of content that found it damaged, in this process.
    pub fn damaged_reads(&self) -> u64 {
        read::DAMAGED_READS.load(Ordering::Relaxed)
    }

    fn open_as(data: &Path, options: Options, mode: Mode) -> Result<Self, OpenError> {
        let directory = Directory::open(data, mode)?;
        let appender = Appender::starting_after(directory.highest());
        Ok(Self(Arc::new(Shared {
            options: options.checked(),
            mode,
            directory,
            disk: Disk::default(),
            rooms: Arc::default(),
            appender: Mutex::new(appender),
            appended: AtomicU64::new(0),
            sync: GroupSync::default(),
            cached: Cached::default(),
            pins: Arc::default(),
            stopped: AtomicBool::new(false),
            marking: AtomicBool::new(false),
            accounts: Mutex::default(),
        })))
    }
}

impl Shared {
    fn check_running(&self) -> Result<(), Error> {
        match self.mode == Mode::ReadOnly || self.stopped.load(Ordering::Acquire) {
            true => Err(Error::Stopped),
            false => Ok(()),
        }
    }

    /// Stops for good.
    fn stop(&self, what: &str, segment: u64, e: Errno) -> Error {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            tracing::error!(what, segment, %e, "the disk failed; nothing more is stored until the next start");
        }
        self.sync.stop();
        Error::Stopped
    }

    fn full(&self) -> Error {
        self.accounts.lock().full = true;
        Error::Full
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.appender.lock().trim();
    }
}

/// Runs what blocks where blocking is allowed.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(f).await.map_err(|e| Error::Io(e.to_string()))?
}

#[async_trait]
impl Extents for LocalExtents {
    async fn append_then(&self, writer: &Writer, payload: Payload, next: Next) -> Result<ExtentRef, Error> {
        // The clone keeps the writer until the write is over, even if nobody waits for it any more.
        let (shared, writer) = (self.0.clone(), writer.clone());
        blocking(move || {
            let extent = match payload {
                Payload::Parts(parts) => shared.append(&writer, &parts),
                Payload::Gathered(gathered) => shared.append_gathered(&writer, *gathered),
            }?;
            if next == Next::Sync {
                GroupSync::sync_here(shared);
            }
            Ok(extent)
        })
        .await
    }

    fn gather(&self, bytes: usize) -> Gathered {
        Gathered::new(&self.0.rooms, bytes)
    }

    async fn sync(&self) -> Result<(), Error> {
        GroupSync::sync(&self.0).await
    }

    async fn read(&self, extent: &ExtentRef, range: Range<u32>) -> Result<Bytes, Error> {
        if range.end.saturating_sub(range.start) <= MAX_READ_IN_PLACE
            && let Some(file) = self.0.directory.opened(extent.id.segment())
            && let Some(bytes) = self.0.cached.read(&file, extent, range.clone())?
        {
            return Ok(bytes);
        }
        let (shared, extent) = (self.0.clone(), *extent);
        blocking(move || match shared.directory.file(extent.id.segment())? {
            Some(file) => read_extent(&file, &extent, range),
            None => Err(Error::Damaged(format!("{:?}: there is no such segment", extent.id))),
        })
        .await
    }

    fn preferred_bytes(&self) -> usize {
        gather::CAPACITY
    }

    fn pins(&self) -> &Arc<Pins> {
        &self.0.pins
    }

    fn space(&self) -> Space {
        let (segments, allocated_bytes) = self.0.directory.totals();
        let accounts = self.0.accounts.lock();
        let appended = self.0.appended.load(Ordering::Acquire);
        Space {
            segments,
            allocated_bytes,
            live_bytes: accounts.live,
            appended_since_mark: appended - accounts.appended_before_mark,
            released_since_mark: accounts.released,
            full: accounts.full,
        }
    }

    fn released(&self, bytes: u64) {
        let mut accounts = self.0.accounts.lock();
        accounts.released = accounts.released.saturating_add(bytes);
    }

    async fn begin_mark(&self) -> Result<Box<dyn Mark>, Error> {
        let shared = self.0.clone();
        Ok(Box::new(blocking(move || LocalMark::begin(&shared)).await?))
    }
}
