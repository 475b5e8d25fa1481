//! What the server does on its own: chores that run now and then, gently, one at a time, until it stops.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazuli_blob::{BlobService, Swept};
use lazuli_extents::{Error, Extents, Pace, Space};
use lazuli_generations::content::{ContentSweeper, SweepError};
use lazuli_protocol::Refusal;
use lazuli_queue::QueueService;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often a chore is looked at, unless it says otherwise.
const INTERVAL: Duration = Duration::from_secs(5);
/// A chore that took some time rests this many times as long, whatever it is asked for.
const REST: u32 = 4;
/// Rest between the small steps of a chore, so that it takes a small part of the machine.
const PACE: Pace = Pace { pause: Duration::from_millis(2) };

/// Something to be done now and then.
#[async_trait]
pub(crate) trait Chore: Send + Sync {
    /// For the log.
    fn name(&self) -> &'static str;

    /// How often to look whether it is due.
    fn every(&self) -> Duration {
        INTERVAL
    }

    /// Whether there is anything to do. Asked often, so it has to be cheap.
    fn is_due(&self) -> bool;

    /// Does it, at that pace. May be dropped at any point, when the server stops.
    async fn run(&self, pace: Pace) -> Result<(), String>;
}

/// Chores under way.
pub(crate) struct Background {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Background {
    /// Looks at each chore from time to time.
    pub(crate) fn start(chores: Vec<Box<dyn Chore>>) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => {}
                () = look_after(chores) => {}
            }
        });
        Self { stop, task }
    }

    /// Drops what is being done and waits until that is so.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

async fn look_after(chores: Vec<Box<dyn Chore>>) {
    let now = Instant::now();
    let mut planned: Vec<_> = chores.into_iter().map(|chore| (now, chore)).collect();
    while let Some((at, chore)) = planned.iter_mut().min_by_key(|(at, _)| *at) {
        tokio::time::sleep_until(*at).await;
        *at = look_at(&**chore).await;
    }
}

/// Does a chore if it is due, and tells when to look at it again.
async fn look_at(chore: &dyn Chore) -> Instant {
    let began = Instant::now();
    if !chore.is_due() {
        return began + chore.every();
    }
    let name = chore.name();
    tracing::debug!(name, "chore begins");
    let done = chore.run(PACE).await;
    let rest = chore.every().max(began.elapsed() * REST);
    match done {
        Ok(()) => {
            tracing::debug!(name, "chore done");
            Instant::now() + rest
        }
        Err(error) => {
            tracing::error!(name, error, "chore failed");
            Instant::now() + rest.max(INTERVAL)
        }
    }
}

/// How often to look how much garbage there is: it can grow by hundreds of MiB in a second.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Without a change for so long, nothing is waited for: what little garbage there is goes, too.
const QUIET: Duration = Duration::from_secs(5);
/// Garbage up to this much may stay for ever.
const LEFT_BYTES: u64 = 8 << 20;

/// Sweeps content once enough of it may be garbage.
pub(crate) struct ContentSweep {
    sweeper: Arc<ContentSweeper>,
    extents: Arc<dyn Extents>,
    /// What was last seen to change, and when.
    seen: Mutex<(Changed, Instant)>,
}

/// Bytes appended and released since the last sweep.
type Changed = (u64, u64);

impl ContentSweep {
    pub(crate) fn new(sweeper: Arc<ContentSweeper>, extents: Arc<dyn Extents>) -> Self {
        Self { sweeper, extents, seen: Mutex::new(((0, 0), Instant::now())) }
    }

    /// Whether nothing has changed for a while.
    fn is_quiet(&self, space: &Space) -> bool {
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
        let space = self.extents.space();
        space.should_sweep() || (self.is_quiet(&space) && space.released_since_mark > LEFT_BYTES)
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let freed = match self.sweeper.sweep(pace).await {
            Ok(freed) => freed,
            Err(SweepError::Extents(Error::Busy(why))) => {
                tracing::debug!(why, "content is not swept while a backup holds it");
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        tracing::debug!(freed = freed.bytes, live = freed.live_bytes, "swept content");
        Ok(())
    }
}

/// Removes what deleted containers, shares, tables or queues have left behind: one chore for each service.
pub(crate) struct GarbageSweep<S> {
    /// What was deleted, for the log.
    pub(crate) what: &'static str,
    pub(crate) service: S,
    pub(crate) is_due: fn(&S) -> bool,
    pub(crate) sweep: for<'a> fn(&'a S, Pace) -> Sweeping<'a>,
}

/// A sweep under way.
type Sweeping<'a> = Pin<Box<dyn Future<Output = Result<Swept, Refusal>> + Send + 'a>>;

#[async_trait]
impl<S: Send + Sync> Chore for GarbageSweep<S> {
    fn name(&self) -> &'static str {
        self.what
    }

    fn is_due(&self) -> bool {
        (self.is_due)(&self.service)
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = (self.sweep)(&self.service, pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(count = swept.spaces, bytes = swept.bytes, "swept {}", self.what);
        }
        Ok(())
    }
}

/// Removes messages when their time is over.
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
            tracing::info!(messages, "removed messages that have expired");
        }
        Ok(())
    }
}

/// Removes blobs, and what was deleted or staged, when their time is over.
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
            tracing::info!(states = expired.states, bytes = expired.bytes, "removed what has expired");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// Always due, often looked at, and slow.
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
            Err("it fails every time".into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_chore_runs_at_every_interval_if_it_is_due_even_after_it_failed() {
        let runs = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let chore =
            |due, runs: &Arc<AtomicUsize>| Box::new(Count { due, runs: runs.clone(), endless: false });
        let background = Background::start(vec![chore(false, &runs[0]), chore(true, &runs[1])]);
        tokio::time::sleep(INTERVAL * 3 - Duration::from_secs(1)).await;
        background.stop().await;
        assert_eq!(runs.map(|runs| runs.load(Ordering::SeqCst)), [0, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_chore_that_takes_its_time_leaves_four_times_as_much_to_others() {
        let runs = Arc::new(AtomicUsize::new(0));
        let background = Background::start(vec![Box::new(Slow(runs.clone()))]);
        tokio::time::sleep(Duration::from_millis(20_500)).await;
        background.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 5, "at 0, 5, 10, 15 and 20 s");
    }

    #[tokio::test]
    async fn content_is_swept_when_there_is_much_garbage_or_some_and_nothing_else_to_do() {
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
        assert!(!chore.is_due(), "too little to care");
        extents.released(lazuli_extents::SWEEP_MIN_BYTES);
        assert!(chore.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_wait_for_a_chore_to_end() {
        let runs = Arc::new(AtomicUsize::new(0));
        let background =
            Background::start(vec![Box::new(Count { due: true, runs: runs.clone(), endless: true })]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        background.stop().await;
    }
}
