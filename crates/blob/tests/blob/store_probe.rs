//! Observes and disturbs the store of a service. Counts the rows that scans return, so that a test can bound
//! the cost of a listing. Can pause changes of a space's header, run an action before a commit, and simulate
//! a crash at a write.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lazuli_store::interposed::{CrashAtWrite, Interposer, Queueing};
use lazuli_store::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct StoreProbe {
    pub(crate) queueing: Queueing,
    rows: AtomicUsize,
    paused: Mutex<Option<Arc<PausedChange>>>,
    crash: Mutex<Option<Arc<CrashAtWrite>>>,
    busy: AtomicBool,
    busy_commits: AtomicUsize,
    before_commit: Mutex<Option<(usize, Act)>>,
    after_scan: Mutex<Option<(usize, Act)>>,
    writes: AtomicUsize,
}

type Act = Box<dyn FnOnce() + Send>;

/// A paused change of a space's header.
#[derive(Default)]
pub(crate) struct PausedChange {
    pub(crate) reached: Notify,
    pub(crate) resume: Notify,
}

impl StoreProbe {
    /// Pauses the next change of a space's header.
    pub(crate) fn pause_next_space_change(&self) -> Arc<PausedChange> {
        let hold = Arc::new(PausedChange::default());
        *self.paused.lock().unwrap() = Some(hold.clone());
        hold
    }

    /// Refuses the next change of a space's header.
    pub(crate) fn refuse_next_space_change(&self) {
        self.busy.store(true, Ordering::SeqCst);
    }

    /// Refuses this number of commits to blobs.
    pub(crate) fn refuse_commits(&self, commits: usize) {
        self.busy_commits.store(commits, Ordering::SeqCst);
    }

    /// Runs an action between the next rule and its commit.
    pub(crate) fn before_next_commit(&self, act: impl FnOnce() + Send + 'static) {
        self.before_commit_skipping(0, act);
    }

    /// Runs an action before a commit, after skipping this number of commits.
    pub(crate) fn before_commit_skipping(&self, commits: usize, act: impl FnOnce() + Send + 'static) {
        *self.before_commit.lock().unwrap() = Some((commits, Box::new(act)));
    }

    /// Runs an action after the next scan.
    pub(crate) fn after_next_scan(&self, act: impl FnOnce() + Send + 'static) {
        self.after_scan_skipping(0, act);
    }

    /// Runs an action after a scan, after skipping this number of scans.
    pub(crate) fn after_scan_skipping(&self, scans: usize, act: impl FnOnce() + Send + 'static) {
        *self.after_scan.lock().unwrap() = Some((scans, Box::new(act)));
    }

    /// Returns the number of commits and header changes since the last call.
    pub(crate) fn take_writes(&self) -> usize {
        self.writes.swap(0, Ordering::SeqCst)
    }

    fn take_due(waiting: &Mutex<Option<(usize, Act)>>) -> Option<Act> {
        let mut waiting = waiting.lock().unwrap();
        match waiting.as_mut() {
            Some((count @ 1.., _)) => {
                *count -= 1;
                None
            }
            _ => waiting.take().map(|(_, act)| act),
        }
    }

    /// Simulates a crash at this write, see [`CrashAtWrite`].
    pub(crate) fn crash_at(&self, write: u32, last_takes_effect: bool) {
        *self.crash.lock().unwrap() = Some(Arc::new(CrashAtWrite::at(write, last_takes_effect)));
    }

    /// Returns the number of scanned rows since the last call.
    pub(crate) fn take_rows(&self) -> usize {
        self.rows.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl Interposer for StoreProbe {
    fn scanned(&self, rows: usize) {
        self.rows.fetch_add(rows, Ordering::SeqCst);
        if let Some(act) = Self::take_due(&self.after_scan) {
            act();
        }
    }

    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let paused = self.paused.lock().unwrap().take();
        if let Some(hold) = paused {
            hold.reached.notify_one();
            hold.resume.notified().await;
        }
        if self.busy.swap(false, Ordering::SeqCst) {
            return Err(CommitError::Busy);
        }
        let crash = self.crash.lock().unwrap().clone();
        match crash {
            Some(crash) => crash.set_space(store, space, from, to).await,
            None => self.queueing.set_space(store, space, from, to).await,
        }
    }

    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        if let Some(act) = Self::take_due(&self.before_commit) {
            act();
        }
        let take = |left: usize| left.checked_sub(1);
        let is_blob = partition.space != SpaceId::ROOT && partition.key.starts_with(b"b");
        if is_blob && self.busy_commits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(CommitError::Busy);
        }
        let crash = self.crash.lock().unwrap().clone();
        match crash {
            Some(crash) => crash.commit(store, partition, commit).await,
            None => self.queueing.commit(store, partition, commit).await,
        }
    }

    async fn wait_for_commits(&self, store: &dyn Store) -> Result<(), CommitError> {
        self.queueing.wait_for_commits(store).await
    }
}
