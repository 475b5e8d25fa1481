//! The `lazuli` program: an Azure-Storage-compatible store in one binary.
//!
//! It parses the command line, wires the layers together and looks after what lies on disk. What is stored and how it
//! is spoken to is in the other crates. Exit codes: 0 done, 1 failed, 2 not understood.

mod account;
mod background;
mod backup;
mod bench;
mod check;
mod cli;
mod compact;
mod config;
mod control;
mod data;
mod health;
mod logging;
mod metrics;
mod names;
mod oidc;
mod provision;
mod ready;
mod records;
mod repair;
mod scrub;
mod sealing;
mod serve;
mod services;
mod smb;
mod survey;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use config::{Config, ConfigError};

/// Gives memory back after a peak, which the C library's allocator does not: decision 0024.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It was not understood.
    #[error("{0}")]
    Usage(String),
    /// It was understood, but did not work.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// Something did not work.
    pub(crate) fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(reason.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Keeps keys in memory from core dumps and from other processes of the same user.
fn keep_keys_out_of_core_dumps() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    // Neither can fail for a process's own limits, and nothing depends on them.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

fn main() -> ExitCode {
    // Accounts' keys lie in the data directory: whatever this program makes is for its user only.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    keep_keys_out_of_core_dumps();
    let variable = |name: &str| std::env::var(name).ok();
    let done = match Cli::parse().command {
        Command::Serve(args) => Config::load(args.layer, args.config.as_deref(), variable)
            .map_err(Failure::from)
            .and_then(serve::run),
        Command::Account(args) => account::run(args, variable),
        Command::Backup(args) => backup::run(args, variable),
        Command::Export(args) => transfer::run_export(&args),
        Command::Import(args) => transfer::run_import(args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::Check(args) => check::run(&args.dir),
        Command::Repair(args) => repair::run(&args.dir, &args.into),
        Command::Compact(args) => compact::run(&args.directory.dir, args.accept_missing_rows),
        Command::Bench(args) => bench::run(args).map_err(Failure::failed),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lazuli: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}
