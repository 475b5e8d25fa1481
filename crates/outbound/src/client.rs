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
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::Allow;

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

/// Makes requests of those that a list allows.
#[derive(Clone, Debug)]
pub struct Outbound {
    allow: Arc<[Allow]>,
}

impl Outbound {
    /// Goes where any of the entries allows.
    pub fn new(allow: impl Into<Arc<[Allow]>>) -> Self {
        Self { allow: allow.into() }
    }

    /// The reply to a GET, its body still to be read.
    pub async fn get(&self, uri: &Uri, headers: HeaderMap) -> Result<Reply, Error> {
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
        self.allow.iter().any(|entry| entry.permits(host, address))
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
    Ok(Reply { status: head.status, headers: head.headers, body, _connection: connection })
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
