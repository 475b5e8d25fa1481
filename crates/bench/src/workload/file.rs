//! Workloads of files. Each uses its own share.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, OperationFailure};
use super::super::rows::scatter;
use super::{Workload, encode, fill, fresh_name, with};

/// Bytes of a small range.
const SMALL: usize = 4 << 10;
/// Bytes of a file for small ranges.
const RANGES_FILE_BYTES: usize = 64 << 20;
/// Bytes of a large file.
const LARGE: usize = 256 << 20;
/// Bytes of a range of a large file: the most that a request can write.
const RANGE: usize = 4 << 20;
/// Number of connections on which large files are put, each to its own file.
const WRITERS: usize = 4;
/// Number of directories of a tree that is moved.
const BRANCHES: u64 = 100;
/// Number of files in each of these directories.
const LEAVES: u64 = 100;
/// Number of files that are listed.
const LISTED: u64 = 100_000;

/// A share of one workload.
#[derive(Clone)]
struct Share {
    path: String,
}

impl Share {
    fn new() -> Self {
        Self { path: format!("/{}", fresh_name()) }
    }

    async fn create(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, &self.path, "restype=share");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn delete(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::DELETE, &self.path, "restype=share");
        client.send(call).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    async fn create_file(
        &self,
        client: &mut Client,
        file: &str,
        length: usize,
    ) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("{}/{file}", self.path), "").header("x-ms-type", "file");
        let call = with(call, "x-ms-content-length", length.to_string());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn put_range(
        &self,
        client: &mut Client,
        file: &str,
        at: usize,
        bytes: Bytes,
    ) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("{}/{file}", self.path), "comp=range");
        let call = with(call.header("x-ms-write", "update"), "x-ms-range", range(at, bytes.len()));
        client.send(call.body(bytes)).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn get_range(
        &self,
        client: &mut Client,
        file: &str,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), OperationFailure> {
        let call = Call::new(Method::GET, format!("{}/{file}", self.path), "");
        let call = with(call, "x-ms-range", range(at, bytes.len()));
        let reply = client.send(call).await?.expect(StatusCode::PARTIAL_CONTENT)?;
        let whole = reply.length == bytes.len() as u64 && bytes.starts_with(&reply.body);
        if whole { Ok(()) } else { Err(OperationFailure::Wrong("other bytes than were put")) }
    }

    async fn create_directory(&self, client: &mut Client, directory: &str) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("{}/{directory}", self.path), "restype=directory");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn rename_directory(
        &self,
        client: &mut Client,
        from: &str,
        to: &str,
    ) -> Result<(), OperationFailure> {
        let source = format!("{}{}/{from}", client.endpoint(), self.path);
        let call = Call::new(Method::PUT, format!("{}/{to}", self.path), "restype=directory&comp=rename");
        let call = with(call, "x-ms-file-rename-source", source);
        client.send(call).await?.expect(StatusCode::OK).map(drop)
    }

    /// Creates or replaces a large file, range by range.
    async fn put_large(&self, client: &mut Client, file: &str) -> Result<(), OperationFailure> {
        self.create_file(client, file, LARGE).await?;
        let content = noise();
        for at in (0..LARGE).step_by(RANGE) {
            self.put_range(client, file, at, content.clone()).await?;
        }
        Ok(())
    }
}

pub(super) fn range(at: usize, length: usize) -> String {
    format!("bytes={at}-{}", at + length - 1)
}

/// Returns the content of one large range.
fn noise() -> Bytes {
    static CONTENT: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
    let make = || (0..).flat_map(|n| scatter(n).to_le_bytes()).take(RANGE).collect();
    CONTENT.get_or_init(make).clone()
}

/// Put Range or Get File of 4 KiB at random positions of a file.
pub(super) struct SmallRanges {
    share: Share,
    reads: bool,
}

impl SmallRanges {
    pub(super) fn put() -> Self {
        Self { share: Share::new(), reads: false }
    }

    pub(super) fn get() -> Self {
        Self { share: Share::new(), reads: true }
    }
}

#[async_trait]
impl Workload for SmallRanges {
    fn name(&self) -> &'static str {
        if self.reads { "get-range" } else { "put-range" }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::File
    }

    fn about(&self) -> String {
        match self.reads {
            true => format!("get ranges of {SMALL} bytes, anywhere in one file"),
            false => format!("put ranges of {SMALL} bytes, anywhere in a file for each connection"),
        }
    }

    fn is_lazuli_only(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.share.create(client).await?;
        if self.reads {
            self.share.create_file(client, "f", RANGES_FILE_BYTES).await?;
            for at in (0..RANGES_FILE_BYTES).step_by(RANGE) {
                self.share.put_range(client, "f", at, noise()).await?;
            }
        }
        Ok(())
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        let at = scatter(scatter(worker as u64) ^ i) as usize % (RANGES_FILE_BYTES / SMALL) * SMALL;
        if self.reads {
            let from = at % RANGE;
            return self.share.get_range(client, "f", at, &noise()[from..from + SMALL]).await;
        }
        let file = worker.to_string();
        if i == 0 {
            self.share.create_file(client, &file, RANGES_FILE_BYTES).await?;
        }
        self.share.put_range(client, &file, at, noise().slice(..SMALL)).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.share.delete(client).await
    }
}

/// Writes or reads large files from start to end in ranges. Writes use as many connections as the workload
/// that puts blocks of several blobs.
pub(super) struct LargeFiles {
    share: Share,
    reads: bool,
}

impl LargeFiles {
    pub(super) fn put() -> Self {
        Self { share: Share::new(), reads: false }
    }

    pub(super) fn get() -> Self {
        Self { share: Share::new(), reads: true }
    }
}

#[async_trait]
impl Workload for LargeFiles {
    fn name(&self) -> &'static str {
        if self.reads { "get-file-256m" } else { "put-file-256m" }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::File
    }

    fn about(&self) -> String {
        match self.reads {
            true => "get a file of 256 MiB in ranges of 4 MiB".into(),
            false => "put files of 256 MiB in ranges of 4 MiB, on four connections".into(),
        }
    }

    fn connections(&self) -> Option<usize> {
        Some(if self.reads { 1 } else { WRITERS })
    }

    fn is_lazuli_only(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.share.create(client).await?;
        if self.reads { self.share.put_large(client, "large").await } else { Ok(()) }
    }

    async fn run_one(&self, client: &mut Client, worker: usize, _: u64) -> Result<(), OperationFailure> {
        if !self.reads {
            return self.share.put_large(client, &format!("large{worker}")).await;
        }
        let content = noise();
        for at in (0..LARGE).step_by(RANGE) {
            self.share.get_range(client, "large", at, &content).await?;
        }
        Ok(())
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.share.delete(client).await
    }
}

/// Creates this number of empty files.
async fn create_files(
    share: &Share,
    client: &Client,
    files: u64,
    name: fn(u64) -> String,
) -> Result<(), OperationFailure> {
    fill(client, files, |mut client, numbers| {
        let share = share.clone();
        async move {
            for file in numbers {
                share.create_file(&mut client, &name(file), 0).await?;
            }
            Ok(())
        }
    })
    .await
}

/// Rename Directory: moves a tree of ten thousand files to another directory and back.
pub(super) struct RenameTree(Share);

impl RenameTree {
    pub(super) fn new() -> Self {
        Self(Share::new())
    }
}

#[async_trait]
impl Workload for RenameTree {
    fn name(&self) -> &'static str {
        "rename-tree"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::File
    }

    fn about(&self) -> String {
        format!("move a tree of {} files to another directory", BRANCHES * LEAVES)
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
        for directory in ["a", "b", "a/tree"] {
            self.0.create_directory(client, directory).await?;
        }
        for branch in 0..BRANCHES {
            self.0.create_directory(client, &format!("a/tree/{branch}")).await?;
        }
        let name = |file| format!("a/tree/{}/{}", file % BRANCHES, file / BRANCHES);
        create_files(&self.0, client, BRANCHES * LEAVES, name).await
    }

    async fn run_one(&self, client: &mut Client, _: usize, _: u64) -> Result<(), OperationFailure> {
        self.0.rename_directory(client, "a/tree", "b/tree").await?;
        self.0.rename_directory(client, "b/tree", "a/tree").await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// List Directories and Files: all files of a directory, page by page.
pub(super) struct ListFiles(Share);

impl ListFiles {
    pub(super) fn new() -> Self {
        Self(Share::new())
    }
}

#[async_trait]
impl Workload for ListFiles {
    fn name(&self) -> &'static str {
        "list-files-100k"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::File
    }

    fn about(&self) -> String {
        format!("list {LISTED} files, page by page")
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
        create_files(&self.0, client, LISTED, |file| format!("{file:08}")).await
    }

    async fn run_one(&self, client: &mut Client, _: usize, _: u64) -> Result<(), OperationFailure> {
        let mut marker = String::new();
        for _ in 0..LISTED {
            let query = format!("restype=directory&comp=list{marker}");
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
