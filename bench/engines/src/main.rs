//! Measures embedded engines with the access pattern of Lazuli's store. Decision 0002 has the results.
//!
//! `cargo run --release -- --rows 1000000` prints tables and writes JSON. Every phase of every engine runs in
//! a process of its own, so that memory use, reopening and crashes are those of a real process. Phases of
//! different engines alternate, so that a slow minute of a shared machine affects all engines.

mod damage;
mod engine;
mod report;
mod workload;

use anyhow::{Context, Result, anyhow, bail};
use report::{Crashed, Engines, Loading, Serving};
use rustix::time::ClockId;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use workload::Raw;

const COMMITTERS: [usize; 4] = [1, 16, 64, 256];
/// Loading ends after this long. A slow engine is measured with the rows that it has by then.
const LOAD_LIMIT: Duration = Duration::from_secs(600);
const TAIL_BATCHES: u64 = 50;

const HELP: &str = "\
engines [--rows N] [--rounds N] [--seconds N] [--engines a,b,..] [--data DIR] [--json FILE] [--only speed|damage]
  --rows     rows to load (1000000)          --rounds   how often the reads and commits are repeated (3)
  --seconds  length of one measurement (3)   --engines  lsm-tree+log,fjall,rocksdb,redb,lmdb
  --data     scratch directory, deleted afterwards (/tmp/engines-data)";

fn main() -> Result<()> {
    let mut arguments = HashMap::new();
    let mut rest = std::env::args().skip(1);
    while let Some(name) = rest.next() {
        let name = name
            .strip_prefix("--")
            .filter(|name| *name != "help")
            .ok_or_else(|| anyhow!("{HELP}"))?
            .to_owned();
        arguments.insert(name, rest.next().ok_or_else(|| anyhow!("{HELP}"))?);
    }
    let run = Run {
        rows: number(&arguments, "rows", 1_000_000)?,
        rounds: number(&arguments, "rounds", 3)?,
        time: Duration::from_secs(number(&arguments, "seconds", 3)?),
        data: arguments.get("data").map_or_else(|| "/tmp/engines-data".into(), PathBuf::from),
        arguments,
    };
    match run.arguments.get("phase") {
        Some(phase) => run.phase(phase),
        None => run.all(),
    }
}

fn number(arguments: &HashMap<String, String>, name: &str, default: u64) -> Result<u64> {
    arguments.get(name).map_or(Ok(default), |n| n.parse().with_context(|| format!("--{name} {n}")))
}

struct Run {
    rows: u64,
    rounds: u64,
    time: Duration,
    data: PathBuf,
    arguments: HashMap<String, String>,
}

impl Run {
    /// Runs every phase of every engine, in turns, and reports.
    fn all(&self) -> Result<()> {
        let names: Vec<&str> = match self.arguments.get("engines") {
            Some(list) => list.split(',').collect(),
            None => engine::NAMES.to_vec(),
        };
        let only = self.arguments.get("only").map(String::as_str);
        std::fs::create_dir_all(&self.data)?;
        let mut report = Engines { rows: self.rows, ..Engines::default() };
        if only != Some("damage") {
            self.speed(&names, &mut report)?;
        }
        if only != Some("speed") {
            report.damage = damage::all(&names, &self.data.join("damage"))?;
        }
        std::fs::remove_dir_all(&self.data)?;
        if let Some(path) = self.arguments.get("json") {
            std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")?;
        }
        report.print();
        Ok(())
    }

    fn speed(&self, names: &[&str], report: &mut Engines) -> Result<()> {
        report.raw_growing = workload::raw(&self.data, Raw::Growing, self.time)?;
        report.raw_allocated = workload::raw(&self.data, Raw::Allocated, self.time)?;
        report.raw_rewritten = workload::raw(&self.data, Raw::Rewritten, self.time)?;
        for name in names {
            let loading: Loading = self.child("load", name)?;
            report.engine(name).loading = loading;
        }
        for _ in 0..self.rounds {
            for name in names {
                let mut serving: Serving = self.child("serve", name)?;
                serving.disk_bytes = disk_bytes(&self.data.join(name))?;
                report.engine(name).serving.push(serving);
            }
        }
        for name in names {
            // This phase ends by SIGKILL, so it prints no result.
            let _ = command("crash", name, &self.data, &self.arguments)?.status()?;
            let crashed: Crashed = self.child("recover", name)?;
            report.engine(name).crashed = crashed;
        }
        Ok(())
    }

    fn child<T: DeserializeOwned>(&self, phase: &str, name: &str) -> Result<T> {
        eprintln!("{phase} {name}");
        let out = command(phase, name, &self.data, &self.arguments)?.stdout(Stdio::piped()).output()?;
        if !out.status.success() {
            bail!("{phase} of {name} failed");
        }
        eprintln!("  {}", String::from_utf8_lossy(&out.stdout).trim());
        Ok(serde_json::from_slice(&out.stdout)?)
    }

    /// Runs one phase of one engine in a child process and prints its result as JSON.
    fn phase(&self, phase: &str) -> Result<()> {
        let name = self.arguments.get("engine").ok_or_else(|| anyhow!("--phase needs --engine"))?;
        let dir = self.data.join(name);
        let json = match phase {
            "load" => serde_json::to_string(&self.load(name, &dir)?)?,
            "serve" => serde_json::to_string(&self.serve(name, &dir)?)?,
            "crash" => return self.crash(name, &dir),
            "recover" => serde_json::to_string(&self.recover(name, &dir)?)?,
            "log-write" => return damage::write_log(name, &self.data, self.variant()?),
            "log-read" => serde_json::to_string(&damage::read_log(name, &self.data, self.variant()?))?,
            "table-write" => return damage::write_table(name, &self.data),
            "table-read" => serde_json::to_string(&damage::read_table(name, &self.data, self.variant()?))?,
            _ => bail!("unknown phase {phase:?}"),
        };
        println!("{json}");
        Ok(())
    }

    fn variant(&self) -> Result<u64> {
        number(&self.arguments, "variant", 0)
    }

    fn load(&self, name: &str, dir: &Path) -> Result<Loading> {
        let engine = engine::open(name, dir)?;
        let loaded = workload::load(&*engine, self.rows, LOAD_LIMIT)?;
        let gets_1 = workload::gets(&*engine, loaded.rows, 1, self.time)?;
        let gets_2 = workload::gets(&*engine, loaded.rows, 2, self.time)?;
        let start = Instant::now();
        engine.settle()?;
        let settle_s = start.elapsed().as_secs_f64();
        let reading = [gets_1, gets_2].iter().map(|r| r.cpu_us * r.operations as f64).sum::<f64>();
        Ok(Loading {
            gets_1,
            gets_2,
            settle_s,
            cpu_us_per_row: (workload::cpu_us(ClockId::ProcessCPUTime) - reading) / loaded.rows as f64,
            written_per_row: written_bytes()? as f64 / loaded.rows as f64,
            load_average: load_average()?,
            loaded,
        })
    }

    fn serve(&self, name: &str, dir: &Path) -> Result<Serving> {
        let start = Instant::now();
        let engine = engine::open(name, dir)?;
        let open_ms = start.elapsed().as_secs_f64() * 1e3;
        std::thread::sleep(Duration::from_secs(1));
        let rss_bytes = rss_bytes()?;
        engine.settle()?;
        let rows = self.present(&*engine)?;
        workload::warm(&*engine, rows)?;
        let gets_1 = workload::gets(&*engine, rows, 1, self.time)?;
        let gets_2 = workload::gets(&*engine, rows, 2, self.time)?;
        let scans = workload::scans(&*engine, rows, self.time)?;
        let commits = COMMITTERS
            .iter()
            .map(|committers| workload::commits(&*engine, rows, *committers, self.time, &self.data))
            .collect::<Result<_>>()?;
        engine.settle()?;
        Ok(Serving {
            open_ms,
            rss_bytes,
            gets_1,
            gets_2,
            scans,
            commits,
            disk_bytes: 0,
            load_average: load_average()?,
        })
    }

    /// Returns how many rows were loaded: fewer than requested if the time ran out.
    fn present(&self, engine: &dyn engine::Engine) -> Result<u64> {
        let (mut low, mut high) = (0, self.rows);
        let mut value = Vec::new();
        while low < high {
            let middle = low.midpoint(high);
            if engine.get(&workload::key(middle), &mut value)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn crash(&self, name: &str, dir: &Path) -> Result<()> {
        let engine = engine::open(name, dir)?;
        workload::write_tail(&*engine, 2 * self.rows, TAIL_BATCHES)?;
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        Ok(())
    }

    fn recover(&self, name: &str, dir: &Path) -> Result<Crashed> {
        let start = Instant::now();
        let engine = engine::open(name, dir)?;
        let open_ms = start.elapsed().as_secs_f64() * 1e3;
        let missing = workload::missing(&*engine, 2 * self.rows, 2 * self.rows + 100 * TAIL_BATCHES)?;
        Ok(Crashed { open_ms, missing })
    }
}

/// Returns the command that runs this program again, for one phase of one engine.
fn command(phase: &str, name: &str, data: &Path, arguments: &HashMap<String, String>) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--phase").arg(phase).arg("--engine").arg(name).arg("--data").arg(data);
    for (key, value) in arguments.iter().filter(|(key, _)| ["rows", "seconds"].contains(&key.as_str())) {
        command.arg(format!("--{key}")).arg(value);
    }
    Ok(command)
}

/// Returns the load average of the last minute, including this program.
fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

/// Returns the bytes that this process has passed to `write` and similar calls. The kernel's `write_bytes`
/// counts whole folios, so it counts one page written to a mapped file as many.
fn written_bytes() -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    Ok(io.lines().find_map(|line| line.strip_prefix("wchar: ")).context("wchar")?.parse()?)
}

fn rss_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Returns the bytes of disk that the files under `dir` occupy, without holes.
fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
