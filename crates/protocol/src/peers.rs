//! How many connections each peer has to an endpoint, so that no single one has them all.
//!
//! A peer is an address, for IPv6 the 64 bits of its network, which is what one customer has. This machine is not counted: what
//! is in front of a server, and speaks for many, is mostly there.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The peers of one endpoint.
#[derive(Debug)]
pub struct Peers {
    /// Connections that one of them can have.
    most: usize,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection of a peer, until it is dropped.
#[derive(Debug)]
pub struct Connected {
    peers: Arc<Peers>,
    /// None: it is not counted.
    peer: Option<IpAddr>,
}

impl Peers {
    /// For an endpoint that has so many connections at once. A peer can have three quarters of them.
    pub fn new(connections: usize) -> Arc<Self> {
        Arc::new(Self { most: connections - connections / 4, held: Mutex::default() })
    }

    /// A peer has connected. None: it has enough.
    pub fn connect(self: &Arc<Self>, address: IpAddr) -> Option<Connected> {
        let peer = peer(address);
        if let Some(peer) = peer {
            let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let held = all.entry(peer).or_default();
            if *held >= self.most {
                return None;
            }
            *held += 1;
        }
        Some(Connected { peers: self.clone(), peer })
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let Some(peer) = self.peer else { return };
        let mut all = self.peers.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = all.get_mut(&peer) {
            *held -= 1;
            if *held == 0 {
                all.remove(&peer);
            }
        }
    }
}

/// What an address counts as; none for this machine.
fn peer(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        own if own.is_loopback() => None,
        IpAddr::V6(address) => Some(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()),
        address => Some(address),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn connect(peers: &Arc<Peers>, address: &str) -> Option<Connected> {
        peers.connect(address.parse().unwrap())
    }

    #[test]
    fn a_peer_gets_three_quarters_of_the_connections_and_what_it_gives_back() {
        let peers = Peers::new(8);
        let mut held: Vec<_> = (0..6).map(|_| connect(&peers, "192.0.2.1").unwrap()).collect();
        assert!(connect(&peers, "192.0.2.1").is_none());
        assert!(connect(&peers, "::ffff:192.0.2.1").is_none(), "the same address");
        assert!(connect(&peers, "192.0.2.2").is_some());
        held.pop();
        held.push(connect(&peers, "192.0.2.1").unwrap());
        assert!(connect(&peers, "192.0.2.1").is_none());
        drop(held);
        assert!(peers.held.lock().unwrap().is_empty(), "nobody is remembered who is gone");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let peers = Peers::new(1);
        let _held = connect(&peers, "2001:db8::1").unwrap();
        assert!(connect(&peers, "2001:db8::ffff:0:0:2").is_none());
        assert!(connect(&peers, "2001:db8:0:1::1").is_some());
    }

    #[test]
    fn this_machine_can_have_them_all() {
        let peers = Peers::new(1);
        let held: Vec<_> = ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"]
            .map(|address| connect(&peers, address))
            .into_iter()
            .collect();
        assert!(held.iter().all(Option::is_some));
    }
}
