//! What waits for the committer: bounded, first come first served.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_metrics::{COUNTS, Histogram};
use lsm_tree::SeqNo;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::rows::Preview;
use crate::{Commit, CommitError, MAX_BULK_COMMIT_BYTES, Mutation, SpaceHeader, SpaceId};

/// Bytes that may wait, all commits together, in units of [`UNIT`].
const ROOM: usize = (MAX_BULK_COMMIT_BYTES + (64 << 20)) / UNIT;
const UNIT: usize = 1024;
/// A commit counts as at least so much, which bounds how many may wait.
const LEAST: usize = 8 * UNIT;
/// How long a commit waits for room before it is told that the store is busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// A group is closed when it holds so many commits or bytes.
const GROUP_JOBS: usize = 1024;
pub(super) const GROUP_BYTES: usize = 16 << 20;

/// Something for the committer to do.
pub(crate) enum Work {
    /// A commit in the partition whose row keys start with `prefix`, and rows that it depends on.
    Commit { space: SpaceId, prefix: Bytes, commit: Commit, preview: Preview },
    /// A new header for a space, if it still has the one given.
    SetSpace { space: SpaceId, from: Option<SpaceHeader>, to: SpaceHeader, stamp: Stamp },
    /// Rows of a closed space to remove, as they were below a sequence number; with the last of them its header.
    Sweep { space: SpaceId, keys: Vec<Bytes>, seen: SeqNo, last: bool },
    /// A new ceiling for the clock.
    Ceiling,
    /// The tree was rearranged: let readers move on to its new shape.
    Republish,
}

/// Work, and whom to tell.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) answer: Option<oneshot::Sender<Result<(), CommitError>>>,
    /// Given back when the job is done.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

/// What a wait brought.
pub(crate) enum Taken {
    /// These, in order.
    Jobs(Vec<Job>),
    /// Nothing in that time.
    Nothing,
    /// Nothing, ever again.
    Closed,
}

pub(crate) struct Queue {
    room: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// From handing work over to its answer.
    pub(super) times: Histogram,
    /// How much work the committer took at once.
    pub(super) groups: Histogram,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    closed: bool,
    /// The committer sleeps until so many jobs are there.
    wanted: Option<usize>,
}

impl Waiting {
    /// Moves jobs into a new group up to its bounds. The first one always fits.
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

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            room: Arc::new(Semaphore::new(ROOM)),
            waiting: Mutex::default(),
            arrived: Condvar::new(),
            times: Histogram::of_times(),
            groups: Histogram::new(COUNTS),
        }
    }

    /// Hands work to the committer and waits for its answer.
    pub(crate) async fn submit(&self, work: Work) -> Result<(), CommitError> {
        let began = Instant::now();
        let units = work.bytes().max(LEAST).div_ceil(UNIT) as u32;
        let room = match self.room.clone().try_acquire_many_owned(units) {
            Ok(room) => room,
            Err(_) => match tokio::time::timeout(PATIENCE, self.room.clone().acquire_many_owned(units)).await
            {
                Ok(Ok(room)) => room,
                _ => return Err(CommitError::Busy),
            },
        };
        let (answer, answered) = oneshot::channel();
        self.push(Job { work, answer: Some(answer), _room: Some(room) })?;
        // The committer answers every job that it took; it only drops one when it dies.
        let answer = answered.await.unwrap_or(Err(CommitError::Unknown));
        self.times.record_time(began.elapsed());
        answer
    }

    /// Hands over work that nobody waits for.
    pub(crate) fn post(&self, work: Work) {
        let _ = self.push(Job { work, answer: None, _room: None });
    }

    fn push(&self, job: Job) -> Result<(), CommitError> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(CommitError::Stopped);
        }
        waiting.jobs.push_back(job);
        if waiting.wanted.is_some_and(|wanted| waiting.jobs.len() >= wanted) {
            waiting.wanted = None;
            drop(waiting);
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// The next group, or what came instead within the time.
    ///
    /// Those who were just answered come back one after the other. So a group is waited for, a short time, until it is as
    /// large as the last one: else the first of them would have a sync to itself, and the rest would wait for two.
    pub(crate) fn take(&self, expected: usize, gather: Duration, within: Option<Duration>) -> Taken {
        let expected = expected.clamp(1, GROUP_JOBS);
        let deadline = within.map(|within| Instant::now() + within);
        let mut waiting = self.waiting.lock();
        if expected > 1 {
            self.wait_for(&mut waiting, expected, Some(Instant::now() + gather));
        }
        if waiting.jobs.is_empty() {
            self.wait_for(&mut waiting, 1, deadline);
            if waiting.jobs.is_empty() {
                return if waiting.closed { Taken::Closed } else { Taken::Nothing };
            }
            self.wait_for(&mut waiting, expected, Some(Instant::now() + gather));
        }
        let mut jobs = vec![];
        waiting.move_into(&mut jobs);
        self.groups.record(jobs.len() as u64);
        Taken::Jobs(jobs)
    }

    /// The committer took more than it could do at a time: these are the first again.
    pub(super) fn put_back(&self, jobs: impl DoubleEndedIterator<Item = Job>) {
        let mut waiting = self.waiting.lock();
        for job in jobs.rev() {
            waiting.jobs.push_front(job);
        }
    }

    /// Sleeps until so many jobs are there, the time is over, or there will be no more.
    ///
    /// To yield the processor instead would react sooner on a calm machine, but on a busy one it comes back only after
    /// everybody else's slice: milliseconds.
    fn wait_for(&self, waiting: &mut MutexGuard<'_, Waiting>, jobs: usize, until: Option<Instant>) {
        waiting.wanted = Some(jobs);
        while waiting.jobs.len() < jobs && !waiting.closed {
            match until {
                Some(until) if self.arrived.wait_until(waiting, until).timed_out() => break,
                Some(_) => {}
                None => self.arrived.wait(waiting),
            }
        }
        waiting.wanted = None;
    }

    /// How much work waits.
    pub(super) fn depth(&self) -> usize {
        self.waiting.lock().jobs.len()
    }

    /// Takes no more work. What waits is still done.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.arrived.notify_all();
    }
}

impl Queue {
    /// Nobody will work any more: whoever waits is told that the outcome is unknown.
    pub(crate) fn abandon(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        waiting.jobs.clear();
    }
}

impl Work {
    fn bytes(&self) -> usize {
        match self {
            Self::Commit { prefix, commit, preview, .. } => {
                commit_bytes(commit) + prefix.len() * commit.mutations.len() + preview.removed_bytes()
            }
            Self::Sweep { keys, .. } => keys.iter().map(Bytes::len).sum(),
            Self::SetSpace { .. } | Self::Ceiling | Self::Republish => 32,
        }
    }
}

/// Bytes of keys and values that a commit writes.
pub(crate) fn commit_bytes(commit: &Commit) -> usize {
    commit
        .mutations
        .iter()
        .map(|m| match m {
            Mutation::Put(key, value) => key.len() + value.len(),
            Mutation::Delete(key) | Mutation::Add(key, _) => key.len() + 8,
            Mutation::DeleteRange(range) => range.start.len() + range.end.len(),
        })
        .sum()
}
