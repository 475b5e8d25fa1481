//! Expiry, immutability policies and legal holds.

use std::sync::Arc;

use crate::support::{ACCOUNT, NOW, Reply, TestServer, start};
use lazuli_account::Setting;
use lazuli_concurrency::Span;
use lazuli_protocol::date;
use lazuli_store::{CommitError, SpaceId, Store};

const DAY: u64 = 86_400;
const BLOCK: &str = "x-ms-blob-type: BlockBlob";

async fn start_with_box() -> TestServer {
    let server = start().await;
    server.create_container("box").await;
    server
}

fn in_days(days: u64) -> String {
    date::rfc1123(NOW + Span::seconds(days * DAY))
}

async fn set_policy(server: &TestServer, target: &str, days: u64, mode: &str) -> Reply {
    let separator = if target.contains('?') { '&' } else { '?' };
    let headers = format!(
        "x-ms-immutability-policy-until-date: {}\nx-ms-immutability-policy-mode: {mode}",
        in_days(days)
    );
    server.put(&format!("{target}{separator}comp=immutabilityPolicies"), &headers, "").await
}

async fn delete_policy(server: &TestServer, target: &str) -> Reply {
    server.delete(&format!("{target}?comp=immutabilityPolicies"), "").await
}

async fn set_hold(server: &TestServer, target: &str, hold: bool) -> Reply {
    let separator = if target.contains('?') { '&' } else { '?' };
    server.put(&format!("{target}{separator}comp=legalhold"), &format!("x-ms-legal-hold: {hold}"), "").await
}

#[tokio::test]
async fn blob_expires_at_the_time_that_was_set() {
    let server = start_with_box().await;
    let put = server.put_block_blob("/box/b", "1").await;
    let expire = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    let set = server.put("/box/b?comp=expiry", expire, "").await.expect(200);
    assert_ne!(set.etag(), put.etag());
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!(head.etag(), set.etag());
    assert_eq!(head.header("x-ms-expiry-time"), Some(date::rfc1123(NOW + Span::seconds(60)).as_str()));
    let server = server.restart().await;
    server.advance(59);
    server.get("/box/b", "").await.expect(200);
    server.advance(1);
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
    server.put("/box/b?comp=expiry", expire, "").await.refused(404, "BlobNotFound");
    server.delete("/box/b", "").await.refused(404, "BlobNotFound");
    server.put("/box/b", &format!("{BLOCK}\nif-none-match: *"), "2").await.expect(201);
    assert_eq!(server.head("/box/b", "").await.header("x-ms-expiry-time"), None);

    let absolute = format!("x-ms-expiry-option: Absolute\nx-ms-expiry-time: {}", in_days(1));
    server.put("/box/b?comp=expiry", &absolute, "").await.expect(200);
    server.put("/box/b?comp=expiry", "x-ms-expiry-option: NeverExpire", "").await.expect(200);
    server.advance(2 * DAY);
    server.get("/box/b", "").await.expect(200);
    server.put("/box/b?comp=expiry", &absolute, "").await.refused(400, "InvalidHeaderValue");
    server.put("/box/b?comp=expiry", "", "").await.refused(400, "MissingRequiredHeader");
}

#[tokio::test]
async fn set_expiry_counts_as_a_write_for_the_lease() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let lease = server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    let never = "x-ms-expiry-option: NeverExpire";
    server.put("/box/b?comp=expiry", never, "").await.refused(412, "LeaseIdMissing");
    let id = format!("{never}\nx-ms-lease-id: {}", lease.header("x-ms-lease-id").unwrap());
    server.put("/box/b?comp=expiry", &id, "").await.expect(200);
}

#[tokio::test]
async fn snapshot_outlives_the_expiry_of_its_blob() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let expire = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    server.put("/box/b?comp=expiry", expire, "").await.expect(200);
    let snapshot = format!("/box/b?snapshot={}", server.snapshot("/box/b").await);
    server.advance(60);
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
    assert_eq!(server.get(&snapshot, "").await.expect(200).text(), "1");
}

#[tokio::test]
async fn restored_blob_keeps_its_expiry() {
    let server = start_with_box().await;
    server.soft_delete(Some(3)).await;
    let expire = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    for blob in ["/box/restored", "/box/late"] {
        server.put_block_blob(blob, "1").await;
        server.put(&format!("{blob}?comp=expiry"), expire, "").await.expect(200);
        server.delete(blob, "").await.expect(202);
    }
    server.advance(30);
    server.put("/box/restored?comp=undelete", "", "").await.expect(200);
    let head = server.head("/box/restored", "").await.expect(200);
    assert_eq!(head.header("x-ms-expiry-time"), Some(date::rfc1123(NOW + Span::seconds(60)).as_str()));
    server.advance(30);
    server.get("/box/restored", "").await.refused(404, "BlobNotFound");
    server.put("/box/late?comp=undelete", "", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn write_is_refused_if_the_blob_expires_before_the_commit() {
    let expire = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    let never = "x-ms-expiry-option: NeverExpire";
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    for (method, query, headers) in [
        ("PUT", "?comp=metadata", "x-ms-meta-a: 1"),
        ("PUT", "?comp=expiry", never),
        ("PUT", "?comp=snapshot", ""),
        ("PUT", "?comp=lease", acquire),
        ("PUT", "?comp=legalhold", "x-ms-legal-hold: true"),
        ("PUT", "?comp=tier", "x-ms-access-tier: Cool"),
        ("DELETE", "", ""),
    ] {
        let server = start_with_box().await;
        server.put_block_blob("/box/b", "1").await;
        server.put("/box/b?comp=expiry", expire, "").await.expect(200);
        server.watched.interposer.before_next_commit(server.let_time_pass(61));
        let refused = server.call(method, &format!("/box/b{query}"), headers, "").await;
        assert_eq!(refused.outcome(), (404, "BlobNotFound"), "{method} {query}");
        server.get("/box/b", "").await.refused(404, "BlobNotFound");
    }
}

/// Every write that changes a blob in place or replaces it, for each type of blob.
const WRITES: [(&str, &str, &str, &str, &str); 14] = [
    ("PUT", "block", "", "x-ms-blob-type: BlockBlob", "new"),
    ("PUT", "block", "?comp=blocklist", "", "<BlockList></BlockList>"),
    ("PUT", "block", "?comp=metadata", "x-ms-meta-a: 2", ""),
    ("PUT", "block", "?comp=properties", "x-ms-blob-content-type: text/html", ""),
    ("PUT", "block", "?comp=expiry", "x-ms-expiry-option: NeverExpire", ""),
    ("DELETE", "block", "", "", ""),
    ("PUT", "page", "?comp=page", "x-ms-page-write: clear\nx-ms-range: bytes=0-511", ""),
    ("PUT", "page", "?comp=properties", "x-ms-blob-content-length: 1024", ""),
    ("PUT", "page", "", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", ""),
    ("DELETE", "page", "", "", ""),
    ("PUT", "append", "?comp=appendblock", "", "more"),
    ("PUT", "append", "", "x-ms-blob-type: AppendBlob", ""),
    ("PUT", "append", "?comp=seal", "", ""),
    ("DELETE", "append", "", "", ""),
];

async fn assert_all_refused(server: &TestServer, code: &str) {
    for (method, blob, query, headers, body) in WRITES {
        let before = server.get(&format!("/box/{blob}"), "").await.expect(200);
        let reply = server.call(method, &format!("/box/{blob}{query}"), headers, body).await;
        assert_eq!(reply.outcome(), (409, code), "{method} {blob}{query}");
        let after = server.get(&format!("/box/{blob}"), "").await.expect(200);
        assert_eq!((after.etag(), &after.body), (before.etag(), &before.body));
    }
}

async fn put_one_of_each(server: &TestServer) {
    server.put_block_blob("/box/block", "content").await;
    server.put("/box/page", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", "").await.expect(201);
    server.put("/box/append", "x-ms-blob-type: AppendBlob", "").await.expect(201);
}

const BLOBS: [&str; 3] = ["/box/block", "/box/page", "/box/append"];

#[tokio::test]
async fn policy_refuses_every_write_until_it_ends() {
    for days in [None, Some(7)] {
        let server = start_with_box().await;
        server.soft_delete(days).await;
        put_one_of_each(&server).await;
        for blob in BLOBS {
            let before = server.head(blob, "").await;
            let set = set_policy(&server, blob, 2, "Unlocked").await.expect(200);
            assert_eq!(set.header("x-ms-immutability-policy-mode"), Some("unlocked"));
            assert_eq!(set.header("x-ms-immutability-policy-until-date"), Some(in_days(2).as_str()));
            let head = server.head(blob, "").await.expect(200);
            assert_eq!(head.etag(), before.etag());
            assert_eq!(head.header("x-ms-immutability-policy-mode"), Some("unlocked"));
        }
        assert_all_refused(&server, "BlobImmutableDueToPolicy").await;
        let server = server.restart().await;
        server.advance(2 * DAY - 1);
        assert_all_refused(&server, "BlobImmutableDueToPolicy").await;
        server.advance(1);
        for (method, blob, query, headers, body) in WRITES {
            let reply = server.call(method, &format!("/box/{blob}{query}"), headers, body).await;
            assert!(reply.status.is_success(), "{method} {blob}{query} {reply:?}");
        }
    }
}

#[tokio::test]
async fn legal_hold_refuses_every_write_until_it_is_lifted() {
    let server = start_with_box().await;
    put_one_of_each(&server).await;
    for blob in BLOBS {
        let before = server.head(blob, "").await;
        assert_eq!(before.header("x-ms-legal-hold"), None);
        let set = set_hold(&server, blob, true).await.expect(200);
        assert_eq!(set.header("x-ms-legal-hold"), Some("true"));
        let head = server.head(blob, "").await.expect(200);
        assert_eq!((head.etag(), head.header("x-ms-legal-hold")), (before.etag(), Some("true")));
    }
    let server = server.restart().await;
    server.advance(1000 * DAY);
    assert_all_refused(&server, "BlobImmutableDueToLegalHold").await;
    for blob in BLOBS {
        set_hold(&server, blob, false).await.expect(200);
        assert_eq!(server.head(blob, "").await.header("x-ms-legal-hold"), Some("false"));
        server.delete(blob, "").await.expect(202);
    }
}

#[tokio::test]
async fn protected_blob_allows_staging_tiering_and_reads() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    set_hold(&server, "/box/b", true).await.expect(200);
    server.put("/box/b?comp=block&blockid=AAAA", "", "x").await.expect(201);
    server.put("/box/b?comp=tier", "x-ms-access-tier: Cool", "").await.expect(200);
    let snapshot = server.snapshot("/box/b").await;
    server.delete(&format!("/box/b?snapshot={snapshot}"), "").await.expect(202);
    assert_eq!(server.get("/box/b", "").await.expect(200).text(), "1");
}

#[tokio::test]
async fn only_an_unlocked_policy_can_be_shortened_or_deleted() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    set_policy(&server, "/box/b", 5, "Unlocked").await.expect(200);
    set_policy(&server, "/box/b", 2, "Unlocked").await.expect(200);
    delete_policy(&server, "/box/b").await.expect(200);
    assert_eq!(server.head("/box/b", "").await.header("x-ms-immutability-policy-mode"), None);
    delete_policy(&server, "/box/b").await.expect(200);
    set_policy(&server, "/box/b", 2, "Locked").await.expect(200);
    assert_eq!(server.head("/box/b", "").await.header("x-ms-immutability-policy-mode"), Some("locked"));
    set_policy(&server, "/box/b", 1, "Locked").await.refused(409, "BlobImmutableDueToPolicy");
    set_policy(&server, "/box/b", 3, "Unlocked").await.refused(409, "BlobImmutableDueToPolicy");
    delete_policy(&server, "/box/b").await.refused(409, "ImmutabilityPolicyDeleteOnLockedPolicy");
    set_policy(&server, "/box/b", 3, "Locked").await.expect(200);

    for (headers, code) in [
        ("", "MissingRequiredHeader"),
        ("x-ms-immutability-policy-mode: locked", "MissingRequiredHeader"),
        ("x-ms-immutability-policy-until-date: soon", "InvalidHeaderValue"),
        ("x-ms-immutability-policy-until-date: Sun, 06 Nov 1994 08:49:37 GMT", "InvalidHeaderValue"),
    ] {
        server.put("/box/b?comp=immutabilityPolicies", headers, "").await.refused(400, code);
    }
    server.put("/box/b?comp=legalhold", "", "").await.refused(400, "MissingRequiredHeader");
    server
        .put("/box/b?comp=legalhold", "x-ms-legal-hold: perhaps", "")
        .await
        .refused(400, "InvalidHeaderValue");
    set_policy(&server, "/box/none", 1, "Locked").await.refused(404, "BlobNotFound");
    set_hold(&server, "/box/none", true).await.refused(404, "BlobNotFound");
    let late = format!("Unlocked\nif-unmodified-since: {}", date::rfc1123(NOW + Span::seconds(DAY)));
    server.put_block_blob("/box/c", "1").await;
    set_policy(&server, "/box/c", 1, &late).await.expect(200);
    let early = "Unlocked\nif-unmodified-since: Sun, 06 Nov 1994 08:49:37 GMT";
    set_policy(&server, "/box/c", 1, early).await.refused(412, "ConditionNotMet");
}

#[tokio::test]
async fn new_blob_can_be_protected() {
    let server = start_with_box().await;
    let policy = format!(
        "{BLOCK}\nx-ms-immutability-policy-until-date: {}\nx-ms-immutability-policy-mode: Locked",
        in_days(1)
    );
    server.put("/box/b", &policy, "1").await.expect(201);
    server.put_block_blob("/box/other", "1").await;
    server.put("/box/b", BLOCK, "2").await.refused(409, "BlobImmutableDueToPolicy");
    server.put("/box/c?comp=block&blockid=AAAA", "", "x").await.expect(201);
    let list = "<BlockList><Latest>AAAA</Latest></BlockList>";
    server.put("/box/c?comp=blocklist", "x-ms-legal-hold: true", list).await.expect(201);
    server.delete("/box/c", "").await.refused(409, "BlobImmutableDueToLegalHold");
    let past = format!("{BLOCK}\nx-ms-immutability-policy-until-date: Sun, 06 Nov 1994 08:49:37 GMT");
    server.put("/box/d", &past, "1").await.refused(400, "InvalidHeaderValue");
}

#[tokio::test]
async fn protection_stays_with_its_version() {
    let server = start_with_box().await;
    server.versioning(true).await;
    let first = server.put_block_blob("/box/b", "1").await;
    let first = format!("/box/b?versionid={}", first.header("x-ms-version-id").unwrap());
    set_policy(&server, &first, 1, "Locked").await.expect(200);
    // A write creates another version, so it destroys nothing.
    server.put_block_blob("/box/b", "2").await;
    assert_eq!(server.head("/box/b", "").await.header("x-ms-immutability-policy-mode"), None);
    server.delete(&first, "").await.refused(409, "BlobImmutableDueToPolicy");
    let second = server.head("/box/b", "").await;
    let second = format!("/box/b?versionid={}", second.header("x-ms-version-id").unwrap());
    set_hold(&server, "/box/b", true).await.expect(200);
    // These would change the protected version in place.
    server.delete("/box/b", "").await.refused(409, "BlobImmutableDueToLegalHold");
    server.put("/box/b?comp=metadata", "", "").await.refused(409, "BlobImmutableDueToLegalHold");
    server.put_block_blob("/box/b", "3").await;
    server.delete("/box/b", "").await.expect(202);
    server.delete(&second, "").await.refused(409, "BlobImmutableDueToLegalHold");
    set_hold(&server, &second, false).await.expect(200);
    server.delete(&second, "").await.expect(202);
    server.advance(DAY);
    server.delete(&first, "").await.expect(202);
}

#[tokio::test]
async fn protected_blob_does_not_expire() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let expire = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    server.put("/box/b?comp=expiry", expire, "").await.expect(200);
    set_hold(&server, "/box/b", true).await.expect(200);
    server.advance(DAY);
    server.get("/box/b", "").await.expect(200);
    set_hold(&server, "/box/b", false).await.expect(200);
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn container_with_a_protected_blob_is_not_deleted() {
    const CON: &str = "/box?restype=container";
    let policy = format!("{BLOCK}\nx-ms-immutability-policy-until-date: {}", in_days(1));
    let list = format!("x-ms-immutability-policy-until-date: {}", in_days(1));
    for (way, code) in [
        ("hold", "BlobImmutableDueToLegalHold"),
        ("policy", "BlobImmutableDueToPolicy"),
        ("born", "BlobImmutableDueToPolicy"),
        ("list", "BlobImmutableDueToPolicy"),
        ("copy", "BlobImmutableDueToPolicy"),
        ("version", "BlobImmutableDueToLegalHold"),
    ] {
        let server = start_with_box().await;
        server.set(Setting::ContainerSoftDelete((way == "policy").then_some(7))).await;
        server.versioning(way == "version").await;
        // The container has more blobs than are searched at once.
        for n in 0..300 {
            server.put_block_blob(&format!("/box/a{n}"), "1").await;
        }
        let put = server.put_block_blob("/box/b", "1").await;
        let mut held = "/box/b".to_owned();
        match way {
            "hold" => set_hold(&server, &held, true).await.expect(200),
            "policy" => set_policy(&server, &held, 1, "Unlocked").await.expect(200),
            "born" => server.put("/box/c", &policy, "1").await.expect(201),
            "list" => server.put("/box/c?comp=blocklist", &list, "<BlockList></BlockList>").await.expect(201),
            "copy" => {
                let source = format!("x-ms-copy-source: http://{}/{ACCOUNT}/box/b", server.address);
                server.put("/box/c", &format!("{source}\n{list}"), "").await.expect(202)
            }
            _ => {
                held = format!("/box/b?versionid={}", put.header("x-ms-version-id").unwrap());
                set_hold(&server, &held, true).await.expect(200);
                server.put_block_blob("/box/b", "2").await
            }
        };
        let etag = server.head(CON, "").await.expect(200).etag().to_owned();
        assert_eq!(server.delete(CON, "").await.outcome(), (409, code), "{way}");
        let server = server.restart().await;
        assert_eq!(server.delete(CON, "").await.outcome(), (409, code), "{way}");
        assert_eq!(server.head(CON, "").await.expect(200).etag(), etag);
        server.get(&held, "").await.expect(200);
        if code == "BlobImmutableDueToLegalHold" {
            set_hold(&server, &held, false).await.expect(200);
        } else {
            server.advance(DAY);
        }
        server.delete(CON, "").await.expect(202);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_hold_and_container_delete_exclude_each_other() {
    let server = start_with_box().await;
    let (mut held, mut deleted) = (0, 0);
    for round in 0..60 {
        let name = format!("con{round}");
        server.create_container(&name).await;
        let blob = format!("/{name}/b");
        server.put_block_blob(&blob, "1").await;
        if round % 2 == 0 {
            // The container has protected a blob before.
            set_hold(&server, &blob, true).await.expect(200);
            set_hold(&server, &blob, false).await.expect(200);
        }
        let target = format!("/{name}?restype=container");
        let late = async {
            tokio::time::sleep(std::time::Duration::from_micros(50 * (round % 10))).await;
            server.delete(&target, "").await
        };
        let (hold, delete) = tokio::join!(set_hold(&server, &blob, true), late);
        match (hold.outcome(), delete.outcome()) {
            ((200, _), (409, "BlobImmutableDueToLegalHold")) => {
                server.get(&blob, "").await.expect(200);
                held += 1;
            }
            ((404, "ContainerNotFound"), (202, _)) => deleted += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(held > 0, "{held} {deleted}");
}

#[tokio::test]
async fn container_delete_is_refused_if_a_queued_commit_protects_a_blob() {
    let locked =
        format!("x-ms-immutability-policy-until-date: {}\nx-ms-immutability-policy-mode: locked", in_days(1));
    let hold = "x-ms-legal-hold: true".to_owned();
    let list = "<BlockList></BlockList>";
    for (target, headers, body) in [
        ("/box/b?comp=immutabilityPolicies", locked.clone(), ""),
        ("/box/b?comp=legalhold", hold.clone(), ""),
        ("/box/b", format!("{BLOCK}\n{locked}"), "content"),
        ("/box/b?comp=blocklist", hold, list),
    ] {
        let server = Arc::new(start_with_box().await);
        server.put_block_blob("/box/b", "1").await;
        let queueing = &server.watched.interposer.queueing;
        queueing.queue_next(|partition| partition.space != SpaceId::ROOT && partition.key.starts_with(b"b"));
        let protecting = tokio::spawn({
            let server = server.clone();
            async move { server.put(target, &headers, body).await }
        });
        queueing.queued().await;
        protecting.abort();
        queueing.dropped().await;
        let deleted = server.delete("/box?restype=container", "").await;
        assert_eq!(queueing.outcome(), Some(Ok(())), "{target}: the blob was protected");
        assert_eq!(deleted.status.as_u16(), 409, "{target}: the container must not be deleted");
        server.head("/box/b", "").await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_delete_is_refused_if_another_front_end_protects_a_blob_during_the_search() {
    // The other front end commits after this search of Delete Container: the search before the fence, or the
    // one after it.
    for (search, protected, status) in [(0, Ok(()), 409), (1, Err(CommitError::Gone), 202)] {
        let deleting = start_with_box().await;
        let protecting = Arc::new(deleting.other_front_end().await);
        deleting.put_block_blob("/box/b", "1").await;
        let queueing = &protecting.watched.interposer.queueing;
        queueing.queue_next(|partition| partition.space != SpaceId::ROOT && partition.key.starts_with(b"b"));
        let hold = tokio::spawn({
            let protecting = protecting.clone();
            async move { set_hold(&protecting, "/box/b", true).await }
        });
        queueing.queued().await;
        hold.abort();
        queueing.dropped().await;
        let (watched, runtime) = (protecting.watched.clone(), tokio::runtime::Handle::current());
        deleting.watched.interposer.after_scan_skipping(search, move || {
            tokio::task::block_in_place(|| runtime.block_on(watched.wait_for_commits())).unwrap();
        });
        let deleted = deleting.delete("/box?restype=container", "").await;
        assert_eq!((queueing.outcome(), deleted.status.as_u16()), (Some(protected), status), "{search}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_delete_searches_again_if_another_front_end_protects_a_blob_after_the_fence() {
    let deleting = start_with_box().await;
    let protecting = Arc::new(deleting.other_front_end().await);
    deleting.put_block_blob("/box/b", "1").await;
    set_hold(&protecting, "/box/b", true).await.expect(200);
    set_hold(&protecting, "/box/b", false).await.expect(200);
    let runtime = tokio::runtime::Handle::current();
    deleting.watched.interposer.after_scan_skipping(1, move || {
        let held = async move { set_hold(&protecting, "/box/b", true).await.expect(200) };
        tokio::task::block_in_place(|| runtime.block_on(held));
    });
    deleting.delete("/box?restype=container", "").await.refused(409, "BlobImmutableDueToLegalHold");
    deleting.head("/box/b", "").await.expect(200);
}

#[tokio::test]
async fn only_protecting_requests_commit_to_the_guard_row() {
    let server = start_with_box().await;
    let writes = || server.watched.interposer.take_writes();
    writes();
    server.put_block_blob("/box/b", "1").await;
    assert_eq!(writes(), 1, "Put Blob commits the blob");
    set_hold(&server, "/box/b", true).await.expect(200);
    assert_eq!(writes(), 2, "Set Blob Legal Hold commits the guard row and the blob");
    server.create_container("plain").await;
    server.put_block_blob("/plain/b", "1").await;
    writes();
    server.delete("/plain?restype=container", "").await.expect(202);
    assert_eq!(writes(), 2, "Delete Container commits the row and the header");
}

#[tokio::test]
async fn protection_requires_version_level_immutability() {
    let server = start_with_box().await;
    server.put_block_blob("/box/held", "1").await;
    set_hold(&server, "/box/held", true).await.expect(200);
    set_policy(&server, "/box/held", 1, "Unlocked").await.expect(200);
    server.set(Setting::VersionImmutability(false)).await;
    server.put_block_blob("/box/b", "1").await;
    let header = "x-ms-immutable-storage-with-versioning-enabled";
    let enabled = async |container: &str| {
        let target = format!("{container}?restype=container");
        server.head(&target, "").await.expect(200).header(header).map(str::to_owned)
    };
    assert_eq!(enabled("/box").await.as_deref(), Some("false"));
    let until = format!("x-ms-immutability-policy-until-date: {}", in_days(1));
    let refused = |reply: Reply| reply.refused(400, "FeatureNotEnabled");
    refused(set_policy(&server, "/box/b", 1, "Unlocked").await);
    refused(set_hold(&server, "/box/b", true).await);
    refused(server.put("/box/new", &format!("{BLOCK}\n{until}"), "1").await);
    refused(server.put("/box/new", &format!("{BLOCK}\nx-ms-legal-hold: true"), "1").await);
    let list = "<BlockList></BlockList>";
    refused(server.put("/box/new?comp=blocklist", "x-ms-legal-hold: true", list).await);
    let copy = format!("x-ms-copy-source: {}\n{until}", server.url(ACCOUNT, "/box/b"));
    refused(server.put("/box/new", &copy, "").await);
    server.put("/box/new", &format!("{BLOCK}\nx-ms-legal-hold: false"), "1").await.expect(201);
    // Protected blobs stay protected, and the protection can be ended.
    server.delete("/box/held", "").await.refused(409, "BlobImmutableDueToLegalHold");
    set_hold(&server, "/box/held", false).await.expect(200);
    server.delete("/box/held", "").await.refused(409, "BlobImmutableDueToPolicy");
    delete_policy(&server, "/box/held").await.expect(200);
    server.delete("/box/held", "").await.expect(202);
    // The setting is for one container of the account.
    server.set(Setting::AddImmutableContainer("worm".into())).await;
    server.create_container("worm").await;
    assert_eq!(enabled("/worm").await.as_deref(), Some("true"));
    server.put("/worm/b", &format!("{BLOCK}\nx-ms-legal-hold: true"), "1").await.expect(201);
    refused(set_hold(&server, "/box/b", true).await);
}
