//! The blob service under load in a process that is killed or loses power, and the verification afterwards.
//!
//! Each client owns a blob and counts its operations; two clients for each type of blob. A block blob is
//! replaced, by Put Blob and Put Block List in turn; an append blob gets another record; a page blob gets
//! another page. A client acknowledges after the service did. So after a crash each blob must have exactly
//! the bytes of the last acknowledged operation or of the next one, with the matching ETag and length. At the
//! same time a container is renamed, deleted and restored while content is swept. The container must exist
//! once, with its blob.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use lazuli_blob::{BlobRows, BlobService};
use lazuli_concurrency::Pace;
use lazuli_content::sweep::{ContentReader, ContentSweeper};
use lazuli_extents::{Extents, LocalExtents};
use lazuli_protocol::operation::Operation;
use tokio::task::JoinSet;

use crate::cancel::state::{all, one};
use crate::child::Parent;
use crate::hosted::{self, Host, HostedService, Replied};
use crate::payload::{filled, payload};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED, sweep_continuously};

const CONTAINER: &str = "blobs";
const PAGE_BYTES: usize = 512;
/// Number of pages of a page blob, written in turn.
const PAGES: u64 = 64;
/// Bytes of a record of an append blob.
const RECORD_BYTES: usize = 3000;
/// Number of records after which an append blob is created again.
const RECORDS_PER_BLOB: u64 = 200;

/// The names of a container that is renamed, deleted and restored continuously.
const MOVING_NAMES: [&str; 2] = ["moving-a", "moving-b"];
/// A blob that marks that the moving container was created with its blob.
const READY_MARK: &str = "made";
/// Bytes of the blob in the moving container.
const MOVING_BLOB_BYTES: usize = 70_000;
/// Pause between two moves.
const MOVE_PAUSE: Duration = Duration::from_millis(3);

/// The type of a client's blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    Block,
    Append,
    Page,
}

impl ClientKind {
    fn of(client: usize) -> Self {
        [Self::Block, Self::Append, Self::Page][client % 3]
    }

    /// Returns the blob's bytes after `count` operations.
    fn content(self, client: usize, count: u64) -> Vec<u8> {
        match self {
            Self::Block => payload(client, count),
            Self::Append => {
                let first = (count - 1) / RECORDS_PER_BLOB * RECORDS_PER_BLOB + 1;
                (first..=count).flat_map(|n| filled(client, n, RECORD_BYTES)).collect()
            }
            Self::Page => {
                let mut pages = vec![0; PAGE_BYTES * PAGES as usize];
                for n in count.saturating_sub(PAGES - 1).max(1)..=count {
                    let at = (n % PAGES) as usize * PAGE_BYTES;
                    pages[at..at + PAGE_BYTES].copy_from_slice(&filled(client, n, PAGE_BYTES));
                }
                pages
            }
        }
    }
}

/// Runs the worker process.
pub fn work(parent: &Parent) {
    hosted::work::<Blobs>(parent);
}

/// The blob service of a data directory.
#[derive(Clone)]
struct Blobs {
    service: BlobService,
    sweeper: Arc<ContentSweeper>,
    host: Host,
}

impl HostedService for Blobs {
    async fn check(dir: &Path) -> Result<(), String> {
        let mut rows = BlobRows::default();
        hosted::check_contents(dir, |space, partition, row| rows.contents(space, partition, row)).await
    }

    async fn open(host: Host, dir: &Path) -> Self {
        let extents = LocalExtents::open(dir, lazuli_extents::Options::default());
        let extents: Arc<dyn Extents> =
            Arc::new(extents.unwrap_or_else(|error| panic!("the extents do not open: {error}")));
        let readers: [ContentReader; 1] = [lazuli_blob::content_of_row];
        let sweeper = ContentSweeper::new(host.store.clone(), extents.clone(), readers, dir.join("sweep"));
        let service = BlobService::new(host.store.clone(), extents, host.accounts.clone());
        let blobs = Self { service, sweeper: Arc::new(sweeper), host };
        let created =
            blobs.call(Operation::CreateContainer, "", "restype=container", &[], Bytes::new()).await;
        assert!(matches!(created, Ok(_) | Err((StatusCode::CONFLICT, _))), "{:?}", created.err());
        // On a full disk the container exists already, or is created later.
        let _ = blobs.create_moving().await;
        blobs
    }

    /// Verifies that every blob has the bytes of the last acknowledged operation or of the next one. Returns
    /// the verified counts.
    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        self.verify_moving().await;
        let mut counts = acknowledged.counts;
        for (client, count) in counts.iter_mut().enumerate() {
            let found = match self.call(Operation::GetBlob, &name(client), "", &[], Bytes::new()).await {
                Ok((_, bytes)) => Some(bytes),
                Err((StatusCode::NOT_FOUND, _)) => None,
                Err(refused) => panic!("client {client}: {refused:?}"),
            };
            let kind = ClientKind::of(client);
            let holds = |n: u64| match &found {
                None => n == 0,
                Some(bytes) if kind == ClientKind::Page && n == 0 => bytes.iter().all(|byte| *byte == 0),
                // An append blob that was just created, and not appended to yet.
                Some(bytes) if kind == ClientKind::Append && bytes.is_empty() => {
                    n.is_multiple_of(RECORDS_PER_BLOB)
                }
                Some(bytes) => n > 0 && bytes[..] == kind.content(client, n)[..],
            };
            let holds_count = [*count, *count + 1].into_iter().find(|n| holds(*n));
            *count = holds_count.unwrap_or_else(|| {
                let length = found.as_ref().map(Bytes::len);
                panic!("client {client} ({kind:?}) acknowledged {count}; {length:?} bytes are there, of neither it nor the next")
            });
        }
        counts
    }

    /// Runs all clients until the service refuses writes.
    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let next = |running: &mut JoinSet<_>, client, count: u64| {
            let blobs = self.clone();
            running.spawn(async move {
                blobs.run_operation(client, count).await.map(|etag| (client, count, etag))
            });
        };
        for (client, count) in counts.into_iter().enumerate() {
            next(&mut running, client, count + 1);
        }
        loop {
            let Some(done) = running.join_next().await else { return "no client is left".into() };
            match done.expect("a client does not panic") {
                Ok((client, count, stamp)) => {
                    parent.ack(COMMITTED, &format!("{client} {count} {stamp}")).expect("the parent listens");
                    next(&mut running, client, count + 1);
                }
                Err((status, refused)) => return format!("{status} {refused}"),
            }
        }
    }

    async fn sweep(&self) -> String {
        tokio::select! {
            wrong = sweep_continuously(&self.sweeper) => wrong,
            wrong = self.move_continuously() => wrong,
            wrong = hosted::sweep_garbage_continuously(async || self.service.sweep_garbage(Pace::FULL).await) => wrong,
        }
    }
}

impl Blobs {
    /// Creates the moving container with its blob. A mark in the other container records that both exist.
    async fn create_moving(&self) -> Result<(), (StatusCode, String)> {
        if self.is_moving_ready().await {
            return Ok(());
        }
        let name = MOVING_NAMES[0];
        let (put, none) = ([("x-ms-blob-type", "BlockBlob")], Bytes::new());
        // If the container exists already, its blob or the mark is missing.
        let _ = self.container(Operation::CreateContainer, name, "restype=container", &[]).await;
        let body = filled(99, 1, MOVING_BLOB_BYTES).into();
        self.host.call(&self.service, Operation::PutBlob, (name, "kept"), "", &put, body).await?;
        self.call(Operation::PutBlob, READY_MARK, "", &put, none).await.map(drop)
    }

    async fn is_moving_ready(&self) -> bool {
        self.call(Operation::GetBlobProperties, READY_MARK, "", &[], Bytes::new()).await.is_ok()
    }

    /// Returns the moving container: its name, and its version if it is deleted.
    async fn moving(&self) -> Result<Vec<(String, Option<String>)>, (StatusCode, String)> {
        let query = "comp=list&include=deleted&prefix=moving";
        let (_, body) = self.container(Operation::ListContainers, "", query, &[]).await?;
        let text = String::from_utf8_lossy(&body);
        let entry = |xml: &str| {
            let version = (one(xml, "Deleted") == "true").then(|| one(xml, "Version").to_owned());
            (one(xml, "Name").to_owned(), version)
        };
        Ok(all(&text, "Container").map(entry).collect())
    }

    /// Verifies that the container exists once, under one of its names or deleted, with its blob.
    async fn verify_moving(&self) {
        if !self.is_moving_ready().await {
            return;
        }
        // A crash can leave a restored container whose space is closed. A server's first sweep opens the
        // space, or a later one if the disk is full.
        if self.service.sweep_garbage(Pace::FULL).await.is_err() {
            return;
        }
        let found = self.moving().await.unwrap_or_else(|refused| panic!("containers: {refused:?}"));
        let [(name, version)] = &found[..] else { panic!("the container that is moved: {found:?}") };
        if version.is_none() {
            let object = (name.as_str(), "kept");
            let get = self.host.call(&self.service, Operation::GetBlob, object, "", &[], Bytes::new()).await;
            let (_, body) = get.unwrap_or_else(|refused| panic!("the moved blob: {refused:?}"));
            assert!(body == filled(99, 1, MOVING_BLOB_BYTES), "the moved blob has other bytes");
        }
    }

    /// Renames, deletes and restores the container continuously. Refused operations, as on a full disk, are
    /// repeated.
    async fn move_continuously(&self) -> String {
        for step in 0.. {
            tokio::time::sleep(MOVE_PAUSE).await;
            if self.create_moving().await.is_err() {
                continue;
            }
            for (name, version) in self.moving().await.unwrap_or_default() {
                let other = if name == MOVING_NAMES[0] { MOVING_NAMES[1] } else { MOVING_NAMES[0] };
                let _ = match version {
                    Some(version) => {
                        let headers = [
                            ("x-ms-deleted-container-name", name.as_str()),
                            ("x-ms-deleted-container-version", version.as_str()),
                        ];
                        let query = "restype=container&comp=undelete";
                        self.container(Operation::RestoreContainer, &name, query, &headers).await
                    }
                    None if step % 2 == 0 => {
                        let headers = [("x-ms-source-container-name", name.as_str())];
                        let query = "restype=container&comp=rename";
                        self.container(Operation::RenameContainer, other, query, &headers).await
                    }
                    None => self.container(Operation::DeleteContainer, &name, "restype=container", &[]).await,
                };
            }
        }
        unreachable!("steps never end")
    }

    async fn container(
        &self,
        operation: Operation,
        name: &str,
        query: &str,
        headers: &[(&'static str, &str)],
    ) -> Replied {
        self.host.call(&self.service, operation, (name, ""), query, headers, Bytes::new()).await
    }

    /// Runs a client's n-th operation. Returns the stamp in the ETag.
    async fn run_operation(&self, client: usize, n: u64) -> Result<u64, (StatusCode, String)> {
        let name = name(client);
        let put = |kind| [("x-ms-blob-type", kind)];
        let (headers, _) = match ClientKind::of(client) {
            ClientKind::Block if n.is_multiple_of(2) => {
                let body = payload(client, n).into();
                self.call(Operation::PutBlob, &name, "", &put("BlockBlob"), body).await?
            }
            ClientKind::Block => {
                let body = payload(client, n);
                let mut list = String::from("<BlockList>");
                for (i, part) in body.chunks(body.len().div_ceil(3)).enumerate() {
                    let id = format!("AAA{i}");
                    let query = format!("comp=block&blockid={id}");
                    let part = Bytes::copy_from_slice(part);
                    self.call(Operation::PutBlock, &name, &query, &[], part).await?;
                    list += &format!("<Latest>{id}</Latest>");
                }
                list += "</BlockList>";
                self.call(Operation::PutBlockList, &name, "comp=blocklist", &[], list.into()).await?
            }
            ClientKind::Append => {
                if n % RECORDS_PER_BLOB == 1 {
                    self.call(Operation::PutBlob, &name, "", &put("AppendBlob"), Bytes::new()).await?;
                }
                let record = filled(client, n, RECORD_BYTES).into();
                self.call(Operation::AppendBlock, &name, "comp=appendblock", &[], record).await?
            }
            ClientKind::Page => {
                if n == 1 {
                    let length = (PAGE_BYTES as u64 * PAGES).to_string();
                    let headers = [("x-ms-blob-type", "PageBlob"), ("x-ms-blob-content-length", &length)];
                    self.call(Operation::PutBlob, &name, "", &headers, Bytes::new()).await?;
                }
                let first = (n % PAGES) * PAGE_BYTES as u64;
                let range = format!("bytes={first}-{}", first + PAGE_BYTES as u64 - 1);
                let headers = [("x-ms-page-write", "update"), ("x-ms-range", &range)];
                let page = filled(client, n, PAGE_BYTES).into();
                self.call(Operation::PutPage, &name, "comp=page", &headers, page).await?
            }
        };
        let etag = headers.get("etag").and_then(|etag| etag.to_str().ok()).expect("a tag");
        Ok(u64::from_str_radix(etag.trim_matches('"').trim_start_matches("0x"), 16).expect("a stamp"))
    }

    async fn call(
        &self,
        operation: Operation,
        blob: &str,
        query: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Replied {
        self.host.call(&self.service, operation, (CONTAINER, blob), query, headers, body).await
    }
}

fn name(client: usize) -> String {
    format!("client/{client}")
}
