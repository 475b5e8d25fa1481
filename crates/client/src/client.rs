//! An HTTP/1.1 client with one keep-alive connection. It signs each request with the account's Shared Key.
//!
//! Deliberately not a client library: it never retries, so slow and refused requests show in the results.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::{Query, ServiceKind, Version, date};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use crate::account::{Endpoint, StorageAccount};

/// The `x-ms-version` of requests. All peers know it.
const VERSION: Version = Version::new(2023, 11, 3);
/// Timeout of a request, longer than any request of a workload should take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a connection failed, so that a stopped server is not flooded with connections.
const RECONNECT_WAIT: Duration = Duration::from_millis(20);
/// Bytes of a response's body that are kept. The rest is read and counted.
const MAX_KEPT_BODY: usize = 64 << 10;
/// Minimum number of bytes that are kept of the end of a long body.
const MIN_KEPT_END: usize = 1 << 10;

/// The failure of an answer whose body is longer than [`Client::with_max_body`] allows.
pub const TOO_LONG: &str = "the answer is too long";

/// One request.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path below the account, encoded; empty for the service itself.
    pub path: String,
    /// The query, encoded, without `?`.
    pub query: String,
    /// Headers in addition to those that every request has.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Call {
    /// Returns a request without additional headers and without a body.
    pub fn new(method: Method, path: impl Into<String>, query: impl Into<String>) -> Self {
        Self { method, path: path.into(), query: query.into(), ..Self::default() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The beginning of the body.
    pub body: Bytes,
    /// The end of the body: at least its last KiB, if the body is that long.
    pub end: Bytes,
    /// The length of the whole body.
    pub length: u64,
}

/// Why an operation failed. Errors are counted by the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationFailure {
    /// The server answered with another status than expected.
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// The error code, or an empty text.
        code: String,
    },
    /// The answer had the expected status and wrong content.
    Wrong(&'static str),
    /// The connection failed before the answer was complete.
    Connection(String),
    /// No answer arrived in time.
    TimedOut,
    /// The server was not ready for a workload in time.
    Unprepared(Duration),
    /// The request could not be built.
    Request(String),
}

impl fmt::Display for OperationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { status, code } if code.is_empty() => write!(f, "{}", status.as_u16()),
            Self::Refused { status, code } => write!(f, "{} {code}", status.as_u16()),
            Self::Wrong(what) => write!(f, "{what}"),
            Self::Connection(reason) => write!(f, "connection: {reason}"),
            Self::TimedOut => write!(f, "no answer within {} s", TIMEOUT.as_secs()),
            Self::Unprepared(time) => write!(f, "not prepared within {} s", time.as_secs()),
            Self::Request(reason) => write!(f, "request: {reason}"),
        }
    }
}

impl Reply {
    /// Returns an error if the status is another one.
    pub fn expect(self, status: StatusCode) -> Result<Self, OperationFailure> {
        if self.status == status {
            return Ok(self);
        }
        let code =
            self.headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()).unwrap_or_default();
        Err(OperationFailure::Refused { status: self.status, code: code.to_owned() })
    }
}

/// The account on a server that requests address.
#[derive(Clone)]
pub struct TargetAccount {
    /// The account.
    pub account: Arc<StorageAccount>,
    /// The TLS configuration, if an endpoint uses TLS.
    pub tls: Option<TlsConnector>,
}

/// A client of one service. It connects when needed.
pub struct Client {
    account: Arc<StorageAccount>,
    service: ServiceKind,
    endpoint: Endpoint,
    tls: Option<TlsConnector>,
    /// Maximum length of an answer's body; `None` if only the ends of a body are kept.
    max_body: Option<usize>,
    connection: Option<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    /// Returns a client of a service; `None` if the account does not have the service.
    pub fn new(target: &TargetAccount, service: ServiceKind) -> Option<Self> {
        let endpoint = target.account.endpoint(service)?.clone();
        let (account, tls) = (target.account.clone(), target.tls.clone());
        Some(Self { account, service, endpoint, tls, max_body: None, connection: None })
    }

    /// Keeps the bodies of answers whole, and fails if a body is longer than the limit.
    #[must_use]
    pub fn with_max_body(mut self, limit: usize) -> Self {
        self.max_body = Some(limit);
        self
    }

    /// Returns a client of the same service with its own connection.
    pub fn another(&self) -> Self {
        let (account, endpoint) = (self.account.clone(), self.endpoint.clone());
        let (service, tls, max_body) = (self.service, self.tls.clone(), self.max_body);
        Self { account, service, endpoint, tls, max_body, connection: None }
    }

    /// Returns the URL of the service, for requests within a batch and for headers that name a source.
    pub fn endpoint(&self) -> String {
        let scheme = if self.endpoint.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.endpoint.authority, self.endpoint.path)
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&mut self, call: Call) -> Result<Reply, OperationFailure> {
        let request = self.request(call)?;
        match tokio::time::timeout(TIMEOUT, self.exchange(request)).await {
            Ok(Ok(reply)) => Ok(reply),
            failed => {
                self.disconnect();
                let failure = failed.map_or(OperationFailure::TimedOut, |failed| match failed.err() {
                    Some(reason) if reason == TOO_LONG => OperationFailure::Wrong(TOO_LONG),
                    reason => OperationFailure::Connection(reason.unwrap_or_default()),
                });
                tokio::time::sleep(RECONNECT_WAIT).await;
                Err(failure)
            }
        }
    }

    /// Closes the connection. The next request opens a new one.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Reply, String> {
        // A connection that the server closed while it was idle is not a failure.
        let open = match &mut self.connection {
            Some(connection) => connection.sender.ready().await.is_ok(),
            None => false,
        };
        if !open {
            self.connection = None;
            self.connection = Some(self.connect().await?);
        }
        let Some(connection) = &mut self.connection else { return Err("closed".into()) };
        let response = connection.sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, mut rest) = response.into_parts();
        let (mut body, mut end, mut length) = (BytesMut::new(), Bytes::new(), 0);
        while let Some(frame) = rest.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Ok(data) = frame.into_data() else { continue };
            length += data.len() as u64;
            if self.max_body.is_some_and(|limit| length > limit as u64) {
                return Err(TOO_LONG.into());
            }
            let kept = self.max_body.unwrap_or(MAX_KEPT_BODY);
            body.extend_from_slice(&data[..data.len().min(kept - body.len())]);
            // A short last frame is joined to the frame before it.
            end = if data.len() < MIN_KEPT_END { [&end[..], &data[..]].concat().into() } else { data };
        }
        Ok(Reply { status: head.status, headers: head.headers, body: body.freeze(), end, length })
    }

    async fn connect(&self) -> Result<Connection, String> {
        let address = (self.endpoint.host.as_str(), self.endpoint.port);
        let stream = TcpStream::connect(address).await.map_err(|error| error.kind().to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        match (&self.tls, self.endpoint.secure) {
            (_, false) => handshake(stream).await,
            (None, true) => Err("no TLS".into()),
            (Some(tls), true) => {
                let name =
                    ServerName::try_from(self.endpoint.host.clone()).map_err(|error| error.to_string())?;
                handshake(tls.connect(name, stream).await.map_err(|error| error.to_string())?).await
            }
        }
    }

    /// Returns the signed request with all headers.
    fn request(&self, call: Call) -> Result<Request<Full<Bytes>>, OperationFailure> {
        let refused = |reason: &dyn fmt::Display| OperationFailure::Request(reason.to_string());
        let path = match format!("{}{}", self.endpoint.path, call.path) {
            empty if empty.is_empty() => "/".into(),
            path => path,
        };
        let mut headers = call.headers;
        headers.insert(HOST, HeaderValue::try_from(&self.endpoint.authority).map_err(|e| refused(&e))?);
        headers.insert("x-ms-date", date::header_value(SystemClock.now()));
        headers.insert("x-ms-version", HeaderValue::try_from(VERSION.to_string()).map_err(|e| refused(&e))?);
        if !call.body.is_empty() || matches!(call.method, Method::PUT | Method::POST) {
            headers.insert(CONTENT_LENGTH, call.body.len().into());
        }
        let query = Query::parse(&call.query).map_err(|refusal| refused(&refusal.text()))?;
        let message = Message {
            scheme: Scheme::SharedKey,
            service: self.service,
            account: &self.account.name,
            method: call.method.as_str(),
            path: &path,
            query: &query,
            headers: &headers,
            version: VERSION,
        };
        let signed =
            sign::authorization(&message, &self.account.key).map_err(|refusal| refused(&refusal.text()))?;
        headers.insert(AUTHORIZATION, signed);
        let uri = if call.query.is_empty() { path } else { format!("{path}?{}", call.query) };
        let request = Request::builder().method(call.method).uri(uri).body(Full::new(call.body));
        let mut request = request.map_err(|error| refused(&error))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

async fn handshake<S>(stream: S) -> Result<Connection, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ignore the error: the caller that waits for the answer gets it, too.
    let driver = tokio::spawn(async move { drop(driver.await) }).abort_handle();
    Ok(Connection { sender, driver })
}

#[cfg(test)]
mod tests;
