//! One connection, from its first byte to its last.
//!
//! Plain-text connections speak HTTP/1.1 and 1.0; TLS connections speak HTTP/2 or HTTP/1.1, as ALPN
//! negotiated. hyper implements the protocols; it answers a malformed head with 400, 414 or 431 and closes.
//! This module bounds the connection, closes it when its [`Watchdog`] expires, and finishes requests in
//! flight when the server drains.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::HttpService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lazuli_concurrency::FairSemaphore;
use lazuli_protocol::peers::limited_peer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::input_memory::InputMemory;
use crate::limits::Limits;
use crate::pace::{Activity, Expired, LingeringSlots, MonitoredSocket, Watchdog};
use crate::poll_loop::PollLoop;
use crate::proxies::TrustedProxies;
use crate::reply_memory::ReplyMemory;
use crate::tls::H2;

/// Answers the requests of a listener.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The body of the handler's replies.
    type Body: http_body::Body<Data = Bytes, Error: Into<lazuli_protocol::request::BodyError>>
        + Send
        + 'static;

    /// Answers one request. Failures are replies, too. (hyper requires a `Result`, and wrapping the future
    /// would double its size.)
    fn handle(
        self: Arc<Self>,
        request: http::Request<Incoming>,
        origin: Origin,
    ) -> impl Future<Output = Result<http::Response<Self::Body>, Infallible>> + Send + 'static;

    /// Returns whether a TLS port also answers clients that speak plain HTTP.
    fn accepts_plain_http(&self) -> bool {
        false
    }
}

/// The connection that a request came from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The client's end of the connection.
    pub(crate) peer: SocketAddr,
    /// Whether headers that name a client are from a trusted proxy.
    pub(crate) forwarded: bool,
    /// Whether the connection uses TLS.
    pub(crate) secure: bool,
    /// The connection's counters.
    pub(crate) activity: Arc<Activity>,
}

impl Origin {
    /// Returns the client of a request. If the connection comes from a trusted proxy, that is the client
    /// which the headers name.
    pub(crate) fn of_client(mut self, headers: &HeaderMap, proxies: &TrustedProxies) -> Self {
        if !self.forwarded {
            return self;
        }
        let (client, is_secure) = proxies.forwarded(headers);
        if let Some(client) = client {
            // The port of the client is not known.
            self.peer = SocketAddr::new(client, 0);
        }
        self.secure = is_secure.unwrap_or(self.secure);
        self
    }
}

/// The life cycle of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Accepts requests.
    Open,
    /// Finishes the requests in flight and accepts no more.
    Draining,
    /// Drops all connections.
    Closed,
}

/// HTTP/2 flow-control windows of one stream and of one connection, in bytes. The connection's is smaller if
/// there are many connections, see [`InputMemory`]. The protocol allows no smaller one than the last.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: usize = 2 * 1024 * 1024;
const LEAST_CONNECTION_WINDOW: usize = 64 * 1024;
/// Bytes of one HTTP/2 reply that are buffered before its service has to wait. Frames are taken whole, and
/// one more is held ready. So a client can make the server hold two frames for each stream, see
/// [`Limits::streams_per_connection`]. A document is one frame of any size, see [`crate::document_memory`].
const STREAM_BUFFER: usize = 64 * 1024;

/// The bounds that the connections of an endpoint share.
#[derive(Clone, Debug)]
pub(crate) struct EndpointBounds {
    pub(crate) limits: Arc<Limits>,
    /// One unit for each connection of [`Limits::lingering_connections`].
    pub(crate) lingering_connections: Arc<FairSemaphore<IpAddr>>,
    pub(crate) reply_memory: Arc<ReplyMemory>,
    pub(crate) input_memory: Arc<InputMemory>,
}

impl EndpointBounds {
    pub(crate) fn new(limits: Arc<Limits>) -> Self {
        Self {
            lingering_connections: FairSemaphore::with_reserve(limits.lingering_connections),
            reply_memory: Arc::new(ReplyMemory::new(&limits)),
            input_memory: InputMemory::new(limits.input_bytes),
            limits,
        }
    }
}

/// The client of an accepted socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress {
    pub(crate) address: SocketAddr,
    /// Whether headers that name a client are from a trusted proxy.
    pub(crate) forwarded: bool,
}

/// Serves one accepted socket until it closes.
pub(crate) async fn serve<H: Handler>(
    socket: TcpStream,
    ClientAddress { address: peer, forwarded }: ClientAddress,
    mut tls: Option<TlsAcceptor>,
    bounds: EndpointBounds,
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    // Replies are written whole, so waiting to fill a segment would only add latency.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%peer, %error, "connection lost before it began");
        return;
    }
    let EndpointBounds { limits, lingering_connections, reply_memory, input_memory } = bounds;
    // The first byte and the handshake share the time for the head of a request.
    let deadline = Instant::now() + limits.head_time;
    if tls.is_some() {
        match first_byte(&socket, deadline, stage.clone()).await {
            Some(byte) if byte.is_ascii_alphabetic() && handler.accepts_plain_http() => tls = None,
            Some(byte) if byte.is_ascii_alphabetic() => {
                tracing::debug!(%peer, "refused plain HTTP on a TLS port");
                return refuse_plain_http(socket).await;
            }
            Some(_) => {}
            None => {
                tracing::debug!(%peer, "TLS handshake did not begin");
                return;
            }
        }
    }
    let activity = Arc::new(Activity::default());
    let origin = Origin { peer, forwarded, secure: tls.is_some(), activity: Arc::clone(&activity) };
    let is_proxy = limits.trusted_proxies.contains(peer.ip());
    let limited = limited_peer(peer.ip(), limits.limit_loopback).filter(|_| !is_proxy);
    let linger = LingeringSlots { slots: lingering_connections, peer: limited };
    let socket = MonitoredSocket::new(socket, activity, Arc::clone(&limits), linger);
    match tls {
        None => {
            origin.activity.set_replies(reply_memory.connection(peer.ip()), false);
            serve_http1(TokioIo::new(socket), origin, limits, &input_memory, handler, stage).await;
        }
        Some(tls) => match accept_tls(socket, &tls, deadline, stage.clone()).await {
            Some(Ok(stream)) => {
                let h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                let io = TokioIo::new(stream);
                origin.activity.set_replies(reply_memory.connection(peer.ip()), h2);
                if h2 {
                    serve_http2(io, origin, limits, &input_memory, handler, stage).await;
                } else {
                    serve_http1(io, origin, limits, &input_memory, handler, stage).await;
                }
            }
            Some(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => tracing::debug!(%peer, "TLS handshake took too long"),
        },
    }
}

/// The answer to a client that speaks plain HTTP to a TLS port.
const PLAIN_HTTP: &str = "This port speaks HTTPS only. Use https:// in the URL, and \
    DefaultEndpointsProtocol=https in the connection string.\n";
/// For how long, and of how many bytes, the rest of a refused request is read. Closing a socket with unread
/// input would discard the answer.
const REFUSED_TIME: Duration = Duration::from_secs(2);
const REFUSED_BYTES: u64 = 64 << 10;

/// Returns the first byte that the client sends, which stays in the socket: a letter if the client speaks
/// HTTP, 22 if it speaks TLS. Returns `None` if the client closes or is too slow, or the server stops.
async fn first_byte(socket: &TcpStream, deadline: Instant, mut stage: watch::Receiver<Stage>) -> Option<u8> {
    let mut first = [0];
    tokio::select! {
        seen = tokio::time::timeout_at(deadline, socket.peek(&mut first)) => {
            matches!(seen, Ok(Ok(1))).then_some(first[0])
        }
        _ = stage.wait_for(|stage| *stage != Stage::Open) => None,
    }
}

/// Answers 400 and closes the connection.
async fn refuse_plain_http(mut socket: TcpStream) {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{PLAIN_HTTP}",
        PLAIN_HTTP.len()
    );
    let refused = async {
        socket.write_all(answer.as_bytes()).await?;
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(REFUSED_BYTES), &mut tokio::io::sink()).await
    };
    // Ignore errors and a slow client: the connection is over.
    let _ = tokio::time::timeout(REFUSED_TIME, refused).await;
}

/// Performs the handshake. Returns `None` if it takes too long or the server stops.
async fn accept_tls(
    socket: MonitoredSocket<TcpStream>,
    tls: &TlsAcceptor,
    deadline: Instant,
    mut stage: watch::Receiver<Stage>,
) -> Option<std::io::Result<TlsStream<MonitoredSocket<TcpStream>>>> {
    tokio::select! {
        accepted = tokio::time::timeout_at(deadline, tls.accept(socket)) => accepted.ok(),
        _ = stage.wait_for(|stage| *stage != Stage::Open) => None,
    }
}

async fn serve_http1<H: Handler>(
    io: impl Read + Write + Unpin,
    origin: Origin,
    limits: Arc<Limits>,
    input_memory: &Arc<InputMemory>,
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    let watchdog = Watchdog::new(Arc::clone(&origin.activity), Arc::clone(&limits));
    let peer = origin.peer;
    let input = input_memory.allot(limits.head_bytes, limits.buffer_bytes);
    let connection = http1::Builder::new()
        .max_headers(limits.head_fields)
        .max_header_size(limits.head_bytes)
        .max_buf_size(input.bytes())
        .header_read_timeout(None) // the watchdog has the timeout
        .preserve_header_case(true) // for names of metadata
        .serve_connection(io, answer(handler, origin));
    drive(pin!(connection), peer, watchdog, stage).await;
}

async fn serve_http2<H: Handler>(
    io: impl Read + Write + Unpin,
    origin: Origin,
    limits: Arc<Limits>,
    input_memory: &Arc<InputMemory>,
    handler: Arc<H>,
    stage: watch::Receiver<Stage>,
) {
    let watchdog = Watchdog::new(Arc::clone(&origin.activity), Arc::clone(&limits));
    let peer = origin.peer;
    let input = input_memory.allot(LEAST_CONNECTION_WINDOW, CONNECTION_WINDOW);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(STREAM_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(u32::try_from(input.bytes()).unwrap_or(u32::MAX))
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

/// A connection of either protocol.
trait HttpConnection: Future<Output = hyper::Result<()>> {
    /// Ends the connection after the requests in flight.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> HttpConnection for http1::Connection<I, S>
where
    S: HttpService<Incoming, ResBody = B, Error: Into<lazuli_protocol::request::BodyError>>,
    I: Read + Write + Unpin,
    B: http_body::Body<Error: Into<lazuli_protocol::request::BodyError>> + 'static,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B> HttpConnection for http2::Connection<I, S, TokioExecutor>
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
    mut connection: Pin<&mut impl HttpConnection>,
    peer: SocketAddr,
    mut watchdog: Watchdog,
    mut stage: watch::Receiver<Stage>,
) {
    let poll_loop = PollLoop::new();
    let mut finishing = false;
    if *stage.borrow_and_update() != Stage::Open {
        finishing = true;
        watchdog.drain();
        connection.as_mut().finish();
    }
    loop {
        tokio::select! {
            // Poll the connection before the watchdog, which judges its progress.
            biased;
            ended = poll_fn(|cx| poll_loop.poll(cx, |cx| connection.as_mut().poll(cx))) => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "connection ended early");
                }
                return;
            }
            expired = poll_fn(|cx| watchdog.poll_expired(cx)) => {
                if finishing || expired == Expired::Stalled {
                    tracing::debug!(%peer, ?expired, "closing the connection: it waited for the client for too long");
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
                watchdog.drain();
                connection.as_mut().finish();
            }
        }
    }
}
