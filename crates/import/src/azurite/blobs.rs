//! Containers and blobs.
//!
//! A snapshot's content is written as the blob, and a snapshot of it is taken. The blob's own content comes
//! last. Uncommitted blocks follow, then leases, which would refuse all of this.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_client::client::{Call, OperationFailure};
use lazuli_protocol::ServiceKind;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::document::{Blob, Block, Chunk, Lease, StagedBlock, StoredContainer};
use super::{
    Connections, Database, FolderError, Import, Step, access_policies, count_lost_capitals, encode, header,
    metadata, now_milliseconds, run_step, service_properties, unix_milliseconds,
};

/// Content up to this length is written by one request. Longer content is written in blocks of this length.
const BLOCK: u64 = 4 << 20;

/// A lease to acquire when everything else is imported.
struct PendingLease {
    account: String,
    /// Path and query of the container or blob.
    path: String,
    query: &'static str,
    id: String,
    /// -1 for a lease that does not expire.
    seconds: i64,
}

/// Why an object was left out.
type Refused = String;

/// Blobs that have the content of a snapshot until their own content is written: the account, the path, and
/// the times of the snapshots that were taken.
type Unfinished = Arc<Mutex<BTreeMap<(String, String), Vec<String>>>>;

pub(super) async fn import(import: &Arc<Import>) -> Result<(), FolderError> {
    let leases = Arc::new(Mutex::new(Vec::new()));
    service_properties::import(import, Database::Blob, ServiceKind::Blob).await?;
    run_step(import, Database::Blob, Containers { leases: leases.clone() }).await?;
    let unfinished = Unfinished::default();
    for snapshots in [true, false] {
        let (leases, unfinished) = (leases.clone(), unfinished.clone());
        run_step(import, Database::Blob, Blobs { snapshots, leases, unfinished }).await?;
    }
    let unfinished = std::mem::take(&mut *unfinished.lock());
    let mut connections = Connections::new(&import.destination);
    for ((account, path), snapshots) in unfinished {
        remove_unfinished(import, &mut connections, &account, path, &snapshots).await;
    }
    run_step(import, Database::Blob, StagedBlocks).await?;
    let leases = std::mem::take(&mut *leases.lock());
    for lease in leases {
        acquire(import, &mut connections, lease).await;
    }
    Ok(())
}

struct Containers {
    leases: Arc<Mutex<Vec<PendingLease>>>,
}

impl Step for Containers {
    type Document = StoredContainer;

    fn select(
        &self,
        import: &Import,
        collection: &str,
        document: Value,
    ) -> Option<(String, StoredContainer)> {
        let container: StoredContainer =
            (collection == "$CONTAINERS_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((container.name.clone(), container))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, container: StoredContainer) {
        match create_container(connections, &container).await {
            Ok(()) => import.progress.imported("containers", 0),
            Err(reason) => {
                import.progress.left_out(format_args!("container {}", container.name), reason);
                return;
            }
        }
        count_lost_capitals(import, container.metadata.as_ref());
        let leased = container.properties.lease_state.as_deref() == Some("leased");
        if let Some((id, seconds)) = lease_to_acquire(leased, &container.lease) {
            let (account, path) = (container.account_name, format!("/{}", container.name));
            self.leases.lock().push(PendingLease {
                account,
                path,
                query: "restype=container&comp=lease",
                id,
                seconds,
            });
        }
    }
}

async fn create_container(connections: &mut Connections, container: &StoredContainer) -> Result<(), Refused> {
    let path = format!("/{}", container.name);
    let mut create = Call::new(Method::PUT, path.clone(), "restype=container");
    metadata(&mut create, container.metadata.as_ref())?;
    let access = container.properties.public_access.as_deref().filter(|access| !access.is_empty());
    if let Some(access) = access {
        header(&mut create, "x-ms-blob-public-access", access)?;
    }
    // A container that exists already, such as $logs, keeps its properties.
    let expected = [StatusCode::CREATED, StatusCode::CONFLICT];
    send(connections, &container.account_name, &create, &expected).await?;
    let policies = container.container_acl.as_deref().unwrap_or_default();
    if !policies.is_empty() {
        let mut set =
            Call::new(Method::PUT, path, "restype=container&comp=acl").body(access_policies(policies));
        if let Some(access) = access {
            header(&mut set, "x-ms-blob-public-access", access)?;
        }
        send(connections, &container.account_name, &set, &[StatusCode::OK]).await?;
    }
    Ok(())
}

/// Imports committed blobs: only snapshots, or only the blobs themselves.
struct Blobs {
    snapshots: bool,
    leases: Arc<Mutex<Vec<PendingLease>>>,
    unfinished: Unfinished,
}

impl Step for Blobs {
    type Document = Blob;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, Blob)> {
        if collection != "$BLOBS_COLLECTION$" {
            return None;
        }
        // A document of unknown shape is reported by the last step only.
        let is_snapshot =
            document.get("snapshot").and_then(Value::as_str).is_some_and(|time| !time.is_empty());
        if is_snapshot != self.snapshots {
            return None;
        }
        let blob: Blob = import.parse(collection, document)?;
        (blob.is_committed && !blob.deleted).then(|| (format!("{}/{}", blob.container_name, blob.name), blob))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, blob: Blob) {
        let kind = if self.snapshots { "snapshots" } else { "blobs" };
        let key = (blob.account_name.clone(), path(&blob));
        if self.snapshots {
            self.unfinished.lock().entry(key.clone()).or_default();
        }
        if let Err(reason) = put(import, connections, &blob).await {
            let object = format!("{} {}/{}", &kind[..kind.len() - 1], blob.container_name, blob.name);
            return import.progress.left_out(format_args!("{object} {}", blob.snapshot), reason);
        }
        if self.snapshots {
            let mut snapshot = Call::new(Method::PUT, path(&blob), "comp=snapshot");
            let taken = match metadata(&mut snapshot, blob.metadata.as_ref()) {
                Ok(()) => {
                    let expected = [StatusCode::CREATED];
                    let sent =
                        connections.send(&blob.account_name, ServiceKind::Blob, &snapshot, &expected).await;
                    sent.map_err(|failure| failure.to_string())
                }
                Err(reason) => Err(reason),
            };
            match taken {
                Ok(reply) => {
                    let time = reply.headers.get("x-ms-snapshot").and_then(|time| time.to_str().ok());
                    let time = time.unwrap_or_default().to_owned();
                    self.unfinished.lock().entry(key).or_default().push(time);
                }
                Err(reason) => {
                    let object =
                        format_args!("snapshot {}/{} {}", blob.container_name, blob.name, blob.snapshot);
                    return import.progress.left_out(object, reason);
                }
            }
        } else {
            self.unfinished.lock().remove(&key);
        }
        import.progress.imported(kind, blob.properties.content_length);
        count_lost_capitals(import, blob.metadata.as_ref());
        if blob.properties.copy_id.is_some() {
            import.progress.lost("the record of the copy that created a blob");
        }
        let leased = blob.properties.lease_state.as_deref() == Some("leased") && !self.snapshots;
        if let Some((id, seconds)) = lease_to_acquire(leased, &blob.lease) {
            let path = path(&blob);
            self.leases.lock().push(PendingLease {
                account: blob.account_name,
                path,
                query: "comp=lease",
                id,
                seconds,
            });
        }
    }
}

/// Removes a blob whose own content was not written, with the snapshots that this import took of it.
async fn remove_unfinished(
    import: &Import,
    connections: &mut Connections,
    account: &str,
    path: String,
    snapshots: &[String],
) {
    let queries = snapshots.iter().map(|time| format!("snapshot={}", encode(time)));
    for query in queries.chain([String::new()]) {
        let delete = Call::new(Method::DELETE, path.clone(), query);
        let expected = [StatusCode::ACCEPTED, StatusCode::NOT_FOUND];
        if let Err(reason) = send(connections, account, &delete, &expected).await {
            let object = format_args!("blob {path}: it has the content of a snapshot");
            return import.progress.left_out(object, reason);
        }
    }
    import.progress.retract("snapshots", snapshots.len() as u64);
    for time in snapshots {
        import.progress.left_out(format_args!("snapshot {path} {time}"), "its blob was not imported");
    }
}

/// Writes a blob of any type, with its properties, metadata and tags.
async fn put(import: &Import, connections: &mut Connections, blob: &Blob) -> Result<(), Refused> {
    match blob.properties.blob_type.as_str() {
        "BlockBlob" => put_block_blob(import, connections, blob).await,
        "PageBlob" => put_page_blob(import, connections, blob).await,
        "AppendBlob" => put_append_blob(import, connections, blob).await,
        other => Err(format!("unknown type {other}")),
    }
}

async fn put_block_blob(import: &Import, connections: &mut Connections, blob: &Blob) -> Result<(), Refused> {
    let mut blocks = vec![];
    match (&blob.committed_blocks_in_order, &blob.persistency) {
        (Some(committed), _) if !committed.is_empty() => blocks.extend(committed.iter().cloned()),
        (_, Some(chunk)) if chunk.count > BLOCK => blocks.extend(split(chunk)),
        (_, chunk) => {
            let body = match chunk {
                Some(chunk) => content(import, chunk, 0, chunk.count).await?,
                None if blob.properties.content_length == 0 => Bytes::new(),
                None => return Err("its content is not in the database".into()),
            };
            let mut call = Call::new(Method::PUT, path(blob), "").body(body);
            header(&mut call, "x-ms-blob-type", "BlockBlob")?;
            properties(&mut call, blob)?;
            return send(connections, &blob.account_name, &call, &[StatusCode::CREATED]).await;
        }
    }
    for block in &blocks {
        put_block(import, connections, &blob.account_name, &path(blob), block).await?;
    }
    let mut xml = String::from("<BlockList>");
    for block in &blocks {
        super::element(&mut xml, "Latest", &block.name);
    }
    xml += "</BlockList>";
    let mut call = Call::new(Method::PUT, path(blob), "comp=blocklist").body(xml.into());
    properties(&mut call, blob)?;
    send(connections, &blob.account_name, &call, &[StatusCode::CREATED]).await
}

/// Divides content that was written at once into blocks.
fn split(chunk: &Chunk) -> impl Iterator<Item = Block> {
    (0..chunk.count.div_ceil(BLOCK)).map(|number| {
        let offset = number * BLOCK;
        let persistency = Chunk {
            id: chunk.id.clone(),
            offset: chunk.offset + offset,
            count: BLOCK.min(chunk.count - offset),
        };
        Block { name: BASE64_STANDARD.encode(format!("{number:08}")), persistency }
    })
}

async fn put_block(
    import: &Import,
    connections: &mut Connections,
    account: &str,
    path: &str,
    block: &Block,
) -> Result<(), Refused> {
    let body = content(import, &block.persistency, 0, block.persistency.count).await?;
    let query = format!("comp=block&blockid={}", encode(&block.name));
    let call = Call::new(Method::PUT, path, query).body(body);
    send(connections, account, &call, &[StatusCode::CREATED]).await
}

async fn put_page_blob(import: &Import, connections: &mut Connections, blob: &Blob) -> Result<(), Refused> {
    let mut create = Call::new(Method::PUT, path(blob), "");
    header(&mut create, "x-ms-blob-type", "PageBlob")?;
    header(&mut create, "x-ms-blob-content-length", &blob.properties.content_length.to_string())?;
    if let Some(number) = blob.properties.blob_sequence_number {
        header(&mut create, "x-ms-blob-sequence-number", &number.to_string())?;
    }
    properties(&mut create, blob)?;
    send(connections, &blob.account_name, &create, &[StatusCode::CREATED]).await?;
    for range in blob.page_ranges_in_order.as_deref().unwrap_or_default() {
        let length = (range.end + 1).saturating_sub(range.start);
        let mut from = 0;
        while from < length {
            let count = BLOCK.min(length - from);
            let body = content(import, &range.persistency, from, count).await?;
            let mut call = Call::new(Method::PUT, path(blob), "comp=page").body(body);
            header(&mut call, "x-ms-page-write", "update")?;
            let first = range.start + from;
            header(&mut call, "x-ms-range", &format!("bytes={first}-{}", first + count - 1))?;
            send(connections, &blob.account_name, &call, &[StatusCode::CREATED]).await?;
            from += count;
        }
    }
    Ok(())
}

async fn put_append_blob(import: &Import, connections: &mut Connections, blob: &Blob) -> Result<(), Refused> {
    let mut create = Call::new(Method::PUT, path(blob), "");
    header(&mut create, "x-ms-blob-type", "AppendBlob")?;
    properties(&mut create, blob)?;
    send(connections, &blob.account_name, &create, &[StatusCode::CREATED]).await?;
    let mut position = 0;
    for block in blob.committed_blocks_in_order.as_deref().unwrap_or_default() {
        let chunk = &block.persistency;
        let mut from = 0;
        while from < chunk.count {
            let count = BLOCK.min(chunk.count - from);
            let body = content(import, chunk, from, count).await?;
            let mut call = Call::new(Method::PUT, path(blob), "comp=appendblock").body(body);
            // A repeated request whose first attempt succeeded fails, instead of appending twice.
            header(&mut call, "x-ms-blob-condition-appendpos", &position.to_string())?;
            send(connections, &blob.account_name, &call, &[StatusCode::CREATED]).await?;
            from += count;
            position += count;
        }
    }
    if blob.properties.is_sealed == Some(true) {
        let seal = Call::new(Method::PUT, path(blob), "comp=seal");
        send(connections, &blob.account_name, &seal, &[StatusCode::OK]).await?;
    }
    Ok(())
}

/// Adds the headers of properties, metadata and tags.
fn properties(call: &mut Call, blob: &Blob) -> Result<(), Refused> {
    let properties = &blob.properties;
    let digest = properties.content_md5.as_ref().map(|digest| BASE64_STANDARD.encode(digest));
    let tags = blob.blob_tags.as_ref().map(|tags| {
        let tags = tags.blob_tag_set.iter().map(|tag| format!("{}={}", encode(&tag.key), encode(&tag.value)));
        tags.collect::<Vec<_>>().join("&")
    });
    let tier = properties.access_tier.as_ref().filter(|_| properties.access_tier_inferred != Some(true));
    for (name, value) in [
        ("x-ms-blob-content-type", properties.content_type.as_ref()),
        ("x-ms-blob-content-encoding", properties.content_encoding.as_ref()),
        ("x-ms-blob-content-language", properties.content_language.as_ref()),
        ("x-ms-blob-content-disposition", properties.content_disposition.as_ref()),
        ("x-ms-blob-cache-control", properties.cache_control.as_ref()),
        ("x-ms-blob-content-md5", digest.as_ref()),
        ("x-ms-tags", tags.as_ref()),
        ("x-ms-access-tier", tier.filter(|_| properties.blob_type == "BlockBlob")),
    ] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            header(call, name, value)?;
        }
    }
    metadata(call, blob.metadata.as_ref())
}

struct StagedBlocks;

impl Step for StagedBlocks {
    type Document = StagedBlock;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, StagedBlock)> {
        let block: StagedBlock =
            (collection == "$BLOCKS_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((format!("{}/{}", block.container_name, block.blob_name), block))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, staged: StagedBlock) {
        let path = format!("/{}/{}", staged.container_name, encode(&staged.blob_name));
        match put_block(import, connections, &staged.account_name, &path, &staged.block).await {
            Ok(()) => import.progress.imported("uncommitted blocks", staged.block.persistency.count),
            Err(reason) => {
                let (container, blob) = (&staged.container_name, &staged.blob_name);
                import.progress.left_out(format_args!("uncommitted block of {container}/{blob}"), reason);
            }
        }
    }
}

async fn acquire(import: &Import, connections: &mut Connections, lease: PendingLease) {
    let acquired = async {
        let mut call = Call::new(Method::PUT, lease.path.clone(), lease.query);
        header(&mut call, "x-ms-lease-action", "acquire")?;
        header(&mut call, "x-ms-proposed-lease-id", &lease.id)?;
        header(&mut call, "x-ms-lease-duration", &lease.seconds.to_string())?;
        send(connections, &lease.account, &call, &[StatusCode::CREATED, StatusCode::OK]).await
    };
    match acquired.await {
        Ok(()) => import.progress.imported("leases", 0),
        Err(reason) => import.progress.left_out(format_args!("lease of {}", lease.path), reason),
    }
}

/// Returns the identifier and the duration of a lease that is still held.
fn lease_to_acquire(is_leased: bool, lease: &Lease) -> Option<(String, i64)> {
    let id = lease.lease_id.clone().filter(|_| is_leased)?;
    match (lease.lease_duration_seconds, &lease.lease_expire_time) {
        (Some(seconds), Some(expiry)) if seconds > 0 => {
            let is_over = unix_milliseconds(expiry).is_some_and(|expiry| expiry <= now_milliseconds());
            (!is_over).then_some((id, seconds))
        }
        _ => Some((id, -1)),
    }
}

fn path(blob: &Blob) -> String {
    format!("/{}/{}", blob.container_name, encode(&blob.name))
}

/// Reads content without blocking the runtime's worker.
async fn content(import: &Import, chunk: &Chunk, from: u64, length: u64) -> Result<Bytes, Refused> {
    let (folder, chunk) = (import.folder.clone(), chunk.clone());
    let length = usize::try_from(length).map_err(|error| error.to_string())?;
    let read = tokio::task::spawn_blocking(move || {
        folder.blob_content(&chunk, from, length).map_err(|error| format!("content {}: {error}", chunk.id))
    });
    read.await.map_err(|error| error.to_string())?
}

async fn send(
    connections: &mut Connections,
    account: &str,
    call: &Call,
    expected: &[StatusCode],
) -> Result<(), Refused> {
    let sent = connections.send(account, ServiceKind::Blob, call, expected).await;
    sent.map(drop).map_err(|failure: OperationFailure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_content_is_divided_without_gaps() {
        let chunk = Chunk { id: "x".into(), offset: 7, count: 2 * BLOCK + 1 };
        let blocks: Vec<_> = split(&chunk).collect();
        let parts: Vec<_> =
            blocks.iter().map(|block| (block.persistency.offset, block.persistency.count)).collect();
        assert_eq!(parts, [(7, BLOCK), (7 + BLOCK, BLOCK), (7 + 2 * BLOCK, 1)]);
        assert!(blocks.iter().all(|block| block.name.len() == blocks[0].name.len()));
    }

    #[test]
    fn only_leases_that_are_still_held_are_acquired() {
        let lease = |seconds, expiry: Option<&str>| Lease {
            lease_id: Some("id".into()),
            lease_duration_seconds: seconds,
            lease_expire_time: expiry.map(Into::into),
        };
        let id = "id".to_owned();
        assert_eq!(lease_to_acquire(true, &lease(None, None)), Some((id.clone(), -1)));
        assert_eq!(lease_to_acquire(true, &lease(Some(60), Some("2999-01-01T00:00:00Z"))), Some((id, 60)));
        assert_eq!(lease_to_acquire(true, &lease(Some(60), Some("2020-01-01T00:00:00Z"))), None);
        assert_eq!(lease_to_acquire(false, &lease(None, None)), None);
        assert_eq!(lease_to_acquire(true, &Lease::default()), None);
    }
}
