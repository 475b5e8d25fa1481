//! Counts all failed logins and logs a bounded number of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lazuli_protocol::log_rate::{LogRate, REFUSAL_LOG};

use crate::wire::status::Status;

/// Maximum number of characters of an account name in the log. Clients choose the names, even of accounts
/// that do not exist.
const MAX_NAME: usize = 64;

/// Counter and log of failed logins.
#[derive(Debug, Default)]
pub(crate) struct FailedLogins {
    count: AtomicU64,
    /// All failures have the same reason.
    rate: LogRate<()>,
}

impl FailedLogins {
    /// Counts a failed login, and logs it unless the peer has had too many entries.
    pub(crate) fn record(&self, peer: SocketAddr, account: &str, status: Status) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(suppressed) = self.rate.admit((), peer.ip(), Instant::now()) else { return };
        let account: String = account.chars().take(MAX_NAME).collect();
        tracing::warn!(target: REFUSAL_LOG, %peer, ?account, ?status, suppressed, "an SMB login failed");
    }

    /// Returns the number of failed logins since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
