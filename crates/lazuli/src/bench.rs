//! `lazuli bench`: a load generator that measures Lazuli beside what it has to hold up against.
//!
//! - [`store`] and [`extents`] measure the layers that write to disk, without a server, beside what the disk gives;
//! - [`load`] sends requests to any server that speaks the protocol, ours or another;
//! - [`compare`] does all of it in one run, starts the servers itself, and draws a page;
//! - [`ab`] tells what a change costs: two binaries in turns;
//! - [`soak`] tells what grows although the work stays the same, [`steady`] how long requests wait at worst.
//!
//! Whatever is compared runs in turns on the same machine, so that noise hits all alike. What fails is counted by its
//! reason and shown, and never counts as throughput.

mod ab;
mod account;
mod client;
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

use progress::Progress;
use report::{Report, Section};

/// Measures Lazuli beside what it has to hold up against.
#[derive(clap::Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Commits, reads and opening of the store, beside fdatasync on the same disk
    Store(store::StoreArgs),
    /// Bytes written and read, beside dd on the same disk
    Extents(extents::ExtentsArgs),
    /// Requests to a server that speaks the protocol
    Load(load::LoadArgs),
    /// Everything, beside the servers that can be had here; writes a page with plots
    Compare(compare::CompareArgs),
    /// Two binaries in turns on the hot paths; fails if the new one is worse
    Ab(ab::AbArgs),
    /// All services at a constant rate for minutes; fails if memory or disk grows or a byte is wrong
    Soak(soak::SoakArgs),
    /// The longest that a request waits at half the rate, beside a raw writer
    Steady(steady::SteadyArgs),
    /// Memory and disk that walks over all rows cost while rows are overwritten; fails if they cost too much
    Walks(walks::WalksArgs),
    /// What `walks` starts to measure one run
    #[command(hide = true)]
    WalksChild(walks::WalksChildArgs),
    /// What `store` starts to look at its rows
    #[command(hide = true)]
    Reopen(store::reopen::ReopenArgs),
}

/// Options of what needs no server.
#[derive(clap::Args, Debug)]
struct Local {
    /// A directory on the disk to measure; what is made there is removed
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
    /// Write the results to a file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Local {
    fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 2 } else { 5 }, usize::from)
    }

    fn slice(&self) -> Duration {
        self.slice.unwrap_or(Duration::from_millis(if self.quick { 500 } else { 2000 }))
    }
}

/// Why nothing, or not everything, was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// A file or directory.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// The store.
    #[error(transparent)]
    Open(#[from] lazuli_store::OpenError),
    /// The store.
    #[error("commit: {0}")]
    Commit(#[from] lazuli_store::CommitError),
    /// The segments.
    #[error("extents: {0}")]
    OpenExtents(#[from] lazuli_extents::OpenError),
    /// The segments.
    #[error("extents: {0}")]
    Extents(#[from] lazuli_extents::Error),
    /// The account to ask.
    #[error(transparent)]
    Account(#[from] account::AccountError),
    /// A name that nothing has.
    #[error("no workload is called {0}; `lazuli bench load --list` names them")]
    UnknownWorkload(String),
    /// One endpoint for several services.
    #[error("--endpoint is for workloads of one service; use --connection-string")]
    SeveralServices,
    /// A workload could not begin.
    #[error("{0}: {1}")]
    Workload(&'static str, client::Failure),
    /// There is no TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// It would not end well.
    #[error("{}: has {} GiB free, and {} are needed", path.display(), free >> 30, needed >> 30)]
    Space { path: PathBuf, free: u64, needed: u64 },
    /// Another program.
    #[error("{0}: {1}")]
    Program(&'static str, String),
    /// A result.
    #[error("results: {0}")]
    Json(#[from] serde_json::Error),
    /// There are no threads.
    #[error("threads: {0}")]
    Runtime(std::io::Error),
    /// A task of ours.
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A goal that the command is there to judge.
    #[error("missed: {0}")]
    Missed(String),
    /// Somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// What went wrong with a path.
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |error| Self::Io { path: path.into(), error }
    }
}

/// Runs what the command line asks for.
pub(crate) fn run(args: BenchArgs) -> Result<(), BenchError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(BenchError::Runtime)?;
    runtime.block_on(async {
        // What is dropped here removes its scratch directories and ends the processes it started.
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
            let plan = store::Plan::new(args);
            let progress = Progress::new(plan.steps());
            let section = store::measure(&plan, &progress, store::reopen::in_new_process).await?;
            drop(progress);
            show(report, section, json.as_deref())
        }
        Command::Extents(args) => {
            let (report, json) = (Report::begin(), args.local.json.clone());
            let plan = extents::Plan::new(args);
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

/// A number of seconds on the command line: more than none, and not more than a day.
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
    fn the_command_line_is_consistent_and_says_what_it_refuses() {
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
