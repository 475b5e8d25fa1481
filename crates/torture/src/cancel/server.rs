//! All services on one data directory, in this process and without a socket, so that the polls of a request
//! can be counted.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body::Frame;
use lazuli_account::{AccountDirectory, ServiceLevel};
use lazuli_blob::BlobService;
use lazuli_concurrency::{Pace, SystemClock, Timestamp};
use lazuli_content::sweep::ContentSweeper;
use lazuli_copy::{CopySources, LocalServices};
use lazuli_extents::{Extents, LocalExtents};
use lazuli_file::FileService;
use lazuli_outbound::{Allow, Outbound};
use lazuli_protocol::operation::{Operation, route};
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::request::{BodyError, Caller, RequestBody, SubRequests, collect};
use lazuli_protocol::{
    Account, Address, Key, Query, Refusal, Request, Response, Service, ServiceKind, SourceAccess, SourceRead,
    Version,
};
use lazuli_queue::QueueService;
use lazuli_store::interposed::Interposed;
use lazuli_store::{Embedded, Store};
use lazuli_table::TableService;

use super::delayed_commits::DelayedCommits;

const VERSION: &str = "2025-01-05";
/// Maximum size of a reply in these tests.
const MAX_REPLY_BYTES: usize = 4 << 20;
/// Bytes of a request's body that arrive at a time.
const BODY_PIECE_BYTES: usize = 16 << 10;

/// A reply. The body of a refusal is its error code and text.
#[derive(Debug)]
pub(crate) struct TestReply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl TestReply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// All services of a data directory.
pub(crate) struct AllServices {
    pub(crate) store: Arc<Embedded>,
    pub(crate) delayed: Arc<Interposed<DelayedCommits>>,
    pub(crate) accounts: AccountDirectory,
    pub(crate) sweeper: ContentSweeper,
    blob: BlobService,
    queue: QueueService,
    table: TableService,
    file: FileService,
    levels: Vec<Arc<dyn Service>>,
}

impl AllServices {
    pub(crate) async fn open(dir: &Path) -> Arc<Self> {
        let store_dir = dir.join("store");
        std::fs::create_dir_all(&store_dir).expect("a directory");
        let store = Embedded::open(&store_dir, Arc::new(SystemClock), lazuli_store::Options::SMALL);
        let store = Arc::new(store.unwrap_or_else(|error| panic!("the store does not open: {error}")));
        let delayed = Arc::new(Interposed::new(store.clone(), DelayedCommits::start(store.clone())));
        let extents: Arc<dyn Extents> =
            Arc::new(LocalExtents::open(dir, Default::default()).expect("the extents open"));
        let accounts = AccountDirectory::open(store.clone()).await.expect("the accounts open");
        let blob = BlobService::new(delayed.clone(), extents.clone(), accounts.clone());
        let file = FileService::new(delayed.clone(), extents.clone(), accounts.clone());
        let local_services = LocalServices::new([
            (ServiceKind::Blob, Arc::new(blob.clone()) as Arc<dyn Service>),
            (ServiceKind::File, Arc::new(file.clone())),
        ]);
        local_services.set_ports(ServiceKind::ALL.map(|kind| (kind, port(kind))));
        let access = Arc::new(AllowAllSources { accounts: accounts.clone(), store: store.clone() });
        let outbound = Outbound::new(Vec::<Allow>::new());
        let sources = CopySources { access, host_suffixes: vec![], outbound, local_services };
        let (blob, file) = (blob.with_copy_sources(sources.clone()), file.with_copy_sources(sources));
        let queue = QueueService::new(delayed.clone(), accounts.clone());
        let table = TableService::new(delayed.clone(), accounts.clone());
        let level = |kind| {
            let service: Arc<dyn Service> = match kind {
                ServiceKind::Blob => Arc::new(blob.clone()),
                ServiceKind::Queue => Arc::new(queue.clone()),
                ServiceKind::Table => Arc::new(table.clone()),
                ServiceKind::File => Arc::new(file.clone()),
            };
            Arc::new(ServiceLevel::new(kind, accounts.clone(), service)) as Arc<dyn Service>
        };
        let levels = ServiceKind::ALL.map(level).to_vec();
        let readers = [lazuli_blob::content_of_row, lazuli_file::content_of_row];
        let sweeper = ContentSweeper::new(delayed.clone(), extents.clone(), readers, dir.join("sweep"))
            .with_page_rows(7);
        blob.resume_copies().await;
        file.resume_copies().await;
        Arc::new(Self { store, delayed, accounts, sweeper, blob, queue, table, file, levels })
    }

    pub(crate) async fn add_account(&self, name: &str) -> Arc<Account> {
        let keys = vec![Key::from_bytes(vec![1; 32])];
        let settings = lazuli_protocol::account::Settings {
            container_delete_retention_days: Some(7),
            version_immutability: true,
            ..Default::default()
        };
        let account = Account { name: name.into(), generation: 0, keys, settings, roles: vec![] };
        self.accounts.add(account).await.expect("added")
    }

    /// Removes the rows of everything that was deleted.
    pub(crate) async fn sweep_garbage(&self) -> Result<(), Refusal> {
        self.blob.sweep_garbage(Pace::FULL).await?;
        self.queue.sweep_garbage(Pace::FULL).await?;
        self.table.sweep(Pace::FULL).await?;
        self.file.sweep(Pace::FULL).await?;
        Ok(())
    }

    /// Sends one request: a line with method and target, lines of headers, an empty line, the body.
    pub(crate) async fn call(
        &self,
        account: &Arc<Account>,
        service: ServiceKind,
        text: &str,
    ) -> Result<TestReply, String> {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        let (method, target, headers) = parse_head(head);
        let properties = self.accounts.properties(&account.name, service).await;
        let properties = properties.map_err(|error| error.to_string())?;
        let requests = TestRequests { account: account.clone(), properties, service, now: self.store.now() };
        let request = requests.request(&method, target, headers, parse_body(body));
        let answer = match request {
            Ok(request) => self.levels[service as usize].call(request).await,
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(Response { status, headers, mut body }) => {
                let body = collect(Pin::new(&mut body), MAX_REPLY_BYTES)
                    .await
                    .map_err(|refusal| refusal.to_string())?;
                Ok(TestReply { status: status.as_u16(), headers, body })
            }
            Err(refusal) => {
                let (status, body) = (refusal.status().as_u16(), format!("{refusal:?}").into());
                Ok(TestReply { status, headers: HeaderMap::new(), body })
            }
        }
    }
}

/// Parses method, target and headers.
fn parse_head(head: &str) -> (Method, &str, HeaderMap) {
    let mut lines = head.lines();
    let line = lines.next().and_then(|line| line.split_once(' '));
    let (method, target) = line.expect("a method and a target");
    let headers = lines.filter_map(|line| line.trim().split_once(": ")).map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        (name, HeaderValue::from_str(value).expect("a value"))
    });
    (Method::from_bytes(method.as_bytes()).expect("a method"), target, headers.collect())
}

/// Returns the port in URLs of a service.
pub(crate) fn port(kind: ServiceKind) -> u16 {
    10_000 + kind as u16
}

/// Parses a body. `@12000` stands for 12,000 bytes of noise, `@12000x` for other noise.
fn parse_body(text: &str) -> Bytes {
    let Some(rest) = text.strip_prefix('@') else { return Bytes::copy_from_slice(text.as_bytes()) };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let length = rest[..digits].parse().expect("a length");
    crate::payload::filled(rest.len() - digits, length as u64, length).into()
}

/// Authorizes every read of a copy's source.
struct AllowAllSources {
    accounts: AccountDirectory,
    store: Arc<Embedded>,
}

#[async_trait]
impl SourceAccess for AllowAllSources {
    async fn admit(&self, read: &SourceRead<'_>, _: &dyn Service) -> Result<Arc<Account>, Refusal> {
        self.account(&read.address.account).await
    }

    async fn account(&self, name: &str) -> Result<Arc<Account>, Refusal> {
        let account = self.accounts.get(name).await?;
        account.ok_or_else(|| Refusal::not_implemented("a source in no account"))
    }

    fn now(&self) -> Timestamp {
        self.store.now()
    }
}

/// Builds the requests of one account, including sub-requests of batches.
struct TestRequests {
    account: Arc<Account>,
    properties: Arc<ServiceProperties>,
    service: ServiceKind,
    now: Timestamp,
}

impl TestRequests {
    fn address(&self, target: &str) -> Result<(Address, Query), Refusal> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = Query::parse(query)?;
        let path = format!("/{}{path}", self.account.name);
        Ok((Address::parse(self.service, "127.0.0.1", &path, &query, &[])?, query))
    }

    fn request(
        &self,
        method: &Method,
        target: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request, Refusal> {
        let (address, query) = self.address(target)?;
        let operation = route(self.service, method, &address.container, &address.object, &query, &headers)?;
        let (account, properties) = (self.account.clone(), self.properties.clone());
        let requests = Self { account, properties, ..*self };
        Ok(Request {
            operation,
            account: self.account.clone(),
            properties: self.properties.clone(),
            container: address.container,
            object: address.object,
            query,
            headers,
            version: Version::parse(VERSION).expect("a version"),
            caller: Caller::Key,
            content_length: Some(body.len() as u64),
            body: slow_body(body),
            now: self.now,
            request_id: uuid::Uuid::nil(),
            endpoint: format!("http://127.0.0.1:{}/{}", port(self.service), self.account.name),
            secure: false,
            peer: [127, 0, 0, 1].into(),
            sub_requests: Some(Arc::new(requests)),
        })
    }
}

#[async_trait]
impl SubRequests for TestRequests {
    fn locate(&self, head: &Parts) -> Result<(Operation, Address), Refusal> {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let (address, query) = self.address(target)?;
        let (container, object) = (&address.container, &address.object);
        Ok((route(self.service, &head.method, container, object, &query, &head.headers)?, address))
    }

    async fn admit(&self, head: Parts, _: uuid::Uuid) -> Result<Request, Refusal> {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        self.request(&head.method, target, head.headers, Bytes::new())
    }
}

/// Returns a body that arrives in pieces and is pending before each piece.
fn slow_body(bytes: Bytes) -> RequestBody {
    Box::pin(SlowBody { bytes, is_ready: false })
}

struct SlowBody {
    bytes: Bytes,
    is_ready: bool,
}

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_ready = !self.is_ready;
        if self.is_ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = self.bytes.len().min(BODY_PIECE_BYTES);
        let piece = self.bytes.split_to(most);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// Returns the operation of a request.
pub(crate) fn operation(service: ServiceKind, text: &str) -> Result<Operation, Refusal> {
    let (head, _) = text.split_once("\n\n").unwrap_or((text, ""));
    let account = Account {
        name: "account".into(),
        generation: 0,
        keys: vec![],
        settings: Default::default(),
        roles: vec![],
    };
    let properties = Arc::default();
    let requests =
        TestRequests { account: Arc::new(account), properties, service, now: Timestamp::default() };
    let (method, target, headers) = parse_head(head);
    Ok(requests.request(&method, target, headers, Bytes::new())?.operation)
}
