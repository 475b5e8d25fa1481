//! Connections that have not logged in.
//!
//! All of them together are bounded. At the bound a new one drops the oldest of the peer that has the most, so that
//! strangers who do nothing keep nobody from logging in, and a flood from one address drops its own connections first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::throttle::network;

/// All strangers.
#[derive(Debug)]
pub(crate) struct Strangers {
    most: usize,
    known: Mutex<Known>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    count: usize,
    /// By peer, and by the number of the connection: older ones have lower numbers.
    of_peers: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

/// A connection that counts as a stranger until this is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    all: Arc<Strangers>,
    peer: IpAddr,
    number: u64,
}

impl Strangers {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), known: Mutex::default(), dropped: AtomicU64::new(0) })
    }

    /// Counts a connection, and drops another if there are too many.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr, number: u64, closed: CancellationToken) -> Stranger {
        let peer = network(peer);
        let mut known = self.known.lock();
        if known.count >= self.most {
            known.drop_one();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        known.of_peers.entry(peer).or_default().insert(number, closed);
        known.count += 1;
        Stranger { all: self.clone(), peer, number }
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().count
    }

    /// Returns how many were dropped for others.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Known {
    /// Drops the oldest connection of the peer that has the most; of several such peers, the oldest of all.
    fn drop_one(&mut self) {
        let oldest = |of: &BTreeMap<u64, CancellationToken>| of.keys().next().copied();
        let most = self.of_peers.iter().max_by_key(|(_, of)| (of.len(), Reverse(oldest(of))));
        let Some((peer, number)) = most.and_then(|(peer, of)| Some((*peer, oldest(of)?))) else { return };
        if let Some(closed) = self.remove(peer, number) {
            closed.cancel();
        }
    }

    fn remove(&mut self, peer: IpAddr, number: u64) -> Option<CancellationToken> {
        let of = self.of_peers.get_mut(&peer)?;
        let closed = of.remove(&number)?;
        if of.is_empty() {
            self.of_peers.remove(&peer);
        }
        self.count -= 1;
        Some(closed)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.known.lock().remove(self.peer, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_drops_the_oldest_of_the_peer_that_has_the_most() {
        let strangers = Strangers::new(4);
        let admit = |peer: &str, number| {
            let closed = CancellationToken::new();
            let peer = peer.parse().expect("an address");
            (strangers.admit(peer, number, closed.clone()), closed)
        };
        let quiet = admit("192.0.2.1", 1);
        let flood = [2, 3, 4].map(|number| admit("192.0.2.2", number));
        assert_eq!(strangers.dropped(), 0);
        let other = admit("192.0.2.3", 5);
        assert_eq!([&flood[0], &flood[1], &quiet].map(|it| it.1.is_cancelled()), [true, false, false]);
        let another = admit("192.0.2.4", 6);
        assert!(flood[1].1.is_cancelled() && !flood[2].1.is_cancelled() && !quiet.1.is_cancelled());
        let last = admit("192.0.2.5", 7);
        assert!(quiet.1.is_cancelled(), "each peer has one: the oldest of all");
        assert_eq!((strangers.count(), strangers.dropped()), (4, 3));
        drop((quiet, flood, other, another, last));
        assert_eq!(strangers.count(), 0);
        assert!(strangers.known.lock().of_peers.is_empty());
    }
}
