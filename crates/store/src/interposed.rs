//! A store with somebody in between, for tests: one who counts, holds up, or lets the process die at a commit.

mod queueing;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};

use crate::{
    AllVisitor, Commit, CommitError, Partition, ReadError, ReadSet, Reads, RowCounts, RowPosition,
    RunVisitor, SpaceHeader, SpaceId, SpacePage, Store, Stretch, Visited, Visitor, Which,
};

pub use queueing::Queueing;

/// Who stands between a store and its callers. What is not overridden goes through.
#[async_trait]
pub trait Between: Send + Sync + 'static {
    /// A commit is asked for.
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        store.commit(partition, commit).await
    }

    /// A space is to be opened or closed.
    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        store.set_space(space, from, to).await
    }

    /// Every commit that was submitted before is to be decided.
    async fn settled(&self, store: &dyn Store) -> Result<(), CommitError> {
        store.settled().await
    }

    /// Rows of a partition have been read, and are about to be given out.
    async fn was_read(&self) {}

    /// A page of a walk over all rows has been shown.
    async fn page_visited(&self, _store: &dyn Store) {}

    /// A scan has given out so many rows.
    fn scanned(&self, _rows: usize) {}
}

/// A store as those see it who have somebody between them and it.
pub struct Interposed<B> {
    store: Arc<dyn Store>,
    /// Who is in between.
    pub between: B,
}

impl<B> Interposed<B> {
    /// Puts somebody in front of a store.
    pub fn new(store: Arc<dyn Store>, between: B) -> Self {
        Self { store, between }
    }
}

#[async_trait]
impl<B: Between> Store for Interposed<B> {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        let set = self.store.read(partition, reads).await;
        self.between.was_read().await;
        set
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        let page = self.store.scan_space(space, from, end, which, limit).await?;
        self.between.scanned(page.rows.len());
        Ok(page)
    }

    async fn visit_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut Visitor<'_>,
    ) -> Result<Visited, ReadError> {
        let mut rows = 0;
        let mut counting = |partition, row| {
            rows += 1;
            visitor(partition, row)
        };
        let visited = self.store.visit_space(space, from, end, &mut counting).await?;
        self.between.scanned(rows);
        Ok(visited)
    }

    async fn visit_runs(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<(Bytes, Bytes)>,
        visitor: &mut RunVisitor<'_>,
    ) -> Result<Visited, ReadError> {
        let mut rows = 0;
        let mut counting = |stretch: &Stretch| {
            rows += stretch.rows.len();
            visitor(stretch)
        };
        let visited = self.store.visit_runs(space, from, end, &mut counting).await?;
        self.between.scanned(rows);
        Ok(visited)
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        let next = self.store.visit_all(from, visitor).await?;
        self.between.page_visited(&*self.store).await;
        Ok(next)
    }

    async fn settled(&self) -> Result<(), CommitError> {
        self.between.settled(&*self.store).await
    }

    fn row_counts(&self) -> Option<RowCounts> {
        self.store.row_counts()
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.between.commit(&*self.store, partition, commit).await
    }

    async fn space(&self, space: SpaceId) -> Result<Option<SpaceHeader>, ReadError> {
        self.store.space(space).await
    }

    async fn set_space(
        &self,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.between.set_space(&*self.store, space, from, to).await
    }

    async fn sweep_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        limit: usize,
    ) -> Result<Option<(Bytes, Bytes)>, CommitError> {
        self.store.sweep_space(space, from, limit).await
    }

    async fn new_space(&self) -> Result<SpaceId, CommitError> {
        self.store.new_space().await
    }

    fn stamp(&self) -> Stamp {
        self.store.stamp()
    }

    fn now(&self) -> Timestamp {
        self.store.now()
    }
}

/// The process dies at a commit or at a change of a space's header: before it takes effect or after, the caller never
/// learns which. Nothing is written from then on.
pub struct Dying {
    left: AtomicI64,
    last_takes_effect: bool,
}

impl Dying {
    /// The write at which it dies, counted from 1; with 0 it is dead from the start.
    pub fn at(write: u32, last_takes_effect: bool) -> Self {
        Self { left: i64::from(write).into(), last_takes_effect }
    }

    async fn write<T: Send>(
        &self,
        write: impl Future<Output = Result<T, CommitError>> + Send,
    ) -> Result<T, CommitError> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 1 {
            return write.await;
        }
        if left == 1 && self.last_takes_effect {
            let _ = write.await;
        }
        Err(CommitError::Unknown)
    }
}

#[async_trait]
impl Between for Dying {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        self.write(store.commit(partition, commit)).await
    }

    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.write(store.set_space(space, from, to)).await
    }
}
