//! Clients behind trusted proxies.
//!
//! A proxy names its client in one of two ways: by a PROXY protocol header, versions 1 and 2, before the
//! first byte of the connection, or by the headers `X-Forwarded-For` and `X-Forwarded-Proto` of each request.
//! Both are believed only if they come from a configured address, because any client can send them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use lazuli_protocol::proxies::{MAX_PREFACE, Preface, forwarded_client, forwarded_protocol, parse_preface};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Pause before the beginning of a connection is examined again, if it has not arrived as a whole.
const ARRIVAL_PAUSE: Duration = Duration::from_millis(5);

/// The addresses of proxies that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl From<Vec<IpNet>> for TrustedProxies {
    fn from(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }
}

impl TrustedProxies {
    /// Returns whether the address belongs to a trusted proxy.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the client that a trusted proxy names in the headers of a request, and whether the client's
    /// connection to the proxy uses TLS. `None` stands for what the proxy does not say.
    pub(crate) fn forwarded(&self, headers: &HeaderMap) -> (Option<IpAddr>, Option<bool>) {
        // A client may send any bytes; the address that the proxy appended to them still counts.
        let values: Vec<_> = headers
            .get_all(FORWARDED_FOR)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        let client = forwarded_client(values.iter().map(|value| &**value), |address| self.contains(address));
        let protocol = headers.get_all(FORWARDED_PROTO).iter().next_back();
        (client, protocol.and_then(|value| forwarded_protocol(value.to_str().ok()?)))
    }
}

/// The beginning of a connection from a trusted proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxied {
    /// There is no PROXY header.
    WithoutHeader,
    /// A PROXY header that names no client.
    Unnamed,
    /// A PROXY header that names this client.
    Client(SocketAddr),
}

/// Reads the PROXY header of a connection from a trusted proxy, if there is one.
pub(crate) async fn read_preface(socket: &mut TcpStream) -> io::Result<Proxied> {
    let mut seen = vec![0; MAX_PREFACE];
    let mut before = 0;
    loop {
        let count = socket.peek(&mut seen).await?;
        match parse_preface(&seen[..count]) {
            Preface::None => return Ok(Proxied::WithoutHeader),
            Preface::Malformed => return Err(io::Error::other("malformed PROXY header")),
            Preface::Header { length, client } => {
                socket.read_exact(&mut seen[..length]).await?;
                return Ok(client.map_or(Proxied::Unnamed, Proxied::Client));
            }
            // The client has closed its side.
            Preface::Incomplete if count == 0 => return Ok(Proxied::WithoutHeader),
            Preface::Incomplete => {
                // Bytes that were seen stay in the socket, so waiting for input would return at once.
                if count == before {
                    tokio::time::sleep(ARRIVAL_PAUSE).await;
                }
                before = count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::HeaderValue;

    use super::*;

    #[test]
    fn bytes_of_the_client_do_not_hide_the_address_that_the_proxy_appended() {
        let proxies = TrustedProxies::from(vec!["10.0.0.1/32".parse().unwrap()]);
        for lines in
            [&[&b"\xff, 192.0.2.1"[..]][..], &[b"10.1.2.3", b"\xff, 192.0.2.1"], &[b"\xff", b"192.0.2.1"]]
        {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
            }
            let (client, _) = proxies.forwarded(&headers);
            assert_eq!(client, Some("192.0.2.1".parse().unwrap()), "{lines:?}");
        }
    }
}
