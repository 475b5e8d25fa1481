//! Workloads of blobs. Each uses its own container.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, OperationFailure};
use super::super::rows::scatter;
use super::file::range;
use super::{Shape, Workload, encode, fill, fresh_name};

/// Number of blobs that are read.
const BLOBS: u64 = 100;
/// Bytes of a large blob.
const LARGE: usize = 256 << 20;
/// Bytes of a block of a large blob, as client libraries choose it.
const BLOCK: usize = 4 << 20;
/// Bytes of one read or write of pages.
const PAGES_BYTES: usize = 4 << 10;
/// Bytes of one write of pages while preparing reads.
const PREPARED_PAGES_BYTES: usize = 4 << 20;
/// Bytes of a page blob, as a header.
const PAGE_BLOB_LENGTH: &str = "67108864";
/// Bytes of a page blob.
const PAGE_BLOB_BYTES: usize = 64 << 20;
/// Number of blobs that are listed.
const LISTED: u64 = 10_000;
/// Number of blobs below the one directory that is listed.
const BLOBS_IN_DIRECTORY: u64 = 1_000_000;

/// A container, and the content of its blobs.
#[derive(Clone)]
struct Container {
    path: String,
    content: Bytes,
}

impl Container {
    fn new(shape: Shape) -> Self {
        let noise = (0..).flat_map(|n| scatter(n).to_le_bytes());
        Self { path: format!("/{}", fresh_name()), content: noise.take(shape.body_bytes).collect() }
    }

    async fn create(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, &self.path, "restype=container");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn delete(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::DELETE, &self.path, "restype=container");
        client.send(call).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    async fn put(&self, client: &mut Client, blob: &str) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("{}/{blob}", self.path), "")
            .header("x-ms-blob-type", "BlockBlob")
            .header("content-type", "application/octet-stream")
            .body(self.content.clone());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    /// Puts this number of blobs below one directory.
    async fn put_many(&self, client: &Client, blobs: u64) -> Result<(), OperationFailure> {
        fill(client, blobs, |mut client, numbers| {
            let container = self.clone();
            async move {
                for blob in numbers {
                    container.put(&mut client, &format!("directory/{blob:08}")).await?;
                }
                Ok(())
            }
        })
        .await
    }

    async fn get(&self, client: &mut Client, blob: &str) -> Result<(), OperationFailure> {
        let call = Call::new(Method::GET, format!("{}/{blob}", self.path), "");
        let reply = client.send(call).await?.expect(StatusCode::OK)?;
        let whole = reply.length == self.content.len() as u64 && self.content.starts_with(&reply.body);
        if whole { Ok(()) } else { Err(OperationFailure::Wrong("other bytes than were put")) }
    }
}

/// Put Blob: a new block blob each time.
pub(super) struct PutBlob(Container);

impl PutBlob {
    pub(super) fn new(shape: Shape) -> Self {
        Self(Container::new(shape))
    }
}

#[async_trait]
impl Workload for PutBlob {
    fn name(&self) -> &'static str {
        "put-blob"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("put new block blobs of {} bytes", self.0.content.len())
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        self.0.put(client, &format!("{worker}/{i}")).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Get Blob: a random whole blob of a hundred, compared with the content that was put.
pub(super) struct GetBlob(Container);

impl GetBlob {
    pub(super) fn new(shape: Shape) -> Self {
        Self(Container::new(shape))
    }
}

#[async_trait]
impl Workload for GetBlob {
    fn name(&self) -> &'static str {
        "get-blob"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("get whole block blobs of {} bytes", self.0.content.len())
    }

    fn reads_plain_files(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await?;
        for blob in 0..BLOBS {
            self.0.put(client, &blob.to_string()).await?;
        }
        Ok(())
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        let blob = scatter(scatter(worker as u64) ^ i) % BLOBS;
        self.0.get(client, &blob.to_string()).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Put Page or Get Blob of pages at random positions. Ranges of files are compared with these.
pub(super) struct BlobPages {
    container: Container,
    reads: bool,
}

impl BlobPages {
    pub(super) fn put() -> Self {
        Self { container: Container::new(Shape { body_bytes: PREPARED_PAGES_BYTES }), reads: false }
    }

    pub(super) fn get() -> Self {
        Self { container: Container::new(Shape { body_bytes: PREPARED_PAGES_BYTES }), reads: true }
    }

    fn path(&self, blob: &str) -> String {
        format!("{}/{blob}", self.container.path)
    }

    async fn create(&self, client: &mut Client, blob: &str) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, self.path(blob), "")
            .header("x-ms-blob-type", "PageBlob")
            .header("x-ms-blob-content-length", PAGE_BLOB_LENGTH);
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn write(
        &self,
        client: &mut Client,
        blob: &str,
        at: usize,
        bytes: Bytes,
    ) -> Result<(), OperationFailure> {
        let range = range(at, bytes.len());
        let call = Call::new(Method::PUT, self.path(blob), "comp=page").header("x-ms-page-write", "update");
        let call = super::with(call, "x-ms-range", range).body(bytes);
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }
}

#[async_trait]
impl Workload for BlobPages {
    fn name(&self) -> &'static str {
        if self.reads { "get-pages" } else { "put-pages" }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        match self.reads {
            true => format!("get {PAGES_BYTES} bytes anywhere in one page blob"),
            false => format!("put pages of {PAGES_BYTES} bytes, anywhere in a page blob for each connection"),
        }
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.container.create(client).await?;
        if self.reads {
            self.create(client, "p").await?;
            for at in (0..PAGE_BLOB_BYTES).step_by(PREPARED_PAGES_BYTES) {
                self.write(client, "p", at, self.container.content.clone()).await?;
            }
        }
        Ok(())
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        let at = scatter(scatter(worker as u64) ^ i) as usize % (PAGE_BLOB_BYTES / PAGES_BYTES) * PAGES_BYTES;
        let from = at % PREPARED_PAGES_BYTES;
        let bytes = self.container.content.slice(from..from + PAGES_BYTES);
        if self.reads {
            let call = Call::new(Method::GET, self.path("p"), "");
            let call = super::with(call, "x-ms-range", range(at, PAGES_BYTES));
            let reply = client.send(call).await?.expect(StatusCode::PARTIAL_CONTENT)?;
            let whole = reply.length == PAGES_BYTES as u64 && bytes.starts_with(&reply.body);
            return if whole { Ok(()) } else { Err(OperationFailure::Wrong("other bytes than were put")) };
        }
        let blob = worker.to_string();
        if i == 0 {
            self.create(client, &blob).await?;
        }
        self.write(client, &blob, at, bytes).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.container.delete(client).await
    }
}

/// Number of connections of the workload that puts blocks of several blobs.
const BLOCK_CONNECTIONS: usize = 4;

/// Large blobs, one at a time on a connection.
pub(super) struct LargeBlobs {
    container: Container,
    operation: LargeOperation,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LargeOperation {
    Put,
    PutBlocks { connections: usize },
    Get,
}

impl LargeBlobs {
    /// Sends Put Blob.
    pub(super) fn put() -> Self {
        Self::new(LargeOperation::Put)
    }

    /// Sends Put Block for all blocks, then Put Block List.
    pub(super) fn put_blocks() -> Self {
        Self::new(LargeOperation::PutBlocks { connections: 1 })
    }

    /// Puts blocks like [`Self::put_blocks`], for several blobs at a time.
    pub(super) fn put_blocks_at_once() -> Self {
        Self::new(LargeOperation::PutBlocks { connections: BLOCK_CONNECTIONS })
    }

    /// Sends Get Blob.
    pub(super) fn get() -> Self {
        Self::new(LargeOperation::Get)
    }

    fn new(operation: LargeOperation) -> Self {
        // The large content is created when needed, because the list of workloads creates all workloads.
        Self { container: Container::new(Shape { body_bytes: 0 }), operation }
    }

    fn content() -> Bytes {
        static CONTENT: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
        CONTENT.get_or_init(|| Container::new(Shape { body_bytes: LARGE }).content).clone()
    }

    async fn put_in_blocks(&self, client: &mut Client, worker: usize) -> Result<(), OperationFailure> {
        let content = Self::content();
        let path = format!("{}/large{worker}", self.container.path);
        let mut list = String::from("<BlockList>");
        for (i, start) in (0..content.len()).step_by(BLOCK).enumerate() {
            let id = format!("{i:04}");
            let block = content.slice(start..content.len().min(start + BLOCK));
            let call = Call::new(Method::PUT, &path, format!("comp=block&blockid={id}")).body(block);
            client.send(call).await?.expect(StatusCode::CREATED)?;
            list += &format!("<Latest>{id}</Latest>");
        }
        list += "</BlockList>";
        let call = Call::new(Method::PUT, &path, "comp=blocklist").body(list.into());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }
}

#[async_trait]
impl Workload for LargeBlobs {
    fn name(&self) -> &'static str {
        match self.operation {
            LargeOperation::Put => "put-blob-256m",
            LargeOperation::PutBlocks { connections: 1 } => "put-blocks-256m",
            LargeOperation::PutBlocks { .. } => "put-blocks-256m-x4",
            LargeOperation::Get => "get-blob-256m",
        }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        match self.operation {
            LargeOperation::Put => "put a block blob of 256 MiB in one request".into(),
            LargeOperation::PutBlocks { connections } => {
                format!("put block blobs of 256 MiB in blocks of 4 MiB, {connections} at a time")
            }
            LargeOperation::Get => "get a block blob of 256 MiB".into(),
        }
    }

    fn connections(&self) -> Option<usize> {
        Some(if let LargeOperation::PutBlocks { connections } = self.operation { connections } else { 1 })
    }

    fn reads_plain_files(&self) -> bool {
        self.operation == LargeOperation::Get
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.container.create(client).await?;
        if self.operation == LargeOperation::Get {
            let large = Container { path: self.container.path.clone(), content: Self::content() };
            large.put(client, "large").await?;
        }
        Ok(())
    }

    async fn run_one(&self, client: &mut Client, worker: usize, _i: u64) -> Result<(), OperationFailure> {
        let large = || Container { path: self.container.path.clone(), content: Self::content() };
        match self.operation {
            LargeOperation::Put => large().put(client, "large").await,
            LargeOperation::PutBlocks { .. } => self.put_in_blocks(client, worker).await,
            LargeOperation::Get => large().get(client, "large").await,
        }
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.container.delete(client).await
    }
}

/// List Blobs: all blobs of a container, page by page.
pub(super) struct ListBlobs(Container, u64);

impl ListBlobs {
    pub(super) fn of_ten_thousand() -> Self {
        Self(Container::new(Shape { body_bytes: 0 }), LISTED)
    }

    pub(super) fn of_a_hundred_thousand() -> Self {
        Self(Container::new(Shape { body_bytes: 0 }), 10 * LISTED)
    }
}

#[async_trait]
impl Workload for ListBlobs {
    fn name(&self) -> &'static str {
        if self.1 == LISTED { "list-blobs-10k" } else { "list-blobs-100k" }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("list {} blobs, page by page", self.1)
    }

    fn is_lazuli_only(&self) -> bool {
        self.1 > LISTED
    }

    fn connections(&self) -> Option<usize> {
        Some(1)
    }

    fn takes_long(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await?;
        self.0.put_many(client, self.1).await
    }

    async fn run_one(&self, client: &mut Client, _worker: usize, _i: u64) -> Result<(), OperationFailure> {
        let mut marker = String::new();
        for _ in 0..self.1 {
            let query = format!("restype=container&comp=list{marker}");
            let reply = client.send(Call::new(Method::GET, &self.0.path, query)).await?;
            let reply = reply.expect(StatusCode::OK)?;
            let text = String::from_utf8_lossy(&reply.end);
            let Some((_, next)) = text.rsplit_once("<NextMarker>") else { return Ok(()) };
            let Some((next, _)) = next.split_once("</NextMarker>").filter(|(next, _)| !next.is_empty())
            else {
                return Ok(());
            };
            marker = format!("&marker={}", encode(next));
        }
        Err(OperationFailure::Wrong("a listing without end"))
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// List Blobs with a delimiter, in a container with one directory. The number of blobs below it must not
/// matter.
pub(super) struct ListDirectory(Container);

impl ListDirectory {
    pub(super) fn of_a_million() -> Self {
        Self(Container::new(Shape { body_bytes: 0 }))
    }
}

#[async_trait]
impl Workload for ListDirectory {
    fn name(&self) -> &'static str {
        "list-directory-1m"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("list by directory, with {BLOBS_IN_DIRECTORY} blobs below the only one")
    }

    fn connections(&self) -> Option<usize> {
        Some(1)
    }

    fn is_lazuli_only(&self) -> bool {
        true
    }

    fn takes_long(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await?;
        self.0.put_many(client, BLOBS_IN_DIRECTORY).await
    }

    async fn run_one(&self, client: &mut Client, _worker: usize, _i: u64) -> Result<(), OperationFailure> {
        let call = Call::new(Method::GET, &self.0.path, "restype=container&comp=list&delimiter=%2F");
        let reply = client.send(call).await?.expect(StatusCode::OK)?;
        let text = String::from_utf8_lossy(&reply.body);
        let found = text.contains("<BlobPrefix><Name>directory/</Name>");
        if found { Ok(()) } else { Err(OperationFailure::Wrong("a listing without the directory")) }
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}
