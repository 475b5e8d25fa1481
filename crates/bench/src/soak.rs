//! `lazuli bench soak MINUTES`: finds what grows under constant load.
//!
//! Starts a server and uses all services and SMB at a constant rate with a constant working set. Every byte
//! read is checked. Each minute shows memory, disk, handles, threads and latencies. At the end memory and
//! disk are [judged](verdict), and `lazuli check` verifies the stored data.

mod clients;
mod smb;
mod verdict;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::process::Server;
use super::report::{Goal, Report, Section};
use super::round::{Pace, Round, round};
use super::text::{micros, number};
use super::{BenchError, seconds};
use clients::SoakClient;
use verdict::Minute;

/// Number of memory samples in a minute.
const SAMPLES: u32 = 12;

/// Options of `lazuli bench soak`.
#[derive(clap::Args, Debug)]
pub(crate) struct SoakArgs {
    /// Number of minutes
    #[arg(value_name = "MINUTES", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    minutes: u16,
    /// Steps per second of all clients together; a step is one to five requests
    #[arg(long, value_name = "N", default_value_t = 150.0)]
    rate: f64,
    /// The binary to soak [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Memory for the server's caches
    #[arg(long, value_name = "BYTES")]
    cache_bytes: Option<String>,
    /// How long a minute is, for tests of this command
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, hide = true)]
    minute: Duration,
    /// A directory on the disk to use; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Runs all minutes. Fails if memory or disk grows, a request fails, a byte is wrong, or stored data is
/// damaged.
pub(crate) async fn run(args: SoakArgs) -> Result<(), BenchError> {
    let scratch = tempfile::Builder::new().prefix("lazuli-soak-").tempdir_in(&args.dir);
    let scratch = scratch.map_err(BenchError::at(&args.dir))?;
    let program = match &args.program {
        Some(program) => std::path::absolute(program),
        None => std::env::current_exe(),
    }
    .map_err(BenchError::at(&args.dir))?;
    let options: Vec<String> =
        args.cache_bytes.iter().flat_map(|bytes| ["--cache-bytes".to_owned(), bytes.clone()]).collect();
    let server = Server::start(&program, scratch.path(), "data", &options).await?;
    let failed = |failure| BenchError::Workload("soak", failure);
    let mut clients = SoakClient::all(&server.target, server.smb_port).map_err(failed)?;
    let live: u64 = clients.iter().map(SoakClient::live_bytes).sum();
    for client in &mut clients {
        client.prepare().await.map_err(|reason| BenchError::Program("soak", reason))?;
    }
    let mut report = Report::begin();
    println!("{} MiB of live data, {} steps/s", live >> 20, number(args.rate));
    println!(
        "minute  RssAnon MiB  RSS MiB  disk MiB  log MiB  handles  threads  steps/s  CPU s      p50      p99      max  errors"
    );
    let (mut minutes, mut errors) = (vec![], std::collections::BTreeMap::new());
    for number in 1..=args.minutes {
        let (minute, done, returned) = one_minute(&args, &server, clients, number).await?;
        clients = returned;
        minutes.push(minute);
        for (reason, count) in done.errors {
            *errors.entry(reason).or_insert(0) += count;
        }
    }
    drop(clients);
    server.process.stop().await;
    let checked = tokio::process::Command::new(&program).arg("check").arg(&server.data).output().await;
    let checked = checked.map_err(BenchError::at(&program))?;

    let mut section = Section::new("soak");
    section.goals = verdict::judge(&minutes, live);
    section.goals.push(match errors.is_empty() {
        true => Goal::judged("every request succeeds and every byte is right", "yes", true),
        false => Goal::judged("every request succeeds and every byte is right", format!("{errors:?}"), false),
    });
    let output = super::process::tail(&String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()));
    section.goals.push(Goal::judged("nothing stored is damaged", output, checked.status.success()));
    let missed: Vec<_> = section.goals.iter().filter(|goal| goal.met == Some(false)).collect();
    let missed: Vec<_> = missed.iter().map(|goal| format!("{}: {}", goal.wanted, goal.found)).collect();
    report.sections.push(section);
    print!("\n{report}");
    if missed.is_empty() { Ok(()) } else { Err(BenchError::Missed(missed.join("; "))) }
}

/// Runs the load for a minute while sampling the server, and prints a line.
async fn one_minute(
    args: &SoakArgs,
    server: &Server,
    clients: Vec<SoakClient>,
    count: u16,
) -> Result<(Minute, Round, Vec<SoakClient>), BenchError> {
    let usage_now = || server.process.usage().map_err(BenchError::at(Path::new("/proc")));
    let before = usage_now()?.cpu;
    let mut minute = Minute::default();
    let sample = async {
        for _ in 0..SAMPLES {
            tokio::time::sleep(args.minute / (SAMPLES + 1)).await;
            minute.anonymous.push(usage_now()?.anonymous as f64);
        }
        Ok::<(), BenchError>(())
    };
    let pace = Pace { warm_up: Duration::ZERO, time: args.minute, rate: Some(args.rate) };
    let (done, sampled) = tokio::join!(round(clients, pace), sample);
    let (done, clients) = done?;
    sampled?;
    let usage = usage_now()?;
    minute.disk = allocated(&server.data);
    minute.log = allocated(&server.data.join("store/log"));
    let latency = done.latency.latency();
    let micros = |of: fn(&super::histogram::Latency) -> f64| {
        latency.as_ref().map(|l| micros(of(l))).unwrap_or_default()
    };
    let mib = |bytes: u64| number(bytes as f64 / f64::from(1 << 20));
    println!(
        "{count:>6}  {:>11}  {:>7}  {:>8}  {:>7}  {:>7}  {:>7}  {:>7}  {:>5}  {:>7}  {:>7}  {:>7}  {:>6}",
        mib(super::report::median(&minute.anonymous).unwrap_or(0.0) as u64),
        mib(usage.resident),
        mib(minute.disk),
        mib(minute.log),
        usage.handles,
        usage.threads,
        number(done.per_s),
        number(usage.cpu.saturating_sub(before).as_secs_f64()),
        micros(|l| l.p50_us),
        micros(|l| l.p99_us),
        micros(|l| l.max_us),
        done.errors.values().sum::<u64>(),
    );
    for (reason, count) in &done.errors {
        println!("        {count} × {reason}");
    }
    Ok((minute, done, clients))
}

/// Returns the bytes on disk of a directory. Files that are removed meanwhile count as nothing.
fn allocated(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
