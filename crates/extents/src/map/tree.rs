//! The B-tree under a content map: joining and splitting sequences of pieces. Pure.
//!
//! Nothing here reads or writes. An algorithm that meets a node it was not given stops with [`Absent`]; the caller
//! loads that node and starts the algorithm again, which costs a few microseconds for each of at most two paths.
//! What is made anew is a [`Link::Fresh`] node in memory, stored by the caller once at the end.
//!
//! Invariants: entries of level 0 are pieces, those of level n > 0 are subtrees whose entries are of level n - 1; no
//! entry is empty; every node but the root has [`MIN_FILL`] to [`FANOUT`] entries. So the height is logarithmic
//! whatever is cut and joined, and each operation touches a bounded number of nodes a level.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::Piece;
use crate::extent::{ExtentId, ExtentRef};

/// Entries of a node at most: as many as fit in one 4 KiB block with the frame's header. Stored nodes have up to so many,
/// so it may grow but not shrink.
pub(crate) const FANOUT: usize = 120;
/// Entries of a node at least, the root excepted.
pub(crate) const MIN_FILL: usize = 30;
/// Levels that stored content may have. `MIN_FILL` to the power of this exceeds the pieces that any content can have.
pub(crate) const MAX_LEVEL: u8 = 12;
/// Inline pieces are merged up to this length.
pub(crate) const MAX_INLINE_PIECE: usize = 64 << 10;

/// Entries of one node, shared.
pub(crate) type List = Arc<Vec<Entry>>;

/// A part of a sequence: a piece, or a subtree of pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Piece(Piece),
    Sub(Sub),
}

/// A subtree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sub {
    /// The bytes it stands for.
    pub(crate) len: u64,
    /// How many of them are not in holes.
    pub(crate) allocated: u64,
    pub(crate) link: Link,
}

/// Where a subtree's entries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// In a node that lies in an extent.
    Stored(ExtentRef),
    /// In memory only.
    Fresh(List),
}

impl Entry {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Piece(piece) => piece.len(),
            Self::Sub(sub) => sub.len,
        }
    }

    /// The bytes that are not in holes.
    pub(crate) fn allocated(&self) -> u64 {
        match self {
            Self::Piece(Piece::Hole(_) | Piece::Cleared(_)) => 0,
            Self::Piece(piece) => piece.len(),
            Self::Sub(sub) => sub.allocated,
        }
    }

    /// Whether all of it is allocated, or none; `None` if that must be looked up further down.
    pub(crate) fn is_allocated(&self) -> Option<bool> {
        match self.allocated() {
            0 => Some(false),
            all if all == self.len() => Some(true),
            _ => None,
        }
    }
}

/// The bytes that entries stand for.
pub(crate) fn total(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::len).sum()
}

/// The bytes of entries that are not in holes.
pub(crate) fn allocated(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::allocated).sum()
}

/// A sequence of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) level: u8,
    pub(crate) list: List,
}

/// A node that is needed and was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) node: ExtentRef,
    /// What it must hold.
    pub(crate) expected: Expected,
}

/// What is known of a node before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The level of its entries.
    pub(crate) level: u8,
    /// The bytes they stand for, in all and without holes.
    pub(crate) len: u64,
    pub(crate) allocated: u64,
}

impl Sub {
    /// What the node must hold, if this is an entry of `level`.
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

    /// The entries of an entry of `level`.
    fn children(&self, entry: &Entry, level: u8) -> Result<List, Absent> {
        match entry {
            Entry::Sub(Sub { link: Link::Fresh(list), .. }) => Ok(list.clone()),
            Entry::Sub(sub @ Sub { link: Link::Stored(node), .. }) => {
                self.0.get(&node.id).cloned().ok_or(Absent { node: *node, expected: sub.expected(level) })
            }
            Entry::Piece(_) => Ok(List::default()),
        }
    }
}

impl Tree {
    /// A sequence of a few pieces; empty ones are left out.
    pub(crate) fn leaf(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let mut list = Vec::new();
        for piece in pieces {
            push(&mut list, Entry::Piece(piece));
        }
        Self::of(0, list)
    }

    /// A tree of entries of one level, however many.
    fn of(mut level: u8, mut list: Vec<Entry>) -> Self {
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

    /// This sequence and then the other.
    pub(crate) fn join(&self, nodes: &Nodes, next: &Self) -> Result<Self, Absent> {
        if self.is_empty() {
            return Ok(next.clone());
        }
        if next.is_empty() {
            return Ok(self.clone());
        }
        let list = join(nodes, (self.level, &self.list), (next.level, &next.list))?;
        Ok(Self::of(self.level.max(next.level), list))
    }

    /// What lies before `at`, and the rest; `at` is at most the length.
    pub(crate) fn split(&self, nodes: &Nodes, at: u64) -> Result<(Self, Self), Absent> {
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
                Entry::Piece(piece) => {
                    let cut = at - start;
                    (Self::leaf([piece.part(0, cut)]), Self::leaf([piece.part(cut, piece.len())]))
                }
                Entry::Sub(_) => {
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

    /// Puts `with` in the place of `range`, which lies within the length.
    pub(crate) fn replace(&self, nodes: &Nodes, range: Range<u64>, with: &Self) -> Result<Self, Absent> {
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

    /// The form in which a record holds the tree: no more than `max` entries, and no level that only one node needs.
    pub(crate) fn settle(&self, nodes: &Nodes, max: usize) -> Result<Self, Absent> {
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

/// Appends an entry, merged with the last one where they are one run.
fn push(list: &mut Vec<Entry>, entry: Entry) {
    if entry.len() == 0 {
        return;
    }
    if let (Some(Entry::Piece(last)), Entry::Piece(next)) = (list.last_mut(), &entry)
        && let Some(one) = merged(last, next)
    {
        *last = one;
        return;
    }
    list.push(entry);
}

/// Two adjacent pieces as one, if they are one run.
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

/// Puts entries into nodes, as evenly as possible. With `MIN_FILL` entries or more, so has every node.
fn pack(list: Vec<Entry>) -> Vec<Entry> {
    let nodes = list.len().div_ceil(FANOUT);
    let mut rest = list.into_iter();
    (0..nodes)
        .map(|i| {
            let take = rest.len().div_ceil(nodes - i);
            let entries: Vec<Entry> = rest.by_ref().take(take).collect();
            Entry::Sub(Sub {
                len: total(&entries),
                allocated: allocated(&entries),
                link: Link::Fresh(entries.into()),
            })
        })
        .collect()
}

/// Joins two lists, neither of them empty, into one of the higher of their levels, however long.
fn join(nodes: &Nodes, (la, a): (u8, &[Entry]), (lb, b): (u8, &[Entry])) -> Result<Vec<Entry>, Absent> {
    if la == lb {
        let mut list = a.to_vec();
        // Only the seam can hold one run; the rest is appended as it is.
        if let Some((first, rest)) = b.split_first() {
            push(&mut list, first.clone());
            list.extend_from_slice(rest);
        }
        return Ok(list);
    }
    // The lower list goes into the edge of the higher one. That edge node has MIN_FILL entries and only gains, so
    // what is packed again satisfies MIN_FILL too.
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

/// Replaces a range that one node of each level contains, with pieces: the common change, which touches one path only.
/// `None` if the range is in several nodes, or if the change would leave a node with too few entries.
fn replace_on_path(
    nodes: &Nodes,
    level: u8,
    list: &[Entry],
    range: Range<u64>,
    with: &[Entry],
) -> Result<Option<Vec<Entry>>, Absent> {
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

fn replace_pieces(list: &[Entry], range: Range<u64>, with: &[Entry]) -> Vec<Entry> {
    let mut out = Vec::with_capacity(list.len() + with.len() + 1);
    let (mut start, mut placed) = (0, false);
    for entry in list {
        let Entry::Piece(piece) = entry else { continue };
        let end = start + piece.len();
        if start < range.start {
            push(&mut out, Entry::Piece(piece.part(0, range.start.min(end) - start)));
        }
        if !placed && end >= range.start {
            with.iter().for_each(|entry| push(&mut out, entry.clone()));
            placed = true;
        }
        if end > range.end {
            push(&mut out, Entry::Piece(piece.part(range.end.max(start) - start, piece.len())));
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

    /// One byte of a sequence: which run it is of, and where in it. Run 0 is a hole.
    type Unit = (u64, u32);

    fn piece(run: u64, offset: u32, len: u32) -> Piece {
        let extent = ExtentRef { id: ExtentId::from_raw(run), length: 1 << 20, crc: 0 };
        if run == 0 { Piece::Hole(len.into()) } else { Piece::Data { extent, offset, len } }
    }

    fn units(list: &[Entry], out: &mut Vec<Unit>) {
        for entry in list {
            match entry {
                Entry::Piece(Piece::Hole(len)) => out.extend((0..*len).map(|_| (0, 0))),
                Entry::Piece(Piece::Data { extent, offset, len }) => {
                    out.extend((*offset..offset + len).map(|at| (extent.id.raw(), at)));
                }
                Entry::Sub(Sub { link: Link::Fresh(list), .. }) => units(list, out),
                other => panic!("{other:?}"),
            }
        }
    }

    fn check(level: u8, list: &[Entry], root: bool) {
        assert!(list.len() <= FANOUT && (root || list.len() >= MIN_FILL), "{} entries", list.len());
        for entry in list {
            assert!(entry.len() > 0);
            match entry {
                Entry::Piece(_) => assert_eq!(level, 0),
                Entry::Sub(Sub { len, allocated: data, link: Link::Fresh(list) }) => {
                    assert!(level > 0);
                    assert_eq!((*len, *data), (total(list), allocated(list)));
                    check(level - 1, list, false);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A sequence of many short runs, and the same as units.
    fn sequence(runs: usize, seed: u64) -> (Tree, Vec<Unit>) {
        let (mut tree, mut model) = (Tree::default(), vec![]);
        for run in 0..runs as u64 {
            let (run, len) = ((run * 7 + seed) % 1000, (run % 3 + 1) as u32);
            let next = Tree::leaf([piece(run, 5, len)]);
            tree = tree.join(&Nodes::default(), &next).unwrap();
            units(&next.list, &mut model);
        }
        (tree, model)
    }

    fn agree(tree: &Tree, model: &[Unit]) {
        check(tree.level, &tree.list, true);
        let mut found = vec![];
        units(&tree.list, &mut found);
        assert!(found == model, "{} and {} units", found.len(), model.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn sequences_of_any_height_are_cut_joined_and_replaced_like_vectors(
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
                    // Cut, and put together again the other way round.
                    0 => {
                        let (left, right) = tree.split(&nodes, from as u64).unwrap();
                        agree(&left, &model[..from]);
                        agree(&right, &model[from..]);
                        tree = right.join(&nodes, &left).unwrap();
                        model.rotate_left(from);
                    }
                    // Replace a part that may well lie in one node by a few runs, and any part by nothing or by many.
                    1 | 2 => {
                        let short = if a % 2 == 0 { 8 } else { 150 };
                        let to = if kind == 1 { (from + short).min(model.len()) } else { to };
                        let few = if kind == 1 { seed % 6 } else { seed % 700 };
                        let (with, units) = sequence(few as usize, seed % 1000);
                        tree = tree.replace(&nodes, from as u64..to as u64, &with).unwrap();
                        model.splice(from..to, units);
                    }
                    // Append a part again.
                    3 => {
                        let (_, tail) = tree.split(&nodes, from as u64).unwrap();
                        let (part, _) = tail.split(&nodes, (to - from) as u64).unwrap();
                        if model.len() < 30_000 {
                            tree = tree.join(&nodes, &part).unwrap();
                            model.extend_from_within(from..to);
                        }
                    }
                    _ => {
                        tree = tree.settle(&nodes, MIN_FILL + 1).unwrap();
                        prop_assert!(tree.list.len() <= MIN_FILL + 1);
                    }
                }
                agree(&tree, &model);
            }
        }
    }

    #[test]
    fn an_absent_node_is_named_and_what_is_not_touched_is_not_asked_for() {
        let (mut tree, _) = sequence(4000, 1);
        let list = Arc::make_mut(&mut tree.list);
        let mut stored = HashMap::new();
        for (i, entry) in list.iter_mut().enumerate() {
            let Entry::Sub(sub) = entry else { panic!("{entry:?}") };
            let node = ExtentRef { id: ExtentId::from_raw(5000 + i as u64), length: 1, crc: 0 };
            let Link::Fresh(list) = std::mem::replace(&mut sub.link, Link::Stored(node)) else { panic!() };
            stored.insert(node.id, (node, list));
        }
        let mut nodes = Nodes::default();
        let (at, with) = (tree.len() / 2, Tree::leaf([piece(7, 0, 1)]));
        let mut asked = 0;
        while let Err(Absent { node, expected }) = tree.replace(&nodes, at..at + 1, &with) {
            let (node, list) = stored.get(&node.id).unwrap();
            assert_eq!(expected, Expected { level: 0, len: total(list), allocated: allocated(list) });
            nodes.insert(*node, list.clone());
            asked += 1;
        }
        assert_eq!(asked, 1);
    }
}
