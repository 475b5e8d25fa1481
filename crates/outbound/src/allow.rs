//! Where requests may go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

/// Where a cloud provider's machines reach the host that they run on. It looks public, and answers those machines only.
/// The endpoints of other providers are link-local, shared or private addresses.
const PLATFORM: [Ipv4Addr; 1] = [Ipv4Addr::new(168, 63, 129, 16)];
/// Any port: to ask for the route to an address, one has to be named.
const DISCARD: u16 = 9;

/// One entry of a list of what is allowed: `*`, `public`, a network such as `10.0.0.0/8`, or a host. A network that is a
/// single address, and a host, may name a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Everything that can be reached.
    Everything,
    /// Every address of the public internet.
    Public,
    /// Addresses by their first bits.
    Network {
        /// Any address of it.
        address: IpAddr,
        /// How many of its bits count.
        bits: u8,
        /// Only at this port.
        port: Option<u16>,
    },
    /// A name, whatever it resolves to.
    Host {
        /// In lower case.
        name: String,
        /// Only at this port.
        port: Option<u16>,
    },
}

impl Allow {
    /// Whether it allows an address that a host was resolved to. The host is in lower case. `is_own` says whether an address
    /// is this machine's: what listens there may be meant for this machine alone, so only an entry for it allows it.
    pub(crate) fn permits(&self, host: &str, address: SocketAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
        let ip = address.ip().to_canonical();
        let at = |port: &Option<u16>| port.is_none_or(|port| port == address.port());
        match self {
            Self::Everything => true,
            Self::Public => is_public(ip) && !is_own(ip),
            Self::Network { address, bits, port } => at(port) && shares_bits(*address, ip, *bits),
            Self::Host { name, port } => at(port) && name == host,
        }
    }
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let single = |address: IpAddr, port| {
            let address = address.to_canonical();
            Self::Network { address, bits: width(address), port }
        };
        if text == "*" {
            return Ok(Self::Everything);
        }
        if text == "public" {
            return Ok(Self::Public);
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| format!("{address:?} is not an address"))?;
            let bits = bits.parse().ok().filter(|bits| *bits <= width(address));
            let bits = bits.ok_or_else(|| format!("{text:?} is not a network"))?;
            return Ok(Self::Network { address, bits, port: None });
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse() {
            return Ok(single(address, None));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(single(address.ip(), Some(address.port())));
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().map_err(|_| format!("{port:?} is not a port"))?)),
            None => (text, None),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(format!("{text:?} is neither *, public, a network nor a host"));
        }
        Ok(Self::Host { name: name.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => f.write_str("*"),
            Self::Public => f.write_str("public"),
            Self::Network { address, port: Some(port), .. } => {
                write!(f, "{}", SocketAddr::new(*address, *port))
            }
            Self::Network { address, bits, port: None } => write!(f, "{address}/{bits}"),
            Self::Host { name, port: Some(port) } => write!(f, "{name}:{port}"),
            Self::Host { name, port: None } => f.write_str(name),
        }
    }
}

/// Whether an address is this machine's: a socket can be bound to it. Where sockets can be bound to any address, the kernel
/// tells by sending from the address itself. Sends nothing.
pub(crate) fn is_own(address: IpAddr) -> bool {
    let (any, foreign): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(198, 51, 100, 1).into()),
        IpAddr::V6(_) => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let can_bind = |address| UdpSocket::bind((address, 0)).is_ok();
    if !can_bind(foreign) {
        return can_bind(address);
    }
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, DISCARD))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

const fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn shares_bits(network: IpAddr, address: IpAddr, bits: u8) -> bool {
    let differs = match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= u32::from(bits)
}

/// Whether an address is on the public internet: none that is this machine's, a private network's, link-local, shared,
/// multicast, reserved or for examples, and none that leads to one of these through a translation of addresses.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || PLATFORM.contains(&address)
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (18..20).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99);
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let last_four =
        |segments: [u16; 2]| Ipv4Addr::from_bits(u32::from(segments[0]) << 16 | u32::from(segments[1]));
    match address.segments() {
        // NAT64, and 6to4: an IPv4 address within.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => is_public_v4(last_four([a, b])),
        [0x2002, a, b, ..] => is_public_v4(last_four([a, b])),
        // Teredo, examples and what else lies in the special block; examples.
        [0x2001, block, ..] => block >= 0x200 && block != 0xdb8,
        // The rest of what is routed.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_anybody_can_reach_are_public() {
        for (address, public) in [
            ("8.8.8.8", true),
            ("20.60.1.1", true),
            ("172.15.0.1", true),
            ("172.32.0.1", true),
            ("100.63.0.1", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("169.254.169.254", false),
            ("168.63.129.16", false),
            ("168.63.129.17", true),
            ("::ffff:168.63.129.16", false),
            ("64:ff9b::168.63.129.16", false),
            ("100.100.100.200", false),
            ("192.0.0.192", false),
            ("fd00:ec2::254", false),
            ("172.16.0.1", false),
            ("192.0.0.1", false),
            ("192.0.2.1", false),
            ("192.168.0.1", false),
            ("198.18.0.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("2606:4700::1", true),
            ("2002:808:808::1", true),
            ("64:ff9b::8.8.8.8", true),
            ("::", false),
            ("::1", false),
            ("::127.0.0.1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("64:ff9b::10.0.0.1", false),
            ("2002:7f00:1::", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("fc00::1", false),
            ("fd12::1", false),
            ("fe80::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
            ("100::1", false),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }

    #[test]
    fn an_entry_allows_what_it_names() {
        for (entry, host, address, allowed) in [
            ("*", "x", "127.0.0.1:80", true),
            ("public", "x", "8.8.8.8:80", true),
            ("public", "x", "127.0.0.1:80", false),
            ("public", "x", "[::ffff:127.0.0.1]:80", false),
            ("10.0.0.0/8", "x", "10.9.8.7:80", true),
            ("10.0.0.0/8", "x", "11.0.0.1:80", false),
            ("10.0.0.0/8", "x", "[::ffff:10.0.0.1]:80", true),
            ("0.0.0.0/0", "x", "[::1]:80", false),
            ("fd00::/8", "x", "[fd12::1]:80", true),
            ("127.0.0.1", "x", "127.0.0.1:9", true),
            ("127.0.0.1", "x", "127.0.0.2:9", false),
            ("127.0.0.1:9", "x", "127.0.0.1:9", true),
            ("127.0.0.1:9", "x", "127.0.0.1:8", false),
            ("[::1]:9", "x", "[::1]:9", true),
            ("[::1]", "x", "[::1]:9", true),
            ("Store.Example", "store.example", "10.0.0.1:80", true),
            ("store.example", "evil.store.example", "10.0.0.1:80", false),
            ("store.example:81", "store.example", "10.0.0.1:80", false),
        ] {
            let entry: Allow = entry.parse().unwrap();
            let permits = entry.permits(host, address.parse().unwrap(), |_| false);
            assert_eq!(permits, allowed, "{entry} {host} {address}");
            assert_eq!(entry.to_string().parse(), Ok(entry));
        }
    }

    #[test]
    fn addresses_of_this_machine_have_to_be_named() {
        let own: SocketAddr = "[::ffff:8.8.8.8]:80".parse().unwrap();
        for (entry, allowed) in
            [("public", false), ("*", true), ("8.8.8.8", true), ("8.0.0.0/8", true), ("store.example", true)]
        {
            let entry: Allow = entry.parse().unwrap();
            let is_own = |address: IpAddr| address == Ipv4Addr::new(8, 8, 8, 8);
            assert_eq!(entry.permits("store.example", own, is_own), allowed, "{entry}");
        }
        for (address, expected) in
            [("127.0.0.1", true), ("127.9.9.9", true), ("203.0.113.7", false), ("2001:db8::1", false)]
        {
            assert_eq!(is_own(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in
            ["", "a b", "10.0.0.0/33", "10.0.0/8", "x/8", "host:port", "http://host", "fd00::/129", ":80"]
        {
            assert!(text.parse::<Allow>().is_err(), "{text}");
        }
    }
}
