//! Changes to content.
//!
//! An [`Edit`] starts from content, takes any number of changes, and stores the new nodes of the map once, in
//! [`finish`](Edit::finish). That makes nothing visible or durable: the caller syncs, then commits the new
//! content in its record. Small writes of one edit share an extent.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::cursor::load;
use super::tree::{Link, List, MAX_INLINE_PIECE, MapEntry, MissingNode, Nodes, PieceTree, Subtree};
use super::{Content, INLINE_BYTES, MAX_CONTENT_BYTES, Piece, ROOT_ENTRIES, node};
use crate::engine::Extents;
use crate::extent::{Error, MAX_EXTENT_BYTES};
use crate::pin::Writer;

/// Maximum inline bytes and entries that an edit gathers in memory before it stores them.
const MAX_PENDING_BYTES: usize = 4 << 20;
const MAX_PENDING_ENTRIES: usize = 16 << 10;
/// Maximum number of nodes that an edit reads or creates before it stores the new ones and forgets the
/// others. A node takes 5 KiB. New nodes are counted only every this many changes; each change creates a few
/// at most.
const MAX_NODES: usize = 1 << 10;

/// Content that is being changed.
///
/// The writer must hold ([`Writer::hold`]) or have appended the original content and all content added to it.
pub struct Edit {
    extents: Arc<dyn Extents>,
    writer: Writer,
    nodes: Nodes,
    tree: PieceTree,
    /// Inline bytes after the tree.
    tail: BytesMut,
    pending_bytes: usize,
    pending_entries: usize,
    changes: usize,
}

impl Edit {
    /// Begins with existing content.
    pub fn new(extents: &Arc<dyn Extents>, writer: &Writer, content: &Content) -> Self {
        Self {
            extents: extents.clone(),
            writer: writer.clone(),
            nodes: Nodes::default(),
            tree: content.tree(),
            tail: BytesMut::from(content.tail().as_ref()),
            pending_bytes: 0,
            pending_entries: 0,
            changes: 0,
        }
    }

    /// Returns the current length.
    pub fn len(&self) -> u64 {
        self.tree.len() + self.tail.len() as u64
    }

    /// Returns whether the current length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends other content.
    pub async fn append(&mut self, content: &Content) -> Result<(), Error> {
        self.append_part(content, 0..content.len()).await
    }

    /// Appends the part of other content that lies in the range.
    pub async fn append_part(&mut self, content: &Content, range: Range<u64>) -> Result<(), Error> {
        let (tree, end) = (content.tree(), range.end.min(content.len()));
        let start = range.start.min(end);
        self.check(self.len(), end - start)?;
        let in_tree = start.min(tree.len())..end.min(tree.len());
        if !in_tree.is_empty() {
            self.move_tail_to_tree().await?;
            let part = self.compute(|_, nodes| {
                let (before_end, _) = tree.split(nodes, in_tree.end)?;
                Ok(before_end.split(nodes, in_tree.start)?.1)
            });
            let part = part.await?;
            self.append_tree(&part).await?;
        }
        let [from, to] = [start, end].map(|at| at.saturating_sub(tree.len()) as usize);
        self.tail.extend_from_slice(&content.tail()[from..to]);
        if self.tail.len() > MAX_INLINE_PIECE {
            self.move_tail_to_tree().await?;
        }
        self.store_if_large().await
    }

    /// Replaces the bytes at `offset` with other content of any length. Writes past the end extend the
    /// content; a gap between the old end and `offset` becomes a hole.
    pub async fn write(&mut self, offset: u64, content: &Content) -> Result<(), Error> {
        let end = self.check(offset, content.len())?;
        if offset > self.len() {
            self.resize(offset).await?;
        }
        if offset == self.len() {
            return self.append(content).await;
        }
        let mut with = content.tree();
        for piece in inline_pieces(content.tail()) {
            let piece = PieceTree::leaf([piece]);
            with = self.compute(|_, nodes| with.join(nodes, &piece)).await?;
        }
        self.pending_bytes += content.tail().len();
        self.replace(offset..end, &with).await
    }

    /// Clears the part of the range that lies within the content: it becomes a hole.
    pub async fn clear(&mut self, range: Range<u64>) -> Result<(), Error> {
        let range = self.within(range);
        let hole = PieceTree::leaf([Piece::Cleared(range.end - range.start)]);
        self.replace(range, &hole).await
    }

    /// Truncates the content, or extends it with a hole.
    pub async fn resize(&mut self, length: u64) -> Result<(), Error> {
        self.check(length, 0)?;
        let (tree, now) = (self.tree.len(), self.len());
        if length > now {
            self.move_tail_to_tree().await?;
            self.append_tree(&PieceTree::leaf([Piece::Hole(length - now)])).await?;
        } else if length >= tree {
            self.tail.truncate((length - tree) as usize);
        } else {
            self.tail.clear();
            self.tree = self.compute(|tree, nodes| Ok(tree.split(nodes, length)?.0)).await?;
        }
        self.store_if_large().await
    }

    /// Keeps only the part of the range that lies within the content.
    pub async fn slice(&mut self, range: Range<u64>) -> Result<(), Error> {
        let range = self.within(range);
        self.resize(range.end).await?;
        if range.start >= self.tree.len() {
            let cut = range.start - self.tree.len();
            self.tail = self.tail.split_off(cut as usize);
            self.tree = PieceTree::default();
        } else {
            self.tree = self.compute(|tree, nodes| Ok(tree.split(nodes, range.start)?.1)).await?;
        }
        self.store_if_large().await
    }

    /// Stores the new nodes and returns the new content.
    pub async fn finish(mut self) -> Result<Content, Error> {
        while let Some(bytes) = last_inline(&self.tree.list)
            && bytes.len() + self.tail.len() <= INLINE_BYTES
        {
            let at = self.tree.len() - bytes.len() as u64;
            self.tree = self.compute(|tree, nodes| Ok(tree.split(nodes, at)?.0)).await?;
            let after = std::mem::replace(&mut self.tail, BytesMut::from(bytes.as_ref()));
            self.tail.extend_from_slice(&after);
        }
        if self.tail.len() > INLINE_BYTES {
            self.move_tail_to_tree().await?;
        }
        self.store_inline().await?;
        self.tree = self.compute(|tree, nodes| tree.fit_root(nodes, ROOT_ENTRIES)).await?;
        self.store_nodes().await?;
        Ok(Content::new(self.tree, self.tail.freeze()))
    }

    /// Returns where a change of `len` bytes at `offset` ends.
    fn check(&self, offset: u64, len: u64) -> Result<u64, Error> {
        offset.checked_add(len).filter(|end| *end <= MAX_CONTENT_BYTES).ok_or(Error::Size)
    }

    fn within(&self, range: Range<u64>) -> Range<u64> {
        let end = range.end.min(self.len());
        range.start.min(end)..end
    }

    async fn append_tree(&mut self, next: &PieceTree) -> Result<(), Error> {
        self.pending_entries += next.list.len();
        self.tree = self.compute(|tree, nodes| tree.join(nodes, next)).await?;
        Ok(())
    }

    async fn replace(&mut self, range: Range<u64>, with: &PieceTree) -> Result<(), Error> {
        if range.end > self.tree.len() {
            self.move_tail_to_tree().await?;
        }
        let range = self.within(range);
        self.pending_entries += with.list.len();
        self.tree = self.compute(|tree, nodes| tree.replace(nodes, range.clone(), with)).await?;
        self.store_if_large().await
    }

    /// Moves the inline tail into the tree.
    async fn move_tail_to_tree(&mut self) -> Result<(), Error> {
        let tail = self.tail.split().freeze();
        self.pending_bytes += tail.len();
        for piece in inline_pieces(&tail) {
            self.append_tree(&PieceTree::leaf([piece])).await?;
        }
        Ok(())
    }

    /// Runs a pure computation on the tree. Reads each node that it misses, and runs it again.
    async fn compute<T>(
        &mut self,
        f: impl Fn(&PieceTree, &Nodes) -> Result<T, MissingNode>,
    ) -> Result<T, Error> {
        loop {
            match f(&self.tree, &self.nodes) {
                Ok(result) => return Ok(result),
                Err(MissingNode { node, expected }) => {
                    let list = load(&*self.extents, &node, expected).await?;
                    self.nodes.insert(node, list);
                }
            }
        }
    }

    /// Stores pending bytes and nodes if they take much memory.
    async fn store_if_large(&mut self) -> Result<(), Error> {
        self.changes += 1;
        let is_large = self.pending_entries > MAX_PENDING_ENTRIES
            || self.nodes.len() > MAX_NODES
            || (self.changes.is_multiple_of(MAX_NODES) && count_fresh(&self.tree.list) > MAX_NODES);
        if is_large || self.pending_bytes > MAX_PENDING_BYTES {
            self.store_inline().await?;
        }
        if is_large {
            self.store_nodes().await?;
            self.nodes = Nodes::default();
        }
        Ok(())
    }

    /// Writes the inline bytes of the tree to extents.
    async fn store_inline(&mut self) -> Result<(), Error> {
        let mut inline = vec![];
        collect_inline(&self.tree.list, &mut inline);
        let mut spilled = Vec::with_capacity(inline.len());
        let mut rest = inline.as_slice();
        while !rest.is_empty() {
            let mut length = 0;
            let fits = |part: &&Bytes| {
                length += part.len();
                length <= MAX_EXTENT_BYTES
            };
            let (parts, later) = rest.split_at(rest.iter().take_while(fits).count());
            let extent = self.extents.append(&self.writer, parts.to_vec()).await?;
            let mut offset = 0;
            for part in parts {
                let len = part.len() as u32;
                spilled.push(Piece::Data { extent, offset, len });
                offset += len;
            }
            rest = later;
        }
        if !spilled.is_empty() {
            replace_inline(&mut self.tree.list, &mut spilled.into_iter());
        }
        self.pending_bytes = 0;
        Ok(())
    }

    /// Writes the fresh nodes of the tree to extents, children first.
    async fn store_nodes(&mut self) -> Result<(), Error> {
        let top = self.tree.level;
        for level in 1..=top {
            let mut fresh = vec![];
            fresh_nodes(&mut self.tree.list, top, level, &mut fresh);
            for sub in fresh {
                if let Link::Fresh(list) = &sub.link {
                    let payload = node::encode(level - 1, list);
                    sub.link = Link::Stored(self.extents.append(&self.writer, vec![payload]).await?);
                }
            }
        }
        self.pending_entries = 0;
        Ok(())
    }
}

fn inline_pieces(bytes: &Bytes) -> impl Iterator<Item = Piece> {
    const STEP: usize = 1 << 20;
    (0..bytes.len()).step_by(STEP).map(|at| Piece::Inline(bytes.slice(at..bytes.len().min(at + STEP))))
}

/// Returns the last piece if it is inline. Only fresh nodes have inline pieces.
fn last_inline(list: &[MapEntry]) -> Option<Bytes> {
    match list.last()? {
        MapEntry::Piece(Piece::Inline(bytes)) => Some(bytes.clone()),
        MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => last_inline(list),
        _ => None,
    }
}

fn collect_inline(list: &[MapEntry], out: &mut Vec<Bytes>) {
    for entry in list {
        match entry {
            MapEntry::Piece(Piece::Inline(bytes)) => out.push(bytes.clone()),
            MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => collect_inline(list, out),
            _ => {}
        }
    }
}

/// Replaces the inline pieces in the order in which `collect_inline` collected them.
fn replace_inline(list: &mut List, spilled: &mut impl Iterator<Item = Piece>) {
    for entry in Arc::make_mut(list) {
        match entry {
            MapEntry::Piece(piece @ Piece::Inline(_)) => {
                if let Some(data) = spilled.next() {
                    *piece = data;
                }
            }
            MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => replace_inline(list, spilled),
            _ => {}
        }
    }
}

/// Counts the fresh nodes below a list.
fn count_fresh(list: &[MapEntry]) -> usize {
    let inner = |entry: &MapEntry| match entry {
        MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => 1 + count_fresh(list),
        _ => 0,
    };
    list.iter().map(inner).sum()
}

/// Collects the fresh nodes whose parent entries are of level `want`, below a list of `level`.
fn fresh_nodes<'a>(list: &'a mut List, level: u8, want: u8, out: &mut Vec<&'a mut Subtree>) {
    for entry in Arc::make_mut(list) {
        let MapEntry::Subtree(sub) = entry else { continue };
        if level == want {
            out.push(sub);
        } else if let Link::Fresh(list) = &mut sub.link {
            fresh_nodes(list, level - 1, want, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::pattern;
    use crate::{LocalExtents, Options, read_all};

    #[tokio::test]
    async fn many_small_changes_keep_the_number_of_nodes_in_memory_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes: 64 << 20, grow_bytes: 1 << 20 };
        let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(directory.path(), options).unwrap());
        let writer = extents.writer();
        let byte = Content::extent(extents.append(&writer, vec![pattern(1, 1)]).await.unwrap());
        // Every other byte is a hole, so that no two pieces merge: 2^18 pieces, in more than 2000 leaves.
        let mut content = byte.clone();
        for round in 0..18 {
            let mut edit = Edit::new(&extents, &writer, &content);
            edit.resize(content.len() + u64::from(round == 0)).await.unwrap();
            if round > 0 {
                edit.append(&content).await.unwrap();
            }
            content = edit.finish().await.unwrap();
        }
        let length = content.len();
        assert_eq!(length, 1 << 18);
        // At first the content shares a few nodes. The first edit turns them into thousands, which the
        // second one reads.
        for expected in [0..16, MAX_NODES / 2..MAX_NODES + 1] {
            let mut edit = Edit::new(&extents, &writer, &content);
            let (mut read, mut made) = (0, 0);
            for (step, at) in (0..length).step_by(96).enumerate() {
                edit.write(at, &byte).await.unwrap();
                edit.clear(at + 1..at + 2).await.unwrap();
                read = read.max(edit.nodes.len());
                if step % 32 == 0 {
                    made = made.max(count_fresh(&edit.tree.list));
                }
            }
            assert!(expected.contains(&read) && made <= 2 * MAX_NODES, "{read} {made}");
            let edited = edit.finish().await.unwrap();
            let [before, after] =
                [&content, &edited].map(|content| read_all(&extents, content, 0..length, 1 << 20));
            assert!(before.await.unwrap() == after.await.unwrap());
            content = edited;
        }
    }
}
