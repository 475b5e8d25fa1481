//! Everything that the server counts, as Prometheus text. Read when it is asked for.
//!
//! Metrics need no credentials, so they name no objects. Labels have values from fixed lists.

use std::path::PathBuf;
use std::sync::Arc;

use lazuli_extents::{Extents, LocalExtents};
use lazuli_front::Metrics;
use lazuli_generations::content::ContentSweeper;
use lazuli_metrics::Kind::{Counter, Gauge, Histogram};
use lazuli_metrics::Text;
use lazuli_queue::QueueService;
use lazuli_store::Embedded;
use lazuli_store::embedded::Task;

/// Micros in a second.
const MICROS: f64 = 1e6;
/// Ticks of the clock in a second.
const TICKS: f64 = 1e7;

/// Where the figures come from.
pub(crate) struct Sources {
    pub(crate) front: Arc<Metrics>,
    pub(crate) store: Arc<Embedded>,
    pub(crate) extents: LocalExtents,
    pub(crate) sweeper: Arc<ContentSweeper>,
    pub(crate) queue: QueueService,
    /// The data directory.
    pub(crate) data: PathBuf,
}

impl Sources {
    /// All of them. Asks the file system for free space and for the files of the log, so only where blocking is allowed.
    pub(crate) fn render(&self) -> String {
        let mut text = Text::default();
        let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
        text.family("lazuli_build_info", Gauge, "1, with the version as a label.");
        text.series("lazuli_build_info", &version, 1);
        self.health(&mut text);
        self.commits(&mut text);
        self.disk(&mut text);
        self.sizes(&mut text);
        self.front.render() + &text.finish()
    }

    fn health(&self, text: &mut Text) {
        let health = self.store.health();
        let stopped = u8::from(health.stopped.is_some());
        text.one("lazuli_store_stopped", Gauge, "1 if the store has stopped.", stopped);
        let stopped = u8::from(self.extents.is_stopped());
        text.one("lazuli_content_stopped", Gauge, "1 if content cannot be stored.", stopped);
        text.one("lazuli_store_full", Gauge, "1 if only deletes are accepted.", u8::from(health.full));
        let alarm = u8::from(self.sweeper.alarm().is_some());
        text.one("lazuli_sweep_incomplete", Gauge, "1 if the last sweep could not free all garbage.", alarm);
        text.family("lazuli_background_failing", Gauge, "1 if the last attempt failed.");
        for task in Task::ALL {
            let failing = health.failing.iter().any(|failure| failure.task == task);
            let labels = format!("task=\"{}\"", task.name());
            text.series("lazuli_background_failing", &labels, u8::from(failing));
        }
        text.family("lazuli_background_failures_total", Counter, "Failed attempts.");
        for task in Task::ALL {
            let labels = format!("task=\"{}\"", task.name());
            text.series("lazuli_background_failures_total", &labels, self.store.failed_attempts(task));
        }
        text.family("lazuli_damaged_reads_total", Counter, "Reads that found damage.");
        text.series("lazuli_damaged_reads_total", "what=\"rows\"", self.store.damaged_reads());
        text.series("lazuli_damaged_reads_total", "what=\"content\"", self.extents.damaged_reads());
    }

    fn commits(&self, text: &mut Text) {
        let (store, figures) = (&self.store, self.store.figures());
        let name = "lazuli_commit_seconds";
        text.family(name, Histogram, "From handing a commit over to its answer.");
        text.histogram(name, "", store.commit_times(), MICROS);
        let name = "lazuli_commit_group_size";
        text.family(name, Histogram, "Commits that the committer took at once.");
        text.histogram(name, "", store.group_sizes(), 1.0);
        let name = "lazuli_fsync_seconds";
        text.family(name, Histogram, "Syncs of the log and of content.");
        text.histogram(name, "what=\"log\"", store.log_sync_times(), MICROS);
        text.histogram(name, "what=\"segments\"", self.extents.sync_times(), MICROS);
        let retries = lazuli_store::retries_total();
        let help = "Attempts of transactions that had to be made again.";
        text.one("lazuli_transaction_retries_total", Counter, help, retries);
        let help = "Commits that wait for the committer.";
        text.one("lazuli_commit_queue_depth", Gauge, help, figures.queue_depth);
        text.one("lazuli_level0_runs", Gauge, "Runs in the tree's first level.", figures.level0_runs);
        let help = "Memtables that wait to be flushed.";
        text.one("lazuli_sealed_memtables", Gauge, help, figures.sealed_memtables);
        let help = "For how long the oldest snapshot in use has been out of date.";
        text.one("lazuli_oldest_snapshot_seconds", Gauge, help, figures.oldest_snapshot.as_secs_f64());
        let help = "How far the store's clock is ahead of the machine's.";
        text.one("lazuli_clock_lead_seconds", Gauge, help, figures.clock_lead.ticks() as f64 / TICKS);
    }

    fn disk(&self, text: &mut Text) {
        let space = self.extents.space();
        let device = rustix::fs::statvfs(&self.data).ok();
        let device = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            device.as_ref().map(|device| blocks(device).saturating_mul(device.f_frsize))
        };
        text.family("lazuli_disk_bytes", Gauge, "Bytes on disk. NaN: not known yet.");
        for (what, bytes) in [
            ("free", device(|device| device.f_bavail)),
            ("total", device(|device| device.f_blocks)),
            ("log", self.store.log_bytes().ok()),
            ("tree", Some(self.store.disk_bytes())),
            ("segments", Some(space.allocated_bytes)),
            ("live", space.live_bytes),
        ] {
            let bytes = bytes.map_or_else(|| "NaN".to_owned(), |bytes| bytes.to_string());
            text.series("lazuli_disk_bytes", &format!("what=\"{what}\""), bytes);
        }
        let help = "Bytes of content appended since the last sweep began.";
        text.one("lazuli_content_appended_bytes", Gauge, help, space.appended_since_mark);
        let help = "Bytes of content released since the last sweep began: garbage.";
        text.one("lazuli_content_garbage_bytes", Gauge, help, space.released_since_mark);
    }

    fn sizes(&self, text: &mut Text) {
        let help = "Messages remembered as candidates for the next gets.";
        text.one("lazuli_queue_candidates", Gauge, help, self.queue.candidates());
        let help = "Queues whose next expiry is remembered.";
        text.one("lazuli_queue_expiry_watched", Gauge, help, self.queue.watched_queues());
    }
}
