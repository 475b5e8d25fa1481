//! `lazuli bench ab OLD NEW`: what a change costs or gains on the hot paths.
//!
//! Both binaries serve in many turns of a few seconds, each pair of turns on empty data directories. Which
//! binary goes first alternates. A pair of turns gives a ratio, so noise that lasts longer than a pair
//! cancels out. The verdict is the [median of the ratios with its interval](paired).

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

/// The workloads that are measured by default.
const HOT_PATHS: [&str; 6] =
    ["put-blob", "get-blob", "insert-entity", "get-entity", "message-cycle-1k", "list-blobs-10k"];
/// Bytes of a request body.
const BODY_BYTES: usize = 4096;
/// Duration of the warm-up before a turn, as a share of the turn.
const WARM_UP_SHARE: f64 = 0.25;
/// Minimum number of pairs for a verdict.
const MIN_PAIRS: usize = 15;

/// Options of `lazuli bench ab`.
#[derive(clap::Args, Debug)]
pub(crate) struct AbArgs {
    /// The binary to compare with
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The binary to judge
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// How much worse the new binary may be; fails if a whole interval lies beyond
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    bound: f64,
    /// Pairs of turns; fewer than 15 are measured and not judged
    #[arg(long, value_name = "N", default_value_t = MIN_PAIRS as u16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,
    /// How long a turn is
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    slice: Duration,
    /// A workload to run instead of the hot paths; may be given more than once
    #[arg(long = "workload", value_name = "NAME")]
    workloads: Vec<String>,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// A directory on the disk to measure; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Also write the results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The measurements of one workload: for the old and the new binary one value per pair.
#[derive(Default)]
struct PairedValues {
    /// Operations per second.
    per_s: [Vec<f64>; 2],
    /// Microseconds of CPU time per operation.
    cpu_us: [Vec<f64>; 2],
    failures: Vec<String>,
}

/// Compares two binaries. Fails if the new binary is worse.
pub(crate) async fn run(args: AbArgs) -> Result<(), BenchError> {
    let names: Vec<String> = match args.workloads.is_empty() {
        true => HOT_PATHS.map(str::to_owned).to_vec(),
        false => args.workloads.clone(),
    };
    let mut report = Report::begin();
    let progress = Progress::new(names.len() * usize::from(args.pairs));
    let mut measured: Vec<PairedValues> = names.iter().map(|_| PairedValues::default()).collect();
    for pair in 0..usize::from(args.pairs) {
        let scratch = tempfile::Builder::new().prefix("lazuli-ab-").tempdir_in(&args.dir);
        let scratch = scratch.map_err(BenchError::at(&args.dir))?;
        let servers = [
            Server::start(&absolute(&args.old)?, scratch.path(), "old", &[]).await?,
            Server::start(&absolute(&args.new)?, scratch.path(), "new", &[]).await?,
        ];
        for (name, pairs) in names.iter().zip(&mut measured) {
            progress.step(format!("pair {}: {name}", pair + 1));
            // The order alternates, so that effects of the first turn on the second affect both binaries.
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

/// Runs one turn: prepares the workload, measures it and removes its objects.
async fn turn(
    args: &AbArgs,
    name: &str,
    server: &Server,
    side: usize,
    pairs: &mut PairedValues,
) -> Result<(), BenchError> {
    let workload = workload::named(name, Shape { body_bytes: BODY_BYTES })?;
    let failed = |failure| BenchError::Workload(workload.name(), failure);
    let cpu = || server.process.usage().map(|usage| usage.cpu).map_err(BenchError::at(Path::new("/proc")));
    let mut running =
        Running::start(&workload, &server.target, args.concurrency.into()).await.map_err(failed)?;
    running.round(Pace::full(Duration::ZERO, args.slice.mul_f64(WARM_UP_SHARE))).await?;
    // Otherwise the kernel would write earlier data to disk during this turn.
    tokio::task::spawn_blocking(rustix::fs::sync).await?;
    let before = cpu()?;
    let round = running.round(Pace::full(Duration::ZERO, args.slice)).await?;
    let spent = cpu()?.saturating_sub(before);
    pairs.per_s[side].push(round.per_s);
    pairs.cpu_us[side].push(spent.as_secs_f64() * 1e6 / round.latency.count().max(1) as f64);
    let binary = ["old", "new"][side];
    pairs.failures.extend(round.errors.iter().map(|(reason, count)| format!("{binary}: {count} × {reason}")));
    running.finish().await.map_err(failed)
}

/// Returns the report and the reasons to fail.
fn judge(args: &AbArgs, names: &[String], measured: &[PairedValues]) -> (Section, Vec<String>) {
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
                        met: (old.len() >= MIN_PAIRS).then_some(!beyond),
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

/// Makes a program's path independent of the working directory.
fn absolute(path: &Path) -> Result<PathBuf, BenchError> {
    std::path::absolute(path).map_err(BenchError::at(path))
}

/// Parses a share of the command line, such as `5%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>();
    number.ok().filter(|n| (0.0..=1000.0).contains(n)).map(|n| n / 100.0).ok_or("not a percentage".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_percentages() {
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

    fn pairs(old: f64, new: f64, count: usize) -> PairedValues {
        let values = |of: f64| (0..count).map(|i| of * (1.0 + i as f64 / 1000.0)).collect::<Vec<_>>();
        PairedValues {
            per_s: [values(old), values(new)],
            cpu_us: [values(1e6 / old), values(1e6 / new)],
            failures: vec![],
        }
    }

    #[test]
    fn slower_binary_fails_and_noisy_or_faster_binary_passes() {
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
    fn failed_requests_fail_the_comparison() {
        let mut pairs = pairs(100.0, 100.0, 15);
        pairs.failures.push("new: 3 × 503 ServerBusy".into());
        let (_, failed) = judge(&args(0.05), &["get-blob".to_owned()], &[pairs]);
        assert_eq!(failed, ["get-blob: new: 3 × 503 ServerBusy"]);
    }
}
