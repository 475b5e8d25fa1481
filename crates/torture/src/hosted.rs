//! A service in a worker process: the store of a data directory, an account, and calls without a socket.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_account::AccountDirectory;
use lazuli_concurrency::SystemClock;
use lazuli_extents::{Content, LocalExtents};
use lazuli_protocol::account::Settings;
use lazuli_protocol::operation::{Operation, route};
use lazuli_protocol::request::{Caller, SubRequests, collect, full};
use lazuli_protocol::{
    Account, Address, Key, Query, Refusal, Request, Response, Service, ServiceKind, Version,
};
use lazuli_service::Damage;
use lazuli_store::{Directory, Embedded, ReadError, Row, SpaceId, Store, embedded};

use crate::child::Parent;
use crate::workload::{
    Acknowledged, CLIENTS, REFUSED, SMALL_TABLES, VERIFIED, report_failures, report_wrong,
};

const ACCOUNT: &str = "torture";
/// Pause between two garbage sweeps.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
/// Maximum size of a reply in these tests.
const MAX_REPLY_BYTES: usize = 4 << 20;

/// A reply's headers and body, or a refusal's status and text.
pub(crate) type Replied = Result<(HeaderMap, Bytes), (StatusCode, String)>;

/// The store of a data directory, with an account.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) store: Arc<Embedded>,
    pub(crate) accounts: AccountDirectory,
    pub(crate) account: Arc<Account>,
    _directory: Arc<Directory>,
}

/// A service that a worker runs on its data directory.
pub(crate) trait HostedService: Sized {
    /// Checks the directory before it is opened.
    fn check(dir: &Path) -> impl Future<Output = Result<(), String>>;

    /// Opens the service.
    fn open(host: Host, dir: &Path) -> impl Future<Output = Self>;

    /// Verifies that every client finds the last acknowledged operation or the next one. Returns the verified
    /// counts.
    fn verify(&self, acknowledged: &Acknowledged) -> impl Future<Output = [u64; CLIENTS]>;

    /// Runs all clients until the service refuses writes. Returns the refusal.
    fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> impl Future<Output = String>;

    /// Sweeps continuously, as a server does. Returns only if something is wrong.
    fn sweep(&self) -> impl Future<Output = String>;
}

/// Runs a worker: opens and verifies the directory, reports that, and works until the process is killed.
pub(crate) fn work<W: HostedService>(parent: &Parent) {
    let [dir, acknowledged] = parent.arguments() else { panic!("a directory and what was acknowledged") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (dir, acknowledged) = (Path::new(dir), Acknowledged::from_argument(acknowledged));
        let directory = Directory::open(dir).expect("the directory opens");
        let store_dir = directory.subdirectory("store").expect("made");
        if store_dir.join("tree").join("current").exists() {
            W::check(dir).await.expect("a clean check");
        }
        let host = Host::open(directory, &store_dir).await;
        let store = host.store.clone();
        let stamp = store.stamp().ticks();
        assert!(stamp > acknowledged.stamp, "stamp {stamp} comes after {} was given out", acknowledged.stamp);
        let service = W::open(host, dir).await;
        let counts = service.verify(&acknowledged).await;
        let counts_text: Vec<_> = counts.iter().map(u64::to_string).collect();
        parent.ack(VERIFIED, &counts_text.join(" ")).expect("the parent listens");
        let refused = tokio::select! {
            refused = service.run(counts, parent) => refused,
            wrong = service.sweep() => return report_wrong(parent, &wrong),
            () = report_failures(&store, parent) => return,
        };
        parent.ack(REFUSED, &refused.replace('\n', " ")).expect("the parent listens");
    });
}

/// Sweeps garbage continuously. A failed sweep is repeated by the next one.
pub(crate) async fn sweep_garbage_continuously<T>(
    mut sweep: impl AsyncFnMut() -> Result<T, Refusal>,
) -> String {
    loop {
        let _ = sweep().await;
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

/// Checks a directory that is not open, like `lazuli check`: its rows, and the content to which they refer.
pub(crate) async fn check_contents<C: IntoIterator<Item = Content>>(
    dir: &Path,
    mut contents: impl FnMut(SpaceId, &[u8], &Row) -> Result<C, Damage>,
) -> Result<(), String> {
    let mut found = vec![];
    embedded::check(&dir.join("store"), |space, partition, row| {
        let contents = contents(space, partition, row);
        found.extend(contents.map_err(|damage| ReadError::Damaged(damage.to_string()))?);
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let extents = LocalExtents::open_read_only(dir).map_err(|error| error.to_string())?;
    let mut verifier = extents.verifier();
    for content in found {
        let lost = verifier.content(&content).await.map_err(|error| error.to_string())?;
        if let Some((extent, error)) = lost.first() {
            return Err(format!("{extent:?}: {error}"));
        }
    }
    Ok(())
}

impl Host {
    async fn open(directory: Directory, store_dir: &Path) -> Self {
        let store = Embedded::open(store_dir, Arc::new(SystemClock), SMALL_TABLES);
        let store = Arc::new(store.unwrap_or_else(|error| panic!("the store does not open: {error}")));
        let accounts = AccountDirectory::open(store.clone()).await.expect("the accounts open");
        let account = match accounts.get(ACCOUNT).await.expect("read") {
            Some(account) => account,
            None => {
                let keys = vec![Key::from_bytes(vec![1; 32])];
                // Lets deleted containers be restored.
                let settings = Settings { container_delete_retention_days: Some(7), ..Settings::default() };
                let roles = vec![];
                let account = Account { name: ACCOUNT.into(), generation: 0, keys, settings, roles };
                accounts.add(account).await.expect("added")
            }
        };
        Self { store, accounts, account, _directory: Arc::new(directory) }
    }

    /// Sends one operation on a container and an object to a service. Returns the whole reply.
    pub(crate) async fn call(
        &self,
        service: &dyn Service,
        operation: Operation,
        (container, object): (&str, &str),
        query: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Replied {
        let headers = headers.iter().map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::try_from(*value).expect("a value"))
        });
        let request = Request {
            operation,
            account: self.account.clone(),
            properties: Arc::default(),
            container: container.into(),
            object: object.into(),
            query: Query::parse(query).expect("a query"),
            headers: headers.collect(),
            version: Version::parse("2025-01-05").expect("a version"),
            caller: Caller::Key,
            content_length: Some(body.len() as u64),
            body: full(body),
            now: self.store.now(),
            request_id: uuid::Uuid::nil(),
            endpoint: format!("http://127.0.0.1/{ACCOUNT}"),
            secure: false,
            peer: [127, 0, 0, 1].into(),
            sub_requests: Some(Arc::new(BatchLocator(operation.row().service))),
        };
        let refused = |refusal: Refusal| (refusal.status(), refusal.to_string());
        let Response { headers, mut body, .. } = service.call(request).await.map_err(refused)?;
        let body = collect(Pin::new(&mut body), MAX_REPLY_BYTES).await.map_err(refused)?;
        Ok((headers, body))
    }
}

/// Locates the operations of a batch. They use the credentials of the batch.
struct BatchLocator(ServiceKind);

#[async_trait]
impl SubRequests for BatchLocator {
    fn locate(&self, head: &Parts) -> Result<(Operation, Address), Refusal> {
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let path = format!("/{ACCOUNT}{}", head.uri.path());
        let address = Address::parse(self.0, "127.0.0.1", &path, &query, &[])?;
        let (container, object) = (&address.container, &address.object);
        Ok((route(self.0, &head.method, container, object, &query, &head.headers)?, address))
    }

    async fn admit(&self, _: Parts, _: uuid::Uuid) -> Result<Request, Refusal> {
        Err(Refusal::not_implemented("a batch of requests"))
    }
}
