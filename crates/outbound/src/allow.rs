//! The list of allowed destinations.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use ipnet::IpNet;

/// Address at which a cloud provider's virtual machines reach their host. It looks public, but answers only
/// those machines. The endpoints of other providers are link-local, shared or private addresses.
const PLATFORM: [Ipv4Addr; 1] = [Ipv4Addr::new(168, 63, 129, 16)];
/// An arbitrary port: finding the route to an address needs one.
const DISCARD: u16 = 9;

/// An entry of the list: `*`, `public`, a network such as `10.0.0.0/8`, or a host. A single address and a
/// host may have a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Every reachable address.
    Everything,
    /// Every address of the public internet except those of this machine.
    Public,
    /// Addresses with a common prefix.
    Network {
        /// The network of the addresses.
        network: IpNet,
        /// The only allowed port.
        port: Option<u16>,
    },
    /// A host name, with any address that it resolves to.
    Host {
        /// The name in lower case.
        name: String,
        /// The only allowed port.
        port: Option<u16>,
    },
}

impl Allow {
    /// Returns whether the entry allows an address of a host. The host must be in lower case. `is_own`
    /// returns whether an address belongs to this machine. Services there may be meant for this machine only,
    /// so `public` does not allow them.
    pub(crate) fn permits(&self, host: &str, address: SocketAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
        let ip = address.ip().to_canonical();
        let at = |port: &Option<u16>| port.is_none_or(|port| port == address.port());
        match self {
            Self::Everything => true,
            Self::Public => is_public(ip) && !is_own(ip),
            Self::Network { network, port } => at(port) && network.contains(&ip),
            Self::Host { name, port } => at(port) && name == host,
        }
    }
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let single = |address: IpAddr, port| Self::Network { network: address.to_canonical().into(), port };
        if text == "*" {
            return Ok(Self::Everything);
        }
        if text == "public" {
            return Ok(Self::Public);
        }
        if text.contains('/') {
            let network = text.parse().map_err(|_| format!("{text:?} is not a network"))?;
            return Ok(Self::Network { network, port: None });
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
            Self::Network { network, port: Some(port) } => {
                write!(f, "{}", SocketAddr::new(network.addr(), *port))
            }
            Self::Network { network, port: None } => write!(f, "{network}"),
            Self::Host { name, port: Some(port) } => write!(f, "{name}:{port}"),
            Self::Host { name, port: None } => f.write_str(name),
        }
    }
}

/// Returns whether an address belongs to this machine: a socket can be bound to it. If sockets can be bound
/// to any address, checks whether the kernel would use it as the source address for itself. Sends no packet.
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

/// Returns whether an address is on the public internet. Excludes loopback, private, link-local, shared,
/// multicast, reserved and documentation addresses, and IPv6 addresses that are translated to one of these.
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
        // NAT64 and 6to4 contain an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] => is_public_v4(last_four([a, b])),
        [0x2002, a, b, ..] => is_public_v4(last_four([a, b])),
        // Teredo, documentation and other special addresses of this block, and documentation.
        [0x2001, block, ..] => block >= 0x200 && block != 0xdb8,
        // All other global unicast addresses.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_publicly_reachable_addresses_are_public() {
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
    fn entry_allows_only_what_it_names() {
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
    fn addresses_of_this_machine_must_be_allowed_explicitly() {
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
        // The address of an interface, if this machine has a route to the internet. Connecting sends no
        // packet.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        if socket.connect((Ipv4Addr::new(198, 51, 100, 1), DISCARD)).is_ok() {
            let address = socket.local_addr().unwrap().ip();
            assert!(is_own(address), "{address}");
        }
    }

    #[test]
    fn invalid_entry_is_refused() {
        for text in
            ["", "a b", "10.0.0.0/33", "10.0.0/8", "x/8", "host:port", "http://host", "fd00::/129", ":80"]
        {
            assert!(text.parse::<Allow>().is_err(), "{text}");
        }
    }
}
