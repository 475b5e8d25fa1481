//! Data in a directory: the embedded engine and segment files, with the scrub and the control socket.

use std::path::Path;
use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::Extents;
use lazuli_front::Readiness;
use lazuli_metrics::MetricKind::{Counter, Gauge, Histogram};
use lazuli_metrics::{StructureSize, Text};
use lazuli_store::embedded::Task;
use lazuli_store::{Directory, SteadyClock, Store, Trust};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Engine;
use crate::background::ChoreHealth;
use crate::config::Config;
use crate::control::{Control, DevelopmentKey, Intakes};
use crate::data::Data;
use crate::health::ContentHealth;
use crate::report::RunningServer;
use crate::scrub::Scrub;
use crate::services::Services;
use crate::{Failure, health};

/// Micros in a second.
const MICROS: f64 = 1e6;

pub(super) struct DirectoryEngine {
    data: Data,
    scrub: Arc<Scrub>,
}

impl DirectoryEngine {
    pub(super) fn open(path: &Path, config: &Config, trust: Trust) -> Result<Self, Failure> {
        let directory = Directory::open(path).map_err(Failure::failed)?;
        let data = Data::open(directory, config.cache_bytes, trust)?;
        health::log_failures(&data.store);
        let scrub = Arc::new(Scrub::new(&data, data.clock.clone(), config.scrub_rate));
        Ok(Self { data, scrub })
    }
}

impl Engine for DirectoryEngine {
    fn store(&self) -> Arc<dyn Store> {
        self.data.store.clone()
    }

    fn extents(&self) -> Arc<dyn Extents> {
        Arc::new(self.data.extents.clone())
    }

    fn clock(&self) -> Arc<SteadyClock> {
        self.data.clock.clone()
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.data.directory.path())
    }

    fn sweeper(&self) -> ContentSweeper {
        self.data.sweeper()
    }

    fn readiness(&self, draining: bool) -> Readiness {
        health::readiness(draining, ContentHealth::of(&self.data.extents), &self.data.store.health())
    }

    fn full(&self) -> Option<String> {
        let full = health::full(ContentHealth::of(&self.data.extents), &self.data.store.health());
        full.map(str::to_owned)
    }

    fn alarm(&self) -> Option<String> {
        self.scrub.alarm()
    }

    fn chores(&self) -> Vec<Arc<ChoreHealth>> {
        vec![self.scrub.health().clone()]
    }

    fn memory(&self) -> Vec<(&'static str, u64)> {
        let figures = self.data.store.figures();
        vec![
            ("memtable", figures.memtable_bytes),
            ("table_blocks", figures.cached_block_bytes),
            ("runs", figures.run_bytes as u64),
            ("pinned", figures.pinned_bytes as u64),
        ]
    }

    fn structures(&self) -> Vec<StructureSize> {
        let mut structures = self.data.store.structures();
        structures.extend(self.data.extents.structures());
        structures
    }

    /// Asks the file system for free space and for the files of the log.
    fn render(&self, text: &mut Text) {
        self.render_health(text);
        self.render_commits(text);
        self.render_disk(text);
        self.render_scrub(text);
    }

    fn start_control(
        &self,
        accounts: &AccountDirectory,
        rule: DevelopmentKey,
        services: &Services,
        running: RunningServer,
    ) -> Result<Option<Control>, Failure> {
        let intakes = Intakes::new(self.store(), self.extents(), accounts.clone(), services);
        let (directory, extents) = (self.data.directory.path(), self.data.extents.clone());
        Control::start(directory, extents, accounts.clone(), rule, Some(intakes), Some(running))
            .map(Some)
            .map_err(|error| Failure::Failed(format!("control socket: {error}")))
    }

    fn start_background(&self, runtime: &Handle) -> Option<JoinHandle<()>> {
        let scrub = self.scrub.clone();
        Some(runtime.spawn(async move { scrub.run().await }))
    }

    fn close(&self) -> Result<(), Failure> {
        self.data.store.close();
        match self.data.store.is_healthy() {
            true => Ok(()),
            false => Err(Failure::Failed("the store had stopped after a disk failure".into())),
        }
    }
}

impl DirectoryEngine {
    fn render_health(&self, text: &mut Text) {
        let Data { store, extents, .. } = &self.data;
        let health = store.health();
        let stopped = u8::from(health.stopped.is_some());
        text.one("lazuli_store_stopped", Gauge, "1 if the store has stopped.", stopped);
        let stopped = u8::from(extents.is_stopped());
        text.one("lazuli_content_stopped", Gauge, "1 if content cannot be stored.", stopped);
        let help = "1 if the last upload found no space.";
        text.one("lazuli_content_full", Gauge, help, u8::from(extents.is_full()));
        text.one("lazuli_store_full", Gauge, "1 if only deletes are accepted.", u8::from(health.full));
        text.family("lazuli_background_failing", Gauge, "1 if the last attempt failed.");
        for task in Task::ALL {
            let failing = health.failing.iter().any(|failure| failure.task == task);
            let labels = format!("task=\"{}\"", task.name());
            text.series("lazuli_background_failing", &labels, u8::from(failing));
        }
        text.family("lazuli_background_failures_total", Counter, "Failed attempts.");
        for task in Task::ALL {
            let labels = format!("task=\"{}\"", task.name());
            text.series("lazuli_background_failures_total", &labels, store.failed_attempts(task));
        }
        text.family("lazuli_damaged_reads_total", Counter, "Reads that found damage.");
        text.series("lazuli_damaged_reads_total", "what=\"rows\"", store.damaged_reads());
        text.series("lazuli_damaged_reads_total", "what=\"content\"", extents.damaged_reads());
    }

    fn render_commits(&self, text: &mut Text) {
        let Data { store, extents, .. } = &self.data;
        let figures = store.figures();
        let name = "lazuli_commit_seconds";
        text.family(name, Histogram, "Time from submitting a commit to its result.");
        text.histogram(name, "", store.commit_times(), MICROS);
        let name = "lazuli_commit_group_size";
        text.family(name, Histogram, "Commits per group of the committer.");
        text.histogram(name, "", store.group_sizes(), 1.0);
        let name = "lazuli_fsync_seconds";
        text.family(name, Histogram, "Syncs of the log and of content.");
        text.histogram(name, "what=\"log\"", store.log_sync_times(), MICROS);
        text.histogram(name, "what=\"segments\"", extents.sync_times(), MICROS);
        let help = "Commits that wait for the committer.";
        text.one("lazuli_commit_queue_depth", Gauge, help, figures.queue_depth);
        text.one("lazuli_level0_runs", Gauge, "Runs in the tree's first level.", figures.level0_runs);
        let help = "Memtables that wait to be flushed.";
        text.one("lazuli_sealed_memtables", Gauge, help, figures.sealed_memtables);
        let help = "For how long the oldest snapshot in use has been out of date.";
        text.one("lazuli_oldest_snapshot_seconds", Gauge, help, figures.oldest_snapshot.as_secs_f64());
        let help = "Lists of tables that a snapshot may still need.";
        text.one("lazuli_table_versions", Gauge, help, figures.old_versions);
    }

    fn render_disk(&self, text: &mut Text) {
        let Data { store, extents, directory, .. } = &self.data;
        let space = extents.storage_use();
        let device = rustix::fs::statvfs(directory.path()).ok();
        let device = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            device.as_ref().map(|device| blocks(device).saturating_mul(device.f_frsize))
        };
        text.family("lazuli_disk_bytes", Gauge, "Bytes on disk. NaN: not known yet.");
        for (what, bytes) in [
            ("free", device(|device| device.f_bavail)),
            ("total", device(|device| device.f_blocks)),
            ("log", store.log_bytes().ok()),
            ("tree", Some(store.disk_bytes())),
            ("segments", Some(space.allocated_bytes)),
            ("live", space.live_bytes),
        ] {
            let bytes = bytes.map_or_else(|| "NaN".to_owned(), |bytes| bytes.to_string());
            text.series("lazuli_disk_bytes", &format!("what=\"{what}\""), bytes);
        }
    }

    fn render_scrub(&self, text: &mut Text) {
        let status = self.scrub.status();
        let help = "Bytes verified in the current pass, or in the last one.";
        text.one("lazuli_scrub_done_bytes", Gauge, help, status.done);
        let help = "Total bytes that the current pass verifies.";
        text.one("lazuli_scrub_size_bytes", Gauge, help, status.total);
        text.one("lazuli_scrub_read_bytes_total", Counter, "Bytes that scrubs have read.", status.read);
        let finished = status.finished.map_or(f64::NAN, |at| at.unix_seconds() as f64);
        let help = "When the last whole pass of the scrub ended. NaN: never.";
        text.one("lazuli_scrub_last_pass_timestamp_seconds", Gauge, help, finished);
        let help = "Damaged places that the scrub knows of, each counted once.";
        text.one("lazuli_scrub_damaged_places", Gauge, help, status.damaged);
    }
}
