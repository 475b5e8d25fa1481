//! What differs between two versions of content.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::cursor::Cursor;
use super::tree::Entry;
use super::{Content, Piece};
use crate::engine::Extents;
use crate::extent::Error;

/// A range that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The newer version has bytes there that were written since, perhaps the same ones again.
    Written(Range<u64>),
    /// The newer version has a hole there, or ends before it, where the older had bytes; or nothing had been written
    /// there then, and was cleared since.
    Cleared(Range<u64>),
}

/// The changes between two versions, in order, each as long as possible. Subtrees that both share are not read.
///
/// To page, start again where the last page ended.
pub struct Diff {
    older: Side,
    newer: Side,
    /// How far both have been compared.
    at: u64,
    end: u64,
    /// A change that may go on.
    open: Option<Change>,
}

struct Side {
    cursor: Cursor,
    length: u64,
}

impl Diff {
    /// Compares within a range; what lies behind the end of a version counts as a hole.
    pub fn new(extents: &Arc<dyn Extents>, older: &Content, newer: &Content, range: Range<u64>) -> Self {
        let end = range.end.min(older.len().max(newer.len()));
        let side = |content: &Content| Side { cursor: Cursor::new(extents, content), length: content.len() };
        Self { older: side(older), newer: side(newer), at: range.start, end, open: None }
    }

    /// The next change.
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
                (Some(Change::Written(open)), Some(Kind::Written))
                | (Some(Change::Cleared(open)), Some(Kind::Cleared)) => {
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

    /// Compares a run from `at` on: where it ends, and how it differs.
    async fn step(&mut self) -> Result<(u64, Option<Kind>), Error> {
        loop {
            let (old, new) = (self.older.entry_at(self.at), self.newer.entry_at(self.at));
            let (Some(old), Some(new)) = (old, new) else { return self.step_past_an_end().await };
            let (old_level, old_start, old_entry) = old;
            let (new_level, new_start, new_entry) = new;
            let to = (old_start + old_entry.len()).min(new_start + new_entry.len());
            match (old_entry.is_allocated(), new_entry.is_allocated()) {
                (Some(false), Some(false)) => {
                    if let (Entry::Piece(old), Entry::Piece(new)) = (old_entry, new_entry) {
                        let is_cleared = matches!((old, new), (Piece::Hole(_), Piece::Cleared(_)));
                        return Ok((to, is_cleared.then_some(Kind::Cleared)));
                    }
                }
                (Some(false), Some(true)) => return Ok((to, Some(Kind::Written))),
                (Some(true), Some(false)) => return Ok((to, Some(Kind::Cleared))),
                _ => {}
            }
            match (old_entry, new_entry) {
                (Entry::Sub(a), Entry::Sub(b)) if old_start == new_start && a == b => return Ok((to, None)),
                (Entry::Piece(a), Entry::Piece(b)) => {
                    let part = |piece: &Piece, start: u64| piece.part(self.at - start, to - start);
                    let (a, b) = (part(a, old_start), part(b, new_start));
                    let (len, same) = compare(&**self.older.cursor.extents(), &a, &b).await?;
                    return Ok((self.at + len, (!same).then_some(Kind::Written)));
                }
                // Down on the higher side; on both sides where they are level, so that they stay so.
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

    async fn step_past_an_end(&mut self) -> Result<(u64, Option<Kind>), Error> {
        let (side, kind) = if self.at < self.newer.length {
            (&mut self.newer, Kind::Written)
        } else {
            (&mut self.older, Kind::Cleared)
        };
        let Some((to, allocated)) = side.cursor.run_at(self.at).await? else { return Ok((self.end, None)) };
        Ok((to, allocated.then_some(kind)))
    }
}

/// Compares two pieces of one length, neither of them a hole: whether they begin alike, and for how long that holds.
/// Data is the same if it lies in the same place. Bytes of the record may have got an extent of their own meanwhile,
/// so they are compared as bytes.
async fn compare(extents: &dyn Extents, a: &Piece, b: &Piece) -> Result<(u64, bool), Error> {
    if a == b || !matches!((a, b), (Piece::Inline(_), _) | (_, Piece::Inline(_))) {
        return Ok((a.len(), a == b));
    }
    let (a, b) = (bytes_of(extents, a).await?, bytes_of(extents, b).await?);
    let same = a.first() == b.first();
    let len = a.iter().zip(&b).take_while(|(a, b)| (a == b) == same).count();
    Ok((len as u64, same))
}

async fn bytes_of(extents: &dyn Extents, piece: &Piece) -> Result<Bytes, Error> {
    match piece {
        Piece::Inline(bytes) => Ok(bytes.clone()),
        Piece::Data { extent, offset, len } => extents.read(extent, *offset..offset + len).await,
        Piece::Hole(_) | Piece::Cleared(_) => Ok(Bytes::new()),
    }
}

impl Side {
    /// The entry that contains an offset, its level and start; `None` behind the end.
    fn entry_at(&mut self, offset: u64) -> Option<(u8, u64, &Entry)> {
        self.cursor.skip_to(offset);
        let start = self.cursor.at();
        self.cursor.entry().map(|(level, entry)| (level, start, entry))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Written,
    Cleared,
}

impl Kind {
    fn change(self, range: Range<u64>) -> Change {
        match self {
            Self::Written => Change::Written(range),
            Self::Cleared => Change::Cleared(range),
        }
    }
}
