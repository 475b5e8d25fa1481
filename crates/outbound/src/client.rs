//! One GET on one connection. Every wait has an end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::Allow;
use crate::allow::is_own;

/// Connections that one [`Outbound`] has at once, but for those that are counted elsewhere.
pub const MAX_CONNECTIONS: usize = 64;
/// How long a request waits for one of these.
const TURN_TIME: Duration = Duration::from_secs(2);
/// How long resolving, connecting and TLS may take together.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a reply may take to begin.
const REPLY_TIME: Duration = Duration::from_secs(30);
/// How long a body may pause.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Addresses of one host that are tried.
const MAX_ADDRESSES: usize = 8;

/// Why there is no reply, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There are as many connections as there may be.
    #[error("the server makes too many requests")]
    Busy,
    /// It is not HTTP, or names no host.
    #[error("the URL cannot be requested")]
    Url,
    /// The list does not allow it.
    #[error("the server may not reach that address")]
    NotAllowed,
    /// The host cannot be found, cannot be reached, or is not who it should be.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It broke off, or is not HTTP.
    #[error("{0}")]
    Broken(#[from] hyper::Error),
    /// It took too long.
    #[error("the host did not answer in time")]
    TimedOut,
    /// More than was asked for.
    #[error("the answer is too large")]
    TooLarge,
}

/// Makes requests of those that a list allows. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Outbound {
    allow: Arc<[Allow]>,
    /// None: somebody else bounds how many there are.
    room: Option<Arc<Semaphore>>,
}

impl Outbound {
    /// Goes where any of the entries allows, with up to [`MAX_CONNECTIONS`].
    pub fn new(allow: impl Into<Arc<[Allow]>>) -> Self {
        Self { allow: allow.into(), room: Some(Arc::new(Semaphore::new(MAX_CONNECTIONS))) }
    }

    /// Goes to the same places, for one whose connections are counted elsewhere.
    #[must_use]
    pub fn counted_elsewhere(&self) -> Self {
        Self { allow: self.allow.clone(), room: None }
    }

    /// The reply to a GET, its body still to be read.
    pub async fn get(&self, uri: &Uri, headers: HeaderMap) -> Result<Reply, Error> {
        let turn = self.turn().await?;
        let reply = self.fetch(uri, headers).await?;
        Ok(Reply { _turn: turn, ..reply })
    }

    /// Leave to have one more connection.
    async fn turn(&self) -> Result<Option<OwnedSemaphorePermit>, Error> {
        let Some(room) = &self.room else { return Ok(None) };
        let turn = tokio::time::timeout(TURN_TIME, room.clone().acquire_owned()).await;
        // Never closed, so it is only late.
        turn.map_err(|_| Error::Busy)?.map(Some).map_err(|_| Error::Busy)
    }

    async fn fetch(&self, uri: &Uri, headers: HeaderMap) -> Result<Reply, Error> {
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(Error::Url),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(Error::Url)?;
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if secure {
            let stream = in_time(CONNECT_TIME, async {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = self.connect(&host, port).await?;
                Ok(TlsConnector::from(tls()?).connect(name, stream).await?)
            });
            in_time(REPLY_TIME, exchange(stream.await?, uri, headers)).await
        } else {
            let stream = in_time(CONNECT_TIME, self.connect(&host, port)).await?;
            in_time(REPLY_TIME, exchange(stream, uri, headers)).await
        }
    }

    /// Connects to an address of the host that is allowed: to just the address that was judged.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Error> {
        let mut last = Error::NotAllowed;
        for address in lookup_host((host, port)).await?.take(MAX_ADDRESSES) {
            if !self.permits(host, address) {
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn permits(&self, host: &str, address: SocketAddr) -> bool {
        self.allow.iter().any(|entry| entry.permits(host, address, is_own))
    }
}

/// A reply. Dropping it closes its connection.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    _connection: Connection,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Reply {
    /// The next bytes; `None` at the end. A body that breaks off before its declared end is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(IDLE_TIME, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| Error::TimedOut)? else { return Ok(None) };
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// The whole body, if it is at most `limit` bytes.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, Error> {
        let mut collected = BytesMut::new();
        while let Some(bytes) = self.next().await? {
            if collected.len() + bytes.len() > limit {
                return Err(Error::TooLarge);
            }
            collected.extend_from_slice(&bytes);
        }
        Ok(collected.freeze())
    }
}

async fn in_time<T>(time: Duration, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(time, work).await.map_err(|_| Error::TimedOut)?
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    uri: &Uri,
    headers: HeaderMap,
) -> Result<Reply, Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = Connection(tokio::spawn(connection));
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = uri.path_and_query().map_or(Uri::from_static("/"), |path| Uri::from(path.clone()));
    *request.headers_mut() = headers;
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::try_from(host).map_err(|_| Error::Url)?;
    request.headers_mut().insert(header::HOST, host);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let (status, headers) = (head.status, head.headers);
    Ok(Reply { status, headers, body, _connection: connection, _turn: None })
}

/// The task that drives a connection, as long as somebody wants it.
#[derive(Debug)]
struct Connection(JoinHandle<hyper::Result<()>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Trusts whom the machine trusts.
fn tls() -> io::Result<Arc<ClientConfig>> {
    static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = TLS.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TLS.get_or_init(|| Arc::new(config)).clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Somewhere that begins every reply, and ends none.
    async fn endless() -> Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
                    stream.write_all(head).await.unwrap();
                    while stream.read_u8().await.is_ok() {}
                });
            }
        });
        format!("http://{address}/").parse().unwrap()
    }

    #[tokio::test]
    async fn connections_are_bounded_until_their_replies_are_dropped() {
        let uri = endless().await;
        let outbound = Outbound::new([Allow::Everything]);
        let get = |outbound: Outbound| {
            let uri = uri.clone();
            async move { outbound.get(&uri, HeaderMap::new()).await }
        };
        let mut replies = vec![];
        for _ in 0..MAX_CONNECTIONS {
            replies.push(get(outbound.clone()).await.unwrap());
        }
        // Nothing else is waited for, so that the time passes at once.
        tokio::time::pause();
        assert!(matches!(get(outbound.clone()).await, Err(Error::Busy)));
        tokio::time::resume();
        replies.push(get(outbound.counted_elsewhere()).await.unwrap());
        drop(replies.swap_remove(0));
        replies.push(get(outbound).await.unwrap());
    }
}
