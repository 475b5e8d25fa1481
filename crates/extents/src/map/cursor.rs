//! A position in a content map that moves forward, reading nodes as it goes.

use std::sync::Arc;

use super::tree::{Expected, Link, List, MapEntry};
use super::{Content, Piece, node};
use crate::engine::Extents;
use crate::extent::{Error, ExtentRef};

/// Reads a node and checks that it matches what its parent recorded.
pub(crate) async fn load(extents: &dyn Extents, node: &ExtentRef, expected: Expected) -> Result<List, Error> {
    let payload = extents.read(node, 0..node.length).await?;
    node::decode_expected(&payload, node, expected)
}

/// A position before an entry of a map, or at its end.
pub(crate) struct Cursor {
    extents: Arc<dyn Extents>,
    /// Innermost list last. The innermost list is not exhausted; in each other list, `next` is where to
    /// continue after it.
    stack: Vec<OpenNode>,
    offset: u64,
}

struct OpenNode {
    level: u8,
    list: List,
    next: usize,
}

impl Cursor {
    pub(crate) fn new(extents: &Arc<dyn Extents>, content: &Content) -> Self {
        let tree = content.tree();
        let tail = match content.tail() {
            tail if tail.is_empty() => vec![],
            tail => vec![MapEntry::Piece(Piece::Inline(tail.clone()))],
        };
        let stack = [
            OpenNode { level: 0, list: tail.into(), next: 0 },
            OpenNode { level: tree.level, list: tree.list, next: 0 },
        ];
        let stack = stack.into_iter().filter(|node| !node.list.is_empty()).collect();
        Self { extents: extents.clone(), stack, offset: 0 }
    }

    pub(crate) fn extents(&self) -> &Arc<dyn Extents> {
        &self.extents
    }

    /// Returns the offset of the current entry.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the current entry and its level, or `None` at the end.
    pub(crate) fn entry(&self) -> Option<(u8, &MapEntry)> {
        let node = self.stack.last()?;
        Some((node.level, &node.list[node.next]))
    }

    /// Moves past the current entry.
    pub(crate) fn skip(&mut self) {
        let Some((_, entry)) = self.entry() else { return };
        self.offset += entry.len();
        if let Some(node) = self.stack.last_mut() {
            node.next += 1;
        }
        while self.stack.pop_if(|node| node.next == node.list.len()).is_some() {}
    }

    /// Moves to the first entry of the current entry if that is a subtree.
    pub(crate) async fn descend(&mut self) -> Result<(), Error> {
        if let Some((level, MapEntry::Subtree(sub))) = self.entry() {
            let expected = sub.expected(level);
            let list = match &sub.link {
                Link::Fresh(list) => list.clone(),
                Link::Stored(node) => load(&*self.extents, node, expected).await?,
            };
            if let Some(node) = self.stack.last_mut() {
                node.next += 1;
            }
            // An entry stands for more than 0 bytes, so the node is not empty.
            self.stack.push(OpenNode { level: expected.level, list, next: 0 });
        }
        Ok(())
    }

    /// Moves forward to the entry that contains `offset`, without descending.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        while let Some((_, entry)) = self.entry()
            && self.offset + entry.len() <= offset
        {
            self.skip();
        }
    }

    /// Moves forward to the piece that contains `offset` and returns it. Reads no node that lies wholly
    /// before it. Returns `None` at the end.
    pub(crate) async fn piece_at(&mut self, offset: u64) -> Result<Option<Piece>, Error> {
        loop {
            self.skip_to(offset);
            match self.entry() {
                None => return Ok(None),
                Some((_, MapEntry::Piece(piece))) => return Ok(Some(piece.clone())),
                Some((_, MapEntry::Subtree(_))) => self.descend().await?,
            }
        }
    }

    /// Moves forward to `offset`. Returns whether it is allocated, and an offset up to which that holds.
    /// Reads no node that is fully allocated or fully unallocated. Returns `None` at the end.
    pub(crate) async fn run_at(&mut self, offset: u64) -> Result<Option<(u64, bool)>, Error> {
        loop {
            self.skip_to(offset);
            let Some((_, entry)) = self.entry() else { return Ok(None) };
            if let Some(allocated) = entry.is_allocated() {
                return Ok(Some((self.offset + entry.len(), allocated)));
            }
            self.descend().await?;
        }
    }
}
