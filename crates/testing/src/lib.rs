//! For tests only: a service on a free port, on a store of its own and with a clock that the test moves; and a client for
//! it. What fails here fails the test, so everything may panic.
#![allow(clippy::unwrap_used)]

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
use lazuli_extents::{Extents, LocalExtents};
use lazuli_front::{Endpoint, Gate, Limits, Server};
use lazuli_protocol::{Account, Key, Query, Service, ServiceKind, Version, date};
use lazuli_store::{Embedded, Options, Store};
use tempfile::TempDir;

/// The account that requests address.
pub const ACCOUNT: &str = "lapis";
/// An account of the same server, with the same key.
pub const OTHER_ACCOUNT: &str = "malachite";
/// What the clock of a new server shows: 2026-01-02T03:04:05Z.
pub const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);
/// The version that requests carry if they name none.
pub const VERSION: &str = "2025-01-05";

/// The key of the accounts.
pub fn key() -> Key {
    Key::from_bytes(b"a key for tests".to_vec())
}

/// What a service is made on.
pub struct Parts {
    /// Rows.
    pub store: Arc<dyn Store>,
    /// Bytes.
    pub extents: Arc<dyn Extents>,
    /// Accounts.
    pub accounts: AccountDirectory,
    /// Who is let in.
    pub gate: Arc<Gate>,
}

/// Makes a service.
pub type Make<S> = fn(Parts) -> S;

/// A running server. Everything goes when it is dropped.
pub struct TestServer<S> {
    /// What the store's clock follows.
    pub clock: Arc<ManualClock>,
    /// The directory of accounts.
    pub accounts: AccountDirectory,
    /// The service itself.
    pub service: S,
    /// The store under it.
    pub store: Arc<Embedded>,
    extents: Arc<dyn Extents>,
    /// Where it listens.
    pub address: SocketAddr,
    kind: ServiceKind,
    make: Make<S>,
    server: Option<Server>,
    http: HttpClient<HttpConnector, Full<Bytes>>,
    directory: Arc<TempDir>,
}

struct StoreClock(Arc<Embedded>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// A reply, all of it.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers, by name in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The tag, which has to be there.
    pub fn etag(&self) -> &str {
        self.header("etag").unwrap_or_else(|| panic!("no tag in {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Status and error code, for comparison with the tables.
    pub fn outcome(&self) -> (u16, &str) {
        (self.status.as_u16(), self.header("x-ms-error-code").unwrap_or(""))
    }

    /// Fails the test unless the status is that one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        let code = self.header("x-ms-error-code").unwrap_or("");
        assert_eq!(self.status.as_u16(), status, "{code} {}", self.text());
        self
    }

    /// Fails the test unless the refusal is that one.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!(self.outcome(), (status, code), "{}", self.text());
        self
    }
}

/// A server of a kind on an empty store.
pub async fn start<S: Service + Clone + 'static>(kind: ServiceKind, make: Make<S>) -> TestServer<S> {
    open(kind, make, Arc::new(tempfile::tempdir().unwrap()), Arc::new(ManualClock::new(NOW))).await
}

async fn open<S: Service + Clone + 'static>(
    kind: ServiceKind,
    make: Make<S>,
    directory: Arc<TempDir>,
    clock: Arc<ManualClock>,
) -> TestServer<S> {
    let store_directory = directory.path().join("store");
    std::fs::create_dir_all(&store_directory).unwrap();
    let store = Arc::new(Embedded::open(&store_directory, clock.clone(), Options::SMALL).unwrap());
    let extents: Arc<dyn Extents> =
        Arc::new(LocalExtents::open(directory.path(), Default::default()).unwrap());
    let accounts = AccountDirectory::open(store.clone() as Arc<dyn Store>).await.unwrap();
    for name in [ACCOUNT, OTHER_ACCOUNT] {
        if accounts.get(name).await.unwrap().is_none() {
            let (settings, roles) = (Default::default(), vec![]);
            let account = Account { name: name.into(), generation: 0, keys: vec![key()], settings, roles };
            accounts.add(account).await.unwrap();
        }
    }
    serve(kind, make, directory, clock, store, extents, accounts)
}

/// A front end on a store.
fn serve<S: Service + Clone + 'static>(
    kind: ServiceKind,
    make: Make<S>,
    directory: Arc<TempDir>,
    clock: Arc<ManualClock>,
    store: Arc<Embedded>,
    extents: Arc<dyn Extents>,
    accounts: AccountDirectory,
) -> TestServer<S> {
    let gate = Arc::new(Gate {
        accounts: Arc::new(accounts.clone()),
        authenticator: Authenticator::new(MasterSecret::new(accounts.master_secret()), None),
        clock: Arc::new(StoreClock(store.clone())),
        machine: clock.clone(),
        host_suffixes: vec![],
    });
    let parts = Parts {
        store: store.clone(),
        extents: extents.clone(),
        accounts: accounts.clone(),
        gate: gate.clone(),
    };
    let service = make(parts);
    let level = ServiceLevel::new(kind, accounts.clone(), Some(Arc::new(service.clone())));
    let address = ([127, 0, 0, 1], 0).into();
    let endpoint = Endpoint { kind, address, service: Arc::new(level) };
    let server = Server::start(vec![endpoint], gate, None, Limits::default(), &Arc::default()).unwrap();
    let address = server.addresses().next().unwrap().1;
    let http = HttpClient::builder(TokioExecutor::new()).build_http();
    let server = Some(server);
    TestServer { clock, accounts, service, store, extents, address, kind, make, server, http, directory }
}

impl<S: Service + Clone + 'static> TestServer<S> {
    /// Moves the clock by so many seconds and a moment: stamps run ahead of a clock that stands still.
    pub fn advance(&self, seconds: u64) {
        self.clock.advance(Span::millis(seconds * 1000 + 1));
    }

    /// Another front end on the same store.
    pub fn other_front_end(&self, make: Make<S>) -> Self {
        let (directory, clock) = (self.directory.clone(), self.clock.clone());
        let (store, extents, accounts) = (self.store.clone(), self.extents.clone(), self.accounts.clone());
        serve(self.kind, make, directory, clock, store, extents, accounts)
    }

    /// Stops the server and starts it on the same data.
    pub async fn restart(mut self) -> Self {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(5)).await;
        }
        let (kind, make, store) = (self.kind, self.make, self.store.clone());
        let (directory, clock) = (self.directory.clone(), self.clock.clone());
        drop(self);
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
        open(kind, make, directory, clock).await
    }

    /// The target with a signature that allows everything.
    pub fn allowed(&self, target: &str) -> String {
        let letter = &self.kind.name()[..1];
        let fields = [
            ("sv", "2022-11-02"),
            ("ss", letter),
            ("srt", "sco"),
            ("sp", "rwdlacup"),
            ("se", "2099-12-31T00:00:00Z"),
        ];
        let separator = if target.contains('?') { '&' } else { '?' };
        format!("{target}{separator}{}", sign::account_sas(ACCOUNT, &key(), &fields))
    }

    /// A request that is allowed everything. `target` is the path below the account, with its query, encoded. Headers are
    /// `name: value` lines.
    pub async fn call(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.send(method, &self.allowed(target), headers, body).await
    }

    /// A request as it is: anonymous, or with a signature in its target.
    pub async fn send(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        let mut request = http::Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(format!("http://{}/{ACCOUNT}{target}", self.address));
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

    /// A request that is signed with the account's key, for the few that no signature in a URI can allow.
    pub async fn signed(&self, method: &str, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        let body: Bytes = body.into();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let now = date::rfc1123(self.store.now());
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
            account: ACCOUNT,
            method,
            path: &format!("/{ACCOUNT}{path}"),
            query: &Query::parse(query).unwrap(),
            headers: &signed,
            version: Version::parse(VERSION).unwrap(),
        };
        let authorization = sign::authorization(&message, &key()).unwrap();
        let mut lines: Vec<_> = lines.map(|(name, value)| format!("{name}: {value}")).collect();
        lines.push(format!("authorization: {}", authorization.to_str().unwrap()));
        self.send(method, target, &lines.join("\n"), body).await
    }

    /// PUT.
    pub async fn put(&self, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.call("PUT", target, headers, body).await
    }

    /// POST.
    pub async fn post(&self, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.call("POST", target, headers, body).await
    }

    /// GET.
    pub async fn get(&self, target: &str, headers: &str) -> Reply {
        self.call("GET", target, headers, "").await
    }

    /// DELETE.
    pub async fn delete(&self, target: &str, headers: &str) -> Reply {
        self.call("DELETE", target, headers, "").await
    }
}
