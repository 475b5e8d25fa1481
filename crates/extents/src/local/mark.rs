//! Freeing blocks: what a mark did not note and what lies below where it began is punched out.
//!
//! Nothing is remembered between two sweeps. What is free is a hole; a segment that takes no more than what lives in it
//! has nothing to free, and otherwise punching a hole twice does no harm. Torn frames and remains of a crash are freed
//! like everything else that nobody refers to, without being looked at.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;

use super::live::{Blocks, Live};
use super::{Shared, blocking, disk};
use crate::engine::Mark;
use crate::extent::{Error, ExtentId, ExtentRef};
use crate::pin::Appended;
use crate::segment::BLOCK;
use crate::sweep::{Freed, Pace};

/// Bytes of its own that a file system may count for a file. Less is not worth punching.
const SLACK: u64 = 4 * BLOCK;

/// A mark over segment files.
pub(crate) struct LocalMark {
    shared: Arc<Shared>,
    live: Live,
    /// Everything from here on was appended after the mark began, and stays.
    horizon: ExtentId,
    /// What those who were writing then had appended before.
    appended: Vec<Appended>,
    appended_bytes: u64,
    released: u64,
}

impl LocalMark {
    /// Blocks.
    pub(crate) fn begin(shared: &Arc<Shared>) -> Result<Self, Error> {
        shared.check_running()?;
        if shared.marking.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("another sweep is at work"));
        }
        // First the horizon, then the writers: whoever has a place below the horizon is among them, or has committed.
        let (horizon, appended_bytes) = {
            let appender = shared.appender.lock();
            (appender.next(), shared.appended.load(Ordering::Acquire))
        };
        let appended = shared.pins.appended();
        let released = shared.accounts.lock().released;
        Ok(Self {
            shared: shared.clone(),
            live: Live::default(),
            horizon,
            appended,
            appended_bytes,
            released,
        })
    }

    fn settle(&self, live_bytes: u64) {
        let mut accounts = self.shared.accounts.lock();
        accounts.live = Some(live_bytes);
        accounts.appended_before_mark = self.appended_bytes;
        accounts.released -= self.released;
        accounts.full = false;
    }
}

impl Drop for LocalMark {
    fn drop(&mut self) {
        self.shared.marking.store(false, Ordering::Release);
    }
}

#[async_trait]
impl Mark for LocalMark {
    fn live(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool {
        self.live.insert(extent, range)
    }

    async fn free(mut self: Box<Self>, pace: Pace) -> Result<Freed, Error> {
        // Only now: an extent that was noted counts as walked, and these have not been.
        for Appended { id, length } in std::mem::take(&mut self.appended) {
            self.live.insert(&ExtentRef { id, length, crc: 0 }, 0..length);
        }
        let mut freed = Freed { live_bytes: self.live.count() * BLOCK, ..Freed::default() };
        for segment in self.shared.directory.segments() {
            if segment > self.horizon.segment() {
                break;
            }
            let (shared, horizon) = (self.shared.clone(), self.horizon);
            let blocks = self.live.remove(segment).unwrap_or_default();
            let one = blocking(move || free_segment(&shared, segment, &blocks, horizon)).await?;
            freed.bytes += one.bytes;
            freed.segments += one.segments;
            pace.rest().await;
        }
        self.settle(freed.live_bytes);
        Ok(freed)
    }
}

/// Frees what is dead of a segment, up to the horizon.
fn free_segment(shared: &Shared, segment: u64, live: &Blocks, horizon: ExtentId) -> Result<Freed, Error> {
    let Some(file) = shared.directory.file(segment)? else { return Ok(Freed::default()) };
    let before = disk::allocated(&file)?;
    let closed = segment < horizon.segment();
    if closed && live.end() == 0 && segment < shared.directory.highest() {
        // The highest stays, so that its number is not used again.
        shared.directory.remove(segment)?;
        return Ok(Freed { bytes: before, segments: 1, live_bytes: 0 });
    }
    let end = if closed {
        // Nobody appends here any more: the end can go as a whole, what was set aside and never written included.
        let end = live.end().max(1);
        if u64::from(end) * BLOCK < file.metadata()?.len() {
            ftruncate(&*file, u64::from(end) * BLOCK)?;
        }
        end
    } else {
        u32::from(horizon.block())
    };
    if !closed || disk::allocated(&file)? > (live.count() + 1) * BLOCK + SLACK {
        for run in live.dead(1..end) {
            let (offset, length) = (u64::from(run.start) * BLOCK, u64::from(run.end - run.start) * BLOCK);
            match fallocate(&*file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Err(e) => return Err(e.into()),
            }
        }
    }
    shared.directory.set_allocated(segment, &file)?;
    Ok(Freed { bytes: before.saturating_sub(disk::allocated(&file)?), ..Freed::default() })
}
