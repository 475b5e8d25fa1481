//! The rows and the load: the calls that the store makes, with their rates and latencies.
//!
//! Row `i` has a key of 40 bytes in an order unrelated to `i`, and a value of 500 bytes that does not
//! compress. The value starts with the key's hash, so a reader recognizes a wrong row.

use crate::engine::{Engine, Row};
use anyhow::{Result, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

pub const VALUE_BYTES: usize = 500;
const SPACES: u64 = 16;
const LOAD_BATCH: u64 = 1000;
const SCAN_ROWS: usize = 100;
/// Maximum number of requests in one group. No run here has more in flight.
const GROUP: usize = 1024;
const RAW_RECORD: usize = 600;

/// Scrambles a number. This is SplitMix64, a bijection.
pub fn scatter(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the key of row `i`: a space number of 8 bytes and a name of 32 hexadecimal digits.
pub fn key(i: u64) -> Vec<u8> {
    let hash = scatter(i);
    let mut key = Vec::with_capacity(40);
    key.extend_from_slice(&(hash % SPACES).to_be_bytes());
    // Writing to a vector cannot fail.
    let _ = write!(key, "{hash:016x}{:016x}", scatter(hash));
    key
}

/// Returns the value of row `i`. Different values of `version` give different bytes.
pub fn value(i: u64, version: u64, length: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(length + 8);
    value.extend_from_slice(&scatter(i).to_le_bytes());
    let mut state = scatter(i ^ version.rotate_left(32));
    while value.len() < length {
        state = scatter(state);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(length);
    value
}

fn row(i: u64, version: u64) -> Row {
    (key(i), value(i, version, VALUE_BYTES))
}

#[derive(Default, Serialize, Deserialize)]
pub struct Loaded {
    pub rows: u64,
    pub seconds: f64,
    pub rows_per_s: f64,
    /// Latency of the slowest batches, which wait for compaction.
    pub batch_p99_ms: f64,
    pub batch_max_ms: f64,
    pub finished: bool,
}

/// Loads rows 0 to `rows` in durable batches. Stops early after `limit`.
pub fn load(engine: &dyn Engine, rows: u64, limit: Duration) -> Result<Loaded> {
    let start = Instant::now();
    let mut batches = Vec::new();
    let mut done = 0;
    while done < rows && start.elapsed() < limit {
        let end = (done + LOAD_BATCH).min(rows);
        let batch: Vec<Row> = (done..end).map(|i| row(i, 0)).collect();
        let sent = Instant::now();
        engine.write(&batch)?;
        batches.push(sent.elapsed().as_secs_f64() * 1e3);
        done = end;
    }
    let seconds = start.elapsed().as_secs_f64();
    batches.sort_unstable_by(f64::total_cmp);
    Ok(Loaded {
        rows: done,
        seconds,
        rows_per_s: done as f64 / seconds,
        batch_p99_ms: quantile(&batches, 0.99),
        batch_max_ms: quantile(&batches, 1.0),
        finished: done == rows,
    })
}

/// Operations per second, and the processor time of one operation in its thread. On a shared machine the rate
/// depends on other programs; the processor time depends on them far less.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Rate {
    pub operations: u64,
    pub per_s: f64,
    pub cpu_us: f64,
}

/// Returns a different seed for each call, so that no measurement reads rows that an earlier one has cached.
fn seed() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(1);
    scatter(CALLS.fetch_add(1, Ordering::Relaxed))
}

/// Returns the microseconds of processor time that this process, or this thread, has used.
pub fn cpu_us(whose: ClockId) -> f64 {
    let time = clock_gettime(whose);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Measures random point reads of existing rows.
pub fn gets(engine: &dyn Engine, rows: u64, threads: u64, time: Duration) -> Result<Rate> {
    let seed = seed();
    rate(threads, time, |thread, n| {
        let i = scatter(seed ^ thread << 48 ^ n) % rows;
        let mut value = Vec::with_capacity(VALUE_BYTES);
        ensure!(engine.get(&key(i), &mut value)?, "row {i} is missing");
        ensure!(value.len() == VALUE_BYTES && value[..8] == scatter(i).to_le_bytes(), "row {i} is wrong");
        Ok(())
    })
}

/// Reads enough random rows to fill the caches with most of a million rows.
pub fn warm(engine: &dyn Engine, rows: u64) -> Result<()> {
    const READS: u64 = 400_000;
    let start = Instant::now();
    let mut value = Vec::with_capacity(VALUE_BYTES);
    for n in (0..READS).take_while(|_| start.elapsed() < Duration::from_secs(60)) {
        engine.get(&key(scatter(n) % rows), &mut value)?;
    }
    Ok(())
}

/// Measures random short scans: seek, then read 100 rows.
pub fn scans(engine: &dyn Engine, rows: u64, time: Duration) -> Result<Rate> {
    let seed = seed();
    rate(1, time, |_, n| {
        // The last rows in key order may have fewer than 100 rows after them. Space 0 is never the last one.
        let i =
            (0..).map(|k| scatter(seed ^ (n * 64 + k)) % rows).find(|i| scatter(*i) % SPACES < SPACES - 1);
        let (found, _) = engine.scan(&key(i.unwrap_or(0)), SCAN_ROWS)?;
        ensure!(found == SCAN_ROWS, "a scan found {found} rows");
        Ok(())
    })
}

fn rate(threads: u64, time: Duration, work: impl Fn(u64, u64) -> Result<()> + Sync) -> Result<Rate> {
    let start = Instant::now();
    let mut total = Rate::default();
    let ran: Vec<Result<(u64, f64)>> = std::thread::scope(|scope| {
        let work = &work;
        let run = move |thread| -> Result<(u64, f64)> {
            let cpu = cpu_us(ClockId::ThreadCPUTime);
            let mut n = 0;
            while start.elapsed() < time {
                work(thread, n)?;
                n += 1;
            }
            Ok((n, cpu_us(ClockId::ThreadCPUTime) - cpu))
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    for one in ran {
        let (operations, cpu) = one?;
        total.operations += operations;
        total.cpu_us += cpu;
    }
    total.per_s = total.operations as f64 / start.elapsed().as_secs_f64();
    total.cpu_us /= total.operations as f64;
    Ok(total)
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Commits {
    pub committers: usize,
    pub per_s: f64,
    /// Processor time of the whole process for one commit.
    pub cpu_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Mean number of commits that shared one sync.
    pub group: f64,
    /// Appends of 600 bytes to a growing file per second, each with an fdatasync, measured immediately
    /// before.
    pub raw_per_s: f64,
}

/// A conditional commit: the row that must exist, and the two rows to put.
struct Request {
    present: Vec<u8>,
    puts: [Row; 2],
    reply: SyncSender<bool>,
}

/// Measures group commit: `committers` threads submit commits and wait. One thread takes all waiting commits,
/// reads the row that each one depends on, writes one batch with one sync, and answers.
pub fn commits(
    engine: &dyn Engine,
    rows: u64,
    committers: usize,
    time: Duration,
    dir: &Path,
) -> Result<Commits> {
    let raw_per_s = raw(dir, Raw::Growing, Duration::from_secs(1))?;
    let stop = AtomicBool::new(false);
    let version = AtomicU64::new(1);
    let cpu = cpu_us(ClockId::ProcessCPUTime);
    let start = Instant::now();
    let (mut latencies, groups) = std::thread::scope(|scope| -> Result<_> {
        let (submit, requests) = sync_channel(GROUP);
        let writer = scope.spawn(move || serve(engine, &requests));
        let clients: Vec<_> = (0..committers as u64)
            .map(|client| {
                let (submit, stop, version) = (submit.clone(), &stop, &version);
                scope.spawn(move || submit_until(stop, &submit, client, rows, version))
            })
            .collect();
        drop(submit);
        std::thread::sleep(time);
        stop.store(true, Ordering::Release);
        let mut latencies = Vec::new();
        for client in clients {
            latencies.extend(client.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?);
        }
        Ok((latencies, writer.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable_by(f64::total_cmp);
    Ok(Commits {
        committers,
        per_s: latencies.len() as f64 / seconds,
        cpu_us: (cpu_us(ClockId::ProcessCPUTime) - cpu) / latencies.len() as f64,
        p50_us: quantile(&latencies, 0.5),
        p99_us: quantile(&latencies, 0.99),
        max_us: quantile(&latencies, 1.0),
        group: latencies.len() as f64 / groups.max(1) as f64,
        raw_per_s,
    })
}

fn submit_until(
    stop: &AtomicBool,
    submit: &SyncSender<Request>,
    client: u64,
    rows: u64,
    version: &AtomicU64,
) -> Result<Vec<f64>> {
    let (reply, answer) = sync_channel(1);
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let n = scatter(client << 40 | latencies.len() as u64);
        let version = version.fetch_add(1, Ordering::Relaxed);
        let puts = [row(n % rows, version), row(scatter(n) % rows, version)];
        let request = Request { present: puts[0].0.clone(), puts, reply: reply.clone() };
        let sent = Instant::now();
        submit.send(request)?;
        ensure!(answer.recv()?, "a row that was loaded is missing");
        latencies.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(latencies)
}

fn serve(engine: &dyn Engine, requests: &Receiver<Request>) -> Result<u64> {
    let mut groups = 0;
    let mut batch = Vec::new();
    let mut replies = Vec::new();
    let mut found = Vec::new();
    while let Ok(first) = requests.recv() {
        for request in std::iter::once(first).chain(requests.try_iter()).take(GROUP) {
            let holds = engine.get(&request.present, &mut found)?;
            if holds {
                batch.extend(request.puts);
            }
            replies.push((request.reply, holds));
        }
        engine.write(&batch)?;
        batch.clear();
        groups += 1;
        for (reply, holds) in replies.drain(..) {
            // Ignore the error: the receiver has been dropped.
            let _ = reply.send(holds);
        }
    }
    Ok(groups)
}

/// The kind of file that a record is written to.
#[derive(Clone, Copy)]
pub enum Raw {
    /// A file that grows with each record.
    Growing,
    /// A file with allocated blocks that were never written.
    Allocated,
    /// A file with blocks of old bytes, like a reused segment.
    Rewritten,
}

/// Measures synced writes of 600 bytes per second without an engine: the limit of the disk.
pub fn raw(dir: &Path, kind: Raw, time: Duration) -> Result<f64> {
    const BYTES: u64 = 64 << 20;
    let path = dir.join("raw");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    match kind {
        Raw::Growing => {}
        Raw::Allocated => fallocate(&file, FallocateFlags::empty(), 0, BYTES)?,
        Raw::Rewritten => file.write_all_at(&vec![0xa5; BYTES as usize], 0)?,
    }
    file.sync_all()?;
    File::open(dir)?.sync_all()?;
    let record = [0x5a; RAW_RECORD];
    let start = Instant::now();
    let mut n = 0;
    while start.elapsed() < time {
        file.write_all_at(&record, n * RAW_RECORD as u64)?;
        file.sync_data()?;
        n += 1;
    }
    let per_s = n as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(per_s)
}

/// Returns the quantile `q` of sorted values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or(0.0)
}

/// Rows that are written immediately before a crash, after the loaded rows. All must exist afterwards.
pub fn write_tail(engine: &dyn Engine, from: u64, batches: u64) -> Result<()> {
    for batch in 0..batches {
        let rows: Vec<Row> = (0..100).map(|i| row(from + batch * 100 + i, 0)).collect();
        engine.write(&rows)?;
    }
    Ok(())
}

/// Returns how many of the rows from `from` to `to` are missing or wrong.
pub fn missing(engine: &dyn Engine, from: u64, to: u64) -> Result<u64> {
    let mut missing = 0;
    let mut found = Vec::new();
    for i in from..to {
        let right = engine.get(&key(i), &mut found)? && found == value(i, 0, VALUE_BYTES);
        missing += u64::from(!right);
    }
    Ok(missing)
}
