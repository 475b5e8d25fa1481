//! `lazuli backup` and `lazuli restore`: online, consistent, incremental backups of a data directory.
//!
//! [`snapshot`] captures the directory of a running server by hard links. [`source`] is the captured or
//! stopped directory that a backup reads. [`repository`] stores backups as deduplicated chunks. [`copy`]
//! writes a source to a repository. [`restore`] restores a backup. See decision 0025.

mod copy;
mod lazy;
mod manifest;
pub(crate) mod new_directory;
mod partial_restore;
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
    /// The configuration file of lazuli serve, to find the data directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of backups; created if it does not exist
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
        /// The number of newest backups to keep
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// Report what would be removed, but remove nothing
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
    // The backup is valid only if the snapshot was kept to its end.
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
