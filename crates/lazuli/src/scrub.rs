//! The background scrub: reads all data in the data directory, including data that no client reads, and
//! reports damage.
//!
//! A pass verifies the table files of the tree, then the segments of content, in small steps and at a limited
//! rate. Reads bypass the page cache. The pass saves its [progress] in a file and resumes there after a
//! restart. Damaged content is reported if a row refers to it, with the [names](naming) of the objects. See
//! decision 0026.

mod naming;
mod progress;
mod reader;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lazuli_concurrency::{Clock, Timestamp};
use lazuli_extents::{Damage, DamageKind, LocalExtents, SegmentPosition};
use lazuli_store::embedded::scrub::{TableFile, table_part, tables};
use lazuli_store::{Embedded, OpenError, Store};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::background::ChoreHealth;
use crate::data::{Data, STORE};
use crate::health;
use progress::{Position, Progress};
use reader::PastCache;

/// The file of progress in the data directory.
const FILE: &str = "scrub";
/// Interval of checks whether a pass is due.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause after a pass failed.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Minimum and maximum number of bytes of one step.
const STEP: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;

/// Read-ahead for table files, in bytes: their blocks are small.
const READ_AHEAD: usize = 32 << 10;

/// State of the scrub, for metrics and health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// Bytes verified in this pass, and total bytes of the pass.
    pub(crate) done: u64,
    pub(crate) total: u64,
    /// Bytes read since the start.
    pub(crate) read: u64,
    /// End of the last complete pass.
    pub(crate) finished: Option<Timestamp>,
    /// Damaged places, each counted once.
    pub(crate) damaged: u64,
}

/// Scrubs one data directory.
pub(crate) struct Scrub {
    directory: PathBuf,
    store: Arc<Embedded>,
    extents: LocalExtents,
    clock: Arc<dyn Clock>,
    /// Rate in bytes per second; 0 = off.
    rate: u64,
    progress: Mutex<Progress>,
    read: AtomicU64,
    health: Arc<ChoreHealth>,
}

/// Result of a step.
#[derive(Debug, Default)]
struct StepResult {
    next: Position,
    /// Bytes verified, and bytes read for that.
    verified: u64,
    read: u64,
    content: Vec<Damage>,
    /// Damaged tables: the table, the place in it, and what is wrong.
    tables: Vec<(TableFile, u64, String)>,
    /// Damage of files of the tree that are not tables.
    files: Vec<(PathBuf, String)>,
}

impl Scrub {
    pub(crate) fn new(data: &Data, clock: Arc<dyn Clock>, rate: u64) -> Self {
        let directory = data.directory.path().to_owned();
        let progress = Mutex::new(Progress::read(&directory.join(FILE)));
        let (store, extents) = (data.store.clone(), data.extents.clone());
        let (read, health) = (AtomicU64::new(0), ChoreHealth::new("scrub"));
        Self { directory, store, extents, clock, rate, progress, read, health }
    }

    /// Returns whether passes succeed.
    pub(crate) fn health(&self) -> &Arc<ChoreHealth> {
        &self.health
    }

    /// Returns the state of the scrub.
    pub(crate) fn status(&self) -> Status {
        let progress = self.progress.lock();
        Status {
            done: progress.done,
            total: progress.total.max(progress.done),
            read: self.read.load(Ordering::Relaxed),
            finished: progress.finished(),
            damaged: progress.damaged(),
        }
    }

    /// Returns why the server is degraded, if the scrub has found damage. Names no objects, because `/readyz`
    /// needs no credentials.
    pub(crate) fn alarm(&self) -> Option<String> {
        let damaged = self.progress.lock().damaged();
        let places = if damaged == 1 { "place" } else { "places" };
        (damaged > 0).then(|| format!("the scrub has found {damaged} damaged {places}: see the log"))
    }

    /// Runs passes forever, whenever one is due. May be dropped at any point.
    pub(crate) async fn run(&self) {
        if self.rate == 0 {
            return;
        }
        loop {
            let is_due = self.progress.lock().is_due(self.clock.now());
            let pause = match is_due {
                false => LOOK_EVERY,
                true => match self.health.run(self.pass()).await {
                    Ok(()) => LOOK_EVERY,
                    Err(_) => RETRY_AFTER,
                },
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Finishes the interrupted pass, or runs a new one.
    async fn pass(&self) -> Result<(), String> {
        if self.progress.lock().position == Position::Idle {
            let (tables, segments) = (self.tables().await, self.extents.segment_sizes());
            let last_table = tables.map_or(u64::MAX, |tables| tables.last().map_or(0, |table| table.id));
            let last_segment = segments.last().map_or(0, |(id, _)| *id);
            self.progress.lock().begin(self.clock.now(), last_table, last_segment);
        }
        self.measure().await;
        tracing::info!(bytes = self.status().total, "scrub started or resumed");
        let (mut pacer, mut saved) = (Pacer { rate: self.rate, next: Instant::now() }, self.status().done);
        let mut content = vec![];
        loop {
            let (position, total) = {
                let progress = self.progress.lock();
                (progress.position, progress.total)
            };
            let bytes = (total / 400).clamp(*STEP.start(), *STEP.end());
            pacer.reserve(bytes).await;
            let step = self.step(position, bytes).await?;
            pacer.charge(step.read.saturating_sub(bytes));
            self.read.fetch_add(step.read, Ordering::Relaxed);
            content.extend(step.content);
            self.record_tables(step.tables, step.files).await;
            let done = {
                let mut progress = self.progress.lock();
                (progress.position, progress.done) = (step.next, progress.done + step.verified);
                progress.done
            };
            let is_over = step.next == Position::Idle;
            if is_over || (done - saved) * 100 >= total {
                self.record_content(std::mem::take(&mut content)).await;
                if is_over {
                    self.progress.lock().finish(self.clock.now());
                } else {
                    self.measure().await;
                }
                self.save().await?;
                saved = done;
            }
            if is_over {
                let Status { done, damaged, .. } = self.status();
                tracing::info!(bytes = done, damaged, "scrub finished");
                return Ok(());
            }
        }
    }

    /// Verifies about `bytes` bytes.
    async fn step(&self, position: Position, bytes: u64) -> Result<StepResult, String> {
        let (store, extents) = (self.directory.join(STORE), self.extents.clone());
        let (last_table, last_segment) = {
            let progress = self.progress.lock();
            (progress.last_table, progress.last_segment)
        };
        blocking(move || match position {
            Position::Idle => Ok(StepResult::default()),
            Position::Table { id, offset } => table_step(&store, id, offset, last_table, bytes),
            Position::Segment { id, offset, chunks } => {
                segment_step(&extents, id, SegmentPosition { offset, chunks }, last_segment, bytes)
            }
        })
        .await
    }

    async fn tables(&self) -> Result<Vec<TableFile>, String> {
        let store = self.directory.join(STORE);
        blocking(move || tables(&store).map_err(|error| error.to_string())).await
    }

    /// Updates the total: verified and remaining bytes.
    async fn measure(&self) {
        let tables = self.tables().await.unwrap_or_default();
        let segments = self.extents.segment_sizes();
        let mut progress = self.progress.lock();
        let after = |at: u64, offset: u64, last: u64, files: &[(u64, u64)]| -> u64 {
            let ahead = files.iter().filter(|(id, _)| (at..=last).contains(id));
            ahead.map(|(id, bytes)| if *id == at { bytes.saturating_sub(offset) } else { *bytes }).sum()
        };
        let tables: Vec<_> = tables.iter().map(|table| (table.id, table.length)).collect();
        let ahead = match progress.position {
            Position::Idle => 0,
            Position::Table { id, offset } => {
                after(id, offset, progress.last_table, &tables)
                    + after(0, 0, progress.last_segment, &segments)
            }
            Position::Segment { id, offset, .. } => after(id, offset, progress.last_segment, &segments),
        };
        progress.total = progress.done + ahead;
    }

    async fn record_tables(&self, tables: Vec<(TableFile, u64, String)>, files: Vec<(PathBuf, String)>) {
        for (path, what) in files {
            self.record(path.display().to_string(), format!("rows: {}: {what}", path.display()));
        }
        for (table, at, what) in tables {
            let (store, id) = (self.store.clone(), table.id);
            let described = blocking(move || Ok(store.describe_table(id))).await.ok().flatten();
            let objects = match &described {
                Some(described) => health::describe(&*self.store, described).await,
                None => "all of its rows can be read".to_owned(),
            };
            let line = format!("rows: {}: {what}: {objects}", table.path.display());
            self.record(format!("table {id} {at}"), line);
        }
    }

    /// Records damaged content that rows refer to.
    async fn record_content(&self, mut damage: Vec<Damage>) {
        for header in damage.extract_if(.., |damage| damage.kind == DamageKind::SegmentHeader) {
            let segment = header.segment;
            let line = format!("content: segment {segment:016x}: the header is damaged; no object needs it");
            self.record(format!("segment {segment:016x} header"), line);
        }
        if damage.is_empty() {
            return;
        }
        let store: Arc<dyn Store> = self.store.clone();
        match naming::damaged_content(&store, &self.extents, &damage).await {
            Ok(lines) => lines.into_iter().for_each(|(place, line)| self.record(place, line)),
            Err(error) => {
                for Damage { segment, offset, length, .. } in damage {
                    let place = format!("segment {segment:016x}, {length} bytes at {offset}");
                    self.record(
                        place.clone(),
                        format!("content: {place}: its objects are not known: {error}"),
                    );
                }
            }
        }
    }

    fn record(&self, place: String, line: String) {
        if self.progress.lock().record(place, line.clone()) {
            tracing::error!("the scrub has found damage: {line}");
        }
    }

    async fn save(&self) -> Result<(), String> {
        let (progress, path) = (self.progress.lock().clone(), self.directory.join(FILE));
        blocking(move || progress.write(&path).map_err(|error| format!("{}: {error}", path.display()))).await
    }
}

/// Limits reads to a rate. Uses the runtime's clock, which tests control.
struct Pacer {
    rate: u64,
    /// The time at which the reserved bytes may have been read.
    next: Instant,
}

impl Pacer {
    /// Waits until `bytes` more bytes may be read. Idle time does not accumulate credit.
    async fn reserve(&mut self, bytes: u64) {
        self.next = self.next.max(Instant::now()) + self.time(bytes);
        tokio::time::sleep_until(self.next).await;
    }

    /// Counts bytes that were read beyond what was reserved.
    fn charge(&mut self, bytes: u64) {
        self.next += self.time(bytes);
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1))) as u64)
    }
}

fn table_step(store: &Path, id: u64, offset: u64, last: u64, bytes: u64) -> Result<StepResult, String> {
    let listed = match tables(store) {
        Ok(tables) => tables,
        Err(OpenError::Damaged { path, what }) => {
            return Ok(StepResult {
                next: Position::FIRST_SEGMENT,
                files: vec![(path, format!("damaged: {what}"))],
                ..StepResult::default()
            });
        }
        Err(error) => return Err(error.to_string()),
    };
    let Some(table) = listed.into_iter().find(|table| table.id >= id && table.id <= last) else {
        return Ok(StepResult { next: Position::FIRST_SEGMENT, ..StepResult::default() });
    };
    let after = Position::Table { id: table.id + 1, offset: 0 };
    let offset = if table.id == id { offset } else { 0 };
    let part = PastCache::open(&table.path, READ_AHEAD).and_then(|mut reader| {
        let mut read = |buffer: &mut [u8], at| reader.read_at(buffer, at);
        let part = table_part(&table, offset, bytes, &mut read)?;
        Ok((part, reader.bytes_read()))
    });
    let (part, read) = match part {
        Ok(part) => part,
        // Compaction has replaced the table.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(StepResult { next: after, ..StepResult::default() });
        }
        Err(error) => return Err(format!("{}: {error}", table.path.display())),
    };
    Ok(StepResult {
        next: part.next.map_or(after, |offset| Position::Table { id: table.id, offset }),
        verified: part.bytes,
        read,
        tables: part.damage.into_iter().map(|(at, what)| (table.clone(), at, what)).collect(),
        ..StepResult::default()
    })
}

fn segment_step(
    extents: &LocalExtents,
    id: u64,
    place: SegmentPosition,
    last: u64,
    bytes: u64,
) -> Result<StepResult, String> {
    let ids = extents.segment_sizes().into_iter().map(|(id, _)| id);
    let Some(segment) = ids.into_iter().find(|segment| *segment >= id && *segment <= last) else {
        return Ok(StepResult::default());
    };
    let after = Position::in_segment(segment + 1, SegmentPosition::default());
    let place = if segment == id { place } else { SegmentPosition::default() };
    let path = extents.segment_path(segment);
    let mut reader = match PastCache::open(&path, 0) {
        Ok(reader) => reader,
        // A sweep has removed the segment.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(StepResult { next: after, ..StepResult::default() });
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut read = |buffer: &mut [u8], at| reader.read_at(buffer, at);
    let part = extents.scrub_part(segment, place, bytes, &mut read);
    let part = part.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(StepResult {
        next: part.next.map_or(after, |place| Position::in_segment(segment, place)),
        verified: part.bytes,
        read: reader.bytes_read(),
        content: part.report.damage,
        ..StepResult::default()
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

#[cfg(test)]
mod tests;
