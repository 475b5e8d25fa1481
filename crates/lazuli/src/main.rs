//! The `lazuli` program: an Azure-Storage-compatible store in one binary.
//!
//! This crate parses the command line, connects the layers and maintains the data directory. The services,
//! protocols and engines are in the other crates. Exit codes: 0 success, 1 failure, 2 invalid arguments or
//! configuration.

mod account;
mod azurite;
mod background;
mod backup;
mod check;
mod cli;
mod compact;
mod config;
mod connect;
mod control;
mod data;
mod doctor;
mod endpoints;
mod engine;
mod health;
mod logging;
mod metrics;
mod names;
mod oidc;
mod probe;
mod provision;
mod ready;
mod repair;
mod report;
mod reporter;
mod reset;
mod sas;
mod scrub;
mod sealing;
mod seed;
mod serve;
mod service_manager;
mod services;
mod smb;
mod status;
mod survey;
mod target;
mod traces;
mod transfer;
mod usage;
mod usage_counter;
mod web;

use std::process::ExitCode;

use clap::Parser;
use lazuli_protocol::ServiceKind;

use azurite::AzuriteArgs;
use cli::{Cli, Command};
use config::{Config, ConfigError};

/// Returns memory to the operating system after a peak. The C library's allocator does not; see decision
/// 0024.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The version, with the commit and its date in a release build.
pub(crate) const VERSION: &str = env!("LAZULI_VERSION");

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments or the configuration are invalid.
    #[error("{0}")]
    Usage(String),
    /// The command could not be completed.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// Returns a failure with this reason.
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
    // Neither call can fail for the process's own limits, and nothing depends on them.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

fn main() -> ExitCode {
    // The data directory contains account keys, so only the user may read the files that this program
    // creates.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    keep_keys_out_of_core_dumps();
    let variable = |name: &str| std::env::var(name).ok();
    let command = match azurite::from_program_name(std::env::args_os()) {
        Some((args, only)) => return finish(serve_as_azurite(args, only, variable)),
        None => Cli::parse().command,
    };
    let done = match command {
        Command::Azurite(args) => serve_as_azurite(*args, None, variable),
        Command::Serve(args) => {
            if args.stop_with_parent {
                stop_with_parent();
            }
            Config::load(args.layer, args.config.as_deref(), variable)
                .map_err(Failure::from)
                .and_then(|config| serve::run(config, serve::Banner::Lazuli))
        }
        Command::Account(args) => account::run(args, variable),
        Command::Sas(args) => sas::run(args, variable),
        Command::Status(args) => status::run(args, variable),
        Command::Console(args) => web::run(args, variable),
        Command::Health(args) => probe::run(args, variable),
        Command::Doctor(args) => doctor::run(args, variable),
        Command::Reset(args) => reset::run(args, variable),
        Command::Completions { shell } => {
            cli::print_completions(shell);
            Ok(())
        }
        Command::Man { dir } => cli::write_manual(&dir),
        Command::Backup(args) => backup::run(args, variable),
        Command::Export(args) => transfer::run_export(&args),
        Command::Import(args) => transfer::run_import(args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::Check(args) => check::run(&args.dir),
        Command::Repair(args) => repair::run(&args.dir, &args.into),
        Command::Compact(args) => compact::run(&args.directory.dir, args.accept_missing_rows),
        Command::Bench(args) => lazuli_bench::run(args).map_err(Failure::Failed),
    };
    finish(done)
}

/// Serves with the options of Azurite.
fn serve_as_azurite(
    args: AzuriteArgs,
    only: Option<ServiceKind>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Failure> {
    let plan = args.plan(only).map_err(Failure::Usage)?;
    for note in &plan.notes {
        eprintln!("azurite: {note}");
    }
    let config = Config::load_with_defaults(plan.flags, plan.defaults, None, variable)?;
    serve::run(config, serve::Banner::Azurite)
}

/// Prints the failure, if any, and returns the exit code.
fn finish(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lazuli: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}

/// Stops this process, in an orderly way, when the process that started it ends.
fn stop_with_parent() {
    #[cfg(target_os = "linux")]
    // Ignore the error: without this, the server has to be stopped by hand.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}
