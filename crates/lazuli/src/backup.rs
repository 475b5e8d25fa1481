//! `lazuli backup` and `lazuli restore`: online, consistent, incremental backups of a data directory.
//!
//! [`snapshot`] captures the directory of a running server by links; [`source`] is the directory as a backup
//! reads it, captured or stopped; [`repository`] keeps backups as chunks, each stored once; [`copy`] writes
//! one to the other; [`restore`] brings a backup back. See decision 0025.

mod copy;
pub(crate) mod fresh;
mod lazy;
mod manifest;
mod only;
mod repository;
mod restore;
pub(crate) mod snapshot;
pub(crate) mod source;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::HumanBytes;

use crate::Failure;
use crate::config::Config;
use crate::sealing::{RecipientArgs, Recipients};
use repository::{Access, Repository};
use source::BackupSource;

pub(crate) use restore::{RestoreArgs, run as run_restore};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// The data directory, as for lazuli serve [default: ./lazuli-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The configuration of lazuli serve, which says where the data directory is
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder that keeps backups; made if it is not there
    #[arg(long, value_name = "DIR", required = true)]
    to: Option<PathBuf>,
    /// Read everything, but write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    recipients: RecipientArgs,
}

#[derive(Subcommand)]
enum Action {
    /// List the backups in a folder
    List {
        /// The folder
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Remove old backups, and the chunks that only they need
    Prune {
        /// The folder
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// How many of the newest backups to keep
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// Say what would be removed, but remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// Makes a backup, lists backups or prunes them.
pub(crate) fn run(args: BackupArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    match args.action {
        None => {
            let data = Config::directory(args.data, args.config.as_deref(), variable)?;
            let to = args.to.ok_or_else(|| Failure::Usage("--to is missing".into()))?;
            back_up(&data, &to, args.recipients.load()?, args.dry_run)
        }
        Some(Action::List { to }) => list(&to),
        Some(Action::Prune { to, keep, dry_run }) => {
            let repository = Repository::open(&to, Access::Change)?;
            let pruned = repository.prune(keep as usize, dry_run)?;
            for id in &pruned.backups {
                println!("{} {id}", if dry_run { "would remove" } else { "removed" });
            }
            println!("{} chunks, {}", pruned.chunks, HumanBytes(pruned.bytes));
            Ok(())
        }
    }
}

fn back_up(
    data: &std::path::Path,
    to: &std::path::Path,
    recipients: Option<Recipients>,
    dry_run: bool,
) -> Result<(), Failure> {
    let repository = if dry_run && !to.exists() { None } else { Some(Repository::create(to, recipients)?) };
    let source = BackupSource::open(data)?;
    let copied = copy::copy(&source, repository.as_ref(), dry_run)?;
    // A backup counts only if nothing was freed while it was made.
    source.finish()?;
    let what = match (&repository, dry_run) {
        (Some(repository), false) => {
            repository.write_manifest(&copied.manifest)?;
            format!("backup {}", copied.manifest.id)
        }
        _ => "a backup".to_owned(),
    };
    println!(
        "{what}: {} in {} files, {} {}",
        HumanBytes(copied.manifest.bytes()),
        copied.manifest.files.len(),
        HumanBytes(copied.written),
        if dry_run { "to write" } else { "written" },
    );
    Ok(())
}

fn list(to: &std::path::Path) -> Result<(), Failure> {
    let repository = Repository::open(to, Access::Read)?;
    for id in repository.list()? {
        let manifest = repository.read_manifest(&id)?;
        println!("{id}  {}  by lazuli {}", HumanBytes(manifest.bytes()), manifest.lazuli);
    }
    Ok(())
}
