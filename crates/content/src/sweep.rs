//! Frees content that no row refers to.
//!
//! A sweep scans all rows in small pages. Each page has its own snapshot, so the scan retains no overwritten
//! rows. Decision 0023 explains why such a scan misses no content in use:
//!
//! - The key of a row determines whether the row refers to content. The name of the row's container and its
//!   deletion do not matter: content is in use until its row is removed.
//! - A request that moves content from a row ahead of the scan to a row behind it
//!   [holds](lazuli_extents::ContentHold) the content meanwhile.
//!
//! A sweep frees less, or nothing, if it cannot determine which content is in use. The [ledger] keeps the
//! state for this.

mod ledger;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lazuli_concurrency::Pace;
use lazuli_extents::{Content, Error, Extents, Freed, Sweep};
use lazuli_service::Damage;
use lazuli_store::{CommitError, ReadError, Row, RowCounts, RowPosition, SpaceId, Store, Token};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use xxhash_rust::xxh3::Xxh3;

pub use ledger::LedgerError;
use ledger::{Ledger, RowDigest};

/// Number of rows in a page, which is read without a pause.
const PAGE_ROWS: usize = 1024;
/// Minimum interval between writes of a ledger without new information.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// Returns the content that a row of one service refers to, and none for rows of other services. The result
/// must not depend on other rows.
pub type ContentReader = fn(SpaceId, &[u8], &Row) -> Result<Vec<Content>, Damage>;

/// The reason why a sweep freed nothing.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The content could not be read or freed.
    #[error("content: {0}")]
    Extents(#[from] Error),
    /// The rows could not be read.
    #[error("rows: {0}")]
    Read(#[from] ReadError),
    /// The store does not take commits.
    #[error("rows: {0}")]
    Commit(#[from] CommitError),
    /// Rows are missing.
    #[error("{0}")]
    RowsMissing(String),
    /// The ledger could not be written.
    #[error("the sweep ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// A task was stopped.
    #[error("the scan was stopped")]
    Stopped,
}

/// Sweeps the content of one data directory.
pub struct ContentSweeper {
    store: Arc<dyn Store>,
    extents: Arc<dyn Extents>,
    readers: Arc<[ContentReader]>,
    /// The file of the ledger, if the rows outlive the process.
    ledger: Option<PathBuf>,
    page_rows: usize,
    progress: Progress,
    state: Mutex<SweepState>,
}

/// The progress of sweeps.
#[derive(Debug, Default)]
pub struct Progress {
    running: AtomicBool,
    rows: AtomicU64,
    ended: AtomicU64,
    freed: AtomicU64,
}

impl Progress {
    /// Returns whether a sweep is running.
    pub fn is_running(&self) -> bool {
        self.running.load(Relaxed)
    }

    /// Returns the number of rows that the running or last sweep has scanned.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    /// Returns the number of finished sweeps.
    pub fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }

    /// Returns the bytes that sweeps have freed.
    pub fn freed_bytes(&self) -> u64 {
        self.freed.load(Relaxed)
    }
}

/// Marks a sweep as running until dropped.
struct RunningSweep<'a>(&'a Progress);

impl<'a> RunningSweep<'a> {
    fn begin(progress: &'a Progress) -> Self {
        progress.rows.store(0, Relaxed);
        progress.running.store(true, Relaxed);
        Self(progress)
    }
}

impl Drop for RunningSweep<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Relaxed);
    }
}

#[derive(Default)]
struct SweepState {
    /// Read from its file by the first sweep.
    ledger: Option<Ledger>,
    saved: Option<Instant>,
    alarm: Option<String>,
}

/// The result of a scan.
struct ScanResult {
    rows: u64,
    /// Rows that no reader could decode.
    undecodable: Vec<RowDigest>,
    example: Option<String>,
}

impl ContentSweeper {
    /// Creates a sweeper that keeps its ledger in a file.
    pub fn new(
        store: Arc<dyn Store>,
        extents: Arc<dyn Extents>,
        readers: impl Into<Arc<[ContentReader]>>,
        ledger: PathBuf,
    ) -> Self {
        Self { ledger: Some(ledger), ..Self::without_ledger(store, extents, readers) }
    }

    /// Creates a sweeper for rows that do not outlive the process.
    pub fn without_ledger(
        store: Arc<dyn Store>,
        extents: Arc<dyn Extents>,
        readers: impl Into<Arc<[ContentReader]>>,
    ) -> Self {
        let (readers, state, progress) = (readers.into(), Mutex::default(), Progress::default());
        Self { store, extents, readers, ledger: None, page_rows: PAGE_ROWS, progress, state }
    }

    /// Sets the number of rows in a page, for tests.
    #[must_use]
    pub fn with_page_rows(self, page_rows: usize) -> Self {
        Self { page_rows, ..self }
    }

    /// Returns why the last sweep did not free all garbage, or `None` if it did.
    pub fn alarm(&self) -> Option<String> {
        self.state.lock().alarm.clone()
    }

    /// Returns the progress of sweeps.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Accepts that rows are missing. The next sweep counts the rows again and frees the content of the
    /// missing ones.
    pub async fn accept_missing_rows(&self) -> Result<(), SweepError> {
        let mut ledger = self.ledger().await?;
        ledger.accept_missing_rows();
        self.save(ledger).await
    }

    /// Scans all rows, then frees the content that none of them refers to. Frees nothing if the future is
    /// dropped before the end of the scan.
    pub async fn sweep(&self, pace: Pace) -> Result<Freed, SweepError> {
        let running = RunningSweep::begin(&self.progress);
        let swept = self.try_sweep(pace).await;
        drop(running);
        if let Ok(freed) = &swept {
            self.progress.ended.fetch_add(1, Relaxed);
            self.progress.freed.fetch_add(freed.bytes, Relaxed);
        }
        if let Err(SweepError::RowsMissing(why)) = &swept {
            self.raise(Some(format!("no content is freed: {why}")));
        }
        swept
    }

    async fn try_sweep(&self, pace: Pace) -> Result<Freed, SweepError> {
        let mut ledger = self.ledger().await?;
        let mut sweep = Sweep::begin(&self.extents, pace).await?;
        // A disconnected client has dropped its writer, but its commit may still be queued. After this wait
        // the commit has taken effect or never will. Later commits have writers that the sweep respects.
        self.store.wait_for_commits().await?;
        let before = self.store.row_counts();
        let scanned = self.scan(&mut sweep, pace).await?;
        let after = self.store.row_counts();
        if let (Some(before), Some(after)) = (before, after) {
            ledger.judge(before, after, scanned.rows).map_err(SweepError::RowsMissing)?;
        }
        let kept = ledger.quarantine(&scanned.undecodable, sweep.horizon());
        if let Some(below) = kept.below {
            sweep.keep_below(below);
        }
        let freed = sweep.finish().await?;
        self.raise(incomplete(&scanned, &freed));
        ledger.live_bytes = freed.live_bytes;
        self.keep_ledger(ledger, kept.is_new).await?;
        Ok(freed)
    }

    /// Marks the content of all rows.
    async fn scan(&self, sweep: &mut Sweep, pace: Pace) -> Result<ScanResult, SweepError> {
        let mut scanned = ScanResult { rows: 0, undecodable: vec![], example: None };
        let mut from = None;
        loop {
            let page = self.page(from).await?;
            scanned.rows += page.rows;
            self.progress.rows.store(scanned.rows, Relaxed);
            for content in &page.contents {
                sweep.mark(content).await?;
            }
            scanned.example =
                scanned.example.or_else(|| page.undecodable.first().map(|(_, text)| text.clone()));
            let room = ledger::MAX_SUSPECTS + 1 - scanned.undecodable.len();
            scanned.undecodable.extend(page.undecodable.iter().map(|(row, _)| *row).take(room));
            from = page.next;
            if from.is_none() {
                return Ok(scanned);
            }
            pace.rest().await;
        }
    }

    /// Reads one page on a blocking thread. Releases the snapshot before the content is marked.
    async fn page(&self, from: Option<RowPosition>) -> Result<Page, SweepError> {
        let (store, readers, most) = (self.store.clone(), self.readers.clone(), self.page_rows as u64);
        let read = tokio::task::spawn_blocking(move || {
            let mut page = Page::default();
            let mut visitor = |space, partition: bytes::Bytes, row: Row| {
                if page.rows == most {
                    return ControlFlow::Break(());
                }
                page.add(&readers, space, &partition, &row);
                ControlFlow::Continue(())
            };
            let next = Handle::current().block_on(store.visit_all(from, &mut visitor))?;
            Ok(Page { next, ..page })
        });
        read.await.map_err(|_| SweepError::Stopped)?
    }

    async fn ledger(&self) -> Result<Ledger, SweepError> {
        if let Some(ledger) = &self.state.lock().ledger {
            return Ok(ledger.clone());
        }
        let Some(path) = self.ledger.clone() else { return Ok(Ledger::default()) };
        let ledger = tokio::task::spawn_blocking(move || Ledger::read(&path)).await;
        let ledger = ledger.map_err(|_| SweepError::Stopped)??;
        self.state.lock().ledger = Some(ledger.clone());
        Ok(ledger)
    }

    /// Keeps the ledger in memory. Also writes its file if the ledger has new information or the file is old.
    async fn keep_ledger(&self, ledger: Ledger, is_new: bool) -> Result<(), SweepError> {
        let is_old = self.state.lock().saved.is_none_or(|saved| saved.elapsed() >= SAVE_EVERY);
        if is_new || is_old {
            return self.save(ledger).await;
        }
        self.state.lock().ledger = Some(ledger);
        Ok(())
    }

    async fn save(&self, ledger: Ledger) -> Result<(), SweepError> {
        if let Some(path) = self.ledger.clone() {
            let written = ledger.clone();
            let saved = tokio::task::spawn_blocking(move || written.write(&path)).await;
            saved.map_err(|_| SweepError::Stopped)??;
        }
        let mut state = self.state.lock();
        state.ledger = Some(ledger);
        state.saved = Some(Instant::now());
        Ok(())
    }

    fn raise(&self, alarm: Option<String>) {
        let mut state = self.state.lock();
        if state.alarm != alarm {
            match &alarm {
                Some(alarm) => tracing::error!("content sweep: {alarm}"),
                None => tracing::warn!("content sweep: complete again"),
            }
            state.alarm = alarm;
        }
    }
}

/// Returns why a finished sweep did not free all garbage. Names no objects, because `/readyz` needs no
/// credentials.
fn incomplete(scanned: &ScanResult, freed: &Freed) -> Option<String> {
    if let Some(example) = &scanned.example {
        tracing::error!(example, "rows cannot be decoded");
        return Some("content older than a row that cannot be decoded is not freed".into());
    }
    let nodes = freed.damaged_nodes;
    (nodes > 0).then(|| format!("content older than {nodes} damaged map nodes is not freed"))
}

/// A page of rows.
#[derive(Default)]
struct Page {
    rows: u64,
    contents: Vec<Content>,
    undecodable: Vec<(RowDigest, String)>,
    next: Option<RowPosition>,
}

impl Page {
    fn add(&mut self, readers: &[ContentReader], space: SpaceId, partition: &[u8], row: &Row) {
        self.rows += 1;
        for reader in readers {
            match reader(space, partition, row) {
                Ok(contents) => self.contents.extend(contents),
                Err(damage) => {
                    let text = format!(
                        "row {:?} of {:?} in space {}: {damage}",
                        row.key,
                        String::from_utf8_lossy(partition),
                        space.0
                    );
                    self.undecodable.push((digest(space, partition, &row.key, row.token), text));
                }
            }
        }
    }
}

/// Identifies one version of one row.
fn digest(space: SpaceId, partition: &[u8], key: &[u8], token: Token) -> RowDigest {
    let mut hash = Xxh3::new();
    hash.update(&space.0.to_le_bytes());
    hash.update(&(partition.len() as u64).to_le_bytes());
    hash.update(partition);
    hash.update(key);
    hash.update(&token.0.ticks().to_le_bytes());
    RowDigest(hash.digest128())
}

/// Returns the least number of rows that a scan must find: earlier rows not removed during the scan.
fn least_rows(before: RowCounts, after: RowCounts, uncounted: i64) -> i64 {
    uncounted.saturating_add_unsigned(before.added).saturating_sub_unsigned(after.removed)
}
