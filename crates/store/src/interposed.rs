//! Stores that intercept calls, for tests: they count, delay or fail calls on their way to a store.

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

/// Intercepts calls to a store. Methods that are not overridden pass calls through.
#[async_trait]
pub trait Interposer: Send + Sync + 'static {
    /// Handles a commit.
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        store.commit(partition, commit).await
    }

    /// Handles a change of a space's header.
    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        store.set_space(space, from, to).await
    }

    /// Handles a call that waits until all earlier commits are decided.
    async fn wait_for_commits(&self, store: &dyn Store) -> Result<(), CommitError> {
        store.wait_for_commits().await
    }

    /// Runs after rows of a partition were read, before they are returned.
    async fn was_read(&self) {}

    /// Runs after each page of a walk over all rows.
    async fn page_visited(&self, _store: &dyn Store) {}

    /// Runs after a scan or a visit that returned this many rows.
    fn scanned(&self, _rows: usize) {}
}

/// A store whose calls pass through an [`Interposer`].
pub struct Interposed<B> {
    store: Arc<dyn Store>,
    /// The interposer.
    pub interposer: B,
}

impl<B> Interposed<B> {
    /// Puts an interposer in front of a store.
    pub fn new(store: Arc<dyn Store>, interposer: B) -> Self {
        Self { store, interposer }
    }
}

#[async_trait]
impl<B: Interposer> Store for Interposed<B> {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        let set = self.store.read(partition, reads).await;
        self.interposer.was_read().await;
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
        self.interposer.scanned(page.rows.len());
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
        self.interposer.scanned(rows);
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
        self.interposer.scanned(rows);
        Ok(visited)
    }

    async fn visit_all(
        &self,
        from: Option<RowPosition>,
        visitor: &mut AllVisitor<'_>,
    ) -> Result<Option<RowPosition>, ReadError> {
        let next = self.store.visit_all(from, visitor).await?;
        self.interposer.page_visited(&*self.store).await;
        Ok(next)
    }

    async fn wait_for_commits(&self) -> Result<(), CommitError> {
        self.interposer.wait_for_commits(&*self.store).await
    }

    fn row_counts(&self) -> Option<RowCounts> {
        self.store.row_counts()
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.interposer.commit(&*self.store, partition, commit).await
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
        self.interposer.set_space(&*self.store, space, from, to).await
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

/// Simulates a crash at a commit or at a change of a space's header. The caller does not learn whether the
/// write took effect. All later writes fail.
pub struct CrashAtWrite {
    left: AtomicI64,
    last_takes_effect: bool,
}

impl CrashAtWrite {
    /// Crashes at the write with this number, counted from 1; with 0 every write fails.
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
impl Interposer for CrashAtWrite {
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
