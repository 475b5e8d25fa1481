//! Opens a store in a new process, so that neither memory nor caches stem from loading it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::{Embedded, Options, ReadSet, Reads, SpaceId, Store};
use serde::{Deserialize, Serialize};

use super::super::BenchError;
use super::super::report::{OURS, Series};
use super::super::round::{Pace, Worker, round};
use super::super::rows::{PARTITION_ROWS, is_value, key, partition, scatter};

/// Number of concurrent readers.
const READERS: u64 = 2;
/// Maximum duration of reading every row once.
const MAX_WARM_UP: Duration = Duration::from_secs(15);

/// The parameters of reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) rounds: usize,
    /// Duration of one round.
    pub(crate) slice: Duration,
}

/// The results of the new process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reopened {
    pub(crate) open_ms: f64,
    /// Resident memory right after opening, in MiB.
    pub(crate) idle_mib: f64,
    /// Gets while the store's cache is empty.
    pub(crate) cold_gets: Series,
    /// Gets after all rows were read once.
    pub(crate) gets: Series,
    pub(crate) scans: Series,
}

/// Options of the new process.
#[derive(clap::Args, Debug)]
pub(crate) struct ReopenArgs {
    dir: PathBuf,
    space: u64,
    rows: u64,
    rounds: usize,
    slice_ms: u64,
}

/// Runs in the new process: opens the store, reads, and prints the results as JSON.
pub(crate) async fn child(args: ReopenArgs) -> Result<(), BenchError> {
    let reading = Reading { rounds: args.rounds, slice: Duration::from_millis(args.slice_ms) };
    let reopened = in_this_process(&args.dir, SpaceId(args.space), args.rows, reading).await?;
    println!("{}", serde_json::to_string(&reopened)?);
    Ok(())
}

/// Opens and reads the store in a new process of this program.
pub(crate) async fn in_new_process(
    dir: &Path,
    space: SpaceId,
    rows: u64,
    reading: Reading,
) -> Result<Reopened, BenchError> {
    let failed = |reason: String| BenchError::Program("lazuli bench reopen", reason);
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let numbers = [space.0, rows, reading.rounds as u64, reading.slice.as_millis() as u64];
    let mut command = tokio::process::Command::new(program);
    command.args(["bench", "reopen"]).arg(dir).args(numbers.map(|number| number.to_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Opens and reads the store in this process.
pub(crate) async fn in_this_process(
    dir: &Path,
    space: SpaceId,
    rows: u64,
    reading: Reading,
) -> Result<Reopened, BenchError> {
    let start = Instant::now();
    let store = Arc::new(Embedded::open(dir, Arc::new(SystemClock), Options::default())?);
    let open_ms = start.elapsed().as_secs_f64() * 1e3;
    let idle_mib = resident_mib()?;

    let reader = |number: u64| RowReader { store: store.clone(), space, rows, state: scatter(number) };
    let (mut getters, mut scanners): (Vec<_>, Vec<_>) =
        (0..READERS).map(|number| (Getter(reader(number)), Scanner(reader(number + READERS)))).unzip();
    let pace = Pace::full(Duration::ZERO, reading.slice);
    let (cold, returned) = round(getters, pace).await?;
    getters = returned;
    warm_up(&reader(0)).await;
    let (mut gets, mut scans) = (vec![], vec![]);
    for _ in 0..reading.rounds {
        let (done, returned) = round(getters, pace).await?;
        gets.push(done);
        getters = returned;
        let (done, returned) = round(scanners, pace).await?;
        scans.push(done);
        scanners = returned;
    }
    store.close();
    let [cold_gets, gets, scans] = [vec![cold], gets, scans].map(|rounds| Series::of_rounds(OURS, &rounds));
    Ok(Reopened { open_ms, idle_mib, cold_gets, gets, scans })
}

/// Reads every row once, within a time limit, to fill the store's cache.
async fn warm_up(reader: &RowReader) {
    let start = Instant::now();
    for partition in 0..reader.rows / PARTITION_ROWS {
        // Ignore errors: measured reads count them.
        let _ = reader.scan(partition * PARTITION_ROWS).await;
        if start.elapsed() > MAX_WARM_UP {
            break;
        }
    }
}

fn resident_mib() -> Result<f64, BenchError> {
    let path = Path::new("/proc/self/status");
    let status = std::fs::read_to_string(path).map_err(BenchError::at(path))?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let kib: f64 = kib.ok_or_else(|| BenchError::at(path)(std::io::ErrorKind::InvalidData.into()))?;
    Ok(kib / 1024.0)
}

struct RowReader {
    store: Arc<Embedded>,
    space: SpaceId,
    rows: u64,
    state: u64,
}

impl RowReader {
    /// Returns a random row.
    fn row(&mut self) -> u64 {
        self.state = scatter(self.state);
        self.state % self.rows
    }

    async fn read(&self, row: u64, reads: &Reads) -> Result<ReadSet, String> {
        let partition = partition(self.space, row / PARTITION_ROWS);
        self.store.read(&partition, reads).await.map_err(|error| error.to_string())
    }

    async fn get(&self, row: u64) -> Result<(), String> {
        let found = self.read(row, &Reads::key(key(row))).await?;
        match found.rows.first() {
            Some(Some(stored)) if is_value(row, &stored.value) => Ok(()),
            Some(Some(_)) => Err("a wrong row".into()),
            _ => Err("a missing row".into()),
        }
    }

    /// Reads the partition of a row.
    async fn scan(&self, row: u64) -> Result<(), String> {
        let all = key(0)..Bytes::from_static(b"row-~");
        let found = self.read(row, &Reads::default().and_range(all, PARTITION_ROWS as usize)).await?;
        let scanned = found.ranges.first().map_or(&[][..], |scanned| &scanned.rows);
        let first = row - row % PARTITION_ROWS;
        match scanned.len() as u64 == PARTITION_ROWS && is_value(first, &scanned[0].value) {
            true => Ok(()),
            false => Err(format!("a scan found {} rows, or wrong ones", scanned.len())),
        }
    }
}

struct Getter(RowReader);

impl Worker for Getter {
    async fn once(&mut self) -> Result<(), String> {
        let row = self.0.row();
        self.0.get(row).await
    }
}

struct Scanner(RowReader);

impl Worker for Scanner {
    async fn once(&mut self) -> Result<(), String> {
        let row = self.0.row();
        self.0.scan(row).await
    }
}
