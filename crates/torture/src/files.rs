//! The file service under load in a process that is killed or loses power, and the verification afterwards.
//!
//! Each client owns a file, or a directory with a file in it, and counts its operations. Each operation
//! writes to the file and then moves the file, or its directory, to the next of several directories. Of each
//! four clients two use REST. The others use handles, like SMB, and their writes are durable after a flush
//! or close. A client acknowledges after the service did. So after a crash all readers must find its file in
//! one directory: in the last acknowledged one, with the bytes of the last acknowledged or the next
//! operation, or in the next directory with the bytes of the next operation.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{FileAccess, Pace, ShareMode};
use lazuli_content::sweep::{ContentReader, ContentSweeper};
use lazuli_extents::{Extents, LocalExtents};
use lazuli_file::handles::{CreateRequest, Disposition, Failure, Kind, Tree};
use lazuli_file::opens::{AttributeOpen, CacheRequest, Client, OpenId, OpenLocation, OpenRequest};
use lazuli_file::{FileRows, FileService};
use lazuli_protocol::operation::Operation;
use lazuli_store::Store;
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, HostedService, Replied};
use crate::payload::filled;
use crate::workload::{Acknowledged, CLIENTS, COMMITTED, sweep_continuously};

const SHARE: &str = "files";
/// Number of directories through which files and directories are moved.
const DIRECTORIES: u64 = 3;
/// Bytes of a file.
const FILE_BYTES: usize = 20_000;

type Refused = (StatusCode, String);

/// Runs the worker process.
pub fn work(parent: &Parent) {
    hosted::work::<Files>(parent);
}

/// The file service of a data directory.
#[derive(Clone)]
struct Files {
    service: FileService,
    sweeper: Arc<ContentSweeper>,
    host: Host,
}

/// The API that looks up an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupMethod {
    ByPath,
    ByListing,
}

impl HostedService for Files {
    async fn check(dir: &Path) -> Result<(), String> {
        let mut rows = FileRows::default();
        hosted::check_contents(dir, |space, partition, row| rows.contents(space, partition, row)).await
    }

    async fn open(host: Host, dir: &Path) -> Self {
        let extents = LocalExtents::open(dir, lazuli_extents::Options::default());
        let extents: Arc<dyn Extents> =
            Arc::new(extents.unwrap_or_else(|error| panic!("the extents do not open: {error}")));
        let readers: [ContentReader; 1] = [lazuli_file::content_of_row];
        let sweeper = ContentSweeper::new(host.store.clone(), extents.clone(), readers, dir.join("sweep"));
        let service = FileService::new(host.store.clone(), extents, host.accounts.clone());
        let files = Self { service, sweeper: Arc::new(sweeper), host };
        let made = files.call(Operation::CreateShare, "", "restype=share", &[], Bytes::new()).await;
        created_or_exists(made).expect("a share");
        for directory in 0..DIRECTORIES {
            files.make_directory(&format!("d{directory}")).await.expect("a directory");
        }
        files
    }

    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let mut counts = acknowledged.counts;
        for (client, count) in counts.iter_mut().enumerate() {
            // Look up concurrently and in different orders: each lookup may be the one that finishes a move.
            let locate = |method, from| lazuli_file::operation(self.directories_of(client, method, from));
            let (a, b, c, d) = tokio::join!(
                locate(LookupMethod::ByPath, 0),
                locate(LookupMethod::ByListing, 0),
                locate(LookupMethod::ByPath, 1),
                locate(LookupMethod::ByListing, 2)
            );
            assert!(a == b && b == c && c == d, "client {client} at {count}: {a:?} {b:?} {c:?} {d:?}");
            *count = self.verify_one(client, *count, &a).await;
        }
        counts
    }

    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let next = |running: &mut JoinSet<_>, client, count: u64| {
            let files = self.clone();
            running.spawn(async move {
                files.run_operation(client, count).await.map(|stamp| (client, count, stamp))
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
            wrong = hosted::sweep_garbage_continuously(async || self.service.sweep(Pace::FULL).await) => wrong,
        }
    }
}

impl Files {
    /// Runs a client's n-th operation. Returns the stamp in the ETag.
    async fn run_operation(&self, client: usize, n: u64) -> Result<u64, Refused> {
        if uses_handles(client) {
            let done = self.run_operation_by_handles(client, n).await;
            let refused = |failure: Failure| (StatusCode::INTERNAL_SERVER_ERROR, failure.to_string());
            return done.map(|()| self.host.store.stamp().ticks()).map_err(refused);
        }
        if n == 1 {
            if moves_directory(client) {
                self.make_directory(&item_path(client, n)).await?;
            }
            let length = FILE_BYTES.to_string();
            let headers = [("x-ms-type", "file"), ("x-ms-content-length", &length)];
            self.call(Operation::CreateFile, &file(client, n), "", &headers, Bytes::new()).await?;
            return self.write(client, n, &file(client, n)).await;
        }
        self.write(client, n, &file(client, n - 1)).await?;
        let source = format!("http://127.0.0.1/torture/{SHARE}/{}", item_path(client, n - 1));
        let headers = [("x-ms-file-rename-source", source.as_str())];
        let operation = match moves_directory(client) {
            true => Operation::RenameDirectory,
            false => Operation::RenameFile,
        };
        stamp(self.call(operation, &item_path(client, n), "", &headers, Bytes::new()).await)
    }

    /// Runs a client's n-th operation by handles.
    async fn run_operation_by_handles(&self, client: usize, n: u64) -> Result<(), Failure> {
        let tree = self.service.connect(&self.host.account, SHARE).await?;
        let before = n.saturating_sub(1).max(1);
        let directory = match moves_directory(client) {
            false => None,
            true => Some(self.open_handle(&tree, &item_path(client, before), Kind::Directory).await?),
        };
        let file = self.open_handle(&tree, &file(client, before), Kind::File).await?;
        self.service.write_at(file, 0, filled(client, n, FILE_BYTES).into(), false).await?;
        match directory {
            Some(directory) => {
                // A directory cannot be moved while anything in it is open.
                self.service.close_open(file).await?;
                self.service.rename_open(directory, &item_path(client, n), false).await?;
                self.service.close_open(directory).await?;
            }
            None => {
                self.service.flush(file).await?;
                self.service.rename_open(file, &item_path(client, n), false).await?;
                self.service.close_open(file).await?;
            }
        }
        Ok(())
    }

    async fn open_handle(&self, tree: &Tree, path: &str, kind: Kind) -> Result<OpenId, Failure> {
        let open = OpenRequest {
            mode: ShareMode { access: FileAccess::ALL, share: FileAccess::ALL },
            attribute_open: AttributeOpen::default(),
            overwrites: false,
            delete_on_close: false,
            cache: CacheRequest::None,
            client: Client { session: 1, ip: [127, 0, 0, 1].into(), name: "torture".into() },
            place: OpenLocation::default(),
            at: self.host.store.now(),
            breaks: None,
            waits: None,
        };
        let request = CreateRequest {
            path: path.into(),
            disposition: Disposition::OpenIf,
            kind,
            attributes: 0,
            allocation: 0,
            permission: None,
            snapshot: None,
            if_read_only: None,
            open,
        };
        Ok(self.service.create(tree, request).await?.opened.id)
    }

    async fn write(&self, client: usize, n: u64, path: &str) -> Result<u64, Refused> {
        let range = format!("bytes=0-{}", FILE_BYTES - 1);
        let headers = [("x-ms-write", "update"), ("x-ms-range", range.as_str())];
        let body = filled(client, n, FILE_BYTES).into();
        stamp(self.call(Operation::PutRange, path, "", &headers, body).await)
    }

    async fn make_directory(&self, path: &str) -> Result<(), Refused> {
        created_or_exists(
            self.call(Operation::CreateDirectory, path, "restype=directory", &[], Bytes::new()).await,
        )
    }

    /// Returns the directories in which a client's item is found, beginning the lookup with the directory
    /// `from`.
    async fn directories_of(&self, client: usize, method: LookupMethod, from: u64) -> Vec<u64> {
        let mut found = vec![];
        for directory in (0..DIRECTORIES).map(|i| (from + i) % DIRECTORIES) {
            let (parent, item) = (format!("d{directory}"), item(client));
            let is_there = match method {
                LookupMethod::ByPath => {
                    let path = file_in_item(client, &format!("{parent}/{item}"));
                    match self.call(Operation::GetFileProperties, &path, "", &[], Bytes::new()).await {
                        Ok(_) => true,
                        Err((StatusCode::NOT_FOUND, _)) => false,
                        Err(refused) => panic!("client {client}: {refused:?}"),
                    }
                }
                LookupMethod::ByListing => {
                    let (directory, name) = match moves_directory(client) {
                        true => (format!("{parent}/{item}"), "data"),
                        false => (parent, item.as_str()),
                    };
                    let list = Operation::ListDirectoriesAndFiles;
                    match self.call(list, &directory, "", &[], Bytes::new()).await {
                        Ok((_, body)) => {
                            String::from_utf8_lossy(&body).contains(&format!("<Name>{name}</Name>"))
                        }
                        Err((StatusCode::NOT_FOUND, _)) => false,
                        Err(refused) => panic!("client {client}: {refused:?}"),
                    }
                }
            };
            if is_there {
                found.push(directory);
            }
        }
        found.sort_unstable();
        found
    }

    /// Verifies that a client's item is in a permitted directory, with permitted bytes. Returns the client's
    /// count.
    async fn verify_one(&self, client: usize, count: u64, directories: &[u64]) -> u64 {
        let [directory] = directories else {
            assert!(
                directories.is_empty() && count == 0,
                "client {client} acknowledged {count}: it is in {directories:?}"
            );
            return 0;
        };
        let path = file_in_item(client, &format!("d{directory}/{}", item(client)));
        let found = self.call(Operation::GetFile, &path, "", &[], Bytes::new()).await;
        let (_, bytes) = found.unwrap_or_else(|refused| panic!("client {client}: {refused:?}"));
        let holds = |n: u64| match n {
            // Created, and not written to yet.
            0 if uses_handles(client) => bytes.is_empty(),
            0 => bytes.iter().all(|byte| *byte == 0),
            n => bytes[..] == filled(client, n, FILE_BYTES)[..],
        };
        let is_at = |n: u64| n % DIRECTORIES == *directory;
        // The first operation does not move the item.
        if is_at(count + 1) && holds(count + 1) {
            return count + 1;
        }
        let stays = if count == 0 {
            is_at(1) && holds(0)
        } else {
            is_at(count) && (holds(count) || holds(count + 1))
        };
        assert!(stays, "client {client} acknowledged {count}: it is in {directory} with other bytes");
        count
    }

    async fn call(
        &self,
        operation: Operation,
        path: &str,
        query: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Replied {
        self.host.call(&self.service, operation, (SHARE, path), query, headers, body).await
    }
}

fn created_or_exists(made: Replied) -> Result<(), Refused> {
    match made {
        Ok(_) | Err((StatusCode::CONFLICT, _)) => Ok(()),
        Err(refused) => Err(refused),
    }
}

/// Returns the stamp in the ETag of a reply.
fn stamp(replied: Replied) -> Result<u64, Refused> {
    let (headers, _) = replied?;
    let etag = headers.get("etag").and_then(|etag| etag.to_str().ok()).expect("a tag");
    Ok(u64::from_str_radix(etag.trim_matches('"').trim_start_matches("0x"), 16).expect("a stamp"))
}

/// Returns whether a client uses handles.
fn uses_handles(client: usize) -> bool {
    client % 4 >= 2
}

/// Returns whether a client moves a directory with its file in it.
fn moves_directory(client: usize) -> bool {
    client % 2 == 1
}

fn item(client: usize) -> String {
    format!("client{client}")
}

/// Returns the path of a client's item after `n` operations.
fn item_path(client: usize, n: u64) -> String {
    format!("d{}/{}", n % DIRECTORIES, item(client))
}

/// Returns the path of a client's file after `n` operations.
fn file(client: usize, n: u64) -> String {
    file_in_item(client, &item_path(client, n))
}

fn file_in_item(client: usize, item_path: &str) -> String {
    if moves_directory(client) { format!("{item_path}/data") } else { item_path.to_owned() }
}
