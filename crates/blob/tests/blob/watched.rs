//! A store that counts the rows which scans give out, so that a test can say what a listing may cost; and that can hold up
//! the opening or closing of a space, so that a test can say what happens meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_store::{
    Commit, CommitError, Embedded, Partition, ReadError, ReadSet, Reads, SpaceHeader, SpaceId, SpacePage,
    Store, Which,
};
use tokio::sync::Notify;

pub(crate) struct Watched {
    store: Arc<Embedded>,
    rows: AtomicUsize,
    held: Mutex<Option<Arc<Hold>>>,
}

/// A change of a space's header that was asked for and is not yet made.
#[derive(Default)]
pub(crate) struct Hold {
    pub(crate) reached: Notify,
    pub(crate) go_on: Notify,
}

impl Watched {
    pub(crate) fn new(store: Arc<Embedded>) -> Self {
        Self { store, rows: AtomicUsize::new(0), held: Mutex::default() }
    }

    /// Holds up the next change of a space's header, and only that one.
    pub(crate) fn hold_next(&self) -> Arc<Hold> {
        let hold = Arc::new(Hold::default());
        *self.held.lock().unwrap() = Some(hold.clone());
        hold
    }

    /// Rows given out since this was last asked.
    pub(crate) fn take_rows(&self) -> usize {
        self.rows.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for Watched {
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
        let held = self.held.lock().unwrap().take();
        if let Some(hold) = held {
            hold.reached.notify_one();
            hold.go_on.notified().await;
        }
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
