//! Freeing blocks: what a mark did not note and what lies below where it began is punched out.
//!
//! Nothing is remembered between two sweeps. What is free is a hole; a segment that takes no more than what lives in it
//! has nothing to free, and otherwise punching a hole twice does no harm. Torn frames and remains of a crash are freed
//! like everything else that nobody refers to, without being looked at.
//!
//! All of that in small steps. A file system may take its time for what it frees, and lets those wait meanwhile who want
//! something made durable: one that tells the disk of it at once takes 40 ms for a segment.

use std::fs::File;
use std::io;
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

/// Bytes, and holes, that are freed in one step.
const STEP_BYTES: u64 = 8 << 20;
const STEP_HOLES: usize = 256;

/// A mark over segment files.
pub(crate) struct LocalMark {
    shared: Arc<Shared>,
    live: Live,
    /// Everything from here on was appended after the mark began, and stays.
    horizon: ExtentId,
    /// Everything below this stays.
    kept_below: ExtentId,
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
            kept_below: ExtentId::from_raw(0),
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

    fn horizon(&self) -> ExtentId {
        self.horizon
    }

    fn keep_below(&mut self, id: ExtentId) {
        self.kept_below = self.kept_below.max(id);
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
            let blocks = self.live.remove(segment).unwrap_or_default();
            if segment < self.kept_below.segment() {
                continue;
            }
            let one = self.free_segment(segment, blocks, pace).await?;
            freed.bytes += one.bytes;
            freed.segments += one.segments;
            pace.rest().await;
        }
        self.give_back_room(pace).await?;
        self.settle(freed.live_bytes);
        Ok(freed)
    }
}

impl LocalMark {
    /// With less on disk, less is to be set aside.
    async fn give_back_room(&self, pace: Pace) -> Result<(), Error> {
        loop {
            let shared = self.shared.clone();
            if !blocking(move || shared.give_back_room(STEP_BYTES)).await? {
                return Ok(());
            }
            pace.rest().await;
        }
    }

    /// Frees what is dead of a segment, up to the horizon.
    async fn free_segment(&self, segment: u64, live: Blocks, pace: Pace) -> Result<Freed, Error> {
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
            // Nobody appends here any more: the end can go as a whole, what was set aside and never written included.
            for length in lengths(length, u64::from(end) * BLOCK) {
                let file = file.clone();
                blocking(move || Ok(ftruncate(&*file, length)?)).await?;
                pace.rest().await;
            }
        }
        if closed && end == 1 && segment < self.shared.directory.highest() {
            // The highest stays, so that its number is not used again.
            let shared = self.shared.clone();
            blocking(move || Ok(shared.directory.remove(segment)?)).await?;
            return Ok(Freed { bytes: before, segments: 1, ..Freed::default() });
        }
        let allocated = disk::allocated(&file)?;
        if !closed || allocated > (live.count() + 1) * BLOCK + SLACK {
            let mut holes = live.dead(first..end).flat_map(pieces).peekable();
            while holes.peek().is_some() {
                let (step, file) = (step(&mut holes), file.clone());
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

/// The lengths that a file has on its way to a lesser one.
fn lengths(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let mut length = from;
    std::iter::from_fn(move || {
        length = (length > to).then(|| length.saturating_sub(STEP_BYTES).max(to))?;
        Some(length)
    })
}

/// A run of blocks in pieces of bytes that are no more than a step.
fn pieces(run: Range<u32>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (u64::from(run.start) * BLOCK, u64::from(run.end) * BLOCK);
    (start..end).step_by(STEP_BYTES as usize).map(move |at| at..end.min(at + STEP_BYTES))
}

/// The next few holes.
fn step(holes: &mut impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
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

/// Punches holes, where the file system has any.
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
    fn a_file_is_cut_in_steps_to_where_it_shall_end() {
        let cut = |from, to| lengths(from, to).collect::<Vec<_>>();
        assert_eq!(cut(5, 5), []);
        assert_eq!(cut(4, 5), []);
        assert_eq!(cut(BLOCK * 2, BLOCK), [BLOCK]);
        assert_eq!(cut(2 * STEP_BYTES + BLOCK, BLOCK), [STEP_BYTES + BLOCK, BLOCK]);
        assert_eq!(cut(2 * STEP_BYTES, BLOCK), [STEP_BYTES, BLOCK]);
    }

    #[test]
    fn holes_are_punched_in_steps_and_none_is_left_out() {
        let blocks = |bytes: u64| (bytes / BLOCK) as u32;
        let runs = [1..2, 5..5 + blocks(STEP_BYTES) + 1, 9_000..9_001];
        let mut holes = runs.iter().cloned().flat_map(pieces).peekable();
        let mut steps = vec![];
        while holes.peek().is_some() {
            steps.push(step(&mut holes));
        }
        assert!(
            steps
                .iter()
                .all(|step| step.iter().map(|hole| hole.end - hole.start).sum::<u64>() < 2 * STEP_BYTES)
        );
        let bytes: u64 = steps.iter().flatten().map(|hole| hole.end - hole.start).sum();
        assert_eq!(bytes, runs.iter().map(|run| u64::from(run.end - run.start) * BLOCK).sum::<u64>());
        let mut many = (0..600).map(|i| i * 2 * BLOCK..(i * 2 + 1) * BLOCK);
        assert_eq!([step(&mut many).len(), step(&mut many).len(), step(&mut many).len()], [256, 256, 88]);
    }
}
