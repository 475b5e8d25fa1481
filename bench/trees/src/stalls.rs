//! The longest latencies of puts and hot reads, while a tree flushes and compacts.
//!
//! The load is Lazuli's committer without a server: all puts that are due form a group, which is appended to
//! the log and synced, and then inserted into the tree. Each put first reads its row, as the condition of a
//! commit does. Meanwhile another thread reads hot rows. Both are open loops: latencies count from the due
//! time, so a stall counts for every request that was due during it. The raw writer appends and syncs the
//! same bytes to a file of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::Run;
use crate::log::{RingLog, SEGMENTS};
use crate::rows::{Row, key, scatter, value};
use crate::tree::{self, Sizes, Tree};

const VALUE_BYTES: usize = 4200;
const HOT_ROWS: u64 = 100;
const HOT_READS_PER_S: f64 = 200.0;
/// Maximum number of puts in a group.
const MAX_GROUP: u64 = 1024;
/// Commits that wait longer than this for the tree fail, as in Lazuli.
const MAX_WAIT: Duration = Duration::from_secs(5);
const RAW: &str = "raw writer";

/// The figures of one part, by name, in the order of [`COLUMNS`].
type Figures = BTreeMap<String, f64>;

const COLUMNS: [&str; 12] = [
    "puts/s",
    "put p50 ms",
    "put p99 ms",
    "put worst ms",
    "read p99 ms",
    "read worst ms",
    "worst sync ms",
    "worst insert ms",
    "worst check ms",
    "worst wait ms",
    "CPU µs/put",
    "MB written",
];

/// Measures all trees and the raw writer in turns, and prints a table.
pub fn all(run: &Run) -> Result<()> {
    let (rounds, data) = (run.get("rounds", 3)?, run.data());
    std::fs::create_dir_all(&data)?;
    let mut names = run.trees();
    names.push(RAW.into());
    rustix::fs::sync();
    println!("| round | tree | {} |", COLUMNS.join(" | "));
    println!("|---|---{}|", "|---:".repeat(COLUMNS.len()));
    let mut all: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 1..=rounds {
        for name in &names {
            let output =
                run.part("stalls-part", name, &data)?.arg("--round").arg(round.to_string()).output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let figures = text.lines().map(|line| {
                let (name, figure) = line.split_once('=').context("a figure")?;
                Ok((name.to_owned(), figure.parse()?))
            });
            let figures = figures.collect::<Result<Figures>>()?;
            let cells = COLUMNS.map(|column| figures.get(column).map_or("–".into(), |f| format!("{f:.2}")));
            println!("| {round} | {name} | {} |", cells.join(" | "));
            all.entry(name).or_default().push(figures);
        }
    }
    let of = |name: &str, column: &str| {
        all.get(name).into_iter().flatten().filter_map(|f| f.get(column).copied()).collect::<Vec<f64>>()
    };
    let mut p99s = of(RAW, "put p99 ms");
    p99s.sort_by(f64::total_cmp);
    let p99 = p99s.get(p99s.len() / 2).copied().context("no raw writer")?;
    println!("\nMedian of the raw writer's p99: {p99:.2} ms. Worst latencies as multiples of it:\n");
    println!("| tree | put, by round | hot read, by round |\n|---|---|---|");
    for name in run.trees() {
        let ratios = |column| {
            let ratios = of(&name, column).into_iter().map(|worst| format!("{:.1}", worst / p99));
            ratios.collect::<Vec<_>>().join(", ")
        };
        println!("| {name} | {} | {} |", ratios("put worst ms"), ratios("read worst ms"));
    }
    std::fs::remove_dir_all(&data)?;
    Ok(())
}

/// Measures one tree, or the raw writer, and prints its figures.
pub fn part(run: &Run) -> Result<()> {
    let (data, time, rate) = (run.data(), run.seconds()?, run.get("rate", 4500.0)?);
    let name = run.trees().pop().context("no tree")?;
    let figures = match name.as_str() {
        RAW => raw(&data.join("raw"), time, rate)?,
        name => serve(name, &data, run.get("round", 1)?, time, rate)?,
    };
    for (name, figure) in figures {
        println!("{name}={figure}");
    }
    Ok(())
}

/// The due times of requests.
#[derive(Clone, Copy)]
struct Schedule {
    begin: Instant,
    rate: f64,
    count: u64,
}

impl Schedule {
    fn new(rate: f64, time: Duration) -> Self {
        Self { begin: Instant::now(), rate, count: (rate * time.as_secs_f64()) as u64 }
    }

    fn due(&self, number: u64) -> Instant {
        self.begin + Duration::from_secs_f64(number as f64 / self.rate)
    }

    /// Sleeps until the request `first` is due. Returns how many are due then.
    fn wait(&self, first: u64) -> u64 {
        std::thread::sleep(self.due(first).saturating_duration_since(Instant::now()));
        let passed = (self.begin.elapsed().as_secs_f64() * self.rate) as u64 + 1;
        (passed.min(self.count).saturating_sub(first)).clamp(1, MAX_GROUP)
    }

    /// Notes the latencies of requests that are done now.
    fn note(&self, first: u64, count: u64, latencies: &mut Vec<f64>) {
        let now = Instant::now();
        latencies.extend((first..first + count).map(|n| ms(now.saturating_duration_since(self.due(n)))));
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn raw(path: &Path, time: Duration, rate: f64) -> Result<Figures> {
    let mut file = File::create(path)?;
    file.sync_all()?;
    let bytes = vec![0x5a; VALUE_BYTES * MAX_GROUP as usize];
    let schedule = Schedule::new(rate, time);
    let (mut first, mut latencies) = (0, vec![]);
    while first < schedule.count {
        let count = schedule.wait(first);
        file.write_all(&bytes[..VALUE_BYTES * count as usize])?;
        file.sync_data()?;
        schedule.note(first, count, &mut latencies);
        first += count;
    }
    std::fs::remove_file(path)?;
    let mut figures = Figures::new();
    note_puts(&mut figures, latencies, schedule.begin.elapsed());
    Ok(figures)
}

fn note_puts(figures: &mut Figures, mut latencies: Vec<f64>, took: Duration) {
    latencies.sort_by(f64::total_cmp);
    figures.insert("puts/s".into(), latencies.len() as f64 / took.as_secs_f64());
    figures.insert("put p50 ms".into(), quantile(&latencies, 0.5));
    figures.insert("put p99 ms".into(), quantile(&latencies, 0.99));
    figures.insert("put worst ms".into(), quantile(&latencies, 1.0));
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or(0.0)
}

/// The committer, the flusher and the compactor.
struct Background<'a> {
    tree: &'a dyn Tree,
    /// Segments below this number may be reused.
    free_below: AtomicU64,
    stop: AtomicBool,
}

fn serve(name: &str, data: &Path, round: u64, time: Duration, rate: f64) -> Result<Figures> {
    let tree = tree::open(name, &data.join(name), Sizes::USUAL)?;
    let log = RingLog::create(&data.join("log"))?;
    let hot: Vec<Row> =
        (0..HOT_ROWS).map(|i| (format!("hot/{i}").into_bytes(), value(i, 0, VALUE_BYTES))).collect();
    tree.insert(&hot)?;
    let background = Background { tree: &*tree, free_below: AtomicU64::new(0), stop: AtomicBool::new(false) };
    let (flush, flushes) = channel();
    let (compact, compactions) = channel();
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let background = &background;
    let mut figures = std::thread::scope(|scope| {
        let flusher = scope.spawn(move || background.flush(&flushes, &compact));
        let compactor = scope.spawn(move || background.compact(&compactions));
        let schedule = Schedule::new(rate, time);
        let reader = scope.spawn(|| read_hot(&*tree, &hot, Schedule::new(HOT_READS_PER_S, time)));
        let committed = background.commit(log, schedule, round, &flush);
        drop(flush);
        background.stop.store(true, Ordering::Release);
        let join = |_| anyhow!("a thread panicked");
        let mut reads = reader.join().map_err(join)??;
        flusher.join().map_err(join)??;
        compactor.join().map_err(join)??;
        let mut figures = committed?;
        reads.sort_by(f64::total_cmp);
        figures.insert("read p99 ms".into(), quantile(&reads, 0.99));
        figures.insert("read worst ms".into(), quantile(&reads, 1.0));
        anyhow::Ok(figures)
    })?;
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let spent = (spent.tv_sec - cpu.tv_sec) as f64 * 1e6 + (spent.tv_nsec - cpu.tv_nsec) as f64 / 1e3;
    figures.insert("CPU µs/put".into(), spent / (rate * time.as_secs_f64()));
    figures.insert("MB written".into(), written_bytes()? as f64 / 1e6);
    Ok(figures)
}

fn read_hot(tree: &dyn Tree, hot: &[Row], schedule: Schedule) -> Result<Vec<f64>> {
    let mut latencies = vec![];
    for number in 0..schedule.count {
        std::thread::sleep(schedule.due(number).saturating_duration_since(Instant::now()));
        let (key, value) = &hot[(scatter(number) % HOT_ROWS) as usize];
        ensure!(tree.get(key)?.as_ref() == Some(value), "a hot row is wrong");
        schedule.note(number, 1, &mut latencies);
    }
    Ok(latencies)
}

impl Background<'_> {
    fn commit(
        &self,
        mut log: RingLog,
        schedule: Schedule,
        round: u64,
        flush: &Sender<u64>,
    ) -> Result<Figures> {
        let (mut first, mut latencies, mut figures) = (0, vec![], Figures::new());
        let mut worst = |name: &str, began: Instant| {
            let worst = figures.entry(name.into()).or_insert(0.0);
            *worst = worst.max(ms(began.elapsed()));
            Instant::now()
        };
        while first < schedule.count {
            let count = schedule.wait(first);
            let numbers = (first..first + count).map(|number| round << 32 | number);
            let rows: Vec<Row> = numbers.map(|i| (key(i), value(i, 0, VALUE_BYTES))).collect();
            let began = Instant::now();
            for (key, _) in &rows {
                ensure!(self.tree.get(key)?.is_none(), "a row exists before its put");
            }
            let began = worst("worst check ms", began);
            if !log.has_room(&rows) || log.bytes() >= tree::MEMTABLE_BYTES {
                // The memtable and the segment end together.
                while log.segment() + 1 >= self.free_below.load(Ordering::Acquire) + SEGMENTS {
                    self.wait(began)?;
                }
                log.rotate();
                flush.send(log.segment())?;
            }
            while self.tree.is_behind() {
                self.wait(began)?;
            }
            let began = worst("worst wait ms", began);
            log.append(&rows)?;
            let began = worst("worst sync ms", began);
            self.tree.insert(&rows)?;
            worst("worst insert ms", began);
            schedule.note(first, count, &mut latencies);
            first += count;
        }
        note_puts(&mut figures, latencies, schedule.begin.elapsed());
        Ok(figures)
    }

    fn wait(&self, since: Instant) -> Result<()> {
        if since.elapsed() > MAX_WAIT || self.stop.load(Ordering::Acquire) {
            bail!("commits waited too long for the tree");
        }
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    }

    fn flush(&self, requests: &Receiver<u64>, compact: &Sender<()>) -> Result<()> {
        while let Ok(segment) = requests.recv() {
            // Later requests are served by the same flush.
            let segment = requests.try_iter().last().unwrap_or(segment);
            self.tree.flush()?;
            self.free_below.store(segment, Ordering::Release);
            compact.send(())?;
        }
        Ok(())
    }

    fn compact(&self, requests: &Receiver<()>) -> Result<()> {
        const SHARE: i32 = 5;
        // As in Lazuli: compactions have a third of the usual share of the processors.
        rustix::process::setpriority_process(None, SHARE)?;
        while requests.recv().is_ok() {
            while !self.stop.load(Ordering::Acquire) && self.tree.compact()? {}
        }
        Ok(())
    }
}

/// Returns the bytes that this process has caused to be written to disks.
fn written_bytes() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    Ok(io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("write_bytes")?.parse()?)
}
