//! Copy File from a remote source: pending copies.

use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::{Caching, FileAccess, Pace};
use lazuli_file::opens::CacheRequest;
use lazuli_store::{Commit, Mutation, Partition, Row, SpaceHeader, SpaceId};
use lazuli_testing::web::{Web, WebDocument};
use lazuli_testing::{AllRows, Reply};
use tokio::sync::mpsc::unbounded_channel;

use crate::opens::{open, request};
use crate::shares::{deleted_version, keep_deleted};
use crate::support::{Server, make_file, start};

const ABORT: &str = "x-ms-copy-action: abort";

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 % 253) as u8).collect()
}

async fn served(page: WebDocument) -> (Web, Server) {
    (Web::serve(page).await, start().await)
}

/// Returns a document whose content stalls until it is released.
fn stalling_document(length: usize) -> WebDocument {
    let mut page = WebDocument::new(bytes(length));
    page.stalls = true;
    page
}

async fn copy(server: &Server, web: &Web, path: &str, headers: &str) -> Reply {
    let headers = format!("x-ms-copy-source: {}\n{headers}", web.url());
    server.put(&format!("/docs/{path}"), &headers, "").await
}

async fn head(server: &Server, path: &str) -> Reply {
    server.call("HEAD", &format!("/docs/{path}"), "", "").await.expect(200)
}

/// Waits until the copy to a file has ended.
async fn wait_for_copy(server: &Server, path: &str) -> Reply {
    for _ in 0..2000 {
        let head = head(server, path).await;
        if head.header("x-ms-copy-status") != Some("pending") {
            return head;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the copy to {path} does not end")
}

/// Returns the spaces that have a row of a pending copy.
fn pending_copies(server: &Server) -> Vec<SpaceId> {
    let mut spaces = vec![];
    let visit = |space, partition: &Bytes, _: &Row| {
        if &partition[..] == b"c" {
            spaces.push(space);
        }
        Ok(())
    };
    server.store.for_each_row(visit).unwrap();
    spaces
}

async fn restarted(server: Server) -> Server {
    server.advance(1);
    server.service.stop_copies().await;
    let server = server.restart().await;
    server.service.resume_copies().await;
    server
}

fn abort(path: &str, begun: &Reply) -> String {
    format!("/docs/{path}?comp=copy&copyid={}", begun.header("x-ms-copy-id").unwrap())
}

#[tokio::test]
async fn remote_copy_is_pending_until_all_bytes_arrived() {
    let mut page = stalling_document(300_000);
    page.headers.extend(["Content-Type: text/x-far", "x-ms-meta-a: 1"].map(str::to_owned));
    let (web, server) = served(page).await;
    let begun = copy(&server, &web, "copy", "x-ms-file-attributes: Hidden").await.expect(202);
    assert_eq!(begun.header("x-ms-copy-status"), Some("pending"));
    let pending = head(&server, "copy").await;
    for (name, value) in [
        ("content-length", "300000"),
        ("x-ms-copy-status", "pending"),
        ("x-ms-copy-progress", "0/300000"),
        ("x-ms-copy-source", &web.url()),
        ("x-ms-copy-id", begun.header("x-ms-copy-id").unwrap()),
        ("content-type", "text/x-far"),
        ("x-ms-meta-a", "1"),
        ("x-ms-file-attributes", "Hidden"),
        ("etag", begun.etag()),
    ] {
        assert_eq!(pending.header(name), Some(value), "{name}");
    }
    assert_eq!(pending.header("x-ms-copy-completion-time"), None);
    assert!(server.get("/docs/copy", "").await.expect(200).body.iter().all(|byte| *byte == 0));
    server.advance(1);
    web.release().await;
    let done = wait_for_copy(&server, "copy").await;
    assert_ne!(done.etag(), begun.etag());
    assert_eq!(done.header("x-ms-copy-status"), Some("success"));
    assert_eq!(done.header("x-ms-copy-progress"), Some("300000/300000"));
    assert_eq!(done.header("x-ms-copy-completion-time"), done.header("last-modified"));
    assert!(server.get("/docs/copy", "").await.body == bytes(300_000));
}

#[tokio::test]
async fn target_of_a_pending_copy_refuses_other_changes() {
    let (web, server) = served(stalling_document(1000)).await;
    make_file(&server, "other", 10).await;
    let begun = copy(&server, &web, "copy", "").await.expect(202);
    let url = |path: &str| format!("http://{}/{}/docs/{path}", server.address, lazuli_testing::ACCOUNT);
    let (from_other, from_copy) = (url("other"), url("copy"));
    let refused = |reply: Reply| drop(reply.refused(409, "PendingCopyOperation"));
    for (path, headers) in [
        ("copy", "x-ms-type: file\nx-ms-content-length: 1".to_owned()),
        ("copy", format!("x-ms-copy-source: {from_other}")),
        ("copy?comp=metadata", "x-ms-meta-a: 1".into()),
        ("copy?comp=properties", "x-ms-content-length: 5".into()),
        ("copy?comp=range", "x-ms-write: clear\nx-ms-range: bytes=0-511".into()),
        ("copy?comp=lease", "x-ms-lease-action: acquire\nx-ms-lease-duration: -1".into()),
        ("moved?comp=rename", format!("x-ms-file-rename-source: {from_copy}")),
        (
            "copy?comp=rename",
            format!("x-ms-file-rename-source: {from_other}\nx-ms-file-rename-replace-if-exists: true"),
        ),
        ("more", format!("x-ms-copy-source: {from_copy}")),
    ] {
        refused(server.signed("PUT", &format!("/docs/{path}"), &headers, "").await);
    }
    refused(server.delete("/docs/copy", "").await);
    // SMB clients may read it.
    let writes = open(&server, "copy", request(FileAccess::WRITE, FileAccess::ALL)).await;
    assert!(writes.is_err());
    let reads = open(&server, "copy", request(FileAccess::READ, FileAccess::ALL)).await.unwrap();
    server.service.close_open(reads).await.unwrap();
    let other = "/docs/copy?comp=copy&copyid=00000000-0000-0000-0000-000000000001";
    server.put(other, ABORT, "").await.refused(409, "CopyIdMismatch");
    web.release().await;
    assert_eq!(wait_for_copy(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
    server.put(&abort("copy", &begun), ABORT, "").await.refused(409, "NoPendingCopyOperation");
    server.delete("/docs/copy", "").await.expect(202);
}

#[tokio::test]
async fn end_of_a_copy_breaks_read_caches_of_its_target() {
    let (web, server) = served(stalling_document(1000)).await;
    copy(&server, &web, "copy", "").await.expect(202);
    let (breaks, mut received) = unbounded_channel();
    let mut reads = request(FileAccess::READ, FileAccess::ALL);
    reads.cache = CacheRequest::Lease { client: 1, key: 2, state: Caching::R };
    reads.breaks = Some(breaks);
    let reads = open(&server, "copy", reads).await.unwrap();
    assert_eq!(server.service.opens().opened(reads).unwrap().caching, Caching::R);
    assert!(received.try_recv().is_err());
    web.release().await;
    let notice =
        tokio::time::timeout(Duration::from_secs(60), received.recv()).await.expect("the cache is broken");
    assert_eq!(notice.map(|notice| notice.to), Some(Caching::NONE));
    assert_eq!(head(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
    server.service.close_open(reads).await.unwrap();
}

#[tokio::test]
async fn a_pending_copy_can_be_aborted_by_its_id() {
    let (web, server) = served(stalling_document(100_000)).await;
    make_file(&server, "copy", 5).await;
    let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let leased = server.put("/docs/copy?comp=lease", lease, "").await.expect(201);
    let id = format!("x-ms-lease-id: {}", leased.header("x-ms-lease-id").unwrap());
    copy(&server, &web, "copy", "").await.refused(412, "LeaseIdMissing");
    let begun = copy(&server, &web, "copy", &format!("x-ms-meta-a: 1\n{id}")).await.expect(202);
    server.put(&abort("copy", &begun), ABORT, "").await.refused(412, "LeaseIdMissing");
    server.put(&abort("copy", &begun), &format!("{ABORT}\n{id}"), "").await.expect(204);
    let aborted = head(&server, "copy").await;
    for (name, value) in [
        ("x-ms-copy-status", "aborted"),
        ("content-length", "0"),
        ("x-ms-meta-a", "1"),
        ("x-ms-lease-state", "leased"),
    ] {
        assert_eq!(aborted.header(name), Some(value), "{name}");
    }
    web.release().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(head(&server, "copy").await.etag(), aborted.etag(), "an aborted copy does not change");
    let stats = server.get("/docs?restype=share&comp=stats", "").await.expect(200);
    assert!(stats.text().contains("<ShareUsageBytes>0<"), "{}", stats.text());
}

#[tokio::test]
async fn copy_into_a_deleted_directory_ends_and_leaves_no_rows() {
    let (web, server) = served(stalling_document(100_000)).await;
    server.put("/docs/d?restype=directory", "", "").await.expect(201);
    let begun = copy(&server, &web, "d/copy", "").await.expect(202);
    while web.requests.lock().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pending_copies(&server).len(), 1);
    server.put(&abort("d/copy", &begun), ABORT, "").await.expect(204);
    server.delete("/docs/d/copy", "").await.expect(202);
    server.delete("/docs/d?restype=directory", "").await.expect(202);
    web.release().await;
    let ended = async {
        while !pending_copies(&server).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the copy ends");
}

#[tokio::test]
async fn copy_fails_if_its_source_changes_or_disappears() {
    for (gone, code) in [(false, "412 SourceConditionNotMet \""), (true, "404 CannotVerifyCopySource \"")] {
        let (web, server) = served(stalling_document(100_000)).await;
        copy(&server, &web, "copy", "").await.expect(202);
        web.change(|page| match gone {
            true => page.status = Some("404 Not Found"),
            false => page.headers = vec!["ETag: \"v2\"".into()],
        })
        .await;
        web.release().await;
        let failed = wait_for_copy(&server, "copy").await;
        assert_eq!(failed.header("x-ms-copy-status"), Some("failed"));
        assert_eq!(failed.header("content-length"), Some("0"));
        let description = failed.header("x-ms-copy-status-description").unwrap();
        assert!(description.starts_with(code), "{description}");
        make_file(&server, "copy", 1).await;
    }
}

#[tokio::test]
async fn pending_copy_resumes_after_a_restart() {
    let mut page = stalling_document(200_000);
    page.cut_replies = 2;
    let (web, server) = served(page).await;
    let begun = copy(&server, &web, "copy", "").await.expect(202);
    let aborted = copy(&server, &web, "aborted", "").await.expect(202);
    let server = restarted(server).await;
    let pending = head(&server, "copy").await;
    assert_eq!((pending.header("x-ms-copy-status"), pending.etag()), (Some("pending"), begun.etag()));
    server.put(&abort("aborted", &aborted), ABORT, "").await.expect(204);
    let server = restarted(server).await;
    web.release().await;
    assert_eq!(wait_for_copy(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
    assert!(server.get("/docs/copy", "").await.body == bytes(200_000));
    assert_eq!(head(&server, "aborted").await.header("x-ms-copy-status"), Some("aborted"));
}

#[tokio::test]
async fn copy_continues_into_a_moved_directory() {
    let (web, server) = served(stalling_document(1000)).await;
    server.put("/docs/d?restype=directory", "", "").await.expect(201);
    copy(&server, &web, "d/copy", "").await.expect(202);
    let from = format!("http://{}/{}/docs/d", server.address, lazuli_testing::ACCOUNT);
    let rename = format!("x-ms-file-rename-source: {from}");
    server.signed("PUT", "/docs/e?restype=directory&comp=rename", &rename, "").await.expect(200);
    web.release().await;
    assert_eq!(wait_for_copy(&server, "e/copy").await.header("x-ms-copy-status"), Some("success"));
    assert!(server.get("/docs/e/copy", "").await.body == bytes(1000));
}

#[tokio::test]
async fn snapshot_shows_the_copied_part_of_a_pending_copy() {
    let (web, server) = served(stalling_document(1000)).await;
    copy(&server, &web, "copy", "").await.expect(202);
    let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    let then = format!("/docs/copy?sharesnapshot={}", taken.header("x-ms-snapshot").unwrap());
    web.release().await;
    wait_for_copy(&server, "copy").await;
    let shown = server.get(&then, "").await.expect(200);
    assert_eq!(shown.header("x-ms-copy-status"), Some("pending"));
    assert!(shown.body == vec![0; 1000]);
}

#[tokio::test]
async fn oversized_copy_source_is_refused_before_fetching() {
    let (web, server) = served(WebDocument::new("hello")).await;
    server.put("/docs?restype=share&comp=properties", "x-ms-share-quota: 1", "").await.expect(200);
    web.change(|page| page.claimed_length = Some((1 << 30) + 1)).await;
    copy(&server, &web, "copy", "").await.refused(403, "ShareSizeLimitReached");
    web.change(|page| page.claimed_length = Some((4 << 40) + 1)).await;
    copy(&server, &web, "copy", "").await.refused(409, "CannotVerifyCopySource");
    server.get("/docs/copy", "").await.refused(404, "ResourceNotFound");
    // An empty source needs no fetch.
    web.change(|page| (page.claimed_length, page.body) = (None, Default::default())).await;
    let begun = copy(&server, &web, "copy", "").await.expect(202);
    assert_eq!(begun.header("x-ms-copy-status"), Some("success"));
}

#[tokio::test]
async fn disconnected_client_leaves_no_abandoned_copy() {
    let (web, server) = served(WebDocument::new(bytes(1000))).await;
    let mut begun = 0;
    for round in 0..60 {
        let path = format!("copy{round}");
        let patience = Duration::from_micros(200 * round);
        let _ = tokio::time::timeout(patience, copy(&server, &web, &path, "")).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for round in 0..60 {
        let path = format!("copy{round}");
        if server.call("HEAD", &format!("/docs/{path}"), "", "").await.status == 200 {
            begun += 1;
            assert_eq!(
                wait_for_copy(&server, &path).await.header("x-ms-copy-status"),
                Some("success"),
                "{round}"
            );
        }
    }
    assert!(begun > 0);
}

#[tokio::test]
async fn pages_of_zeros_are_not_stored() {
    let mut body = bytes(3 << 20);
    body[1 << 20..2 << 20].fill(0);
    let (web, server) = served(WebDocument::new(body.clone())).await;
    copy(&server, &web, "copy", "").await.expect(202);
    wait_for_copy(&server, "copy").await;
    assert!(server.get("/docs/copy", "").await.body == body);
    let ranges = server.get("/docs/copy?comp=rangelist", "").await.expect(200);
    assert!(ranges.text().contains("<Start>2097152</Start>"), "{}", ranges.text());
}

#[tokio::test]
async fn copy_to_a_deleted_share_resumes_when_the_share_is_restored() {
    let (web, server) = served(stalling_document(200_000)).await;
    keep_deleted(&server, 7).await;
    copy(&server, &web, "copy", "").await.expect(202);
    while web.requests.lock().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.delete("/docs?restype=share", "").await.expect(202);
    web.release().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let listed = server.get("/?comp=list&include=deleted", "").await.expect(200);
    let version = deleted_version(listed.text());
    let restore = format!("x-ms-deleted-share-name: docs\nx-ms-deleted-share-version: {version}");
    server.put("/docs?restype=share&comp=undelete", &restore, "").await.expect(201);
    assert_eq!(wait_for_copy(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
    assert!(server.get("/docs/copy", "").await.expect(200).body == bytes(200_000));
}

#[tokio::test]
async fn copy_resumes_when_a_sweep_reopens_its_share() {
    let (web, server) = served(stalling_document(200_000)).await;
    copy(&server, &web, "copy", "").await.expect(202);
    // The state after a crash between restoring a share's row and opening its space.
    server.service.stop_copies().await;
    let space = pending_copies(&server)[0];
    let header = server.store.space(space).await.unwrap().unwrap();
    let closed = SpaceHeader { epoch: header.epoch + 1, open: false };
    server.store.set_space(space, Some(header), closed).await.unwrap();
    let server = restarted(server).await;
    server.service.sweep(Pace::FULL).await.unwrap();
    web.release().await;
    assert_eq!(wait_for_copy(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
}

#[tokio::test]
async fn damaged_row_does_not_block_the_resumption_of_other_copies() {
    let (web, server) = served(stalling_document(200_000)).await;
    copy(&server, &web, "copy", "").await.expect(202);
    let space = pending_copies(&server)[0];
    let header = server.store.space(space).await.unwrap().unwrap();
    let commit = Commit {
        stamp: server.store.stamp(),
        epoch: header.epoch,
        conditions: vec![],
        // The empty key sorts before all others.
        mutations: vec![Mutation::Put(Bytes::from_static(b"\0"), Bytes::from_static(b"damaged"))],
        valid_until: None,
        fence: None,
        bulk: false,
    };
    server.store.commit(&Partition::new(space, &b"c"[..]), commit).await.unwrap();
    let server = restarted(server).await;
    web.release().await;
    assert_eq!(wait_for_copy(&server, "copy").await.header("x-ms-copy-status"), Some("success"));
}
