//! Several front ends on the same data as one store. Every call goes to another front end, as behind a proxy
//! that balances requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

use crate::{
    AllVisitor, Commit, CommitError, Partition, ReadError, ReadSet, Reads, RowCounts, RowPosition,
    RunVisitor, SpaceHeader, SpaceId, SpacePage, Store, Visited, Visitor, Which,
};

/// Front ends that take turns.
pub struct TakingTurns {
    front_ends: Vec<Arc<dyn Store>>,
    calls: AtomicUsize,
}

impl TakingTurns {
    /// Combines front ends, at least one, on the same data.
    pub fn new(front_ends: Vec<Arc<dyn Store>>) -> Self {
        assert!(!front_ends.is_empty());
        Self { front_ends, calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &dyn Store {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        &*self.front_ends[call % self.front_ends.len()]
    }
}

#[async_trait]
impl Store for TakingTurns {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        self.next().read(partition, reads).await
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        self.next().scan_space(space, from, end, which, limit).await
    }

    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError> {
        self.next().visit_space(space, from, end, visitor).await
    }

    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        self.next().visit_runs(space, from, end, visitor).await
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        self.next().visit_all(from, visitor).await
    }

    async fn wait_for_commits(&self) -> Result<(), CommitError> {
        for front_end in &self.front_ends {
            front_end.wait_for_commits().await?;
        }
        Ok(())
    }

    fn row_counts(&self) -> Option<RowCounts> {
        self.next().row_counts()
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.next().commit(partition, commit).await
    }

    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        self.next().space(space).await
    }

    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.next().set_space(space, from, to).await
    }

    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        self.next().sweep_space(space, from, limit).await
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        self.next().new_space().await
    }

    fn stamp(&self) -> Stamp {
        self.next().stamp()
    }

    fn now(&self) -> Timestamp {
        self.next().now()
    }
}
