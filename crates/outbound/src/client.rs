//! Sends one request per connection. Every wait has a timeout.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lazuli_concurrency::{FairPermit, FairSemaphore};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::Allow;
use crate::allow::is_own;

/// Maximum number of connections of one [`Outbound`] at once, apart from those with their own limit. One
/// account gets at most three quarters of them.
pub const MAX_CONNECTIONS: usize = 64;
/// Maximum time that a request waits for a free connection.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time for name resolution, connecting and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until a reply begins.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time between two parts of a body.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of addresses of one host that are tried.
const MAX_ADDRESSES: usize = 8;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// All connections are in use.
    #[error("the server makes too many requests")]
    Busy,
    /// The URL is not HTTP, or names no host.
    #[error("the URL cannot be requested")]
    Url,
    /// The list does not allow any address of the host.
    #[error("the server may not reach that address")]
    NotAllowed,
    /// The host cannot be found or reached, or its certificate is invalid.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// The connection broke off, or the reply is not HTTP.
    #[error("{0}")]
    Broken(#[from] hyper::Error),
    /// The host did not answer in time.
    #[error("the host did not answer in time")]
    TimedOut,
    /// The body is larger than the limit.
    #[error("the answer is too large")]
    TooLarge,
}

/// Sends requests to allowed destinations. Clones share the limit of connections.
#[derive(Clone, Debug)]
pub struct Outbound {
    allow: Arc<[Allow]>,
    /// Limits the number of connections; `None` if the caller limits it.
    connections: Option<Arc<FairSemaphore<String>>>,
    /// The account that the connections count for.
    account: Option<String>,
}

impl Outbound {
    /// Allows what any of the entries allows, with up to [`MAX_CONNECTIONS`].
    pub fn new(allow: impl Into<Arc<[Allow]>>) -> Self {
        let connections = Some(FairSemaphore::new(MAX_CONNECTIONS as u32));
        Self { allow: allow.into(), connections, account: None }
    }

    /// Returns a client with the same list for a caller that limits the number of connections itself.
    #[must_use]
    pub fn without_connection_limit(&self) -> Self {
        Self { allow: self.allow.clone(), connections: None, account: None }
    }

    /// Returns a client whose connections count for an account.
    #[must_use]
    pub fn for_account(&self, account: &str) -> Self {
        Self { account: Some(account.to_owned()), ..self.clone() }
    }

    /// Returns whether this client limits the number of connections.
    pub fn limits_connections(&self) -> bool {
        self.connections.is_some()
    }

    /// Sends a GET request. The body of the returned reply is still to be read.
    pub async fn get(&self, uri: &Uri, headers: HeaderMap) -> Result<OutboundReply, Error> {
        let permit = self.acquire_permit().await?;
        let reply = self.fetch(Method::GET, uri, headers, Bytes::new()).await?;
        Ok(OutboundReply { _permit: permit, ..reply })
    }

    /// Sends a POST request with a body.
    pub async fn post(&self, uri: &Uri, headers: HeaderMap, body: Bytes) -> Result<OutboundReply, Error> {
        let permit = self.acquire_permit().await?;
        let reply = self.fetch(Method::POST, uri, headers, body).await?;
        Ok(OutboundReply { _permit: permit, ..reply })
    }

    /// Waits until one more connection is allowed.
    async fn acquire_permit(&self) -> Result<Option<FairPermit<String>>, Error> {
        let Some(connections) = &self.connections else { return Ok(None) };
        let account = connections.holder(self.account.clone());
        let permit = tokio::time::timeout(PERMIT_TIMEOUT, account.acquire(1)).await;
        permit.map(Some).map_err(|_| Error::Busy)
    }

    async fn fetch(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<OutboundReply, Error> {
        let mut request = Request::new(Full::new(body));
        (*request.method_mut(), *request.headers_mut()) = (method, headers);
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(Error::Url),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(Error::Url)?;
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        if secure {
            let stream = in_time(CONNECT_TIMEOUT, async {
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let stream = self.connect(&host, port).await?;
                Ok(TlsConnector::from(tls()?).connect(name, stream).await?)
            });
            in_time(REPLY_TIMEOUT, exchange(stream.await?, uri, request)).await
        } else {
            let stream = in_time(CONNECT_TIMEOUT, self.connect(&host, port)).await?;
            in_time(REPLY_TIMEOUT, exchange(stream, uri, request)).await
        }
    }

    /// Connects to an allowed address of the host: exactly the address that was checked.
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
pub struct OutboundReply {
    /// The status code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
    _connection: ConnectionTask,
    _permit: Option<FairPermit<String>>,
}

impl OutboundReply {
    /// Returns the next bytes, or `None` at the end. A body that breaks off before its declared end is an
    /// error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(IDLE_TIMEOUT, self.body.frame()).await;
            let Some(frame) = frame.map_err(|_| Error::TimedOut)? else { return Ok(None) };
            if let Ok(bytes) = frame?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// Returns the whole body, if it has at most `limit` bytes.
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
    mut request: Request<Full<Bytes>>,
) -> Result<OutboundReply, Error> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = ConnectionTask(tokio::spawn(connection));
    *request.uri_mut() = uri.path_and_query().map_or(Uri::from_static("/"), |path| Uri::from(path.clone()));
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let host = HeaderValue::try_from(host).map_err(|_| Error::Url)?;
    request.headers_mut().insert(header::HOST, host);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let (status, headers) = (head.status, head.headers);
    Ok(OutboundReply { status, headers, body, _connection: connection, _permit: None })
}

/// The task that drives a connection. Dropping it ends the task.
#[derive(Debug)]
struct ConnectionTask(JoinHandle<hyper::Result<()>>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns a TLS configuration that trusts the machine's root certificates.
fn tls() -> io::Result<Arc<ClientConfig>> {
    static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = TLS.get() {
        return Ok(config.clone());
    }
    let config = config_with(None)?;
    Ok(TLS.get_or_init(|| config).clone())
}

/// Returns a TLS client for commands of an operator. Trusts the machine's root certificates, those that
/// `SSL_CERT_FILE` names, and the certificates in a PEM file.
pub fn tls_connector(trusted: Option<&Path>) -> io::Result<TlsConnector> {
    Ok(config_with(trusted)?.into())
}

fn config_with(trusted: Option<&Path>) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = trusted {
        for certificate in CertificateDer::pem_file_iter(path).map_err(io::Error::other)? {
            roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Starts a server that begins every reply and ends none.
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
    async fn number_of_connections_is_limited_until_replies_are_dropped() {
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
        // The paused clock advances immediately, because no other timer is pending.
        tokio::time::pause();
        assert!(matches!(get(outbound.clone()).await, Err(Error::Busy)));
        tokio::time::resume();
        replies.push(get(outbound.without_connection_limit()).await.unwrap());
        drop(replies.swap_remove(0));
        replies.push(get(outbound).await.unwrap());
    }

    #[tokio::test]
    async fn one_account_leaves_connections_to_others() {
        let uri = endless().await;
        let outbound = Outbound::new([Allow::Everything]);
        let get = |account: &str| {
            let (uri, outbound) = (uri.clone(), outbound.for_account(account));
            async move { outbound.get(&uri, HeaderMap::new()).await }
        };
        let mut replies = vec![];
        for _ in 0..MAX_CONNECTIONS - MAX_CONNECTIONS / 4 {
            replies.push(get("lapis").await.unwrap());
        }
        tokio::time::pause();
        assert!(matches!(get("lapis").await, Err(Error::Busy)));
        tokio::time::resume();
        for _ in 0..MAX_CONNECTIONS / 4 {
            replies.push(get("pyrite").await.unwrap());
        }
    }
}
