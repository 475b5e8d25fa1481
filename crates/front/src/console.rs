//! The console port: liveness, readiness and metrics, for load balancers and Prometheus, and behind them the
//! pages of the console, which the crate `lazuli-console` makes.
//!
//! Liveness, readiness and metrics need no credentials, so they reveal nothing about data. If the
//! services use TLS, the port speaks TLS and plain HTTP: probes may use either, and pages are for TLS
//! only.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use lazuli_protocol::ServiceKind;
use lazuli_protocol::request::{BodyError, Caller};

use crate::connection::{Handler, Origin};
use crate::console_caller::ConsoleCaller;
use crate::limits::Limits;
use crate::listener::{Listener, RunningListener};
use crate::metrics::Connections;
use crate::pace::RequestGuard;
use crate::pipeline::Pipeline;
use crate::proxies::TrustedProxies;
use crate::tls::Tls;

/// Whether requests can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All requests can be served.
    Ready,
    /// Requests can be served, with a remark.
    ReadyWith(&'static str),
    /// Yes, but an operator has to act on these problems.
    Degraded(Vec<String>),
    /// Requests cannot be served, for this reason.
    NotReady(String),
}

/// Returns whether requests can be served.
pub type ReadinessCheck = Box<dyn Fn() -> Readiness + Send + Sync>;
/// Returns all metrics as Prometheus text.
pub type MetricsText = Box<dyn Fn() -> String + Send + Sync>;

/// Maximum number of connections to the console port. Probes and a scraper need few. One peer gets at most
/// three quarters of them, so its idle connections cannot keep the probes out.
const CONNECTIONS: usize = 512;
/// Maximum time for which a connection may be idle, so that idle connections do not delay a probe.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// A running console port.
#[derive(Debug)]
pub struct Console {
    address: SocketAddr,
    serving: RunningListener,
}

/// The bound socket of a console port. It accepts no connections yet.
#[derive(Debug)]
pub struct ConsoleSocket(Listener);

impl ConsoleSocket {
    /// Binds `address`; port 0 takes any free port. Must be called within a tokio runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Listener::bind(address).map(Self)
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

impl Console {
    /// Starts serving health checks and metrics on `address`; port 0 takes any free port. Must be called
    /// within a tokio runtime.
    pub fn start(address: SocketAddr, readiness: ReadinessCheck, metrics: MetricsText) -> io::Result<Self> {
        Ok(Self::serve(
            ConsoleSocket::bind(address)?,
            readiness,
            metrics,
            None,
            None,
            TrustedProxies::default(),
        ))
    }

    /// Starts serving on a socket that was bound before. Must be called within a tokio runtime.
    pub fn serve(
        socket: ConsoleSocket,
        readiness: ReadinessCheck,
        metrics: MetricsText,
        pages: Option<Arc<dyn ConsolePages>>,
        tls: Option<&Tls>,
        trusted_proxies: TrustedProxies,
    ) -> Self {
        let ConsoleSocket(listener) = socket;
        let address = listener.address();
        let limits = Limits {
            connections: CONNECTIONS,
            head_time: IDLE_TIME,
            idle_time: IDLE_TIME,
            trusted_proxies: trusted_proxies.clone(),
            ..Limits::default()
        };
        let port = Arc::new(ConsolePort { readiness, metrics, pages, trusted_proxies });
        let acceptor = tls.map(Tls::acceptor);
        let serving = listener.serve(port, acceptor, Arc::new(limits), Arc::new(Connections::default()));
        Self { address, serving }
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Finishes the requests in flight, for at most `deadline`, then closes all connections.
    pub async fn shutdown(self, deadline: Duration) {
        self.serving.drain();
        let _ = tokio::time::timeout(deadline, self.serving.drained()).await;
        self.serving.close();
    }
}

/// The body of a reply of the console.
pub type ConsoleBody = UnsyncBoxBody<Bytes, BodyError>;

/// Answers the requests to the console port that are no probes.
pub trait ConsolePages: Send + Sync + 'static {
    /// Answers one request. Failures are replies, too.
    fn call(
        self: Arc<Self>,
        request: ConsoleRequest,
    ) -> Pin<Box<dyn Future<Output = Response<ConsoleBody>> + Send>>;
}

/// A request to the console port.
pub struct ConsoleRequest {
    /// The head.
    pub parts: Parts,
    body: Incoming,
    origin: Origin,
    /// The client, which a trusted proxy may have named.
    pub peer: SocketAddr,
    /// Whether the client uses TLS, perhaps to a trusted proxy.
    pub is_secure: bool,
}

impl ConsoleRequest {
    /// Reads the whole body, if it has at most `limit` bytes.
    pub async fn read_body(&mut self, limit: usize) -> Result<Bytes, BodyError> {
        let limited = http_body_util::Limited::new(&mut self.body, limit);
        Ok(limited.collect().await?.to_bytes())
    }
}

/// The way from the console to the services: the same path that requests of other clients take, from the
/// parsed head on.
#[derive(Clone)]
pub struct StorageEntry(Arc<[Arc<Pipeline>]>);

impl std::fmt::Debug for StorageEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|pipeline| pipeline.kind)).finish()
    }
}

impl StorageEntry {
    pub(crate) fn new(pipelines: Vec<Arc<Pipeline>>) -> Self {
        Self(pipelines.into())
    }

    /// Returns the enabled services.
    pub fn kinds(&self) -> impl Iterator<Item = ServiceKind> {
        self.0.iter().map(|pipeline| pipeline.kind)
    }

    /// Carries out a request to a service, whose head addresses the service in path style. The
    /// console has authenticated the caller. `name` is the session's principal, for logs. Returns
    /// `None` if the service is disabled.
    pub async fn call(
        &self,
        kind: ServiceKind,
        request: ConsoleRequest,
        caller: Caller,
        name: String,
    ) -> Option<Response<ConsoleBody>> {
        let pipeline = self.0.iter().find(|pipeline| pipeline.kind == kind)?;
        let ConsoleRequest { mut parts, body, origin, .. } = request;
        // Links and listings name the service's own address.
        let host = HeaderValue::try_from(&pipeline.host);
        parts.headers.insert(HOST, host.unwrap_or_else(|_| HeaderValue::from_static("localhost")));
        parts.extensions.insert(ConsoleCaller { caller, name });
        let request = Request::from_parts(parts, body);
        let reply = match Box::pin(Arc::clone(pipeline).handle(request, origin)).await {
            Ok(reply) => reply,
            Err(never) => match never {},
        };
        Some(reply.map(|body| body.boxed_unsync()))
    }
}

/// Returns a body in memory.
pub fn whole(bytes: impl Into<Bytes>) -> ConsoleBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

struct ConsolePort {
    readiness: ReadinessCheck,
    metrics: MetricsText,
    pages: Option<Arc<dyn ConsolePages>>,
    trusted_proxies: TrustedProxies,
}

impl Handler for ConsolePort {
    type Body = ConsoleBody;

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        origin: Origin,
    ) -> Result<Response<ConsoleBody>, Infallible> {
        let mut guard = origin.activity.begin();
        if is_probe(request.uri().path()) || self.pages.is_none() {
            // Metrics read the file system, and a slow disk must not block the runtime.
            let page = move || self.page(request.method(), request.uri().path());
            let page = tokio::task::spawn_blocking(page).await.unwrap_or_else(|_| {
                let (status, text) = (StatusCode::INTERNAL_SERVER_ERROR, "The page could not be made.\n");
                reply(status, "text/plain; charset=utf-8", text)
            });
            return Ok(page.map(whole));
        }
        let Some(pages) = self.pages.clone() else { return Ok(not_found().map(whole)) };
        if !guard.begin_stream() {
            let busy = reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "Too many requests.\n");
            return Ok(busy.map(whole));
        }
        let client = origin.clone().of_client(request.headers(), &self.trusted_proxies);
        let (parts, body) = request.into_parts();
        let (peer, is_secure) = (client.peer, client.secure);
        let answer = pages.call(ConsoleRequest { parts, body, origin, peer, is_secure }).await;
        guard.reply();
        Ok(answer.map(|body| GuardedBody { body, guard }.boxed_unsync()))
    }

    fn accepts_plain_http(&self) -> bool {
        true
    }
}

/// A body that counts as a request in flight until it ends, so that its connection is not idle.
struct GuardedBody {
    body: ConsoleBody,
    guard: RequestGuard,
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(bytes) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.guard.replied(bytes.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

fn not_found() -> Response<Bytes> {
    reply(StatusCode::NOT_FOUND, TEXT, "There is /healthz, /readyz and /metrics.\n")
}

impl ConsolePort {
    fn page(&self, method: &Method, path: &str) -> Response<Bytes> {
        const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
        if !is_probe(path) {
            return not_found();
        }
        if method != Method::GET && method != Method::HEAD {
            let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only.\n");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match path {
            "/metrics" => reply(StatusCode::OK, PROMETHEUS, (self.metrics)()),
            "/readyz" => match (self.readiness)() {
                Readiness::Ready => reply(StatusCode::OK, TEXT, "ready\n"),
                Readiness::ReadyWith(remark) => reply(StatusCode::OK, TEXT, format!("ready ({remark})\n")),
                // A degraded server still serves. Taking it out of rotation would help no client.
                Readiness::Degraded(reasons) => {
                    let lines: String =
                        reasons.iter().map(|reason| format!("degraded: {reason}\n")).collect();
                    reply(StatusCode::OK, TEXT, lines)
                }
                Readiness::NotReady(reason) => {
                    reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("not ready: {reason}\n"))
                }
            },
            _ => reply(StatusCode::OK, TEXT, "ok\n"),
        }
    }
}

fn reply(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn request_page(ready: bool, method: Method, path: &str) -> (u16, String) {
        let readiness = if ready { Readiness::Ready } else { Readiness::NotReady("draining".into()) };
        request_page_with(readiness, method, path).await
    }

    async fn request_page_with(readiness: Readiness, method: Method, path: &str) -> (u16, String) {
        let pages = ConsolePort {
            readiness: Box::new(move || readiness.clone()),
            metrics: Box::new(|| "lazuli_up 1\n".into()),
            pages: None,
            trusted_proxies: TrustedProxies::default(),
        };
        let reply = pages.page(&method, path);
        let status = reply.status().as_u16();
        (status, String::from_utf8(reply.into_body().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn pages_report_liveness_readiness_and_metrics() {
        for (ready, method, path, status, body) in [
            (true, Method::GET, "/healthz", 200, "ok\n"),
            (false, Method::GET, "/healthz", 200, "ok\n"),
            (true, Method::GET, "/readyz", 200, "ready\n"),
            (false, Method::GET, "/readyz", 503, "not ready: draining\n"),
            (true, Method::GET, "/metrics", 200, "lazuli_up 1\n"),
            (true, Method::POST, "/metrics", 405, "GET only.\n"),
            (true, Method::DELETE, "/healthz", 405, "GET only.\n"),
            (true, Method::GET, "/", 404, "There is /healthz, /readyz and /metrics.\n"),
            (true, Method::POST, "/shutdown", 404, "There is /healthz, /readyz and /metrics.\n"),
        ] {
            assert_eq!(
                request_page(ready, method.clone(), path).await,
                (status, body.to_owned()),
                "{method} {path}"
            );
        }
    }

    #[tokio::test]
    async fn a_degraded_server_is_ready_and_lists_its_problems() {
        let degraded = Readiness::Degraded(vec!["compaction fails".into(), "the clock jumped".into()]);
        let expected = (200, "degraded: compaction fails\ndegraded: the clock jumped\n".to_owned());
        assert_eq!(request_page_with(degraded, Method::GET, "/readyz").await, expected);
    }

    /// Sends a probe over a connection that stays open.
    async fn probe(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"HTTP/1.1 200");
        stream
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_in_time_for_a_probe() {
        let address = "127.0.0.1:0".parse().unwrap();
        let console = Console::start(address, Box::new(|| Readiness::Ready), Box::new(String::new)).unwrap();
        let mut sitting = vec![];
        for _ in 0..CONNECTIONS {
            sitting.push(probe(console.address()).await);
        }
        tokio::time::timeout(2 * IDLE_TIME, probe(console.address())).await.unwrap();
    }
}
