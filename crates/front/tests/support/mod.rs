//! A real server on a free port, a service whose blobs' names select its behavior, and a client that sends
//! raw bytes.
#![allow(dead_code)]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_auth::{Authenticator, sign};
use lazuli_concurrency::{ManualClock, Timestamp};
use lazuli_front::{Admission, Endpoint, HttpServer, Limits, Metrics, Tls};
use lazuli_protocol::cors::CorsRule;
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::request::BodyError;
use lazuli_protocol::{
    Account, Accounts, Body, ErrorCode, Key, Operation, Refusal, Request, Response, Service, ServiceKind,
};
use lazuli_telemetry::Telemetry;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

pub(crate) const ACCOUNT: &str = "lapis";
/// Time limit of one wait: enough for a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time of every test server's clock: 2026-01-02T03:04:05Z.
pub(crate) const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);

pub(crate) fn key() -> Key {
    Key::from_bytes(b"a key for tests".to_vec())
}

/// Returns a SAS that allows everything.
pub(crate) fn sas() -> String {
    let fields = [
        ("sv", "2021-12-02"),
        ("ss", "bqtf"),
        ("srt", "sco"),
        ("sp", "rwdlacup"),
        ("se", "2026-12-31T00:00:00Z"),
    ];
    sign::account_sas(ACCOUNT, &key(), &fields)
}

/// A service whose behavior the blob's name selects.
#[derive(Default)]
pub(crate) struct ScriptedService {
    /// Bytes that streamed replies have produced.
    pub(crate) pulled: Arc<AtomicU64>,
    /// Bytes of request bodies that have been counted.
    pub(crate) counted: AtomicU64,
    /// Requests that have begun to wait.
    pub(crate) waiting: AtomicU64,
    /// Listings under construction, and their maximum so far.
    pub(crate) building: AtomicU64,
    pub(crate) most_building: AtomicU64,
    /// Releases one waiting request.
    pub(crate) go: Notify,
}

#[async_trait]
impl Service for ScriptedService {
    async fn call(&self, mut request: Request) -> Result<Response, Refusal> {
        let streaming = |chunk: &'static [u8], length: &'static str, panics_after| {
            let mut response = Response::empty(StatusCode::OK);
            response.headers.insert("content-length", HeaderValue::from_static(length));
            let pulled = Arc::clone(&self.pulled);
            response.body =
                Body::stream(RepeatingStream { chunk: Bytes::from_static(chunk), pulled, panics_after });
            Ok(response)
        };
        if request.operation == Operation::ListBlobs {
            // A listing takes memory from here until it is sent.
            let building = self.building.fetch_add(1, SeqCst) + 1;
            self.most_building.fetch_max(building, SeqCst);
            self.go.notified().await;
            self.building.fetch_sub(1, SeqCst);
            return Ok(Response::with_body(StatusCode::OK, "text/plain", vec![7; 1 << 20]));
        }
        match request.object.as_str() {
            "count" => {
                let mut count = 0;
                while let Some(frame) = std::future::poll_fn(|cx| request.body.as_mut().poll_frame(cx)).await
                {
                    let frame = frame.map_err(Refusal::from_body_error)?;
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    self.counted.fetch_add(length as u64, SeqCst);
                    count += length;
                }
                Ok(Response::with_body(StatusCode::CREATED, "text/plain", count.to_string()))
            }
            "ignore" => Ok(Response::empty(StatusCode::CREATED)),
            "wait" => {
                self.waiting.fetch_add(1, SeqCst);
                self.go.notified().await;
                Ok(Response::with_body(StatusCode::OK, "text/plain", "waited"))
            }
            "panic" => panic!("as you wish"),
            "panic-later" => streaming(b"x", "1000", 3),
            "endless" => streaming(&[7; 64 * 1024], "1099511627776", u64::MAX),
            "fresh" => {
                let mut response = Response::empty(StatusCode::OK);
                response.headers.insert("content-length", HeaderValue::from_static("1048576"));
                response.body = Body::stream(FreshStream { frames_left: 4, pulled: self.pulled.clone() });
                Ok(response)
            }
            "small" => {
                let mut response = Response::empty(StatusCode::OK);
                response.headers.insert("content-length", HeaderValue::from_static("1000"));
                let pulled = Arc::clone(&self.pulled);
                let chunk = Bytes::from_static(&[7; 1000]);
                response.body = Body::stream(RepeatingStream { chunk, pulled, panics_after: u64::MAX });
                Ok(response)
            }
            "endless-fresh" => {
                let mut response = Response::empty(StatusCode::OK);
                response.headers.insert("content-length", HeaderValue::from_static("1099511627776"));
                let pulled = self.pulled.clone();
                response.body = Body::stream(FreshStream { frames_left: u32::MAX, pulled });
                Ok(response)
            }
            "document" => Ok(Response::with_body(StatusCode::OK, "text/plain", vec![7; 1 << 20])),
            "refuse" => Err(Refusal::new(ErrorCode::BlobNotFound)),
            "not-modified" => Err(Refusal::not_modified()),
            "describe" => {
                let Request { operation, account, container, version, endpoint, caller, .. } = &request;
                let text =
                    format!("{operation:?} {} {container} {version} {endpoint} {caller:?}", account.name);
                Ok(Response::with_body(StatusCode::OK, "text/plain", text))
            }
            name => {
                let mut response = Response::with_body(StatusCode::OK, "text/plain", name.to_owned());
                response.headers.insert("etag", HeaderValue::from_static("\"0x1\""));
                Ok(response)
            }
        }
    }

    async fn access_policy(&self, _: &Account, _: &str, _: &str) -> Result<Option<AccessPolicy>, Refusal> {
        Ok(None)
    }

    async fn public_access(&self, _: &Account, container: &str) -> Result<PublicAccess, Refusal> {
        Ok(if container == "public" { PublicAccess::Container } else { PublicAccess::None })
    }
}

/// A stream that repeats one chunk.
struct RepeatingStream {
    chunk: Bytes,
    pulled: Arc<AtomicU64>,
    panics_after: u64,
}

impl http_body::Body for RepeatingStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let pulled = self.pulled.fetch_add(self.chunk.len() as u64, SeqCst);
        assert!(pulled < self.panics_after, "as you wish");
        Poll::Ready(Some(Ok(Frame::data(self.chunk.clone()))))
    }
}

/// A stream of 1 MiB whose frames take 256 KiB of memory each.
struct FreshStream {
    frames_left: u32,
    pulled: Arc<AtomicU64>,
}

impl http_body::Body for FreshStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.frames_left = match self.frames_left {
            0 => return Poll::Ready(None),
            left => left - 1,
        };
        self.pulled.fetch_add(256 << 10, SeqCst);
        Poll::Ready(Some(Ok(Frame::data(vec![7; 256 << 10].into()))))
    }
}

/// An account that cannot be read.
pub(crate) const BROKEN_ACCOUNT: &str = "broken";

/// One account, and service properties with the test's CORS rules.
struct OneAccount {
    account: Arc<Account>,
    properties: Arc<ServiceProperties>,
}

#[async_trait]
impl Accounts for OneAccount {
    async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Refusal> {
        if name == BROKEN_ACCOUNT {
            tracing::error!("the account cannot be read");
            return Err(ErrorCode::InternalError.into());
        }
        Ok((name == self.account.name).then(|| Arc::clone(&self.account)))
    }

    async fn service_properties(
        &self,
        _: &Account,
        _: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal> {
        Ok(Arc::clone(&self.properties))
    }
}

/// Settings of a test's server.
#[derive(Default)]
pub(crate) struct ServerOptions {
    pub(crate) limits: Limits,
    pub(crate) cors: Vec<CorsRule>,
    pub(crate) tls: Option<Tls>,
    pub(crate) telemetry: Telemetry,
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) server: HttpServer,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) service: Arc<ScriptedService>,
    /// The blob endpoint.
    pub(crate) address: SocketAddr,
    /// The table endpoint.
    pub(crate) table: SocketAddr,
}

pub(crate) fn start(options: ServerOptions) -> TestServer {
    let account = Account {
        name: ACCOUNT.into(),
        generation: 0,
        keys: vec![key()],
        settings: Default::default(),
        roles: vec![],
    };
    let properties = ServiceProperties { cors: options.cors, ..Default::default() };
    let gate = Admission {
        accounts: Arc::new(OneAccount { account: Arc::new(account), properties: Arc::new(properties) }),
        authenticator: Authenticator::new(MasterSecret::new([1; 32]), None),
        clock: Arc::new(ManualClock::new(NOW)),
        wall_clock: Arc::new(ManualClock::new(NOW)),
        host_suffixes: vec![],
    };
    let service = Arc::new(ScriptedService::default());
    let metrics = Arc::new(Metrics::with_telemetry(options.telemetry));
    let endpoint = |kind| Endpoint {
        kind,
        address: ([127, 0, 0, 1], 0).into(),
        service: Arc::clone(&service) as Arc<dyn Service>,
    };
    let endpoints = vec![endpoint(ServiceKind::Blob), endpoint(ServiceKind::Table)];
    let server =
        HttpServer::start(endpoints, Arc::new(gate), options.tls.as_ref(), options.limits, &metrics).unwrap();
    let addresses: Vec<_> = server.addresses().map(|(_, address)| address).collect();
    TestServer { server, metrics, service, address: addresses[0], table: addresses[1] }
}

pub(crate) fn start_with(limits: Limits) -> TestServer {
    start(ServerOptions { limits, ..ServerOptions::default() })
}

impl TestServer {
    pub(crate) async fn connect(&self) -> RawClient<TcpStream> {
        RawClient::connect(self.address).await
    }

    /// Asserts that a request on a new connection is answered.
    pub(crate) async fn assert_alive(&self) {
        let reply = self.connect().await.get("/lapis/public/hello").await;
        assert_eq!((reply.status, reply.text()), (200, "hello"));
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let holds = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TEST_TIMEOUT, holds).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits like [`TestServer::until`], while the clock is stopped.
    pub(crate) async fn until_without_time(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let began = std::time::Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < TEST_TIMEOUT, "{what}");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until no request is in flight.
    pub(crate) async fn until_quiet(&self) {
        self.until("a request is still in flight", |this| {
            this.metrics.render().contains("lazuli_requests_in_flight{service=\"blob\"} 0\n")
        })
        .await;
    }
}

/// The clock of a test's runtime, which advances only through [`StoppedClock::advance`]. So the machine's
/// speed does not matter.
pub(crate) struct StoppedClock {
    _held: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    /// Stops the clock. Tokio advances a paused clock when all tasks are idle, except while a blocking task
    /// runs.
    pub(crate) fn stop() -> Self {
        tokio::time::pause();
        let (held, released) = std::sync::mpsc::channel();
        drop(tokio::task::spawn_blocking(move || released.recv()));
        Self { _held: held }
    }

    pub(crate) async fn advance(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

/// A client that sends raw bytes.
pub(crate) struct RawClient<S> {
    pub(crate) stream: S,
    buffer: Vec<u8>,
}

/// A reply as received.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl RawReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name).map(|(_, value)| value.as_str());
        let first = values.next();
        assert_eq!(values.next(), None, "{name} is there twice");
        first
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn error_code(&self) -> &str {
        self.header("x-ms-error-code").unwrap_or("")
    }
}

impl RawClient<TcpStream> {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawClient<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, target: &str) -> RawReply {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        self.reply().await
    }

    /// Sends a signed PUT with a body.
    pub(crate) async fn put(&mut self, object: &str, body: &[u8]) -> RawReply {
        self.send(put_head(object, &format!("Content-Length: {}", body.len()))).await;
        self.send(body).await;
        self.reply().await
    }

    pub(crate) async fn reply(&mut self) -> RawReply {
        self.reply_to("GET").await.expect("a reply")
    }

    /// Returns the next reply; `None` if the connection ends instead.
    pub(crate) async fn reply_to(&mut self, method: &str) -> Option<RawReply> {
        let head = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                break String::from_utf8(std::mem::replace(&mut self.buffer, rest)).unwrap();
            }
            if !self.fill().await {
                assert!(self.buffer.is_empty(), "half a head: {:?}", String::from_utf8_lossy(&self.buffer));
                return None;
            }
        };
        let mut lines = head.trim_end().split("\r\n");
        let mut status = lines.next().unwrap().splitn(3, ' ');
        assert!(status.next().unwrap().starts_with("HTTP/1."));
        let mut reply = RawReply {
            status: status.next().unwrap().parse().unwrap(),
            reason: status.next().unwrap_or_default().to_owned(),
            headers: lines
                .map(|line| line.split_once(": ").unwrap())
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect(),
            body: vec![],
        };
        if method != "HEAD" && !matches!(reply.status, 100 | 204 | 304) {
            let length = reply.header("content-length").map(|length| length.parse::<usize>().unwrap());
            let length = length.expect("no reply in these tests is chunked");
            while self.buffer.len() < length {
                assert!(self.fill().await, "half a body");
            }
            let rest = self.buffer.split_off(length);
            reply.body = std::mem::replace(&mut self.buffer, rest);
        }
        Some(reply)
    }

    /// Reads more bytes. Returns false at the end of the connection.
    async fn fill(&mut self) -> bool {
        let read =
            timeout(TEST_TIMEOUT, self.stream.read_buf(&mut self.buffer)).await.expect("no answer in time");
        read.unwrap_or(0) > 0
    }

    /// Asserts that the connection ends without another byte.
    pub(crate) async fn assert_closed(&mut self) {
        assert!(self.buffer.is_empty(), "unread: {:?}", String::from_utf8_lossy(&self.buffer));
        assert!(!self.fill().await, "unexpected: {:?}", String::from_utf8_lossy(&self.buffer));
    }
}

/// Returns the default limits for bytes, with time limits that no machine reaches.
pub(crate) fn limits_without_timeouts() -> Limits {
    let time = Duration::from_secs(600);
    Limits { head_time: time, drain_time: time, linger_time: time, ..Limits::default() }
}

/// An upload of 100 MiB and one byte that is refused before its body has been read.
pub(crate) struct RefusedUpload {
    line: String,
    chunked: bool,
    status: u16,
}

/// Uploads that are refused for a missing blob, a wrong signature or their size; with a length and in chunks.
pub(crate) fn refused_uploads() -> Vec<RefusedUpload> {
    let query = sas();
    let lines = [
        (format!("/lapis/c/refuse?{query}"), 404),
        (format!("/lapis/c/count?comp=page&{query}"), 413),
        (format!("/lapis/c/count?{query}0"), 403),
    ];
    let upload = |chunked| {
        move |(target, status): (String, u16)| RefusedUpload {
            line: format!("PUT {target} HTTP/1.1\r\nHost: localhost"),
            chunked,
            status,
        }
    };
    lines.clone().into_iter().map(upload(false)).chain(lines.into_iter().map(upload(true))).collect()
}

impl RefusedUpload {
    /// Sends the upload as clients do that read no reply before they have sent everything.
    pub(crate) async fn send_everything_then_read<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut client: RawClient<S>,
    ) {
        let mebibyte = vec![0; 1 << 20];
        if self.chunked {
            client.send(format!("{}\r\nTransfer-Encoding: chunked\r\n\r\n", self.line)).await;
            for _ in 0..100 {
                client.send("100000\r\n").await;
                client.send(&mebibyte).await;
                client.send("\r\n").await;
            }
            client.send("1\r\nx\r\n0\r\n\r\n").await;
        } else {
            client.send(format!("{}\r\nContent-Length: {}\r\n\r\nx", self.line, (100 << 20) + 1)).await;
            for _ in 0..100 {
                client.send(&mebibyte).await;
            }
        }
        client.stream.flush().await.unwrap();
        // Wait as if the rest of the reply were still on its way: a reset would destroy what has arrived.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(client.reply().await.status, self.status, "{} chunked: {}", self.line, self.chunked);
        client.assert_closed().await;
    }
}

/// Returns the head of a signed PUT.
pub(crate) fn put_head(object: &str, headers: &str) -> String {
    let sas = sas();
    format!("PUT /lapis/c/{object}?{sas} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n")
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
