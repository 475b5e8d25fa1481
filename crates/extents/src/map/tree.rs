//! The B-tree under a content map: joins and splits sequences of pieces.
//!
//! Pure: no I/O. An algorithm that meets a node it was not given returns [`MissingNode`]. The caller loads
//! that node and starts the algorithm again, which costs a few microseconds for each of at most two paths.
//! New nodes are [`Link::Fresh`] nodes in memory, which the caller stores once at the end.
//!
//! Invariants: entries of level 0 are pieces; entries of level n > 0 are subtrees whose entries are of level
//! n - 1; no entry is empty; every node but the root has [`MIN_FILL`] to [`FANOUT`] entries. So the height
//! stays logarithmic after any cuts and joins, and each operation touches a bounded number of nodes per
//! level.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::Piece;
use crate::extent::{ExtentId, ExtentRef};

/// Maximum number of entries in a node: as many as fit in one 4 KiB block with the frame's header. Stored
/// nodes have up to this many, so it may grow but not shrink.
pub(crate) const FANOUT: usize = 120;
/// Minimum number of entries in a node, except the root.
pub(crate) const MIN_FILL: usize = 30;
/// Maximum level of stored content. `MIN_FILL` to the power of this exceeds the number of pieces of any
/// content.
pub(crate) const MAX_LEVEL: u8 = 12;
/// Adjacent inline pieces are merged up to this many bytes.
pub(crate) const MAX_INLINE_PIECE: usize = 64 << 10;

/// The entries of one node, shared.
pub(crate) type List = Arc<Vec<MapEntry>>;

/// One element of a node: a piece, or a subtree of pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapEntry {
    Piece(Piece),
    Subtree(Subtree),
}

/// A subtree, as its parent refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subtree {
    /// Length in bytes.
    pub(crate) len: u64,
    /// Number of bytes outside of holes.
    pub(crate) allocated: u64,
    pub(crate) link: Link,
}

/// The location of a subtree's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// In a stored node.
    Stored(ExtentRef),
    /// In memory only; not stored yet.
    Fresh(List),
}

impl MapEntry {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Piece(piece) => piece.len(),
            Self::Subtree(sub) => sub.len,
        }
    }

    /// Returns the number of bytes outside of holes.
    pub(crate) fn allocated(&self) -> u64 {
        match self {
            Self::Piece(Piece::Hole(_) | Piece::Cleared(_)) => 0,
            Self::Piece(piece) => piece.len(),
            Self::Subtree(sub) => sub.allocated,
        }
    }

    /// Returns whether all of the entry is allocated, or none of it. Returns `None` if that depends on its
    /// children.
    pub(crate) fn is_allocated(&self) -> Option<bool> {
        match self.allocated() {
            0 => Some(false),
            all if all == self.len() => Some(true),
            _ => None,
        }
    }
}

/// Returns the length of a list of entries in bytes.
pub(crate) fn total(entries: &[MapEntry]) -> u64 {
    entries.iter().map(MapEntry::len).sum()
}

/// Returns the number of bytes of a list of entries that are outside of holes.
pub(crate) fn allocated(entries: &[MapEntry]) -> u64 {
    entries.iter().map(MapEntry::allocated).sum()
}

/// A sequence of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PieceTree {
    pub(crate) level: u8,
    pub(crate) list: List,
}

/// A node that an algorithm needs and that was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingNode {
    pub(crate) node: ExtentRef,
    /// The contents that the node must have.
    pub(crate) expected: Expected,
}

/// The properties of a node that its parent records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Level of its entries.
    pub(crate) level: u8,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Number of bytes outside of holes.
    pub(crate) allocated: u64,
}

impl Subtree {
    /// Returns what the node must hold if this is an entry of `level`.
    pub(crate) fn expected(&self, level: u8) -> Expected {
        debug_assert!(level > 0);
        Expected { level: level.saturating_sub(1), len: self.len, allocated: self.allocated }
    }
}

/// The stored nodes that have been read so far.
#[derive(Debug, Default)]
pub(crate) struct Nodes(HashMap<ExtentId, List>);

impl Nodes {
    pub(crate) fn insert(&mut self, node: ExtentRef, list: List) {
        self.0.insert(node.id, list);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the children of an entry of `level`.
    fn children(&self, entry: &MapEntry, level: u8) -> Result<List, MissingNode> {
        match entry {
            MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => Ok(list.clone()),
            MapEntry::Subtree(sub @ Subtree { link: Link::Stored(node), .. }) => self
                .0
                .get(&node.id)
                .cloned()
                .ok_or(MissingNode { node: *node, expected: sub.expected(level) }),
            MapEntry::Piece(_) => Ok(List::default()),
        }
    }
}

impl PieceTree {
    /// Returns a tree of a few pieces. Empty pieces are dropped.
    pub(crate) fn leaf(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut list = Vec::new();
        for piece in pieces {
            push(&mut list, MapEntry::Piece(piece));
        }
        Self::of(0, list)
    }

    /// Returns a tree of entries of one level, however many.
    fn of(mut level: u8, mut list: Vec<MapEntry>) -> Self {
        while list.len() > FANOUT {
            list = pack(list);
            level += 1;
        }
        if list.is_empty() {
            level = 0;
        }
        Self { level, list: list.into() }
    }

    pub(crate) fn len(&self) -> u64 {
        total(&self.list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns this sequence followed by `next`.
    pub(crate) fn join(&self, nodes: &Nodes, next: &Self) -> Result<Self, MissingNode> {
        if self.is_empty() {
            return Ok(next.clone());
        }
        if next.is_empty() {
            return Ok(self.clone());
        }
        let list = join(nodes, (self.level, &self.list), (next.level, &next.list))?;
        Ok(Self::of(self.level.max(next.level), list))
    }

    /// Splits at `at`, which is at most the length.
    pub(crate) fn split(&self, nodes: &Nodes, at: u64) -> Result<(Self, Self), MissingNode> {
        debug_assert!(at <= self.len());
        let (mut start, level) = (0, self.level);
        for (i, entry) in self.list.iter().enumerate() {
            let end = start + entry.len();
            if at >= end {
                start = end;
                continue;
            }
            let (before, after) = (&self.list[..i], &self.list[i + 1..]);
            if at == start {
                return Ok((Self::of(level, before.to_vec()), Self::of(level, self.list[i..].to_vec())));
            }
            let (left, right) = match entry {
                MapEntry::Piece(piece) => {
                    let cut = at - start;
                    (Self::leaf([piece.part(0, cut)]), Self::leaf([piece.part(cut, piece.len())]))
                }
                MapEntry::Subtree(_) => {
                    let inner = Self { level: level - 1, list: nodes.children(entry, level)? };
                    inner.split(nodes, at - start)?
                }
            };
            let left = Self::of(level, before.to_vec()).join(nodes, &left)?;
            let right = right.join(nodes, &Self::of(level, after.to_vec()))?;
            return Ok((left, right));
        }
        Ok((self.clone(), Self::default()))
    }

    /// Replaces `range`, which lies within the length, with another sequence.
    pub(crate) fn replace(&self, nodes: &Nodes, range: Range<u64>, with: &Self) -> Result<Self, MissingNode> {
        debug_assert!(range.start <= range.end && range.end <= self.len());
        if with.level == 0
            && let Some(list) = replace_on_path(nodes, self.level, &self.list, range.clone(), &with.list)?
        {
            return Ok(Self::of(self.level, list));
        }
        let (before, rest) = self.split(nodes, range.start)?;
        let (_, after) = rest.split(nodes, range.end - range.start)?;
        before.join(nodes, with)?.join(nodes, &after)
    }

    /// Returns the form that a record stores: at most `max` entries in the root, and no level with a single
    /// node.
    pub(crate) fn fit_root(&self, nodes: &Nodes, max: usize) -> Result<Self, MissingNode> {
        debug_assert!(max >= MIN_FILL);
        let mut tree = self.clone();
        while tree.level > 0 && tree.list.len() == 1 {
            let inner = nodes.children(&tree.list[0], tree.level)?;
            if inner.len() > max {
                break;
            }
            tree = Self { level: tree.level - 1, list: inner };
        }
        while tree.list.len() > max {
            tree = Self { level: tree.level + 1, list: pack(tree.list.to_vec()).into() };
        }
        Ok(tree)
    }
}

/// Appends an entry. Merges it with the last one if they are contiguous.
fn push(list: &mut Vec<MapEntry>, entry: MapEntry) {
    if entry.len() == 0 {
        return;
    }
    if let (Some(MapEntry::Piece(last)), MapEntry::Piece(next)) = (list.last_mut(), &entry)
        && let Some(one) = merged(last, next)
    {
        *last = one;
        return;
    }
    list.push(entry);
}

/// Merges two adjacent pieces. Returns `None` if they are not contiguous.
pub(crate) fn merged(a: &Piece, b: &Piece) -> Option<Piece> {
    match (a, b) {
        (Piece::Hole(a), Piece::Hole(b)) => Some(Piece::Hole(a + b)),
        (Piece::Cleared(a), Piece::Cleared(b)) => Some(Piece::Cleared(a + b)),
        (Piece::Data { extent, offset, len }, Piece::Data { extent: e, offset: o, len: l })
            if extent == e && offset + len == *o =>
        {
            Some(Piece::Data { extent: *extent, offset: *offset, len: len + l })
        }
        (Piece::Inline(a), Piece::Inline(b)) if a.len() + b.len() <= MAX_INLINE_PIECE => {
            let mut one = BytesMut::with_capacity(a.len() + b.len());
            one.extend_from_slice(a);
            one.extend_from_slice(b);
            Some(Piece::Inline(Bytes::from(one)))
        }
        _ => None,
    }
}

/// Distributes entries evenly over nodes. From `MIN_FILL` entries on, every node has at least `MIN_FILL`.
fn pack(list: Vec<MapEntry>) -> Vec<MapEntry> {
    let nodes = list.len().div_ceil(FANOUT);
    let mut rest = list.into_iter();
    (0..nodes)
        .map(|i| {
            let take = rest.len().div_ceil(nodes - i);
            let entries: Vec<MapEntry> = rest.by_ref().take(take).collect();
            MapEntry::Subtree(Subtree {
                len: total(&entries),
                allocated: allocated(&entries),
                link: Link::Fresh(entries.into()),
            })
        })
        .collect()
}

/// Joins two non-empty lists into one of the higher of their levels, of any length.
fn join(
    nodes: &Nodes,
    (la, a): (u8, &[MapEntry]),
    (lb, b): (u8, &[MapEntry]),
) -> Result<Vec<MapEntry>, MissingNode> {
    if la == lb {
        let mut list = a.to_vec();
        // Only the pieces at the seam can merge; the rest is appended unchanged.
        if let Some((first, rest)) = b.split_first() {
            push(&mut list, first.clone());
            list.extend_from_slice(rest);
        }
        return Ok(list);
    }
    // The lower list is joined with the edge node of the higher one. That node has at least MIN_FILL entries
    // and only gains, so the nodes that are packed from it satisfy MIN_FILL too.
    if la > lb {
        let Some((last, before)) = a.split_last() else { return Ok(vec![]) };
        let edge = join(nodes, (la - 1, &nodes.children(last, la)?), (lb, b))?;
        Ok(before.iter().cloned().chain(pack(edge)).collect())
    } else {
        let Some((first, after)) = b.split_first() else { return Ok(vec![]) };
        let edge = join(nodes, (la, a), (lb - 1, &nodes.children(first, lb)?))?;
        Ok(pack(edge).into_iter().chain(after.iter().cloned()).collect())
    }
}

/// Replaces a range with pieces if one node per level contains the range. This common change touches one path
/// only. Returns `None` if the range spans several nodes, or if a node would have too few entries.
fn replace_on_path(
    nodes: &Nodes,
    level: u8,
    list: &[MapEntry],
    range: Range<u64>,
    with: &[MapEntry],
) -> Result<Option<Vec<MapEntry>>, MissingNode> {
    if level == 0 {
        return Ok(Some(replace_pieces(list, range, with)));
    }
    let mut start = 0;
    for (i, entry) in list.iter().enumerate() {
        let end = start + entry.len();
        if range.start >= end {
            start = end;
            continue;
        }
        if range.end > end {
            return Ok(None);
        }
        let inner = range.start - start..range.end - start;
        let children = nodes.children(entry, level)?;
        let Some(changed) = replace_on_path(nodes, level - 1, &children, inner, with)? else {
            return Ok(None);
        };
        if changed.len() < MIN_FILL {
            return Ok(None);
        }
        let mut out = list[..i].to_vec();
        out.extend(pack(changed));
        out.extend_from_slice(&list[i + 1..]);
        return Ok(Some(out));
    }
    Ok(None)
}

fn replace_pieces(list: &[MapEntry], range: Range<u64>, with: &[MapEntry]) -> Vec<MapEntry> {
    let mut out = Vec::with_capacity(list.len() + with.len() + 1);
    let (mut start, mut placed) = (0, false);
    for entry in list {
        let MapEntry::Piece(piece) = entry else { continue };
        let end = start + piece.len();
        if start < range.start {
            push(&mut out, MapEntry::Piece(piece.part(0, range.start.min(end) - start)));
        }
        if !placed && end >= range.start {
            with.iter().for_each(|entry| push(&mut out, entry.clone()));
            placed = true;
        }
        if end > range.end {
            push(&mut out, MapEntry::Piece(piece.part(range.end.max(start) - start, piece.len())));
        }
        start = end;
    }
    if !placed {
        with.iter().for_each(|entry| push(&mut out, entry.clone()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One byte of a sequence: its run, and its offset in the run. Run 0 is a hole.
    type Unit = (u64, u32);

    fn piece(run: u64, offset: u32, len: u32) -> Piece {
        let extent = ExtentRef { id: ExtentId::from_raw(run), length: 1 << 20, crc: 0 };
        if run == 0 { Piece::Hole(len.into()) } else { Piece::Data { extent, offset, len } }
    }

    fn units(list: &[MapEntry], out: &mut Vec<Unit>) {
        for entry in list {
            match entry {
                MapEntry::Piece(Piece::Hole(len)) => out.extend((0..*len).map(|_| (0, 0))),
                MapEntry::Piece(Piece::Data { extent, offset, len }) => {
                    out.extend((*offset..offset + len).map(|at| (extent.id.raw(), at)));
                }
                MapEntry::Subtree(Subtree { link: Link::Fresh(list), .. }) => units(list, out),
                other => panic!("{other:?}"),
            }
        }
    }

    fn check(level: u8, list: &[MapEntry], root: bool) {
        assert!(list.len() <= FANOUT && (root || list.len() >= MIN_FILL), "{} entries", list.len());
        for entry in list {
            assert!(entry.len() > 0);
            match entry {
                MapEntry::Piece(_) => assert_eq!(level, 0),
                MapEntry::Subtree(Subtree { len, allocated: data, link: Link::Fresh(list) }) => {
                    assert!(level > 0);
                    assert_eq!((*len, *data), (total(list), allocated(list)));
                    check(level - 1, list, false);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns a sequence of many short runs, as a tree and as units.
    fn sequence(runs: usize, seed: u64) -> (PieceTree, Vec<Unit>) {
        let (mut tree, mut model) = (PieceTree::default(), vec![]);
        for run in 0..runs as u64 {
            let (run, len) = ((run * 7 + seed) % 1000, (run % 3 + 1) as u32);
            let next = PieceTree::leaf([piece(run, 5, len)]);
            tree = tree.join(&Nodes::default(), &next).unwrap();
            units(&next.list, &mut model);
        }
        (tree, model)
    }

    fn agree(tree: &PieceTree, model: &[Unit]) {
        check(tree.level, &tree.list, true);
        let mut found = vec![];
        units(&tree.list, &mut found);
        assert!(found == model, "{} and {} units", found.len(), model.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn trees_of_any_height_are_split_joined_and_replaced_like_vectors(
            runs in prop_oneof![0..300usize, 300..4000usize],
            steps in prop::collection::vec((0..5u8, any::<u32>(), any::<u32>(), any::<u64>()), 1..25),
        ) {
            let nodes = Nodes::default();
            let (mut tree, mut model) = sequence(runs, 1);
            agree(&tree, &model);
            for (kind, a, b, seed) in steps {
                let at = |x: u32| (u64::from(x) * model.len() as u64 / (1 << 32)) as usize;
                let (from, to) = (at(a.min(b)), at(a.max(b)));
                match kind {
                    // Split, and join in the opposite order.
                    0 => {
                        let (left, right) = tree.split(&nodes, from as u64).unwrap();
                        agree(&left, &model[..from]);
                        agree(&right, &model[from..]);
                        tree = right.join(&nodes, &left).unwrap();
                        model.rotate_left(from);
                    }
                    // Replace a part that often lies in one node with a few runs, or any part with nothing
                    // or many.
                    1 | 2 => {
                        let short = if a % 2 == 0 { 8 } else { 150 };
                        let to = if kind == 1 { (from + short).min(model.len()) } else { to };
                        let few = if kind == 1 { seed % 6 } else { seed % 700 };
                        let (with, units) = sequence(few as usize, seed % 1000);
                        tree = tree.replace(&nodes, from as u64..to as u64, &with).unwrap();
                        model.splice(from..to, units);
                    }
                    // Append a part once more.
                    3 => {
                        let (_, tail) = tree.split(&nodes, from as u64).unwrap();
                        let (part, _) = tail.split(&nodes, (to - from) as u64).unwrap();
                        if model.len() < 30_000 {
                            tree = tree.join(&nodes, &part).unwrap();
                            model.extend_from_within(from..to);
                        }
                    }
                    _ => {
                        tree = tree.fit_root(&nodes, MIN_FILL + 1).unwrap();
                        prop_assert!(tree.list.len() <= MIN_FILL + 1);
                    }
                }
                agree(&tree, &model);
            }
        }
    }

    #[test]
    fn missing_node_is_reported_and_untouched_nodes_are_not_needed() {
        let (mut tree, _) = sequence(4000, 1);
        let list = Arc::make_mut(&mut tree.list);
        let mut stored = HashMap::new();
        for (i, entry) in list.iter_mut().enumerate() {
            let MapEntry::Subtree(sub) = entry else { panic!("{entry:?}") };
            let node = ExtentRef { id: ExtentId::from_raw(5000 + i as u64), length: 1, crc: 0 };
            let Link::Fresh(list) = std::mem::replace(&mut sub.link, Link::Stored(node)) else { panic!() };
            stored.insert(node.id, (node, list));
        }
        let mut nodes = Nodes::default();
        let (at, with) = (tree.len() / 2, PieceTree::leaf([piece(7, 0, 1)]));
        let mut loaded = 0;
        while let Err(MissingNode { node, expected }) = tree.replace(&nodes, at..at + 1, &with) {
            let (node, list) = stored.get(&node.id).unwrap();
            assert_eq!(expected, Expected { level: 0, len: total(list), allocated: allocated(list) });
            nodes.insert(*node, list.clone());
            loaded += 1;
        }
        assert_eq!(loaded, 1);
    }
}
