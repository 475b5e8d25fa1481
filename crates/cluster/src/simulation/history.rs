//! Checks whether the operations of all clients appear to take effect one after the other.
//!
//! Every write to a partition is conditional on the version that it read and sets a new one. So the versions
//! of a partition form a chain, and those of the space's header (its epochs) another. Linearizability then
//! means that the constraints below have no cycle, which is cheap to test exactly:
//!
//! - a write follows the write of the version it read;
//! - a read lies between the write of the version it returned and the next one, and likewise for the epoch;
//! - a write lies within its epoch;
//! - an operation that ended before another one started comes first.
//!
//! A write whose outcome is unknown took effect if its version was ever read.

use std::collections::{BTreeMap, BTreeSet};

/// The rows of a partition, by key, with the version that wrote each.
pub(super) type Content = BTreeMap<Vec<u8>, u64>;

/// How an operation ended, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done(u64),
    Unknown,
}

#[derive(Clone, Debug)]
pub(super) struct ReadRecord {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) partition: usize,
    pub(super) version: u64,
    pub(super) epoch: u64,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) struct WriteRecord {
    pub(super) start: u64,
    pub(super) end: End,
    pub(super) partition: usize,
    pub(super) read: u64,
    pub(super) version: u64,
    pub(super) epoch: u64,
    /// The row that the write set or removed, in addition to the version.
    pub(super) row: (Vec<u8>, bool),
    pub(super) deadline: Option<u64>,
    pub(super) fence: Option<u64>,
}

/// A change of the epoch from `from` to the next one.
#[derive(Clone, Debug)]
pub(super) struct EpochRecord {
    pub(super) start: u64,
    pub(super) end: End,
    pub(super) from: u64,
}

/// Everything that clients did and learned. Refused writes and changes are left out.
#[derive(Debug, Default)]
pub(super) struct OperationRecords {
    pub(super) reads: Vec<ReadRecord>,
    pub(super) writes: Vec<WriteRecord>,
    pub(super) epochs: Vec<EpochRecord>,
}

/// The constraints between operations. Nodes are numbers.
#[derive(Default)]
struct Order {
    edges: Vec<Vec<usize>>,
    /// Times of starts and ends, with the node.
    starts: Vec<(u64, usize)>,
    ends: Vec<(u64, usize)>,
}

impl Order {
    fn node(&mut self, start: u64, end: End) -> usize {
        let node = self.edges.len();
        self.edges.push(vec![]);
        self.starts.push((start, node));
        if let End::Done(end) = end {
            self.ends.push((end, node));
        }
        node
    }

    fn edge(&mut self, before: Option<usize>, after: Option<usize>) {
        if let (Some(before), Some(after)) = (before, after) {
            self.edges[before].push(after);
        }
    }

    /// Adds a chain of moments: what ended before a moment precedes it, and it precedes what starts later.
    fn add_times(&mut self) {
        self.ends.sort_unstable();
        self.starts.sort_unstable();
        let mut starts = std::mem::take(&mut self.starts).into_iter().peekable();
        let mut moment = None;
        for (time, node) in std::mem::take(&mut self.ends) {
            while let Some((_, started)) = starts.next_if(|(start, _)| *start <= time) {
                self.edge(moment, Some(started));
            }
            let next = self.edges.len();
            self.edges.push(vec![]);
            self.edge(moment, Some(next));
            self.edge(Some(node), Some(next));
            moment = Some(next);
        }
        for (_, started) in starts {
            self.edge(moment, Some(started));
        }
    }

    fn has_cycle(&self) -> bool {
        let mut incoming = vec![0; self.edges.len()];
        self.edges.iter().flatten().for_each(|node| incoming[*node] += 1);
        let mut free: Vec<_> = (0..incoming.len()).filter(|node| incoming[*node] == 0).collect();
        let mut placed = 0;
        while let Some(node) = free.pop() {
            placed += 1;
            for after in &self.edges[node] {
                incoming[*after] -= 1;
                if incoming[*after] == 0 {
                    free.push(*after);
                }
            }
        }
        placed < incoming.len()
    }
}

/// The versions of one partition, in order.
struct Chain<'a> {
    writes: Vec<&'a WriteRecord>,
    /// The position of each version: the number of writes up to it.
    positions: BTreeMap<u64, usize>,
}

impl OperationRecords {
    /// Returns a description of the first violation.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut order = Order::default();
        let epochs = self.epoch_nodes(&mut order)?;
        let partitions: BTreeSet<_> =
            self.reads.iter().map(|r| r.partition).chain(self.writes.iter().map(|w| w.partition)).collect();
        for partition in partitions {
            let chain = self.chain(partition)?;
            chain.check_deadlines()?;
            self.check_contents(partition, &chain)?;
            self.add_partition(&mut order, partition, &chain, &epochs)?;
        }
        order.add_times();
        if order.has_cycle() { Err("no order explains all operations".to_owned()) } else { Ok(()) }
    }

    /// Returns the node of each change of the epoch, the first one being that from 0 to 1.
    fn epoch_nodes(&self, order: &mut Order) -> Result<Vec<usize>, String> {
        let seen = self.reads.iter().map(|r| r.epoch).chain(self.writes.iter().map(|w| w.epoch));
        let done = self.epochs.iter().filter(|e| e.end != End::Unknown).map(|e| e.from + 1);
        let newest = seen.chain(done).max().unwrap_or(0);
        let mut nodes: Vec<usize> = vec![];
        for from in 0..newest {
            let changes: Vec<_> = self.epochs.iter().filter(|e| e.from == from).collect();
            let done: Vec<_> = changes.iter().filter(|e| e.end != End::Unknown).collect();
            let node = match (&done[..], changes.iter().map(|e| e.start).min()) {
                ([one], _) => order.node(one.start, one.end),
                ([], Some(start)) => order.node(start, End::Unknown),
                ([], None) => return Err(format!("epoch {} was never set", from + 1)),
                _ => return Err(format!("epoch {} was set twice", from + 1)),
            };
            order.edge(nodes.last().copied(), Some(node));
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// Returns the writes of a partition that took effect, in order.
    fn chain(&self, partition: usize) -> Result<Chain<'_>, String> {
        let writes: Vec<_> = self.writes.iter().filter(|w| w.partition == partition).collect();
        let mut seen: BTreeSet<u64> =
            self.reads.iter().filter(|r| r.partition == partition).map(|r| r.version).collect();
        seen.extend(writes.iter().filter(|w| w.end != End::Unknown).map(|w| w.version));
        // A version that took effect makes the one that it replaced take effect.
        let by_version: BTreeMap<_, _> = writes.iter().map(|w| (w.version, *w)).collect();
        let mut open: Vec<_> = seen.iter().copied().collect();
        while let Some(version) = open.pop() {
            if let Some(write) = by_version.get(&version)
                && seen.insert(write.read)
            {
                open.push(write.read);
            }
        }
        let mut next: BTreeMap<u64, &WriteRecord> = BTreeMap::new();
        for write in writes.iter().filter(|w| seen.contains(&w.version)) {
            if let Some(other) = next.insert(write.read, write) {
                return Err(format!("two writes replaced the same version: {other:?} and {write:?}"));
            }
        }
        let mut chain = Chain { writes: vec![], positions: BTreeMap::from([(0, 0)]) };
        let mut version = 0;
        while let Some(write) = next.remove(&version) {
            chain.writes.push(write);
            version = write.version;
            chain.positions.insert(version, chain.writes.len());
        }
        match seen.iter().find(|version| **version != 0 && !chain.positions.contains_key(version)) {
            Some(version) => Err(format!("version {version} of partition {partition} is not in the chain")),
            None => Ok(chain),
        }
    }

    fn check_contents(&self, partition: usize, chain: &Chain<'_>) -> Result<(), String> {
        let mut content = Content::new();
        let mut contents = vec![content.clone()];
        for write in &chain.writes {
            let (row, is_set) = &write.row;
            if *is_set {
                content.insert(row.clone(), write.version);
            } else {
                content.remove(row);
            }
            contents.push(content.clone());
        }
        for read in self.reads.iter().filter(|r| r.partition == partition) {
            let position = chain.positions.get(&read.version).ok_or("a read of an unknown version")?;
            if contents[*position] != read.content {
                return Err(format!("torn: {read:?} instead of {:?}", contents[*position]));
            }
        }
        Ok(())
    }

    fn add_partition(
        &self,
        order: &mut Order,
        partition: usize,
        chain: &Chain<'_>,
        epochs: &[usize],
    ) -> Result<(), String> {
        let bounds = |epoch: u64| {
            let epoch = usize::try_from(epoch).unwrap_or(usize::MAX);
            (epoch.checked_sub(1).and_then(|at| epochs.get(at).copied()), epochs.get(epoch).copied())
        };
        let mut nodes: Vec<usize> = vec![];
        for write in &chain.writes {
            let node = order.node(write.start, write.end);
            let (first, last) = bounds(write.epoch);
            order.edge(nodes.last().copied(), Some(node));
            order.edge(first, Some(node));
            order.edge(Some(node), last);
            nodes.push(node);
        }
        for read in self.reads.iter().filter(|r| r.partition == partition) {
            let node = order.node(read.start, End::Done(read.end));
            let position = *chain.positions.get(&read.version).ok_or("a read of an unknown version")?;
            let (first, last) = bounds(read.epoch);
            order.edge(position.checked_sub(1).map(|at| nodes[at]), Some(node));
            order.edge(Some(node), nodes.get(position).copied());
            order.edge(first, Some(node));
            order.edge(Some(node), last);
        }
        Ok(())
    }
}

impl Chain<'_> {
    /// Checks that after a fence no write with a deadline up to it takes effect.
    fn check_deadlines(&self) -> Result<(), String> {
        let mut fence = 0;
        for write in &self.writes {
            if write.deadline.is_some_and(|deadline| deadline <= fence) {
                return Err(format!("a write took effect after its deadline was fenced: {write:?}"));
            }
            fence = fence.max(write.fence.unwrap_or(0));
        }
        Ok(())
    }
}

mod tests {
    use super::*;

    fn write(start: u64, end: End, read: u64, version: u64, epoch: u64) -> WriteRecord {
        let row = (vec![], false);
        WriteRecord { start, end, partition: 0, read, version, epoch, row, deadline: None, fence: None }
    }

    fn read(start: u64, end: u64, version: u64, epoch: u64) -> ReadRecord {
        ReadRecord { start, end, partition: 0, version, epoch, content: Content::new() }
    }

    fn epoch(start: u64, end: End, from: u64) -> EpochRecord {
        EpochRecord { start, end, from }
    }

    fn is_explained(reads: Vec<ReadRecord>, writes: Vec<WriteRecord>, epochs: Vec<EpochRecord>) -> bool {
        OperationRecords { reads, writes, epochs }.check().is_ok()
    }

    #[test]
    fn sequences_and_overlapping_operations_are_explained() {
        let writes = vec![write(0, End::Done(5), 0, 7, 0), write(6, End::Done(20), 7, 8, 1)];
        let epochs = vec![epoch(4, End::Done(9), 0)];
        assert!(is_explained(vec![read(1, 2, 7, 0), read(10, 11, 7, 1), read(10, 30, 8, 1)], writes, epochs));
    }

    #[test]
    fn stale_reads_lost_updates_and_torn_states_are_violations() {
        let done = End::Done;
        let first = || write(0, done(1), 0, 7, 0);
        assert!(!is_explained(vec![read(2, 3, 0, 0)], vec![first()], vec![]), "stale");
        assert!(!is_explained(vec![], vec![first(), write(0, done(9), 0, 8, 0)], vec![]), "lost");
        assert!(!is_explained(vec![read(2, 3, 9, 0)], vec![first()], vec![]), "from nowhere");
        let torn = ReadRecord { content: Content::from([(b"x".to_vec(), 3)]), ..read(2, 3, 7, 0) };
        assert!(!is_explained(vec![torn], vec![first()], vec![]), "torn");
    }

    #[test]
    fn commits_and_reads_must_lie_within_their_epoch() {
        let change = || vec![epoch(2, End::Done(3), 0)];
        assert!(!is_explained(vec![], vec![write(4, End::Done(5), 0, 7, 0)], change()), "late commit");
        assert!(!is_explained(vec![read(4, 5, 0, 0)], vec![], change()), "late read");
        assert!(!is_explained(vec![read(0, 1, 0, 1)], vec![], change()), "early read");
        assert!(!is_explained(vec![], vec![], vec![epoch(0, End::Done(1), 0), epoch(0, End::Done(1), 0)]));
    }

    #[test]
    fn write_of_unknown_outcome_took_effect_only_if_it_was_read() {
        let unknown = || write(0, End::Unknown, 0, 7, 0);
        assert!(is_explained(vec![read(1, 2, 0, 0)], vec![unknown()], vec![]));
        assert!(is_explained(vec![read(1, 2, 0, 0), read(50, 51, 7, 0)], vec![unknown()], vec![]));
        assert!(!is_explained(vec![read(5, 6, 7, 0), read(8, 9, 0, 0)], vec![unknown()], vec![]));
        let next = write(20, End::Done(21), 0, 8, 0);
        assert!(!is_explained(vec![read(5, 6, 7, 0)], vec![unknown(), next], vec![]));
    }

    #[test]
    fn deadline_that_was_fenced_is_a_violation() {
        let fence = WriteRecord { fence: Some(100), ..write(0, End::Done(1), 0, 7, 0) };
        for (deadline, explained) in [(99, false), (100, false), (101, true)] {
            let late = WriteRecord { deadline: Some(deadline), ..write(2, End::Done(3), 7, 8, 0) };
            assert_eq!(is_explained(vec![], vec![fence.clone(), late], vec![]), explained);
        }
    }
}
