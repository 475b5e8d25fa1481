//! The command line.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use lazuli_bench::BenchArgs;

use crate::account::AccountArgs;
use crate::azurite::AzuriteArgs;
use crate::backup::{BackupArgs, RestoreArgs};
use crate::config::Layer;
use crate::doctor::DoctorArgs;
use crate::probe::HealthArgs;
use crate::reset::ResetArgs;
use crate::sas::SasArgs;
use crate::status::StatusArgs;
use crate::transfer::{ExportArgs, ImportArgs};
use crate::web::ConsoleArgs;
use crate::{Failure, VERSION};

/// An Azure-Storage-compatible store: Blob, Queue, Table and File in one binary.
#[derive(Parser)]
#[command(name = "lazuli", version = VERSION, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a data directory
    ///
    /// Defaults: data in ./lazuli-data, the development account, ports 10000 to 10003 and 10080 on 127.0.0.1.
    ///
    /// Every option can also be set by an environment variable (--blob-port by LAZULI_BLOB_PORT) and in the
    /// TOML file that --config or LAZULI_CONFIG names (as blob-port). Flags override variables, and variables
    /// override the file. AZURITE_ACCOUNTS is supported as well.
    Serve(Box<ServeArgs>),
    /// Serve with Azurite's options, ports and output; a link to the binary called azurite does the same
    Azurite(Box<AzuriteArgs>),
    /// Add, list and change accounts of a running or stopped server
    Account(AccountArgs),
    /// Create a shared access signature, for AzCopy and other clients that use no key
    Sas(SasArgs),
    /// Show what a running server serves, holds and lacks
    Status(StatusArgs),
    /// Print a link that signs you in to the console of a running server, once
    Console(ConsoleArgs),
    /// Ask a server whether it is ready; exit with 1 if it is not
    Health(HealthArgs),
    /// Check the machine and the configuration, and say what to do
    Doctor(DoctorArgs),
    /// Delete everything in the data directory of a stopped server
    Reset(ResetArgs),
    /// Back up a data directory, even while a server is running on it
    Backup(BackupArgs),
    /// Restore and verify a backup in a new data directory, or restore a part of it into a running server
    Restore(RestoreArgs),
    /// Write all rows and content of a data directory as one stream
    Export(ExportArgs),
    /// Import exported data, a folder of Azurite, or an account of a running store
    Import(ImportArgs),
    /// Verify the data directory of a stopped server; exit with 1 if it is damaged
    Check(DirectoryArgs),
    /// Copy all readable data of a damaged data directory to a new one, and list the losses
    Repair(RepairArgs),
    /// Free disk space in the data directory of a stopped server
    Compact(CompactArgs),
    /// Print the completions of a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a directory
    Man {
        /// The directory, which must exist
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Benchmark Lazuli against Azurite, nginx and the raw disk
    Bench(BenchArgs),
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Stop when the process that started this one ends, for commands that need a server for a while
    #[arg(long, hide = true)]
    pub(crate) stop_with_parent: bool,
    #[command(flatten)]
    pub(crate) layer: Layer,
}

#[derive(Args)]
pub(crate) struct RepairArgs {
    /// The damaged data directory; it is not changed
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The new data directory; it must not exist yet
    #[arg(long, value_name = "DIR2")]
    pub(crate) into: PathBuf,
}

#[derive(Args)]
pub(crate) struct DirectoryArgs {
    /// The data directory
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    /// Also free the content of lost rows
    ///
    /// Sweeps refuse to free content if rows are missing that no commit removed. Use this option only if the
    /// rows cannot be recovered: their content is deleted permanently.
    #[arg(long)]
    pub(crate) accept_missing_rows: bool,
}

/// Prints the completions of a shell.
pub(crate) fn print_completions(shell: clap_complete::Shell) {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "lazuli", &mut text);
    // A reader that has seen enough closes the pipe.
    let _ = std::io::stdout().write_all(&text);
}

/// Writes a manual page for the program and one for each command.
pub(crate) fn write_manual(dir: &Path) -> Result<(), Failure> {
    let written = clap_mangen::generate_to(Cli::command(), dir);
    written.map_err(|error| Failure::Failed(format!("{}: {error}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
