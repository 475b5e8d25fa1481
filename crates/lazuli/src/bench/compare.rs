//! `lazuli bench compare`: the same load on Lazuli and its peers in one run, as ratios.
//!
//! First it measures the store and the extents. Then it starts this very binary and the [peers](peer) that can be had
//! here, on free ports of 127.0.0.1 and with their data on the same disk, and runs each workload on each server in
//! turns: A B A B. It writes [a page](page) and JSON, and stops everything it started. The time is bounded: what is left
//! of it is divided among the turns to come.

mod beside;
mod page;
mod peer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Failure, Target};
use super::load::Running;
use super::progress::Progress;
use super::report::{Goal, Measurement, OURS, Report, Section, Series};
use super::round::{Pace, Round};
use super::workload::{self, Shape, Workload};
use super::{BenchError, extents, seconds, store};
use peer::Peer;

/// The shortest and the longest turn of a server.
const TURN: std::ops::RangeInclusive<f64> = 0.3..=5.0;
/// Bytes that have to be free.
const SPACE: u64 = 32 << 30;
/// The share of the time left that turns take; the rest is for cleaning up, stopping and what takes longer.
const MEASURED: f64 = 0.85;
/// How long a server may take to be prepared for a workload.
const PREPARING: Duration = Duration::from_secs(180);
/// The share of a turn that is not counted.
const WARM_UP: f64 = 0.2;
/// Bytes of a body.
const BODY_BYTES: usize = 4096;
/// What leaves a hundred thousand blobs and more behind until it is finished, and the memory that ours may have then. Read is
/// hardly anything until then: what is read fills a cache, which is as large as it was allowed to be.
const FILLED: &str = "put-blob";
const MOST_MB: u64 = 200;
/// Numbers of committers.
const COMMITTERS: [usize; 4] = [1, 16, 64, 256];

/// Options of `lazuli bench compare`.
#[derive(clap::Args, Debug)]
pub(crate) struct CompareArgs {
    /// A directory on the disk to measure; what is made there is removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Where the page and the results go
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    out: PathBuf,
    /// Where peers are installed, and kept for the next time
    #[arg(long, value_name = "DIR", default_value = "target/bench-peers")]
    peers: PathBuf,
    /// Start and install no peer
    #[arg(long)]
    no_peers: bool,
    /// Another server to compare with; may be given more than once
    #[arg(long = "peer", value_name = "NAME=CONNECTION-STRING")]
    named: Vec<peer::Named>,
    /// How long all of it may take, installing and preparing apart [default: 600, quick: 60]
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

    /// Half of the time is for what needs no server: a third of that for commits, a third for loading rows at most.
    fn store_plan(&self) -> store::Plan {
        let turns = (self.rounds() * COMMITTERS.len() * 2 + self.rounds() * 2) as u32;
        store::Plan {
            dir: self.dir.clone(),
            rows: if self.quick { 100_000 } else { 1_000_000 },
            load_limit: self.time() / 6,
            committers: COMMITTERS.to_vec(),
            rounds: self.rounds(),
            slice: (self.time() / 6 / turns).min(Duration::from_secs(2)),
        }
    }

    fn extents_plan(&self) -> extents::Plan {
        extents::Plan {
            dir: self.dir.clone(),
            mib: if self.quick { 64 } else { 256 },
            rounds: self.rounds(),
            slice: self.time() / 60 / self.rounds() as u32,
        }
    }
}

/// Measures everything and writes it down.
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
    services.goals.extend(beside::peers(&services));
    services.goals.extend(beside::blobs(&report.sections, &services));
    services.goals.extend(beside::files(&report.sections, &services));
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

/// Refuses to fill a disk: Azurite keeps for minutes what is overwritten, and large blobs are put as fast as it takes them.
fn check_space(args: &CompareArgs) -> Result<(), BenchError> {
    let disk = rustix::fs::statvfs(&args.dir).map_err(|e| BenchError::at(&args.dir)(e.into()))?;
    let (free, needed) = (disk.f_bavail * disk.f_frsize, if args.quick { SPACE / 8 } else { SPACE });
    if free < needed {
        return Err(BenchError::Space { path: args.dir.clone(), free, needed });
    }
    Ok(())
}

/// Starts our server and its peers, ours first. Which of them cannot be had is noted.
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

/// Each workload on each server that can do it, in turns: prepared, measured and cleaned up before the next one, so that no
/// server bears what another workload needs.
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
        TURN.end()
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
        // Turns are not to become too short to tell anything because others took long to prepare.
        end += preparing.elapsed();
        let left = end.saturating_duration_since(Instant::now()).mul_f64(MEASURED);
        let turns: usize = workloads[i..].iter().map(turns).sum();
        let turn = (left.as_secs_f64() / turns.max(1) as f64).clamp(*TURN.start(), *TURN.end());
        let part = |share: f64| Duration::from_secs_f64(turn * share);
        for _ in 0..args.rounds() {
            contest.round(Pace::full(part(WARM_UP), part(1.0 - WARM_UP)), progress).await?;
        }
        if name == FILLED {
            section.goals.extend(peers.first().and_then(Peer::resident_mb).map(|mb| {
                let wanted = format!("{name}: memory of ours with all these blobs below {MOST_MB} MB");
                Goal::judged(wanted, format!("{mb} MB"), mb < MOST_MB)
            }));
        }
        let measurement = contest.finish(section).await;
        section.measurements.push(measurement);
    }
    Ok(())
}

/// One workload on those servers that can do it, ours first.
struct Contest {
    name: &'static str,
    contenders: Vec<Contender>,
}

struct Contender {
    who: String,
    running: Running,
    rounds: Vec<Round>,
}

impl Contest {
    /// Prepares it everywhere. What a server cannot do is noted; `None` if that server is ours.
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
                Ok(running) => contenders.push(Contender { who: peer.name.clone(), running, rounds: vec![] }),
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
            progress.step(format!("{}: {}", self.name, contender.who));
            // What the one before left to the kernel to write would be written in this one's time.
            tokio::task::spawn_blocking(rustix::fs::sync).await?;
            contender.rounds.push(contender.running.round(pace).await?);
        }
        Ok(())
    }

    async fn finish(self, section: &mut Section) -> Measurement {
        let mut series = vec![];
        for Contender { who, running, rounds } in self.contenders {
            series.push(Series::of_rounds(who.as_str(), &rounds));
            if let Err(failure) = running.finish().await {
                section.notes.push(format!("{}: not cleaned up on {who}: {failure}", self.name));
            }
        }
        Measurement::new(self.name, "requests/s", series)
    }
}

/// Prepares a workload and does one operation.
async fn begin(
    workload: &Arc<dyn Workload>,
    target: &Target,
    concurrency: usize,
) -> Result<Running, Failure> {
    let starting = tokio::time::timeout(PREPARING, Running::start(workload, target, concurrency));
    let mut running = starting.await.map_err(|_| Failure::Unprepared(PREPARING))??;
    match running.try_one().await {
        Ok(()) => Ok(running),
        Err(failure) => {
            // The first failure is the one to tell.
            let _ = running.finish().await;
            Err(failure)
        }
    }
}
