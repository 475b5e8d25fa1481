//! Everything that the server counts, as Prometheus text. Read when it is asked for.
//!
//! Metrics need no credentials, so they name no objects. Labels have values from fixed lists.

use std::path::PathBuf;
use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_blob::BlobService;
use lazuli_extents::{Extents, LocalExtents};
use lazuli_file::FileService;
use lazuli_front::Metrics;
use lazuli_generations::content::ContentSweeper;
use lazuli_metrics::Kind::{Counter, Gauge, Histogram};
use lazuli_metrics::Text;
use lazuli_queue::QueueService;
use lazuli_smb::SmbServer;
use lazuli_store::embedded::Task;
use lazuli_store::{Embedded, SteadyClock, Store};
use lazuli_table::TableService;

use crate::scrub::Scrub;

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
    pub(crate) accounts: AccountDirectory,
    pub(crate) blob: BlobService,
    pub(crate) file: FileService,
    pub(crate) scrub: Arc<Scrub>,
    pub(crate) queue: QueueService,
    pub(crate) table: TableService,
    /// If it is served.
    pub(crate) smb: Option<SmbServer>,
    pub(crate) clock: Arc<SteadyClock>,
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
        self.sweeps(&mut text);
        self.memory(&mut text);
        self.scrub(&mut text);
        self.sizes(&mut text);
        self.smb(&mut text);
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
        let name = "lazuli_transaction_retries_total";
        text.family(name, Counter, "Attempts of transactions that had to be made again.");
        for (service, retries) in [
            ("account", self.accounts.retries()),
            ("blob", self.blob.retries()),
            ("queue", self.queue.retries()),
            ("table", self.table.retries()),
            ("file", self.file.retries()),
        ] {
            text.series(name, &format!("service=\"{service}\""), retries);
        }
        let help = "Commits that wait for the committer.";
        text.one("lazuli_commit_queue_depth", Gauge, help, figures.queue_depth);
        text.one("lazuli_level0_runs", Gauge, "Runs in the tree's first level.", figures.level0_runs);
        let help = "Memtables that wait to be flushed.";
        text.one("lazuli_sealed_memtables", Gauge, help, figures.sealed_memtables);
        let help = "For how long the oldest snapshot in use has been out of date.";
        text.one("lazuli_oldest_snapshot_seconds", Gauge, help, figures.oldest_snapshot.as_secs_f64());
        let help =
            "How far the store's clock is ahead of the machine's. Negative: the machine's is not followed.";
        let lead = self.store.now().ticks() as f64 - self.clock.machine().ticks() as f64;
        text.one("lazuli_clock_lead_seconds", Gauge, help, lead / TICKS);
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

    fn sweeps(&self, text: &mut Text) {
        let progress = self.sweeper.progress();
        let running = u8::from(progress.is_running());
        text.one("lazuli_sweep_running", Gauge, "1 while content is swept.", running);
        let help = "Rows that the sweep of content has walked over, of lazuli_rows.";
        text.one("lazuli_sweep_rows", Gauge, help, progress.rows());
        let rows = self.store.row_counts().map_or(0, |counts| counts.added.saturating_sub(counts.removed));
        text.one("lazuli_rows", Gauge, "Rows in the store.", rows);
        text.one("lazuli_sweeps_total", Counter, "Sweeps of content that have ended.", progress.ended());
        let help = "Bytes of content that sweeps have freed.";
        text.one("lazuli_sweep_freed_bytes_total", Counter, help, progress.freed_bytes());
    }

    fn memory(&self, text: &mut Text) {
        use tikv_jemalloc_ctl::{epoch, stats};
        let figures = self.store.figures();
        // The allocator's figures are as of the last epoch.
        let _ = epoch::advance();
        text.family("lazuli_memory_bytes", Gauge, "Memory by what it is for, then as the allocator sees it.");
        for (what, bytes) in [
            ("memtable", figures.memtable_bytes),
            ("table_blocks", figures.cached_block_bytes),
            ("runs", figures.run_bytes as u64),
            ("pinned", figures.pinned_bytes as u64),
            ("allocated", stats::allocated::read().map_or(0, |bytes| bytes as u64)),
            ("active", stats::active::read().map_or(0, |bytes| bytes as u64)),
            ("resident", stats::resident::read().map_or(0, |bytes| bytes as u64)),
            ("retained", stats::retained::read().map_or(0, |bytes| bytes as u64)),
        ] {
            text.series("lazuli_memory_bytes", &format!("what=\"{what}\""), bytes);
        }
        let help = "Lists of tables that a snapshot may still need.";
        text.one("lazuli_table_versions", Gauge, help, figures.old_versions);
    }

    fn scrub(&self, text: &mut Text) {
        let status = self.scrub.status();
        let help = "Bytes verified in the pass under way, or in the last one.";
        text.one("lazuli_scrub_done_bytes", Gauge, help, status.done);
        let help = "Bytes that the pass under way verifies in all.";
        text.one("lazuli_scrub_size_bytes", Gauge, help, status.total);
        text.one("lazuli_scrub_read_bytes_total", Counter, "Bytes that scrubs have read.", status.read);
        let finished = status.finished.map_or(f64::NAN, |at| at.unix_seconds() as f64);
        let help = "When the last whole pass of the scrub ended. NaN: never.";
        text.one("lazuli_scrub_last_pass_timestamp_seconds", Gauge, help, finished);
        let help = "Damaged places that the scrub knows of, each counted once.";
        text.one("lazuli_scrub_damaged_places", Gauge, help, status.damaged);
    }

    fn sizes(&self, text: &mut Text) {
        let help = "Messages remembered as candidates for the next gets.";
        text.one("lazuli_queue_candidates", Gauge, help, self.queue.candidates());
        let help = "Queues whose next expiry is remembered.";
        text.one("lazuli_queue_expiry_watched", Gauge, help, self.queue.watched_queues());
    }

    fn smb(&self, text: &mut Text) {
        let Some(figures) = self.smb.as_ref().map(SmbServer::figures) else { return };
        let mut gauge = |name: &str, help: &str, value: usize| _ = text.one(name, Gauge, help, value);
        gauge("lazuli_smb_connections", "SMB connections.", figures.connections);
        gauge("lazuli_smb_strangers", "SMB connections that have not logged in.", figures.strangers);
        gauge("lazuli_smb_sessions", "SMB sessions, those being set up included.", figures.sessions);
        gauge("lazuli_smb_trees", "Connections of SMB sessions to shares.", figures.trees);
        let help = "Files and directories open over SMB, those that wait for lost clients included.";
        gauge("lazuli_smb_opens", help, figures.opens);
        gauge("lazuli_smb_pipes", "Pipes open over SMB.", figures.pipes);
        let help = "Bytes of change notifications kept for SMB clients.";
        gauge("lazuli_smb_kept_event_bytes", help, figures.kept_event_bytes);
        let help = "Addresses, accounts and pairs of them whose failed SMB logins are remembered.";
        gauge("lazuli_smb_throttled", help, figures.throttled);
        let help = "SMB connections dropped for others because they had not logged in.";
        text.one("lazuli_smb_strangers_dropped_total", Counter, help, figures.dropped_strangers);
        let help = "SMB logins that failed.";
        text.one("lazuli_smb_failed_logins_total", Counter, help, figures.failed_logins);
    }
}
