//! A position in a content map that moves forward, reading nodes as it goes.

use std::sync::Arc;

use super::tree::{Entry, Expected, Link, List};
use super::{Content, Piece, node};
use crate::engine::Extents;
use crate::extent::{Error, ExtentRef};

/// Reads a node of which it is known what it must hold.
pub(crate) async fn load(extents: &dyn Extents, node: &ExtentRef, expected: Expected) -> Result<List, Error> {
    let payload = extents.read(node, 0..node.length).await?;
    node::decode_expected(&payload, node, expected)
}

/// A position before an entry of a map, or at its end.
pub(crate) struct Cursor {
    extents: Arc<dyn Extents>,
    /// Innermost last. The innermost list is not exhausted; of the others, `next` is where to go on after it.
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
        if let Some(place) = self.stack.last_mut() {
            place.next += 1;
        }
        while self.stack.pop_if(|place| place.next == place.list.len()).is_some() {}
    }

    /// Moves to the first entry of the current one, if that is a subtree.
    pub(crate) async fn descend(&mut self) -> Result<(), Error> {
        if let Some((level, Entry::Sub(sub))) = self.entry() {
            let expected = sub.expected(level);
            let list = match &sub.link {
                Link::Fresh(list) => list.clone(),
                Link::Stored(node) => load(&*self.extents, node, expected).await?,
            };
            if let Some(place) = self.stack.last_mut() {
                place.next += 1;
            }
            // It stands for more than 0 bytes, so it is not empty.
            self.stack.push(Place { level: expected.level, list, next: 0 });
        }
        Ok(())
    }

    /// Moves forward to the entry that contains `offset`, as high up in the map as it is.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        while let Some((_, entry)) = self.entry()
            && self.at + entry.len() <= offset
        {
            self.skip();
        }
    }

    /// Moves forward to the piece that contains `offset` and returns it, reading no node that lies wholly before.
    /// `None` at the end.
    pub(crate) async fn piece_at(&mut self, offset: u64) -> Result<Option<Piece>, Error> {
        loop {
            self.skip_to(offset);
            match self.entry() {
                None => return Ok(None),
                Some((_, Entry::Piece(piece))) => return Ok(Some(piece.clone())),
                Some((_, Entry::Sub(_))) => self.descend().await?,
            }
        }
    }

    /// Moves forward to `offset` and tells whether it is allocated, and up to where that holds at least. Reads no node
    /// that is allocated as a whole, or not at all. `None` at the end.
    pub(crate) async fn run_at(&mut self, offset: u64) -> Result<Option<(u64, bool)>, Error> {
        loop {
            self.skip_to(offset);
            let Some((_, entry)) = self.entry() else { return Ok(None) };
            if let Some(allocated) = entry.is_allocated() {
                return Ok(Some((self.at + entry.len(), allocated)));
            }
            self.descend().await?;
        }
    }
}
