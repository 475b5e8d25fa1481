//! The control socket: a Unix socket in the data directory through which `lazuli account` and `lazuli backup`
//! reach a running server.
//!
//! A [`Command`] is one line of JSON, and so is the [`Reply`]. Only the owner may open the socket, so there
//! is no further authentication. Line lengths, times and the number of clients are limited.

mod client;
mod intake;
mod server;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use lazuli_account::{
    AccountDirectory, AccountError, KeySlot, RETENTION, RetiredAccount, Setting, development_key,
};
use lazuli_protocol::account::Origin;
use lazuli_protocol::{Account, Key, Refusal, ServiceKind, date};
use serde::{Deserialize, Serialize};

use crate::backup::snapshot::Segment;
use crate::report::Status;
use crate::usage::{self, AccountUsage};
use crate::usage_counter::UsageCounter;

pub(crate) use client::{HeldSnapshot, hold_snapshot, request_status, restore, send_command};
pub(crate) use intake::Intakes;
pub(crate) use server::Control;

/// For how many days a removed account can be restored.
const RETENTION_DAYS: u64 = RETENTION.seconds_rounded_up() / (24 * 60 * 60);
/// The socket's name in the data directory.
const SOCKET: &str = "control.sock";
/// Maximum length of a socket path, without the terminating zero byte.
const MAX_SOCKET_PATH: usize = 107;
/// Maximum length of a line that the server reads, in bytes.
const MAX_COMMAND: u64 = 1 << 20;
/// Maximum length of a line that a client reads, in bytes: enough for tens of thousands of accounts.
const MAX_REPLY: u64 = 64 << 20;

/// A command to a running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Adds an account.
    Add { name: String, keys: Vec<Key> },
    /// Lists all accounts.
    List,
    /// Changes an account.
    Set { name: String, changes: Vec<Setting> },
    /// Replaces one of an account's keys.
    RotateKey { name: String, slot: KeySlot, key: Key },
    /// Removes an account. Without `delete_data`, only an account that holds nothing.
    Remove {
        name: String,
        delete_data: bool,
        /// Give up the time in which the account can be restored.
        immediately: bool,
    },
    /// Restores an account that was removed.
    RestoreRemoved {
        name: String,
        /// When the account was removed, in ISO 8601. Chooses between accounts of one name.
        removed: Option<String>,
    },
    /// Lists removed accounts that can be restored.
    ListRemoved,
    /// Asks for the state of the server, with or without what the accounts hold.
    Status { counts: bool },
    /// Asks for a link to the console.
    ConsoleLink,
    /// Takes a snapshot of the data directory. The server keeps the snapshot until the connection ends, and
    /// answers [`HELD`] to each further line.
    Snapshot,
    /// Restores one object of a backup. The server answers when it is ready for the stream, and again when it
    /// has read the stream.
    Restore(Target),
    /// Restores a whole account under a free name. Without `keys`, the account keeps the keys of the backup.
    RestoreAccount { name: String, keys: Vec<Key> },
}

/// The target of a restored object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) service: ServiceKind,
    pub(crate) account: String,
    pub(crate) name: String,
}

/// Size of the restored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestoredCounts {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Result of a restore. The error says why nothing was restored.
pub(crate) type RestoreReply = Result<RestoredCounts, String>;

/// The line by which the server confirms that it still keeps a snapshot.
const HELD: &[u8] = b"held\n";

/// The segments of a snapshot, or why no snapshot was taken.
pub(crate) type SnapshotReply = Result<Vec<Segment>, String>;

/// Result of a command, or why the command failed.
pub(crate) type Reply = Result<Done, String>;

/// The state of the server, or why it is not known.
pub(crate) type StatusReply = Result<Status, String>;

/// Result of a command that was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// The accounts after the command, as far as it concerned them.
    pub(crate) accounts: Vec<Account>,
    /// Removed accounts that can be restored.
    pub(crate) removed: Vec<RemovedAccount>,
    /// A message for the operator.
    pub(crate) note: Option<String>,
}

/// A removed account that can be restored. Times are in ISO 8601.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemovedAccount {
    pub(crate) name: String,
    pub(crate) removed: String,
    pub(crate) kept_until: String,
}

/// Whether accounts may have the well-known development key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DevelopmentKey {
    /// No account may have it: other machines can reach this server.
    Refused,
    /// Accounts may have the development key.
    Accepted,
}

/// Carries out a command.
///
/// A running server has a counter of what accounts hold. On a stopped server the rows are counted.
pub(crate) async fn execute(
    accounts: &AccountDirectory,
    counter: Option<&UsageCounter>,
    rule: DevelopmentKey,
    command: Command,
) -> Reply {
    let keys: &[Key] = match &command {
        Command::Add { keys, .. } => keys,
        Command::RotateKey { key, .. } => std::slice::from_ref(key),
        Command::List
        | Command::ListRemoved
        | Command::Set { .. }
        | Command::Remove { .. }
        | Command::RestoreRemoved { .. }
        | Command::Status { .. }
        | Command::ConsoleLink
        | Command::Snapshot
        | Command::Restore(_)
        | Command::RestoreAccount { .. } => &[],
    };
    if rule == DevelopmentKey::Refused && keys.contains(&development_key()) {
        return Err(
            "the well-known development key is not allowed on a server that other machines can reach".into(),
        );
    }
    match command {
        Command::Remove { name, delete_data, immediately } => {
            remove_account(accounts, counter, &name, delete_data, immediately).await
        }
        Command::RestoreRemoved { name, removed } => {
            restore_removed(accounts, counter, rule, &name, removed.as_deref()).await
        }
        command => changed(accounts, command).await.map_err(|error| error.to_string()),
    }
}

async fn changed(accounts: &AccountDirectory, command: Command) -> Result<Done, AccountError> {
    let account = match command {
        Command::Add { name, keys } => {
            let account = Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 };
            accounts.add(account).await?
        }
        Command::List => {
            let listed = accounts.list().await?.iter().map(|account| Account::clone(account)).collect();
            return Ok(Done { accounts: listed, ..Done::default() });
        }
        Command::ListRemoved => {
            let removed = accounts.retired().await?.into_iter().map(RemovedAccount::from).collect();
            return Ok(Done { removed, ..Done::default() });
        }
        Command::Set { name, changes } => accounts.set(&name, changes).await?,
        Command::RotateKey { name, slot, key } => accounts.rotate_key(&name, slot, key).await?,
        // The caller and the server of the socket handle these commands.
        Command::Remove { .. }
        | Command::RestoreRemoved { .. }
        | Command::Status { .. }
        | Command::ConsoleLink
        | Command::Snapshot
        | Command::Restore(_)
        | Command::RestoreAccount { .. } => return Ok(Done::default()),
    };
    Ok(Done { accounts: vec![Account::clone(&account)], ..Done::default() })
}

/// Returns what an account holds.
async fn held(
    accounts: &AccountDirectory,
    counter: Option<&UsageCounter>,
    account: &Account,
) -> Result<AccountUsage, Refusal> {
    match counter {
        Some(counter) => counter.usage(account).await,
        None => AccountUsage::count(&**accounts.store(), account, &mut { usage::MAX_ROWS }).await,
    }
}

/// Removes an account. Refuses to remove data unless the operator has asked for it.
async fn remove_account(
    accounts: &AccountDirectory,
    counter: Option<&UsageCounter>,
    name: &str,
    delete_data: bool,
    immediately: bool,
) -> Reply {
    let text = |error: AccountError| error.to_string();
    let account = accounts.get(name).await.map_err(text)?;
    let account = account.ok_or_else(|| text(AccountError::NotFound(name.into())))?;
    // A count may be old, so whether the account holds anything is looked up.
    let found = match AccountUsage::is_any_held(&**accounts.store(), &account).await {
        Ok(is_any) => held(accounts, counter, &account).await.map(|usage| (usage.to_string(), !is_any)),
        Err(refusal) => Err(refusal),
    };
    let (usage, is_empty) = match found {
        Ok(found) => found,
        // Damaged data must not keep an account from being removed.
        Err(refusal) if delete_data => (format!("an unknown amount of data ({refusal})"), false),
        Err(refusal) => return Err(format!("could not find out what account {name} holds: {refusal}")),
    };
    if !is_empty && !delete_data {
        return Err(format!(
            "account {name} holds {usage}. With --delete-data the account is removed with its data; \
             lazuli account restore {name} can restore both for {RETENTION_DAYS} days."
        ));
    }
    let removed = match immediately {
        true => {
            accounts.remove(name).await.map_err(text)?;
            format!("removed account {name}, which held {usage}.")
        }
        false => {
            let kept_until = date::iso8601_seconds(accounts.retire(name).await.map_err(text)?);
            let restore = format!("lazuli account restore {name}");
            format!("removed account {name}, which held {usage}. Until {kept_until}, {restore} restores it.")
        }
    };
    let again = match account.settings.origin {
        Origin::Configuration => {
            " The server's configuration names this account: take it out there, or the next start adds it \
             again, empty."
        }
        Origin::Command | Origin::FormerConfiguration => "",
    };
    Ok(Done { note: Some(removed + again), ..Done::default() })
}

/// Restores a removed account. If several of the name can be restored, `removed` must name one.
async fn restore_removed(
    accounts: &AccountDirectory,
    counter: Option<&UsageCounter>,
    rule: DevelopmentKey,
    name: &str,
    removed: Option<&str>,
) -> Reply {
    let text = |error: AccountError| error.to_string();
    let retired = accounts.retired().await.map_err(text)?;
    let of_name: Vec<_> = retired.into_iter().filter(|retired| retired.account.name == name).collect();
    let time = |retired: &RetiredAccount| date::iso8601_seconds(retired.removed);
    let times = || of_name.iter().map(time).collect::<Vec<_>>().join(", ");
    let chosen = match (removed, of_name.as_slice()) {
        (_, []) => return Err(text(AccountError::NotRetired(name.into()))),
        (None, [only]) => only,
        (None, several) => {
            let count = several.len();
            return Err(format!(
                "{count} removed accounts {name} can be restored: choose one with --removed TIME, of {}",
                times()
            ));
        }
        (Some(removed), of_name) => {
            let found = of_name.iter().rev().find(|retired| time(retired) == removed);
            found.ok_or_else(|| {
                format!("no account {name} was removed at {removed}; those that can be restored: {}", times())
            })?
        }
    };
    if rule == DevelopmentKey::Refused && chosen.account.keys.contains(&development_key()) {
        return Err(format!(
            "account {name} has the well-known development key, which is not allowed on a server that other \
             machines can reach: stop the server, restore the account, and replace its key with lazuli account \
             rotate-key {name}"
        ));
    }
    let restored = accounts.restore_retired(name, Some(chosen.account.generation)).await;
    let account = restored.map_err(|error| match error {
        // Removing the account in the way leaves two of the name to choose from.
        AccountError::NameInUse(_) => {
            format!("{error}, then add --removed {} to this command", time(chosen))
        }
        error => text(error),
    })?;
    let usage = held(accounts, counter, &account).await;
    let note = usage.ok().map(|usage| format!("restored account {name}, which holds {usage}."));
    Ok(Done { accounts: vec![Account::clone(&account)], note, ..Done::default() })
}

impl From<RetiredAccount> for RemovedAccount {
    fn from(retired: RetiredAccount) -> Self {
        Self {
            name: retired.account.name,
            removed: date::iso8601_seconds(retired.removed),
            kept_until: date::iso8601_seconds(retired.kept_until),
        }
    }
}

/// Returns a path of the socket that fits into a socket address. If the path is too long, it goes through the
/// file descriptor of the directory, which the caller must keep open.
fn socket_path(directory: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let path = directory.join(SOCKET);
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return Ok((path, None));
    }
    let held = File::open(directory)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&held);
    Ok((format!("/proc/self/fd/{fd}/{SOCKET}").into(), Some(held)))
}

#[cfg(test)]
mod tests;
