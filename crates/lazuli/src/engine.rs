//! Engines that keep the data of `lazuli serve`: in a directory or in memory.
//!
//! Services, SMB and chores use a [`Store`] and [`Extents`] and do not know the engine. [`Engine`] abstracts
//! what differs: health, metrics, work on files, the control socket and a clean shutdown.

mod directory;
mod memory;

use std::path::Path;
use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::Extents;
use lazuli_front::Readiness;
use lazuli_metrics::{StructureSize, Text};
use lazuli_store::{SteadyClock, Store, Trust};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::background::ChoreHealth;
use crate::config::{Config, Storage};
use crate::control::{Control, DevelopmentKey};
use crate::report::RunningServer;
use crate::services::Services;
use directory::DirectoryEngine;
use memory::MemoryEngine;

/// The open data of a server.
pub(crate) trait Engine: Send + Sync {
    /// Returns the store of the rows.
    fn store(&self) -> Arc<dyn Store>;

    /// Returns the store of the content.
    fn extents(&self) -> Arc<dyn Extents>;

    /// Returns the clock that the store follows.
    fn clock(&self) -> Arc<SteadyClock>;

    /// Returns the data directory, if there is one.
    fn directory(&self) -> Option<&Path>;

    /// Returns the sweeper that frees content that no row refers to.
    fn sweeper(&self) -> ContentSweeper;

    /// Returns whether rows and content can be read and written.
    fn readiness(&self, draining: bool) -> Readiness;

    /// Returns what is refused because there is no space left, if anything is.
    fn full(&self) -> Option<String>;

    /// Describes damage that was found in the background.
    fn alarm(&self) -> Option<String>;

    /// Returns the health of the engine's own background tasks.
    fn chores(&self) -> Vec<Arc<ChoreHealth>>;

    /// Returns the memory in use in bytes, by purpose.
    fn memory(&self) -> Vec<(&'static str, u64)>;

    /// Returns the sizes of the engine's structures in memory. May block.
    fn structures(&self) -> Vec<StructureSize>;

    /// Adds metrics that only this engine has. May block.
    fn render(&self, text: &mut Text);

    /// Opens the control socket, if this engine has one.
    fn start_control(
        &self,
        accounts: &AccountDirectory,
        rule: DevelopmentKey,
        services: &Services,
        running: RunningServer,
    ) -> Result<Option<Control>, Failure>;

    /// Starts the engine's own background tasks, which may be aborted at any point.
    fn start_background(&self, runtime: &Handle) -> Option<JoinHandle<()>>;

    /// Makes all data durable. Blocks.
    fn close(&self) -> Result<(), Failure>;
}

/// Opens the data as configured. Must be called within a runtime.
pub(crate) fn open(config: &Config) -> Result<Arc<dyn Engine>, Failure> {
    let trust = if config.accept_time { Trust::Any } else { Trust::Checked };
    Ok(match &config.data {
        Storage::Directory(path) => Arc::new(DirectoryEngine::open(path, config, trust)?),
        Storage::Memory { max_bytes } => Arc::new(MemoryEngine::open(*max_bytes, trust)?),
    })
}
