//! Limits the connections that have not logged in.
//!
//! At the limit a new connection replaces the oldest connection of the peer that has the most. So idle
//! unauthenticated clients cannot keep others from logging in, and a flood from one address drops its own
//! connections first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::throttle::network;

/// All connections that have not logged in.
#[derive(Debug)]
pub(crate) struct UnauthenticatedClients {
    limit: usize,
    connections: Mutex<ConnectionsByPeer>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct ConnectionsByPeer {
    count: usize,
    /// The connections of each peer, by number. Older connections have lower numbers.
    peers: HashMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

/// Counts a connection as unauthenticated until dropped.
#[derive(Debug)]
pub(crate) struct UnauthenticatedClient {
    all: Arc<UnauthenticatedClients>,
    peer: IpAddr,
    number: u64,
}

impl UnauthenticatedClients {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), connections: Mutex::default(), dropped: AtomicU64::new(0) })
    }

    /// Counts a connection. At the limit, drops another one.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: IpAddr,
        number: u64,
        closed: CancellationToken,
    ) -> UnauthenticatedClient {
        let peer = network(peer);
        let mut connections = self.connections.lock();
        if connections.count >= self.limit {
            connections.drop_oldest();
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        connections.peers.entry(peer).or_default().insert(number, closed);
        connections.count += 1;
        UnauthenticatedClient { all: self.clone(), peer, number }
    }

    /// Returns the number of unauthenticated connections.
    pub(crate) fn count(&self) -> usize {
        self.connections.lock().count
    }

    /// Returns how many connections were dropped in favor of newer ones.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl ConnectionsByPeer {
    /// Drops the oldest connection of the peer that has the most. If several peers have the most, drops the
    /// oldest of theirs.
    fn drop_oldest(&mut self) {
        let oldest = |connections: &BTreeMap<u64, CancellationToken>| connections.keys().next().copied();
        let largest = self
            .peers
            .iter()
            .max_by_key(|(_, connections)| (connections.len(), Reverse(oldest(connections))));
        let Some((peer, number)) =
            largest.and_then(|(peer, connections)| Some((*peer, oldest(connections)?)))
        else {
            return;
        };
        if let Some(closed) = self.remove(peer, number) {
            closed.cancel();
        }
    }

    fn remove(&mut self, peer: IpAddr, number: u64) -> Option<CancellationToken> {
        let connections = self.peers.get_mut(&peer)?;
        let closed = connections.remove(&number)?;
        if connections.is_empty() {
            self.peers.remove(&peer);
        }
        self.count -= 1;
        Some(closed)
    }
}

impl Drop for UnauthenticatedClient {
    fn drop(&mut self) {
        self.all.connections.lock().remove(self.peer, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_the_oldest_connection_of_the_largest_peer_is_dropped() {
        let unauthenticated = UnauthenticatedClients::new(4);
        let admit = |peer: &str, number| {
            let closed = CancellationToken::new();
            let peer = peer.parse().expect("an address");
            (unauthenticated.admit(peer, number, closed.clone()), closed)
        };
        let quiet = admit("192.0.2.1", 1);
        let flood = [2, 3, 4].map(|number| admit("192.0.2.2", number));
        assert_eq!(unauthenticated.dropped(), 0);
        let other = admit("192.0.2.3", 5);
        assert_eq!([&flood[0], &flood[1], &quiet].map(|it| it.1.is_cancelled()), [true, false, false]);
        let another = admit("192.0.2.4", 6);
        assert!(flood[1].1.is_cancelled() && !flood[2].1.is_cancelled() && !quiet.1.is_cancelled());
        let last = admit("192.0.2.5", 7);
        assert!(quiet.1.is_cancelled(), "each peer has one, so the oldest of all is dropped");
        assert_eq!((unauthenticated.count(), unauthenticated.dropped()), (4, 3));
        drop((quiet, flood, other, another, last));
        assert_eq!(unauthenticated.count(), 0);
        assert!(unauthenticated.connections.lock().peers.is_empty());
    }
}
