//! An engine that keeps all rows in memory, for tests only: the rows are lost when the process ends.
//!
//! All rows are in one ordered map under one lock. Commits are judged and applied under the lock, so no
//! commit is in flight after its call returns. A read holds the lock for one page. It shares values and
//! copies none, except into [runs](crate::Run). Visitors are called under the lock, so they must not call the
//! store.
//!
//! Memory is bounded. A commit that would exceed the bound is refused with [`CommitError::Full`]. A commit
//! that frees memory is always accepted.

mod rows;

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Clock, Stamp, Timestamp};
use parking_lot::RwLock;
use tokio::task::coop::consume_budget;

use crate::clock::EngineClock;
use crate::limits::check_limits;
use crate::run::{MAX_RUN_ROWS, RunBuilder};
use crate::{
    AllVisitor, Commit, CommitError, MAX_SCAN_BYTES, MAX_SCAN_ROWS, Partition, ReadError, ReadSet, Reads,
    RowCounts, RowPosition, RunVisitor, SpaceHeader, SpaceId, SpacePage, Store, Stretch, Visited, Visitor,
    Which,
};
use rows::{RowMap, Version, position, space_end};

/// Rows in the first run that a visitor gets. A visitor may stop after few rows, so only later runs are
/// longer.
const FIRST_RUN_ROWS: usize = 64;

/// A store that keeps its rows in memory.
///
/// ```
/// # use std::sync::Arc;
/// # use bytes::Bytes;
/// # use lazuli_concurrency::SystemClock;
/// # use lazuli_store::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = InMemoryStore::new(Arc::new(SystemClock), 1 << 20);
/// let space = store.new_space().await?;
/// store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await?;
///
/// let partition = Partition::new(space, "partition");
/// let create = |stamp| Commit {
///     stamp,
///     epoch: 0,
///     conditions: vec![Condition::Absent(Bytes::from("key"))],
///     mutations: vec![Mutation::Put(Bytes::from("key"), Bytes::from("value"))],
///     valid_until: None,
///     fence: None,
///     bulk: false,
/// };
/// store.commit(&partition, create(store.stamp())).await?;
/// assert_eq!(store.commit(&partition, create(store.stamp())).await, Err(CommitError::Conflict));
/// # Ok(())
/// # }
/// ```
pub struct InMemoryStore {
    clock: EngineClock,
    rows: RwLock<RowMap>,
}

impl InMemoryStore {
    /// Creates an empty store that uses at most about `max_bytes` of memory.
    pub fn new(clock: Arc<dyn Clock>, max_bytes: u64) -> Self {
        Self { clock: EngineClock::without_ceiling(clock), rows: RwLock::new(RowMap::new(max_bytes)) }
    }

    /// Returns the memory of the rows, in bytes.
    pub fn bytes(&self) -> u64 {
        self.rows.read().bytes()
    }

    /// Returns whether the last commit that needed memory was refused.
    pub fn is_full(&self) -> bool {
        self.rows.read().is_full()
    }
}

#[async_trait]
impl Store for InMemoryStore {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        // No read waits, so a task that reads in a loop would never yield to others.
        consume_budget().await;
        let rows = self.rows.read();
        Ok(ReadSet {
            space: rows.header(partition.space),
            rows: reads.keys.iter().map(|key| rows.get(partition, key)).collect(),
            ranges: reads.ranges.iter().map(|(range, limit)| rows.scan(partition, range, *limit)).collect(),
        })
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        consume_budget().await;
        let (mut page, limit) = (vec![], limit.min(MAX_SCAN_ROWS));
        let Visited { space, next } = self.rows.read().walk(space, from, end, which, |partition, row| {
            if page.len() == limit {
                return ControlFlow::Break(());
            }
            page.push((partition, row));
            ControlFlow::Continue(())
        });
        Ok(SpacePage { space, rows: page, next })
    }

    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError> {
        consume_budget().await;
        let mut left = MAX_SCAN_ROWS;
        Ok(self.rows.read().walk(space, from, end, Which::All, |partition, row| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            visitor(partition, row)
        }))
    }

    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        consume_budget().await;
        let rows = self.rows.read();
        let mut visited = Visited { space: rows.header(space), next: None };
        let end = end.map_or_else(|| space_end(space), |end| position(space, end));
        let mut remaining = rows.between(position(space, from), end).peekable();
        let (mut shown, mut bytes) = (0, 0);
        while let Some((first, _)) = remaining.peek() {
            if shown >= MAX_SCAN_ROWS || bytes >= MAX_SCAN_BYTES {
                visited.next = Some((first.partition.clone(), first.key.clone()));
                break;
            }
            let most = shown.clamp(FIRST_RUN_ROWS, MAX_RUN_ROWS);
            let mut run = RunBuilder::default();
            while let Some((position, Version { token, value })) =
                remaining.next_if(|_| run.len() < most && run.has_room())
            {
                run.add(&position.partition, &position.key, value, *token);
            }
            let stretch = Stretch { rows: 0..run.len(), run: Arc::new(run.finish()), kept: false };
            if let ControlFlow::Break(row) = visitor(&stretch)
                && stretch.rows.contains(&row)
            {
                let copy = Bytes::copy_from_slice;
                visited.next = Some((copy(stretch.run.partition(row)), copy(stretch.run.key(row))));
                break;
            }
            let cost = stretch.cost();
            (shown, bytes) = (shown + cost.0, bytes + cost.1);
        }
        Ok(visited)
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        consume_budget().await;
        Ok(self.rows.read().walk_all(from, visitor))
    }

    async fn wait_for_commits(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn row_counts(&self) -> Option<RowCounts> {
        Some(self.rows.read().counts())
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        consume_budget().await;
        check_limits(partition, &commit)?;
        let mut rows = self.rows.write();
        // Read the time under the lock, so that deadlines are judged in the order of the commits.
        let now = self.now();
        rows.commit(partition, &commit, now)
    }

    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        Ok(self.rows.read().header(space))
    }

    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.rows.write().set_header(space, from, to)
    }

    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        consume_budget().await;
        self.rows.write().sweep(space, from, limit)
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        // A stamp is never issued twice, so neither is a space.
        Ok(SpaceId(self.stamp().ticks()))
    }

    fn stamp(&self) -> Stamp {
        self.clock.stamp(|| ())
    }

    fn now(&self) -> Timestamp {
        self.clock.now(|| ())
    }
}
