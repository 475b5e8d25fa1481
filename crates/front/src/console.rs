//! The console port: liveness, readiness and metrics, for load balancers and Prometheus. It needs no
//! credentials, so it reveals nothing about data.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::connection::{Handler, Origin};
use crate::limits::Limits;
use crate::listener::{Listener, RunningListener};
use crate::metrics::Connections;

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
}

impl Console {
    /// Starts serving on `address`; port 0 takes any free port. Must be called within a tokio runtime.
    pub fn start(address: SocketAddr, readiness: ReadinessCheck, metrics: MetricsText) -> io::Result<Self> {
        Ok(Self::serve(ConsoleSocket::bind(address)?, readiness, metrics))
    }

    /// Starts serving on a socket that was bound before. Must be called within a tokio runtime.
    pub fn serve(socket: ConsoleSocket, readiness: ReadinessCheck, metrics: MetricsText) -> Self {
        let ConsoleSocket(listener) = socket;
        let address = listener.address();
        let limits = Limits {
            connections: CONNECTIONS,
            head_time: IDLE_TIME,
            idle_time: IDLE_TIME,
            ..Limits::default()
        };
        let pages = Arc::new(ConsolePages { readiness, metrics });
        let serving = listener.serve(pages, None, Arc::new(limits), Arc::new(Connections::default()));
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

struct ConsolePages {
    readiness: ReadinessCheck,
    metrics: MetricsText,
}

impl Handler for ConsolePages {
    type Body = Full<Bytes>;

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        origin: Origin,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let _under_way = origin.activity.begin();
        // Metrics read the file system, and a slow disk must not block the runtime.
        let page = move || self.page(request.method(), request.uri().path());
        Ok(tokio::task::spawn_blocking(page).await.unwrap_or_else(|_| {
            let (status, text) = (StatusCode::INTERNAL_SERVER_ERROR, "The page could not be made.\n");
            reply(status, "text/plain; charset=utf-8", text)
        }))
    }
}

impl ConsolePages {
    fn page(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        const TEXT: &str = "text/plain; charset=utf-8";
        const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
        if !matches!(path, "/healthz" | "/readyz" | "/metrics") {
            return reply(StatusCode::NOT_FOUND, TEXT, "There is /healthz, /readyz and /metrics.\n");
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

fn reply(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn request_page(ready: bool, method: Method, path: &str) -> (u16, String) {
        let readiness = if ready { Readiness::Ready } else { Readiness::NotReady("draining".into()) };
        request_page_with(readiness, method, path).await
    }

    async fn request_page_with(readiness: Readiness, method: Method, path: &str) -> (u16, String) {
        let pages = ConsolePages {
            readiness: Box::new(move || readiness.clone()),
            metrics: Box::new(|| "lazuli_up 1\n".into()),
        };
        let reply = pages.page(&method, path);
        let status = reply.status().as_u16();
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
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
