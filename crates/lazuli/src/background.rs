//! Background tasks of the server. Each is a [`Chore`] that runs periodically and at a slow pace, one at a
//! time, until the server stops.
//!
//! A chore that fails or panics is retried and does not stop the others. [`ChoreHealth`] reports it on
//! `/readyz` and in metrics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_blob::{BlobService, Swept};
use lazuli_concurrency::Pace;
use lazuli_content::sweep::{ContentSweeper, SweepError};
use lazuli_extents::{Error, Extents, StorageUse};
use lazuli_file::FileService;
use lazuli_metrics::Histogram;
use lazuli_protocol::Refusal;
use lazuli_queue::QueueService;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument;

/// Default interval between two checks whether a chore is due.
const INTERVAL: Duration = Duration::from_secs(5);
/// After a run, a chore rests at least this many times as long as the run took.
const REST: u32 = 4;
/// Rest between the small steps of a chore, so that it takes a small part of the machine.
const PACE: Pace = Pace { pause: Duration::from_millis(2) };
/// Number of consecutive failures after which the server is degraded. A single failure may be a conflict with
/// a request.
const MAX_FAILURES: u32 = 3;
/// A persistent failure is logged again after this long.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// A periodic background task.
#[async_trait]
pub(crate) trait Chore: Send + Sync {
    /// Returns the name for the log and metrics.
    fn name(&self) -> &'static str;

    /// Returns the interval between two checks whether the chore is due.
    fn every(&self) -> Duration {
        INTERVAL
    }

    /// Returns whether there is work to do. Must be cheap, because it is called often.
    fn is_due(&self) -> bool;

    /// Does the work at that pace. May be dropped at any point when the server stops.
    async fn run(&self, pace: Pace) -> Result<(), String>;
}

/// The failures and durations of a chore.
#[derive(Debug)]
pub(crate) struct ChoreHealth {
    name: &'static str,
    /// Durations of the runs.
    pub(crate) times: Histogram,
    failures: AtomicU64,
    failing: Mutex<Option<Failing>>,
}

/// Consecutive failed attempts, and the last error that was logged.
#[derive(Debug)]
struct Failing {
    attempts: u32,
    logged: String,
    logged_at: Instant,
}

impl ChoreHealth {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        let (failures, failing) = Default::default();
        Arc::new(Self { name, times: Histogram::of_times(), failures, failing })
    }

    /// Returns the value of the metrics label `chore`.
    pub(crate) fn label(&self) -> String {
        self.name.replace(' ', "_")
    }

    /// Returns how many attempts have failed since the start.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns whether the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.lock().is_some()
    }

    /// Returns why the server is degraded, if the chore fails repeatedly. `/readyz` needs no credentials and
    /// errors may name objects, so the error itself is only in the log.
    pub(crate) fn alarm(&self) -> Option<String> {
        let failing = self.failing.lock();
        let attempts = failing.as_ref()?.attempts;
        let name = self.name;
        (attempts >= MAX_FAILURES)
            .then(|| format!("the task \"{name}\" fails ({attempts} attempts): see the log"))
    }

    /// Runs the chore once. A panic counts as a failure. Failures are counted, and logged at a limited rate.
    pub(crate) async fn run(&self, work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
        let began = Instant::now();
        let done = caught(work).instrument(tracing::error_span!("background", task = self.name)).await;
        self.times.record_time(began.elapsed());
        let mut failing = self.failing.lock();
        match &done {
            Ok(()) => {
                if let Some(Failing { attempts, .. }) = failing.take() {
                    tracing::info!(attempts, "the task \"{}\" works again", self.name);
                }
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let before = failing.take();
                let attempts = before.as_ref().map_or(0, |before| before.attempts).saturating_add(1);
                let known = before
                    .filter(|before| before.logged == *error && before.logged_at.elapsed() < LOG_EVERY)
                    .map(|before| before.logged_at);
                if known.is_none() {
                    tracing::error!(attempts, error, "the task \"{}\" failed and will be retried", self.name);
                }
                let logged_at = known.unwrap_or_else(Instant::now);
                *failing = Some(Failing { attempts, logged: error.clone(), logged_at });
            }
        }
        done
    }
}

/// Runs the work and converts a panic into an error.
async fn caught(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(format!("it panicked: {}", message(&*panic)))))
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Chores with their health.
pub(crate) struct Chores(Vec<(Box<dyn Chore>, Arc<ChoreHealth>)>);

impl Chores {
    pub(crate) fn new(chores: Vec<Box<dyn Chore>>) -> Self {
        let with_health = |chore: Box<dyn Chore>| {
            let health = ChoreHealth::new(chore.name());
            (chore, health)
        };
        Self(chores.into_iter().map(with_health).collect())
    }

    /// Returns the health of each chore.
    pub(crate) fn health(&self) -> Vec<Arc<ChoreHealth>> {
        self.0.iter().map(|(_, health)| health.clone()).collect()
    }
}

/// The running background tasks.
pub(crate) struct Background {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Background {
    /// Starts running the chores on the threads of a runtime.
    pub(crate) fn start(runtime: &Handle, chores: Chores) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let task = runtime.spawn(async move {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => {}
                () = run_chores(chores) => {}
            }
        });
        Self { stop, task }
    }

    /// Cancels the running chore and waits until it has been dropped.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

/// Runs the chores one at a time, each at its next planned time, until dropped.
async fn run_chores(chores: Chores) {
    let now = Instant::now();
    let mut planned: Vec<_> = chores.0.into_iter().map(|chore| (now, chore)).collect();
    while let Some((at, (chore, health))) = planned.iter_mut().min_by_key(|(at, _)| *at) {
        tokio::time::sleep_until(*at).await;
        *at = run_if_due(&**chore, health).await;
    }
}

/// Runs a chore if it is due, and returns when to check it again.
async fn run_if_due(chore: &dyn Chore, health: &ChoreHealth) -> Instant {
    let began = Instant::now();
    // A check that panics counts as due: the run that follows reports what is wrong.
    if !catch_unwind(AssertUnwindSafe(|| chore.is_due())).unwrap_or(true) {
        return began + chore.every();
    }
    let name = chore.name();
    tracing::debug!(name, "chore begins");
    let done = health.run(chore.run(PACE)).await;
    tracing::debug!(name, "chore ends");
    let rest = chore.every().max(began.elapsed() * REST);
    Instant::now() + if done.is_ok() { rest } else { rest.max(INTERVAL) }
}

/// Interval of checks for garbage content, which can grow by hundreds of MiB per second.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// If content has not changed for this long, a smaller amount of garbage is swept as well.
const QUIET: Duration = Duration::from_secs(5);
/// Garbage up to this many bytes is never swept on its own.
const LEFT_BYTES: u64 = 8 << 20;

/// Sweeps content once enough of it may be garbage.
pub(crate) struct ContentSweep {
    sweeper: Arc<ContentSweeper>,
    extents: Arc<dyn Extents>,
    /// The counters of the last change, and when they changed.
    seen: Mutex<(ChangeCounters, Instant)>,
}

/// Bytes of content appended and released since the last sweep.
type ChangeCounters = (u64, u64);

impl ContentSweep {
    pub(crate) fn new(sweeper: Arc<ContentSweeper>, extents: Arc<dyn Extents>) -> Self {
        Self { sweeper, extents, seen: Mutex::new(((0, 0), Instant::now())) }
    }

    /// Returns whether content has not changed for [`QUIET`].
    fn is_quiet(&self, space: &StorageUse) -> bool {
        let changed = (space.appended_since_mark, space.released_since_mark);
        let mut seen = self.seen.lock();
        if seen.0 != changed {
            *seen = (changed, Instant::now());
        }
        seen.1.elapsed() >= QUIET
    }
}

#[async_trait]
impl Chore for ContentSweep {
    fn name(&self) -> &'static str {
        "content sweep"
    }

    fn every(&self) -> Duration {
        SWEEP_EVERY
    }

    fn is_due(&self) -> bool {
        let space = self.extents.storage_use();
        space.should_sweep() || (self.is_quiet(&space) && space.released_since_mark > LEFT_BYTES)
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let freed = match self.sweeper.sweep(pace).await {
            Ok(freed) => freed,
            Err(SweepError::Extents(Error::Busy(why))) => {
                tracing::debug!(why, "a backup is running; the content sweep is postponed");
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        tracing::debug!(freed = freed.bytes, live = freed.live_bytes, "swept content");
        Ok(())
    }
}

/// Removes the data of deleted containers, shares, tables or queues: one chore for each service.
pub(crate) struct GarbageSweep<S> {
    /// The kind of deleted objects: the name of the chore.
    pub(crate) name: &'static str,
    pub(crate) service: S,
    pub(crate) is_due: fn(&S) -> bool,
    pub(crate) sweep: for<'a> fn(&'a S, Pace) -> Sweeping<'a>,
}

/// A running sweep.
type Sweeping<'a> = Pin<Box<dyn Future<Output = Result<Swept, Refusal>> + Send + 'a>>;

#[async_trait]
impl<S: Send + Sync> Chore for GarbageSweep<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_due(&self) -> bool {
        (self.is_due)(&self.service)
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = (self.sweep)(&self.service, pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(count = swept.spaces, bytes = swept.bytes, "swept {}", self.name);
        }
        Ok(())
    }
}

/// Releases the quota slices of idle shares, so that the number of remembered shares stays bounded.
pub(crate) struct IdleShares {
    pub(crate) file: FileService,
}

#[async_trait]
impl Chore for IdleShares {
    fn name(&self) -> &'static str {
        "quotas of idle shares"
    }

    fn is_due(&self) -> bool {
        self.file.has_idle_slices()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        self.file.release_idle_slices(pace).await;
        Ok(())
    }
}

/// Forgets removed accounts that can no longer be restored. Their data is for the garbage sweeps.
pub(crate) struct RemovedAccounts {
    pub(crate) accounts: AccountDirectory,
}

#[async_trait]
impl Chore for RemovedAccounts {
    fn name(&self) -> &'static str {
        "removed accounts"
    }

    fn is_due(&self) -> bool {
        self.accounts.expiry_due()
    }

    async fn run(&self, _: Pace) -> Result<(), String> {
        let count = self.accounts.forget_expired().await.map_err(|error| error.to_string())?;
        if count > 0 {
            tracing::info!(count, "forgot removed accounts that can no longer be restored");
        }
        Ok(())
    }
}

/// Removes expired messages.
pub(crate) struct MessageExpiry {
    pub(crate) queue: QueueService,
}

#[async_trait]
impl Chore for MessageExpiry {
    fn name(&self) -> &'static str {
        "message expiry"
    }

    fn is_due(&self) -> bool {
        self.queue.expiry_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let messages = self.queue.expire(pace).await.map_err(|refusal| refusal.to_string())?;
        if messages > 0 {
            tracing::info!(messages, "removed expired messages");
        }
        Ok(())
    }
}

/// Removes expired blobs, soft-deleted states whose retention has ended, and expired staged blocks.
pub(crate) struct BlobExpiry {
    pub(crate) blob: BlobService,
}

#[async_trait]
impl Chore for BlobExpiry {
    fn name(&self) -> &'static str {
        "blob expiry"
    }

    fn is_due(&self) -> bool {
        self.blob.expiry_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let expired = self.blob.expire(pace).await.map_err(|refusal| refusal.to_string())?;
        if expired.states > 0 {
            tracing::info!(states = expired.states, bytes = expired.bytes, "removed expired blobs");
        }
        Ok(())
    }
}

/// Removes rows of staged blocks that were committed or dropped.
pub(crate) struct DroppedBlocks {
    pub(crate) blob: BlobService,
}

#[async_trait]
impl Chore for DroppedBlocks {
    fn name(&self) -> &'static str {
        "dropped blocks"
    }

    fn is_due(&self) -> bool {
        self.blob.dropped_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let rows = self.blob.remove_dropped(pace).await.map_err(|refusal| refusal.to_string())?;
        tracing::debug!(rows, "removed dropped blocks");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::AtomicUsize;

    use lazuli_concurrency::SystemClock;
    use lazuli_extents::LocalExtents;
    use lazuli_store::{Embedded, Options};

    use super::*;
    use crate::services;

    struct Count {
        due: bool,
        runs: Arc<AtomicUsize>,
        endless: bool,
    }

    /// A slow chore that is always due and checked often.
    struct Slow(Arc<AtomicUsize>);

    #[async_trait]
    impl Chore for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn every(&self) -> Duration {
            Duration::from_millis(100)
        }

        fn is_due(&self) -> bool {
            true
        }

        async fn run(&self, _: Pace) -> Result<(), String> {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        }
    }

    #[async_trait]
    impl Chore for Count {
        fn name(&self) -> &'static str {
            "count"
        }

        fn is_due(&self) -> bool {
            self.due
        }

        async fn run(&self, _: Pace) -> Result<(), String> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            if self.endless {
                std::future::pending::<()>().await;
            }
            Err("fails every time".into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn due_chore_runs_at_every_interval_even_after_failures() {
        let runs = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let chore =
            |due, runs: &Arc<AtomicUsize>| Box::new(Count { due, runs: runs.clone(), endless: false });
        let chores: Vec<Box<dyn Chore>> = vec![chore(false, &runs[0]), chore(true, &runs[1])];
        let background = Background::start(&Handle::current(), Chores::new(chores));
        tokio::time::sleep(INTERVAL * 3 - Duration::from_secs(1)).await;
        background.stop().await;
        assert_eq!(runs.map(|runs| runs.load(Ordering::SeqCst)), [0, 3]);
    }

    /// Panics while its flag is set.
    struct Panics(Arc<AtomicBool>);

    #[async_trait]
    impl Chore for Panics {
        fn name(&self) -> &'static str {
            "panicking chore"
        }

        fn is_due(&self) -> bool {
            true
        }

        async fn run(&self, _: Pace) -> Result<(), String> {
            tokio::task::yield_now().await;
            assert!(self.0.load(Ordering::SeqCst), "row of account secret");
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panicking_chore_is_reported_and_retried_and_others_continue() {
        let (works, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let other = Count { due: true, runs: runs.clone(), endless: false };
        let chores = Chores::new(vec![Box::new(Panics(works.clone())), Box::new(other)]);
        let [health, other] = &chores.health()[..] else { panic!("two chores") };
        let background = Background::start(&Handle::current(), chores);
        tokio::time::sleep(INTERVAL - Duration::from_secs(1)).await;
        assert_eq!((health.failures(), health.is_failing(), health.alarm()), (1, true, None));
        tokio::time::sleep(INTERVAL * 2).await;
        assert_eq!((health.failures(), runs.load(Ordering::SeqCst)), (3, 3));
        let alarm = health.alarm().unwrap();
        assert!(
            alarm.contains("\"panicking chore\" fails (3 attempts)") && !alarm.contains("secret"),
            "{alarm}"
        );
        assert_eq!((other.failures(), other.label()), (3, "count".to_owned()));
        works.store(true, Ordering::SeqCst);
        tokio::time::sleep(INTERVAL).await;
        assert_eq!((health.failures(), health.is_failing(), health.alarm()), (3, false, None));
        assert_eq!(health.times.count(), 4);
        background.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn slow_chore_rests_four_times_as_long_as_it_ran() {
        let runs = Arc::new(AtomicUsize::new(0));
        let background =
            Background::start(&Handle::current(), Chores::new(vec![Box::new(Slow(runs.clone()))]));
        tokio::time::sleep(Duration::from_millis(20_500)).await;
        background.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 5, "at 0, 5, 10, 15 and 20 s");
    }

    #[tokio::test]
    async fn content_is_swept_if_garbage_is_large_or_content_is_quiet() {
        let dir = tempfile::tempdir().unwrap();
        let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
        let extents = Arc::new(LocalExtents::open(dir.path(), Default::default()).unwrap());
        let readers = services::content_readers();
        let sweeper =
            ContentSweeper::new(Arc::new(store), extents.clone(), readers, dir.path().join("sweep"));
        let chore = ContentSweep::new(Arc::new(sweeper), extents.clone());
        tokio::time::pause();
        chore.run(Pace::FULL).await.unwrap();
        extents.released(LEFT_BYTES + 1);
        assert!(!chore.is_due());
        tokio::time::advance(QUIET - Duration::from_millis(1)).await;
        extents.released(1);
        assert!(!chore.is_due());
        tokio::time::advance(QUIET).await;
        assert!(chore.is_due());
        chore.run(Pace::FULL).await.unwrap();
        extents.released(LEFT_BYTES);
        assert!(!chore.is_due());
        tokio::time::advance(QUIET).await;
        assert!(!chore.is_due(), "too little garbage to sweep");
        extents.released(lazuli_extents::SWEEP_MIN_BYTES);
        assert!(chore.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_wait_for_a_chore_to_end() {
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Count { due: true, runs: runs.clone(), endless: true };
        let background = Background::start(&Handle::current(), Chores::new(vec![Box::new(count)]));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        background.stop().await;
    }
}
