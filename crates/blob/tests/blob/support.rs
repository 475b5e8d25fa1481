//! The blob service on a real port, see `lazuli_testing`, with a store that tests can observe and disturb.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lazuli_account::Setting;
use lazuli_blob::{BlobRows, BlobService};
use lazuli_concurrency::{Pace, Span};
use lazuli_copy::CopySources;
use lazuli_extents::{Freed, Sweep};
use lazuli_outbound::{Allow, Outbound};
use lazuli_protocol::ServiceKind;
use lazuli_store::interposed::Interposed;
use lazuli_store::{Commit, Mutation, Partition, Row, SpaceId, Which};
use lazuli_testing::{AllRows, Parts};

use crate::store_probe::StoreProbe;

pub(crate) use lazuli_testing::{ACCOUNT, NOW, OTHER_ACCOUNT, Reply, VERSION, key};

/// Returns the target with a signature that allows everything.
pub(crate) fn allowed(target: &str) -> String {
    lazuli_testing::allowed(ServiceKind::Blob, target)
}

/// A running server. Dropping it removes its data.
pub(crate) struct TestServer {
    server: lazuli_testing::TestServer<BlobService>,
    /// The store that the service uses.
    pub(crate) watched: Arc<Interposed<StoreProbe>>,
    maker: Maker,
}

impl Deref for TestServer {
    type Target = lazuli_testing::TestServer<BlobService>;

    fn deref(&self) -> &Self::Target {
        &self.server
    }
}

/// Creates services that may copy from the allowed sources.
#[derive(Clone)]
struct Maker {
    allow: Vec<Allow>,
    /// The store of the last service that was created.
    watched: Arc<Mutex<Option<Arc<Interposed<StoreProbe>>>>>,
}

impl Maker {
    fn make(&self, parts: Parts) -> BlobService {
        let watched = Arc::new(Interposed::new(parts.store, StoreProbe::default()));
        *self.watched.lock().unwrap() = Some(watched.clone());
        let outbound = Outbound::new(self.allow.clone());
        let local_services = Default::default();
        let sources = CopySources { access: parts.gate, host_suffixes: vec![], outbound, local_services };
        BlobService::new(watched, parts.extents, parts.accounts).with_copy_sources(sources)
    }

    /// Wraps the test server whose service was just created.
    async fn serve(self, server: lazuli_testing::TestServer<BlobService>) -> TestServer {
        for account in [ACCOUNT, OTHER_ACCOUNT] {
            // Version-level immutability is off by default. Tests of policies and holds need it.
            server.accounts.set(account, vec![Setting::VersionImmutability(true)]).await.unwrap();
        }
        server.service.resume_copies().await;
        let watched = self.watched.lock().unwrap().take().unwrap();
        TestServer { server, watched, maker: self }
    }
}

pub(crate) async fn start() -> TestServer {
    start_allowing(&[]).await
}

/// Starts a server whose files a test can examine.
pub(crate) async fn start_with_files() -> TestServer {
    let maker = Maker { allow: vec![], watched: Arc::default() };
    let making = maker.clone();
    let make = move |parts| making.make(parts);
    maker.serve(lazuli_testing::start_embedded(ServiceKind::Blob, make, Default::default()).await).await
}

/// Starts a server that may copy from these sources, in the form of `--copy-source-allow`.
pub(crate) async fn start_allowing(allow: &[&str]) -> TestServer {
    let allow = allow.iter().map(|entry| entry.parse().unwrap()).collect();
    let maker = Maker { allow, watched: Arc::default() };
    let making = maker.clone();
    let server = lazuli_testing::start(ServiceKind::Blob, move |parts| making.make(parts)).await;
    maker.serve(server).await
}

impl TestServer {
    /// Returns an action that advances the clocks of the machine and the store.
    pub(crate) fn let_time_pass(&self, seconds: u64) -> impl FnOnce() + Send + 'static {
        let (clock, store) = (self.clock.clone(), self.store.clone());
        move || {
            let until = store.now() + Span::seconds(seconds);
            clock.advance(Span::seconds(seconds + 1));
            while store.now() < until {
                std::thread::yield_now();
            }
        }
    }

    /// Starts another front end on the same store, with its own in-process gates.
    pub(crate) async fn other_front_end(&self) -> Self {
        let making = self.maker.clone();
        let server = self.server.other_front_end(move |parts| making.make(parts));
        self.maker.clone().serve(server).await
    }

    /// Stops the server and starts it on the same data.
    pub(crate) async fn restart(self) -> Self {
        let Self { server, watched, maker } = self;
        drop(watched);
        server.service.stop_copies().await;
        maker.serve(server.restart().await).await
    }

    /// Sweeps content, as the server does in the background.
    pub(crate) async fn sweep(&self) -> Freed {
        let mut sweep = Sweep::begin(&self.engine.extents, Pace::FULL).await.unwrap();
        let (mut rows, mut contents) = (BlobRows::default(), vec![]);
        let visit = |space, partition: &Bytes, row: &Row| {
            contents.extend(rows.contents(space, partition, row).unwrap());
            Ok(())
        };
        self.store.for_each_row(visit).unwrap();
        for content in contents {
            sweep.mark(&content).await.unwrap();
        }
        sweep.finish().await.unwrap()
    }

    /// Counts the rows of blobs in all containers.
    pub(crate) fn blob_rows(&self) -> usize {
        let mut rows = 0;
        let visit = |space, partition: &Bytes, _: &Row| {
            rows += usize::from(space != SpaceId::ROOT && partition.starts_with(b"b"));
            Ok(())
        };
        self.store.for_each_row(visit).unwrap();
        rows
    }

    /// Returns whether the server's files contain these bytes.
    pub(crate) fn is_on_disk(&self, bytes: &[u8]) -> bool {
        fn search(path: &Path, bytes: &[u8]) -> bool {
            if path.is_dir() {
                return std::fs::read_dir(path).unwrap().any(|entry| search(&entry.unwrap().path(), bytes));
            }
            memchr::memmem::find(&std::fs::read(path).unwrap(), bytes).is_some()
        }
        search(self.engine.directory(), bytes)
    }

    /// Changes a setting of the account, as `lazuli account set` does.
    pub(crate) async fn set(&self, setting: Setting) {
        self.accounts.set(ACCOUNT, vec![setting]).await.unwrap();
    }

    /// Returns the space of the only container, with which the container's row begins.
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

    /// Changes a row of the only container without the service.
    pub(crate) async fn change_row(&self, partition: &'static str, mutation: Mutation) {
        let space = self.only_space().await;
        let epoch = self.store.space(space).await.unwrap().unwrap().epoch;
        let commit = Commit {
            stamp: self.store.stamp(),
            epoch,
            conditions: vec![],
            mutations: vec![mutation],
            valid_until: None,
            fence: None,
            bulk: false,
        };
        self.store.commit(&Partition::new(space, partition), commit).await.unwrap();
    }

    /// Sets the retention of deleted states in days, or turns soft delete off.
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

    /// Takes a snapshot of a blob and returns its id.
    pub(crate) async fn snapshot(&self, target: &str) -> String {
        let taken = self.put(&format!("{target}?comp=snapshot"), "", "").await.expect(201);
        taken.header("x-ms-snapshot").unwrap().to_owned()
    }

    /// Creates a container.
    pub(crate) async fn create_container(&self, name: &str) {
        self.put(&format!("/{name}?restype=container"), "", "").await.expect(201);
    }

    /// Puts a block blob.
    pub(crate) async fn put_block_blob(&self, target: &str, body: impl Into<Bytes>) -> Reply {
        self.put(target, "x-ms-blob-type: BlockBlob", body).await.expect(201)
    }
}
