//! Rename Container: the moved data, refusals, and concurrent requests.

use std::sync::Arc;

use crate::lease::headers;
use crate::support::{ACCOUNT, Reply, TestServer, key, start};
use lazuli_account::Setting;
use lazuli_auth::sign;
use lazuli_concurrency::Pace;

const BLOCK: &str = "x-ms-blob-type: BlockBlob";
const OLD: &str = "/old?restype=container";
const NEW: &str = "/new?restype=container";

impl TestServer {
    async fn rename(&self, source: &str, target: &str, words: &str) -> Reply {
        let lines = format!("x-ms-source-container-name: {source}\n{}", headers(words));
        self.put(&format!("/{target}?restype=container&comp=rename"), &lines, "").await
    }

    /// Returns the names of containers in the order of the listing.
    async fn containers(&self) -> Vec<String> {
        let list = self.get("/?comp=list", "").await.expect(200);
        let names = list.text().split("<Container><Name>").skip(1);
        names.map(|rest| rest.split_once('<').unwrap().0.to_owned()).collect()
    }

    /// Restores the only deleted container of this name.
    async fn undelete(&self, name: &str) -> Reply {
        let list = self.get("/?comp=list&include=deleted", "").await.expect(200);
        let version = list.text().split_once("<Version>").unwrap().1.split_once('<').unwrap().0.to_owned();
        let lines = format!("x-ms-deleted-container-name: {name}\nx-ms-deleted-container-version: {version}");
        self.put(&format!("/{name}?restype=container&comp=undelete"), &lines, "").await
    }
}

#[tokio::test]
async fn rename_moves_everything_in_the_container() {
    let server = start().await;
    let created = server
        .signed("PUT", OLD, "x-ms-meta-color: blue\nx-ms-blob-public-access: blob", "")
        .await
        .expect(201);
    let policies = "<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Permission>r</Permission>\
                    </AccessPolicy></SignedIdentifier></SignedIdentifiers>";
    let public = "x-ms-blob-public-access: blob";
    let changed = server.signed("PUT", &format!("{OLD}&comp=acl"), public, policies).await.expect(200);
    assert_ne!(created.etag(), changed.etag());
    server.put_block_blob("/old/b", "kept").await;
    let snapshot = server.snapshot("/old/b").await;
    server.lease(OLD, "lease-action=acquire lease-duration=-1 proposed-lease-id=A").await.expect(201);

    let renamed = server.rename("old", "new", "source-lease-id=A").await.expect(200);
    assert_eq!(renamed.header("etag"), None);
    server.get(OLD, "").await.refused(404, "ContainerNotFound");
    server.get("/old/b", "").await.refused(404, "ContainerNotFound");
    server.put("/old/b", BLOCK, "").await.refused(404, "ContainerNotFound");
    let mut server = server;
    for _ in 0..2 {
        assert_eq!(server.containers().await, ["new"]);
        let found = server.get(NEW, "").await.expect(200);
        assert_eq!(found.etag(), changed.etag());
        assert_eq!(found.header("x-ms-meta-color"), Some("blue"));
        assert_eq!(found.header("x-ms-lease-state"), Some("leased"));
        assert_eq!(server.send("GET", "/new/b", "", "").await.expect(200).text(), "kept");
        server.get(&format!("/new/b?snapshot={snapshot}"), "").await.expect(200);
        let acl = server.signed("GET", &format!("{NEW}&comp=acl"), "", "").await.expect(200);
        assert!(acl.text().contains("<Id>one</Id>"), "{}", acl.text());
        server.delete(NEW, "").await.refused(412, "LeaseIdMissing");
        server = server.restart().await;
    }
}

#[tokio::test]
async fn invalid_rename_is_refused() {
    let server = start().await;
    server.create_container("old").await;
    server.create_container("taken").await;
    for (source, target, outcome) in [
        ("", "new", (400, "MissingRequiredHeader")),
        ("a", "new", (400, "InvalidHeaderValue")),
        ("UPPER", "new", (400, "InvalidHeaderValue")),
        ("old", "UPPER", (400, "InvalidResourceName")),
        ("old", "$logs", (400, "InvalidResourceName")),
        ("missing", "new", (404, "ContainerNotFound")),
        ("missing", "taken", (404, "ContainerNotFound")),
        ("old", "taken", (409, "ContainerAlreadyExists")),
        ("old", "old", (409, "ContainerAlreadyExists")),
    ] {
        let reply = server.rename(source, target, "").await;
        assert_eq!(reply.outcome(), outcome, "{source} to {target}");
    }
    let bad = "x-ms-source-container-name: old\nx-ms-source-lease-id: x";
    server.put(&format!("{NEW}&comp=rename"), bad, "").await.refused(400, "InvalidHeaderValue");
    assert_eq!(server.containers().await, ["old", "taken"]);
}

#[tokio::test]
async fn rename_of_a_leased_container_requires_the_lease_id() {
    let missing = (412, "LeaseIdMissing");
    let mismatch = (412, "LeaseIdMismatchWithContainerOperation");
    let absent = (412, "LeaseNotPresentWithContainerOperation");
    let (lost, done) = ((412, "LeaseLost"), (200, ""));
    for (state, none, a, b) in [
        ("available", done, absent, absent),
        ("leased", missing, done, mismatch),
        ("breaking", missing, done, mismatch),
        ("broken", done, lost, lost),
        ("expired", done, lost, lost),
    ] {
        for (words, outcome) in [("", none), ("source-lease-id=A", a), ("source-lease-id=B", b)] {
            let server = start().await;
            server.create_container("old").await;
            server.set_lease_state(OLD, state).await;
            assert_eq!(server.rename("old", "new", words).await.outcome(), outcome, "{state} {words}");
            let name = if outcome == done { "new" } else { "old" };
            assert_eq!(server.containers().await, [name]);
        }
    }
}

#[tokio::test]
async fn rename_needs_permission_to_create_and_delete() {
    let server = start().await;
    server.create_container("old").await;
    let rename = format!("{NEW}&comp=rename");
    let source = "x-ms-source-container-name: old";
    for (letters, status) in [("rl", 403), ("w", 403), ("d", 403), ("c", 403), ("cd", 200)] {
        let fields = [
            ("sv", "2022-11-02"),
            ("ss", "b"),
            ("srt", "c"),
            ("sp", letters),
            ("se", "2099-12-31T00:00:00Z"),
        ];
        let sas = sign::account_sas(ACCOUNT, &key(), &fields);
        let reply = server.send("PUT", &format!("{rename}&{sas}"), source, "").await;
        assert_eq!(reply.status.as_u16(), status, "{letters}");
    }
    server
        .signed("PUT", &format!("{OLD}&comp=rename"), "x-ms-source-container-name: new", "")
        .await
        .expect(200);
}

#[tokio::test]
async fn rename_during_a_restore_leaves_the_container_open() {
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("old").await;
    server.put_block_blob("/old/b", "x").await;
    server.delete(OLD, "").await.expect(202);
    let hold = server.watched.interposer.pause_next_space_change();
    let restoring = tokio::spawn({
        let server = server.clone();
        async move { server.undelete("old").await.expect(201) }
    });
    // The row is restored, and the space is about to be opened.
    hold.reached.notified().await;
    server.rename("old", "new", "").await.expect(200);
    assert_eq!(server.get("/new/b", "").await.expect(200).text(), "x");
    hold.resume.notify_one();
    restoring.await.unwrap();
    server.put_block_blob("/new/b", "y").await;
}

#[tokio::test]
async fn delete_followed_by_restore_and_rename_leaves_the_space_open() {
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("old").await;
    server.put_block_blob("/old/b", "x").await;
    let hold = server.watched.interposer.pause_next_space_change();
    let deleting = tokio::spawn({
        let server = server.clone();
        async move { server.delete(OLD, "").await.expect(202) }
    });
    // The row is marked deleted, and the space is about to be closed.
    hold.reached.notified().await;
    let hold_restore = server.watched.interposer.pause_next_space_change();
    let restoring = tokio::spawn({
        let server = server.clone();
        async move { server.undelete("old").await.expect(201) }
    });
    hold_restore.reached.notified().await;
    server.rename("old", "new", "").await.expect(200);
    hold.resume.notify_one();
    deleting.await.unwrap();
    hold_restore.resume.notify_one();
    restoring.await.unwrap();
    server.put_block_blob("/new/b", "y").await;
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert_eq!(server.get("/new/b", "").await.expect(200).text(), "y");
}

#[tokio::test]
async fn crash_during_a_rename_leaves_the_container_under_one_name() {
    let mut server = start().await;
    let bytes = vec![7; 100_000];
    let mut ends = [0, 0];
    for write in 0..=8 {
        for last_takes_effect in [false, true] {
            let what = format!("dies at write {write}, which takes effect: {last_takes_effect}");
            server.create_container("old").await;
            server.put_block_blob("/old/b", bytes.clone()).await;
            server.watched.interposer.crash_at(write, last_takes_effect);
            server.rename("old", "new", "").await.refused(500, "InternalError");
            server = server.restart().await;
            server.sweep().await;
            let [name] = &server.containers().await[..] else { panic!("{what}") };
            assert_eq!(server.get(&format!("/{name}/b"), "").await.expect(200).body, bytes, "{what}");
            let other = if name == "old" { "new" } else { "old" };
            server.get(&format!("/{other}/b"), "").await.refused(404, "ContainerNotFound");
            server.put_block_blob(&format!("/{name}/c"), "more").await;
            server.delete(&format!("/{name}?restype=container"), "").await.expect(202);
            while server.service.garbage_due() {
                server.service.sweep_garbage(Pace::FULL).await.unwrap();
            }
            assert_eq!(server.blob_rows(), 0, "{what}");
            ends[usize::from(name == "new")] += 1;
        }
    }
    assert!(
        ends.iter().all(|ended| *ended >= 4),
        "the crashes must hit both sides of the decision: {ends:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_blob_survives_concurrent_renames() {
    const WRITERS: usize = 32;
    const BLOBS: usize = 30;
    let server = Arc::new(start().await);
    server.create_container("old").await;
    let writers = (0..WRITERS).map(|writer| {
        let server = server.clone();
        tokio::spawn(async move {
            let mut acknowledged = vec![];
            let mut name = "old";
            while acknowledged.len() < BLOBS {
                let blob = format!("{writer}-{}", acknowledged.len());
                match server.put(&format!("/{name}/{blob}"), BLOCK, blob.clone()).await.outcome() {
                    (201, _) => acknowledged.push(blob),
                    outcome => {
                        assert_eq!(outcome, (404, "ContainerNotFound"));
                        name = if name == "old" { "new" } else { "old" };
                    }
                }
            }
            acknowledged
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut names = ["old", "new"];
    let mut renamed = 0;
    while writers.iter().any(|writer| !writer.is_finished()) {
        server.rename(names[0], names[1], "").await.expect(200);
        names.reverse();
        renamed += 1;
    }
    assert!(renamed > 3, "{renamed}");
    assert_eq!(server.containers().await, [names[0]]);
    for writer in writers {
        for blob in writer.await.unwrap() {
            assert_eq!(server.get(&format!("/{}/{blob}", names[0]), "").await.expect(200).text(), blob);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_rename_create_and_delete_have_one_consistent_outcome() {
    let server = Arc::new(start().await);
    for round in 0..8 {
        server.create_container("old").await;
        server.put_block_blob("/old/b", "x").await;
        let clients = (0..32).map(|client| {
            let server = server.clone();
            tokio::spawn(async move {
                let (what, reply) = match client % 4 {
                    0 => ("deleted", server.delete(OLD, "").await),
                    1 => ("created", server.put(NEW, "", "").await),
                    _ => ("renamed", server.rename("old", "new", "").await),
                };
                let outcome = reply.outcome();
                assert!([200, 201, 202, 404, 409].contains(&outcome.0), "{what} {outcome:?}");
                reply.status.is_success().then_some(what)
            })
        });
        let mut done = vec![];
        for client in clients.collect::<Vec<_>>() {
            done.extend(client.await.unwrap());
        }
        let count = |what| done.iter().filter(|done| **done == what).count();
        assert_eq!(count("deleted") + count("renamed"), 1, "round {round}: {done:?}");
        assert_eq!(count("created") + count("renamed"), 1, "round {round}: {done:?}");
        assert_eq!(server.containers().await, ["new"]);
        let found = server.get("/new/b", "").await;
        assert_eq!(found.status.is_success(), count("renamed") == 1, "round {round}");
        server.delete(NEW, "").await.expect(202);
    }
}
