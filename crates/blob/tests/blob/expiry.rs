//! The background task that removes expired states.

use crate::support::{TestServer, start};
use lazuli_blob::Expired;
use lazuli_concurrency::Pace;

const DAY: u64 = 86_400;

async fn expire(server: &TestServer) -> Expired {
    server.service.expire(Pace::FULL).await.unwrap()
}

#[tokio::test]
async fn deleted_states_are_removed_when_their_retention_ends() {
    let server = start().await;
    server.create_container("box").await;
    server.soft_delete(Some(3)).await;
    server.put_block_blob("/box/deleted", "1").await;
    server.delete("/box/deleted", "").await.expect(202);
    server.put_block_blob("/box/replaced", "1").await;
    server.put_block_blob("/box/replaced", "2").await;
    server.put_block_blob("/box/kept", "1").await;
    let kept = server.snapshot("/box/kept").await;
    let gone = server.snapshot("/box/kept").await;
    server.delete(&format!("/box/kept?snapshot={gone}"), "").await.expect(202);
    server.advance(2 * DAY);
    server.put_block_blob("/box/late", "1").await;
    server.delete("/box/late", "").await.expect(202);
    assert_eq!(server.blob_rows(), 7);
    assert_eq!(expire(&server).await, Expired::default());

    server.advance(DAY);
    assert_eq!(expire(&server).await.states, 3);
    assert_eq!(server.blob_rows(), 4);
    assert_eq!(expire(&server).await, Expired::default());
    server.put("/box/deleted?comp=undelete", "", "").await.refused(404, "BlobNotFound");
    server.put("/box/late?comp=undelete", "", "").await.expect(200);
    for target in ["/box/late", "/box/replaced", &format!("/box/kept?snapshot={kept}")] {
        server.get(target, "").await.expect(200);
    }
}

#[tokio::test]
async fn only_deleted_versions_expire() {
    let server = start().await;
    server.create_container("box").await;
    server.soft_delete(Some(1)).await;
    server.versioning(true).await;
    let first = server.put_block_blob("/box/b", "1").await;
    let first = format!("/box/b?versionid={}", first.header("x-ms-version-id").unwrap());
    let second = server.put_block_blob("/box/b", "2").await;
    let second = format!("/box/b?versionid={}", second.header("x-ms-version-id").unwrap());
    server.delete("/box/b", "").await.expect(202);
    server.delete(&first, "").await.expect(202);
    server.advance(DAY);
    assert_eq!(expire(&server).await.states, 1);
    assert_eq!(server.blob_rows(), 1);
    assert_eq!(server.get(&second, "").await.expect(200).text(), "2");
}

#[tokio::test]
async fn expired_blobs_are_removed_unless_protected() {
    let server = start().await;
    server.create_container("box").await;
    let expire_soon = "x-ms-expiry-option: RelativeToNow\nx-ms-expiry-time: 60000";
    for blob in ["/box/a", "/box/held"] {
        server.put_block_blob(blob, "1").await;
        server.put(&format!("{blob}?comp=expiry"), expire_soon, "").await.expect(200);
    }
    server.put("/box/held?comp=legalhold", "x-ms-legal-hold: true", "").await.expect(200);
    server.advance(60);
    assert_eq!(expire(&server).await.states, 1);
    assert_eq!(server.blob_rows(), 1);
    server.get("/box/held", "").await.expect(200);
}

#[tokio::test]
async fn uncommitted_blocks_are_removed_after_a_week() {
    let server = start().await;
    server.create_container("box").await;
    let etag = server.put_block_blob("/box/blob", "1").await.etag().to_owned();
    for target in ["/box/blob", "/box/blocks"] {
        for id in ["AAAA", "AAAB"] {
            server.put(&format!("{target}?comp=block&blockid={id}"), "", vec![1; 100_000]).await.expect(201);
        }
    }
    assert_eq!(server.blob_rows(), 8);
    server.advance(7 * DAY);
    assert_eq!(expire(&server).await, Expired::default());
    // The time of the last block is recorded at most once an hour.
    server.advance(3600);
    assert_eq!(expire(&server).await.states, 2);
    assert_eq!(server.blob_rows(), 1);
    let head = server.head("/box/blob", "").await.expect(200);
    assert_eq!(head.etag(), etag);
    assert!(server.sweep().await.bytes >= 400_000);
}

#[tokio::test]
async fn uncommitted_blob_can_be_deleted() {
    let server = start().await;
    server.create_container("box").await;
    server.soft_delete(Some(1)).await;
    server.put("/box/b?comp=block&blockid=AAAA", "", "x").await.expect(201);
    server.delete("/box/b", "x-ms-version: 2012-02-12").await.refused(404, "BlobNotFound");
    server.delete("/box/b", "if-match: *").await.refused(412, "ConditionNotMet");
    let deleted = server.delete("/box/b", "").await.expect(202);
    assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("true"));
    assert_eq!(server.service.remove_dropped(Pace::FULL).await.unwrap(), 1);
    assert_eq!(server.blob_rows(), 0);
    server.put("/box/b?comp=undelete", "", "").await.refused(404, "BlobNotFound");
    // Deleting a blob drops its staged blocks.
    server.put_block_blob("/box/b", "1").await;
    server.put("/box/b?comp=block&blockid=AAAA", "", "x").await.expect(201);
    server.delete("/box/b", "").await.expect(202);
    assert_eq!(server.service.remove_dropped(Pace::FULL).await.unwrap(), 1);
    assert_eq!(server.blob_rows(), 1);
}

#[tokio::test]
async fn walk_removes_only_dropped_blocks_also_without_a_record() {
    const BLOCKS: usize = 300;
    let server = start().await;
    server.create_container("box").await;
    server.stage_many("/box/a", BLOCKS).await;
    server.delete("/box/a", "").await.expect(202);
    server.stage_many("/box/b", BLOCKS).await;
    server.put_block_blob("/box/b", "whole").await;
    // These blocks have the same names and were not dropped.
    server.stage_many("/box/b", BLOCKS).await;
    assert_eq!(server.blob_rows(), 3 * BLOCKS + 2);
    let server = server.restart().await;
    assert!(!server.service.dropped_due(), "a restart loses the records");
    assert_eq!(expire(&server).await, Expired::default());
    assert_eq!(server.blob_rows(), BLOCKS + 2, "the blob, the count and the blocks remain");
    server.commit_many("/box/b", BLOCKS).await.expect(201);
    assert_eq!(server.get("/box/b", "").await.body.len(), BLOCKS);
}

#[tokio::test]
async fn walk_covers_all_containers_and_many_rows_of_one_blob() {
    let server = start().await;
    server.soft_delete(Some(1)).await;
    for container in ["one", "two"] {
        server.create_container(container).await;
        for _ in 0..300 {
            server.put_block_blob(&format!("/{container}/b"), "1").await;
        }
    }
    server.create_container("gone").await;
    server.put_block_blob("/gone/b", "1").await;
    server.delete("/gone?restype=container", "").await.expect(202);
    assert!(!server.service.expiry_due(), "the first walk is delayed");
    server.advance(DAY);
    assert!(server.service.expiry_due());
    assert_eq!(expire(&server).await.states, 598);
    assert!(!server.service.expiry_due());
    server.advance(DAY);
    assert!(server.service.expiry_due());
    server.get("/one/b", "").await.expect(200);
    server.get("/two/b", "").await.expect(200);
}
