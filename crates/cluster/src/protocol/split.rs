//! Splits of a shard at a partition key.
//!
//! ```text
//! S1  X -> splitting{at, Y}      commits below `at` continue; later ones wait; X serves all reads
//! S2  create Y exclusively: building{X, at}, all buckets fresh
//! S3  copy the deadline fence and the rows from `at` on into Y; every write compares the generation of Y
//! S4  X -> normal, upper = at, next = Y    X has given the range up
//! S5  Y -> normal with the space's header of X, only if X.upper <= at      Y owns the range
//! S6  remove the rows from `at` on in X; write the hint into the root
//! ```
//!
//! S5 is performed only on a shard that a `next` link leads to. A split whose new shard finds no space is
//! given up: X becomes normal again, and no link ever leads to Y.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_rados::{ObjectName, OmapRange, Pool, ReadStep, ReadValue, WriteError, WriteOp, WriteStep};
use lazuli_store::SpaceId;

use super::Protocol;
use crate::access::{AccessError, OP_TIMEOUT, StepOutcome};
use crate::batcher::OwnBatch;
use crate::events::ProtocolEvent;
use crate::header::{SeenHeader, ShardState};
use crate::keys::{
    DEADLINE_FENCE, GENERATION, batch_keys, bucket_keys, hint_key, partition_start, root_name, rows_end,
    shard_name, split_row_key,
};
use crate::rows::{PAGE_ROWS, after_page, page_of};
use crate::token;

/// The result of copying rows to the new shard.
enum Copied {
    /// All rows are there, this many.
    All(i64),
    /// The new shard or the split has moved on.
    ReadAgain,
    Full,
}

impl Protocol {
    /// Splits a shard if it has too many rows.
    pub(crate) async fn split_if_large(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
    ) -> Result<(), AccessError> {
        let Some((seen, counted)) = self.header_and_size(name).await? else { return Ok(()) };
        if counted + seen.header.base_rows < self.limits.split_rows as i64 || !seen.header.space().open {
            return Ok(());
        }
        self.remove_outside_rows(space, name).await?;
        let Some(at) = self.middle(name, &seen).await? else { return Ok(()) };
        self.split_at(space, name, &seen, &at).await
    }

    /// Performs S1, and then the rest.
    pub(crate) async fn split_at(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        seen: &SeenHeader,
        at: &[u8],
    ) -> Result<(), AccessError> {
        let stamp = self.access.clock.stamp();
        self.access.clock.wait_until_usable(stamp).await;
        let Some(splitting) = seen.header.begin_split(at, &shard_name(space, stamp)) else { return Ok(()) };
        if self.access.replace_header(name, seen, &splitting).await? != StepOutcome::Done {
            return Ok(());
        }
        self.access.count(ProtocolEvent::SplitBegun);
        self.finish_split(space, name, false).await
    }

    /// Returns the header of a shard and the number of rows that front ends have counted.
    async fn header_and_size(&self, name: &ObjectName) -> Result<Option<(SeenHeader, i64)>, AccessError> {
        let step = page_of(batch_keys(), PAGE_ROWS);
        let Some((seen, reply)) = self.access.read_with_header(name, vec![step]).await? else {
            return Ok(None);
        };
        let added = match &reply[..] {
            [ReadValue::OmapRange(page)] => {
                let own = page.entries.iter().filter_map(|(_, stored)| OwnBatch::decode(stored));
                own.map(|own| own.added_rows).sum()
            }
            _ => 0,
        };
        Ok(Some((seen, added)))
    }

    /// Returns the partition key nearest to the middle of a shard's rows that leaves rows on both sides.
    async fn middle(&self, name: &ObjectName, seen: &SeenHeader) -> Result<Option<Vec<u8>>, AccessError> {
        let mut partitions: BTreeMap<Bytes, usize> = BTreeMap::new();
        let end = seen.header.upper.as_deref().map_or_else(rows_end, partition_start);
        let mut from = partition_start(&seen.header.lower);
        loop {
            let step = page_of(from.clone()..end.clone(), PAGE_ROWS);
            let Some(reply) = self.access.read(name, vec![step]).await? else { return Ok(None) };
            let [ReadValue::OmapRange(page)] = &reply[..] else { return Ok(None) };
            for (key, _) in &page.entries {
                if let Some((partition, _)) = split_row_key(key) {
                    *partitions.entry(partition).or_default() += 1;
                }
            }
            match after_page(page, &from) {
                Some(next) => from = next,
                None => break,
            }
        }
        if partitions.values().sum::<usize>() < self.limits.split_rows {
            return Ok(None);
        }
        let at = middle_partition(&partitions);
        if at.is_none() {
            tracing::warn!(shard = %name, "a shard is too large, but one partition cannot be split");
        }
        Ok(at)
    }

    /// Performs S2 to S6 of the split that a shard is in.
    pub(crate) async fn finish_split(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        as_helper: bool,
    ) -> Result<(), AccessError> {
        let mut counted = !as_helper;
        while let Some(seen) = self.access.header(name).await?
            && let ShardState::Splitting { at, new } = &seen.header.state
        {
            let (at, new) = (at.clone(), ObjectName(new.clone()));
            let Some(built) = self.create(name, &seen, &new, &mut counted).await? else { continue };
            match self.copy_rows(name, &seen, &new, &built, &at).await? {
                Copied::All(_) if crate::planted(2) => {
                    self.activate(space, &new, as_helper).await?;
                    self.narrow(name, &seen, 0).await?;
                }
                Copied::All(rows) => self.narrow(name, &seen, rows).await?,
                Copied::ReadAgain => {}
                Copied::Full => self.give_up_split(name, &seen, &new, &built).await?,
            }
        }
        self.activate_next(space, name, as_helper).await?;
        self.remove_outside_rows(space, name).await
    }

    /// Creates the new shard (S2). Returns its header while the shard is being built.
    async fn create(
        &self,
        name: &ObjectName,
        seen: &SeenHeader,
        new: &ObjectName,
        counted: &mut bool,
    ) -> Result<Option<SeenHeader>, AccessError> {
        let Some(built) = seen.header.built(name) else { return Ok(None) };
        let mut entries = self.access.new_header(&built).await.to_vec();
        // A range token of the old shard must not hold here: the range may have changed since, and a bucket
        // that begins empty would equal one that was read before its first change.
        let fresh = entries[0].1.clone();
        entries.extend(bucket_keys().filter(|_| !crate::planted(12)).map(|bucket| (bucket, fresh.clone())));
        let op = WriteOp::new([WriteStep::CreateExclusive, WriteStep::SetOmap(entries)]);
        let created = self.access.step(new, op.may_exceed_full()).await? == StepOutcome::Done;
        if created {
            self.access.count(ProtocolEvent::SplitCreated);
        }
        if !std::mem::replace(counted, true) {
            let event =
                if created { ProtocolEvent::HelpedBeforeCreation } else { ProtocolEvent::HelpedWhileCopying };
            self.access.count(event);
        }
        let found = self.access.header(new).await?;
        Ok(found.filter(|found| matches!(found.header.state, ShardState::Building { .. })))
    }

    /// Copies the deadline fence and the rows from `at` on (S3).
    async fn copy_rows(
        &self,
        name: &ObjectName,
        seen: &SeenHeader,
        new: &ObjectName,
        built: &SeenHeader,
        at: &[u8],
    ) -> Result<Copied, AccessError> {
        let end = seen.header.upper.as_deref().map_or_else(rows_end, partition_start);
        let (mut from, mut rows) = (partition_start(at), 0);
        loop {
            let page =
                ReadStep::OmapRange(OmapRange { from: from.clone(), end: end.clone(), limit: PAGE_ROWS });
            let steps = vec![ReadStep::Omap(vec![DEADLINE_FENCE]), page];
            let Some(mut reply) = self.access.read(name, steps).await? else { return Ok(Copied::ReadAgain) };
            let (Some(ReadValue::OmapRange(page)), Some(ReadValue::Omap(fence))) = (reply.pop(), reply.pop())
            else {
                return Ok(Copied::ReadAgain);
            };
            rows += page.entries.len() as i64;
            let next = after_page(&page, &from);
            let compare = (!crate::planted(1)).then(|| token::equals(&GENERATION, built.generation.clone()));
            let entries = fence.into_iter().chain(page.entries).collect();
            let steps = compare.into_iter().chain([WriteStep::SetOmap(entries)]);
            match self.access.step(new, WriteOp::new(steps)).await? {
                StepOutcome::Done => self.access.count(ProtocolEvent::SplitCopied),
                StepOutcome::ReadAgain => return Ok(Copied::ReadAgain),
                StepOutcome::Full => return Ok(Copied::Full),
            }
            match next {
                Some(next) => from = next,
                None => return Ok(Copied::All(rows)),
            }
        }
    }

    /// Gives the copied range up (S4).
    async fn narrow(&self, name: &ObjectName, seen: &SeenHeader, moved: i64) -> Result<(), AccessError> {
        let Some(narrowed) = seen.header.narrowed(seen.header.base_rows - moved) else { return Ok(()) };
        if self.access.replace_header(name, seen, &narrowed).await? == StepOutcome::Done {
            self.access.count(ProtocolEvent::SplitNarrowed);
        }
        Ok(())
    }

    async fn give_up_split(
        &self,
        name: &ObjectName,
        seen: &SeenHeader,
        new: &ObjectName,
        built: &SeenHeader,
    ) -> Result<(), AccessError> {
        let Some(whole) = seen.header.split_given_up() else { return Ok(()) };
        if self.access.replace_header(name, seen, &whole).await? == StepOutcome::Done {
            self.access.count(ProtocolEvent::SplitGivenUp);
            tracing::warn!(shard = %name, "the pool is full, so a shard could not be split");
            // No link leads to the new shard, so a failure leaves only an unused object.
            let compare = token::equals(&GENERATION, built.generation.clone());
            let op = WriteOp::new([compare, WriteStep::Remove]);
            _ = self.access.step(new, op.may_exceed_full()).await?;
        }
        Ok(())
    }

    /// Performs S5 for the shard that the chain leads to, if it is not active yet.
    async fn activate_next(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        as_helper: bool,
    ) -> Result<(), AccessError> {
        match self.access.header(name).await?.and_then(|seen| seen.header.next()) {
            Some(next) => self.activate(space, &next, as_helper).await,
            None => Ok(()),
        }
    }

    /// Lets a shard take its range over (S5), once the shard that it comes from has given it up.
    pub(crate) async fn activate(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        as_helper: bool,
    ) -> Result<(), AccessError> {
        let mut counted = !as_helper;
        while let Some(seen) = self.access.header(name).await?
            && let ShardState::Building { from, .. } = &seen.header.state
        {
            if !std::mem::replace(&mut counted, true) {
                self.access.count(ProtocolEvent::HelpedBeforeActivation);
            }
            let from = ObjectName(from.clone());
            let Some(old) = self.access.header(&from).await? else { return Ok(()) };
            let Some(active) = seen.header.activated(&old.header) else {
                // The link to this shard was read before a split was given up.
                self.routes.forget(space);
                return Ok(());
            };
            if self.access.replace_header(name, &seen, &active).await? == StepOutcome::Done {
                self.access.count(ProtocolEvent::SplitActivated);
                self.write_hint(space, name, &active.lower).await?;
            }
        }
        Ok(())
    }

    /// Writes a hint to a shard into the root.
    async fn write_hint(&self, space: SpaceId, name: &ObjectName, lower: &[u8]) -> Result<(), AccessError> {
        let hint = (hint_key(lower), Bytes::copy_from_slice(name.0.as_bytes()));
        let op = WriteOp::new([WriteStep::AssertExists, WriteStep::SetOmap(vec![hint])]);
        self.access.step(&root_name(space), op).await?;
        Ok(())
    }

    /// Removes the rows outside of a shard's bounds. Bounds never grow, so a late removal is harmless.
    async fn remove_outside_rows(&self, space: SpaceId, name: &ObjectName) -> Result<(), AccessError> {
        let Some(seen) = self.access.header(name).await? else { return Ok(()) };
        let Some(upper) = &seen.header.upper else { return Ok(()) };
        let Some(next) = seen.header.next() else { return Ok(()) };
        let op = WriteOp::new([
            WriteStep::AssertExists,
            WriteStep::RemoveOmapRange(partition_start(upper)..rows_end()),
        ]);
        let removed = self.access.cluster.write(Pool::Meta, name, op.may_exceed_full(), OP_TIMEOUT).await;
        if removed == Err(WriteError::Fenced) {
            self.access.note_fenced();
        }
        self.access.count(ProtocolEvent::SplitCleaned);
        self.routes.learn(space, Bytes::copy_from_slice(upper), next);
        Ok(())
    }
}

/// Returns the first partition at or after the middle of all rows, but not the first of all.
fn middle_partition(partitions: &BTreeMap<Bytes, usize>) -> Option<Vec<u8>> {
    let half = partitions.values().sum::<usize>() / 2;
    let mut before = 0;
    for (partition, rows) in partitions {
        if before > 0 && before + rows / 2 >= half {
            return Some(partition.to_vec());
        }
        before += rows;
    }
    partitions.keys().skip(1).next_back().map(|last| last.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_is_split_near_the_middle_of_its_rows_and_leaves_rows_on_both_sides() {
        type Case = (&'static [(&'static str, usize)], Option<&'static str>);
        let table: [Case; 5] = [
            (&[("a", 10)], None),
            (&[("a", 10), ("b", 10)], Some("b")),
            (&[("a", 1), ("b", 100)], Some("b")),
            (&[("a", 100), ("b", 1)], Some("b")),
            (&[("a", 4), ("b", 3), ("c", 3), ("d", 4)], Some("c")),
        ];
        for (partitions, expected) in table {
            let partitions = partitions.iter().map(|(key, rows)| (Bytes::from(*key), *rows)).collect();
            let expected = expected.map(|key| key.as_bytes().to_vec());
            assert_eq!(middle_partition(&partitions), expected, "{partitions:?}");
        }
    }
}
