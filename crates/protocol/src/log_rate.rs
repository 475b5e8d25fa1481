//! Limits the rate of log entries that clients cause by being refused.
//!
//! Each reason has a few entries for each peer in a time window; the first entry after the window reports how
//! many were suppressed. So a peer that floods the log hides no other peer. If very many peers are refused at
//! the same time, those beyond a limit share their entries.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::peers;

/// Target of log entries about refused clients, for filters.
pub const REFUSAL_LOG: &str = "refused";
/// Maximum number of entries for one reason and one peer in one [`WINDOW`].
pub const MAX_ENTRIES: u32 = 10;
/// Maximum number of pairs of a reason and a peer with their own entries. Limits memory, and a flood from
/// many peers to this many entries per second.
const MAX_PEERS: usize = 256;
/// Length of a time window: limits a flood to one entry per second for each reason and peer.
const WINDOW: Duration = Duration::from_secs(10);

/// The entries of each reason and peer in the current time window.
#[derive(Debug)]
pub struct LogRate<R>(Mutex<RateWindows<R>>);

#[derive(Debug)]
struct RateWindows<R> {
    /// At most [`MAX_PEERS`].
    by_peer: HashMap<(R, IpAddr), RateWindow>,
    /// The windows of all other peers.
    of_others: HashMap<R, RateWindow>,
}

#[derive(Clone, Copy, Debug)]
struct RateWindow {
    began: Instant,
    entries: u32,
    suppressed: u64,
}

impl<R> Default for LogRate<R> {
    fn default() -> Self {
        Self(Mutex::new(RateWindows { by_peer: HashMap::new(), of_others: HashMap::new() }))
    }
}

impl<R: Copy + Eq + Hash> LogRate<R> {
    /// Returns the number of entries suppressed since the last one if a reason may have an entry for this
    /// peer now.
    pub fn admit(&self, reason: R, peer: IpAddr, now: Instant) -> Option<u64> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.of(reason, peers::network(peer), now).admit(now)
    }
}

impl<R: Copy + Eq + Hash> RateWindows<R> {
    /// Returns the window of a reason and a peer.
    fn of(&mut self, reason: R, peer: IpAddr, now: Instant) -> &mut RateWindow {
        let key = (reason, peer);
        let is_full = |this: &Self| this.by_peer.len() >= MAX_PEERS && !this.by_peer.contains_key(&key);
        if is_full(self) {
            self.evict_ended(now);
        }
        if is_full(self) {
            return self.of_others.entry(reason).or_insert(RateWindow::begin(now));
        }
        self.by_peer.entry(key).or_insert(RateWindow::begin(now))
    }

    /// Evicts the windows that have ended. An entry of other peers reports what they suppressed.
    fn evict_ended(&mut self, now: Instant) {
        let of_others = &mut self.of_others;
        self.by_peer.retain(|(reason, _), window| {
            let has_ended = window.has_ended(now);
            if has_ended && window.suppressed > 0 {
                of_others.entry(*reason).or_insert(RateWindow::begin(now)).suppressed += window.suppressed;
            }
            !has_ended
        });
    }
}

impl RateWindow {
    fn begin(now: Instant) -> Self {
        Self { began: now, entries: 0, suppressed: 0 }
    }

    fn has_ended(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) >= WINDOW
    }

    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.has_ended(now) {
            (self.began, self.entries) = (now, 0);
        }
        if self.entries == MAX_ENTRIES {
            self.suppressed += 1;
            return None;
        }
        self.entries += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DENIED: u16 = 403;
    const BUSY: u16 = 503;

    fn peer(n: u16) -> IpAddr {
        let [a, b] = n.to_be_bytes();
        [192, 0, a, b].into()
    }

    #[test]
    fn entries_are_limited_for_each_reason_and_report_how_many_were_suppressed() {
        let (log, began) = (LogRate::default(), Instant::now());
        for _ in 0..MAX_ENTRIES {
            assert_eq!(log.admit(DENIED, peer(1), began), Some(0));
        }
        for _ in 0..100 {
            assert_eq!(log.admit(DENIED, peer(1), began + WINDOW / 2), None);
        }
        assert_eq!(log.admit(BUSY, peer(1), began), Some(0), "another reason");
        assert_eq!(log.admit(DENIED, peer(1), began + WINDOW), Some(100));
        assert_eq!(log.admit(DENIED, peer(1), began + WINDOW), Some(0));
    }

    #[test]
    fn a_peer_that_floods_the_log_hides_no_other_peer() {
        let (log, now) = (LogRate::default(), Instant::now());
        let flooded = (0..1000).filter_map(|_| log.admit(DENIED, peer(1), now)).count();
        assert_eq!(flooded, MAX_ENTRIES as usize);
        assert_eq!(log.admit(DENIED, peer(2), now), Some(0));
        // Addresses of one IPv6 network are one peer.
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let flooded = (0..1000).filter_map(|n| log.admit(DENIED, address(n), now)).count();
        assert_eq!(flooded, MAX_ENTRIES as usize);
    }

    #[test]
    fn peers_beyond_the_limit_share_their_entries_until_others_have_ended() {
        let (log, now) = (LogRate::default(), Instant::now());
        // All peers with a window of their own have an entry, and the others share a window.
        let logged = (0..20_000).filter_map(|n| log.admit(DENIED, peer(n), now)).count();
        assert_eq!(logged, MAX_PEERS + MAX_ENTRIES as usize);
        assert_eq!(log.0.lock().unwrap().by_peer.len(), MAX_PEERS);
        let later = now + WINDOW;
        assert_eq!(log.admit(DENIED, peer(20_000), later), Some(0), "the windows of others have ended");
        let rest = (0..MAX_PEERS as u16).filter_map(|n| log.admit(DENIED, peer(n), later)).sum::<u64>();
        assert_eq!(rest, 20_000 - logged as u64, "none is lost");
    }
}
