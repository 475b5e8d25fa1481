//! One connection, from its first byte to its last.
//!
//! Plain text speaks HTTP/1.1 and 1.0; TLS speaks what ALPN settled, HTTP/2 or HTTP/1.1. The protocols themselves are
//! hyper's, which answers a malformed head with 400, 414 or 431 and closes. This module bounds them, gives a
//! connection up when its [`Watchdog`] says so, and lets it finish what it has when the server drains.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::limits::Limits;
use crate::pace::{Expired, Paced, Pulse, Watchdog};
use crate::tls::H2;
use crate::turn::Turns;

/// Answers the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The body of its replies.
    type Body: http_body::Body<Data = Bytes, Error: Into<lazuli_protocol::request::BodyError>>
        + Send
        + 'static;

    /// Answers one request. Whatever happens there is an answer. (hyper wants a `Result` all the same, and wrapping
    /// the future here would double its size.)
    fn handle(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        origin: Origin,
    ) -> impl Future<Output = Result<http::Response<Self::Body>, Infallible>> + Send + 'static;
}

/// Where a request came from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The client's end of the connection.
    pub(crate) peer: SocketAddr,
    /// Whether it came over TLS.
    pub(crate) secure: bool,
    /// The connection it came over.
    pub(crate) pulse: Arc<Pulse>,
}

/// How far a listener is on its way from open to closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Takes requests.
    Open,
    /// Finishes the requests under way and takes no more.
    Draining,
    /// Drops everything.
    Closed,
}

/// The largest HTTP/2 window of one stream, and of all streams of a connection: what a client may send ahead of us.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
/// Bytes of one HTTP/2 reply that are buffered before the service is held back. Its pieces are taken whole, and one more is held
/// ready: what a client can make us hold is two pieces for each stream, see [`Limits::streams_per_connection`]. A document is one
/// piece, however large: see [`crate::documents`].
const STREAM_BUFFER: usize = 64 * 1024;

/// Serves one accepted socket until it closes. `farewells` is the endpoint's, see [`Limits::farewells`].
pub(crate) async fn serve<H: Handler>(
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    (limits, farewells): (Arc<Limits>, Arc<Semaphore>),
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    // Replies go out whole; waiting to fill a segment would only add latency.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "connection lost before it began");
        return;
    }
    let pulse = Arc::new(Pulse::default());
    let origin = Origin { peer, secure: tls.is_some(), pulse: Arc::clone(&pulse) };
    let socket = Paced::new(socket, pulse, Arc::clone(&limits), farewells);
    match tls {
        None => serve_http1(TokioIo::new(socket), origin, limits, handler, stage).await,
        Some(tls) => match accept_tls(socket, &tls, &limits, stage.clone()).await {
            Some(Ok(stream)) => {
                let h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                let io = TokioIo::new(stream);
                if h2 {
                    serve_http2(io, origin, limits, handler, stage).await;
                } else {
                    serve_http1(io, origin, limits, handler, stage).await;
                }
            }
            Some(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => tracing::debug!(%peer, "TLS handshake took too long"),
        },
    }
}

/// The handshake, unless it takes too long or the server stops, which has nothing to finish here.
async fn accept_tls(
    socket: Paced<TcpStream>,
    tls: &TlsAcceptor,
    limits: &Limits,
    mut stage: watch::Receiver<Stage>,
) -> Option<std::io::Result<TlsStream<Paced<TcpStream>>>> {
    tokio::select! {
        accepted = tokio::time::timeout(limits.head_time, tls.accept(socket)) => accepted.ok(),
        _ = stage.wait_for(|stage| *stage != Stage::Open) => None,
    }
}

async fn serve_http1<H: Handler>(
    io: impl Read + Write + Unpin,
    origin: Origin,
    limits: Arc<Limits>,
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    let watchdog = Watchdog::new(Arc::clone(&origin.pulse), Arc::clone(&limits));
    let peer = origin.peer;
    let connection = http1::Builder::new()
        .max_headers(limits.head_fields)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.buffer_bytes.max(limits.head_bytes))
        .header_read_timeout(None) // the watchdog's
        .preserve_header_case(true) // for metadata
        .serve_connection(io, answer(handler, origin));
    drive(pin!(connection), peer, watchdog, stage).await;
}

async fn serve_http2<H: Handler>(
    io: impl Read + Write + Unpin,
    origin: Origin,
    limits: Arc<Limits>,
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    origin.pulse.set_multiplexed();
    let watchdog = Watchdog::new(Arc::clone(&origin.pulse), Arc::clone(&limits));
    let peer = origin.peer;
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(STREAM_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(io, answer(handler, origin));
    drive(pin!(connection), peer, watchdog, stage).await;
}

fn answer<H: Handler>(
    handler: Arc<H>,
    origin: Origin,
) -> impl HttpService<
    Incoming,
    ResBody = H::Body,
    Error = Infallible,
    Future = impl Future<Output = Result<http::Response<H::Body>, Infallible>> + Send + 'static,
> {
    hyper::service::service_fn(move |request| Arc::clone(&handler).handle(request, origin.clone()))
}

/// What the two protocols' connections have in common.
trait Connection: Future<Output = hyper::Result<()>> {
    /// Ends after the requests under way.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> Connection for http1::Connection<I, S>
where
    S: HttpService<Incoming, ResBody = B, Error: Into<lazuli_protocol::request::BodyError>>,
    I: Read + Write + Unpin,
    B: http_body::Body<Error: Into<lazuli_protocol::request::BodyError>> + 'static,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B> Connection for http2::Connection<I, S, TokioExecutor>
where
    S: HttpService<Incoming, ResBody = B, Error: Into<lazuli_protocol::request::BodyError>>,
    S::Future: Send + 'static,
    I: Read + Write + Unpin,
    B: http_body::Body<Data: Send, Error: Into<lazuli_protocol::request::BodyError>> + Send + 'static,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn drive(
    mut connection: Pin<&mut impl Connection>,
    peer: SocketAddr,
    mut watchdog: Watchdog,
    mut stage: watch::Receiver<Stage>,
) {
    let turns = Turns::new();
    let mut finishing = false;
    if *stage.borrow_and_update() != Stage::Open {
        finishing = true;
        connection.as_mut().finish();
    }
    loop {
        tokio::select! {
            // The watchdog judges what the connection has just done.
            biased;
            ended = poll_fn(|cx| turns.poll(cx, |cx| connection.as_mut().poll(cx))) => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended early");
                }
                return;
            }
            expired = poll_fn(|cx| watchdog.poll_expired(cx)) => {
                if finishing || expired == Expired::Stalled {
                    tracing::debug!(%peer, ?expired, "connection given up");
                    return;
                }
                finishing = true;
                connection.as_mut().finish();
            }
            changed = stage.changed() => {
                if changed.is_err() || *stage.borrow_and_update() == Stage::Closed {
                    return;
                }
                finishing = true;
                connection.as_mut().finish();
            }
        }
    }
}
