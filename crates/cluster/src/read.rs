//! Reads of one partition, in one snapshot.
//!
//! Every page reads the header's generation and the partition's bucket in the same op as the rows. If either
//! has changed since the first page, the read begins again. So all pages together are one snapshot.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_rados::{ObjectName, ReadStep, ReadValue};
use lazuli_store::{MAX_SCAN_ROWS, Partition, ReadSet, Reads, Row, Scanned, SpaceHeader, SpaceId};

use crate::access::AccessError;
use crate::batch::range_token;
use crate::events::ProtocolEvent;
use crate::header::{FrozenRead, SeenHeader, ShardState, frozen_read};
use crate::keys::{bucket_key, hint_keys, hint_partition, root_name, row_key};
use crate::protocol::Protocol;
use crate::rows::{PAGE_ROWS, after_page, bucket_stamp, decode, page_of, range_of_partition};

/// One range of a read that is under way.
struct RangeProgress {
    /// Stored keys that are not read yet, or `None` if the range is complete.
    rest: Option<Range<Bytes>>,
    wanted: usize,
    rows: Vec<Row>,
}

/// Everything that was read so far, as of one moment.
struct PartitionSnapshot {
    seen: SeenHeader,
    bucket: Stamp,
    rows: BTreeMap<Bytes, Row>,
    ranges: Vec<RangeProgress>,
}

/// How a shard answers for a partition.
pub(crate) enum Routed {
    /// The shard owns the partition.
    Here,
    /// Another shard does, or the shard had to be activated first: route again.
    Again,
}

impl Protocol {
    /// Reads rows and ranges of a partition in one snapshot.
    pub(crate) async fn read_partition(
        self: &Arc<Self>,
        partition: &Partition,
        reads: &Reads,
    ) -> Result<ReadSet, AccessError> {
        loop {
            let name = self.routes.locate(partition.space, &partition.key);
            let Some(snapshot) = self.read_snapshot(&name, partition, reads).await? else {
                if let Some(space) = self.without_shard(partition.space, &name).await? {
                    return Ok(empty_set(space, reads));
                }
                continue;
            };
            let Some(snapshot) = snapshot else { continue };
            if let Some(space) = self.header_of_read(partition.space, &snapshot.seen).await? {
                return Ok(snapshot.into_set(space, partition, reads));
            }
        }
    }

    /// Decides what a missing shard means. Returns the space's header if the space has no rows, or `None` if
    /// the partition must be routed again.
    pub(crate) async fn without_shard(
        &self,
        space: SpaceId,
        name: &ObjectName,
    ) -> Result<Option<Option<SpaceHeader>>, AccessError> {
        self.routes.forget(space);
        if *name == root_name(space) {
            return Ok(Some(None));
        }
        // Shards disappear only when the space is closed and swept.
        let root = self.access.root(space).await?;
        let header = root.map(|root| root.header.space());
        Ok(header.is_none_or(|header| !header.open).then_some(header))
    }

    /// Routes a partition from the header of a shard.
    pub(crate) async fn route(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        seen: &SeenHeader,
        partition: &[u8],
    ) -> Result<Routed, AccessError> {
        let header = &seen.header;
        if let ShardState::Building { .. } = header.state {
            self.help(space, name).await?;
            return Ok(Routed::Again);
        }
        if header.contains(partition) {
            return Ok(Routed::Here);
        }
        match (&header.upper, header.next()) {
            (Some(upper), Some(next)) if header.lower[..] <= *partition => {
                if *name == root_name(space) {
                    self.load_hints(space).await?;
                }
                self.routes.learn(space, Bytes::copy_from_slice(upper), next);
            }
            _ => self.routes.forget(space),
        }
        Ok(Routed::Again)
    }

    /// Learns the shards of a space from the hints in its root, so that the chain need not be walked.
    async fn load_hints(&self, space: SpaceId) -> Result<(), AccessError> {
        let Range { start: mut from, end } = hint_keys();
        loop {
            let step = page_of(from.clone()..end.clone(), PAGE_ROWS);
            let Some(reply) = self.access.read(&root_name(space), vec![step]).await? else { return Ok(()) };
            let [ReadValue::OmapRange(page)] = &reply[..] else { return Ok(()) };
            for (key, stored) in &page.entries {
                if let (Some(lower), Ok(name)) = (hint_partition(key), String::from_utf8(stored.to_vec())) {
                    self.routes.learn(space, lower, ObjectName(name));
                }
            }
            match after_page(page, &from) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Returns the space's header of the moment of a read, or `None` if the rows must be read again.
    pub(crate) async fn header_of_read(
        self: &Arc<Self>,
        space: SpaceId,
        seen: &SeenHeader,
    ) -> Result<Option<Option<SpaceHeader>>, AccessError> {
        let ShardState::Frozen { change } = seen.header.state else {
            return Ok(Some(Some(seen.header.space())));
        };
        if crate::planted(8) {
            return Ok(Some(Some(seen.header.space())));
        }
        let Some(root) = self.access.root(space).await? else { return Ok(Some(None)) };
        let event = match root.header.decided {
            decided if decided < change => ProtocolEvent::ReadBeforeDecision,
            decided if decided == change => ProtocolEvent::ReadAfterDecision,
            _ => ProtocolEvent::ReadAgainAfterDecision,
        };
        self.access.count(event);
        match frozen_read(change, &root.header) {
            FrozenRead::WithRootHeader => Ok(Some(Some(root.header.space()))),
            FrozenRead::Again => {
                self.thaw_if_decided_at(space, &seen.header.lower).await?;
                Ok(None)
            }
        }
    }

    /// Returns `None` if the shard does not exist, and `Some(None)` if the read must begin again.
    async fn read_snapshot(
        self: &Arc<Self>,
        name: &ObjectName,
        partition: &Partition,
        reads: &Reads,
    ) -> Result<Option<Option<PartitionSnapshot>>, AccessError> {
        let bucket = bucket_key(&partition.key);
        let keys = reads.keys.iter().map(|key| row_key(&partition.key, key));
        let mut keys: Vec<_> = keys.chain([bucket.clone()]).collect();
        let mut ranges: Vec<_> =
            reads.ranges.iter().map(|range| RangeProgress::new(partition, range)).collect();
        let mut first: Option<(SeenHeader, Stamp, BTreeMap<Bytes, Row>)> = None;
        loop {
            let mut steps = vec![ReadStep::Omap(std::mem::replace(&mut keys, vec![bucket.clone()]))];
            steps.extend(ranges.iter().filter_map(RangeProgress::step));
            let Some((seen, reply)) = self.access.read_with_header(name, steps).await? else {
                return Ok(None);
            };
            let mut reply = reply.into_iter();
            let Some(ReadValue::Omap(entries)) = reply.next() else { return Ok(Some(None)) };
            let stored_bucket = entries.iter().find(|(key, _)| *key == bucket).map(|(_, stored)| stored);
            let stamp = bucket_stamp(&self.access, stored_bucket);
            let is_same = first
                .as_ref()
                .map(|(before, bucket, _)| before.generation == seen.generation && *bucket == stamp);
            match is_same {
                Some(true) => {}
                Some(false) => return Ok(Some(None)),
                None => {
                    if let Routed::Again = self.route(partition.space, name, &seen, &partition.key).await? {
                        return Ok(Some(None));
                    }
                    let mut rows = BTreeMap::new();
                    for (key, stored) in entries.iter().filter(|(key, _)| *key != bucket) {
                        rows.insert(key.clone(), decode(&self.access, key, stored)?.1);
                    }
                    first = Some((seen, stamp, rows));
                }
            }
            for range in ranges.iter_mut().filter(|range| range.rest.is_some()) {
                let Some(ReadValue::OmapRange(page)) = reply.next() else { return Ok(Some(None)) };
                for (key, stored) in &page.entries {
                    range.rows.push(decode(&self.access, key, stored)?.1);
                }
                range.advance(after_page(&page, &range.start()));
            }
            if ranges.iter().all(|range| range.rest.is_none()) {
                return Ok(Some(first.map(|(seen, bucket, rows)| PartitionSnapshot {
                    seen,
                    bucket,
                    rows,
                    ranges,
                })));
            }
        }
    }
}

impl RangeProgress {
    fn new(partition: &Partition, (range, limit): &(Range<Bytes>, usize)) -> Self {
        let rest = range_of_partition(&partition.key, range);
        // One more row than wanted shows where the next page begins.
        let wanted = (*limit).min(MAX_SCAN_ROWS) + 1;
        Self { rest: (rest.start < rest.end).then_some(rest), wanted, rows: vec![] }
    }

    fn step(&self) -> Option<ReadStep> {
        let rest = self.rest.clone()?;
        Some(page_of(rest, self.wanted - self.rows.len()))
    }

    fn start(&self) -> Bytes {
        self.rest.as_ref().map_or_else(Bytes::new, |rest| rest.start.clone())
    }

    fn advance(&mut self, next: Option<Bytes>) {
        let next = next.filter(|_| self.rows.len() < self.wanted);
        self.rest = self.rest.take().zip(next).map(|(rest, next)| next..rest.end);
    }
}

impl PartitionSnapshot {
    fn into_set(self, space: Option<SpaceHeader>, partition: &Partition, reads: &Reads) -> ReadSet {
        let bucket = self.bucket;
        let ranges = self.ranges.into_iter().zip(&reads.ranges).map(|(found, (asked, _))| {
            let mut rows = found.rows;
            let mut range = asked.clone();
            let last = (rows.len() == found.wanted).then(|| rows.pop()).flatten();
            if let Some(last) = &last {
                range.end = last.key.clone();
            }
            Scanned { range, token: range_token(bucket, &rows), rows, more: last.is_some() }
        });
        let ranges = ranges.collect();
        let rows = reads.keys.iter().map(|key| self.rows.get(&row_key(&partition.key, key)).cloned());
        let rows = rows.collect();
        ReadSet { space, rows, ranges }
    }
}

/// Returns the result of a read in a space without rows.
fn empty_set(space: Option<SpaceHeader>, reads: &Reads) -> ReadSet {
    let scanned = |range: &Range<Bytes>| Scanned {
        range: range.clone(),
        rows: vec![],
        token: range_token(Stamp::default(), []),
        more: false,
    };
    let ranges = reads.ranges.iter().map(|(range, _)| scanned(range)).collect();
    ReadSet { space, rows: reads.keys.iter().map(|_| None).collect(), ranges }
}
