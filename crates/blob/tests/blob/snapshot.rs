//! Snapshot Blob.

use crate::support::start;

#[tokio::test]
async fn snapshot_keeps_the_state_at_its_time() {
    let server = start().await;
    server.create_container("box").await;
    let put = server.put("/box/b", "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1", "old").await.expect(201);
    let plain = server.put("/box/b?comp=snapshot", "", "").await.expect(201);
    assert_eq!(plain.etag(), put.etag(), "a snapshot without metadata keeps the ETag");
    let named = server.put("/box/b?comp=snapshot", "x-ms-meta-b: 2", "").await.expect(201);
    assert_ne!(named.etag(), put.etag());
    assert_eq!(server.head("/box/b", "").await.etag(), put.etag(), "the blob keeps its ETag");
    server.put("/box/b", "x-ms-blob-type: BlockBlob", "new").await.expect(201);
    let server = server.restart().await;
    for (snapshot, metadata, other) in
        [(plain, "x-ms-meta-a", "x-ms-meta-b"), (named, "x-ms-meta-b", "x-ms-meta-a")]
    {
        let target = format!("/box/b?snapshot={}", snapshot.header("x-ms-snapshot").unwrap());
        let got = server.get(&target, "").await.expect(200);
        assert_eq!(got.text(), "old");
        assert_eq!(got.etag(), snapshot.etag());
        assert!(got.header(metadata).is_some() && got.header(other).is_none());
        assert_eq!(got.header("x-ms-lease-state"), None);
        server
            .put(&format!("{target}&comp=metadata"), "", "")
            .await
            .refused(400, "InvalidQueryParameterValue");
        server
            .put(&format!("{target}&comp=snapshot"), "", "")
            .await
            .refused(400, "InvalidQueryParameterValue");
    }
    server.put("/box/none?comp=snapshot", "", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn request_must_not_name_both_a_snapshot_and_a_version() {
    let server = start().await;
    server.create_container("box").await;
    server.put_block_blob("/box/b", "1").await;
    let snapshot = server.snapshot("/box/b").await;
    let both = format!("/box/b?snapshot={snapshot}&versionid={snapshot}");
    server.get(&both, "").await.refused(400, "MutuallyExclusiveQueryParameters");
    server.head(&both, "").await.refused(400, "MutuallyExclusiveQueryParameters");
    server.delete(&both, "").await.refused(400, "MutuallyExclusiveQueryParameters");
    server.get(&format!("/box/b?snapshot={snapshot}&versionid="), "").await.expect(200);
}

#[tokio::test]
async fn snapshot_is_a_read_for_the_lease_and_a_write_for_conditions() {
    let server = start().await;
    server.create_container("box").await;
    let etag = server.put_block_blob("/box/b", "1").await.etag().to_owned();
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let lease = server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    let id = format!("x-ms-lease-id: {}", lease.header("x-ms-lease-id").unwrap());
    server.snapshot("/box/b").await;
    server.put("/box/b?comp=snapshot", &id, "").await.expect(201);
    let other = "x-ms-lease-id: 22222222-2222-2222-2222-222222222222";
    server.put("/box/b?comp=snapshot", other, "").await.refused(412, "LeaseIdMismatchWithBlobOperation");
    server
        .put("/box/b?comp=snapshot", &format!("if-none-match: {etag}"), "")
        .await
        .refused(412, "ConditionNotMet");
    server.put("/box/b?comp=snapshot", &format!("if-match: {etag}"), "").await.expect(201);
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!((head.etag(), head.header("x-ms-lease-state")), (etag.as_str(), Some("leased")));
}

#[tokio::test]
async fn snapshot_with_versioning_creates_a_version() {
    let server = start().await;
    server.versioning(true).await;
    server.create_container("box").await;
    let put = server.put_block_blob("/box/b", "1").await;
    let taken = server.put("/box/b?comp=snapshot", "", "").await.expect(201);
    let (first, second) = (put.header("x-ms-version-id").unwrap(), taken.header("x-ms-version-id").unwrap());
    assert_ne!(first, second);
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!((head.etag(), head.header("x-ms-version-id")), (put.etag(), Some(second)));
    let earlier = server.get(&format!("/box/b?versionid={first}"), "").await.expect(200);
    assert_eq!((earlier.text(), earlier.header("x-ms-is-current-version")), ("1", None));
}
