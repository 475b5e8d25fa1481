//! Watches and disturbs the store under a service. Counts the rows that scans return, so that a test can
//! bound the cost of a listing. Can hold up the opening or closing of a space, act before a commit, and let
//! the process die at a write.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lazuli_store::interposed::{CrashAtWrite, Interposer, Queueing};
use lazuli_store::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) queueing: Queueing,
    rows: AtomicUsize,
    held: Mutex<Option<Arc<Hold>>>,
    dying: Mutex<Option<Arc<CrashAtWrite>>>,
    busy: AtomicBool,
    busy_commits: AtomicUsize,
    before_commit: Mutex<Option<(usize, Act)>>,
    after_scan: Mutex<Option<(usize, Act)>>,
    writes: AtomicUsize,
}

type Act = Box<dyn FnOnce() + Send>;

/// A change of a space's header that was asked for and is not yet made.
#[derive(Default)]
pub(crate) struct Hold {
    pub(crate) reached: Notify,
    pub(crate) go_on: Notify,
}

impl Watch {
    /// Holds up the next change of a space's header, and only that one.
    pub(crate) fn hold_next(&self) -> Arc<Hold> {
        let hold = Arc::new(Hold::default());
        *self.held.lock().unwrap() = Some(hold.clone());
        hold
    }

    /// Refuses the next change of a space's header, and only that one.
    pub(crate) fn refuse_next(&self) {
        self.busy.store(true, Ordering::SeqCst);
    }

    /// Refuses this number of commits to blobs.
    pub(crate) fn refuse_commits(&self, commits: usize) {
        self.busy_commits.store(commits, Ordering::SeqCst);
    }

    /// Does something between the next rule and its commit.
    pub(crate) fn before_next_commit(&self, act: impl FnOnce() + Send + 'static) {
        self.before_commit_after(0, act);
    }

    /// Does something before the commit that comes after this number of others.
    pub(crate) fn before_commit_after(&self, commits: usize, act: impl FnOnce() + Send + 'static) {
        *self.before_commit.lock().unwrap() = Some((commits, Box::new(act)));
    }

    /// Does something after the next scan.
    pub(crate) fn after_next_scan(&self, act: impl FnOnce() + Send + 'static) {
        self.after_scan_after(0, act);
    }

    /// Does something after the scan that comes after this number of others.
    pub(crate) fn after_scan_after(&self, scans: usize, act: impl FnOnce() + Send + 'static) {
        *self.after_scan.lock().unwrap() = Some((scans, Box::new(act)));
    }

    /// Commits and changes of headers since this was last asked.
    pub(crate) fn take_writes(&self) -> usize {
        self.writes.swap(0, Ordering::SeqCst)
    }

    fn act(waiting: &Mutex<Option<(usize, Act)>>) -> Option<Act> {
        let mut waiting = waiting.lock().unwrap();
        match waiting.as_mut() {
            Some((count @ 1.., _)) => {
                *count -= 1;
                None
            }
            _ => waiting.take().map(|(_, act)| act),
        }
    }

    /// Nothing is written from that write on, see [`CrashAtWrite`].
    pub(crate) fn die_at(&self, write: u32, last_takes_effect: bool) {
        *self.dying.lock().unwrap() = Some(Arc::new(CrashAtWrite::at(write, last_takes_effect)));
    }

    /// Rows given out since this was last asked.
    pub(crate) fn take_rows(&self) -> usize {
        self.rows.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl Interposer for Watch {
    fn scanned(&self, rows: usize) {
        self.rows.fetch_add(rows, Ordering::SeqCst);
        if let Some(act) = Self::act(&self.after_scan) {
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
        let held = self.held.lock().unwrap().take();
        if let Some(hold) = held {
            hold.reached.notify_one();
            hold.go_on.notified().await;
        }
        if self.busy.swap(false, Ordering::SeqCst) {
            return Err(CommitError::Busy);
        }
        let dying = self.dying.lock().unwrap().clone();
        match dying {
            Some(dying) => dying.set_space(store, space, from, to).await,
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
        if let Some(act) = Self::act(&self.before_commit) {
            act();
        }
        let take = |left: usize| left.checked_sub(1);
        let is_blob = partition.space != SpaceId::ROOT && partition.key.starts_with(b"b");
        if is_blob && self.busy_commits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(CommitError::Busy);
        }
        let dying = self.dying.lock().unwrap().clone();
        match dying {
            Some(dying) => dying.commit(store, partition, commit).await,
            None => self.queueing.commit(store, partition, commit).await,
        }
    }

    async fn settled(&self, store: &dyn Store) -> Result<(), CommitError> {
        self.queueing.settled(store).await
    }
}
