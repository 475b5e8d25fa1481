//! The metrics of the server as Prometheus text, collected on each request.
//!
//! Metrics need no credentials, so they name no objects but accounts. Labels have values from fixed lists, or
//! are names of accounts, which operators choose.

use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_blob::BlobService;
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::Extents;
use lazuli_file::FileService;
use lazuli_front::Metrics;
use lazuli_metrics::MetricKind::{Counter, Gauge, Histogram};
use lazuli_metrics::{StructureSize, Text};
use lazuli_queue::QueueService;
use lazuli_smb::SmbServer;
use lazuli_store::{SteadyClock, Store};
use lazuli_table::TableService;
use lazuli_telemetry::Telemetry;

use crate::background::ChoreHealth;
use crate::engine::Engine;
use crate::usage_counter::UsageCounter;

/// Micros in a second.
const MICROS: f64 = 1e6;
/// Ticks of the clock in a second.
const TICKS: f64 = 1e7;

/// The sources of the figures.
pub(crate) struct Sources {
    pub(crate) front: Arc<Metrics>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) extents: Arc<dyn Extents>,
    pub(crate) sweeper: Arc<ContentSweeper>,
    pub(crate) accounts: AccountDirectory,
    pub(crate) blob: BlobService,
    pub(crate) file: FileService,
    pub(crate) queue: QueueService,
    pub(crate) table: TableService,
    /// `None` if SMB is disabled.
    pub(crate) smb: Option<SmbServer>,
    pub(crate) telemetry: Telemetry,
    pub(crate) usage: Arc<UsageCounter>,
    /// Background tasks, including those of the engine.
    pub(crate) chores: Vec<Arc<ChoreHealth>>,
    pub(crate) clock: Arc<SteadyClock>,
}

impl Sources {
    /// Formats all metrics. Blocks, because the engine may.
    pub(crate) fn render(&self) -> String {
        let mut text = Text::default();
        let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
        text.family("lazuli_build_info", Gauge, "1, with the version as a label.");
        text.series("lazuli_build_info", &version, 1);
        self.engine.render(&mut text);
        self.transactions(&mut text);
        self.sweeps(&mut text);
        self.chores(&mut text);
        self.memory(&mut text);
        self.sizes(&mut text);
        self.structures(&mut text);
        self.smb(&mut text);
        self.telemetry(&mut text);
        self.usage.render(&mut text);
        self.front.render() + &text.finish()
    }

    fn transactions(&self, text: &mut Text) {
        let name = "lazuli_transaction_retries_total";
        text.family(name, Counter, "Repeated attempts of transactions.");
        for (service, retries) in [
            ("account", self.accounts.retries()),
            ("blob", self.blob.retries()),
            ("queue", self.queue.retries()),
            ("table", self.table.retries()),
            ("file", self.file.retries()),
        ] {
            text.series(name, &format!("service=\"{service}\""), retries);
        }
        let name = "lazuli_transactions_waiting";
        text.family(name, Gauge, "Transactions queued because of conflicts.");
        for (service, waiting) in [
            ("account", self.accounts.waiting()),
            ("blob", self.blob.waiting()),
            ("queue", self.queue.waiting()),
            ("table", self.table.waiting()),
            ("file", self.file.waiting()),
        ] {
            text.series(name, &format!("service=\"{service}\""), waiting);
        }
        let help = "Lead of the store's clock over the machine's. Negative: the machine's clock is ignored.";
        let lead = self.store.now().ticks() as f64 - self.clock.machine().ticks() as f64;
        text.one("lazuli_clock_lead_seconds", Gauge, help, lead / TICKS);
    }

    fn sweeps(&self, text: &mut Text) {
        let space = self.extents.storage_use();
        let help = "Bytes of content appended since the last sweep began.";
        text.one("lazuli_content_appended_bytes", Gauge, help, space.appended_since_mark);
        let help = "Bytes of content released since the last sweep began: garbage.";
        text.one("lazuli_content_garbage_bytes", Gauge, help, space.released_since_mark);
        let alarm = u8::from(self.sweeper.alarm().is_some());
        text.one("lazuli_sweep_incomplete", Gauge, "1 if the last sweep could not free all garbage.", alarm);
        let progress = self.sweeper.progress();
        let running = u8::from(progress.is_running());
        text.one("lazuli_sweep_running", Gauge, "1 while a content sweep is running.", running);
        let help = "Rows scanned by the content sweep, of lazuli_rows.";
        text.one("lazuli_sweep_rows", Gauge, help, progress.rows());
        let rows = self.store.row_counts().map_or(0, |counts| counts.added.saturating_sub(counts.removed));
        text.one("lazuli_rows", Gauge, "Rows in the store.", rows);
        text.one("lazuli_sweeps_total", Counter, "Finished content sweeps.", progress.ended());
        let help = "Bytes of content freed by sweeps.";
        text.one("lazuli_sweep_freed_bytes_total", Counter, help, progress.freed_bytes());
    }

    fn chores(&self, text: &mut Text) {
        let name = "lazuli_chore_seconds";
        text.family(name, Histogram, "Durations of background task runs.");
        let labeled = || self.chores.iter().map(|chore| (format!("chore=\"{}\"", chore.label()), chore));
        for (labels, chore) in labeled() {
            text.histogram(name, &labels, &chore.times, MICROS);
        }
        let name = "lazuli_chore_failing";
        text.family(name, Gauge, "1 if the last run of the task failed.");
        for (labels, chore) in labeled() {
            text.series(name, &labels, u8::from(chore.is_failing()));
        }
        let name = "lazuli_chore_failures_total";
        text.family(name, Counter, "Failed runs of the task.");
        for (labels, chore) in labeled() {
            text.series(name, &labels, chore.failures());
        }
    }

    fn memory(&self, text: &mut Text) {
        use tikv_jemalloc_ctl::{epoch, stats};
        // The allocator updates its figures once per epoch.
        let _ = epoch::advance();
        text.family("lazuli_memory_bytes", Gauge, "Memory by purpose, then as counted by the allocator.");
        let allocator = [
            ("allocated", stats::allocated::read().map_or(0, |bytes| bytes as u64)),
            ("active", stats::active::read().map_or(0, |bytes| bytes as u64)),
            ("resident", stats::resident::read().map_or(0, |bytes| bytes as u64)),
            ("retained", stats::retained::read().map_or(0, |bytes| bytes as u64)),
        ];
        for (what, bytes) in self.engine.memory().into_iter().chain(allocator) {
            text.series("lazuli_memory_bytes", &format!("what=\"{what}\""), bytes);
        }
    }

    fn sizes(&self, text: &mut Text) {
        text.one("lazuli_accounts", Gauge, "Accounts.", self.accounts.len());
        let name = "lazuli_pending_copies";
        text.family(name, Gauge, "Copies that continue after their requests, including queued ones.");
        text.series(name, "service=\"blob\"", self.blob.pending_copies());
        text.series(name, "service=\"file\"", self.file.pending_copies());
        let help = "Byte-range locks of all open files.";
        text.one("lazuli_range_locks", Gauge, help, self.file.opens().locks());
        let help = "Memory for dirty SMB data.";
        text.one("lazuli_unflushed_bytes", Gauge, help, self.file.opens().buffered());
        let help = "Queues whose first messages are cached.";
        text.one("lazuli_queue_lines", Gauge, help, self.queue.cached_queues());
        let help = "Messages cached as candidates for the next gets.";
        text.one("lazuli_queue_candidates", Gauge, help, self.queue.candidates());
        let help = "Queues whose next expiry is remembered.";
        text.one("lazuli_queue_expiry_watched", Gauge, help, self.queue.watched_queues());
        let help = "Shares whose quota and usage are remembered.";
        text.one("lazuli_share_usages", Gauge, help, self.file.share_usages());
    }

    /// Adds the sizes of structures that live as long as the process and have no metric of their own.
    fn structures(&self, text: &mut Text) {
        let (limited, derived) = (StructureSize::limited, StructureSize::derived);
        let incoming_spaces = self.blob.incoming_spaces()
            + self.queue.incoming_spaces()
            + self.table.incoming_spaces()
            + self.file.incoming_spaces();
        let mut structures = self.engine.structures();
        structures.extend([
            limited(
                "dropped_block_partitions",
                self.blob.partitions_with_dropped_blocks(),
                BlobService::MAX_PARTITIONS_WITH_DROPPED_BLOCKS,
            ),
            derived("incoming_spaces", incoming_spaces),
            derived("reserved_accounts", self.accounts.reserved()),
            derived("open_files", self.file.opens().files()),
            derived("directory_moves", self.file.opens().moves()),
        ]);
        if let Some(figures) = self.smb.as_ref().map(SmbServer::figures) {
            structures.extend([
                derived("smb_watches", figures.watches),
                derived("smb_peers", figures.peers),
                derived("smb_ending_sessions", figures.ending_sessions),
            ]);
        }
        let labels = |size: &StructureSize| format!("structure=\"{}\"", size.structure);
        let name = "lazuli_structure_entries";
        text.family(name, Gauge, "Entries of structures in memory.");
        for size in &structures {
            text.series(name, &labels(size), size.entries);
        }
        let name = "lazuli_structure_limit";
        text.family(name, Gauge, "Maximum number of entries, where it is a constant.");
        for size in &structures {
            if let Some(limit) = size.limit {
                text.series(name, &labels(size), limit);
            }
        }
    }

    fn telemetry(&self, text: &mut Text) {
        if let Some(tracer) = &self.telemetry.tracer {
            let figures = tracer.figures();
            let help = "Traces that the collector has accepted.";
            text.one("lazuli_traces_total", Counter, help, figures.exported);
            let name = "lazuli_lost_traces_total";
            text.family(name, Counter, "Traces lost because the collector is too slow or refuses them.");
            text.series(name, "reason=\"slow\"", figures.lost_waiting);
            text.series(name, "reason=\"failed\"", figures.lost_sending);
        }
        let Some(log) = &self.telemetry.access_log else { return };
        let figures = log.figures();
        let help = "Lines written to the access log.";
        text.one("lazuli_access_log_lines_total", Counter, help, figures.written);
        let name = "lazuli_access_log_lost_lines_total";
        text.family(name, Counter, "Lines missing in the access log, because it is too slow or has failed.");
        text.series(name, "reason=\"slow\"", figures.lost_waiting);
        text.series(name, "reason=\"failed\"", figures.lost_writing);
    }

    fn smb(&self, text: &mut Text) {
        let Some(server) = &self.smb else { return };
        server.render(text);
        let figures = server.figures();
        let mut gauge = |name: &str, help: &str, value: usize| _ = text.one(name, Gauge, help, value);
        gauge("lazuli_smb_connections", "SMB connections.", figures.connections);
        gauge("lazuli_smb_strangers", "SMB connections that have not logged in.", figures.unauthenticated);
        gauge("lazuli_smb_sessions", "SMB sessions, including those being set up.", figures.sessions);
        gauge("lazuli_smb_trees", "Connections of SMB sessions to shares.", figures.trees);
        let help = "Files and directories open over SMB, including durable opens of disconnected clients.";
        gauge("lazuli_smb_opens", help, figures.opens);
        let help = "Files and directories open over SMB by the account with the most.";
        gauge("lazuli_smb_most_opens_of_account", help, figures.most_opens_of_account);
        gauge("lazuli_smb_pipes", "Pipes open over SMB.", figures.pipes);
        let help = "Bytes of change notifications queued for SMB clients.";
        gauge("lazuli_smb_kept_event_bytes", help, figures.kept_event_bytes);
        let help = "Addresses, accounts and pairs of them whose failed SMB logins are remembered.";
        gauge("lazuli_smb_throttled", help, figures.throttled);
        let help = "Unauthenticated SMB connections dropped to admit others.";
        text.one("lazuli_smb_strangers_dropped_total", Counter, help, figures.dropped_unauthenticated);
        let help = "SMB logins that failed.";
        text.one("lazuli_smb_failed_logins_total", Counter, help, figures.failed_logins);
    }
}
