//! Engines for tests of services: rows and bytes in memory, which is much faster, or in files, as in servers.
//!
//! With `LAZULI_TEST_ENGINE=embedded` in the environment every test uses files.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use lazuli_concurrency::{Clock, ManualClock, Timestamp};
use lazuli_extents::{Extents, InMemoryExtents, LocalExtents};
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_store::{
    Commit, CommitError, Embedded, InMemoryStore, Options, Partition, ReadError, Row, SpaceHeader, SpaceId,
    Store,
};
use tempfile::TempDir;
use tokio::task::unconstrained;

/// Capacity of stores in memory, more than any test needs.
const MAX_BYTES: u64 = 1 << 30;

/// The environment variable that selects the engine: `memory`, the default, or `embedded`.
const VARIABLE: &str = "LAZULI_TEST_ENGINE";

/// Rows and bytes, empty at first. Dropping the last clone deletes them.
#[derive(Clone)]
pub struct Engine {
    /// The rows.
    pub store: Arc<dyn Store>,
    /// The bytes.
    pub extents: Arc<dyn Extents>,
    clock: Arc<ManualClock>,
    backing: Backing,
}

#[derive(Clone)]
enum Backing {
    Memory { rows: Arc<InMemoryStore>, process: Arc<Interposed<Process>> },
    Files { directory: Arc<TempDir>, store: Arc<Embedded> },
}

impl Engine {
    /// Opens the engine that the environment selects.
    pub fn new(clock: Arc<ManualClock>) -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Ok("embedded") => Self::embedded(clock),
            Ok("memory") | Err(_) => Self::in_memory(clock),
            Ok(other) => panic!("{VARIABLE}: {other} is neither memory nor embedded"),
        }
    }

    /// Opens an engine in memory.
    pub fn in_memory(clock: Arc<ManualClock>) -> Self {
        let rows = Arc::new(InMemoryStore::new(clock.clone(), MAX_BYTES));
        Self::with_rows(rows, Arc::new(InMemoryExtents::new(MAX_BYTES)), clock)
    }

    /// Opens the embedded engine of servers in its own directory, for tests of its files.
    pub fn embedded(clock: Arc<ManualClock>) -> Self {
        Self::open(Arc::new(tempfile::tempdir().unwrap()), clock)
    }

    /// Returns an engine for a new process that has just opened the rows.
    fn with_rows(rows: Arc<InMemoryStore>, extents: Arc<dyn Extents>, clock: Arc<ManualClock>) -> Self {
        let process = Arc::new(Interposed::new(rows.clone(), Process::default()));
        let store = process.clone() as Arc<dyn Store>;
        Self { store, extents, clock, backing: Backing::Memory { rows, process } }
    }

    fn open(directory: Arc<TempDir>, clock: Arc<ManualClock>) -> Self {
        let path = directory.path().join("store");
        std::fs::create_dir_all(&path).unwrap();
        let store = Arc::new(Embedded::open(&path, clock.clone(), Options::SMALL).unwrap());
        let extents = Arc::new(LocalExtents::open(directory.path(), Default::default()).unwrap());
        Self { store: store.clone(), extents, clock, backing: Backing::Files { directory, store } }
    }

    /// Ends the simulated process and returns the engine for the next one. Remaining tasks of the ended
    /// process can no longer commit.
    pub async fn reopen(self) -> Self {
        let Self { extents, clock, backing, store } = self;
        drop(store);
        match backing {
            Backing::Memory { rows, process } => {
                process.interposer.ended.store(true, Ordering::SeqCst);
                Self::with_rows(rows, extents, clock)
            }
            Backing::Files { directory, store } => {
                drop(extents);
                tokio::task::spawn_blocking(move || store.close()).await.unwrap();
                Self::open(directory, clock)
            }
        }
    }

    /// Returns the directory with the engine's files.
    ///
    /// # Panics
    /// If the engine is in memory.
    pub fn directory(&self) -> &Path {
        match &self.backing {
            Backing::Memory { .. } => panic!("a test that reads files needs Engine::embedded"),
            Backing::Files { directory, .. } => directory.path(),
        }
    }

    /// Returns a clock that shows the store's time, as servers use it.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(StoreClock(self.store.clone()))
    }
}

struct StoreClock(Arc<dyn Store>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// A simulated process that has the rows open. Its commits fail once it has ended.
#[derive(Default)]
struct Process {
    ended: AtomicBool,
}

impl Process {
    fn check(&self) -> Result<(), CommitError> {
        if self.ended.load(Ordering::SeqCst) { Err(CommitError::Stopped) } else { Ok(()) }
    }
}

#[async_trait]
impl Interposer for Process {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        self.check()?;
        store.commit(partition, commit).await
    }

    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        self.check()?;
        store.set_space(space, from, to).await
    }
}

/// Scans all rows of a store.
pub trait AllRows {
    /// Passes every row of every space to `visit`, in order of space, partition and key.
    fn for_each_row(
        &self,
        visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError> + Send,
    ) -> Result<(), ReadError>;
}

impl AllRows for dyn Store {
    fn for_each_row(
        &self,
        mut visit: impl FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError> + Send,
    ) -> Result<(), ReadError> {
        let (mut from, mut failed) = (None, Ok(()));
        loop {
            let mut visitor = |space, partition: Bytes, row: Row| {
                failed = visit(space, &partition, &row);
                if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            // Engines never wait for I/O when they read, so without the task budget one poll completes.
            let page = unconstrained(self.visit_all(from, &mut visitor)).now_or_never();
            from = page.expect("an answer at once")?;
            if failed.is_err() || from.is_none() {
                return failed;
            }
        }
    }
}
