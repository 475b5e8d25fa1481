//! Counts all failed logins and logs a bounded number of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli_concurrency::{Span, Timestamp};
use parking_lot::Mutex;

use crate::wire::status::Status;

/// Maximum number of log lines in one window.
const MAX_LINES: u32 = 20;
const WINDOW: Span = Span::seconds(10);
/// Maximum number of characters of an account name in the log. Clients choose the names, even of accounts
/// that do not exist.
const MAX_NAME: usize = 64;

/// Counter and log of failed logins.
#[derive(Debug, Default)]
pub(crate) struct FailedLogins {
    count: AtomicU64,
    window: Mutex<LogWindow>,
}

#[derive(Debug, Default)]
struct LogWindow {
    began: Timestamp,
    lines: u32,
    /// Failures since the last log line.
    unlogged: u64,
}

impl FailedLogins {
    /// Counts a failed login, and logs it unless the window is full.
    pub(crate) fn record(&self, peer: SocketAddr, account: &str, status: Status, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(unlogged) = self.window.lock().admit(now) else { return };
        let account: String = account.chars().take(MAX_NAME).collect();
        tracing::warn!(%peer, ?account, ?status, unlogged, "an SMB login failed");
    }

    /// Returns the number of failed logins since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl LogWindow {
    /// Returns the number of failures that were not logged since the last line. Returns `None` if the window
    /// is full.
    fn admit(&mut self, now: Timestamp) -> Option<u64> {
        // If the clock was set back, begin a new window, so that logging continues.
        if now.since(self.began) >= WINDOW || now < self.began {
            *self = Self { began: now, lines: 0, unlogged: self.unlogged };
        }
        if self.lines >= MAX_LINES {
            self.unlogged += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_logs_a_bounded_number_of_lines_per_window() {
        let mut window = LogWindow::default();
        let start = Timestamp::from_unix_seconds(1_000_000);
        for (now, expected) in [(start, 0), (start + WINDOW, 80), (start, 80), (start + WINDOW, 80)] {
            let lines: Vec<_> = (0..100).filter_map(|_| window.admit(now)).collect();
            assert_eq!(lines.len(), MAX_LINES as usize);
            assert_eq!((lines[0], lines[1]), (expected, 0));
        }
    }
}
