//! `lazuli bench walks`: measures what walks over all rows cost while rows are overwritten.
//!
//! Content sweeps walk over all rows. They must not keep overwritten rows, neither in memory nor on disk. To
//! check this, the same rows are overwritten twice, each time by a new process on a copy of the same store:
//! once alone, and once during walks that follow each other without a pause.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lazuli_concurrency::{Pace, SystemClock};
use lazuli_content::sweep::ContentSweeper;
use lazuli_extents::LocalExtents;
use lazuli_store::{
    Commit, CommitError, Embedded, Mutation, Options, Partition, SpaceHeader, SpaceId, Store,
};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use super::BenchError;

/// Maximum ratio of memory, and of the bytes of table files, with walks to those without walks.
const MAX_RATIO: f64 = 1.3;
/// Small limits, so that rows that are kept too long show in the results.
const OPTIONS: Options = Options {
    cache_bytes: 16 << 20,
    run_bytes: 1 << 20,
    memtable_bytes: 8 << 20,
    log_segment_bytes: 16 << 20,
    ..Options::SMALL
};
/// The space that holds all rows.
const SPACE: SpaceId = SpaceId(1);
/// Number of rows that are overwritten repeatedly.
const HOT_ROWS: u64 = 1000;
/// Bytes of each of these rows.
const HOT_BYTES: usize = 4096;
/// Rows in one commit of loading.
const BATCH: u64 = 200;
/// Overwritten rows in one commit.
const HOT_BATCH: u64 = 16;
/// Interval between two samples of memory and files.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Options of `lazuli bench walks`.
#[derive(clap::Args, Debug)]
pub(crate) struct WalksArgs {
    /// A directory on the disk to use; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Number of rows to walk over
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    rows: u64,
    /// MiB to overwrite
    #[arg(long, value_name = "N", default_value_t = 512)]
    mib: u64,
}

/// Options of the new process.
#[derive(clap::Args, Debug)]
pub(crate) struct WalksChildArgs {
    dir: PathBuf,
    mib: u64,
    #[arg(long)]
    walks: bool,
}

/// The results of one process.
#[derive(Debug, Serialize, Deserialize)]
struct WalkCosts {
    walks: u64,
    seconds: f64,
    /// The highest number of bytes in memory, and in table files.
    memory: u64,
    tables: u64,
}

/// Compares the two runs. Fails if walks cost too much.
pub(crate) async fn run(args: WalksArgs) -> Result<(), BenchError> {
    let scratch = tempfile::Builder::new().prefix("lazuli-bench-").tempdir_in(&args.dir);
    let scratch = scratch.map_err(BenchError::at(&args.dir))?;
    let loaded = scratch.path().join("loaded");
    std::fs::create_dir(&loaded).map_err(BenchError::at(&loaded))?;
    load(&loaded, args.rows).await?;
    let alone = in_new_process(&loaded, &scratch.path().join("alone"), args.mib, false).await?;
    let with_walks = in_new_process(&loaded, &scratch.path().join("with-walks"), args.mib, true).await?;
    for (name, measured) in [("alone", &alone), ("with walks", &with_walks)] {
        println!(
            "{name:<13} memory {:>5} MiB  tables {:>5} MiB  {:>6.1} s  {} walks over {} rows",
            measured.memory >> 20,
            measured.tables >> 20,
            measured.seconds,
            measured.walks,
            args.rows
        );
    }
    let ratio = |of: fn(&WalkCosts) -> u64| of(&with_walks) as f64 / of(&alone).max(1) as f64;
    let (memory, tables) = (ratio(|m| m.memory), ratio(|m| m.tables));
    println!("ratio         memory {memory:.2}  tables {tables:.2}  (at most {MAX_RATIO})");
    if memory > MAX_RATIO || tables > MAX_RATIO || with_walks.walks == 0 {
        return Err(BenchError::Program(
            "lazuli bench walks",
            "walks cost too much, or none was done".into(),
        ));
    }
    Ok(())
}

/// Runs in the new process: overwrites rows and prints the results as JSON.
pub(crate) async fn child(args: WalksChildArgs) -> Result<(), BenchError> {
    let store = Arc::new(Embedded::open(&args.dir, Arc::new(SystemClock), OPTIONS)?);
    let (stop, walks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let extents = Arc::new(LocalExtents::open(&args.dir, Default::default())?);
    // These rows refer to no content.
    let sweeper = ContentSweeper::new(store.clone(), extents, [], args.dir.join("sweep"));
    // Like a server that has been running for a while, both runs begin with a full cache.
    sweep(&sweeper).await?;
    let walking = args.walks.then(|| tokio::spawn(walk(sweeper, walks.clone())));
    let sampling = tokio::task::spawn_blocking({
        let (tables, stop) = (args.dir.join("tree/tables"), stop.clone());
        move || sample(&tables, &stop)
    });
    let start = Instant::now();
    let mut row = 0;
    while row * (HOT_BYTES as u64) < args.mib << 20 {
        let rows =
            (row..row + HOT_BATCH).map(|row| (format!("k{:06}", row % HOT_ROWS), noise(row, HOT_BYTES)));
        put(&store, "hot", rows.collect()).await?;
        row += HOT_BATCH;
    }
    let seconds = start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let (memory, tables) = sampling.await?;
    if let Some(walking) = walking {
        walking.abort();
        let _ = walking.await;
    }
    let measured = WalkCosts { walks: walks.load(Ordering::Relaxed), seconds, memory, tables };
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

async fn in_new_process(loaded: &Path, dir: &Path, mib: u64, walks: bool) -> Result<WalkCosts, BenchError> {
    let failed = |reason: String| BenchError::Program("lazuli bench walks-child", reason);
    let copied = tokio::process::Command::new("cp").arg("-r").args([loaded, dir]).status().await;
    if !copied.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return Err(failed(format!("cp: {copied:?}")));
    }
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let mut command = tokio::process::Command::new(program);
    command.args(["bench", "walks-child"]).arg(dir).arg(mib.to_string());
    if walks {
        command.arg("--walks");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = command.output().await.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    std::fs::remove_dir_all(dir).map_err(BenchError::at(dir))?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

async fn load(dir: &Path, rows: u64) -> Result<(), BenchError> {
    let store = Embedded::open(dir, Arc::new(SystemClock), OPTIONS)?;
    store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await?;
    let mut row = 0;
    while row < rows {
        let batch = (row..rows.min(row + BATCH)).map(|row| (format!("r{row:09}"), noise(row, 64)));
        put(&store, "cold", batch.collect()).await?;
        row += BATCH;
    }
    store.close();
    Ok(())
}

/// Sweeps without pauses between sweeps, unlike a server.
async fn walk(sweeper: ContentSweeper, walks: Arc<AtomicU64>) -> Result<(), BenchError> {
    loop {
        sweep(&sweeper).await?;
        walks.fetch_add(1, Ordering::Relaxed);
    }
}

async fn sweep(sweeper: &ContentSweeper) -> Result<(), BenchError> {
    let swept = sweeper.sweep(Pace::FULL).await;
    swept.map(drop).map_err(|error| BenchError::Program("sweep", error.to_string()))
}

async fn put(
    store: &Embedded,
    partition: &'static str,
    rows: Vec<(String, Vec<u8>)>,
) -> Result<(), CommitError> {
    let mutations: Vec<_> =
        rows.into_iter().map(|(key, value)| Mutation::Put(key.into(), value.into())).collect();
    loop {
        let (stamp, mutations) = (store.stamp(), mutations.clone());
        let commit = Commit {
            stamp,
            epoch: 0,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        };
        match store.commit(&Partition::new(SPACE, partition), commit).await {
            Err(CommitError::Busy) => tokio::time::sleep(BUSY_WAIT).await,
            done => return done,
        }
    }
}

fn noise(row: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    SmallRng::seed_from_u64(row).fill_bytes(&mut noise);
    noise
}

/// Samples until stopped. Returns the highest bytes of memory and of table files.
fn sample(tables: &Path, stop: &AtomicBool) -> (u64, u64) {
    let mut most = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        most = (most.0.max(anonymous_memory()), most.1.max(disk_bytes(tables)));
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    most
}

fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Returns the bytes on disk of the files in a directory. Files that are removed meanwhile count as nothing.
fn disk_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
}
