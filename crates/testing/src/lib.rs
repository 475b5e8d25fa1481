//! Servers and clients for tests. A server runs one service on a free port, with its own store and a clock
//! that the test moves.
//!
//! Failures fail the test, so every function may panic.
#![allow(clippy::unwrap_used)]

mod engine;
mod log;
pub mod memory;
pub mod web;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lazuli_account::{AccountDirectory, ServiceLevel};
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_auth::{Authenticator, sign};
use lazuli_concurrency::{Clock, ManualClock, Span, Timestamp};
use lazuli_extents::Extents;
use lazuli_front::{Admission, Endpoint, HttpServer, Limits};
use lazuli_protocol::{Account, Key, Query, Service, ServiceKind, Version, date};
use lazuli_store::Store;

pub use engine::{AllRows, Engine};
pub use log::LogCapture;

/// The account that requests address by default.
pub const ACCOUNT: &str = "lapis";
/// Another account of the same server, with the same key.
pub const OTHER_ACCOUNT: &str = "malachite";
/// The time at which the clock of a new server starts: 2026-01-02T03:04:05Z.
pub const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);
/// The `x-ms-version` of requests whose headers have none.
pub const VERSION: &str = "2025-01-05";

/// Returns the key of both accounts.
pub fn key() -> Key {
    Key::from_bytes(b"a key for tests".to_vec())
}

/// The parts that a service is built on.
pub struct Parts {
    /// The rows.
    pub store: Arc<dyn Store>,
    /// The bytes.
    pub extents: Arc<dyn Extents>,
    /// The directory of accounts.
    pub accounts: AccountDirectory,
    /// Authorizes requests.
    pub gate: Arc<Admission>,
}

/// Builds a service. Kept, since a restart builds it again.
type BuildService<S> = Arc<dyn Fn(Parts) -> S + Send + Sync>;

/// A running server. Dropping it stops the server; the last one on an engine deletes the data.
pub struct TestServer<S> {
    /// The clock that the store's clock follows.
    pub clock: Arc<ManualClock>,
    /// The directory of accounts.
    pub accounts: AccountDirectory,
    /// The service itself.
    pub service: S,
    /// The store below the service.
    pub store: Arc<dyn Store>,
    /// The address on which the server listens.
    pub address: SocketAddr,
    kind: ServiceKind,
    build: BuildService<S>,
    server: Option<HttpServer>,
    limits: Limits,
    http: HttpClient<HttpConnector, Full<Bytes>>,
    /// The rows and bytes of the server.
    pub engine: Engine,
}

/// A whole reply.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: StatusCode,
    /// The headers, by name in lower case.
    pub headers: BTreeMap<String, String>,
    /// The whole body.
    pub body: Bytes,
}

impl Reply {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the ETag, or fails the test if there is none.
    pub fn etag(&self) -> &str {
        self.header("etag").unwrap_or_else(|| panic!("no tag in {self:?}"))
    }

    /// Returns the body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Returns the status and the error code, for comparison with the protocol's error tables.
    pub fn outcome(&self) -> (u16, &str) {
        (self.status.as_u16(), self.header("x-ms-error-code").unwrap_or(""))
    }

    /// Fails the test unless the reply has this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        let code = self.header("x-ms-error-code").unwrap_or("");
        assert_eq!(self.status.as_u16(), status, "{code} {}", self.text());
        self
    }

    /// Fails the test unless the reply is a refusal with this status and error code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!(self.outcome(), (status, code), "{}", self.text());
        self
    }
}

/// Appends an account SAS that allows everything in a service to the target.
pub fn allowed(kind: ServiceKind, target: &str) -> String {
    let permissions = match kind {
        ServiceKind::Blob => "rwdxylacuptfi",
        _ => "rwdlacup",
    };
    let fields = [
        ("sv", "2022-11-02"),
        ("ss", &kind.name()[..1]),
        ("srt", "sco"),
        ("sp", permissions),
        ("se", "2099-12-31T00:00:00Z"),
    ];
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{}", sign::account_sas(ACCOUNT, &key(), &fields))
}

/// Starts a server of one service on an empty store.
pub async fn start<S: Service + Clone + 'static>(
    kind: ServiceKind,
    build: impl Fn(Parts) -> S + Send + Sync + 'static,
) -> TestServer<S> {
    start_with(kind, build, Limits::default()).await
}

/// Starts a server like [`start`], with other limits.
pub async fn start_with<S: Service + Clone + 'static>(
    kind: ServiceKind,
    build: impl Fn(Parts) -> S + Send + Sync + 'static,
    limits: Limits,
) -> TestServer<S> {
    let clock = Arc::new(ManualClock::new(NOW));
    open(kind, Arc::new(build), Engine::new(clock.clone()), clock, limits).await
}

/// Starts a server like [`start_with`], but always on the embedded engine, for tests of its memory and
/// caches.
pub async fn start_embedded<S: Service + Clone + 'static>(
    kind: ServiceKind,
    build: impl Fn(Parts) -> S + Send + Sync + 'static,
    limits: Limits,
) -> TestServer<S> {
    let clock = Arc::new(ManualClock::new(NOW));
    open(kind, Arc::new(build), Engine::embedded(clock.clone()), clock, limits).await
}

async fn open<S: Service + Clone + 'static>(
    kind: ServiceKind,
    build: BuildService<S>,
    engine: Engine,
    clock: Arc<ManualClock>,
    limits: Limits,
) -> TestServer<S> {
    let accounts = AccountDirectory::open(engine.store.clone()).await.unwrap();
    for name in [ACCOUNT, OTHER_ACCOUNT] {
        if accounts.get(name).await.unwrap().is_none() {
            let (settings, roles) = (Default::default(), vec![]);
            let account = Account { name: name.into(), generation: 0, keys: vec![key()], settings, roles };
            accounts.add(account).await.unwrap();
        }
    }
    serve(kind, build, engine, accounts, clock, limits)
}

/// Starts a front end on a store.
fn serve<S: Service + Clone + 'static>(
    kind: ServiceKind,
    build: BuildService<S>,
    engine: Engine,
    accounts: AccountDirectory,
    clock: Arc<ManualClock>,
    limits: Limits,
) -> TestServer<S> {
    let gate = Arc::new(Admission {
        accounts: Arc::new(accounts.clone()),
        authenticator: Authenticator::new(MasterSecret::new(accounts.master_secret()), None),
        clock: engine.clock(),
        wall_clock: clock.clone(),
        host_suffixes: vec![],
    });
    let parts = Parts {
        store: engine.store.clone(),
        extents: engine.extents.clone(),
        accounts: accounts.clone(),
        gate: gate.clone(),
    };
    let service = build(parts);
    let level = ServiceLevel::new(kind, accounts.clone(), Arc::new(service.clone()));
    let address = ([127, 0, 0, 1], 0).into();
    let endpoint = Endpoint { kind, address, service: Arc::new(level) };
    let server = HttpServer::start(vec![endpoint], gate, None, limits.clone(), &Arc::default()).unwrap();
    let address = server.addresses().next().unwrap().1;
    let http = HttpClient::builder(TokioExecutor::new()).build_http();
    let (server, store) = (Some(server), engine.store.clone());
    TestServer { clock, accounts, service, store, address, kind, build, server, limits, http, engine }
}

impl<S: Service + Clone + 'static> TestServer<S> {
    /// Moves the clock by `seconds` and 1 ms, because stamps run ahead of a clock that stands still.
    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Span::millis(seconds * 1000 + 1));
    }

    /// Starts another front end on the same store.
    pub fn other_front_end(&self, build: impl Fn(Parts) -> S + Send + Sync + 'static) -> Self {
        let (engine, accounts) = (self.engine.clone(), self.accounts.clone());
        serve(self.kind, Arc::new(build), engine, accounts, self.clock.clone(), self.limits.clone())
    }

    /// Stops the server and starts it on the same data.
    pub async fn restart(mut self) -> Self {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(5)).await;
        }
        let (kind, build, engine) = (self.kind, self.build.clone(), self.engine.clone());
        let (clock, limits) = (self.clock.clone(), self.limits.clone());
        drop(self);
        open(kind, build, engine.reopen().await, clock, limits).await
    }

    /// Appends an account SAS that allows everything to the target.
    pub fn allowed(&self, target: &str) -> String {
        allowed(self.kind, target)
    }

    /// Sends a request with a signature that allows everything. `target` is the encoded path below the
    /// account, with its query; `headers` has one `name: value` per line.
    pub async fn call(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.send(method, &self.allowed(target), headers, body).await
    }

    /// Sends a request without adding a signature.
    pub async fn send(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.send_to(ACCOUNT, method, target, headers, body).await
    }

    /// Sends a request to `account` without adding a signature.
    pub async fn send_to(
        &self,
        account: &str,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send_path(method, &format!("/{account}{target}"), headers, body).await
    }

    /// Sends a request whose path is complete: it includes the account, unless the host names it.
    pub async fn send_path(&self, method: &str, path: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        let mut request = http::Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(format!("http://{}{path}", self.address));
        let mut version = false;
        for line in headers.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').unwrap();
            version |= name.eq_ignore_ascii_case("x-ms-version");
            request = request.header(name.trim(), value.trim());
        }
        if !version {
            request = request.header("x-ms-version", VERSION);
        }
        let body: Bytes = body.into();
        if matches!(method, "PUT" | "POST") && body.is_empty() {
            request = request.header("content-length", "0");
        }
        let response = self.http.request(request.body(Full::new(body)).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        Reply { status: head.status, headers, body: body.collect().await.unwrap().to_bytes() }
    }

    /// Sends a request signed with the account's key, for operations that no SAS can allow.
    pub async fn signed(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.signed_as(ACCOUNT, method, target, headers, body).await
    }

    /// Sends a request to `account`, signed with its key.
    pub async fn signed_as(
        &self,
        account: &str,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        let body: Bytes = body.into();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let now = date::rfc1123(self.clock.now());
        let lines = format!("{headers}\nx-ms-date: {now}\nx-ms-version: {VERSION}");
        let lines = lines.lines().filter_map(|line| line.trim().split_once(':'));
        let mut signed = http::HeaderMap::new();
        for (name, value) in lines.clone() {
            let name: http::HeaderName = name.trim().parse().unwrap();
            signed.insert(name, value.trim().parse().unwrap());
        }
        signed.insert("content-length", body.len().into());
        let message = Message {
            scheme: Scheme::SharedKey,
            service: self.kind,
            account,
            method,
            path: &format!("/{account}{path}"),
            query: &Query::parse(query).unwrap(),
            headers: &signed,
            version: Version::parse(VERSION).unwrap(),
        };
        let authorization = sign::authorization(&message, &key()).unwrap();
        let mut lines: Vec<_> = lines.map(|(name, value)| format!("{name}: {value}")).collect();
        lines.push(format!("authorization: {}", authorization.to_str().unwrap()));
        self.send_to(account, method, target, &lines.join("\n"), body).await
    }

    /// Sends a PUT request with a signature that allows everything.
    pub async fn put(&self, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.call("PUT", target, headers, body).await
    }

    /// Sends a POST request with a signature that allows everything.
    pub async fn post(&self, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.call("POST", target, headers, body).await
    }

    /// Sends a GET request with a signature that allows everything.
    pub async fn get(&self, target: &str, headers: &str) -> Reply {
        self.call("GET", target, headers, "").await
    }

    /// Sends a HEAD request with a signature that allows everything.
    pub async fn head(&self, target: &str, headers: &str) -> Reply {
        self.call("HEAD", target, headers, "").await
    }

    /// Sends a DELETE request with a signature that allows everything.
    pub async fn delete(&self, target: &str, headers: &str) -> Reply {
        self.call("DELETE", target, headers, "").await
    }
}
