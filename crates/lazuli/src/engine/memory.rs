//! Data in memory, for tests. Nothing is written to disk, and all data is lost when the process ends.

use std::path::Path;
use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Clock, Timestamp};
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::{Extents, InMemoryExtents};
use lazuli_front::Readiness;
use lazuli_metrics::MetricKind::Gauge;
use lazuli_metrics::{StructureSize, Text};
use lazuli_store::{InMemoryStore, SteadyClock, Store, Trust, available_memory};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::Engine;
use crate::background::ChoreHealth;
use crate::control::{Control, DevelopmentKey};
use crate::health::{IN_MEMORY, NO_MEMORY};
use crate::report::RunningServer;
use crate::services::Services;
use crate::{Failure, data, services};

/// Share of the data memory that rows may use; content uses the rest.
const ROW_SHARE: u64 = 4;

pub(super) struct MemoryEngine {
    store: Arc<InMemoryStore>,
    extents: InMemoryExtents,
    clock: Arc<SteadyClock>,
}

impl MemoryEngine {
    /// Creates an empty engine that uses at most `max_bytes`, by default half of the memory available to the
    /// process.
    pub(super) fn open(max_bytes: Option<u64>, trust: Trust) -> Result<Self, Failure> {
        let clock = Arc::new(SteadyClock::of_machine(trust));
        clock.resume(Timestamp::default()).map_err(data::wrong_time)?;
        let max_bytes = max_bytes.unwrap_or_else(|| available_memory() / 2);
        let row_bytes = max_bytes / ROW_SHARE;
        tracing::warn!(max_bytes, "data is kept in memory only: it is lost when the process ends");
        Ok(Self {
            store: Arc::new(InMemoryStore::new(clock.clone(), row_bytes)),
            extents: InMemoryExtents::new(max_bytes - row_bytes),
            clock,
        })
    }
}

impl Engine for MemoryEngine {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn extents(&self) -> Arc<dyn Extents> {
        Arc::new(self.extents.clone())
    }

    fn clock(&self) -> Arc<SteadyClock> {
        self.clock.clone()
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn sweeper(&self) -> ContentSweeper {
        ContentSweeper::without_ledger(self.store(), self.extents(), services::content_readers())
    }

    fn readiness(&self, draining: bool) -> Readiness {
        if draining {
            return Readiness::NotReady("draining".into());
        }
        match self.full() {
            Some(reason) => Readiness::Degraded(vec![reason]),
            None => Readiness::ReadyWith(IN_MEMORY),
        }
    }

    fn full(&self) -> Option<String> {
        if self.store.is_full() {
            Some(format!("{NO_MEMORY} rows: only deletes are accepted"))
        } else if self.extents.is_full() {
            Some(format!("{NO_MEMORY} content: uploads are refused"))
        } else {
            None
        }
    }

    fn alarm(&self) -> Option<String> {
        None
    }

    fn chores(&self) -> Vec<Arc<ChoreHealth>> {
        vec![]
    }

    fn memory(&self) -> Vec<(&'static str, u64)> {
        vec![("rows", self.store.bytes()), ("content", self.extents.storage_use().allocated_bytes)]
    }

    fn structures(&self) -> Vec<StructureSize> {
        vec![]
    }

    fn render(&self, text: &mut Text) {
        let help = "1 if the last upload found no space.";
        text.one("lazuli_content_full", Gauge, help, u8::from(self.extents.is_full()));
        let help = "1 if only deletes are accepted.";
        text.one("lazuli_store_full", Gauge, help, u8::from(self.store.is_full()));
    }

    fn start_control(
        &self,
        _: &AccountDirectory,
        _: DevelopmentKey,
        _: &Services,
        _: RunningServer,
    ) -> Result<Option<Control>, Failure> {
        Ok(None)
    }

    fn start_background(&self, _: &Handle) -> Option<JoinHandle<()>> {
        None
    }

    fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}
