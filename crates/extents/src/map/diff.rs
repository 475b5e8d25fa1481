//! What differs between two versions of content.

use std::ops::Range;
use std::sync::Arc;

use super::cursor::Cursor;
use super::tree::Entry;
use super::{Content, Piece};
use crate::engine::Extents;
use crate::extent::Error;

/// A range that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The newer version has bytes there that were written since, even if they happen to be the same.
    Written(Range<u64>),
    /// The newer version has a hole there, or ends before it, where the older had bytes.
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
            match (old_entry, new_entry) {
                (Entry::Sub(a), Entry::Sub(b)) if old_start == new_start && a == b => {
                    return Ok((old_start + a.len, None));
                }
                (Entry::Piece(a), Entry::Piece(b)) => {
                    let to = (old_start + a.len()).min(new_start + b.len());
                    let part = |piece: &Piece, start: u64| piece.part(self.at - start, to - start);
                    return Ok((to, Kind::of(&part(a, old_start), &part(b, new_start))));
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
        side.cursor.seek(self.at).await?;
        let Some(piece) = side.cursor.piece().await? else { return Ok((self.end, None)) };
        let hole = matches!(piece, Piece::Hole(_));
        Ok((side.cursor.at() + piece.len(), (!hole).then_some(kind)))
    }
}

impl Side {
    /// The entry that contains an offset, its level and start; `None` behind the end.
    fn entry_at(&mut self, offset: u64) -> Option<(u8, u64, &Entry)> {
        while let Some((_, entry)) = self.cursor.entry()
            && self.cursor.at() + entry.len() <= offset
        {
            self.cursor.skip();
        }
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
    /// How two pieces of one length differ.
    fn of(older: &Piece, newer: &Piece) -> Option<Self> {
        match (older, newer) {
            (a, b) if a == b => None,
            (_, Piece::Hole(_)) => Some(Self::Cleared),
            _ => Some(Self::Written),
        }
    }

    fn change(self, range: Range<u64>) -> Change {
        match self {
            Self::Written => Change::Written(range),
            Self::Cleared => Change::Cleared(range),
        }
    }
}
