//! A store that counts the rows which scans give out, so that a test can say what a listing may cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_store::{
    Commit, CommitError, Embedded, Partition, ReadError, ReadSet, Reads, SpaceHeader, SpaceId, SpacePage,
    Store, Which,
};

pub(crate) struct Counted {
    store: Arc<Embedded>,
    rows: AtomicUsize,
}

impl Counted {
    pub(crate) fn new(store: Arc<Embedded>) -> Self {
        Self { store, rows: AtomicUsize::new(0) }
    }

    /// Rows given out since this was last asked.
    pub(crate) fn take(&self) -> usize {
        self.rows.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for Counted {
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, ReadError> {
        self.store.read(partition, reads).await
    }

    async fn scan_space(
        &self,
        space: SpaceId,
        from: (Bytes, Bytes),
        end: Option<Bytes>,
        which: Which,
        limit: usize,
    ) -> Result<SpacePage, ReadError> {
        let page = self.store.scan_space(space, from, end, which, limit).await?;
        self.rows.fetch_add(page.rows.len(), Ordering::SeqCst);
        Ok(page)
    }

    async fn commit(&self, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.store.commit(partition, commit).await
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
        self.store.set_space(space, from, to).await
    }

    async fn sweep_space(&self, space: SpaceId, limit: usize) -> Result<bool, CommitError> {
        self.store.sweep_space(space, limit).await
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
