//! Removes the rows of staged blocks that were committed or dropped.
//!
//! Dropping staged blocks changes only the row of their blob, which no longer names their generation
//! ([`crate::model::keys`]). Up to 100,000 rows remain: removing them in the same commit would delay all
//! other commits. This task removes them, a few in each commit. Until then their content is not freed.
//!
//! A request that drops blocks records the partition of its blob, and the task removes the rows soon after. A
//! crash loses these records; the walk of [`crate::background::expiry`] finds the rows then.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::commit_refusal;
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row};
use parking_lot::Mutex;

use crate::BlobService;
use crate::model::keys::{self, RowKind};
use crate::model::record::{self, Damage};

/// Rows that one commit removes. A commit may change 256 rows.
const STEP: usize = 250;
/// Maximum number of recorded partitions. If there are more, the next expiry walk begins at once.
const MAX_RECORDED: usize = BlobService::MAX_PARTITIONS_WITH_DROPPED_BLOCKS;

/// The partitions with rows of dropped blocks.
#[derive(Debug, Default)]
pub(crate) struct DroppedBlocks {
    recorded: Mutex<HashSet<Partition>>,
    /// Whether a partition could not be recorded.
    overflowed: AtomicBool,
}

impl DroppedBlocks {
    /// Watches a request that may drop blocks of a blob.
    pub(crate) fn watch<'a>(&'a self, partition: &'a Partition) -> DropWatch<'a> {
        DropWatch { dropped: self, partition, drops: AtomicBool::new(false) }
    }

    fn record(&self, partition: Partition) {
        let mut recorded = self.recorded.lock();
        if recorded.len() < MAX_RECORDED {
            recorded.insert(partition);
        } else {
            self.overflowed.store(true, Ordering::Release);
        }
    }

    /// Returns the number of recorded partitions.
    pub(crate) fn recorded(&self) -> usize {
        self.recorded.lock().len()
    }

    /// Returns whether a walk must search for partitions that could not be recorded.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Records that a walk over all rows begins.
    pub(crate) fn begin_walk(&self) {
        self.overflowed.store(false, Ordering::Release);
    }
}

/// Records the partition when a request that drops blocks ends. Also does so if the client has disconnected,
/// because the commit may still be queued then.
pub(crate) struct DropWatch<'a> {
    dropped: &'a DroppedBlocks,
    partition: &'a Partition,
    drops: AtomicBool,
}

impl DropWatch<'_> {
    /// Records that the request is about to commit a change that leaves rows of dropped blocks.
    pub(crate) fn set(&self) {
        self.drops.store(true, Ordering::Relaxed);
    }
}

impl Drop for DropWatch<'_> {
    fn drop(&mut self) {
        if *self.drops.get_mut() {
            self.dropped.record(self.partition.clone());
        }
    }
}

/// The partitions that a running removal has not finished. Dropping this value records them again.
struct PartitionsInProgress<'a> {
    dropped: &'a DroppedBlocks,
    partitions: Vec<Partition>,
}

impl Drop for PartitionsInProgress<'_> {
    fn drop(&mut self) {
        self.partitions.drain(..).for_each(|partition| self.dropped.record(partition));
    }
}

impl BlobService {
    /// Returns whether [`BlobService::remove_dropped`] has work.
    pub fn dropped_due(&self) -> bool {
        !self.dropped.recorded.lock().is_empty()
    }

    /// Removes the rows of dropped blocks from the recorded partitions. Returns the number of removed rows.
    /// May be dropped at any point.
    pub async fn remove_dropped(&self, pace: Pace) -> Result<u64, Refusal> {
        let partitions = std::mem::take(&mut *self.dropped.recorded.lock()).into_iter().collect();
        let mut recorded = PartitionsInProgress { dropped: &self.dropped, partitions };
        // The commit of a request whose client has disconnected may still be queued.
        self.store.wait_for_commits().await.map_err(|error| commit_refusal("all partitions", error))?;
        let mut removed = 0;
        while let Some(partition) = recorded.partitions.last() {
            let done = self.remove_dropped_of(partition, pace).await;
            let is_busy = |refusal: &Refusal| refusal.code() == ErrorCode::ServerBusy;
            if !done.as_ref().is_err_and(is_busy) {
                recorded.partitions.pop();
            }
            match done {
                Ok(rows) => removed += rows,
                // The container was deleted meanwhile, with all of its rows.
                Err(refusal) if refusal.code() == ErrorCode::ContainerNotFound => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(removed)
    }

    /// Removes the rows of dropped blocks from a partition. Returns their number.
    pub(crate) async fn remove_dropped_of(&self, partition: &Partition, pace: Pace) -> Result<u64, Refusal> {
        let (mut removed, mut from) = (0, Bytes::new());
        loop {
            let set = self.rows.read(partition, &Reads::key(keys::BASE)).await?;
            let mut reads = Reads::default();
            let current = generation(set.rows.first().and_then(Option::as_ref));
            for mut range in keys::dropped(current.map_err(|damage| damage.at(partition))?) {
                // Skip the keys of removed rows, because reading past their tombstones is slow.
                range.start = range.start.max(from.clone());
                reads = reads.and_range(range, STEP);
            }
            let set = self.rows.read(partition, &reads).await?;
            let rows = set.ranges.iter().flat_map(|range| &range.rows).take(STEP);
            let keys: Vec<Bytes> = rows.map(|row| row.key.clone()).collect();
            let Some(last) = keys.last() else { return Ok(removed) };
            from = [last, &[0][..]].concat().into();
            removed += self
                .transact(partition, Reads::key(keys::BASE), |view| {
                    let current = generation(view.row(&keys::BASE))?;
                    let dropped = keys.iter().filter(|key| is_dropped(key, current));
                    let mutations: Vec<_> = dropped.cloned().map(Mutation::Delete).collect();
                    let count = mutations.len() as u64;
                    Ok(match mutations.is_empty() {
                        true => Decision::Answer(0),
                        false => Decision::Write(Change::of(mutations), count),
                    })
                })
                .await?;
            pace.rest().await;
        }
    }
}

/// Returns the generation of staged blocks that the blob's row names.
fn generation(base: Option<&Row>) -> Result<Option<u64>, Damage> {
    Ok(record::blob(base)?.and_then(|blob| blob.staging).map(|staging| staging.generation))
}

/// Returns whether a row belongs to a staged block of another generation than the current one.
fn is_dropped(key: &[u8], current: Option<u64>) -> bool {
    matches!(keys::row_kind(key), Some(RowKind::Staged { generation, .. }) if Some(generation) != current)
}

/// Finds dropped blocks in a walk over all rows in order. The row of the current state is the first one of
/// its partition.
#[derive(Default)]
pub(crate) struct DroppedSearch {
    partition: Bytes,
    current: Option<u64>,
    /// Whether the row of the current state is damaged, so that no generation is known to be dropped.
    is_damaged: bool,
}

impl DroppedSearch {
    /// Returns whether these consecutive rows of a partition include some of dropped blocks.
    pub(crate) fn has_dropped(&mut self, partition: &Bytes, rows: &[(Bytes, Row)]) -> bool {
        let base = rows.first().map(|(_, row)| row).filter(|row| row.key == keys::BASE);
        if base.is_some() || *partition != self.partition {
            self.partition = partition.clone();
            let current = generation(base);
            self.is_damaged = current.is_err();
            self.current = current.unwrap_or_default();
        }
        !self.is_damaged && rows.iter().any(|(_, row)| is_dropped(&row.key, self.current))
    }
}

#[cfg(test)]
mod tests {
    use lazuli_store::SpaceId;

    use super::*;

    #[test]
    fn partition_that_cannot_be_recorded_makes_a_walk_due() {
        let dropped = DroppedBlocks::default();
        let partition = |n: usize| keys::blob(SpaceId(1), &n.to_string());
        for n in 0..MAX_RECORDED {
            let (partition, other) = (partition(n), partition(n + MAX_RECORDED));
            dropped.watch(&partition).set();
            // This request drops nothing.
            drop(dropped.watch(&other));
        }
        assert_eq!((dropped.recorded.lock().len(), dropped.has_overflowed()), (MAX_RECORDED, false));
        let last = partition(MAX_RECORDED);
        dropped.watch(&last).set();
        assert_eq!((dropped.recorded.lock().len(), dropped.has_overflowed()), (MAX_RECORDED, true));
        dropped.begin_walk();
        assert!(!dropped.has_overflowed());
    }
}
