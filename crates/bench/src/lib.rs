//! `lazuli bench`: a load generator that compares Lazuli with other servers and with the raw disk.
//!
//! - [`store`] and [`extents`] measure the layers that write to disk, without a server, next to the raw disk;
//! - [`load`] sends requests to any server that speaks the protocol;
//! - [`compare`] measures all of this in one run, starts the servers itself, and writes a page with plots;
//! - [`ab`] measures what a change costs: two binaries in turns;
//! - [`soak`] finds what grows under constant load, [`steady`] the longest latency at half load;
//! - [`walks`] measures what walks over all rows cost while rows are overwritten.
//!
//! Contenders run in turns on the same machine, so that noise affects all alike. Failed operations are
//! counted by reason and reported. They never count as throughput.

mod ab;
mod compare;
mod extents;
mod histogram;
mod load;
mod process;
mod progress;
mod raw;
mod report;
mod round;
mod rows;
mod soak;
mod steady;
mod store;
mod text;
mod walks;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use lazuli_client::{account, client};
use progress::Progress;
use report::{Report, Section};

/// Benchmarks Lazuli, alone or against other servers and the raw disk.
#[derive(clap::Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Commits, reads and opening of the store, compared with fdatasync on the same disk
    Store(store::StoreArgs),
    /// Bytes written and read, compared with dd on the same disk
    Extents(extents::ExtentsArgs),
    /// Requests to a server that speaks the protocol
    Load(load::LoadArgs),
    /// Everything, compared with the servers that are available here; writes a page with plots
    Compare(compare::CompareArgs),
    /// Two binaries in turns on the hot paths; fails if the new one is worse
    Ab(ab::AbArgs),
    /// All services at a constant rate for minutes; fails if memory or disk grows or a byte is wrong
    Soak(soak::SoakArgs),
    /// The longest latency of a request at half the maximum rate, compared with a raw writer
    Steady(steady::SteadyArgs),
    /// Memory and disk that walks over all rows cost while rows are overwritten; fails if they cost too much
    Walks(walks::WalksArgs),
    /// Measures one run; `walks` starts it as a new process
    #[command(hide = true)]
    WalksChild(walks::WalksChildArgs),
    /// Opens and reads rows; `store` starts it as a new process
    #[command(hide = true)]
    Reopen(store::reopen::ReopenArgs),
}

/// Options of the benchmarks that need no server.
#[derive(clap::Args, Debug)]
struct LocalArgs {
    /// A directory on the disk to measure; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Rounds; contenders take turns, and medians are shown [default: 5, quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// How long each contender works in a round [default: 2, quick: 0.5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    slice: Option<Duration>,
    /// Less of everything: for a first look, not for numbers to quote
    #[arg(long)]
    quick: bool,
    /// Also write the results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl LocalArgs {
    fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 2 } else { 5 }, usize::from)
    }

    fn slice(&self) -> Duration {
        self.slice.unwrap_or(Duration::from_millis(if self.quick { 500 } else { 2000 }))
    }
}

/// Why a benchmark failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A file or directory could not be used.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] lazuli_store::OpenError),
    /// A commit failed.
    #[error("commit: {0}")]
    Commit(#[from] lazuli_store::CommitError),
    /// The extents could not be opened.
    #[error("extents: {0}")]
    OpenExtents(#[from] lazuli_extents::OpenError),
    /// Extents could not be written or read.
    #[error("extents: {0}")]
    Extents(#[from] lazuli_extents::Error),
    /// The connection string or endpoint is invalid.
    #[error(transparent)]
    Account(#[from] account::AccountError),
    /// No workload has this name.
    #[error("no workload is called {0}; `lazuli bench load --list` names them")]
    UnknownWorkload(String),
    /// One endpoint was given for several services.
    #[error("--endpoint is for workloads of one service; use --connection-string")]
    SeveralServices,
    /// A workload could not be prepared or removed.
    #[error("{0}: {1}")]
    Workload(&'static str, client::OperationFailure),
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// The disk has too little free space.
    #[error("{}: has {} GiB free, and {} are needed", path.display(), free >> 30, needed >> 30)]
    Space { path: PathBuf, free: u64, needed: u64 },
    /// Another program failed.
    #[error("{0}: {1}")]
    Program(&'static str, String),
    /// Results could not be encoded or decoded.
    #[error("results: {0}")]
    Json(#[from] serde_json::Error),
    /// The runtime could not start.
    #[error("threads: {0}")]
    Runtime(std::io::Error),
    /// A task of the benchmark panicked.
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The command measured that goals are missed.
    #[error("missed: {0}")]
    Missed(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Returns a function that adds the path to an I/O error.
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |error| Self::Io { path: path.into(), error }
    }
}

/// Runs the benchmark that the command line names. The error is the message for the user.
pub fn run(args: BenchArgs) -> Result<(), String> {
    measure(args).map_err(|error| error.to_string())
}

fn measure(args: BenchArgs) -> Result<(), BenchError> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // A late load generator would count as a slow server.
    let runtime = runtime.enable_all().on_thread_start(lazuli_store::scheduling::worker).build();
    let runtime = runtime.map_err(BenchError::Runtime)?;
    runtime.block_on(async {
        // Dropping the command's future removes its scratch directories and kills its processes.
        tokio::select! {
            done = Box::pin(dispatch(args.command)) => done,
            _ = tokio::signal::ctrl_c() => Err(BenchError::Interrupted),
        }
    })
}

async fn dispatch(command: Command) -> Result<(), BenchError> {
    match command {
        Command::Store(args) => {
            let (report, json) = (Report::begin(), args.local.json.clone());
            let plan = store::StorePlan::new(args);
            let progress = Progress::new(plan.steps());
            let section = store::measure(&plan, &progress, store::reopen::in_new_process).await?;
            drop(progress);
            show(report, section, json.as_deref())
        }
        Command::Extents(args) => {
            let (report, json) = (Report::begin(), args.local.json.clone());
            let plan = extents::ExtentsPlan::new(args);
            let progress = Progress::new(plan.steps());
            let section = extents::measure(&plan, &progress).await?;
            drop(progress);
            show(report, section, json.as_deref())
        }
        Command::Load(args) => {
            let report = Report::begin();
            match load::measure(&args).await? {
                Some(section) => show(report, section, args.json.as_deref()),
                None => Ok(()),
            }
        }
        Command::Compare(args) => compare::run(args).await,
        Command::Ab(args) => ab::run(args).await,
        Command::Soak(args) => soak::run(args).await,
        Command::Steady(args) => steady::run(args).await,
        Command::Walks(args) => walks::run(args).await,
        Command::WalksChild(args) => walks::child(args).await,
        Command::Reopen(args) => store::reopen::child(args).await,
    }
}

fn show(mut report: Report, section: Section, json: Option<&Path>) -> Result<(), BenchError> {
    report.sections.push(section);
    print!("{report}");
    json.map_or(Ok(()), |path| report.write_json(path))
}

/// Parses a number of seconds of the command line: at least a millisecond, at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0.001 and 86400".into())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn command_lines_are_consistent_and_invalid_values_are_refused() {
        use clap::CommandFactory;
        Program::command().debug_assert();
        for (line, accepted) in [
            ("store --rows 10000000 --quick", true),
            ("store --rows 99", false),
            ("store --committers 1,16", true),
            ("extents --mib 0", false),
            ("load --list", true),
            ("load", false),
            ("load account-info --rate 100 --concurrency 4 --warm-up 0.5", true),
            ("load account-info --concurrency 0", false),
            ("load account-info --duration 0", false),
            ("compare --quick", true),
            ("", false),
        ] {
            let words = std::iter::once("bench").chain(line.split_whitespace());
            assert_eq!(Program::try_parse_from(words).is_ok(), accepted, "{line}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        for (text, expected) in [
            ("0.5", Some(Duration::from_millis(500))),
            ("10", Some(Duration::from_secs(10))),
            ("0", None),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("1e9", None),
            ("ten", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
    }
}
