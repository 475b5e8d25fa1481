//! Reading and writing open files, and what else changes their content.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::ByteRange;
use lazuli_extents::{Content, Edit, Piece, Pieces, Ranges, Writer};

use super::writeback::{FileTurn, within};
use super::{Failure, MAX_LENGTH};
use crate::FileService;
use crate::content::ContentEdit;
use crate::opens::OpenId;
use crate::opens::newest::Moment;
use crate::opens::overlay::Segment;

/// Bytes of an extent that are read at once.
const STEP: u32 = 256 << 10;
/// What is not there reads as these.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl FileService {
    /// Bytes of a file, fewer at its end; none past it. Refused if another has locked some of them.
    pub async fn read_at(&self, id: OpenId, range: Range<u64>) -> Result<Vec<Bytes>, Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::OutOfBounds)?;
        let touched = ByteRange { offset: range.start, length };
        // Before what is stored is looked at.
        let pin = self.extents.pin();
        let mut stored = None;
        let (segments, content) = loop {
            let found = self.opens.with_open(id, |state| {
                if !state.locks().admits_read(Some(id.number), touched) {
                    return Err(Failure::Locked);
                }
                let node = state.newest.node().or(stored.as_ref()).cloned();
                Ok(node.map(|node| (state.newest.segments(&node, range.clone()), node)))
            })??;
            match found {
                Some((segments, node)) => {
                    let file = node.file.as_ref().ok_or(Failure::IsDirectory)?;
                    break (segments, file.content.clone());
                }
                None => stored = Some(self.load(id.file).await?),
            }
        };
        let _held = pin.hold([&content]);
        let mut bytes = vec![];
        for segment in segments {
            match segment {
                Segment::Written(written) => bytes.push(written),
                Segment::Below(range) => self.read_content(&content, range, &mut bytes).await?,
            }
        }
        Ok(bytes)
    }

    /// Bytes of stored content, and zeros behind it.
    async fn read_content(
        &self,
        content: &Content,
        range: Range<u64>,
        bytes: &mut Vec<Bytes>,
    ) -> Result<(), Failure> {
        let mut pieces = Pieces::new(&self.extents, content, range.clone());
        let mut at = range.start;
        while let Some((start, piece)) = pieces.next().await? {
            at = start + piece.len();
            match piece {
                Piece::Hole(length) | Piece::Cleared(length) => zeros(length, bytes),
                Piece::Inline(inline) => bytes.push(inline),
                Piece::Data { extent, offset, len } => {
                    for part in steps(offset..offset + len) {
                        bytes.push(self.extents.read(&extent, part).await?);
                    }
                }
            }
        }
        zeros(range.end - at, bytes);
        Ok(())
    }

    /// Writes. Durable only if `through`; visible to all at once.
    pub async fn write_at(
        &self,
        id: OpenId,
        offset: u64,
        bytes: Bytes,
        through: bool,
    ) -> Result<(), Failure> {
        self.enter(id, offset, bytes).await?;
        if through { self.flush(id).await } else { Ok(()) }
    }

    /// Makes durable what was written.
    pub async fn flush(&self, id: OpenId) -> Result<(), Failure> {
        let (failed, is_clean) =
            self.opens.with_open(id, |state| (state.newest.failed.take(), state.newest.is_clean()))?;
        if !is_clean {
            self.flush_file(id.file, Moment::Asked).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sets where a file ends.
    pub async fn set_length(&self, id: OpenId, length: u64) -> Result<(), Failure> {
        if length > MAX_LENGTH {
            return Err(Failure::OutOfBounds);
        }
        // Locks are on bytes, and where a file ends is not one.
        let nothing = ByteRange { offset: 0, length: 0 };
        let (turn, node) = self.turn_to_write(id, nothing, length).await?;
        let content = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        self.edit_content(&turn, id, &content, ContentEdit::Resize(length)).await?;
        self.dated(&turn);
        Ok(())
    }

    /// Sets bytes aside; a file that is longer ends there.
    pub async fn set_allocation(&self, id: OpenId, bytes: u64) -> Result<(), Failure> {
        if bytes > MAX_LENGTH {
            return Err(Failure::Full);
        }
        let info = self.info(id).await?;
        self.opens.with_open(id, |state| {
            state.newest.allocation = bytes;
            state.contend(id.number);
        })?;
        if bytes < info.length { self.set_length(id, bytes).await } else { Ok(()) }
    }

    /// Makes a range zeros, and free. The file does not grow.
    pub async fn zero(&self, id: OpenId, range: Range<u64>) -> Result<(), Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::Invalid)?;
        let touched = ByteRange { offset: range.start, length };
        let (turn, node) = self.turn_to_write(id, touched, 0).await?;
        let content = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        let range = within(&range, content.len());
        if range.start < range.end {
            self.edit_content(&turn, id, &content, ContentEdit::Clear(range)).await?;
        }
        Ok(())
    }

    /// The first ranges that hold bytes, within a range: at most so many.
    pub async fn allocated_ranges(
        &self,
        id: OpenId,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Range<u64>>, Failure> {
        let pin = self.extents.pin();
        let content = self.spilled(id).await?;
        let _held = pin.hold([&content]);
        let mut ranges = Ranges::new(&self.extents, &content, within(&range, content.len()));
        let mut found = vec![];
        while found.len() < limit
            && let Some(range) = ranges.next().await?
        {
            found.push(range);
        }
        Ok(found)
    }

    /// Copies bytes from one open file to another. Content is shared where it can be.
    pub async fn copy_range(
        &self,
        from: OpenId,
        range: Range<u64>,
        to: OpenId,
        offset: u64,
    ) -> Result<(), Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::Invalid)?;
        let end = offset.checked_add(length).filter(|end| *end <= MAX_LENGTH).ok_or(Failure::OutOfBounds)?;
        let touched = ByteRange { offset: range.start, length };
        let admits =
            |state: &mut crate::opens::FileState| state.locks().admits_read(Some(from.number), touched);
        if !self.opens.with_open(from, admits)? {
            return Err(Failure::Locked);
        }
        let pin = self.extents.pin();
        let source = self.spilled(from).await?;
        if range.end > source.len() {
            return Err(Failure::OutOfBounds);
        }
        let held = pin.hold([&source]);
        let (turn, node) = self.turn_to_write(to, ByteRange { offset, length }, end).await?;
        let target = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        let writer = self.writer_of(&turn);
        writer.hold(self.extents.pin(), [&source, &target]);
        drop(held);
        let mut part = Edit::new(&self.extents, &writer, &source);
        part.slice(range).await?;
        let part = part.finish().await?;
        let mut edit = Edit::new(&self.extents, &writer, &target);
        edit.write(offset, &part).await?;
        let content = edit.finish().await?;
        self.opens.with(turn.file, |state| {
            state.newest.replace(content);
            // Once more: whoever came after the beginning may have read what was there.
            state.contend(to.number);
        });
        Ok(())
    }

    /// The content of an open file with everything that was written.
    async fn spilled(&self, id: OpenId) -> Result<Content, Failure> {
        if !self.opens.is_open(id) {
            return Err(Failure::Closed);
        }
        let turn = self.turn(id.file).await;
        let stored = self.load_in_turn(&turn).await?;
        self.spill(&turn).await?;
        let newest = self.opens.with(id.file, |state| state.newest.node().cloned());
        let node = newest.unwrap_or(stored);
        node.file.as_ref().map(|file| file.content.clone()).ok_or(Failure::IsDirectory)
    }

    /// Changes content ahead of the row, by an open.
    async fn edit_content(
        &self,
        turn: &FileTurn,
        id: OpenId,
        content: &Content,
        edit: ContentEdit,
    ) -> Result<(), Failure> {
        let writer = self.writer_of(turn);
        writer.hold(self.extents.pin(), [content]);
        let content = self.changed(&writer, content, edit).await?;
        self.opens.with(turn.file, |state| {
            state.newest.replace(content);
            // Once more: whoever came after the beginning may have read what was there.
            state.contend(id.number);
            // What it does not need any more is free for others.
            state.newest.repromise(|more| self.usages.promise_again(turn.file.space, more));
        });
        Ok(())
    }

    /// Sets the time of the last write, at once.
    fn dated(&self, turn: &FileTurn) {
        let now = self.store.now();
        self.opens.with(turn.file, |state| state.newest.stamp(now));
    }

    fn writer_of(&self, turn: &FileTurn) -> Writer {
        self.opens.with(turn.file, |state| state.newest.writer(|| self.extents.writer()))
    }
}

/// A part of an extent in the steps in which it is read: what is verified of each is still close to the processor then, and
/// none is verified twice.
fn steps(part: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut from = part.start;
    std::iter::from_fn(move || {
        let to = (from / STEP + 1).saturating_mul(STEP).min(part.end);
        let step = from..to;
        from = to;
        (step.start < step.end).then_some(step)
    })
}

/// So many zeros.
fn zeros(length: u64, bytes: &mut Vec<Bytes>) {
    let mut left = length;
    while left > 0 {
        let step = left.min(ZEROS.len() as u64);
        bytes.push(Bytes::from_static(&ZEROS[..step as usize]));
        left -= step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_extent_is_read_in_steps_that_end_where_checksums_do() {
        let read = |part| steps(part).collect::<Vec<_>>();
        assert_eq!(read(5..5), []);
        assert_eq!(read(5..10).first(), Some(&(5..10)));
        assert_eq!(read(STEP - 1..2 * STEP + 1), [STEP - 1..STEP, STEP..2 * STEP, 2 * STEP..2 * STEP + 1]);
        assert_eq!(read(0..8 << 20).len(), 32);
    }
}
