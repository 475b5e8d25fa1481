//! How `lazuli account` and `lazuli backup` reach a running server: a Unix socket in the data directory.
//!
//! One line of JSON is a [`Command`], one line is the [`Reply`]. Whoever may open the socket, which is its owner only,
//! may do everything; so nothing else proves who asks. Everything is bounded: lines, time, askers.

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

pub(crate) use client::{HeldSnapshot, ask, hold_snapshot, restore};
pub(crate) use intake::Intakes;
pub(crate) use server::Control;

/// The socket's name in the data directory.
const SOCKET: &str = "control.sock";
/// The longest path that the kernel takes for a socket, with the byte that ends it.
const MAX_SOCKET_PATH: usize = 107;
/// The longest line that the server reads.
const MAX_COMMAND: u64 = 1 << 20;
/// The longest line that a client reads: some ten thousand accounts.
const MAX_REPLY: u64 = 64 << 20;

/// What can be asked of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Adds an account.
    Add { name: String, keys: Vec<Key> },
    /// Tells all accounts.
    List,
    /// Changes an account.
    Set { name: String, changes: Vec<Setting> },
    /// Replaces one of an account's keys.
    RotateKey { name: String, slot: KeySlot, key: Key },
    /// Removes an account.
    Remove { name: String },
    /// Takes a snapshot of the data directory. The server keeps it until the connection ends, and answers [`HELD`] to a line
    /// sent meanwhile.
    Snapshot,
    /// Takes in one object of a backup. The server answers when it is ready for the stream, and again when it has read it.
    Restore(Target),
}

/// Where an object of a backup goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) service: ServiceKind,
    pub(crate) account: String,
    pub(crate) name: String,
}

/// What was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestoredCounts {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// What a restore came to; or why there is nothing of it.
pub(crate) type RestoreReply = Result<RestoredCounts, String>;

/// What a server says that still keeps a snapshot.
const HELD: &[u8] = b"held\n";

/// The segments of a snapshot; or why there is none.
pub(crate) type SnapshotReply = Result<Vec<Segment>, String>;

/// The accounts that a command was about, as they are now; or why it was not carried out.
pub(crate) type Reply = Result<Vec<Account>, String>;

/// What to do with the development key, which everybody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DevelopmentKey {
    /// No account may have it: other machines can reach this server.
    Refused,
    /// It is a key like any other.
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
        | Command::Restore(_) => &[],
    };
    if rule == DevelopmentKey::Refused && keys.contains(&development_key()) {
        return Err("the well-known development key is not for a server that other machines can reach".into());
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
        // Not about accounts: the socket's server takes it.
        Command::Snapshot | Command::Restore(_) => return Ok(vec![]),
    };
    Ok(vec![Account::clone(&account)])
}

/// The path of the socket as the kernel takes it. A long one goes by way of the open directory, which has to be kept.
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
