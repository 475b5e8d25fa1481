//! A position in a content map that moves forward, reading nodes as it goes.

use std::sync::Arc;

use super::tree::{Entry, Link, List, Sub};
use super::{Content, Piece, node};
use crate::engine::Extents;
use crate::extent::{Error, ExtentRef};

/// Reads a node which must hold entries of `level` that stand for `len` bytes.
pub(crate) async fn load(
    extents: &dyn Extents,
    node: &ExtentRef,
    level: u8,
    len: u64,
) -> Result<List, Error> {
    let payload = extents.read(node, 0..node.length).await?;
    node::decode_expected(&payload, node, level, len)
}

/// A position before an entry of a map, or at its end.
pub(crate) struct Cursor {
    extents: Arc<dyn Extents>,
    /// Innermost last. No list is exhausted.
    stack: Vec<Place>,
    at: u64,
}

struct Place {
    level: u8,
    list: List,
    next: usize,
}

impl Cursor {
    pub(crate) fn new(extents: &Arc<dyn Extents>, content: &Content) -> Self {
        let tree = content.tree();
        let tail = match content.tail() {
            tail if tail.is_empty() => vec![],
            tail => vec![Entry::Piece(Piece::Inline(tail.clone()))],
        };
        let stack = [
            Place { level: 0, list: tail.into(), next: 0 },
            Place { level: tree.level, list: tree.list, next: 0 },
        ];
        let stack = stack.into_iter().filter(|place| !place.list.is_empty()).collect();
        Self { extents: extents.clone(), stack, at: 0 }
    }

    pub(crate) fn extents(&self) -> &Arc<dyn Extents> {
        &self.extents
    }

    /// Where the current entry starts.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The current entry and its level; `None` at the end.
    pub(crate) fn entry(&self) -> Option<(u8, &Entry)> {
        let place = self.stack.last()?;
        Some((place.level, &place.list[place.next]))
    }

    /// Moves behind the current entry.
    pub(crate) fn skip(&mut self) {
        let Some((_, entry)) = self.entry() else { return };
        self.at += entry.len();
        while let Some(place) = self.stack.last_mut() {
            place.next += 1;
            if place.next < place.list.len() {
                return;
            }
            self.stack.pop();
        }
    }

    /// Moves to the first entry of the current one, if that is a subtree.
    pub(crate) async fn descend(&mut self) -> Result<(), Error> {
        if let Some((level, Entry::Sub(Sub { len, link }))) = self.entry() {
            let list = match link {
                Link::Fresh(list) => list.clone(),
                Link::Stored(node) => load(&*self.extents, node, level - 1, *len).await?,
            };
            // A stored list stands for `len` > 0 bytes, so it is not empty.
            self.stack.push(Place { level: level - 1, list, next: 0 });
        }
        Ok(())
    }

    /// The current piece; what stands before it in the map has been descended into. `None` at the end.
    pub(crate) async fn piece(&mut self) -> Result<Option<Piece>, Error> {
        loop {
            match self.entry() {
                None => return Ok(None),
                Some((_, Entry::Piece(piece))) => return Ok(Some(piece.clone())),
                Some((_, Entry::Sub(_))) => self.descend().await?,
            }
        }
    }

    /// Moves forward to the piece that contains `offset`, reading no node that lies wholly before it.
    pub(crate) async fn seek(&mut self, offset: u64) -> Result<(), Error> {
        while let Some((_, entry)) = self.entry() {
            if self.at + entry.len() <= offset {
                self.skip();
            } else if let Entry::Sub(_) = entry {
                self.descend().await?;
            } else {
                break;
            }
        }
        Ok(())
    }
}
