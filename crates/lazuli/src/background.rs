//! What the server does on its own: chores that run now and then, gently, one at a time, until it stops.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazuli_blob::BlobService;
use lazuli_extents::{Extents, Pace};
use lazuli_file::FileService;
use lazuli_queue::QueueService;
use lazuli_store::Embedded;
use lazuli_table::TableService;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::{services, sweep};

/// How often chores are looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// Rest between the small steps of a chore, so that it takes a small part of the machine.
const PACE: Pace = Pace { pause: Duration::from_millis(2) };

/// Something to be done now and then.
#[async_trait]
pub(crate) trait Chore: Send + Sync {
    /// For the log.
    fn name(&self) -> &'static str;

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
    /// Looks at the chores from time to time, in turn.
    pub(crate) fn start(chores: Vec<Box<dyn Chore>>) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(INTERVAL);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => {}
                () = async {
                    loop {
                        tick.tick().await;
                        turn(&chores).await;
                    }
                } => {}
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

async fn turn(chores: &[Box<dyn Chore>]) {
    for chore in chores.iter().filter(|chore| chore.is_due()) {
        let name = chore.name();
        tracing::debug!(name, "chore begins");
        match chore.run(PACE).await {
            Ok(()) => tracing::debug!(name, "chore done"),
            Err(error) => tracing::error!(name, error, "chore failed"),
        }
    }
}

/// Sweeps content once enough of it may be garbage.
pub(crate) struct ContentSweep {
    pub(crate) store: Arc<Embedded>,
    pub(crate) extents: Arc<dyn Extents>,
}

#[async_trait]
impl Chore for ContentSweep {
    fn name(&self) -> &'static str {
        "content sweep"
    }

    fn is_due(&self) -> bool {
        self.extents.space().should_sweep()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let freed = sweep::sweep(&self.store, &self.extents, services::readers(), pace).await?;
        tracing::info!(freed = freed.bytes, live = freed.live_bytes, "swept content");
        Ok(())
    }
}

/// Sweeps what deleted containers have left behind.
pub(crate) struct GarbageSweep {
    pub(crate) blob: BlobService,
}

#[async_trait]
impl Chore for GarbageSweep {
    fn name(&self) -> &'static str {
        "garbage sweep"
    }

    fn is_due(&self) -> bool {
        self.blob.garbage_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = self.blob.sweep_garbage(pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(containers = swept.spaces, bytes = swept.bytes, "swept deleted containers");
        }
        Ok(())
    }
}

/// Sweeps what deleted shares have left behind.
pub(crate) struct ShareSweep {
    pub(crate) file: FileService,
}

#[async_trait]
impl Chore for ShareSweep {
    fn name(&self) -> &'static str {
        "share sweep"
    }

    fn is_due(&self) -> bool {
        self.file.sweep_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = self.file.sweep(pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(shares = swept.spaces, bytes = swept.bytes, "swept deleted shares");
        }
        Ok(())
    }
}

/// Sweeps what deleted tables have left behind.
pub(crate) struct TableSweep {
    pub(crate) table: TableService,
}

#[async_trait]
impl Chore for TableSweep {
    fn name(&self) -> &'static str {
        "table sweep"
    }

    fn is_due(&self) -> bool {
        self.table.sweep_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = self.table.sweep(pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(tables = swept.spaces, "swept deleted tables");
        }
        Ok(())
    }
}

/// Sweeps what deleted and cleared queues have left behind.
pub(crate) struct QueueSweep {
    pub(crate) queue: QueueService,
}

#[async_trait]
impl Chore for QueueSweep {
    fn name(&self) -> &'static str {
        "queue sweep"
    }

    fn is_due(&self) -> bool {
        self.queue.garbage_due()
    }

    async fn run(&self, pace: Pace) -> Result<(), String> {
        let swept = self.queue.sweep_garbage(pace).await.map_err(|refusal| refusal.to_string())?;
        if swept.spaces > 0 {
            tracing::info!(queues = swept.spaces, "swept deleted and cleared queues");
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

    use super::*;

    struct Count {
        due: bool,
        runs: Arc<AtomicUsize>,
        endless: bool,
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
    async fn stopping_does_not_wait_for_a_chore_to_end() {
        let runs = Arc::new(AtomicUsize::new(0));
        let background =
            Background::start(vec![Box::new(Count { due: true, runs: runs.clone(), endless: true })]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        background.stop().await;
    }
}
