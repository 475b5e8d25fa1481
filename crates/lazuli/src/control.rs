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

use lazuli_account::{AccountDirectory, AccountError, KeySlot, Setting, development_key};
use lazuli_protocol::{Account, Key, ServiceKind};
use serde::{Deserialize, Serialize};

use crate::backup::snapshot::Segment;

pub(crate) use client::{HeldSnapshot, hold_snapshot, restore, send_command};
pub(crate) use intake::Intakes;
pub(crate) use server::Control;

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
    /// Removes an account.
    Remove { name: String },
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

/// The accounts after a command, or why the command failed.
pub(crate) type Reply = Result<Vec<Account>, String>;

/// Whether accounts may have the well-known development key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DevelopmentKey {
    /// No account may have it: other machines can reach this server.
    Refused,
    /// Accounts may have the development key.
    Accepted,
}

/// Carries out a command.
pub(crate) async fn execute(accounts: &AccountDirectory, rule: DevelopmentKey, command: Command) -> Reply {
    let keys: &[Key] = match &command {
        Command::Add { keys, .. } => keys,
        Command::RotateKey { key, .. } => std::slice::from_ref(key),
        Command::List
        | Command::Set { .. }
        | Command::Remove { .. }
        | Command::Snapshot
        | Command::Restore(_)
        | Command::RestoreAccount { .. } => &[],
    };
    if rule == DevelopmentKey::Refused && keys.contains(&development_key()) {
        return Err(
            "the well-known development key is not allowed on a server that other machines can reach".into(),
        );
    }
    changed(accounts, command).await.map_err(|error| error.to_string())
}

async fn changed(accounts: &AccountDirectory, command: Command) -> Result<Vec<Account>, AccountError> {
    let account = match command {
        Command::Add { name, keys } => {
            let account = Account { name, keys, settings: Default::default(), roles: vec![], generation: 0 };
            accounts.add(account).await?
        }
        Command::List => {
            return Ok(accounts.list().await?.iter().map(|account| Account::clone(account)).collect());
        }
        Command::Set { name, changes } => accounts.set(&name, changes).await?,
        Command::RotateKey { name, slot, key } => accounts.rotate_key(&name, slot, key).await?,
        Command::Remove { name } => {
            accounts.remove(&name).await?;
            return Ok(vec![]);
        }
        // The server of the socket handles these commands.
        Command::Snapshot | Command::Restore(_) | Command::RestoreAccount { .. } => return Ok(vec![]),
    };
    Ok(vec![Account::clone(&account)])
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
