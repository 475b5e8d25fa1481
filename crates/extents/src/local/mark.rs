//! Freeing blocks: punches out everything that a mark did not find in use and that was appended before the
//! mark began.
//!
//! No state is kept between two sweeps. Free blocks are holes. A segment that allocates no more than its live
//! blocks has nothing to free, and punching a hole twice is harmless. Torn frames and leftovers of a crash
//! are freed like other unreferenced blocks, without being inspected.
//!
//! Everything is freed in small steps. Freeing can be slow on some file systems and delays concurrent syncs:
//! with immediate discard, freeing one segment takes 40 ms.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use lazuli_concurrency::Pace;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;

use super::live::{LiveBlocks, SegmentBlocks};
use super::{LocalShared, blocking, disk};
use crate::engine::{Freed, Mark};
use crate::extent::{Error, ExtentId, ExtentRef};
use crate::pin::Appended;
use crate::segment::BLOCK;

/// Metadata bytes that a file system may count for a file. Punching less than this is not worthwhile.
const SLACK: u64 = 4 * BLOCK;

/// Maximum bytes and holes freed in one step.
const STEP_BYTES: u64 = 8 << 20;
const STEP_HOLES: usize = 256;

/// The mark of a sweep over segment files.
pub(crate) struct LocalMark {
    shared: Arc<LocalShared>,
    live: LiveBlocks,
    /// Extents from this id on were appended after the mark began. They are kept.
    horizon: ExtentId,
    /// Extents below this id are kept.
    kept_below: ExtentId,
    /// Extents that the writers at the beginning of the mark had appended before.
    appended: Vec<Appended>,
    appended_bytes: u64,
    released: u64,
}

impl LocalMark {
    /// Begins a mark. Blocks.
    pub(crate) fn begin(shared: &Arc<LocalShared>) -> Result<Self, Error> {
        shared.check_running()?;
        if shared.marking.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("another sweep is running"));
        }
        // First the horizon, then the writers: a writer with an extent below the horizon is in the list or
        // has committed.
        let (horizon, appended_bytes) = {
            let appender = shared.appender.lock();
            (appender.next(), shared.appended.load(Ordering::Acquire))
        };
        let appended = shared.pins.appended();
        let released = shared.accounting.lock().released;
        Ok(Self {
            shared: shared.clone(),
            live: LiveBlocks::default(),
            horizon,
            kept_below: ExtentId::from_raw(0),
            appended,
            appended_bytes,
            released,
        })
    }

    fn record_result(&self, live_bytes: u64) {
        let mut accounting = self.shared.accounting.lock();
        accounting.live_bytes = Some(live_bytes);
        accounting.appended_before_mark = self.appended_bytes;
        accounting.released -= self.released;
        accounting.full = false;
    }
}

impl Drop for LocalMark {
    fn drop(&mut self) {
        self.shared.marking.store(false, Ordering::Release);
    }
}

#[async_trait]
impl Mark for LocalMark {
    fn insert(&mut self, extent: &ExtentRef, range: Range<u32>) -> bool {
        self.live.insert(extent, range)
    }

    fn horizon(&self) -> ExtentId {
        self.horizon
    }

    fn keep_below(&mut self, id: ExtentId) {
        self.kept_below = self.kept_below.max(id);
    }

    async fn free(mut self: Box<Self>, pace: Pace) -> Result<Freed, Error> {
        // Not earlier: an inserted extent counts as walked, and these have not been walked.
        for Appended { id, length } in std::mem::take(&mut self.appended) {
            self.live.insert(&ExtentRef { id, length, crc: 0 }, 0..length);
        }
        let mut freed = Freed { live_bytes: self.live.count() * BLOCK, ..Freed::default() };
        for segment in self.shared.directory.segments() {
            if segment > self.horizon.segment() {
                break;
            }
            let blocks = self.live.remove(segment).unwrap_or_default();
            if segment < self.kept_below.segment() {
                continue;
            }
            let segment_freed = self.free_segment(segment, blocks, pace).await?;
            freed.bytes += segment_freed.bytes;
            freed.segments += segment_freed.segments;
            pace.rest().await;
        }
        self.shrink_preallocation(pace).await?;
        self.record_result(freed.live_bytes);
        if freed.bytes > 0 {
            self.shared.full.store(false, Ordering::Relaxed);
        }
        Ok(freed)
    }
}

impl LocalMark {
    /// Shrinks the preallocation: a smaller store preallocates less.
    async fn shrink_preallocation(&self, pace: Pace) -> Result<(), Error> {
        loop {
            let shared = self.shared.clone();
            if !blocking(move || shared.shrink_preallocation(STEP_BYTES)).await? {
                return Ok(());
            }
            pace.rest().await;
        }
    }

    /// Frees the dead blocks of a segment, up to the horizon.
    async fn free_segment(&self, segment: u64, live: SegmentBlocks, pace: Pace) -> Result<Freed, Error> {
        let shared = self.shared.clone();
        let Some((file, before, length)) = blocking(move || {
            let Some(file) = shared.directory.file(segment)? else { return Ok(None) };
            let (before, length) = (disk::allocated(&file)?, file.metadata()?.len());
            Ok(Some((file, before, length)))
        })
        .await?
        else {
            return Ok(Freed::default());
        };
        let closed = segment < self.horizon.segment();
        let kept = segment == self.kept_below.segment();
        let first = if kept { u32::from(self.kept_below.block()).max(1) } else { 1 };
        let end = if closed { live.end().max(first) } else { u32::from(self.horizon.block()) };
        if closed {
            // No more frames are appended here, so cut off the end, including unused preallocation.
            for length in truncation_lengths(length, u64::from(end) * BLOCK) {
                let file = file.clone();
                blocking(move || Ok(ftruncate(&*file, length)?)).await?;
                pace.rest().await;
            }
        }
        if closed && end == 1 && segment < self.shared.directory.highest() {
            // Keep the highest segment, so that its id is not used again.
            let shared = self.shared.clone();
            blocking(move || Ok(shared.directory.remove(segment)?)).await?;
            return Ok(Freed { bytes: before, segments: 1, ..Freed::default() });
        }
        let allocated = disk::allocated(&file)?;
        if !closed || allocated > (live.count() + 1) * BLOCK + SLACK {
            let mut holes = live.dead(first..end).flat_map(split_run).peekable();
            while holes.peek().is_some() {
                let (step, file) = (take_step(&mut holes), file.clone());
                blocking(move || Ok(punch(&file, step)?)).await?;
                pace.rest().await;
            }
        }
        let shared = self.shared.clone();
        blocking(move || {
            shared.directory.set_allocated(segment, &file)?;
            Ok(Freed { bytes: before.saturating_sub(disk::allocated(&file)?), ..Freed::default() })
        })
        .await
    }
}

/// Returns the successive lengths of a file that is truncated in steps.
fn truncation_lengths(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let mut length = from;
    std::iter::from_fn(move || {
        length = (length > to).then(|| length.saturating_sub(STEP_BYTES).max(to))?;
        Some(length)
    })
}

/// Splits a run of blocks into byte ranges of at most one step.
fn split_run(run: Range<u32>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (u64::from(run.start) * BLOCK, u64::from(run.end) * BLOCK);
    (start..end).step_by(STEP_BYTES as usize).map(move |at| at..end.min(at + STEP_BYTES))
}

/// Takes the holes of the next step.
fn take_step(holes: &mut impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let (mut step, mut bytes) = (vec![], 0);
    while step.len() < STEP_HOLES
        && bytes < STEP_BYTES
        && let Some(hole) = holes.next()
    {
        bytes += hole.end - hole.start;
        step.push(hole);
    }
    step
}

/// Punches holes. Does nothing if the file system does not support holes.
fn punch(file: &File, holes: Vec<Range<u64>>) -> io::Result<()> {
    for hole in holes {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(file, how, hole.start, hole.end - hole.start) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_truncated_in_steps() {
        let cut = |from, to| truncation_lengths(from, to).collect::<Vec<_>>();
        assert_eq!(cut(5, 5), []);
        assert_eq!(cut(4, 5), []);
        assert_eq!(cut(BLOCK * 2, BLOCK), [BLOCK]);
        assert_eq!(cut(2 * STEP_BYTES + BLOCK, BLOCK), [STEP_BYTES + BLOCK, BLOCK]);
        assert_eq!(cut(2 * STEP_BYTES, BLOCK), [STEP_BYTES, BLOCK]);
    }

    #[test]
    fn all_holes_are_punched_in_bounded_steps() {
        let blocks = |bytes: u64| (bytes / BLOCK) as u32;
        let runs = [1..2, 5..5 + blocks(STEP_BYTES) + 1, 9_000..9_001];
        let mut holes = runs.iter().cloned().flat_map(split_run).peekable();
        let mut steps = vec![];
        while holes.peek().is_some() {
            steps.push(take_step(&mut holes));
        }
        assert!(
            steps
                .iter()
                .all(|step| step.iter().map(|hole| hole.end - hole.start).sum::<u64>() < 2 * STEP_BYTES)
        );
        let bytes: u64 = steps.iter().flatten().map(|hole| hole.end - hole.start).sum();
        assert_eq!(bytes, runs.iter().map(|run| u64::from(run.end - run.start) * BLOCK).sum::<u64>());
        let mut many = (0..600).map(|i| i * 2 * BLOCK..(i * 2 + 1) * BLOCK);
        assert_eq!(
            [take_step(&mut many).len(), take_step(&mut many).len(), take_step(&mut many).len()],
            [256, 256, 88]
        );
    }
}
