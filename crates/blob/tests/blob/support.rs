//! A real server on a free port, on a store of its own and with a clock that the test moves; and a client for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lazuli_account::{AccountDirectory, ServiceLevel, Setting};
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_auth::{Authenticator, sign};
use lazuli_blob::{BlobRows, BlobService};
use lazuli_concurrency::{Clock, ManualClock, Span, Timestamp};
use lazuli_copy::CopySources;
use lazuli_extents::{Extents, Freed, LocalExtents, Pace, Sweep};
use lazuli_front::{Endpoint, Gate, Limits, Metrics, Server};
use lazuli_outbound::{Allow, Outbound};
use lazuli_protocol::account::Settings;
use lazuli_protocol::{Account, Key, Query, ServiceKind, Version};
use lazuli_store::interposed::Interposed;
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Row, SpaceId, Store, Which};
use tempfile::TempDir;

use crate::watched::Watch;

pub(crate) const ACCOUNT: &str = "lapis";
/// An account of the same server, with the same key.
pub(crate) const OTHER_ACCOUNT: &str = "malachite";
/// What the clock of a new server shows: 2026-01-02T03:04:05Z.
pub(crate) const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);
/// The version that requests carry if they name none.
pub(crate) const VERSION: &str = "2025-01-05";

pub(crate) fn key() -> Key {
    Key::from_bytes(b"a key for tests".to_vec())
}

/// The target with a signature that allows everything.
pub(crate) fn allowed(target: &str) -> String {
    let fields = [
        ("sv", "2022-11-02"),
        ("ss", "b"),
        ("srt", "sco"),
        ("sp", "rwdxylacuptfi"),
        ("se", "2099-12-31T00:00:00Z"),
    ];
    let sas = sign::account_sas(ACCOUNT, &key(), &fields);
    let separator = if target.contains('?') { '&' } else { '?' };
    format!("{target}{separator}{sas}")
}

/// A running server. Everything goes when it is dropped.
pub(crate) struct TestServer {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) accounts: AccountDirectory,
    pub(crate) service: BlobService,
    pub(crate) store: Arc<Embedded>,
    /// The store as the service sees it.
    pub(crate) watched: Arc<Interposed<Watch>>,
    pub(crate) extents: Arc<dyn Extents>,
    pub(crate) address: SocketAddr,
    server: Option<Server>,
    http: HttpClient<HttpConnector, Full<Bytes>>,
    directory: Arc<TempDir>,
    allow: Vec<Allow>,
}

struct StoreClock(Arc<Embedded>);

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

/// A reply, all of it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn etag(&self) -> &str {
        self.header("etag").unwrap_or_else(|| panic!("no tag in {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Status and error code, for comparison with the tables.
    pub(crate) fn outcome(&self) -> (u16, &str) {
        (self.status.as_u16(), self.header("x-ms-error-code").unwrap_or(""))
    }

    /// Fails the test unless the status is that one.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status.as_u16(),
            status,
            "{} {}",
            self.header("x-ms-error-code").unwrap_or(""),
            self.text()
        );
        self
    }

    /// Fails the test unless the refusal is that one.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!(self.outcome(), (status, code), "{}", self.text());
        self
    }
}

pub(crate) async fn start() -> TestServer {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    open(directory, Arc::new(ManualClock::new(NOW)), vec![]).await
}

/// A server that may copy from these places, as `--copy-source-allow` has them.
pub(crate) async fn start_allowing(allow: &[&str]) -> TestServer {
    let directory = Arc::new(tempfile::tempdir().unwrap());
    let allow = allow.iter().map(|entry| entry.parse().unwrap()).collect();
    open(directory, Arc::new(ManualClock::new(NOW)), allow).await
}

async fn open(directory: Arc<TempDir>, clock: Arc<ManualClock>, allow: Vec<Allow>) -> TestServer {
    std::fs::create_dir_all(directory.path().join("store")).unwrap();
    let store = Embedded::open(&directory.path().join("store"), clock.clone(), Options::SMALL).unwrap();
    let store = Arc::new(store);
    let extents: Arc<dyn Extents> =
        Arc::new(LocalExtents::open(directory.path(), Default::default()).unwrap());
    let accounts = AccountDirectory::open(store.clone() as Arc<dyn Store>).await.unwrap();
    for name in [ACCOUNT, OTHER_ACCOUNT] {
        if accounts.get(name).await.unwrap().is_none() {
            let account = Account {
                name: name.into(),
                generation: 0,
                keys: vec![key()],
                // Off by default; tests of policies and holds need it.
                settings: Settings { version_immutability: true, ..Settings::default() },
                roles: vec![],
            };
            accounts.add(account).await.unwrap();
        }
    }
    serve(store, extents, accounts, clock, directory, allow).await
}

/// A front end on a store.
async fn serve(
    store: Arc<Embedded>,
    extents: Arc<dyn Extents>,
    accounts: AccountDirectory,
    clock: Arc<ManualClock>,
    directory: Arc<TempDir>,
    allow: Vec<Allow>,
) -> TestServer {
    let watched = Arc::new(Interposed::new(store.clone(), Watch::default()));
    let gate = Arc::new(Gate {
        accounts: Arc::new(accounts.clone()),
        authenticator: Authenticator::new(MasterSecret::new(accounts.master_secret()), None),
        clock: Arc::new(StoreClock(store.clone())),
        machine: clock.clone(),
        host_suffixes: vec![],
    });
    let outbound = Outbound::new(allow.clone());
    let sources =
        CopySources { access: gate.clone(), host_suffixes: vec![], outbound, neighbours: Default::default() };
    let service =
        BlobService::new(watched.clone(), extents.clone(), accounts.clone()).with_copy_sources(sources);
    service.resume_copies().await;
    let level = ServiceLevel::new(ServiceKind::Blob, accounts.clone(), Some(Arc::new(service.clone())));
    let endpoint =
        Endpoint { kind: ServiceKind::Blob, address: ([127, 0, 0, 1], 0).into(), service: Arc::new(level) };
    let metrics = Arc::new(Metrics::default());
    let server = Server::start(vec![endpoint], gate, None, Limits::default(), &metrics).unwrap();
    let address = server.addresses().next().unwrap().1;
    let http = HttpClient::builder(TokioExecutor::new()).build_http();
    let server = Some(server);
    TestServer { clock, accounts, service, store, watched, extents, address, server, http, directory, allow }
}

impl TestServer {
    /// Moves the clock by so many seconds and a moment: stamps run ahead of a clock that stands still.
    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(Span::millis(seconds * 1000 + 1));
    }

    /// Something that takes so many seconds, for the store too.
    pub(crate) fn time_passes(&self, seconds: u64) -> impl FnOnce() + Send + 'static {
        let (clock, store) = (self.clock.clone(), self.store.clone());
        move || {
            let until = store.now() + Span::seconds(seconds);
            clock.advance(Span::seconds(seconds + 1));
            while store.now() < until {
                std::thread::yield_now();
            }
        }
    }

    /// Another front end on the same store, with a queue of its own.
    pub(crate) async fn other_front_end(&self) -> Self {
        let (store, extents, accounts) = (self.store.clone(), self.extents.clone(), self.accounts.clone());
        serve(store, extents, accounts, self.clock.clone(), self.directory.clone(), self.allow.clone()).await
    }

    /// Stops the server and starts it on the same data.
    pub(crate) async fn restart(mut self) -> Self {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::from_secs(5)).await;
        }
        self.service.stop_copies().await;
        let (directory, clock, store) = (self.directory.clone(), self.clock.clone(), self.store.clone());
        let allow = self.allow.clone();
        drop(self);
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
        open(directory, clock, allow).await
    }

    /// Frees content that no row refers to, as the server does in the background.
    pub(crate) async fn sweep(&self) -> Freed {
        let mut sweep = Sweep::begin(&self.extents, Pace::FULL).await.unwrap();
        let (mut rows, mut contents) = (BlobRows::default(), vec![]);
        let visit = |space, partition: &Bytes, row: &Row| {
            contents.extend(rows.contents(space, partition, row).unwrap());
            Ok(())
        };
        self.store.for_each_row(visit).unwrap();
        for content in contents {
            sweep.live(&content).await.unwrap();
        }
        sweep.finish().await.unwrap()
    }

    /// How many rows blobs have, in all containers.
    pub(crate) fn blob_rows(&self) -> usize {
        let mut rows = 0;
        let visit = |space, partition: &Bytes, _: &Row| {
            rows += usize::from(space != SpaceId::ROOT && partition.starts_with(b"b"));
            Ok(())
        };
        self.store.for_each_row(visit).unwrap();
        rows
    }

    /// Whether these bytes are anywhere in the server's files.
    pub(crate) fn is_on_disk(&self, bytes: &[u8]) -> bool {
        fn search(path: &Path, bytes: &[u8]) -> bool {
            if path.is_dir() {
                return std::fs::read_dir(path).unwrap().any(|entry| search(&entry.unwrap().path(), bytes));
            }
            memchr::memmem::find(&std::fs::read(path).unwrap(), bytes).is_some()
        }
        search(self.directory.path(), bytes)
    }

    /// Changes the account as `lazuli account set` does.
    pub(crate) async fn set(&self, setting: Setting) {
        self.accounts.set(ACCOUNT, vec![setting]).await.unwrap();
    }

    /// A request that is allowed everything. `target` is the path below the account, with its query, encoded.
    /// Headers are `name: value` lines.
    pub(crate) async fn call(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send(method, &allowed(target), headers, body).await
    }

    /// A request as it is: anonymous, or with a signature in its target.
    pub(crate) async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send_to(ACCOUNT, method, target, headers, body).await
    }

    /// The same to another account.
    pub(crate) async fn send_to(
        &self,
        account: &str,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send_path(method, &format!("/{account}{target}"), headers, body).await
    }

    /// A request whose path is all there is, the account included where it is not in the host.
    pub(crate) async fn send_path(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
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
        let headers = head.headers.iter();
        let headers = headers
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        Reply {
            status: head.status,
            headers: headers.collect(),
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    /// A request that is signed with the account's key, for the few that no signature in a URI can allow.
    pub(crate) async fn signed(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.signed_as(ACCOUNT, method, target, headers, body).await
    }

    pub(crate) async fn signed_as(
        &self,
        account: &str,
        method: &str,
        target: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        let body: Bytes = body.into();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let now = lazuli_protocol::date::rfc1123(self.clock.now());
        let lines = format!("{headers}\nx-ms-date: {now}\nx-ms-version: {VERSION}");
        let lines = lines.lines().filter_map(|line| line.trim().split_once(':'));
        let mut signed: http::HeaderMap = lines
            .clone()
            .map(|(name, value)| (name.trim().try_into().unwrap(), value.trim().try_into().unwrap()))
            .collect::<Vec<(http::HeaderName, http::HeaderValue)>>()
            .into_iter()
            .collect();
        signed.insert("content-length", body.len().into());
        let message = Message {
            scheme: Scheme::SharedKey,
            service: ServiceKind::Blob,
            account,
            method,
            path: &format!("/{account}{path}"),
            query: &Query::parse(query).unwrap(),
            headers: &signed,
            version: Version::parse(VERSION).unwrap(),
        };
        let authorization = sign::authorization(&message, &key()).unwrap();
        let authorization = authorization.to_str().unwrap();
        let mut lines: Vec<_> = lines.map(|(name, value)| format!("{name}: {value}")).collect();
        lines.push(format!("authorization: {authorization}"));
        self.send_to(account, method, target, &lines.join("\n"), body).await
    }

    pub(crate) async fn put(&self, target: &str, headers: &str, body: impl Into<Bytes>) -> Reply {
        self.call("PUT", target, headers, body).await
    }

    pub(crate) async fn get(&self, target: &str, headers: &str) -> Reply {
        self.call("GET", target, headers, "").await
    }

    pub(crate) async fn head(&self, target: &str, headers: &str) -> Reply {
        self.call("HEAD", target, headers, "").await
    }

    pub(crate) async fn delete(&self, target: &str, headers: &str) -> Reply {
        self.call("DELETE", target, headers, "").await
    }

    /// The space of the only container: its row begins with it.
    pub(crate) async fn only_space(&self) -> SpaceId {
        let from = (Bytes::from_static(b"blob/"), Bytes::new());
        let found = self.store.scan_space(SpaceId::ROOT, from, None, Which::First, 1).await.unwrap();
        let mut space = 0;
        for (at, digit) in found.rows[0].1.value.iter().skip(1).enumerate() {
            space |= u64::from(digit & 0x7F) << (7 * at);
            if digit & 0x80 == 0 {
                break;
            }
        }
        SpaceId(space)
    }

    /// Changes a row of the only container behind the service's back.
    pub(crate) async fn change_row(&self, partition: &'static str, mutation: Mutation) {
        let space = self.only_space().await;
        let epoch = self.store.space(space).await.unwrap().unwrap().epoch;
        let commit = Commit {
            stamp: self.store.stamp(),
            epoch,
            conditions: vec![],
            mutations: vec![mutation],
            valid_until: None,
            bulk: false,
        };
        self.store.commit(&Partition::new(space, partition), commit).await.unwrap();
    }

    /// Keeps what is deleted for so many days, or not at all.
    pub(crate) async fn soft_delete(&self, days: Option<u16>) {
        let policy = match days {
            Some(days) => format!(
                "<Enabled>true</Enabled><Days>{days}</Days><AllowPermanentDelete>true</AllowPermanentDelete>"
            ),
            None => "<Enabled>false</Enabled>".to_owned(),
        };
        let body = format!(
            "<StorageServiceProperties><DeleteRetentionPolicy>{policy}</DeleteRetentionPolicy>\
             </StorageServiceProperties>"
        );
        self.put("/?restype=service&comp=properties", "", body).await.expect(202);
    }

    /// Turns versioning on or off.
    pub(crate) async fn versioning(&self, on: bool) {
        self.set(Setting::BlobVersioning(on)).await;
    }

    /// Takes a snapshot of a blob; its id.
    pub(crate) async fn snapshot(&self, target: &str) -> String {
        let taken = self.put(&format!("{target}?comp=snapshot"), "", "").await.expect(201);
        taken.header("x-ms-snapshot").unwrap().to_owned()
    }

    /// A container.
    pub(crate) async fn create_container(&self, name: &str) {
        self.put(&format!("/{name}?restype=container"), "", "").await.expect(201);
    }

    /// A block blob.
    pub(crate) async fn put_block_blob(&self, target: &str, body: impl Into<Bytes>) -> Reply {
        self.put(target, "x-ms-blob-type: BlockBlob", body).await.expect(201)
    }
}
