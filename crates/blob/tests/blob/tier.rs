//! Set Blob Tier, the archive tier, and rehydration.

use crate::support::{ACCOUNT, Reply, TestServer, allowed, start};

async fn set_tier(server: &TestServer, target: &str, tier: &str) -> Reply {
    let separator = if target.contains('?') { '&' } else { '?' };
    server.put(&format!("{target}{separator}comp=tier"), &format!("x-ms-access-tier: {tier}"), "").await
}

async fn start_with_box() -> TestServer {
    let server = start().await;
    server.create_container("box").await;
    server
}

#[tokio::test]
async fn set_tier_keeps_the_etag() {
    let server = start_with_box().await;
    let put = server.put_block_blob("/box/b", "1").await;
    let head = server.head("/box/b", "").await;
    assert_eq!(head.header("x-ms-access-tier"), Some("Hot"));
    assert_eq!(head.header("x-ms-access-tier-inferred"), Some("true"));
    for tier in ["Cool", "Cold", "Hot"] {
        server.advance(10);
        set_tier(&server, "/box/b", tier).await.expect(200);
        let head = server.head("/box/b", "").await.expect(200);
        assert_eq!(head.header("x-ms-access-tier"), Some(tier));
        assert_eq!(head.header("x-ms-access-tier-inferred"), None);
        assert!(head.header("x-ms-access-tier-change-time").is_some());
        assert_eq!(head.etag(), put.etag());
        assert_eq!(head.header("last-modified"), put.header("last-modified"));
    }
    // The tier survives an overwrite without a tier, and a restart.
    set_tier(&server, "/box/b", "Cool").await.expect(200);
    server.put_block_blob("/box/b", "2").await;
    let server = server.restart().await;
    assert_eq!(server.head("/box/b", "").await.header("x-ms-access-tier"), Some("Cool"));
}

#[tokio::test]
async fn smart_tier_reports_the_chosen_tier() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    set_tier(&server, "/box/b", "Archive").await.expect(200);
    set_tier(&server, "/box/b", "Smart\nx-ms-rehydrate-priority: High").await.expect(202);
    let head = server.head("/box/b", "").await;
    assert_eq!(head.header("x-ms-archive-status"), Some("rehydrate-pending-to-smart"));
    server.advance(60);
    let newest = "x-ms-version: 2026-10-06";
    for reply in [server.head("/box/b", "").await, server.get("/box/b", newest).await] {
        assert_eq!(reply.header("x-ms-access-tier"), Some("Smart"));
        assert_eq!(reply.header("x-ms-smart-access-tier"), Some("Hot"));
        assert!(reply.header("x-ms-access-tier-change-time").is_some());
    }
    assert_eq!(
        server.get("/box/b", "").await.header("x-ms-access-tier"),
        None,
        "older versions do not report the chosen tier"
    );
    let list = server.get("/box?restype=container&comp=list", "").await;
    let listed = "<AccessTier>Smart</AccessTier><SmartAccessTier>Hot</SmartAccessTier>";
    assert!(list.text().contains(listed), "{}", list.text());
    set_tier(&server, "/box/b", "Cool").await.expect(200);
    assert_eq!(server.head("/box/b", "").await.header("x-ms-smart-access-tier"), None);
}

#[tokio::test]
async fn delete_obeys_conditions_on_the_tier_change_time() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    server.advance(10);
    set_tier(&server, "/box/b", "Cool").await.expect(200);
    let (created, changed) = ("Fri, 02 Jan 2026 03:04:05 GMT", "Fri, 02 Jan 2026 03:04:15 GMT");
    for (condition, outcome) in [
        (format!("modified-since: {changed}"), (412, "AccessTierChangeTimeConditionNotMet")),
        (format!("unmodified-since: {created}"), (412, "AccessTierChangeTimeConditionNotMet")),
        ("modified-since: yesterday".into(), (400, "InvalidHeaderValue")),
        (format!("modified-since: {created}"), (202, "")),
    ] {
        let reply = server.delete("/box/b", &format!("x-ms-access-tier-if-{condition}")).await;
        assert_eq!(reply.outcome(), outcome, "{condition}");
    }
    server.put_block_blob("/box/b", "2").await;
    server.delete("/box/b", &format!("x-ms-access-tier-if-unmodified-since: {changed}")).await.expect(202);
}

#[tokio::test]
async fn invalid_tier_requests_are_refused() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    server.put("/box/p", "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512", "").await.expect(201);
    server.put("/box/a", "x-ms-blob-type: AppendBlob", "").await.expect(201);
    for (target, tier, status, code) in [
        ("/box/b", "Lukewarm", 400, "InvalidHeaderValue"),
        ("/box/b", "", 400, "MissingRequiredHeader"),
        ("/box/b", "P10", 400, "InvalidBlobTier"),
        ("/box/b", "Hot\nx-ms-rehydrate-priority: now", 400, "InvalidHeaderValue"),
        ("/box/p", "Hot", 400, "InvalidBlobTier"),
        ("/box/p", "P10", 200, ""),
        ("/box/p", "P4", 409, "CannotChangeToLowerTier"),
        ("/box/p", "P20", 200, ""),
        ("/box/a", "Cool", 400, "InvalidBlobTier"),
        ("/box/none", "Cool", 404, "BlobNotFound"),
        ("/none/b", "Cool", 404, "ContainerNotFound"),
    ] {
        assert_eq!(set_tier(&server, target, tier).await.outcome(), (status, code), "{target} {tier}");
    }
    let big = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 1099511627776\nx-ms-access-tier: P4";
    server.put("/box/q", big, "").await.refused(409, "BlobTierInadequateForContentLength");
}

#[tokio::test]
async fn cold_tier_requires_its_version() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let copy = format!("x-ms-copy-source: http://{}/{ACCOUNT}/box/b", server.address);
    let list = "<BlockList></BlockList>";
    for (target, headers, body, status) in [
        ("/box/b?comp=tier", "", "", 200),
        ("/box/put", "x-ms-blob-type: BlockBlob", "1", 201),
        ("/box/list?comp=blocklist", "", list, 201),
        ("/box/copy", copy.as_str(), "", 202),
    ] {
        let cold = |version: &str| format!("{headers}\nx-ms-access-tier: Cold\nx-ms-version: {version}");
        let refused = server.put(target, cold("2021-10-04").trim_start(), body).await;
        assert_eq!(refused.outcome(), (400, "InvalidHeaderValue"), "{target}");
        server.put(target, cold("2021-12-02").trim_start(), body).await.expect(status);
    }
    let cool = "x-ms-access-tier: Cool\nx-ms-version: 2021-10-04";
    server.put("/box/b?comp=tier", cool, "").await.expect(200);
}

#[tokio::test]
async fn page_blob_length_is_limited_by_its_tier() {
    let server = start_with_box().await;
    let page = |length: u64| format!("x-ms-blob-type: PageBlob\nx-ms-blob-content-length: {length}");
    let limit = 32 << 30;
    server.put("/box/p", &format!("{}\nx-ms-access-tier: P4", page(512)), "").await.expect(201);
    let resize = async |length: u64| {
        server.put("/box/p?comp=properties", &format!("x-ms-blob-content-length: {length}"), "").await
    };
    resize(limit).await.expect(200);
    resize(limit + 512).await.refused(409, "ContentLengthLargerThanTierLimit");
    set_tier(&server, "/box/p", "P6").await.expect(200);
    resize(limit + 512).await.expect(200);
    // A blob that replaces it does not inherit the tier.
    server.put("/box/p", &page(1 << 40), "").await.expect(201);
    assert_eq!(server.head("/box/p", "").await.header("x-ms-access-tier"), None);
    resize(2 << 40).await.expect(200);
}

#[tokio::test]
async fn new_block_blob_refuses_a_premium_tier() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let page = "x-ms-blob-type: PageBlob\nx-ms-blob-content-length: 512";
    server.put("/box/p", page, "").await.expect(201);
    let url = |source: &str| {
        format!("x-ms-copy-source: http://{}/{ACCOUNT}{}", server.address, allowed(&format!("/box/{source}")))
    };
    let (block, sync) = ("x-ms-blob-type: BlockBlob", "x-ms-requires-sync: true");
    for (target, headers, body) in [
        ("/box/q", block.to_owned(), ""),
        ("/box/b?comp=blocklist", String::new(), "<BlockList></BlockList>"),
        ("/box/q", url("b"), ""),
        ("/box/q", format!("{sync}\n{}", url("b")), ""),
        ("/box/q", format!("{block}\n{}", url("b")), ""),
        // This is refused even if the source does not exist.
        ("/box/q", format!("{sync}\n{}", url("none")), ""),
        ("/box/q", format!("{block}\n{}", url("none")), ""),
    ] {
        let reply = server.put(target, &format!("{headers}\nx-ms-access-tier: P10"), body).await;
        let reply = reply.refused(400, "InvalidHeaderValue");
        assert!(reply.text().contains("<HeaderName>x-ms-access-tier</HeaderName>"), "{}", reply.text());
    }
    server.get("/box/q", "").await.refused(404, "BlobNotFound");
    assert_eq!(server.head("/box/b", "").await.header("x-ms-access-tier"), Some("Hot"));
    server.put("/box/q", &format!("{}\nx-ms-access-tier: P10", url("p")), "").await.expect(202);
    assert_eq!(server.head("/box/q", "").await.header("x-ms-access-tier"), Some("P10"));
}

#[tokio::test]
async fn set_tier_requires_no_lease_id_but_refuses_a_wrong_one() {
    let server = start_with_box().await;
    server.put_block_blob("/box/b", "1").await;
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let lease = server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    let id = lease.header("x-ms-lease-id").unwrap();
    set_tier(&server, "/box/b", "Cool").await.expect(200);
    set_tier(&server, "/box/b", &format!("Hot\nx-ms-lease-id: {id}")).await.expect(200);
    let other = "Hot\nx-ms-lease-id: 22222222-2222-2222-2222-222222222222";
    set_tier(&server, "/box/b", other).await.refused(412, "LeaseIdMismatchWithBlobOperation");
    assert_eq!(server.head("/box/b", "").await.header("x-ms-lease-state"), Some("leased"));
}

#[tokio::test]
async fn archived_blob_cannot_be_read_until_it_is_rehydrated() {
    let server = start_with_box().await;
    server.put("/box/b", "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1", "bytes").await.expect(201);
    set_tier(&server, "/box/b", "Archive").await.expect(200);
    let list = "<BlockList></BlockList>";
    for (method, target, headers, body) in [
        ("GET", "/box/b", "", ""),
        ("PUT", "/box/b?comp=snapshot", "", ""),
        ("PUT", "/box/b?comp=metadata", "", ""),
        ("PUT", "/box/b?comp=properties", "x-ms-blob-content-type: text/plain", ""),
        ("PUT", "/box/b?comp=block&blockid=AAAA", "", "x"),
        ("PUT", "/box/b?comp=blocklist", "", list),
        ("PUT", "/box/b", "x-ms-blob-type: BlockBlob", "new"),
    ] {
        let reply = server.call(method, target, headers, body).await;
        assert_eq!(reply.outcome(), (409, "BlobArchived"), "{method} {target}");
    }
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!((head.header("x-ms-access-tier"), head.header("x-ms-meta-a")), (Some("Archive"), Some("1")));
    server.get("/box/b?comp=metadata", "").await.expect(200);

    set_tier(&server, "/box/b", "Archive").await.expect(200);
    set_tier(&server, "/box/b", "Cool").await.expect(202);
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!(head.header("x-ms-access-tier"), Some("Archive"));
    assert_eq!(head.header("x-ms-archive-status"), Some("rehydrate-pending-to-cool"));
    assert_eq!(head.header("x-ms-rehydrate-priority"), Some("Standard"));
    set_tier(&server, "/box/b", "Cool").await.expect(202);
    for tier in ["Hot", "Cold", "Archive"] {
        set_tier(&server, "/box/b", tier).await.refused(409, "BlobBeingRehydrated");
    }
    server.get("/box/b", "").await.refused(409, "BlobArchived");
    set_tier(&server, "/box/b", "Cool\nx-ms-rehydrate-priority: High").await.expect(202);
    assert_eq!(server.head("/box/b", "").await.header("x-ms-rehydrate-priority"), Some("High"));

    let server = server.restart().await;
    server.advance(59);
    server.get("/box/b", "").await.refused(409, "BlobArchived");
    server.advance(1);
    assert_eq!(server.get("/box/b", "").await.expect(200).text(), "bytes");
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!(head.header("x-ms-access-tier"), Some("Cool"));
    assert_eq!(head.header("x-ms-archive-status"), None);
    server.put("/box/b", "x-ms-blob-type: BlockBlob\nx-ms-access-tier: Archive", "new").await.expect(201);
    server.get("/box/b", "").await.refused(409, "BlobArchived");
    server.delete("/box/b", "").await.expect(202);
}

#[tokio::test]
async fn snapshots_and_versions_have_their_own_tiers() {
    let server = start_with_box().await;
    server.versioning(true).await;
    let first = server.put_block_blob("/box/b", "1").await;
    let first = format!("/box/b?versionid={}", first.header("x-ms-version-id").unwrap());
    let second = server.put_block_blob("/box/b", "2").await;
    let second = format!("/box/b?versionid={}", second.header("x-ms-version-id").unwrap());
    set_tier(&server, &first, "Archive").await.expect(200);
    server.get(&first, "").await.refused(409, "BlobArchived");
    server.get("/box/b", "").await.expect(200);
    set_tier(&server, &second, "Cool").await.expect(200);
    assert_eq!(
        server.head("/box/b", "").await.header("x-ms-access-tier"),
        Some("Cool"),
        "the current version"
    );
    let snapshot = format!("/box/b?snapshot={}", server.snapshot("/box/b").await);
    set_tier(&server, &snapshot, "Archive").await.expect(200);
    server.get(&snapshot, "").await.refused(409, "BlobArchived");
    set_tier(&server, &snapshot, "Hot").await.expect(202);
    server.advance(3600);
    assert_eq!(server.get(&snapshot, "").await.expect(200).text(), "2");
}
