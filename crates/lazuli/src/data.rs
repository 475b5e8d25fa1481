//! An open data directory: the lock, the rows, the bytes.
//!
//! ```text
//! FORMAT  LOCK    whose it is and which format it has      store/      rows
//! control.sock    where `lazuli account` finds the server  segments/   bytes
//! tls/            a self-signed certificate, if there is one   sweep   what content sweeps remember
//! ```

use std::path::Path;
use std::sync::Arc;

use lazuli_concurrency::SystemClock;
use lazuli_extents::LocalExtents;
use lazuli_generations::content::ContentSweeper;
use lazuli_store::{Directory, DirectoryError, Embedded, Options};

use crate::{Failure, services};

/// Where the rows are.
pub(crate) const STORE: &str = "store";
/// What content sweeps remember.
const SWEEP_LEDGER: &str = "sweep";

/// A data directory that this process alone works on. The lock goes last.
pub(crate) struct Data {
    pub(crate) store: Arc<Embedded>,
    pub(crate) extents: LocalExtents,
    pub(crate) directory: Directory,
}

impl Data {
    /// Opens what a locked directory holds, and makes what it does not hold yet.
    pub(crate) fn open(directory: Directory, cache_bytes: Option<u64>) -> Result<Self, Failure> {
        let options = cache_bytes.map_or_else(Options::default, Options::with_cache);
        let path = directory.subdirectory(STORE).map_err(Failure::failed)?;
        let store = Embedded::open(&path, Arc::new(SystemClock), options).map_err(Failure::failed)?;
        let extents = LocalExtents::open(directory.path(), Default::default()).map_err(Failure::failed)?;
        Ok(Self { store: Arc::new(store), extents, directory })
    }

    /// Frees content that no row refers to.
    pub(crate) fn sweeper(&self) -> ContentSweeper {
        let ledger = self.directory.path().join(SWEEP_LEDGER);
        let extents = Arc::new(self.extents.clone());
        ContentSweeper::new(self.store.clone(), extents, services::content_readers(), ledger)
    }
}

/// Locks a data directory that must be there, for work that needs it stopped.
pub(crate) fn lock_stopped(path: &Path) -> Result<Directory, Failure> {
    Directory::open_existing(path).map_err(stop_first)
}

/// The same for work that only reads: nothing in the directory changes, and it may be read-only.
pub(crate) fn lock_to_read(path: &Path) -> Result<Directory, Failure> {
    Directory::open_read_only(path).map_err(stop_first)
}

fn stop_first(error: DirectoryError) -> Failure {
    match error {
        DirectoryError::InUse { .. } => Failure::Failed(format!("{error}. Stop the server first.")),
        error => Failure::failed(error),
    }
}
