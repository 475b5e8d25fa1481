//! Where requests may go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

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
    /// Whether it allows an address that a host was resolved to. The host is in lower case.
    pub(crate) fn permits(&self, host: &str, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let at = |port: &Option<u16>| port.is_none_or(|port| port == address.port());
        match self {
            Self::Everything => true,
            Self::Public => is_public(ip),
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
            assert_eq!(entry.permits(host, address.parse().unwrap()), allowed, "{entry} {host} {address}");
            assert_eq!(entry.to_string().parse(), Ok(entry));
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
