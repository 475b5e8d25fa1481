//! Limits the share of an endpoint's resources, such as connections, that one peer can hold.
//!
//! A peer is an IPv4 address or a /64 network of IPv6, which is what one customer has. Loopback addresses
//! have no limit by default, because proxies on this machine speak for many clients.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Resources held by the peers of one endpoint.
#[derive(Debug)]
pub struct Peers {
    /// Maximum amount of one peer.
    limit: usize,
    limit_loopback: bool,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// An amount held by a peer, which is released on drop.
#[derive(Debug)]
pub struct PeerShare {
    peers: Arc<Peers>,
    /// `None` if the peer has no limit.
    peer: Option<IpAddr>,
    amount: usize,
}

impl Peers {
    /// Creates the limits for a resource with `total` units. A peer can hold three quarters of them.
    pub fn new(total: usize, limit_loopback: bool) -> Arc<Self> {
        Arc::new(Self { limit: total - total / 4, limit_loopback, held: Mutex::default() })
    }

    /// Acquires `amount` units for a peer; `None` if the peer would exceed its limit. A peer that holds
    /// nothing gets its whole limit at limit, even if `amount` is larger.
    pub fn acquire(self: &Arc<Self>, address: IpAddr, amount: usize) -> Option<PeerShare> {
        let (peer, amount) = (self.peer(address), amount.min(self.limit));
        if let Some(peer) = peer {
            let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let held = all.get(&peer).copied().unwrap_or(0) + amount;
            if held > self.limit {
                return None;
            }
            all.insert(peer, held);
        }
        Some(PeerShare { peers: self.clone(), peer, amount })
    }

    /// Returns the number of peers that hold something.
    pub fn count(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the peer of an address; `None` if it has no limit.
    fn peer(&self, address: IpAddr) -> Option<IpAddr> {
        limited_peer(address, self.limit_loopback)
    }
}

/// Returns the peer of an address; `None` if it has no limit, because it is on this machine and
/// `limit_loopback` is false.
pub fn limited_peer(address: IpAddr, limit_loopback: bool) -> Option<IpAddr> {
    let is_own = address.to_canonical().is_loopback();
    (limit_loopback || !is_own).then(|| network(address))
}

/// Returns the network of an address that counts as one peer: the address itself, or the /64 network of an
/// IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

impl Drop for PeerShare {
    fn drop(&mut self) {
        let Some(peer) = self.peer else { return };
        let mut all = self.peers.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = all.get_mut(&peer) {
            *held -= self.amount;
            if *held == 0 {
                all.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn connect(peers: &Arc<Peers>, address: &str) -> Option<PeerShare> {
        peers.acquire(address.parse().unwrap(), 1)
    }

    #[test]
    fn a_peer_can_hold_three_quarters_and_reuse_what_it_releases() {
        let peers = Peers::new(8, false);
        let mut held: Vec<_> = (0..6).map(|_| connect(&peers, "192.0.2.1").unwrap()).collect();
        assert!(connect(&peers, "192.0.2.1").is_none());
        assert!(connect(&peers, "::ffff:192.0.2.1").is_none(), "the same address");
        assert!(connect(&peers, "192.0.2.2").is_some());
        held.pop();
        held.push(connect(&peers, "192.0.2.1").unwrap());
        assert!(connect(&peers, "192.0.2.1").is_none());
        drop(held);
        assert!(peers.held.lock().unwrap().is_empty(), "a peer that holds nothing is forgotten");
    }

    #[test]
    fn a_larger_amount_is_cut_to_the_limit_for_a_peer_that_holds_nothing() {
        let peers = Peers::new(100, false);
        let acquire = |amount| peers.acquire([192, 0, 2, 1].into(), amount);
        let held = acquire(70);
        assert!(held.is_some() && acquire(6).is_none());
        drop((acquire(5), acquire(5)));
        drop(held);
        let held = acquire(1000);
        assert!(held.is_some() && acquire(1).is_none());
        drop(held);
        assert!(acquire(75).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let peers = Peers::new(1, false);
        let _held = connect(&peers, "2001:db8::1").unwrap();
        assert!(connect(&peers, "2001:db8::ffff:0:0:2").is_none());
        assert!(connect(&peers, "2001:db8:0:1::1").is_some());
    }

    #[test]
    fn loopback_has_no_limit_unless_configured() {
        const OWN: [&str; 4] = ["127.0.0.1", "127.0.0.1", "::1", "::ffff:127.0.0.1"];
        for (limit_loopback, expected) in [(false, [true; 4]), (true, [true, false, true, false])] {
            let peers = Peers::new(1, limit_loopback);
            let held = OWN.map(|address| connect(&peers, address));
            assert_eq!(held.map(|held| held.is_some()), expected);
        }
    }
}
