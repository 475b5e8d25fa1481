//! The differences between two versions of content.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::cursor::Cursor;
use super::tree::MapEntry;
use super::{Content, Piece};
use crate::engine::Extents;
use crate::extent::Error;

/// A changed range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The newer version has bytes in the range that were written since, possibly with the same values.
    Written(Range<u64>),
    /// The newer version has a hole in the range, or ends before it, where the older one had bytes; or the
    /// range had never been written to and was cleared since.
    Cleared(Range<u64>),
}

/// The changes between two versions, in order, each as long as possible. Shared subtrees are not read.
///
/// For paging, start a new `Diff` where the last page ended.
pub struct Diff {
    older: DiffSide,
    newer: DiffSide,
    /// Offset up to which both versions have been compared.
    at: u64,
    end: u64,
    /// A change that may continue.
    open: Option<Change>,
}

struct DiffSide {
    cursor: Cursor,
    length: u64,
}

impl Diff {
    /// Compares within a range. Bytes after the end of a version count as a hole.
    pub fn new(extents: &Arc<dyn Extents>, older: &Content, newer: &Content, range: Range<u64>) -> Self {
        let end = range.end.min(older.len().max(newer.len()));
        let side =
            |content: &Content| DiffSide { cursor: Cursor::new(extents, content), length: content.len() };
        Self { older: side(older), newer: side(newer), at: range.start, end, open: None }
    }

    /// Returns the next change, or `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        while self.at < self.end {
            let (to, kind) = self.step().await?;
            let to = to.min(self.end);
            let range = self.at..to;
            self.at = to;
            let done = match (&mut self.open, kind) {
                (None, kind) => {
                    self.open = kind.map(|kind| kind.change(range));
                    None
                }
                (Some(Change::Written(open)), Some(ChangeKind::Written))
                | (Some(Change::Cleared(open)), Some(ChangeKind::Cleared)) => {
                    open.end = to;
                    None
                }
                (open, kind) => std::mem::replace(open, kind.map(|kind| kind.change(range))),
            };
            if done.is_some() {
                return Ok(done);
            }
        }
        Ok(self.open.take())
    }

    /// Compares a run that begins at `at`. Returns where it ends and how it differs.
    async fn step(&mut self) -> Result<(u64, Option<ChangeKind>), Error> {
        loop {
            let (old, new) = (self.older.entry_at(self.at), self.newer.entry_at(self.at));
            let (Some(old), Some(new)) = (old, new) else { return self.step_past_an_end().await };
            let (old_level, old_start, old_entry) = old;
            let (new_level, new_start, new_entry) = new;
            let to = (old_start + old_entry.len()).min(new_start + new_entry.len());
            match (old_entry.is_allocated(), new_entry.is_allocated()) {
                (Some(false), Some(false)) => {
                    if let (MapEntry::Piece(old), MapEntry::Piece(new)) = (old_entry, new_entry) {
                        let is_cleared = matches!((old, new), (Piece::Hole(_), Piece::Cleared(_)));
                        return Ok((to, is_cleared.then_some(ChangeKind::Cleared)));
                    }
                }
                (Some(false), Some(true)) => return Ok((to, Some(ChangeKind::Written))),
                (Some(true), Some(false)) => return Ok((to, Some(ChangeKind::Cleared))),
                _ => {}
            }
            match (old_entry, new_entry) {
                (MapEntry::Subtree(a), MapEntry::Subtree(b)) if old_start == new_start && a == b => {
                    return Ok((to, None));
                }
                (MapEntry::Piece(a), MapEntry::Piece(b)) => {
                    let part = |piece: &Piece, start: u64| piece.part(self.at - start, to - start);
                    let (a, b) = (part(a, old_start), part(b, new_start));
                    let (len, equal) = compare(&**self.older.cursor.extents(), &a, &b).await?;
                    return Ok((self.at + len, (!equal).then_some(ChangeKind::Written)));
                }
                // Descend on the higher side. If both are at the same level, descend on both, so that they
                // stay aligned.
                _ => {
                    if old_level >= new_level {
                        self.older.cursor.descend().await?;
                    }
                    if new_level >= old_level {
                        self.newer.cursor.descend().await?;
                    }
                }
            }
        }
    }

    async fn step_past_an_end(&mut self) -> Result<(u64, Option<ChangeKind>), Error> {
        let (side, kind) = if self.at < self.newer.length {
            (&mut self.newer, ChangeKind::Written)
        } else {
            (&mut self.older, ChangeKind::Cleared)
        };
        let Some((to, allocated)) = side.cursor.run_at(self.at).await? else { return Ok((self.end, None)) };
        Ok((to, allocated.then_some(kind)))
    }
}

/// Compares two pieces of the same length that are not holes. Returns for how many bytes they are equal, or
/// different, from their beginning, and which of the two. Data is equal if it lies in the same place. Inline
/// bytes may have moved to an extent since, so they are compared by value.
async fn compare(extents: &dyn Extents, a: &Piece, b: &Piece) -> Result<(u64, bool), Error> {
    if a == b || !matches!((a, b), (Piece::Inline(_), _) | (_, Piece::Inline(_))) {
        return Ok((a.len(), a == b));
    }
    let (a, b) = (bytes_of(extents, a).await?, bytes_of(extents, b).await?);
    let equal = a.first() == b.first();
    let len = a.iter().zip(&b).take_while(|(a, b)| (a == b) == equal).count();
    Ok((len as u64, equal))
}

async fn bytes_of(extents: &dyn Extents, piece: &Piece) -> Result<Bytes, Error> {
    match piece {
        Piece::Inline(bytes) => Ok(bytes.clone()),
        Piece::Data { extent, offset, len } => extents.read(extent, *offset..offset + len).await,
        Piece::Hole(_) | Piece::Cleared(_) => Ok(Bytes::new()),
    }
}

impl DiffSide {
    /// Returns the entry that contains an offset, with its level and start. Returns `None` after the end.
    fn entry_at(&mut self, offset: u64) -> Option<(u8, u64, &MapEntry)> {
        self.cursor.skip_to(offset);
        let start = self.cursor.offset();
        self.cursor.entry().map(|(level, entry)| (level, start, entry))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeKind {
    Written,
    Cleared,
}

impl ChangeKind {
    fn change(self, range: Range<u64>) -> Change {
        match self {
            Self::Written => Change::Written(range),
            Self::Cleared => Change::Cleared(range),
        }
    }
}
