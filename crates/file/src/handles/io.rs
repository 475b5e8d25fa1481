//! Reading, writing and otherwise changing the content of open files.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::ByteRange;
use lazuli_extents::{Content, Edit, Piece, Pieces, Ranges, Writer};

use crate::FileService;
use crate::failure::Failure;
use crate::opens::OpenId;
use crate::opens::overlay::Segment;
use crate::opens::write_buffer::FlushReason;
use crate::tree::content::ContentEdit;
use crate::tree::rules::MAX_FILE_LENGTH;
use crate::write_back::FileLock;

/// Number of bytes read from an extent at once.
const STEP: u32 = 256 << 10;
/// Zeros for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl FileService {
    /// Reads bytes of a file: fewer at its end, none past it. Fails if another open has locked some of them.
    pub async fn read_at(&self, id: OpenId, range: Range<u64>) -> Result<Vec<Bytes>, Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::OutOfBounds)?;
        let touched = ByteRange { offset: range.start, length };
        // Pin before the content is known.
        let pin = self.extents.pin();
        let mut stored = None;
        let (segments, content) = loop {
            let found = self.opens.with_open(id, |state| {
                if !state.locks().admits_read(Some(id.number), touched) {
                    return Err(Failure::Locked);
                }
                let node = state.buffer.node().or(stored.as_ref()).cloned();
                Ok(node.map(|node| (state.buffer.segments(&node, range.clone()), node)))
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

    /// Reads stored content, and zeros past its end.
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

    /// Writes bytes, which are visible to all readers at once. With `through` they are durable on return.
    pub async fn write_at(
        &self,
        id: OpenId,
        offset: u64,
        bytes: Bytes,
        through: bool,
    ) -> Result<(), Failure> {
        self.buffer_write(id, offset, bytes).await?;
        if through { self.flush(id).await } else { Ok(()) }
    }

    /// Makes buffered writes durable.
    pub async fn flush(&self, id: OpenId) -> Result<(), Failure> {
        let (failed, is_clean) =
            self.opens.with_open(id, |state| (state.buffer.failed.take(), state.buffer.is_clean()))?;
        if !is_clean {
            self.flush_file(id.file, FlushReason::Requested).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Sets the length of a file.
    pub async fn set_length(&self, id: OpenId, length: u64) -> Result<(), Failure> {
        if length > MAX_FILE_LENGTH {
            return Err(Failure::OutOfBounds);
        }
        // Byte-range locks do not protect the end of a file.
        let nothing = ByteRange { offset: 0, length: 0 };
        let (lock, node) = self.lock_to_write(id, nothing, length).await?;
        let content = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        self.edit_content(&lock, id, &content, ContentEdit::Resize(length)).await?;
        let now = self.store.now();
        self.opens.with(lock.file, |state| state.buffer.stamp(now));
        Ok(())
    }

    /// Sets the allocation size. Truncates a longer file.
    pub async fn set_allocation(&self, id: OpenId, bytes: u64) -> Result<(), Failure> {
        if bytes > MAX_FILE_LENGTH {
            return Err(Failure::Full);
        }
        let info = self.info(id).await?;
        self.opens.with_open(id, |state| {
            state.buffer.allocation = bytes;
            state.break_other_caches(id.number);
        })?;
        if bytes < info.length { self.set_length(id, bytes).await } else { Ok(()) }
    }

    /// Clears a range and frees its space. Does not extend the file.
    pub async fn zero(&self, id: OpenId, range: Range<u64>) -> Result<(), Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::Invalid)?;
        let touched = ByteRange { offset: range.start, length };
        let (lock, node) = self.lock_to_write(id, touched, 0).await?;
        let content = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        let range = within(&range, content.len());
        if range.start < range.end {
            self.edit_content(&lock, id, &content, ContentEdit::Clear(range)).await?;
        }
        Ok(())
    }

    /// Returns the first `limit` ranges with data within a range.
    pub async fn allocated_ranges(
        &self,
        id: OpenId,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Range<u64>>, Failure> {
        let pin = self.extents.pin();
        let content = self.flushed_content(id).await?;
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

    /// Copies bytes between open files. Shares content where possible.
    pub async fn copy_range(
        &self,
        from: OpenId,
        range: Range<u64>,
        to: OpenId,
        offset: u64,
    ) -> Result<(), Failure> {
        let length = range.end.checked_sub(range.start).ok_or(Failure::Invalid)?;
        let end =
            offset.checked_add(length).filter(|end| *end <= MAX_FILE_LENGTH).ok_or(Failure::OutOfBounds)?;
        let touched = ByteRange { offset: range.start, length };
        let admits =
            |state: &mut crate::opens::FileState| state.locks().admits_read(Some(from.number), touched);
        if !self.opens.with_open(from, admits)? {
            return Err(Failure::Locked);
        }
        let pin = self.extents.pin();
        let source = self.flushed_content(from).await?;
        if range.end > source.len() {
            return Err(Failure::OutOfBounds);
        }
        let held = pin.hold([&source]);
        let (lock, node) = self.lock_to_write(to, ByteRange { offset, length }, end).await?;
        let target = node.file.as_ref().map(|file| file.content.clone()).unwrap_or_default();
        let writer = self.writer_of(&lock);
        writer.hold(self.extents.pin(), [&source, &target]);
        drop(held);
        let mut part = Edit::new(&self.extents, &writer, &source);
        part.slice(range).await?;
        let part = part.finish().await?;
        let mut edit = Edit::new(&self.extents, &writer, &target);
        edit.write(offset, &part).await?;
        let content = edit.finish().await?;
        self.opens.with(lock.file, |state| {
            state.buffer.replace(content);
            // Break caches again: an open that arrived meanwhile may have read old content.
            state.break_other_caches(to.number);
        });
        Ok(())
    }

    /// Returns the content of an open file with all buffered writes.
    async fn flushed_content(&self, id: OpenId) -> Result<Content, Failure> {
        if !self.opens.is_open(id) {
            return Err(Failure::Closed);
        }
        let lock = self.lock_file(id.file).await;
        let stored = self.load_locked(&lock).await?;
        self.spill(&lock).await?;
        let newest = self.opens.with(id.file, |state| state.buffer.node().cloned());
        let node = newest.unwrap_or(stored);
        node.file.as_ref().map(|file| file.content.clone()).ok_or(Failure::IsDirectory)
    }

    /// Changes content ahead of the row on behalf of an open.
    async fn edit_content(
        &self,
        lock: &FileLock,
        id: OpenId,
        content: &Content,
        edit: ContentEdit,
    ) -> Result<(), Failure> {
        let writer = self.writer_of(lock);
        writer.hold(self.extents.pin(), [content]);
        let content = self.build_content(&writer, content, edit).await?;
        self.opens.with(lock.file, |state| {
            state.buffer.replace(content);
            // Break caches again: an open that arrived meanwhile may have read old content.
            state.break_other_caches(id.number);
            // Release quota that is no longer needed.
            state.buffer.rebalance_quota(|more| self.usages.adjust_buffered(lock.file.space, more));
        });
        Ok(())
    }

    fn writer_of(&self, lock: &FileLock) -> Writer {
        self.opens.with(lock.file, |state| state.buffer.writer(|| self.extents.writer()))
    }
}

/// Splits a part of an extent into steps for reading. Each checksum is verified once, while its bytes are in
/// the processor's cache.
fn steps(part: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut from = part.start;
    std::iter::from_fn(move || {
        let to = (from / STEP + 1).saturating_mul(STEP).min(part.end);
        let step = from..to;
        from = to;
        (step.start < step.end).then_some(step)
    })
}

/// Returns the part of a range that lies within a length.
pub(super) fn within(range: &Range<u64>, length: u64) -> Range<u64> {
    let end = range.end.min(length);
    range.start.min(end)..end
}

/// Appends `length` zeros.
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
    fn extent_reads_end_at_checksum_boundaries() {
        let read = |part| steps(part).collect::<Vec<_>>();
        assert_eq!(read(5..5), []);
        assert_eq!(read(5..10).first(), Some(&(5..10)));
        assert_eq!(read(STEP - 1..2 * STEP + 1), [STEP - 1..STEP, STEP..2 * STEP, 2 * STEP..2 * STEP + 1]);
        assert_eq!(read(0..8 << 20).len(), 32);
    }
}
