//! `lazuli bench ab OLD NEW`: what a change costs or gains on the hot paths.
//!
//! Both binaries serve in turns of a few seconds, many times, each time from an empty data directory; which goes first
//! alternates. A pair of turns gives a ratio, so noise that lasts longer than a pair cancels out. The verdict is the
//! [median of the ratios with its interval](paired).

mod paired;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::load::Running;
use super::process::Server;
use super::progress::Progress;
use super::report::{Goal, Measurement, Report, Section, Series};
use super::round::Pace;
use super::text::number;
use super::workload::{self, Shape};
use super::{BenchError, seconds};
use paired::{Better, Interval};

/// The hot paths.
const HOT: [&str; 6] =
    ["put-blob", "get-blob", "insert-entity", "get-entity", "message-cycle-1k", "list-blobs-10k"];
/// Bytes of a body.
const BODY_BYTES: usize = 4096;
/// The share of a turn that is done before the one that counts.
const WARM_UP: f64 = 0.25;
/// The fewest pairs that a verdict can rest on.
const FEWEST_PAIRS: usize = 15;

/// Options of `lazuli bench ab`.
#[derive(clap::Args, Debug)]
pub(crate) struct AbArgs {
    /// The binary to compare with
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The binary to judge
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// How much worse the new one may be; fails if a whole interval lies beyond
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    bound: f64,
    /// Pairs of turns; fewer than 15 are measured and not judged
    #[arg(long, value_name = "N", default_value_t = FEWEST_PAIRS as u16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,
    /// How long a turn is
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    slice: Duration,
    /// A workload, instead of the hot paths; may be given more than once
    #[arg(long = "workload", value_name = "NAME")]
    workloads: Vec<String>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// A directory on the disk to measure; what is made there is removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Write the results to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured of one workload, pair by pair.
#[derive(Default)]
struct Pairs {
    /// Operations a second: of the old one, of the new one.
    per_s: [Vec<f64>; 2],
    /// Microseconds of CPU for one operation.
    cpu_us: [Vec<f64>; 2],
    failures: Vec<String>,
}

/// Compares, and fails if the new one is worse.
pub(crate) async fn run(args: AbArgs) -> Result<(), BenchError> {
    let names: Vec<String> = match args.workloads.is_empty() {
        true => HOT.map(str::to_owned).to_vec(),
        false => args.workloads.clone(),
    };
    let mut report = Report::begin();
    let progress = Progress::new(names.len() * usize::from(args.pairs));
    let mut measured: Vec<Pairs> = names.iter().map(|_| Pairs::default()).collect();
    for pair in 0..usize::from(args.pairs) {
        let scratch = tempfile::Builder::new().prefix("lazuli-ab-").tempdir_in(&args.dir);
        let scratch = scratch.map_err(BenchError::at(&args.dir))?;
        let servers = [
            Server::start(&absolute(&args.old)?, scratch.path(), "old", &[]).await?,
            Server::start(&absolute(&args.new)?, scratch.path(), "new", &[]).await?,
        ];
        for (name, pairs) in names.iter().zip(&mut measured) {
            progress.step(format!("pair {}: {name}", pair + 1));
            // Which goes first alternates, so that what a first turn leaves behind meets both.
            let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                turn(&args, name, &servers[side], side, pairs).await?;
            }
        }
        for server in servers {
            server.process.stop().await;
        }
    }
    drop(progress);
    let (section, failed) = judge(&args, &names, &measured);
    report.sections.push(section);
    print!("{report}");
    if let Some(path) = &args.json {
        report.write_json(path)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(BenchError::Missed(failed.join("; "))) }
}

/// One turn: prepares the workload, runs it and removes what it made.
async fn turn(
    args: &AbArgs,
    name: &str,
    server: &Server,
    side: usize,
    pairs: &mut Pairs,
) -> Result<(), BenchError> {
    let workload = workload::named(name, Shape { body_bytes: BODY_BYTES })?;
    let failed = |failure| BenchError::Workload(workload.name(), failure);
    let cpu = || server.process.usage().map(|usage| usage.cpu).map_err(BenchError::at(Path::new("/proc")));
    let mut running =
        Running::start(&workload, &server.target, args.concurrency.into()).await.map_err(failed)?;
    running.round(Pace::full(Duration::ZERO, args.slice.mul_f64(WARM_UP))).await?;
    // What was written before is not to be written to disk in this turn.
    tokio::task::spawn_blocking(rustix::fs::sync).await?;
    let before = cpu()?;
    let round = running.round(Pace::full(Duration::ZERO, args.slice)).await?;
    let spent = cpu()?.saturating_sub(before);
    pairs.per_s[side].push(round.per_s);
    pairs.cpu_us[side].push(spent.as_secs_f64() * 1e6 / round.latency.count().max(1) as f64);
    let who = ["old", "new"][side];
    pairs.failures.extend(round.errors.iter().map(|(reason, count)| format!("{who}: {count} × {reason}")));
    running.finish().await.map_err(failed)
}

/// The report, and what makes it fail.
fn judge(args: &AbArgs, names: &[String], measured: &[Pairs]) -> (Section, Vec<String>) {
    let mut section = Section::new("ab");
    section.notes.push(format!("old: {}", args.old.display()));
    section.notes.push(format!("new: {}", args.new.display()));
    section.notes.push(format!(
        "{} pairs of turns of {} s, {} connections; intervals hold the median of new ÷ old with at least 95%",
        args.pairs,
        args.slice.as_secs_f64(),
        args.concurrency
    ));
    let mut failed = vec![];
    for (name, pairs) in names.iter().zip(measured) {
        for (what, unit, values, better) in [
            ("throughput", "requests/s", &pairs.per_s, Better::More),
            ("CPU", "µs/request", &pairs.cpu_us, Better::Less),
        ] {
            let [old, new] = values;
            let series = vec![Series::of_values("new", new.clone()), Series::of_values("old", old.clone())];
            section.measurements.push(Measurement::new(format!("{name}: {what}"), unit, series));
            let goal = match Interval::of_pairs(old, new) {
                Some(interval) => {
                    let beyond = better.is_beyond(&interval, args.bound);
                    Goal {
                        wanted: format!("{name}: {what} at most {}% worse", number(args.bound * 100.0)),
                        found: interval.to_string(),
                        met: (old.len() >= FEWEST_PAIRS).then_some(!beyond),
                    }
                }
                None => Goal::judged(format!("{name}: {what}"), "not measured", false),
            };
            if goal.met == Some(false) {
                failed.push(format!("{}: {}", goal.wanted, goal.found));
            }
            section.goals.push(goal);
        }
        failed.extend(pairs.failures.iter().map(|failure| format!("{name}: {failure}")));
    }
    (section, failed)
}

/// A program may be named from where we are; the server runs there, too.
fn absolute(path: &Path) -> Result<PathBuf, BenchError> {
    std::path::absolute(path).map_err(BenchError::at(path))
}

/// A share on the command line, as `5%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number.ok().filter(|n| (0.0..=1000.0).contains(n)).map(|n| n / 100.0).ok_or("not a percentage".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_percentage() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("7.5"), Ok(0.075));
        assert!(percent("much").is_err() && percent("-1%").is_err());
    }

    fn args(bound: f64) -> AbArgs {
        use clap::Parser;
        #[derive(Parser)]
        struct Program {
            #[command(flatten)]
            ab: AbArgs,
        }
        Program::parse_from(["x", "old", "new", "--bound", &format!("{}%", bound * 100.0)]).ab
    }

    fn pairs(old: f64, new: f64, count: usize) -> Pairs {
        let values = |of: f64| (0..count).map(|i| of * (1.0 + i as f64 / 1000.0)).collect::<Vec<_>>();
        Pairs {
            per_s: [values(old), values(new)],
            cpu_us: [values(1e6 / old), values(1e6 / new)],
            failures: vec![],
        }
    }

    #[test]
    fn a_slower_binary_fails_a_noisy_or_a_faster_one_does_not() {
        let names = ["put-blob".to_owned()];
        for (old, new, failures) in [(100.0, 99.0, 0), (100.0, 90.0, 2), (100.0, 150.0, 0)] {
            let (section, failed) = judge(&args(0.05), &names, &[pairs(old, new, 15)]);
            assert_eq!(failed.len(), failures, "{old} {new}: {failed:?}");
            assert_eq!(section.goals.len(), 2);
        }
        let (section, failed) = judge(&args(0.05), &names, &[pairs(100.0, 50.0, 3)]);
        assert!(failed.is_empty(), "too few pairs to judge");
        assert!(section.goals.iter().all(|goal| goal.met.is_none()));
    }

    #[test]
    fn requests_that_fail_make_it_fail() {
        let mut pairs = pairs(100.0, 100.0, 15);
        pairs.failures.push("new: 3 × 503 ServerBusy".into());
        let (_, failed) = judge(&args(0.05), &["get-blob".to_owned()], &[pairs]);
        assert_eq!(failed, ["get-blob: new: 3 × 503 ServerBusy"]);
    }
}
