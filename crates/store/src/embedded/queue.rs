//! The queue of work for the committer: bounded, first in, first out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_metrics::{COUNT_BUCKETS, Histogram};
use lsm_tree::SeqNo;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::rows::Preview;
use crate::limits::commit_bytes;
use crate::{Commit, CommitError, MAX_BULK_COMMIT_BYTES, SpaceHeader, SpaceId};

/// Capacity of the queue: bytes of all waiting commits, in units of [`UNIT_BYTES`].
const QUEUE_UNITS: usize = (MAX_BULK_COMMIT_BYTES + (64 << 20)) / UNIT_BYTES;
const UNIT_BYTES: usize = 1024;
/// The minimum number of bytes that a commit counts as, which limits the number of waiting commits.
const MIN_JOB_BYTES: usize = 8 * UNIT_BYTES;
/// Maximum time that a commit waits for space in the queue before it fails with [`CommitError::Busy`].
const MAX_ENQUEUE_WAIT: Duration = Duration::from_secs(10);
/// A group has at most this many jobs.
const GROUP_JOBS: usize = 1024;
/// A group takes no further job once it would have more bytes.
pub(super) const GROUP_BYTES: usize = 16 << 20;

/// Work for the committer.
pub(crate) enum Work {
    /// A commit in the partition with this key prefix, and the rows that it depends on.
    Commit { space: SpaceId, prefix: Bytes, commit: Commit, preview: Preview },
    /// Replaces the header of a space, if it still is `from`.
    SetSpace { space: SpaceId, from: Option<SpaceHeader>, to: SpaceHeader, stamp: Stamp },
    /// Removes rows of a closed space that were read below the sequence number `read_at`. If `last`, also
    /// removes its header.
    Sweep { space: SpaceId, keys: Vec<Bytes>, read_at: SeqNo, last: bool },
    /// Raises the clock's ceiling.
    Ceiling,
    /// Changes nothing. Every group publishes a snapshot, so this publishes the newest view. Also used to
    /// wait for all earlier commits.
    Republish,
}

/// Work, and the channel for its answer.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) answer: Option<oneshot::Sender<Result<(), CommitError>>>,
    /// Space in the queue, released when the job is dropped.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// The result of waiting for a group.
pub(crate) enum NextJobs {
    /// The jobs of the group, in order.
    Jobs(Vec<Job>),
    /// No job arrived in time.
    TimedOut,
    /// The queue is empty and closed.
    Closed,
}

pub(crate) struct CommitQueue {
    capacity: Arc<Semaphore>,
    queued: Mutex<QueuedJobs>,
    changed: Condvar,
    /// Times from submitting work to its answer.
    pub(super) times: Histogram,
    /// Number of jobs in each group.
    pub(super) groups: Histogram,
}

#[derive(Default)]
struct QueuedJobs {
    jobs: VecDeque<Job>,
    closed: bool,
    /// The committer sleeps until this many jobs wait.
    wake_at: Option<usize>,
}

impl QueuedJobs {
    /// Moves jobs into a new group up to its limits. The first job always fits.
    fn move_into(&mut self, group: &mut Vec<Job>) {
        let mut bytes = 0;
        while let Some(job) = self.jobs.front() {
            bytes += job.work.bytes();
            if group.len() >= GROUP_JOBS || (bytes > GROUP_BYTES && !group.is_empty()) {
                return;
            }
            group.extend(self.jobs.pop_front());
        }
    }
}

impl CommitQueue {
    pub(crate) fn new() -> Self {
        Self {
            capacity: Arc::new(Semaphore::new(QUEUE_UNITS)),
            queued: Mutex::default(),
            changed: Condvar::new(),
            times: Histogram::of_times(),
            groups: Histogram::new(COUNT_BUCKETS),
        }
    }

    /// Submits work and waits for the committer's answer.
    pub(crate) async fn submit(&self, work: Work) -> Result<(), CommitError> {
        let began = Instant::now();
        let units = work.bytes().max(MIN_JOB_BYTES).div_ceil(UNIT_BYTES) as u32;
        let permit = match self.capacity.clone().try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => {
                match tokio::time::timeout(MAX_ENQUEUE_WAIT, self.capacity.clone().acquire_many_owned(units))
                    .await
                {
                    Ok(Ok(permit)) => permit,
                    _ => return Err(CommitError::Busy),
                }
            }
        };
        let (answer, answered) = oneshot::channel();
        self.push(Job { work, answer: Some(answer), _permit: Some(permit) })?;
        // The committer answers every job that it took. A job is dropped only if the committer dies.
        let answer = answered.await.unwrap_or(Err(CommitError::Unknown));
        self.times.record_time(began.elapsed());
        answer
    }

    /// Submits work without waiting for an answer.
    pub(crate) fn post(&self, work: Work) {
        let _ = self.push(Job { work, answer: None, _permit: None });
    }

    fn push(&self, job: Job) -> Result<(), CommitError> {
        let mut queued = self.queued.lock();
        if queued.closed {
            return Err(CommitError::Stopped);
        }
        queued.jobs.push_back(job);
        if queued.wake_at.is_some_and(|wake_at| queued.jobs.len() >= wake_at) {
            queued.wake_at = None;
            drop(queued);
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes the next group of jobs, or times out.
    ///
    /// Clients answered by the last sync send their next commit within microseconds of each other. Waiting
    /// briefly for a group of the same size avoids a sync for the first one alone, after which the others
    /// would wait for a second sync.
    pub(crate) fn next_group(&self, expected: usize, gather: Duration, within: Option<Duration>) -> NextJobs {
        let expected = expected.clamp(1, GROUP_JOBS);
        let deadline = within.map(|within| Instant::now() + within);
        let mut queued = self.queued.lock();
        if expected > 1 {
            self.wait_for(&mut queued, expected, Some(Instant::now() + gather));
        }
        if queued.jobs.is_empty() {
            self.wait_for(&mut queued, 1, deadline);
            if queued.jobs.is_empty() {
                return if queued.closed { NextJobs::Closed } else { NextJobs::TimedOut };
            }
            self.wait_for(&mut queued, expected, Some(Instant::now() + gather));
        }
        let mut jobs = vec![];
        queued.move_into(&mut jobs);
        self.groups.record(jobs.len() as u64);
        NextJobs::Jobs(jobs)
    }

    /// Sleeps until `jobs` jobs wait, the time is over, or the queue is closed.
    ///
    /// Yielding the processor would react faster on an idle machine. But on a busy one it returns only after
    /// the slices of all other threads, which takes milliseconds.
    fn wait_for(&self, queued: &mut MutexGuard<'_, QueuedJobs>, jobs: usize, until: Option<Instant>) {
        queued.wake_at = Some(jobs);
        while queued.jobs.len() < jobs && !queued.closed {
            match until {
                Some(until) if self.changed.wait_until(queued, until).timed_out() => break,
                Some(_) => {}
                None => self.changed.wait(queued),
            }
        }
        queued.wake_at = None;
    }

    /// Returns the number of waiting jobs.
    pub(super) fn depth(&self) -> usize {
        self.queued.lock().jobs.len()
    }

    /// Closes the queue for new work. The committer still does the waiting work.
    pub(crate) fn close(&self) {
        self.queued.lock().closed = true;
        self.changed.notify_all();
    }
}

impl CommitQueue {
    /// Closes the queue after the committer has ended. Waiting callers get an unknown outcome.
    pub(crate) fn abandon(&self) {
        let mut queued = self.queued.lock();
        queued.closed = true;
        queued.jobs.clear();
    }
}

impl Work {
    fn bytes(&self) -> usize {
        match self {
            Self::Commit { prefix, commit, .. } => {
                commit_bytes(commit) + prefix.len() * commit.mutations.len()
            }
            Self::Sweep { keys, .. } => keys.iter().map(Bytes::len).sum(),
            Self::SetSpace { .. } | Self::Ceiling | Self::Republish => 32,
        }
    }
}
