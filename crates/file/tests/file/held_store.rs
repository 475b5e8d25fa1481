//! A store that holds up reads and commits at points that a test chooses.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lazuli_file::FileService;
use lazuli_protocol::ServiceKind;
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_store::{Commit, CommitError, Partition, SpaceHeader, SpaceId, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::Server;

const NEVER: usize = usize::MAX;
/// Longer than a test takes on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Holds up reads and commits until they are released.
#[derive(Clone)]
pub(crate) struct StoreHold(Arc<HoldState>);

struct HoldState {
    /// Number of reads that pass before one is held up.
    reads: AtomicUsize,
    /// Number of commits that pass before one is held up. A commit that is held up here has not taken effect.
    commits: AtomicUsize,
    /// Number of commits, including changes of space headers, whose answers pass before one is held up. Such
    /// a commit has taken effect.
    answers: AtomicUsize,
    /// Fail the next change that closes a space.
    refuses: AtomicBool,
    now: watch::Sender<HoldRound>,
}

#[derive(Default)]
struct HoldRound {
    round: usize,
    /// Number of operations that are held up in this round.
    held: usize,
}

impl StoreHold {
    fn new() -> Self {
        let [reads, commits, answers] = [NEVER, NEVER, NEVER].map(AtomicUsize::new);
        Self(Arc::new(HoldState {
            reads,
            commits,
            answers,
            refuses: false.into(),
            now: watch::Sender::default(),
        }))
    }

    pub(crate) fn hold_reads(&self, after: usize) {
        self.0.reads.store(after, Ordering::SeqCst);
    }

    pub(crate) fn hold_commits(&self) {
        self.0.commits.store(0, Ordering::SeqCst);
    }

    pub(crate) fn hold_answers(&self, after: usize) {
        self.0.answers.store(after, Ordering::SeqCst);
    }

    /// Makes the next closing of a space fail.
    pub(crate) fn refuse_to_close(&self) {
        self.0.refuses.store(true, Ordering::SeqCst);
    }

    /// Stops holding up further operations. Those already held up stay so.
    pub(crate) fn stop_holding(&self) {
        for left in [&self.0.reads, &self.0.commits, &self.0.answers] {
            left.store(NEVER, Ordering::SeqCst);
        }
    }

    async fn pass(&self, left: &AtomicUsize) {
        let is_held =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err();
        if is_held {
            let mut round = 0;
            self.0.now.send_modify(|now| (round, now.held) = (now.round, now.held + 1));
            self.0.now.subscribe().wait_for(|now| now.round > round).await.unwrap();
        }
    }

    /// Waits until `count` operations are held up.
    pub(crate) async fn wait_until_held(&self, count: usize) {
        let mut now = self.0.now.subscribe();
        let is_held = timeout(MAX_WAIT, now.wait_for(|now| now.held >= count)).await.is_ok();
        assert!(is_held, "fewer than {count} operations are held up");
    }

    /// Waits until an operation is held up or the task has ended. Returns whether one is held up.
    pub(crate) async fn wait_until_held_or_done<T>(&self, task: &JoinHandle<T>) -> bool {
        let is_held = || self.0.now.borrow().held > 0;
        while !is_held() && !task.is_finished() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        is_held()
    }

    /// Releases the held operations and holds up no further ones.
    pub(crate) fn release(&self) {
        self.stop_holding();
        self.0.now.send_modify(|now| *now = HoldRound { round: now.round + 1, held: 0 });
    }
}

#[async_trait]
impl Interposer for StoreHold {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        self.pass(&self.0.commits).await;
        let committed = store.commit(partition, commit).await;
        self.pass(&self.0.answers).await;
        committed
    }

    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        if !to.open && self.0.refuses.swap(false, Ordering::SeqCst) {
            return Err(CommitError::Full);
        }
        let set = store.set_space(space, from, to).await;
        self.pass(&self.0.answers).await;
        set
    }

    async fn was_read(&self) {
        self.pass(&self.0.reads).await;
    }
}

/// Makes the front end take its slice of the quota, so that later commits are those of the requests.
pub(crate) async fn take_slice(server: &Server) {
    server.get("/docs?restype=share&comp=stats", "").await.expect(200);
}

/// Starts a server whose store can be held up. Requests wait for other clients at most for `patience`.
pub(crate) async fn start(patience: Duration) -> (Server, StoreHold) {
    thread_local! {
        static NEXT: RefCell<Option<(StoreHold, Duration)>> = const { RefCell::new(None) };
    }
    let make = |parts: lazuli_testing::Parts| {
        let (between, patience) = NEXT.take().unwrap();
        let store = Interposed::new(parts.store, between);
        FileService::new(Arc::new(store), parts.extents, parts.accounts).with_patience(patience)
    };
    let hold = StoreHold::new();
    NEXT.set(Some((hold.clone(), patience)));
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    take_slice(&server).await;
    (server, hold)
}
