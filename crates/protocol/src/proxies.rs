//! Information of proxies about their clients: the PROXY protocol, versions 1 and 2, and the headers
//! `X-Forwarded-For` and `X-Forwarded-Proto`. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum number of addresses in `X-Forwarded-For` that are examined, from the last to the first.
const MAX_HOPS: usize = 32;
/// The beginning of a header of version 1, and its maximum length.
const V1: &[u8] = b"PROXY ";
const V1_MAX: usize = 107;
/// The beginning of a header of version 2, and the length of its fixed part.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED: usize = 16;
/// Maximum length of the rest of a header of version 2. Proxies add few fields to the addresses.
const V2_MAX_REST: usize = 2048;
/// Maximum length of a header of either version.
pub const MAX_PREFACE: usize = V2_FIXED + V2_MAX_REST;

/// Returns the client that the values of `X-Forwarded-For` name: the last address that is not a trusted
/// proxy, or the first one if all are.
pub fn forwarded_client<'a>(
    values: impl DoubleEndedIterator<Item = &'a str>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut client = None;
    for hop in values.rev().flat_map(|value| value.rsplit(',')).take(MAX_HOPS) {
        let Some(address) = forwarded_address(hop) else { break };
        client = Some(address);
        // Whatever stands before the address of an unknown client was sent by that client.
        if !is_trusted(address) {
            break;
        }
    }
    client
}

/// Returns whether the last protocol in a value of `X-Forwarded-Proto` is HTTPS. `None` if it is neither HTTP
/// nor HTTPS.
pub fn forwarded_protocol(value: &str) -> Option<bool> {
    match &value.rsplit(',').next()?.trim().to_ascii_lowercase()[..] {
        "https" => Some(true),
        "http" => Some(false),
        _ => None,
    }
}

/// Parses an address of `X-Forwarded-For`: with or without a port, IPv6 with or without brackets.
fn forwarded_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip().to_canonical());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<Ipv6Addr>().ok().map(|address| IpAddr::V6(address).to_canonical())
}

/// The beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preface {
    /// There is no PROXY header.
    None,
    /// More bytes are needed to decide.
    Incomplete,
    /// A header of this length. `None` stands for a connection of the proxy itself, such as a health check.
    Header {
        /// The length of the header in bytes.
        length: usize,
        /// The client that the header names.
        client: Option<SocketAddr>,
    },
    /// A header that cannot be used.
    Malformed,
}

/// Parses the beginning of a connection.
pub fn parse_preface(bytes: &[u8]) -> Preface {
    if bytes.starts_with(V1) {
        return parse_v1(bytes);
    }
    if bytes.starts_with(V2) {
        return parse_v2(bytes);
    }
    match V1.starts_with(bytes) || V2.starts_with(bytes) {
        true => Preface::Incomplete,
        false => Preface::None,
    }
}

fn parse_v1(bytes: &[u8]) -> Preface {
    let line = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_MAX { Preface::Incomplete } else { Preface::Malformed };
    };
    let length = end + 2;
    let Ok(text) = std::str::from_utf8(&line[V1.len()..end]) else { return Preface::Malformed };
    let mut fields = text.split(' ');
    let family = fields.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Preface::Header { length, client: None };
    }
    let [Some(source), Some(_), Some(port), Some(_), None] = [(); 5].map(|()| fields.next()) else {
        return Preface::Malformed;
    };
    let address: Option<IpAddr> = match family {
        "TCP4" => source.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => source.parse::<Ipv6Addr>().ok().map(|address| IpAddr::V6(address).to_canonical()),
        _ => None,
    };
    match (address, port.parse()) {
        (Some(address), Ok(port)) => Preface::Header { length, client: Some(SocketAddr::new(address, port)) },
        _ => Preface::Malformed,
    }
}

fn parse_v2(bytes: &[u8]) -> Preface {
    let Some((fixed, rest)) = bytes.split_at_checked(V2_FIXED) else { return Preface::Incomplete };
    let (command, family) = (fixed[12], fixed[13]);
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if command >> 4 != 2 || length > V2_MAX_REST {
        return Preface::Malformed;
    }
    let Some(rest) = rest.get(..length) else { return Preface::Incomplete };
    let length = V2_FIXED + length;
    let client = match (command & 0xF, family >> 4) {
        // A connection of the proxy itself, or of a family without addresses.
        (0, _) | (1, 0 | 3) => None,
        (1, 1) => rest.first_chunk::<12>().map(|addresses| {
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low]))
        }),
        (1, 2) => rest.first_chunk::<36>().and_then(|addresses| {
            let source: [u8; 16] = *addresses.first_chunk()?;
            let port = u16::from_be_bytes([addresses[32], addresses[33]]);
            Some(SocketAddr::new(IpAddr::from(source).to_canonical(), port))
        }),
        _ => return Preface::Malformed,
    };
    match (command & 0xF, family >> 4, client) {
        (1, 1 | 2, None) => Preface::Malformed,
        _ => Preface::Header { length, client },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_trusted(address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if address.octets()[0] == 10)
    }

    #[test]
    fn client_is_the_last_address_that_is_not_a_trusted_proxy() {
        for (values, expected) in [
            (&["192.0.2.1"][..], Some("192.0.2.1")),
            (&["198.51.100.7, 192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1, 10.0.0.1, 10.0.0.2"], Some("192.0.2.1")),
            (&["192.0.2.1", "10.0.0.1"], Some("192.0.2.1")),
            (&["10.0.0.1"], Some("10.0.0.1")),
            (&["192.0.2.1:4711"], Some("192.0.2.1")),
            (&["[2001:db8::1]:4711"], Some("2001:db8::1")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["2001:db8::1"], Some("2001:db8::1")),
            (&["::ffff:192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1, nonsense"], None),
            (&["nonsense, 192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1, unknown, 10.0.0.1"], Some("10.0.0.1")),
            (&[""], None),
            (&[], None),
        ] {
            let client = forwarded_client(values.iter().copied(), is_trusted);
            let client = client.map(|address| address.to_string());
            assert_eq!(client.as_deref(), expected, "{values:?}");
        }
    }

    #[test]
    fn long_lists_are_examined_up_to_a_limit() {
        let list = format!("192.0.2.1,{}", vec!["10.0.0.1"; 10_000].join(","));
        let client = forwarded_client([&list[..]].into_iter(), is_trusted);
        assert_eq!(client, Some("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn protocol_of_the_client_is_the_last_that_a_proxy_names() {
        for (value, expected) in [
            ("https", Some(true)),
            ("HTTP", Some(false)),
            ("http, https", Some(true)),
            ("ws", None),
            ("", None),
        ] {
            assert_eq!(forwarded_protocol(value), expected, "{value}");
        }
    }

    /// Returns a header of version 2.
    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2, &[command, family], &length, rest].concat()
    }

    #[test]
    fn headers_of_both_versions_name_the_client() {
        let client =
            |address: &str, length| Preface::Header { length, client: Some(address.parse().unwrap()) };
        let four = [192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x67, 0, 80];
        let mut six = [0; 36];
        six[..16].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        six[32..34].copy_from_slice(&4711_u16.to_be_bytes());
        let with_field = [&four[..], &[4, 0, 1, 0]].concat();
        for (bytes, expected) in [
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80\r\nGET".to_vec(), client("192.0.2.1:4711", 39)),
            (b"PROXY TCP6 2001:db8::1 ::1 4711 80\r\n".to_vec(), client("[2001:db8::1]:4711", 36)),
            (b"PROXY UNKNOWN\r\n".to_vec(), Preface::Header { length: 15, client: None }),
            (b"PROXY UNKNOWN a b c\r\n".to_vec(), Preface::Header { length: 21, client: None }),
            (b"PROXY TCP4 192.0.2.1\r\n".to_vec(), Preface::Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 80 x\r\n".to_vec(), Preface::Malformed),
            (b"PROXY TCP4 2001:db8::1 ::1 4711 80\r\n".to_vec(), Preface::Malformed),
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 70000 80\r\n".to_vec(), Preface::Malformed),
            ([b"PROXY ".to_vec(), vec![b'x'; 200]].concat(), Preface::Malformed),
            (b"PROXY TCP4 192".to_vec(), Preface::Incomplete),
            (b"P".to_vec(), Preface::Incomplete),
            (b"PUT /".to_vec(), Preface::None),
            (b"GET / HTTP/1.1".to_vec(), Preface::None),
            (vec![22, 3, 1], Preface::None),
            (b"\r\n\r\n".to_vec(), Preface::Incomplete),
            (b"\r\nGET".to_vec(), Preface::None),
            (v2(0x21, 0x11, &four), client("192.0.2.1:4711", 28)),
            (v2(0x21, 0x11, &with_field), client("192.0.2.1:4711", 32)),
            (v2(0x21, 0x21, &six), client("[2001:db8::1]:4711", 52)),
            (v2(0x20, 0x00, &[]), Preface::Header { length: 16, client: None }),
            (v2(0x21, 0x31, &[0; 216]), Preface::Header { length: 232, client: None }),
            (v2(0x21, 0x11, &four[..11]), Preface::Malformed),
            (v2(0x11, 0x11, &four), Preface::Malformed),
            (v2(0x22, 0x11, &four), Preface::Malformed),
            (v2(0x21, 0x11, &vec![0; V2_MAX_REST + 1]), Preface::Malformed),
            (v2(0x21, 0x11, &four)[..20].to_vec(), Preface::Incomplete),
        ] {
            assert_eq!(parse_preface(&bytes), expected, "{}", bytes.escape_ascii());
        }
    }
}
