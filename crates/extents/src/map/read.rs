//! Reads content: its bytes, its pieces, its allocated ranges.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::cursor::Cursor;
use super::{Content, Piece};
use crate::engine::Extents;
use crate::extent::Error;
use crate::pin::ContentHold;
use crate::segment::CHUNK;

/// Maximum number of bytes that a [`ContentReader`] returns at once. It holds at most twice as many in
/// memory.
const READ_BYTES: usize = 256 << 10;

static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; READ_BYTES]));

/// The pieces of a range of content, in order. The first and the last are cut to the range.
pub struct Pieces {
    cursor: Cursor,
    range: Range<u64>,
}

impl Pieces {
    /// Iterates over the part of the range that lies within the content.
    pub fn new(extents: &Arc<dyn Extents>, content: &Content, range: Range<u64>) -> Self {
        let end = range.end.min(content.len());
        Self { cursor: Cursor::new(extents, content), range: range.start.min(end)..end }
    }

    /// Returns the next piece and its offset, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<(u64, Piece)>, Error> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let Some(piece) = self.cursor.piece_at(self.range.start).await? else { return Ok(None) };
        let (at, start) = (self.cursor.offset(), self.range.start);
        let end = self.range.end.min(at + piece.len());
        self.range.start = end;
        Ok(Some((start, piece.part(start - at, end - at))))
    }
}

/// The allocated ranges of content, in order and as long as possible: everything outside of holes.
///
/// For paging, start a new `Ranges` where the last page ended.
pub struct Ranges {
    cursor: Cursor,
    range: Range<u64>,
}

impl Ranges {
    /// Iterates over the allocated ranges within a range.
    pub fn new(extents: &Arc<dyn Extents>, content: &Content, range: Range<u64>) -> Self {
        let end = range.end.min(content.len());
        Self { cursor: Cursor::new(extents, content), range: range.start.min(end)..end }
    }

    /// Returns the next range, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Range<u64>>, Error> {
        let mut found: Option<Range<u64>> = None;
        while self.range.start < self.range.end {
            let Some((to, allocated)) = self.cursor.run_at(self.range.start).await? else { break };
            let (from, to) = (self.range.start, to.min(self.range.end));
            match &mut found {
                Some(_) if !allocated => break,
                Some(range) => range.end = to,
                None if allocated => found = Some(from..to),
                None => {}
            }
            self.range.start = to;
        }
        Ok(found)
    }
}

/// Streams and verifies the bytes of a range of content. Reads one step ahead of its caller.
pub struct ContentReader {
    /// `None` while a step is being read or after the end.
    source: Option<PieceSource>,
    ahead: Option<JoinHandle<Step>>,
    failed: Option<Error>,
    _held: Option<ContentHold>,
}

struct PieceSource {
    pieces: Pieces,
    /// The rest of the current piece.
    piece: Option<Piece>,
}

type Step = (PieceSource, Result<Option<Bytes>, Error>);

impl ContentReader {
    /// Reads the part of the range that lies within the content. `held` must hold the content and is kept
    /// until the reader is dropped. Without it, the caller must hold the content for as long.
    pub fn new(
        extents: &Arc<dyn Extents>,
        content: &Content,
        range: Range<u64>,
        held: impl Into<Option<ContentHold>>,
    ) -> Self {
        let source = PieceSource { pieces: Pieces::new(extents, content, range), piece: None };
        Self { source: Some(source), ahead: None, failed: None, _held: held.into() }
    }

    /// Returns the next bytes, at most 256 KiB, or `None` at the end. Cancel-safe: a canceled call loses no
    /// bytes. An error is returned again by every later call, so that unreadable content never appears to end
    /// early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        if let Some(source) = self.source.take() {
            self.ahead = Some(tokio::spawn(source.step()));
        }
        let Some(step) = &mut self.ahead else { return Ok(None) };
        let joined = step.await;
        self.ahead = None;
        let result = joined.map_err(|e| Error::Io(e.to_string())).and_then(|(source, result)| {
            if let Ok(Some(_)) = &result
                && source.has_more()
            {
                self.ahead = Some(tokio::spawn(source.step()));
            }
            result
        });
        self.failed = result.as_ref().err().cloned();
        result
    }
}

impl Drop for ContentReader {
    fn drop(&mut self) {
        if let Some(step) = &self.ahead {
            step.abort();
        }
    }
}

impl PieceSource {
    fn has_more(&self) -> bool {
        self.piece.is_some() || !self.pieces.range.is_empty()
    }

    async fn step(mut self) -> Step {
        let result = self.read().await;
        (self, result)
    }

    async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        let piece = match self.piece.take() {
            Some(piece) => piece,
            None => match self.pieces.next().await? {
                Some((_, piece)) => piece,
                None => return Ok(None),
            },
        };
        let step = step_bytes(&piece);
        self.piece = (step < piece.len()).then(|| piece.part(step, piece.len()));
        match piece.part(0, step) {
            Piece::Hole(len) | Piece::Cleared(len) => Ok(Some(ZEROS.slice(..len as usize))),
            Piece::Inline(bytes) => Ok(Some(bytes)),
            Piece::Data { extent, offset, len } => {
                self.pieces.cursor.extents().read(&extent, offset..offset + len).await.map(Some)
            }
        }
    }
}

/// Returns how many bytes of a piece to read at once: at most [`READ_BYTES`], and up to the end of a chunk,
/// so that no checksum is computed twice.
fn step_bytes(piece: &Piece) -> u64 {
    let limit = match piece {
        Piece::Data { offset, .. } => READ_BYTES - *offset as usize % CHUNK,
        _ => READ_BYTES,
    };
    piece.len().min(limit as u64)
}

/// Reads a range of content into one buffer. Returns [`Error::Size`] if it is longer than `limit` bytes.
pub async fn read_all(
    extents: &Arc<dyn Extents>,
    content: &Content,
    range: Range<u64>,
    limit: usize,
) -> Result<Bytes, Error> {
    if range.end.min(content.len()).saturating_sub(range.start) > limit as u64 {
        return Err(Error::Size);
    }
    let mut reader = ContentReader::new(extents, content, range, None);
    let Some(first) = reader.next().await? else { return Ok(Bytes::new()) };
    let mut rest = vec![];
    while let Some(bytes) = reader.next().await? {
        if rest.is_empty() {
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&bytes);
    }
    Ok(if rest.is_empty() { first } else { rest.into() })
}
