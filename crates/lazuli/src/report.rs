//! The state of a running server, as its control socket reports it.

use std::path::Path;
use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Clock, SystemClock, Timestamp};
use lazuli_front::Readiness;
use lazuli_protocol::date;
use serde::{Deserialize, Serialize};

use crate::VERSION;
use crate::endpoints::{ConsoleLink, Endpoints};
use crate::usage::AccountUsage;
use crate::usage_counter::UsageCounter;

/// The facts that a running server reports on its control socket.
#[derive(Clone)]
pub(crate) struct RunningServer {
    pub(crate) endpoints: Endpoints,
    /// When the server started, by the machine's clock.
    pub(crate) started: Timestamp,
    /// Returns whether requests can be served.
    pub(crate) readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
    /// Makes links to the console, if its page is served.
    pub(crate) console_link: Option<ConsoleLink>,
    /// Counts what the accounts hold.
    pub(crate) usage: Arc<UsageCounter>,
}

/// The state of a running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) process: u32,
    /// When the server started, in ISO 8601.
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) state: State,
    /// Why the server is degraded or not ready.
    pub(crate) reasons: Vec<String>,
    pub(crate) endpoints: Endpoints,
    pub(crate) accounts: Vec<AccountStatus>,
    pub(crate) disk: DiskUse,
}

/// Whether requests can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    Ready,
    /// Requests are served, and an operator has to act.
    Degraded,
    NotReady,
}

/// The state of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountStatus {
    pub(crate) name: String,
    pub(crate) is_disabled: bool,
    /// Usage of the account, if it has been counted.
    pub(crate) usage: Option<AccountUsage>,
}

/// Space on the disk of a data directory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskUse {
    /// Bytes that the data directory takes.
    pub(crate) used: u64,
    pub(crate) free: u64,
    pub(crate) total: u64,
}

impl DiskUse {
    /// Measures a data directory. What cannot be read counts as nothing. Blocks.
    pub(crate) fn of(directory: &Path) -> Self {
        Self { used: bytes_below(directory), ..Self::of_device(directory) }
    }

    /// Measures the device of a directory only.
    pub(crate) fn of_device(directory: &Path) -> Self {
        let device = rustix::fs::statvfs(directory).ok();
        let bytes = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            device.as_ref().map_or(0, |device| blocks(device).saturating_mul(device.f_frsize))
        };
        Self { used: 0, free: bytes(|device| device.f_bavail), total: bytes(|device| device.f_blocks) }
    }
}

/// Returns the bytes that the files below a directory take on disk.
fn bytes_below(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => bytes += metadata.blocks() * 512,
                // The file was removed meanwhile.
                Err(_) => {}
            }
        }
    }
    bytes
}

impl RunningServer {
    /// Returns the state of the server, with the last counts of what the accounts hold if `counts` is set.
    pub(crate) async fn status(
        &self,
        directory: &Path,
        accounts: &AccountDirectory,
        counts: bool,
    ) -> Result<Status, String> {
        let (readiness, folder) = (self.readiness.clone(), directory.to_owned());
        let measured = tokio::task::spawn_blocking(move || (readiness(), DiskUse::of(&folder))).await;
        let (readiness, disk) = measured.map_err(|error| error.to_string())?;
        let (state, reasons) = match readiness {
            Readiness::Ready => (State::Ready, vec![]),
            Readiness::ReadyWith(remark) => (State::Ready, vec![remark.to_owned()]),
            Readiness::Degraded(reasons) => (State::Degraded, reasons),
            Readiness::NotReady(reason) => (State::NotReady, vec![reason]),
        };
        let listed = accounts.list().await.map_err(|error| error.to_string())?;
        let mut statuses = vec![];
        for account in listed {
            let usage = if counts { self.usage.last(&account) } else { None };
            let (name, is_disabled) = (account.name.clone(), account.settings.disabled);
            statuses.push(AccountStatus { name, is_disabled, usage });
        }
        Ok(Status {
            version: VERSION.into(),
            process: std::process::id(),
            started: date::iso8601_seconds(self.started),
            uptime_seconds: SystemClock.now().since(self.started).ticks() / 10_000_000,
            state,
            reasons,
            endpoints: self.endpoints.clone(),
            accounts: statuses,
            disk,
        })
    }
}
