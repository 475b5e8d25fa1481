//! Failed logins: all are counted, and a bounded number is logged.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli_concurrency::{Span, Timestamp};
use parking_lot::Mutex;

use crate::wire::status::Status;

/// Log lines in one window.
const MAX_LINES: u32 = 20;
const WINDOW: Span = Span::seconds(10);
/// Characters of a name that are logged. Clients choose names, even those of no account.
const MAX_NAME: usize = 64;

/// Counts and logs them.
#[derive(Debug, Default)]
pub(crate) struct FailedLogins {
    count: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    began: Timestamp,
    lines: u32,
    /// Failures since the last line.
    unlogged: u64,
}

impl FailedLogins {
    /// A login has failed.
    pub(crate) fn record(&self, peer: SocketAddr, account: &str, status: Status, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(unlogged) = self.window.lock().admit(now) else { return };
        let account: String = account.chars().take(MAX_NAME).collect();
        tracing::warn!(%peer, ?account, ?status, unlogged, "an SMB login failed");
    }

    /// Returns how many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Window {
    /// Returns how many failures were not logged since the last line, if there may be another line now.
    fn admit(&mut self, now: Timestamp) -> Option<u64> {
        // A clock that was set back does not end logging.
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
    fn a_flood_is_counted_and_logged_a_few_times_in_each_window() {
        let mut window = Window::default();
        let start = Timestamp::from_unix_seconds(1_000_000);
        for (now, expected) in [(start, 0), (start + WINDOW, 80), (start, 80), (start + WINDOW, 80)] {
            let lines: Vec<_> = (0..100).filter_map(|_| window.admit(now)).collect();
            assert_eq!(lines.len(), MAX_LINES as usize);
            assert_eq!((lines[0], lines[1]), (expected, 0));
        }
    }
}
