//! An open data directory: its lock, rows and content.
//!
//! ```text
//! FORMAT        the format of the directory
//! LOCK          the lock file of the process that uses the directory
//! store/        rows
//! segments/     content
//! sweep         the ledger of content sweeps
//! scrub         the progress of the scrub
//! control.sock  the socket of `lazuli account`, `backup` and `restore --only`
//! tls/          the self-signed certificate, if the server has created one
//! ```

use std::path::Path;
use std::sync::Arc;

use lazuli_concurrency::WrongTime;
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::LocalExtents;
use lazuli_protocol::date;
use lazuli_store::{Directory, DirectoryError, Embedded, OpenError, Options, SteadyClock, Trust};

use crate::{Failure, services};

/// The subdirectory of the rows.
pub(crate) const STORE: &str = "store";
/// The file in which content sweeps keep their ledger.
const SWEEP_LEDGER: &str = "sweep";

/// A data directory that this process has locked. The lock is dropped last.
pub(crate) struct Data {
    pub(crate) store: Arc<Embedded>,
    pub(crate) extents: LocalExtents,
    pub(crate) clock: Arc<SteadyClock>,
    pub(crate) directory: Directory,
}

impl Data {
    /// Opens the store and the segments of a locked directory, and creates them if they are missing.
    pub(crate) fn open(
        directory: Directory,
        cache_bytes: Option<u64>,
        trust: Trust,
    ) -> Result<Self, Failure> {
        let options = cache_bytes.map_or_else(Options::default, Options::with_cache);
        let path = directory.subdirectory(STORE).map_err(Failure::failed)?;
        let clock = Arc::new(SteadyClock::of_machine(trust));
        let store = Embedded::open(&path, clock.clone(), options).map_err(|error| match error {
            OpenError::Time(wrong) => wrong_time(wrong),
            error => Failure::failed(error),
        })?;
        let extents = LocalExtents::open(directory.path(), Default::default()).map_err(Failure::failed)?;
        Ok(Self { store: Arc::new(store), extents, clock, directory })
    }

    /// Creates the sweeper that frees content that no row refers to.
    pub(crate) fn sweeper(&self) -> ContentSweeper {
        let ledger = self.directory.path().join(SWEEP_LEDGER);
        let extents = Arc::new(self.extents.clone());
        ContentSweeper::new(self.store.clone(), extents, services::content_readers(), ledger)
    }
}

/// Converts the error for a wrong clock into a message that says what to do.
pub(crate) fn wrong_time(wrong: WrongTime) -> Failure {
    Failure::Failed(match wrong {
        WrongTime::Behind { machine, latest } => {
            let (machine, latest) = (date::iso8601_seconds(machine), date::iso8601_seconds(latest));
            format!(
                "the machine's clock says {machine}, but the latest time known here is {latest}: the clock is behind, or \
                 it was ahead before. Set it and start again. If it is right, start with --accept-time: time then goes on \
                 from {latest}, and clients see dates that are ahead until the machine's clock gets there."
            )
        }
        WrongTime::Ahead { machine, latest } => {
            let (machine, latest) = (date::iso8601_seconds(machine), date::iso8601_seconds(latest));
            format!(
                "the machine's clock says {machine}, which is years after the latest time known here, {latest}. What is \
                 written with a wrong time stays so: set the clock and start again. If it is right, start with \
                 --accept-time."
            )
        }
    })
}

/// Locks an existing data directory, for commands that need a stopped server.
pub(crate) fn lock_stopped(path: &Path) -> Result<Directory, Failure> {
    Directory::open_existing(path).map_err(stop_first)
}

/// Locks an existing data directory for reading only. The directory is not changed, and may be read-only.
pub(crate) fn lock_to_read(path: &Path) -> Result<Directory, Failure> {
    Directory::open_read_only(path).map_err(stop_first)
}

fn stop_first(error: DirectoryError) -> Failure {
    match error {
        DirectoryError::InUse { .. } => Failure::Failed(format!("{error}. Stop the server first.")),
        error => Failure::failed(error),
    }
}
