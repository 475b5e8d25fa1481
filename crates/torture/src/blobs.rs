//! The blob service under load, in a process that may die at any moment, and what must be true afterwards.
//!
//! Each client owns a blob and counts; two of them for each type of blob. A block blob is replaced as a whole, by Put
//! Blob and by Put Block List in turn; an append blob gets one more record; a page blob gets one more page. A client
//! acknowledges after the service did. So after a crash each blob must hold, whole, what was acknowledged last or what
//! came next; its ETag and length must belong to those bytes.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use lazuli_blob::{BlobRows, BlobService};
use lazuli_extents::{Extents, LocalExtents};
use lazuli_protocol::operation::Operation;
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, Replied, Work};
use crate::payload::{filled, payload};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED};

const CONTAINER: &str = "blobs";
const PAGE: usize = 512;
/// Pages of a page blob, written in turn.
const PAGES: u64 = 64;
/// Bytes of a record of an append blob.
const RECORD: usize = 3000;
/// Records after which an append blob is begun anew.
const RECORDS: u64 = 200;

/// What a client does to its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Block,
    Append,
    Page,
}

impl Kind {
    fn of(client: usize) -> Self {
        [Self::Block, Self::Append, Self::Page][client % 3]
    }

    /// What the blob holds after so many operations.
    fn content(self, client: usize, count: u64) -> Vec<u8> {
        match self {
            Self::Block => payload(client, count),
            Self::Append => {
                let first = (count - 1) / RECORDS * RECORDS + 1;
                (first..=count).flat_map(|n| filled(client, n, RECORD)).collect()
            }
            Self::Page => {
                let mut pages = vec![0; PAGE * PAGES as usize];
                for n in count.saturating_sub(PAGES - 1).max(1)..=count {
                    let at = (n % PAGES) as usize * PAGE;
                    pages[at..at + PAGE].copy_from_slice(&filled(client, n, PAGE));
                }
                pages
            }
        }
    }
}

/// The worker's main.
pub fn work(parent: &Parent) {
    hosted::work::<Blobs>(parent);
}

/// The service on a directory.
#[derive(Clone)]
struct Blobs {
    service: BlobService,
    host: Host,
}

impl Work for Blobs {
    async fn check(dir: &Path) -> Result<(), String> {
        let mut rows = BlobRows::default();
        hosted::check_contents(dir, |space, partition, row| rows.contents(space, partition, row)).await
    }

    async fn open(host: Host, dir: &Path) -> Self {
        let extents = LocalExtents::open(dir, lazuli_extents::Options::default());
        let extents: Arc<dyn Extents> =
            Arc::new(extents.unwrap_or_else(|error| panic!("the extents do not open: {error}")));
        let service = BlobService::new(host.store.clone(), extents, host.accounts.clone());
        let blobs = Self { service, host };
        let created =
            blobs.call(Operation::CreateContainer, "", "restype=container", &[], Bytes::new()).await;
        assert!(matches!(created, Ok(_) | Err((StatusCode::CONFLICT, _))), "{:?}", created.err());
        blobs
    }

    /// Verifies that every blob holds what was acknowledged or what came next, whole. Returns what is there.
    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let mut seen = acknowledged.counts;
        for (client, count) in seen.iter_mut().enumerate() {
            let found = match self.call(Operation::GetBlob, &name(client), "", &[], Bytes::new()).await {
                Ok((_, bytes)) => Some(bytes),
                Err((StatusCode::NOT_FOUND, _)) => None,
                Err(refused) => panic!("client {client}: {refused:?}"),
            };
            let kind = Kind::of(client);
            let holds = |n: u64| match &found {
                None => n == 0,
                Some(bytes) if kind == Kind::Page && n == 0 => bytes.iter().all(|byte| *byte == 0),
                // An append blob that was just begun anew, or made and not yet appended to.
                Some(bytes) if kind == Kind::Append && bytes.is_empty() => n.is_multiple_of(RECORDS),
                Some(bytes) => n > 0 && bytes[..] == kind.content(client, n)[..],
            };
            let there = [*count, *count + 1].into_iter().find(|n| holds(*n));
            *count = there.unwrap_or_else(|| {
                let length = found.as_ref().map(Bytes::len);
                panic!("client {client} ({kind:?}) acknowledged {count}; {length:?} bytes are there, of neither it nor the next")
            });
        }
        seen
    }

    /// All clients at work, until the service takes no more.
    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let next = |running: &mut JoinSet<_>, client, count: u64| {
            let blobs = self.clone();
            running.spawn(async move { blobs.once(client, count).await.map(|etag| (client, count, etag)) });
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
}

impl Blobs {
    /// A client's n-th operation. Returns the stamp that its tag is made of.
    async fn once(&self, client: usize, n: u64) -> Result<u64, (StatusCode, String)> {
        let name = name(client);
        let put = |kind| [("x-ms-blob-type", kind)];
        let (headers, _) = match Kind::of(client) {
            Kind::Block if n.is_multiple_of(2) => {
                let body = payload(client, n).into();
                self.call(Operation::PutBlob, &name, "", &put("BlockBlob"), body).await?
            }
            Kind::Block => {
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
            Kind::Append => {
                if n % RECORDS == 1 {
                    self.call(Operation::PutBlob, &name, "", &put("AppendBlob"), Bytes::new()).await?;
                }
                let record = filled(client, n, RECORD).into();
                self.call(Operation::AppendBlock, &name, "comp=appendblock", &[], record).await?
            }
            Kind::Page => {
                if n == 1 {
                    let length = (PAGE as u64 * PAGES).to_string();
                    let headers = [("x-ms-blob-type", "PageBlob"), ("x-ms-blob-content-length", &length)];
                    self.call(Operation::PutBlob, &name, "", &headers, Bytes::new()).await?;
                }
                let first = (n % PAGES) * PAGE as u64;
                let range = format!("bytes={first}-{}", first + PAGE as u64 - 1);
                let headers = [("x-ms-page-write", "update"), ("x-ms-range", &range)];
                let page = filled(client, n, PAGE).into();
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
