//! Delete Blob and Undelete Blob, with and without soft delete and versioning.

use futures_util::future::join_all;
use lazuli_auth::sign;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{ACCOUNT, Reply, TestServer, VERSION, allowed, key, start};

const DAY: u64 = 86_400;

async fn start_with(days: Option<u16>, versioning: bool) -> TestServer {
    let server = start().await;
    server.soft_delete(days).await;
    server.versioning(versioning).await;
    server.create_container("box").await;
    server
}

async fn undelete(server: &TestServer, target: &str) -> Reply {
    server.put(&format!("{target}?comp=undelete"), "", "").await
}

fn version(reply: &Reply) -> String {
    reply.header("x-ms-version-id").unwrap_or_else(|| panic!("no version in {reply:?}")).to_owned()
}

#[tokio::test]
async fn delete_is_permanent_by_default() {
    let server = start_with(None, false).await;
    server.put_block_blob("/box/b", "1").await;
    let deleted = server.delete("/box/b", "").await.expect(202);
    assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("true"));
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
    server.delete("/box/b", "").await.refused(404, "BlobNotFound");
    undelete(&server, "/box/b").await.refused(404, "BlobNotFound");
    server.delete("/none/b", "").await.refused(404, "ContainerNotFound");
    server.put_block_blob("/box/b", "2").await;
    undelete(&server, "/box/b").await.expect(200);
    assert_eq!(server.get("/box/b", "").await.text(), "2");
}

#[tokio::test]
async fn permission_to_delete_versions_does_not_delete_the_blob() {
    let server = start_with(None, true).await;
    let first = version(&server.put_block_blob("/box/b", "1").await);
    server.put_block_blob("/box/b", "2").await;
    let fields = [("sv", "2022-11-02"), ("ss", "b"), ("srt", "o"), ("sp", "x"), ("se", "2099-12-31")];
    let sas = sign::account_sas(ACCOUNT, &key(), &fields);
    for target in ["/box/b?", "/box/b?versionid&", "/box/b?versionid=&"] {
        let refused = server.send("DELETE", &format!("{target}{sas}"), "", "").await;
        refused.refused(403, "AuthorizationPermissionMismatch");
    }
    server.send("DELETE", &format!("/box/b?versionid={first}&{sas}"), "", "").await.expect(202);
    assert_eq!(server.get("/box/b", "").await.expect(200).text(), "2");
}

#[tokio::test]
async fn delete_obeys_conditions_and_the_lease() {
    let server = start_with(None, false).await;
    let etag = server.put_block_blob("/box/b", "1").await.etag().to_owned();
    server.delete("/box/b", "if-match: \"0x1\"").await.refused(412, "ConditionNotMet");
    server.delete("/box/b", &format!("if-none-match: {etag}")).await.refused(412, "ConditionNotMet");
    server.delete("/box/none", "if-match: *").await.refused(404, "BlobNotFound");
    let id = "x-ms-lease-id: 11111111-1111-1111-1111-111111111111";
    server.delete("/box/b", id).await.refused(412, "LeaseNotPresentWithBlobOperation");
    let acquire = "x-ms-lease-action: acquire
        x-ms-lease-duration: 15
        x-ms-proposed-lease-id: 11111111-1111-1111-1111-111111111111";
    server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    server.delete("/box/b", "").await.refused(412, "LeaseIdMissing");
    let other = "x-ms-lease-id: 22222222-2222-2222-2222-222222222222";
    server.delete("/box/b", other).await.refused(412, "LeaseIdMismatchWithBlobOperation");
    server.advance(16);
    server.delete("/box/b", id).await.refused(412, "LeaseLost");
    server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    server.delete("/box/b", &format!("{id}\nif-match: {etag}")).await.expect(202);
    server.put_block_blob("/box/b", "a new blob has no lease").await;
}

#[tokio::test]
async fn snapshots_are_deleted_only_if_the_request_says_so() {
    let server = start_with(None, false).await;
    server.put_block_blob("/box/b", "1").await;
    let (first, second) = (server.snapshot("/box/b").await, server.snapshot("/box/b").await);
    server.delete("/box/b", "").await.refused(409, "SnapshotsPresent");
    let include = "x-ms-delete-snapshots: include";
    let only = "x-ms-delete-snapshots: only";
    let one = format!("/box/b?snapshot={first}");
    let version = format!("/box/b?versionid={first}");
    for (target, header, name, what) in
        [(&one, include, "snapshot", "Snapshot"), (&version, only, "versionid", "Version id")]
    {
        let refused = server.delete(target, header).await.refused(400, "InvalidQueryParameterValue");
        let expected = format!(
            "<QueryParameterName>{name}</QueryParameterName><QueryParameterValue>{first}</QueryParameterValue>\
             <Reason>This operation is only allowed on the root blob. {what} should not be provided.</Reason>"
        );
        assert!(refused.text().contains(&expected), "{}", refused.text());
    }
    server.delete("/box/b", "x-ms-delete-snapshots: all").await.refused(400, "InvalidHeaderValue");
    server.delete(&one, "if-match: \"0x1\"").await.refused(412, "ConditionNotMet");
    server.delete(&one, "").await.expect(202);
    server.get(&one, "").await.refused(404, "BlobNotFound");
    server.delete(&one, "").await.refused(404, "BlobNotFound");
    server.get(&format!("/box/b?snapshot={second}"), "").await.expect(200);
    server.delete("/box/b", only).await.expect(202);
    server.get(&format!("/box/b?snapshot={second}"), "").await.refused(404, "BlobNotFound");
    server.get("/box/b", "").await.expect(200);
    server.delete("/box/b", only).await.expect(202);
    let third = server.snapshot("/box/b").await;
    server.delete("/box/b", include).await.expect(202);
    server.get(&format!("/box/b?snapshot={third}"), "").await.refused(404, "BlobNotFound");
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn more_snapshots_than_a_commit_can_change_are_deleted_and_restored() {
    let server = start_with(Some(7), false).await;
    server.put_block_blob("/box/b", "1").await;
    let mut ids = vec![];
    for _ in 0..250 {
        ids.push(server.snapshot("/box/b").await);
    }
    server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    for id in [&ids[0], &ids[249]] {
        server.get(&format!("/box/b?snapshot={id}"), "").await.refused(404, "BlobNotFound");
    }
    undelete(&server, "/box/b").await.expect(200);
    for id in &ids {
        assert_eq!(server.get(&format!("/box/b?snapshot={id}"), "").await.expect(200).text(), "1");
    }
    server.get("/box/b", "").await.expect(200);
    server.soft_delete(None).await;
    server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    undelete(&server, "/box/b").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn soft_deleted_blob_can_be_restored_until_its_retention_ends() {
    let server = start_with(Some(3), false).await;
    let put = server.put("/box/b", "x-ms-blob-type: BlockBlob\nx-ms-meta-a: 1", "1").await.expect(201);
    let snapshot = server.snapshot("/box/b").await;
    let snapshot = format!("/box/b?snapshot={snapshot}");
    let deleted = server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("false"));
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
    server.get(&snapshot, "").await.refused(404, "BlobNotFound");
    server.put("/box/b?comp=metadata", "", "").await.refused(404, "BlobNotFound");
    server.put("/box/b?comp=snapshot", "", "").await.refused(404, "BlobNotFound");
    server.delete("/box/b", "").await.refused(404, "BlobNotFound");

    server.advance(3 * DAY - 1);
    undelete(&server, "/box/b").await.expect(200);
    let restored = server.get("/box/b", "").await.expect(200);
    assert_eq!((restored.text(), restored.header("x-ms-meta-a")), ("1", Some("1")));
    assert_eq!(restored.etag(), put.etag());
    server.get(&snapshot, "").await.expect(200);

    server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    // The retention at the time of the delete counts, not the current one.
    server.soft_delete(Some(300)).await;
    let server = server.restart().await;
    server.advance(3 * DAY);
    undelete(&server, "/box/b").await.refused(404, "BlobNotFound");
    server.get(&snapshot, "").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn soft_delete_ends_the_lease() {
    let server = start_with(Some(3), false).await;
    server.put_block_blob("/box/b", "1").await;
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
    let id = server.put("/box/b?comp=lease", acquire, "").await.expect(201);
    let id = format!("x-ms-lease-id: {}", id.header("x-ms-lease-id").unwrap());
    server.delete("/box/b", &id).await.expect(202);
    undelete(&server, "/box/b").await.expect(200);
    let head = server.head("/box/b", "").await.expect(200);
    assert_eq!(head.header("x-ms-lease-state"), Some("available"));
    server.delete("/box/b", "").await.expect(202);
}

#[tokio::test]
async fn overwritten_state_is_restored_as_a_snapshot() {
    let server = start_with(Some(3), false).await;
    server.put_block_blob("/box/b", "old").await;
    server.put_block_blob("/box/b", "new").await;
    // A deleted snapshot does not prevent deleting the blob.
    server.delete("/box/b", "").await.expect(202);
    server.put_block_blob("/box/b", "newest").await;
    undelete(&server, "/box/b").await.expect(200);
    assert_eq!(server.get("/box/b", "").await.text(), "newest");
    server.delete("/box/b", "").await.refused(409, "SnapshotsPresent");
}

#[tokio::test]
async fn delete_with_versioning_turns_the_current_version_into_an_earlier_one() {
    for days in [None, Some(3)] {
        let server = start_with(days, true).await;
        let first = version(&server.put_block_blob("/box/b", "1").await);
        let second = version(&server.put_block_blob("/box/b", "2").await);
        let by = |version: &str| format!("/box/b?versionid={version}");
        let current = server.get(&by(&second), "").await.expect(200);
        assert_eq!(current.header("x-ms-is-current-version"), Some("true"));
        assert_eq!(server.get(&by(&first), "").await.expect(200).header("x-ms-is-current-version"), None);
        server.delete(&by(&second), "").await.refused(403, "OperationNotAllowedOnRootBlob");

        let deleted = server.delete("/box/b", "").await.expect(202);
        assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("false"));
        server.get("/box/b", "").await.refused(404, "BlobNotFound");
        server.delete("/box/b", "").await.refused(404, "BlobNotFound");
        assert_eq!(server.get(&by(&second), "").await.expect(200).text(), "2");

        let deleted = server.delete(&by(&second), "").await.expect(202);
        assert_eq!(
            deleted.header("x-ms-delete-type-permanent"),
            Some(if days.is_some() { "false" } else { "true" })
        );
        server.get(&by(&second), "").await.refused(404, "BlobNotFound");
        undelete(&server, "/box/b").await.expect(200);
        server.get("/box/b", "").await.refused(404, "BlobNotFound");
        let again = server.get(&by(&second), "").await.status;
        assert_eq!(again.as_u16(), if days.is_some() { 200 } else { 404 });

        let third = version(&server.put_block_blob("/box/b", "3").await);
        assert_eq!(server.get("/box/b", "").await.text(), "3");
        assert_eq!(server.get(&by(&first), "").await.text(), "1");
        assert_eq!(server.get(&by(&third), "").await.text(), "3");
    }
}

#[tokio::test]
async fn versioning_can_be_switched_on_and_off_with_existing_blobs() {
    let server = start_with(None, false).await;
    let before = server.put_block_blob("/box/b", "before").await;
    assert_eq!(before.header("x-ms-version-id"), None);
    server.versioning(true).await;
    let on = version(&server.put_block_blob("/box/b", "on").await);
    server.versioning(false).await;
    // The current version is kept as an earlier one. The state that replaces it has no version.
    let off = server.put_block_blob("/box/b", "off").await;
    assert_eq!(off.header("x-ms-version-id"), None);
    assert_eq!(server.get("/box/b", "").await.header("x-ms-version-id"), None);
    server.put_block_blob("/box/b", "off again").await;
    let server = server.restart().await;
    assert_eq!(server.get(&format!("/box/b?versionid={on}"), "").await.text(), "on");
    let deleted = server.delete("/box/b", "").await.expect(202);
    assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("true"));
    assert_eq!(server.get(&format!("/box/b?versionid={on}"), "").await.text(), "on");
}

#[tokio::test]
async fn permanent_delete_requires_a_deleted_state() {
    let server = start_with(Some(3), true).await;
    let first = version(&server.put_block_blob("/box/b", "1").await);
    let second = version(&server.put_block_blob("/box/b", "2").await);
    let purge = |version: &str| format!("/box/b?versionid={version}&deletetype=permanent");
    server.delete("/box/b?deletetype=soft", "").await.refused(400, "InvalidQueryParameterValue");
    server.delete("/box/b?deletetype=permanent", "").await.refused(409, "BlobOperationNotSupported");
    server.delete(&purge(&second), "").await.refused(403, "OperationNotAllowedOnRootBlob");
    server.delete(&purge(&first), "").await.refused(409, "BlobSnapshotNotSoftDeleted");
    server.delete(&format!("/box/b?versionid={first}"), "").await.expect(202);
    let gone = server.delete(&purge(&first), "").await.expect(202);
    assert_eq!(gone.header("x-ms-delete-type-permanent"), Some("true"));
    server.delete(&purge(&first), "").await.refused(404, "BlobNotFound");
    undelete(&server, "/box/b").await.expect(200);
    server.get(&format!("/box/b?versionid={first}"), "").await.refused(404, "BlobNotFound");

    let snapshot = server.snapshot("/box/b").await;
    server.delete(&format!("/box/b?snapshot={snapshot}"), "").await.expect(202);
    server.soft_delete(None).await;
    let purge = format!("/box/b?snapshot={snapshot}&deletetype=permanent");
    server.delete(&purge, "").await.refused(409, "BlobOperationNotSupported");
    server.soft_delete(Some(1)).await;
    server.delete(&purge, "").await.expect(202);
}

#[tokio::test]
async fn snapshots_and_versions_are_deleted_and_restored_independently() {
    let server = start_with(Some(3), true).await;
    let first = version(&server.put_block_blob("/box/b", "1").await);
    let snapshot = format!("/box/b?snapshot={}", server.snapshot("/box/b").await);
    server.delete("/box/b", "").await.refused(409, "SnapshotsPresent");
    let deleted = server.delete("/box/b", "x-ms-delete-snapshots: include").await.expect(202);
    assert_eq!(deleted.header("x-ms-delete-type-permanent"), Some("false"));
    server.get(&snapshot, "").await.refused(404, "BlobNotFound");
    server.get(&format!("/box/b?versionid={first}"), "").await.expect(200);
    undelete(&server, "/box/b").await.expect(200);
    server.get("/box/b", "").await.refused(404, "BlobNotFound");
    assert_eq!(server.get(&snapshot, "").await.expect(200).text(), "1");
    // Snapshots can exist without a current version. A new blob gets them.
    server.put_block_blob("/box/b", "2").await;
    server.delete("/box/b", "").await.refused(409, "SnapshotsPresent");
    server.delete("/box/b", "x-ms-delete-snapshots: only").await.expect(202);
    server.delete("/box/b", "").await.expect(202);
}

#[tokio::test]
async fn blob_deleted_before_versioning_is_restored_unversioned() {
    let server = start_with(Some(3), false).await;
    server.put_block_blob("/box/b", "1").await;
    server.delete("/box/b", "").await.expect(202);
    server.versioning(true).await;
    undelete(&server, "/box/b").await.expect(200);
    let restored = server.get("/box/b", "").await.expect(200);
    assert_eq!((restored.text(), restored.header("x-ms-version-id")), ("1", None));
    let second = version(&server.put_block_blob("/box/b", "2").await);
    assert_eq!(server.get(&format!("/box/b?versionid={second}"), "").await.text(), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_without_snapshots_leaves_no_concurrent_snapshot() {
    let server = start_with(None, false).await;
    for round in 0..12 {
        let target = format!("/box/{round}");
        server.put_block_blob(&target, "1").await;
        let snapshots = join_all((0..32).map(|_| async {
            let taken = server.put(&format!("{target}?comp=snapshot"), "", "").await;
            assert!(matches!(taken.outcome(), (201, "") | (404, "BlobNotFound")), "{taken:?}");
            taken.header("x-ms-snapshot").map(str::to_owned)
        }));
        let delete = server.delete(&target, "");
        let (snapshots, deleted) = tokio::join!(snapshots, delete);
        let snapshots: Vec<_> = snapshots.into_iter().flatten().collect();
        match deleted.outcome() {
            (202, "") => assert!(snapshots.is_empty(), "the delete left a snapshot"),
            (409, "SnapshotsPresent") => assert!(!snapshots.is_empty()),
            other => panic!("{other:?}"),
        }
        for id in &snapshots {
            server.get(&format!("{target}?snapshot={id}"), "").await.expect(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_deletes_and_restores_leave_a_consistent_state() {
    let server = start_with(Some(3), false).await;
    server.put_block_blob("/box/b", "1").await;
    let snapshot = format!("/box/b?snapshot={}", server.snapshot("/box/b").await);
    join_all((0..32).map(|client| {
        let server = &server;
        async move {
            for _ in 0..8 {
                let reply = match client % 2 {
                    0 => server.delete("/box/b", "x-ms-delete-snapshots: include").await,
                    _ => undelete(server, "/box/b").await,
                };
                let outcome = reply.outcome();
                assert!(matches!(outcome, (202 | 200, "") | (404, "BlobNotFound")), "{outcome:?}");
            }
        }
    }))
    .await;
    let both = [server.get("/box/b", "").await.status, server.get(&snapshot, "").await.status];
    assert_eq!(both[0], both[1], "blob and snapshot must have the same state");
    undelete(&server, "/box/b").await.expect(200);
    assert_eq!(server.get(&snapshot, "").await.expect(200).text(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_overwrite_with_versioning_keeps_exactly_one_version() {
    let server = start_with(None, true).await;
    let writes = join_all((0..40).map(|client| {
        let server = &server;
        async move { version(&server.put_block_blob("/box/b", client.to_string()).await) }
    }))
    .await;
    for (client, version) in writes.iter().enumerate() {
        let got = server.get(&format!("/box/b?versionid={version}"), "").await.expect(200);
        assert_eq!(got.text(), client.to_string());
    }
    assert_eq!(server.blob_rows(), 40, "39 earlier versions and the current one");
}

#[tokio::test]
async fn refused_delete_of_a_protected_blob_keeps_its_snapshots() {
    let server = start_with(None, false).await;
    server.put_block_blob("/box/b", "1").await;
    // Deleting these takes more than one commit.
    let snapshots = join_all((0..130).map(|_| server.snapshot("/box/b"))).await;
    server.put("/box/b?comp=legalhold", "x-ms-legal-hold: true", "").await.expect(200);
    let include = "x-ms-delete-snapshots: include";
    server.delete("/box/b", include).await.refused(409, "BlobImmutableDueToLegalHold");
    for snapshot in &snapshots {
        server.head(&format!("/box/b?snapshot={snapshot}"), "").await.expect(200);
    }
    server.delete("/box/b", "x-ms-delete-snapshots: only").await.expect(202);
    server.head(&format!("/box/b?snapshot={}", snapshots[0]), "").await.expect(404);
}

#[tokio::test]
async fn restore_is_refused_if_retention_ends_before_the_commit() {
    let server = start_with(Some(1), false).await;
    server.put_block_blob("/box/b", "1").await;
    server.delete("/box/b", "").await.expect(202);
    server.watched.interposer.before_next_commit(server.let_time_pass(DAY));
    undelete(&server, "/box/b").await.refused(404, "BlobNotFound");
}

#[tokio::test]
async fn upload_keeps_the_old_state_if_soft_delete_is_turned_on_during_it() {
    let server = start_with(None, false).await;
    server.put_block_blob("/box/b", "old").await;
    let mut upload = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "PUT /{ACCOUNT}{} HTTP/1.1\r\nhost: a\r\nx-ms-version: {VERSION}\r\nx-ms-blob-type: BlockBlob\r\n\
         content-length: 3\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        allowed("/box/b")
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body, so it has already read the account settings.
    let mut reply = vec![0; 25];
    upload.read_exact(&mut reply).await.unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&reply));
    server.soft_delete(Some(7)).await;
    upload.write_all(b"new").await.unwrap();
    let mut reply = String::new();
    upload.read_to_string(&mut reply).await.unwrap();
    assert!(reply.contains("HTTP/1.1 201"), "{reply}");
    let list = server.get("/box?restype=container&comp=list&include=deleted,snapshots", "").await.expect(200);
    assert!(list.text().contains("<Deleted>true</Deleted>"), "{}", list.text());
    server.put("/box/b?comp=undelete", "", "").await.expect(200);
}
