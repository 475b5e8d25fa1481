//! Copies from remote sources: which sources are allowed, and asynchronous copies.

use std::time::Duration;

use bytes::Bytes;
use lazuli_account::Setting;
use lazuli_auth::sign;
use lazuli_concurrency::Pace;
use lazuli_store::SpaceHeader;
use lazuli_testing::web::{Web, WebDocument};

use crate::support::{ACCOUNT, Reply, TestServer, allowed, key, start, start_allowing};

const BLOCK: &str = "x-ms-blob-type: BlockBlob";
const SYNC: &str = "x-ms-requires-sync: true";

impl TestServer {
    async fn copy_from(&self, url: &str, to: &str, headers: &str) -> Reply {
        self.put(to, &format!("x-ms-copy-source: {url}\n{headers}"), "").await
    }

    /// Waits until the copy to a blob has ended.
    async fn wait_for_copy(&self, target: &str) -> Reply {
        for _ in 0..2000 {
            let head = self.head(target, "").await.expect(200);
            if head.header("x-ms-copy-status") != Some("pending") {
                return head;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the copy to {target} does not end")
    }
}

async fn start_with_web_source(page: WebDocument) -> (Web, TestServer) {
    let web = Web::serve(page).await;
    let server = start_allowing(&[&web.allowed()]).await;
    server.create_container("things").await;
    (web, server)
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 % 253) as u8).collect::<Vec<_>>().into()
}

#[tokio::test]
async fn remote_copy_is_pending_until_complete() {
    let mut page = WebDocument::new(bytes(300_000));
    page.headers.extend(["Content-Type: text/x-far", "x-ms-meta-a: 1"].map(str::to_owned));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    let begun = server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    assert_eq!(begun.header("x-ms-copy-status"), Some("pending"));
    let head = server.head("/things/copy", "").await.expect(200);
    for (name, value) in [
        ("content-length", "0"),
        ("x-ms-copy-status", "pending"),
        ("x-ms-copy-progress", "0/300000"),
        ("x-ms-copy-source", &web.url()),
        ("content-type", "text/x-far"),
        ("x-ms-meta-a", "1"),
        ("etag", begun.etag()),
    ] {
        assert_eq!(head.header(name), Some(value), "{name}");
    }
    assert_eq!(head.header("x-ms-copy-id"), begun.header("x-ms-copy-id"));
    server.advance(1);
    web.release().await;
    let done = server.wait_for_copy("/things/copy").await;
    assert_ne!(done.etag(), begun.etag());
    assert_ne!(done.header("last-modified"), begun.header("last-modified"));
    assert_eq!(done.header("x-ms-copy-status"), Some("success"));
    assert_eq!(done.header("x-ms-copy-progress"), Some("300000/300000"));
    assert_eq!(done.header("x-ms-copy-completion-time"), done.header("last-modified"));
    assert!(server.get("/things/copy", "").await.body == bytes(300_000));
}

#[tokio::test]
async fn target_of_a_pending_copy_refuses_writes() {
    let mut page = WebDocument::new("hello");
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.put_block_blob("/things/source", "other").await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    let own = allowed(&format!("http://{}/{ACCOUNT}/things/source", server.address));
    for (query, headers) in [
        ("", BLOCK.to_owned()),
        ("", format!("x-ms-copy-source: {own}")),
        ("", format!("x-ms-copy-source: {own}\n{SYNC}")),
        ("", format!("x-ms-copy-source: {own}\n{BLOCK}")),
        ("?comp=metadata", "x-ms-meta-a: 1".to_owned()),
        ("?comp=properties", "x-ms-blob-content-type: text/plain".to_owned()),
        ("?comp=lease", "x-ms-lease-action: acquire\nx-ms-lease-duration: -1".to_owned()),
    ] {
        let refused = server.put(&format!("/things/copy{query}"), &headers, "").await;
        assert_eq!(refused.outcome(), (409, "PendingCopyOperation"), "{query} {headers}");
    }
    let from_it = format!("http://{}/{ACCOUNT}/things/copy", server.address);
    server.copy_from(&from_it, "/things/more", "").await.refused(409, "PendingCopyOperation");
    web.release().await;
    assert_eq!(server.wait_for_copy("/things/copy").await.header("x-ms-copy-status"), Some("success"));
    server.put_block_blob("/things/copy", "again").await;
}

#[tokio::test]
async fn pending_copy_is_aborted_by_its_id() {
    let mut page = WebDocument::new(bytes(100_000));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    let begun = server.copy_from(&web.url(), "/things/copy", "x-ms-meta-a: 1").await.expect(202);
    let abort = "x-ms-copy-action: abort";
    let other = "/things/copy?comp=copy&copyid=00000000-0000-0000-0000-000000000001";
    server.put(other, abort, "").await.refused(409, "CopyIdMismatch");
    let target = format!("/things/copy?comp=copy&copyid={}", begun.header("x-ms-copy-id").unwrap());
    server.put(&target, abort, "").await.expect(204);
    let head = server.head("/things/copy", "").await.expect(200);
    assert_eq!(head.header("x-ms-copy-status"), Some("aborted"));
    assert_eq!(head.header("x-ms-meta-a"), Some("1"));
    assert_ne!(head.etag(), begun.etag());
    server.put(&target, abort, "").await.refused(409, "NoPendingCopyOperation");
    web.release().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let after = server.head("/things/copy", "").await;
    assert_eq!(
        (after.etag(), after.header("content-length")),
        (head.etag(), Some("0")),
        "an aborted copy does not resume"
    );
    server.put_block_blob("/things/copy", "again").await;
}

#[tokio::test]
async fn copy_fails_if_the_source_changes() {
    for weak in [false, true] {
        let mut page = WebDocument::new(bytes(100_000));
        if weak {
            page.headers = vec!["ETag: W/\"v1\"".into()];
        }
        page.stalls = true;
        let (web, server) = start_with_web_source(page).await;
        server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
        web.change(|page| page.headers = vec!["ETag: \"v2\"".into()]).await;
        web.release().await;
        let head = server.wait_for_copy("/things/copy").await;
        assert_eq!(head.header("x-ms-copy-status"), Some("failed"));
        assert_eq!(head.header("content-length"), Some("0"));
        let description = head.header("x-ms-copy-status-description").unwrap();
        assert!(description.starts_with("412 SourceConditionNotMet \""), "{description}");
        server.put_block_blob("/things/copy", "again").await;
    }
}

#[tokio::test]
async fn copy_fails_if_the_source_is_deleted() {
    let mut page = WebDocument::new(bytes(1000));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    web.change(|page| page.status = Some("404 Not Found")).await;
    web.release().await;
    let head = server.wait_for_copy("/things/copy").await;
    assert_eq!(head.header("x-ms-copy-status"), Some("failed"));
    assert!(head.header("x-ms-copy-status-description").unwrap().starts_with("404 CannotVerifyCopySource"));
}

#[tokio::test]
async fn copy_survives_broken_connections() {
    for ignores_ranges in [false, true] {
        let mut page = WebDocument::new(bytes(500_000));
        (page.cut_replies, page.ignores_ranges) = (2, ignores_ranges);
        let (web, server) = start_with_web_source(page).await;
        server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
        assert_eq!(server.wait_for_copy("/things/copy").await.header("x-ms-copy-status"), Some("success"));
        assert!(server.get("/things/copy", "").await.body == bytes(500_000));
        assert!(web.requests.lock().await.len() > 2);
    }
}

#[tokio::test]
async fn pending_copy_resumes_after_a_restart() {
    let mut page = WebDocument::new(bytes(200_000));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    let begun = server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    server.copy_from(&web.url(), "/things/aborted", "").await.expect(202);
    server.advance(1);
    let server = server.restart().await;
    let head = server.head("/things/copy", "").await.expect(200);
    assert_eq!((head.header("x-ms-copy-status"), head.etag()), (Some("pending"), begun.etag()));
    let aborted = server.head("/things/aborted", "").await;
    let target = format!("/things/aborted?comp=copy&copyid={}", aborted.header("x-ms-copy-id").unwrap());
    server.put(&target, "x-ms-copy-action: abort", "").await.expect(204);
    let server = server.restart().await;
    web.release().await;
    assert_eq!(server.wait_for_copy("/things/copy").await.header("x-ms-copy-status"), Some("success"));
    assert!(server.get("/things/copy", "").await.body == bytes(200_000));
    assert_eq!(server.wait_for_copy("/things/aborted").await.header("x-ms-copy-status"), Some("aborted"));
}

#[tokio::test]
async fn copy_pending_for_two_weeks_fails_after_a_restart() {
    let mut page = WebDocument::new("hello");
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    server.advance(14 * 86_400 + 1);
    let server = server.restart().await;
    let head = server.wait_for_copy("/things/copy").await;
    assert_eq!(head.header("x-ms-copy-status"), Some("failed"));
    assert!(head.header("x-ms-copy-status-description").unwrap().contains("OperationTimedOut"));
}

#[tokio::test]
async fn remote_page_blob_copy_is_all_zeros_until_complete() {
    let mut body = vec![0; 8192];
    body[512] = 1;
    body[8191] = 2;
    let mut page = WebDocument::new(body.clone());
    page.headers.extend(["x-ms-blob-type: PageBlob", "x-ms-blob-sequence-number: 9"].map(str::to_owned));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    assert!(server.get("/things/copy", "").await.expect(200).body == vec![0; 8192]);
    web.release().await;
    let head = server.wait_for_copy("/things/copy").await;
    assert_eq!(head.header("x-ms-blob-type"), Some("PageBlob"));
    assert_eq!(head.header("x-ms-blob-sequence-number"), Some("9"));
    assert!(server.get("/things/copy", "").await.body == body);
}

#[tokio::test]
async fn synchronous_operations_read_remote_sources_before_the_reply() {
    let (web, server) = start_with_web_source(WebDocument::new(bytes(100_000))).await;
    for (way, status) in [(SYNC, 202), (BLOCK, 201)] {
        server.copy_from(&web.url(), "/things/copy", way).await.expect(status);
        assert!(server.get("/things/copy", "").await.body == bytes(100_000), "{way}");
        let wrong = format!("{way}\nx-ms-source-content-md5: AAAAAAAAAAAAAAAAAAAAAA==");
        server.copy_from(&web.url(), "/things/copy", &wrong).await.refused(400, "Md5Mismatch");
        let token = format!("{way}\nx-ms-copy-source-authorization: Bearer abc");
        server.copy_from(&web.url(), "/things/copy", &token).await.expect(status);
        let last = web.requests.lock().await.last().unwrap().clone();
        assert!(last.contains("authorization: bearer abc\r\n"), "{last}");
        assert!(last.contains("if-match: \"v1\"\r\n"), "{last}");
    }
    web.change(|page| page.body = Bytes::new()).await;
    for (way, status) in [("", 202), (SYNC, 202), (BLOCK, 201)] {
        server.copy_from(&web.url(), "/things/copy", way).await.expect(status);
        let head = server.head("/things/copy", "").await;
        assert_eq!(head.header("content-length"), Some("0"));
        assert_ne!(head.header("x-ms-copy-status"), Some("pending"));
    }
}

#[tokio::test]
async fn status_of_the_source_is_reported() {
    let (web, server) = start_with_web_source(WebDocument::new("hello")).await;
    let condition = "x-ms-source-if-match: \"v2\"";
    server.copy_from(&web.url(), "/things/copy", condition).await.refused(412, "SourceConditionNotMet");
    let condition = format!("x-ms-source-if-none-match: \"v1\"\n{BLOCK}");
    server.copy_from(&web.url(), "/things/copy", &condition).await.refused(304, "CannotVerifyCopySource");
    for (answer, status, reported) in [
        ("403 Forbidden", 403, "403"),
        ("404 Not Found", 404, "404"),
        ("401 Unauthorized", 401, "401"),
        ("302 Found", 409, "409"),
        ("500 Oh", 500, "500"),
    ] {
        web.change(|page| page.status = Some(answer)).await;
        for way in ["", SYNC, BLOCK] {
            let refused = server.copy_from(&web.url(), "/things/copy", way).await;
            let refused = refused.refused(status, "CannotVerifyCopySource");
            assert_eq!(refused.header("x-ms-copy-source-status-code"), Some(reported));
        }
    }
    server.head("/things/copy", "").await.expect(404);
}

#[tokio::test]
async fn source_size_is_limited() {
    let (web, server) = start_with_web_source(WebDocument::new("hello")).await;
    for (way, mib) in [(SYNC, 256), (BLOCK, 5000)] {
        web.change(|page| page.claimed_length = Some((mib << 20) + 1)).await;
        let refused = server.copy_from(&web.url(), "/things/copy", way).await;
        let refused = refused.refused(409, "CannotVerifyCopySource");
        assert!(refused.text().contains(&format!("({mib}MB)")), "{}", refused.text());
    }
    let long = format!("{}?{}", web.url(), "a".repeat(2048));
    server.copy_from(&long, "/things/copy", "").await.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn only_allowed_sources_are_contacted() {
    let web = Web::serve(WebDocument::new("hello")).await;
    let port = web.address.port();
    let other = start().await;
    other.create_container("things").await;
    let server = start_allowing(&["public"]).await;
    server.create_container("things").await;
    for source in [
        format!("http://127.0.0.1:{port}/x"),
        format!("http://localhost:{port}/x"),
        format!("http://127.1:{port}/x"),
        format!("http://2130706433:{port}/x"),
        format!("http://0.0.0.0:{port}/x"),
        format!("http://[::1]:{port}/x"),
        format!("http://[::ffff:127.0.0.1]:{port}/x"),
        format!("http://[::]:{port}/x"),
        "http://169.254.169.254/latest/meta-data/".into(),
        "http://10.0.0.1/x".into(),
        format!("http://{}/{ACCOUNT}/things/b", other.address),
    ] {
        for way in ["", SYNC, BLOCK] {
            let refused = server.copy_from(&source, "/things/copy", way).await;
            assert_eq!(refused.outcome(), (404, "CannotVerifyCopySource"), "{source}");
        }
    }
    assert!(web.requests.lock().await.is_empty(), "no source was contacted");
    for entry in ["*", "127.0.0.0/8", "127.0.0.1", &format!("127.0.0.1:{port}")] {
        let server = start_allowing(&[entry]).await;
        server.create_container("things").await;
        server.copy_from(&web.url(), "/things/copy", SYNC).await.expect(202);
    }
    let server = start_allowing(&["localhost"]).await;
    server.create_container("things").await;
    server.copy_from(&format!("http://localhost:{port}/x"), "/things/copy", SYNC).await.expect(202);
    server.copy_from(&web.url(), "/things/copy", SYNC).await.refused(404, "CannotVerifyCopySource");
}

#[tokio::test]
async fn denied_source_is_refused_like_a_missing_one() {
    let server = start_allowing(&["public"]).await;
    server.create_container("things").await;
    let [denied, absent] = ["http://localhost/x", "http://no-such-name.invalid/x"]
        .map(|source| async { server.copy_from(source, "/things/copy", SYNC).await });
    let (denied, absent) = (denied.await, absent.await);
    assert_eq!(denied.outcome(), (404, "CannotVerifyCopySource"));
    assert_eq!(absent.outcome(), denied.outcome());
    let message = |text: &str| text.split("\nRequestId").next().map(str::to_owned);
    assert_eq!(message(absent.text()), message(denied.text()));
}

#[tokio::test]
async fn server_copies_from_another_server() {
    let source = start().await;
    source.create_container("things").await;
    let headers = format!("{BLOCK}\nx-ms-blob-content-type: text/a\nx-ms-meta-a: 1");
    source.put("/things/b", &headers, bytes(3 << 20)).await.expect(201);
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 4096\nx-ms-blob-sequence-number: 7";
    source.put("/things/page", page, "").await.expect(201);
    let server = start_allowing(&[&source.address.to_string()]).await;
    server.create_container("things").await;
    let fields =
        [("sv", "2022-11-02"), ("ss", "b"), ("srt", "o"), ("sp", "r"), ("se", "2099-12-31T00:00:00Z")];
    let sas = sign::account_sas(ACCOUNT, &key(), &fields);
    let plain = format!("http://{}/{ACCOUNT}/things", source.address);
    let refused = server.copy_from(&format!("{plain}/b"), "/things/copy", "").await;
    let refused = refused.refused(401, "CannotVerifyCopySource");
    assert_eq!(refused.header("x-ms-copy-source-error-code"), Some("NoAuthenticationInformation"));
    server
        .copy_from(&format!("{plain}/none?{sas}"), "/things/copy", "")
        .await
        .refused(404, "CannotVerifyCopySource");
    server.copy_from(&format!("{plain}/b?{sas}"), "/things/copy", "").await.expect(202);
    let head = server.wait_for_copy("/things/copy").await;
    assert_eq!(
        head.header("x-ms-copy-source"),
        Some(format!("{plain}/b").as_str()),
        "the reported URL has no signature"
    );
    for (name, value) in [("content-type", "text/a"), ("x-ms-meta-a", "1"), ("x-ms-blob-type", "BlockBlob")] {
        assert_eq!(head.header(name), Some(value));
    }
    assert_eq!(head.header("content-md5"), source.head("/things/b", "").await.header("content-md5"));
    assert!(server.get("/things/copy", "").await.body == bytes(3 << 20));
    server.copy_from(&format!("{plain}/page?{sas}"), "/things/page", "").await.expect(202);
    let head = server.wait_for_copy("/things/page").await;
    let reported =
        ["x-ms-blob-type", "content-length", "x-ms-blob-sequence-number"].map(|name| head.header(name));
    assert_eq!(reported, [Some("PageBlob"), Some("4096"), Some("7")]);
}

#[tokio::test]
async fn remote_content_is_encrypted_with_the_container_scope() {
    for kind in ["BlockBlob", "PageBlob", "AppendBlob"] {
        let body = [vec![0; 4096], vec![5; 1024], vec![0; 512]].concat();
        let mut page = WebDocument::new(body.clone());
        page.headers.push(format!("x-ms-blob-type: {kind}"));
        page.stalls = true;
        let (web, server) = start_with_web_source(page).await;
        server.set(Setting::AddEncryptionScope("one".into())).await;
        server.put("/sealed?restype=container", "x-ms-default-encryption-scope: one", "").await.expect(201);
        server.copy_from(&web.url(), "/sealed/copy", "").await.expect(202);
        server.get("/sealed/copy", "").await.expect(200);
        server.advance(1);
        let server = server.restart().await;
        web.release().await;
        let head = server.wait_for_copy("/sealed/copy").await;
        assert_eq!(head.header("x-ms-copy-status"), Some("success"));
        assert_eq!(head.header("x-ms-encryption-scope"), Some("one"));
        assert!(server.get("/sealed/copy", "").await.body == body, "{kind}");
    }
}

#[tokio::test]
async fn copies_complete_after_the_client_disconnects() {
    let (web, server) = start_with_web_source(WebDocument::new(bytes(1000))).await;
    let mut begun = 0;
    for round in 0..60 {
        let target = format!("/things/copy{round}");
        let patience = Duration::from_micros(200 * round);
        let url = web.url();
        let _ = tokio::time::timeout(patience, server.copy_from(&url, &target, "")).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for round in 0..60 {
        let target = format!("/things/copy{round}");
        if server.head(&target, "").await.status == 200 {
            begun += 1;
            assert_eq!(
                server.wait_for_copy(&target).await.header("x-ms-copy-status"),
                Some("success"),
                "{round}"
            );
        }
    }
    assert!(begun > 0);
}

#[tokio::test]
async fn copy_resumes_when_its_container_is_restored() {
    // Three rounds: the container is deleted for a moment, until the source has sent everything, or over a
    // restart.
    for (round, (ends_while_deleted, restarts)) in
        [(false, false), (true, false), (false, true)].into_iter().enumerate()
    {
        let mut page = WebDocument::new(bytes(200_000));
        page.stalls = true;
        let (web, mut server) = start_with_web_source(page).await;
        server.set(Setting::ContainerSoftDelete(Some(7))).await;
        server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
        while web.requests.lock().await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.delete("/things?restype=container", "").await.expect(202);
        if ends_while_deleted {
            web.release().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if restarts {
            server = server.restart().await;
        }
        let restore = TestServer::restore("things", &server.deleted_version().await);
        server.put("/things?restype=container&comp=undelete", &restore, "").await.expect(201);
        web.release().await;
        let head = server.wait_for_copy("/things/copy").await;
        assert_eq!(head.header("x-ms-copy-status"), Some("success"), "{round}");
        assert!(server.get("/things/copy", "").await.body == bytes(200_000));
    }
}

#[tokio::test]
async fn copy_resumes_when_a_sweep_reopens_its_container() {
    let mut page = WebDocument::new(bytes(200_000));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    server.service.stop_copies().await;
    // Reproduce a crash between committing the row of a restored container and opening its space.
    let space = server.only_space().await;
    let header = server.store.space(space).await.unwrap().unwrap();
    let closed = SpaceHeader { epoch: header.epoch + 1, open: false };
    server.store.set_space(space, Some(header), closed).await.unwrap();
    let server = server.restart().await;
    server.head("/things/copy", "").await.expect(404);
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    web.release().await;
    let head = server.wait_for_copy("/things/copy").await;
    assert_eq!(head.header("x-ms-copy-status"), Some("success"));
}

#[tokio::test]
async fn copy_is_completed_later_if_the_store_is_busy() {
    let mut page = WebDocument::new(bytes(200_000));
    page.stalls = true;
    let (web, server) = start_with_web_source(page).await;
    server.copy_from(&web.url(), "/things/copy", "").await.expect(202);
    while web.requests.lock().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.watched.interposer.refuse_commits(2);
    web.release().await;
    assert_eq!(server.wait_for_copy("/things/copy").await.header("x-ms-copy-status"), Some("success"));
    assert!(server.get("/things/copy", "").await.body == bytes(200_000));
}

#[tokio::test]
async fn slow_sources_do_not_block_other_copies_and_time_out() {
    let mut page = WebDocument::new("hello");
    page.stalls = true;
    let (slow, fast) = (Web::serve(page).await, Web::serve(WebDocument::new("world")).await);
    let server = start_allowing(&[&slow.allowed(), &fast.allowed()]).await;
    server.create_container("things").await;
    // The maximum number of copies that are fetched concurrently.
    for n in 0..16 {
        server.copy_from(&slow.url(), &format!("/things/slow{n}"), "").await.expect(202);
    }
    server.copy_from(&fast.url(), "/things/fast", "").await.expect(202);
    assert_eq!(server.wait_for_copy("/things/fast").await.header("x-ms-copy-status"), Some("success"));
    assert_eq!(server.get("/things/fast", "").await.text(), "world");
    let head = server.head("/things/slow0", "").await;
    assert_eq!(head.header("x-ms-copy-status"), Some("pending"));
    server.advance(14 * 86_400 + 1);
    let head = server.wait_for_copy("/things/slow0").await;
    assert_eq!(head.header("x-ms-copy-status"), Some("failed"));
    assert!(head.header("x-ms-copy-status-description").unwrap().contains("OperationTimedOut"));
}
