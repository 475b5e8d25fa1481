//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::account::AccountArgs;
use crate::backup::{BackupArgs, RestoreArgs};
use crate::bench::BenchArgs;
use crate::config::Layer;
use crate::transfer::{ExportArgs, ImportArgs};

/// An Azure-Storage-compatible store: Blob, Queue, Table and File in one binary.
#[derive(Parser)]
#[command(name = "lazuli", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a data directory
    ///
    /// Without any option: data in ./lazuli-data, the development account, ports 10000 to 10003 and 10080 on 127.0.0.1.
    ///
    /// Every option is also read from a variable, as --blob-port from LAZULI_BLOB_PORT, and from the TOML file that --config
    /// or LAZULI_CONFIG names, as blob-port. A flag counts before a variable, a variable before the file.
    /// AZURITE_ACCOUNTS is understood too.
    Serve(ServeArgs),
    /// Add, list and change accounts, of a running server or a stopped one
    Account(AccountArgs),
    /// Back up a data directory, also while a server serves it
    Backup(BackupArgs),
    /// Restore a backup into a new data directory, or a part of it into a running server, and verify it
    Restore(RestoreArgs),
    /// Write all rows and content of a data directory as one stream
    Export(ExportArgs),
    /// Make a new data directory of other data
    Import(ImportArgs),
    /// Verify a data directory that nobody serves; exit with 1 if it is damaged
    Check(DirectoryArgs),
    /// Copy everything that can be read in a damaged data directory to a new one, and list what was lost
    Repair(RepairArgs),
    /// Give back space in a data directory that nobody serves
    Compact(CompactArgs),
    /// Measure Lazuli beside what it has to hold up against
    Bench(BenchArgs),
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
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
    /// Free the content of rows that were lost, too
    ///
    /// Sweeps refuse to free content when rows are missing that no commit removed. Use this only if the rows cannot be
    /// brought back: what they referred to is then gone for good.
    #[arg(long)]
    pub(crate) accept_missing_rows: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
