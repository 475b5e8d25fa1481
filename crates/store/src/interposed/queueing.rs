//! A store that keeps one commit in its queue, while the client of the commit may disconnect.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::Interposer;
use crate::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};

/// Keeps one commit queued. The store decides it before the next commit that changes a row, before the next
/// change of a space's header, and before `wait_for_commits` returns. Commits without changes wait for it.
/// The caller of the queued commit never gets an answer; the test drops it.
#[derive(Clone, Default)]
pub struct Queueing(Arc<QueueingState>);

type PartitionFilter = fn(&Partition) -> bool;

#[derive(Default)]
struct QueueingState {
    picks: Mutex<Option<PartitionFilter>>,
    queued: AsyncMutex<Option<(Partition, Commit)>>,
    outcome: Mutex<Option<Result<(), CommitError>>>,
    was_queued: Notify,
    was_dropped: Notify,
    was_decided: Notify,
}

/// Notifies when the caller of the queued commit drops it.
struct DropNotifier<'a>(&'a Notify);

impl Drop for DropNotifier<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Queueing {
    /// Queues the next commit to a partition that `picks` selects.
    pub fn queue_next(&self, picks: PartitionFilter) {
        *self.0.picks.lock() = Some(picks);
    }

    /// Waits until a commit is queued.
    pub async fn queued(&self) {
        self.0.was_queued.notified().await;
    }

    /// Waits until the caller of the queued commit has dropped it.
    pub async fn dropped(&self) {
        self.0.was_dropped.notified().await;
    }

    /// Returns the store's decision about the queued commit, or `None` before it.
    pub fn outcome(&self) -> Option<Result<(), CommitError>> {
        *self.0.outcome.lock()
    }

    async fn decide(&self, store: &dyn Store) {
        let mut queued = self.0.queued.lock().await;
        if let Some((partition, commit)) = queued.take() {
            let outcome = store.commit(&partition, commit).await;
            *self.0.outcome.lock() = Some(outcome);
            self.0.was_decided.notify_waiters();
        }
    }

    async fn wait_until_decided(&self) {
        loop {
            let decided = self.0.was_decided.notified();
            if self.0.queued.lock().await.is_none() {
                return;
            }
            decided.await;
        }
    }
}

#[async_trait]
impl Interposer for Queueing {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        let is_picked = self.0.picks.lock().take_if(|picks| picks(partition)).is_some();
        if is_picked {
            *self.0.queued.lock().await = Some((partition.clone(), commit));
            let _notifier = DropNotifier(&self.0.was_dropped);
            self.0.was_queued.notify_one();
            return pending().await;
        }
        if commit.mutations.is_empty() {
            self.wait_until_decided().await;
        } else {
            self.decide(store).await;
        }
        store.commit(partition, commit).await
    }

    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.decide(store).await;
        store.set_space(space, from, to).await
    }

    async fn wait_for_commits(&self, store: &dyn Store) -> Result<(), CommitError> {
        self.decide(store).await;
        store.wait_for_commits().await
    }
}
