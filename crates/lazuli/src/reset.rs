//! `lazuli reset`: deletes everything in the data directory of a stopped server.

use std::io::ErrorKind;
use std::path::Path;

use clap::Args;
use indicatif::HumanBytes;
use lazuli_account::AccountDirectory;
use lazuli_store::{Directory, Trust};

use crate::Failure;
use crate::data::{self, Data};
use crate::report::DiskUse;
use crate::target::{DataArgs, DataTarget};
use crate::usage::{self, AccountUsage};

/// The entries of a data directory, in the order in which they are deleted. The format comes last but one: as
/// long as it exists, an interrupted reset can be repeated.
const ENTRIES: [&str; 9] =
    ["control.sock", "snapshot", "sweep", "scrub", "segments", "store", "tls", "FORMAT", "LOCK"];
/// A small row cache is enough for counting.
const CACHE_BYTES: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct ResetArgs {
    /// Delete the data; without this option, only say what would be deleted
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Says what a data directory holds, and deletes it if the operator has confirmed.
pub(crate) fn run(args: ResetArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let path = DataTarget::load(args.data, variable)?.directory;
    let lock = data::lock_stopped(&path)?;
    let used = HumanBytes(DiskUse::of(&path).used);
    let verb = if args.yes { "deleting" } else { "reset would delete" };
    println!("{verb} the data in {} ({used}):", path.display());
    // The data need not be readable to be deleted.
    let (lock, held) = holdings(lock, &path)?;
    match held {
        Ok(lines) => lines.iter().for_each(|line| println!("  {line}")),
        Err(error) => println!("  accounts that cannot be read: {error}"),
    }
    if !args.yes {
        return Err(Failure::Usage("nothing was deleted: use --yes to delete it permanently".into()));
    }
    for entry in ENTRIES {
        let at = path.join(entry);
        let removed = if at.is_dir() { std::fs::remove_dir_all(&at) } else { std::fs::remove_file(&at) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::Failed(format!("{}: {error}", at.display())));
            }
            _ => {}
        }
    }
    drop(lock);
    println!("deleted");
    Ok(())
}

/// The lines of a data directory, or why its rows cannot be read.
type Holdings = Result<Vec<String>, Failure>;

/// Returns one line for each account, and the lock, which opening the data takes. Fails if another process
/// gets the lock meanwhile.
fn holdings(lock: Directory, path: &Path) -> Result<(Directory, Holdings), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
    let counted: Result<(Directory, Vec<String>), Failure> = runtime.block_on(async {
        let data = Data::open(lock, Some(CACHE_BYTES), Trust::MayBeBehind)?;
        let accounts = AccountDirectory::open(data.store.clone()).await.map_err(Failure::failed)?;
        let mut lines = vec![];
        for account in accounts.list().await.map_err(Failure::failed)? {
            let mut rows_left = usage::MAX_ROWS;
            let usage = AccountUsage::count(&**accounts.store(), &account, &mut rows_left).await;
            let usage = usage.map_or_else(|refusal| refusal.to_string(), |usage| usage.to_string());
            lines.push(format!("account {}: {usage}", account.name));
        }
        for removed in accounts.retired().await.map_err(Failure::failed)? {
            lines.push(format!("removed account {}, which could be restored", removed.account.name));
        }
        data.store.close();
        Ok((data.directory, lines))
    });
    match counted {
        Ok((directory, lines)) => Ok((directory, Ok(lines))),
        // The failure has released the lock.
        Err(error) => Ok((data::lock_stopped(path)?, Err(error))),
    }
}
