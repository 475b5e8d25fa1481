//! How much each peer has of what an endpoint has so much of, such as connections, so that no single one has it all.
//!
//! A peer is an address, for IPv6 the 64 bits of its network, which is what one customer has. This machine is not counted, unless
//! it is to be: what is in front of a server, and speaks for many, is mostly there.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The peers of one endpoint.
#[derive(Debug)]
pub struct Peers {
    /// How much one of them can have.
    most: usize,
    counts_this_machine: bool,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// What a peer has, until it is dropped.
#[derive(Debug)]
pub struct Share {
    peers: Arc<Peers>,
    /// None: it is not counted.
    peer: Option<IpAddr>,
    amount: usize,
}

impl Peers {
    /// For an endpoint that has so much of it. A peer can have three quarters.
    pub fn new(total: usize, counts_this_machine: bool) -> Arc<Self> {
        Arc::new(Self { most: total - total / 4, counts_this_machine, held: Mutex::default() })
    }

    /// A peer takes so much. None: it has enough. Who has nothing gets even what is more than a peer can have.
    pub fn take(self: &Arc<Self>, address: IpAddr, amount: usize) -> Option<Share> {
        let (peer, amount) = (self.peer(address), amount.min(self.most));
        if let Some(peer) = peer {
            let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let held = all.get(&peer).copied().unwrap_or(0) + amount;
            if held > self.most {
                return None;
            }
            all.insert(peer, held);
        }
        Some(Share { peers: self.clone(), peer, amount })
    }

    /// What an address counts as, if it is counted.
    fn peer(&self, address: IpAddr) -> Option<IpAddr> {
        match address.to_canonical() {
            own if own.is_loopback() && !self.counts_this_machine => None,
            IpAddr::V6(address) => {
                Some(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into())
            }
            address => Some(address),
        }
    }
}

impl Drop for Share {
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

    fn connect(peers: &Arc<Peers>, address: &str) -> Option<Share> {
        peers.take(address.parse().unwrap(), 1)
    }

    #[test]
    fn a_peer_gets_three_quarters_of_the_connections_and_what_it_gives_back() {
        let peers = Peers::new(8, false);
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
    fn a_peer_gets_no_more_than_fits_but_something_if_it_has_nothing() {
        let peers = Peers::new(100, false);
        let take = |amount| peers.take([192, 0, 2, 1].into(), amount);
        let held = take(70);
        assert!(held.is_some() && take(6).is_none());
        drop((take(5), take(5)));
        drop(held);
        let held = take(1000);
        assert!(held.is_some() && take(1).is_none());
        drop(held);
        assert!(take(75).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let peers = Peers::new(1, false);
        let _held = connect(&peers, "2001:db8::1").unwrap();
        assert!(connect(&peers, "2001:db8::ffff:0:0:2").is_none());
        assert!(connect(&peers, "2001:db8:0:1::1").is_some());
    }

    #[test]
    fn this_machine_can_have_them_all_unless_it_counts() {
        const OWN: [&str; 4] = ["127.0.0.1", "127.0.0.1", "::1", "::ffff:127.0.0.1"];
        for (counts_this_machine, expected) in [(false, [true; 4]), (true, [true, false, true, false])] {
            let peers = Peers::new(1, counts_this_machine);
            let held = OWN.map(|address| connect(&peers, address));
            assert_eq!(held.map(|held| held.is_some()), expected);
        }
    }
}
