//! `lazuli bench store`: measures the embedded store, compared with the raw disk.
//!
//! - Durable commits of one row, with different numbers of committers, in turns with synced appends to a
//!   growing file.
//! - Opening a store with many rows after a clean stop: a [new process](reopen) measures the time, its
//!   memory, and the rates of reads and scans.

pub(crate) mod reopen;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lazuli_concurrency::SystemClock;
use lazuli_store::{
    Commit, CommitError, Condition, Embedded, Mutation, Options, SpaceHeader, SpaceId, Store,
};
use tokio::task::JoinSet;

use super::progress::Progress;
use super::raw::{self, GrowingFile};
use super::report::{Goal, Measurement, OURS, Section, Series, ratio};
use super::round::{Pace, Round, Worker, round};
use super::rows::{PARTITION_ROWS, key, partition, value};
use super::text::number;
use super::{BenchError, LocalArgs};
use reopen::{Reading, Reopened};

/// Tasks that load rows: enough that they do not all wait for the disk at the same time.
const LOADERS: u64 = 16;
/// Number of rows for which the goal of opening is judged.
const MANY_ROWS: u64 = 10_000_000;
/// How long a loader waits when the store is busy.
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Options of `lazuli bench store`.
#[derive(clap::Args, Debug)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    /// Rows to read from [default: 1000000, quick: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(PARTITION_ROWS..))]
    pub(crate) rows: Option<u64>,
    /// Numbers of concurrent committers
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    pub(crate) committers: Vec<usize>,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct StorePlan {
    /// The directory for scratch directories.
    pub(crate) dir: PathBuf,
    pub(crate) rows: u64,
    /// Loading stops after this time, even with fewer rows.
    pub(crate) load_limit: Duration,
    pub(crate) committers: Vec<usize>,
    pub(crate) rounds: usize,
    /// Duration of one round of one contender.
    pub(crate) slice: Duration,
}

impl StorePlan {
    /// Returns the plan of a command line.
    pub(crate) fn new(args: StoreArgs) -> Self {
        let quick = args.local.quick;
        Self {
            rows: args.rows.unwrap_or(if quick { 100_000 } else { 1_000_000 }),
            load_limit: Duration::MAX,
            committers: args.committers,
            rounds: args.local.rounds(),
            slice: args.local.slice(),
            dir: args.local.dir,
        }
    }

    /// Returns the number of steps for the progress bar.
    pub(crate) fn steps(&self) -> usize {
        self.rounds * self.committers.len() * 2 + 2
    }

    fn reading(&self) -> Reading {
        Reading { rounds: self.rounds, slice: self.slice }
    }
}

/// Measures everything. `reopen` gets a store's directory, its space and its number of rows, and measures
/// opening and reading it.
pub(crate) async fn measure(
    plan: &StorePlan,
    progress: &Progress,
    reopen: impl AsyncFn(&Path, SpaceId, u64, Reading) -> Result<Reopened, BenchError>,
) -> Result<Section, BenchError> {
    let scratch = tempfile::Builder::new().prefix("lazuli-bench-").tempdir_in(&plan.dir);
    let scratch = scratch.map_err(BenchError::at(&plan.dir))?;
    let mut section = Section::new("store");
    section.notes.push(format!(
        "commits: one row of 500 bytes in a partition of its own; fdatasync: {} bytes appended to a growing file",
        raw::RECORD_BYTES
    ));
    section.notes.extend(raw::tmpfs_warning(&plan.dir));
    commits(plan, progress, scratch.path(), &mut section).await?;

    progress.step(format!("store: loading {} rows", plan.rows));
    let dir = subdirectory(scratch.path(), "rows")?;
    let (space, rows) = load(&dir, plan).await?;
    section.notes.push(format!(
        "reads: {} rows of 500 bytes, opened by a new process after a clean stop; 2 readers at a time",
        number(rows as f64)
    ));
    let cached = "first gets: nothing is in the store's cache yet; then all rows are read once, and gets and scans follow";
    section.notes.push(cached.into());
    progress.step("store: opening and reading");
    let reopened = reopen(&dir, space, rows, plan.reading()).await?;
    reads(rows, reopened, &mut section);
    Ok(section)
}

/// Measures commits in turns with raw appends.
async fn commits(
    plan: &StorePlan,
    progress: &Progress,
    scratch: &Path,
    section: &mut Section,
) -> Result<(), BenchError> {
    let mut turns = vec![];
    for committers in &plan.committers {
        let dir = subdirectory(scratch, &format!("{committers} committers"))?;
        turns.push(CommitContender { committers: *committers, dir, next: Arc::default() });
    }
    let mut file = GrowingFile::create(scratch)?;
    let mut measured = vec![(vec![], vec![]); turns.len()];
    for _ in 0..plan.rounds {
        for (turn, (ours, theirs)) in turns.iter().zip(&mut measured) {
            progress.step("store: fdatasync");
            let (raw, grown) = file.round(plan.slice).await?;
            theirs.push(raw);
            file = grown;
            progress.step(format!("store: {} committers", turn.committers));
            ours.push(turn.round(plan.slice).await?);
        }
    }
    for CommitContender { dir, .. } in turns {
        std::fs::remove_dir_all(&dir).map_err(BenchError::at(&dir))?;
    }
    for (committers, (ours, theirs)) in plan.committers.iter().zip(&measured) {
        let series = vec![Series::of_rounds(OURS, ours), Series::of_rounds("fdatasync", theirs)];
        let measurement = Measurement::new(format!("commits, {committers} at a time"), "commits/s", series);
        section.goals.extend(commit_goal(*committers, &measurement, tail(ours, theirs)));
        section.measurements.push(measurement);
    }
    Ok(())
}

/// A number of committers and their store. The store is open only during its rounds, so that its compactions
/// slow down no other contender.
struct CommitContender {
    committers: usize,
    dir: PathBuf,
    /// Number of rows so far.
    next: Arc<AtomicU64>,
}

impl CommitContender {
    async fn round(&self, slice: Duration) -> Result<Round, BenchError> {
        let (store, space) = open(&self.dir).await?;
        let committer = || Committer { store: store.clone(), space, next: self.next.clone() };
        let workers = std::iter::repeat_with(committer).take(self.committers).collect();
        let (round, workers) = round(workers, Pace::full(Duration::ZERO, slice)).await?;
        drop(workers);
        store.close();
        Ok(round)
    }
}

/// Returns the ratio of the commits' p99 to the mean duration of a raw append with its sync: the median over
/// rounds that ran next to each other.
fn tail(ours: &[Round], raw: &[Round]) -> Option<f64> {
    let p99 = |round: &Round| round.latency.latency().map_or(0.0, |latency| latency.p99_us);
    let ours: Vec<_> = ours.iter().map(p99).collect();
    let raw: Vec<_> = raw.iter().map(|round| 1e6 / round.per_s).collect();
    ratio(&ours, &raw)
}

fn commit_goal(committers: usize, measurement: &Measurement, tail: Option<f64>) -> Option<Goal> {
    let at_least = |times: f64| {
        let ratio = measurement.ratio()?;
        let wanted = format!("commits, {committers} at a time: ≥ {times} × fdatasync");
        Some(Goal::judged(wanted, format!("{} ×", number(ratio)), ratio >= times))
    };
    match committers {
        1 => at_least(0.7),
        64 => at_least(8.0),
        16 => {
            let wanted = "commits, 16 at a time: p99 ≤ 5 × one fdatasync";
            tail.map(|tail| Goal::judged(wanted, format!("{} ×", number(tail)), tail <= 5.0))
        }
        _ => None,
    }
}

fn reads(rows: u64, reopened: Reopened, section: &mut Section) {
    let Reopened { open_ms, idle_mib, cold_gets, gets, scans } = reopened;
    let goal = Goal::judged;
    section.goals.push(goal(
        "gets: ≥ 300,000/s",
        format!("{}/s", number(gets.median)),
        gets.median >= 300_000.0,
    ));
    section.goals.push(open_goal(rows, open_ms));
    section.goals.push(goal(
        "memory after opening: < 60 MiB",
        format!("{} MiB", number(idle_mib)),
        idle_mib < 60.0,
    ));
    let value = |name, unit, value| Measurement::new(name, unit, vec![Series::of_values(OURS, vec![value])]);
    section.measurements.extend([
        Measurement::new("first gets", "rows/s", vec![cold_gets]),
        Measurement::new("gets", "rows/s", vec![gets]),
        Measurement::new("scans of 100 rows", "scans/s", vec![scans]),
        value("open after a clean stop", "ms", open_ms),
        value("memory after opening", "MiB", idle_mib),
    ]);
}

fn open_goal(rows: u64, open_ms: f64) -> Goal {
    Goal {
        wanted: format!("open with {} rows: < 1 s", number(MANY_ROWS as f64)),
        found: format!("{} ms with {} rows", number(open_ms), number(rows as f64)),
        // A fast opening with fewer rows says nothing about the goal. A slow one misses it.
        met: (rows >= MANY_ROWS || open_ms >= 1000.0).then_some(open_ms < 1000.0),
    }
}

fn subdirectory(dir: &Path, name: &str) -> Result<PathBuf, BenchError> {
    let path = dir.join(name);
    std::fs::create_dir(&path).map_err(BenchError::at(&path))?;
    Ok(path)
}

async fn open(dir: &Path) -> Result<(Arc<Embedded>, SpaceId), BenchError> {
    let store = Arc::new(Embedded::open(dir, Arc::new(SystemClock), Options::default())?);
    let space = store.new_space().await?;
    store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await?;
    Ok((store, space))
}

/// Puts rows into a new store, in partitions of 100, and stops it cleanly. Returns the space and the number
/// of rows.
async fn load(dir: &Path, plan: &StorePlan) -> Result<(SpaceId, u64), BenchError> {
    let (store, space) = open(dir).await?;
    let partitions = plan.rows / PARTITION_ROWS;
    let next = Arc::new(AtomicU64::new(0));
    let (start, limit) = (Instant::now(), plan.load_limit);
    let mut loaders = JoinSet::new();
    for _ in 0..LOADERS {
        let (store, next) = (store.clone(), next.clone());
        loaders.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= partitions {
                    return Ok(());
                }
                load_partition(&store, space, number).await?;
                if start.elapsed() >= limit {
                    return Ok::<_, CommitError>(());
                }
            }
        });
    }
    while let Some(done) = loaders.join_next().await {
        done??;
    }
    store.close();
    Ok((space, next.load(Ordering::Relaxed).min(partitions) * PARTITION_ROWS))
}

async fn load_partition(store: &Embedded, space: SpaceId, number: u64) -> Result<(), CommitError> {
    let rows = number * PARTITION_ROWS..(number + 1) * PARTITION_ROWS;
    let puts: Vec<_> = rows.map(|row| Mutation::Put(key(row), value(row))).collect();
    loop {
        match store.commit(&partition(space, number), commit(store, vec![], puts.clone())).await {
            Err(CommitError::Busy) => tokio::time::sleep(BUSY_WAIT).await,
            done => return done,
        }
    }
}

fn commit(store: &Embedded, conditions: Vec<Condition>, mutations: Vec<Mutation>) -> Commit {
    Commit {
        stamp: store.stamp(),
        epoch: 0,
        conditions,
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    }
}

/// Puts one row into a new partition per operation, like creating a small object.
struct Committer {
    store: Arc<Embedded>,
    space: SpaceId,
    next: Arc<AtomicU64>,
}

impl Worker for Committer {
    async fn once(&mut self) -> Result<(), String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (absent, put) = (Condition::Absent(key(0)), Mutation::Put(key(0), value(number)));
        let commit = commit(&self.store, vec![absent], vec![put]);
        self.store.commit(&partition(self.space, number), commit).await.map_err(|error| error.to_string())
    }
}
