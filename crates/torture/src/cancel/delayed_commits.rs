//! A store that queues its commits, and whose reads yield.
//!
//! A request that is dropped after submitting a commit leaves the commit in the queue, as on a busy store.
//! Every read and every commit is an await point at which the request can be dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lazuli_store::interposed::Interposer;
use lazuli_store::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

type ReplySender = oneshot::Sender<Result<(), CommitError>>;

enum QueuedCommit {
    Commit(Partition, Commit, ReplySender),
    SetSpace(SpaceId, Option<SpaceHeader>, SpaceHeader, ReplySender),
    Barrier(ReplySender),
}

/// Decides commits in the order of their submission, each after a number of scheduler turns.
pub(crate) struct DelayedCommits {
    queue: mpsc::UnboundedSender<QueuedCommit>,
    turns: Arc<AtomicU32>,
}

impl DelayedCommits {
    /// Starts the task that decides commits. The task ends when the result is dropped.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let (queue, mut jobs) = mpsc::unbounded_channel();
        let turns = Arc::new(AtomicU32::new(0));
        let delay_turns = turns.clone();
        tokio::spawn(async move {
            while let Some(job) = jobs.recv().await {
                for _ in 0..delay_turns.load(Ordering::Relaxed) {
                    yield_now().await;
                }
                // The caller may have been dropped, so ignore send errors.
                let _ = match job {
                    QueuedCommit::Commit(partition, commit, reply) => {
                        reply.send(store.commit(&partition, commit).await)
                    }
                    QueuedCommit::SetSpace(space, from, to, reply) => {
                        reply.send(store.set_space(space, from, to).await)
                    }
                    QueuedCommit::Barrier(reply) => reply.send(store.wait_for_commits().await),
                };
            }
        });
        Self { queue, turns }
    }

    /// Sets the number of scheduler turns by which each commit is delayed.
    pub(crate) fn delay(&self, turns: u32) {
        self.turns.store(turns, Ordering::Relaxed);
    }

    async fn decided(&self, job: impl FnOnce(ReplySender) -> QueuedCommit) -> Result<(), CommitError> {
        yield_now().await;
        let (reply, decided) = oneshot::channel();
        if self.queue.send(job(reply)).is_err() {
            return Err(CommitError::Stopped);
        }
        decided.await.unwrap_or(Err(CommitError::Unknown))
    }
}

#[async_trait]
impl Interposer for DelayedCommits {
    async fn commit(&self, _: &dyn Store, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.decided(|reply| QueuedCommit::Commit(partition.clone(), commit, reply)).await
    }

    async fn set_space(
        &self,
        _: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.decided(|reply| QueuedCommit::SetSpace(space, from, to, reply)).await
    }

    async fn wait_for_commits(&self, _: &dyn Store) -> Result<(), CommitError> {
        self.decided(QueuedCommit::Barrier).await
    }

    async fn was_read(&self) {
        yield_now().await;
    }
}
