//! A store whose commits wait in a queue, and whose reads give up the thread.
//!
//! A request that is dropped after it submitted a commit leaves the commit in the queue, as on a busy store. Every read and
//! every commit is a point at which the request can be dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lazuli_store::interposed::Between;
use lazuli_store::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

type Answer = oneshot::Sender<Result<(), CommitError>>;

enum Job {
    Commit(Partition, Commit, Answer),
    SetSpace(SpaceId, Option<SpaceHeader>, SpaceHeader, Answer),
    Settled(Answer),
}

/// Decides commits in the order in which they were submitted, each after a number of turns of the scheduler.
pub(crate) struct Late {
    queue: mpsc::UnboundedSender<Job>,
    turns: Arc<AtomicU32>,
}

impl Late {
    /// Starts the task that decides. It ends when this is dropped.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let (queue, mut jobs) = mpsc::unbounded_channel();
        let turns = Arc::new(AtomicU32::new(0));
        let late = turns.clone();
        tokio::spawn(async move {
            while let Some(job) = jobs.recv().await {
                for _ in 0..late.load(Ordering::Relaxed) {
                    yield_now().await;
                }
                // The caller may have been dropped.
                let _ = match job {
                    Job::Commit(partition, commit, answer) => {
                        answer.send(store.commit(&partition, commit).await)
                    }
                    Job::SetSpace(space, from, to, answer) => {
                        answer.send(store.set_space(space, from, to).await)
                    }
                    Job::Settled(answer) => answer.send(store.settled().await),
                };
            }
        });
        Self { queue, turns }
    }

    /// Sets how many turns of the scheduler each commit waits.
    pub(crate) fn delay(&self, turns: u32) {
        self.turns.store(turns, Ordering::Relaxed);
    }

    async fn decided(&self, job: impl FnOnce(Answer) -> Job) -> Result<(), CommitError> {
        yield_now().await;
        let (answer, decided) = oneshot::channel();
        if self.queue.send(job(answer)).is_err() {
            return Err(CommitError::Stopped);
        }
        decided.await.unwrap_or(Err(CommitError::Unknown))
    }
}

#[async_trait]
impl Between for Late {
    async fn commit(&self, _: &dyn Store, partition: &Partition, commit: Commit) -> Result<(), CommitError> {
        self.decided(|answer| Job::Commit(partition.clone(), commit, answer)).await
    }

    async fn set_space(
        &self,
        _: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.decided(|answer| Job::SetSpace(space, from, to, answer)).await
    }

    async fn settled(&self, _: &dyn Store) -> Result<(), CommitError> {
        self.decided(Job::Settled).await
    }

    async fn was_read(&self) {
        yield_now().await;
    }
}
