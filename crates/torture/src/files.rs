//! The file service under load, in a process that may die at any moment, and what must be true afterwards.
//!
//! Each client owns a file, or a directory with a file in it, and counts. Each of its operations writes to the file and then
//! moves it, or its directory, to the next of several directories. Half of the clients do so over REST, half as SMB does: by
//! handles, and what they write is durable when they flush or close. A client acknowledges after the service did. So after a
//! crash it must be in one place for everybody: where it was acknowledged last, with what was written
//! last or came next, or in the next place with what came next.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{FileAccess, ShareMode};
use lazuli_extents::{Extents, LocalExtents, Pace};
use lazuli_file::native::{CreateRequest, Disposition, Failure, Kind, Tree};
use lazuli_file::opens::{CacheRequest, Client, Looks, OpenId, OpenRequest, Place};
use lazuli_file::{FileRows, FileService};
use lazuli_generations::content::{ContentReader, ContentSweeper};
use lazuli_protocol::operation::Operation;
use lazuli_store::Store;
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, Replied, Work};
use crate::payload::filled;
use crate::workload::{Acknowledged, CLIENTS, COMMITTED, sweep_again_and_again};

const SHARE: &str = "files";
/// Directories that everything goes around in.
const DIRECTORIES: u64 = 3;
/// Bytes of a file.
const LENGTH: usize = 20_000;

type Refused = (StatusCode, String);

/// The worker's main.
pub fn work(parent: &Parent) {
    hosted::work::<Files>(parent);
}

/// The service on a directory.
#[derive(Clone)]
struct Files {
    service: FileService,
    sweeper: Arc<ContentSweeper>,
    host: Host,
}

/// How somebody looks for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    ByPath,
    ByListing,
}

impl Work for Files {
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
        made_or_there(made).expect("a share");
        for directory in 0..DIRECTORIES {
            files.make_directory(&format!("d{directory}")).await.expect("a directory");
        }
        files
    }

    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let mut seen = acknowledged.counts;
        for (client, count) in seen.iter_mut().enumerate() {
            // Several at once, and each in another order: any of them may be the one that meets what was left.
            let look = |reader, from| self.places(client, reader, from);
            let (a, b, c, d) = tokio::join!(
                look(Reader::ByPath, 0),
                look(Reader::ByListing, 0),
                look(Reader::ByPath, 1),
                look(Reader::ByListing, 2)
            );
            assert!(a == b && b == c && c == d, "client {client} at {count}: {a:?} {b:?} {c:?} {d:?}");
            *count = self.verify_one(client, *count, &a).await;
        }
        seen
    }

    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let next = |running: &mut JoinSet<_>, client, count: u64| {
            let files = self.clone();
            running.spawn(async move { files.once(client, count).await.map(|stamp| (client, count, stamp)) });
        };
        for (client, count) in counts.into_iter().enumerate() {
            next(&mut running, client, count + 1);
        }
        loop {
            let Some(done) = running.join_next().await else { return "nobody is left".into() };
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
            wrong = sweep_again_and_again(&self.sweeper) => wrong,
            wrong = hosted::sweep_garbage_again_and_again(async || self.service.sweep(Pace::FULL).await) => wrong,
        }
    }
}

impl Files {
    /// A client's n-th operation. Returns the stamp that its tag is made of.
    async fn once(&self, client: usize, n: u64) -> Result<u64, Refused> {
        if is_smb(client) {
            let done = self.once_by_handles(client, n).await;
            let refused = |failure: Failure| (StatusCode::INTERNAL_SERVER_ERROR, failure.to_string());
            return done.map(|()| self.host.store.stamp().ticks()).map_err(refused);
        }
        if n == 1 {
            if moves_directory(client) {
                self.make_directory(&place(client, n)).await?;
            }
            let length = LENGTH.to_string();
            let headers = [("x-ms-type", "file"), ("x-ms-content-length", &length)];
            self.call(Operation::CreateFile, &file(client, n), "", &headers, Bytes::new()).await?;
            return self.write(client, n, &file(client, n)).await;
        }
        self.write(client, n, &file(client, n - 1)).await?;
        let source = format!("http://127.0.0.1/torture/{SHARE}/{}", place(client, n - 1));
        let headers = [("x-ms-file-rename-source", source.as_str())];
        let operation = match moves_directory(client) {
            true => Operation::RenameDirectory,
            false => Operation::RenameFile,
        };
        stamp(self.call(operation, &place(client, n), "", &headers, Bytes::new()).await)
    }

    /// The same by handles.
    async fn once_by_handles(&self, client: usize, n: u64) -> Result<(), Failure> {
        let tree = self.service.connect(&self.host.account, SHARE).await?;
        let before = n.saturating_sub(1).max(1);
        let directory = match moves_directory(client) {
            false => None,
            true => Some(self.open_handle(&tree, &place(client, before), Kind::Directory).await?),
        };
        let file = self.open_handle(&tree, &file(client, before), Kind::File).await?;
        self.service.write_at(file, 0, filled(client, n, LENGTH).into(), false).await?;
        match directory {
            Some(directory) => {
                // Nothing below a directory that is moved may be open.
                self.service.close_open(file).await?;
                self.service.rename_open(directory, &place(client, n), false).await?;
                self.service.close_open(directory).await?;
            }
            None => {
                self.service.flush(file).await?;
                self.service.rename_open(file, &place(client, n), false).await?;
                self.service.close_open(file).await?;
            }
        }
        Ok(())
    }

    async fn open_handle(&self, tree: &Tree, path: &str, kind: Kind) -> Result<OpenId, Failure> {
        let open = OpenRequest {
            mode: ShareMode { access: FileAccess::ALL, share: FileAccess::ALL },
            looks: Looks::default(),
            overwrites: false,
            delete_on_close: false,
            cache: CacheRequest::None,
            client: Client { session: 1, ip: [127, 0, 0, 1].into(), name: "torture".into() },
            place: Place::default(),
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
        let range = format!("bytes=0-{}", LENGTH - 1);
        let headers = [("x-ms-write", "update"), ("x-ms-range", range.as_str())];
        let body = filled(client, n, LENGTH).into();
        stamp(self.call(Operation::PutRange, path, "", &headers, body).await)
    }

    async fn make_directory(&self, path: &str) -> Result<(), Refused> {
        made_or_there(
            self.call(Operation::CreateDirectory, path, "restype=directory", &[], Bytes::new()).await,
        )
    }

    /// The directories in which a client's thing is, for a reader that starts with one of them.
    async fn places(&self, client: usize, reader: Reader, from: u64) -> Vec<u64> {
        let mut found = vec![];
        for directory in (0..DIRECTORIES).map(|i| (from + i) % DIRECTORIES) {
            let (parent, thing) = (format!("d{directory}"), thing(client));
            let is_there = match reader {
                Reader::ByPath => {
                    let path = file_below(client, &format!("{parent}/{thing}"));
                    match self.call(Operation::GetFileProperties, &path, "", &[], Bytes::new()).await {
                        Ok(_) => true,
                        Err((StatusCode::NOT_FOUND, _)) => false,
                        Err(refused) => panic!("client {client}: {refused:?}"),
                    }
                }
                Reader::ByListing => {
                    let (directory, name) = match moves_directory(client) {
                        true => (format!("{parent}/{thing}"), "data"),
                        false => (parent, thing.as_str()),
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

    /// Verifies that a client's thing is where it may be, with what may be in it. Returns how far the client has come.
    async fn verify_one(&self, client: usize, count: u64, places: &[u64]) -> u64 {
        let [directory] = places else {
            assert!(
                places.is_empty() && count == 0,
                "client {client} acknowledged {count}: it is in {places:?}"
            );
            return 0;
        };
        let path = file_below(client, &format!("d{directory}/{}", thing(client)));
        let found = self.call(Operation::GetFile, &path, "", &[], Bytes::new()).await;
        let (_, bytes) = found.unwrap_or_else(|refused| panic!("client {client}: {refused:?}"));
        let holds = |n: u64| match n {
            // Made, and not written to yet.
            0 if is_smb(client) => bytes.is_empty(),
            0 => bytes.iter().all(|byte| *byte == 0),
            n => bytes[..] == filled(client, n, LENGTH)[..],
        };
        let is_at = |n: u64| n % DIRECTORIES == *directory;
        // The first operation makes it where it stays.
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

fn made_or_there(made: Replied) -> Result<(), Refused> {
    match made {
        Ok(_) | Err((StatusCode::CONFLICT, _)) => Ok(()),
        Err(refused) => Err(refused),
    }
}

/// The stamp in the tag of a reply.
fn stamp(replied: Replied) -> Result<u64, Refused> {
    let (headers, _) = replied?;
    let etag = headers.get("etag").and_then(|etag| etag.to_str().ok()).expect("a tag");
    Ok(u64::from_str_radix(etag.trim_matches('"').trim_start_matches("0x"), 16).expect("a stamp"))
}

/// Whether a client works by handles.
fn is_smb(client: usize) -> bool {
    client % 4 >= 2
}

/// Whether a client moves a directory with its file in it.
fn moves_directory(client: usize) -> bool {
    client % 2 == 1
}

fn thing(client: usize) -> String {
    format!("client{client}")
}

/// Where a client's thing is after so many operations.
fn place(client: usize, n: u64) -> String {
    format!("d{}/{}", n % DIRECTORIES, thing(client))
}

/// Where its file is then.
fn file(client: usize, n: u64) -> String {
    file_below(client, &place(client, n))
}

fn file_below(client: usize, place: &str) -> String {
    if moves_directory(client) { format!("{place}/data") } else { place.to_owned() }
}
