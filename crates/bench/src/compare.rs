//! `lazuli bench compare`: the same load on Lazuli and its peers in one run, as ratios.
//!
//! First the store and the extents are measured. Then this binary and the available [peers](peer) are started
//! on free ports of 127.0.0.1, with their data on the same disk. Each workload runs on each server in turns:
//! A B A B. The results are a [`page`], judged by [`goals`], and JSON. All servers are stopped at
//! the end. The total time is bounded: the remaining turns share the remaining time.

mod goals;
mod page;
mod peer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{OperationFailure, TargetAccount};
use super::load::Running;
use super::progress::Progress;
use super::report::{Goal, Measurement, OURS, Report, Section, Series};
use super::round::{Pace, Round};
use super::workload::{self, Shape, Workload};
use super::{BenchError, extents, seconds, store};
use peer::Peer;

/// The shortest and the longest turn of a server, in seconds.
const TURN_SECONDS: std::ops::RangeInclusive<f64> = 0.3..=5.0;
/// Bytes that must be free on the disk.
const MIN_FREE_BYTES: u64 = 32 << 30;
/// The share of the remaining time that turns take. The rest is for cleaning up, stopping and overruns.
const MEASURED_SHARE: f64 = 0.85;
/// How long preparing a workload on a server may take.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(180);
/// The share of a turn that is not counted.
const WARM_UP_SHARE: f64 = 0.2;
/// Bytes of a request body.
const BODY_BYTES: usize = 4096;
/// The workload after whose rounds the memory of our server is judged. It creates more than a hundred
/// thousand blobs before it cleans up. It runs before workloads whose reads fill the cache, which may grow to
/// its configured size.
const MEMORY_WORKLOAD: &str = "put-blob";
const MAX_RESIDENT_MB: u64 = 200;
/// Numbers of concurrent committers.
const COMMITTERS: [usize; 4] = [1, 16, 64, 256];

/// Options of `lazuli bench compare`.
#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// A directory on the disk to measure; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The directory for the page and the results
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    out: PathBuf,
    /// The directory in which peers are installed and kept for later runs
    #[arg(long, value_name = "DIR", default_value = "target/bench-peers")]
    peers: PathBuf,
    /// Start and install no peer
    #[arg(long)]
    no_peers: bool,
    /// Another server to compare with; may be given more than once
    #[arg(long = "peer", value_name = "NAME=CONNECTION-STRING")]
    named: Vec<peer::ExternalPeer>,
    /// How long everything may take, without installing and preparing [default: 600, quick: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,
    /// Rounds [default: 3, quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Connections to each server
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Less of everything: for a first look, not for numbers to quote
    #[arg(long)]
    quick: bool,
}

impl CompareArgs {
    fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 2 } else { 3 }, usize::from)
    }

    fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(if self.quick { 60 } else { 600 }))
    }

    /// Returns a plan that takes at most a third of the time: half of that for commits and reads, half for
    /// loading.
    fn store_plan(&self) -> store::StorePlan {
        let turns = (self.rounds() * COMMITTERS.len() * 2 + self.rounds() * 2) as u32;
        store::StorePlan {
            dir: self.dir.clone(),
            rows: if self.quick { 100_000 } else { 1_000_000 },
            load_limit: self.time() / 6,
            committers: COMMITTERS.to_vec(),
            rounds: self.rounds(),
            slice: (self.time() / 6 / turns).min(Duration::from_secs(2)),
        }
    }

    fn extents_plan(&self) -> extents::ExtentsPlan {
        extents::ExtentsPlan {
            dir: self.dir.clone(),
            mib: if self.quick { 64 } else { 256 },
            rounds: self.rounds(),
            slice: self.time() / 60 / self.rounds() as u32,
        }
    }
}

/// Measures everything, and writes the page and the results.
pub(crate) async fn run(args: CompareArgs) -> Result<(), BenchError> {
    std::fs::create_dir_all(&args.out).map_err(BenchError::at(&args.out))?;
    check_space(&args)?;
    let scratch = tempfile::Builder::new().prefix("lazuli-bench-").tempdir_in(&args.dir);
    let scratch = scratch.map_err(BenchError::at(&args.dir))?;
    let (store_plan, extents_plan) = (args.store_plan(), args.extents_plan());
    let progress = Progress::new(store_plan.steps() + extents_plan.steps() + 2);
    let mut azurite = None;
    if !args.no_peers {
        progress.step("installing peers");
        azurite = Some(peer::install_azurite(&args.peers).await);
    }

    let (mut report, end) = (Report::begin(), Instant::now() + args.time());
    report.sections.push(store::measure(&store_plan, &progress, store::reopen::in_new_process).await?);
    report.sections.push(extents::measure(&extents_plan, &progress).await?);
    progress.step("starting servers");
    let mut services = Section::new("services");
    let peers = start(&args, azurite, scratch.path(), &mut services).await?;
    measure(&args, &peers, end, &progress, &mut services).await?;
    services.goals.extend(goals::peers(&services));
    services.goals.extend(goals::blobs(&report.sections, &services));
    services.goals.extend(goals::files(&report.sections, &services));
    report.sections.push(services);
    for peer in peers {
        peer.stop().await;
    }
    drop(progress);

    print!("{report}");
    report.write_json(&args.out.join("results.json"))?;
    let path = args.out.join("index.html");
    std::fs::write(&path, page::html(&report)).map_err(BenchError::at(&path))?;
    println!("\n{} has the plots.", path.display());
    Ok(())
}

/// Returns an error if the disk could fill up: Azurite keeps overwritten data for minutes, and large blobs
/// are put as fast as it accepts them.
fn check_space(args: &CompareArgs) -> Result<(), BenchError> {
    let disk = rustix::fs::statvfs(&args.dir).map_err(|e| BenchError::at(&args.dir)(e.into()))?;
    let free = disk.f_bavail * disk.f_frsize;
    let needed = match (args.quick, args.no_peers) {
        (true, true) => MIN_FREE_BYTES / 64,
        (true, false) => MIN_FREE_BYTES / 8,
        (false, _) => MIN_FREE_BYTES,
    };
    if free < needed {
        return Err(BenchError::Space { path: args.dir.clone(), free, needed });
    }
    Ok(())
}

/// Starts our server and its peers, ours first. Notes which peers are not available.
async fn start(
    args: &CompareArgs,
    azurite: Option<Result<PathBuf, BenchError>>,
    scratch: &Path,
    section: &mut Section,
) -> Result<Vec<Peer>, BenchError> {
    let mut peers = vec![peer::lazuli(scratch).await?];
    let azurite = match azurite {
        Some(Ok(package)) => Some(peer::azurite(&package, scratch).await),
        Some(Err(error)) => Some(Err(error)),
        None => None,
    };
    match azurite {
        Some(Ok(peer)) => peers.push(peer),
        Some(Err(error)) => section.notes.push(format!("not compared with Azurite: {error}")),
        None => {}
    }
    if !args.no_peers {
        match peer::nginx(scratch).await {
            Ok(peer) => peers.push(peer),
            Err(error) => section.notes.push(format!("not compared with nginx: {error}")),
        }
    }
    peers.extend(args.named.iter().cloned().map(Peer::from));
    Ok(peers)
}

/// Runs each workload on each server that supports it, in turns. A workload is cleaned up before the next one
/// starts, so its objects do not affect other workloads.
async fn measure(
    args: &CompareArgs,
    peers: &[Peer],
    mut end: Instant,
    progress: &Progress,
    section: &mut Section,
) -> Result<(), BenchError> {
    let shape = Shape { body_bytes: BODY_BYTES };
    let workloads: Vec<_> =
        workload::all(shape).filter(|workload| !args.quick || !workload.takes_long()).collect();
    let turns = |workload: &Arc<dyn Workload>| {
        peers.iter().filter(|peer| peer.can_do(&**workload)).count() * args.rounds()
    };
    progress.extend(workloads.iter().map(|workload| 1 + turns(workload)).sum());
    section.notes.push(format!(
        "{} connections with one request at a time each; {} rounds in turns of up to {} s; bodies of {BODY_BYTES} bytes; \
         client and servers share the machine",
        args.concurrency,
        args.rounds(),
        TURN_SECONDS.end()
    ));
    section.notes.extend(peers.iter().map(|peer| format!("{}: {}", peer.name, peer.about)));
    for (i, workload) in workloads.iter().enumerate() {
        let name = workload.name();
        progress.step(format!("{name}: preparing"));
        let preparing = Instant::now();
        let Some(mut contest) = Contest::start(name, shape, peers, args.concurrency.into(), section).await?
        else {
            continue;
        };
        // Preparing does not count, so that slow preparations do not make later turns too short.
        end += preparing.elapsed();
        let left = end.saturating_duration_since(Instant::now()).mul_f64(MEASURED_SHARE);
        let turns: usize = workloads[i..].iter().map(turns).sum();
        let turn =
            (left.as_secs_f64() / turns.max(1) as f64).clamp(*TURN_SECONDS.start(), *TURN_SECONDS.end());
        let part = |share: f64| Duration::from_secs_f64(turn * share);
        for _ in 0..args.rounds() {
            contest.round(Pace::full(part(WARM_UP_SHARE), part(1.0 - WARM_UP_SHARE)), progress).await?;
        }
        if name == MEMORY_WORKLOAD {
            section.goals.extend(peers.first().and_then(Peer::resident_mb).map(|mb| {
                let wanted =
                    format!("{name}: memory of ours with all these blobs below {MAX_RESIDENT_MB} MB");
                Goal::judged(wanted, format!("{mb} MB"), mb < MAX_RESIDENT_MB)
            }));
        }
        let measurement = contest.finish(section).await;
        section.measurements.push(measurement);
    }
    Ok(())
}

/// One workload on the servers that support it, ours first.
struct Contest {
    name: &'static str,
    contenders: Vec<Contender>,
}

struct Contender {
    name: String,
    running: Running,
    rounds: Vec<Round>,
}

impl Contest {
    /// Prepares the workload on all servers. Notes servers on which it fails; returns `None` if ours is one
    /// of them.
    async fn start(
        name: &'static str,
        shape: Shape,
        peers: &[Peer],
        concurrency: usize,
        section: &mut Section,
    ) -> Result<Option<Self>, BenchError> {
        let mut contenders = vec![];
        for peer in peers {
            let workload = workload::named(name, shape)?;
            if !peer.can_do(&*workload) {
                continue;
            }
            match begin(&workload, &peer.target, concurrency).await {
                Ok(running) => {
                    contenders.push(Contender { name: peer.name.clone(), running, rounds: vec![] })
                }
                Err(failure) => {
                    section.notes.push(format!("{name}: not measured on {}: {failure}", peer.name));
                    if peer.name == OURS {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(Self { name, contenders }))
    }

    async fn round(&mut self, pace: Pace, progress: &Progress) -> Result<(), BenchError> {
        for contender in &mut self.contenders {
            progress.step(format!("{}: {}", self.name, contender.name));
            // Otherwise the kernel would write the previous contender's data during this turn.
            tokio::task::spawn_blocking(rustix::fs::sync).await?;
            contender.rounds.push(contender.running.round(pace).await?);
        }
        Ok(())
    }

    async fn finish(self, section: &mut Section) -> Measurement {
        let mut series = vec![];
        for Contender { name, running, rounds } in self.contenders {
            series.push(Series::of_rounds(name.as_str(), &rounds));
            if let Err(failure) = running.finish().await {
                section.notes.push(format!("{}: not cleaned up on {name}: {failure}", self.name));
            }
        }
        Measurement::new(self.name, "requests/s", series)
    }
}

/// Prepares a workload and tries one operation.
async fn begin(
    workload: &Arc<dyn Workload>,
    target: &TargetAccount,
    concurrency: usize,
) -> Result<Running, OperationFailure> {
    let starting = tokio::time::timeout(PREPARE_TIMEOUT, Running::start(workload, target, concurrency));
    let mut running = starting.await.map_err(|_| OperationFailure::Unprepared(PREPARE_TIMEOUT))??;
    match running.try_one().await {
        Ok(()) => Ok(running),
        Err(failure) => {
            // Report the first failure rather than that of the cleanup.
            let _ = running.finish().await;
            Err(failure)
        }
    }
}
