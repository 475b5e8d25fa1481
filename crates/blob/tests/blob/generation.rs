//! Delete Container and Restore Container: the blobs of a container, and concurrent writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{OTHER_ACCOUNT, TestServer, key, start};
use lazuli_account::Setting;
use lazuli_auth::sign;
use lazuli_concurrency::{Pace, Span};
use lazuli_store::{SpaceHeader, SpaceId};
use lazuli_testing::AllRows;

const CON: &str = "/con?restype=container";
const BLOCK: &str = "x-ms-blob-type: BlockBlob";

impl TestServer {
    /// Returns the space of the only container that has a blob of this name.
    pub(crate) fn space_of(&self, blob: &str) -> SpaceId {
        let mut found = None;
        let partition = format!("b{blob}");
        let walk = self.store.for_each_row(|space, key, _| {
            if *key == partition {
                found = Some(space);
            }
            Ok(())
        });
        walk.unwrap();
        found.unwrap()
    }

    async fn set_open(&self, space: SpaceId, open: bool) {
        let header = self.store.space(space).await.unwrap().unwrap();
        let to = SpaceHeader { epoch: header.epoch + 1, open };
        self.store.set_space(space, Some(header), to).await.unwrap();
    }

    /// Counts the rows of all containers and blobs, but not those of accounts.
    fn rows(&self) -> usize {
        let mut rows = 0;
        let walk = self.store.for_each_row(|space, key, _| {
            rows += usize::from(space != SpaceId::ROOT || key.starts_with(b"blob/"));
            Ok(())
        });
        walk.unwrap();
        rows
    }

    /// Returns the version of the only deleted container.
    pub(crate) async fn deleted_version(&self) -> String {
        let list = self.get("/?comp=list&include=deleted", "").await.expect(200);
        let (_, rest) = list.text().split_once("<Version>").unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    }

    pub(crate) fn restore(name: &str, version: &str) -> String {
        format!("x-ms-deleted-container-name: {name}\nx-ms-deleted-container-version: {version}")
    }
}

#[tokio::test]
async fn deleted_container_disappears_immediately_and_frees_its_name() {
    let server = start().await;
    server.create_container("con").await;
    server.put_block_blob("/con/old", "old").await;
    server.delete(CON, "").await.expect(202);
    server.get(CON, "").await.refused(404, "ContainerNotFound");
    server.delete(CON, "").await.refused(404, "ContainerNotFound");
    server.get("/con/old", "").await.refused(404, "ContainerNotFound");
    server.put("/con/new", BLOCK, "").await.refused(404, "ContainerNotFound");
    server.create_container("con").await;
    server.get("/con/old", "").await.refused(404, "BlobNotFound");
    let server = server.restart().await;
    server.get("/con/old", "").await.refused(404, "BlobNotFound");
    server.put_block_blob("/con/new", "new").await;
    assert_eq!(server.get("/con/new", "").await.text(), "new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_succeeds_after_the_delete_of_its_container() {
    const WRITERS: usize = 32;
    let server = Arc::new(start().await);
    for round in 0..5 {
        server.create_container("con").await;
        let deleted = Arc::new(AtomicBool::new(false));
        let writers = (0..WRITERS).map(|writer| {
            let (server, deleted) = (server.clone(), deleted.clone());
            tokio::spawn(async move {
                for wrote in 0.. {
                    let is_deleted = deleted.load(Ordering::SeqCst);
                    let reply = server.put(&format!("/con/{round}-{writer}-{wrote}"), BLOCK, "x").await;
                    match reply.outcome() {
                        (201, _) => assert!(!is_deleted),
                        outcome => assert_eq!(outcome, (404, "ContainerNotFound")),
                    }
                    if is_deleted {
                        break;
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        server.delete(CON, "").await.expect(202);
        let rows = server.rows();
        deleted.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(server.rows(), rows);
        server.create_container("con").await;
        let list = server.get(&format!("{CON}&comp=list"), "").await.expect(200);
        assert!(!list.text().contains("<Blob>"), "{}", list.text());
        assert_eq!(server.rows(), rows + 1);
        server.delete(CON, "").await.expect(202);
    }
    while server.service.garbage_due() {
        server.service.sweep_garbage(Pace::FULL).await.unwrap();
    }
    assert_eq!(server.rows(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_precedes_the_container_delete_or_is_refused() {
    const WRITERS: usize = 32;
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("con").await;
    let writers = (0..WRITERS).map(|writer| {
        let server = server.clone();
        tokio::spawn(async move {
            let mut acknowledged = vec![];
            for at in 0.. {
                let name = format!("{writer}-{at}");
                match server.put(&format!("/con/{name}"), BLOCK, "x").await.status.as_u16() {
                    201 => acknowledged.push(name),
                    _ => break,
                }
            }
            acknowledged
        })
    });
    let writers: Vec<_> = writers.collect();
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    server.delete(CON, "").await.expect(202);
    let rows = server.rows();
    let mut acknowledged = vec![];
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert_eq!(server.rows(), rows, "a write took effect after the delete was acknowledged");
    server
        .put(
            &format!("{CON}&comp=undelete"),
            &TestServer::restore("con", &server.deleted_version().await),
            "",
        )
        .await
        .expect(201);
    for name in acknowledged {
        server.get(&format!("/con/{name}"), "").await.expect(200);
    }
}

#[tokio::test]
async fn deleted_container_is_restored_with_its_blobs() {
    let server = start().await;
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    let created = server.put(CON, "x-ms-meta-color: blue", "").await.expect(201);
    server.put_block_blob("/con/b", "kept").await;
    server.lease(CON, "lease-action=acquire lease-duration=-1 proposed-lease-id=A").await.expect(201);
    server.delete(CON, &crate::lease::headers("lease-id=A")).await.expect(202);
    server.get("/con/b", "").await.refused(404, "ContainerNotFound");
    let version = server.deleted_version().await;
    let target = format!("{CON}&comp=undelete");
    let restore = TestServer::restore("con", &version);

    let server = server.restart().await;
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    for headers in ["", &TestServer::restore("", &version), &TestServer::restore("con", "")] {
        server.put(&target, headers, "").await.refused(400, "MissingRequiredHeader");
    }
    server.put(&target, &TestServer::restore("other", &version), "").await.refused(400, "InvalidHeaderValue");
    for wrong in ["0123456789ABCDEF", "x"] {
        let reply = server.put(&target, &TestServer::restore("con", wrong), "").await;
        reply.refused(409, "ContainerNotFound");
    }
    server.create_container("con").await;
    server.put(&target, &restore, "").await.refused(409, "ContainerAlreadyExists");
    server.delete(CON, "").await.expect(202);

    server.put(&target, &restore, "").await.expect(201);
    assert_eq!(server.get("/con/b", "").await.expect(200).text(), "kept");
    server.put_block_blob("/con/b", "written again").await;
    let found = server.get(CON, "").await.expect(200);
    assert_eq!(found.etag(), created.etag());
    assert_eq!(found.header("x-ms-meta-color"), Some("blue"));
    assert_eq!(found.header("x-ms-lease-state"), Some("available"));
    server.put(&target, &restore, "").await.refused(409, "ContainerAlreadyExists");
    let server = server.restart().await;
    assert_eq!(server.get("/con/b", "").await.expect(200).text(), "written again");
}

#[tokio::test]
async fn deleted_container_is_swept_when_its_retention_ends() {
    let server = start().await;
    server.set(Setting::ContainerSoftDelete(Some(2))).await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", vec![7; 100_000]).await;
    server.delete(CON, "").await.expect(202);
    let restore = TestServer::restore("con", &server.deleted_version().await);
    let nothing = server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert_eq!((nothing.spaces, nothing.bytes), (0, 0));
    assert!(!server.service.garbage_due());
    server.advance(2 * 86_400 - 60);
    assert!(!server.service.garbage_due());
    server.advance(60);
    assert!(server.service.garbage_due());
    server.put(&format!("{CON}&comp=undelete"), &restore, "").await.refused(409, "ContainerNotFound");
    let list = server.get("/?comp=list&include=deleted", "").await.expect(200);
    assert!(!list.text().contains("<Container>"), "{}", list.text());
    let swept = server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert!(swept.spaces == 1 && swept.bytes >= 100_000, "{swept:?}");
    assert_eq!(server.rows(), 0);
    assert!(!server.service.garbage_due());
}

#[tokio::test]
async fn rows_of_a_deleted_container_are_removed_in_the_background() {
    let server = start().await;
    server.create_container("con").await;
    server.create_container("kept").await;
    server.put_block_blob("/kept/b", "x").await;
    for at in 0..300 {
        server.put_block_blob(&format!("/con/{at}"), "x").await;
    }
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert!(!server.service.garbage_due());
    server.delete(CON, "").await.expect(202);
    assert!(server.service.garbage_due());
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
    assert_eq!(server.rows(), 2);
    assert_eq!(server.get("/kept/b", "").await.expect(200).text(), "x");
}

#[tokio::test]
async fn sweep_removes_only_the_data_of_a_removed_account() {
    let server = start().await;
    server.create_container("kept").await;
    server.put_block_blob("/kept/b", "x").await;
    let fields =
        [("sv", "2022-11-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwc"), ("se", "2099-12-31T00:00:00Z")];
    let sas = sign::account_sas(OTHER_ACCOUNT, &key(), &fields);
    let con = format!("/con?restype=container&{sas}");
    server.send_to(OTHER_ACCOUNT, "PUT", &con, "", "").await.expect(201);
    server.send_to(OTHER_ACCOUNT, "PUT", &format!("/con/b?{sas}"), BLOCK, "x").await.expect(201);
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 0);
    let account = (*server.accounts.get(OTHER_ACCOUNT).await.unwrap().unwrap()).clone();
    server.accounts.remove(OTHER_ACCOUNT).await.unwrap();
    server.accounts.add(account).await.unwrap();
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
    server.send_to(OTHER_ACCOUNT, "GET", &con, "", "").await.refused(404, "ContainerNotFound");
    assert_eq!(server.get("/kept/b", "").await.expect(200).text(), "x");
    assert_eq!(server.rows(), 2);
}

#[tokio::test]
async fn data_of_a_removed_account_is_kept_as_long_as_the_account_can_be_restored() {
    let server = start().await;
    let fields =
        [("sv", "2022-11-02"), ("ss", "b"), ("srt", "sco"), ("sp", "rwc"), ("se", "2099-12-31T00:00:00Z")];
    let sas = sign::account_sas(OTHER_ACCOUNT, &key(), &fields);
    let con = format!("/con?restype=container&{sas}");
    server.send_to(OTHER_ACCOUNT, "PUT", &con, "", "").await.expect(201);
    server.send_to(OTHER_ACCOUNT, "PUT", &format!("/con/b?{sas}"), BLOCK, "x").await.expect(201);
    server.accounts.retire(OTHER_ACCOUNT).await.unwrap();
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 0);
    assert!(!server.service.garbage_due());
    server.clock.advance(Span::seconds(6 * 24 * 3600));
    assert!(!server.service.garbage_due());
    server.accounts.restore_retired(OTHER_ACCOUNT, None).await.unwrap();
    assert_eq!(
        server.send_to(OTHER_ACCOUNT, "GET", &format!("/con/b?{sas}"), "", "").await.expect(200).text(),
        "x"
    );
    server.accounts.retire(OTHER_ACCOUNT).await.unwrap();
    server.clock.advance(Span::seconds(7 * 24 * 3600 + 1));
    assert!(server.service.garbage_due());
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
}

#[tokio::test]
async fn sweep_repairs_a_crash_between_the_commits_of_a_delete_or_restore() {
    let server = start().await;
    server.create_container("garbage").await;
    server.put_block_blob("/garbage/first", "x").await;
    server.create_container("current").await;
    server.put_block_blob("/current/second", "x").await;
    let (garbage, current) = (server.space_of("first"), server.space_of("second"));
    server.delete("/garbage?restype=container", "").await.expect(202);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("deleted").await;
    server.put_block_blob("/deleted/third", "x").await;
    let deleted = server.space_of("third");
    server.delete("/deleted?restype=container", "").await.expect(202);
    // Reproduce a state in which the rows have been moved and the spaces not yet changed.
    server.set_open(garbage, true).await;
    server.set_open(deleted, true).await;
    server.set_open(current, false).await;
    server.get("/current/second", "").await.refused(404, "ContainerNotFound");

    let server = server.restart().await;
    assert!(server.service.garbage_due(), "a sweep is due after a start");
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
    assert_eq!(server.store.space(garbage).await.unwrap(), None);
    assert!(!server.store.space(deleted).await.unwrap().unwrap().open);
    assert_eq!(server.get("/current/second", "").await.expect(200).text(), "x");
    // A restore also works if the space is still open.
    server.set_open(deleted, true).await;
    let restore = TestServer::restore("deleted", &server.deleted_version().await);
    server.put("/deleted?restype=container&comp=undelete", &restore, "").await.expect(201);
    assert_eq!(server.get("/deleted/third", "").await.expect(200).text(), "x");
}

#[tokio::test]
async fn delete_during_a_restore_leaves_the_space_closed() {
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "x").await;
    let space = server.space_of("b");
    server.delete(CON, "").await.expect(202);
    let restore = TestServer::restore("con", &server.deleted_version().await);
    let hold = server.watched.interposer.pause_next_space_change();
    let restoring = tokio::spawn({
        let server = server.clone();
        async move { server.put(&format!("{CON}&comp=undelete"), &restore, "").await.expect(201) }
    });
    // The row is restored, and the space is about to be opened.
    hold.reached.notified().await;
    server.head(CON, "").await.expect(200);
    server.delete(CON, "").await.expect(202);
    hold.resume.notify_one();
    restoring.await.unwrap();
    assert!(!server.store.space(space).await.unwrap().unwrap().open);
}

#[tokio::test]
async fn restore_during_a_delete_leaves_the_space_open() {
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "x").await;
    let hold = server.watched.interposer.pause_next_space_change();
    let deleting = tokio::spawn({
        let server = server.clone();
        async move { server.delete(CON, "").await.expect(202) }
    });
    hold.reached.notified().await;
    let restore = TestServer::restore("con", &server.deleted_version().await);
    server.put(&format!("{CON}&comp=undelete"), &restore, "").await.expect(201);
    hold.resume.notify_one();
    deleting.await.unwrap();
    assert_eq!(server.get("/con/b", "").await.expect(200).text(), "x");
    server.put_block_blob("/con/b", "y").await;
}

#[tokio::test]
async fn container_delete_completes_after_the_client_disconnects() {
    let server = Arc::new(start().await);
    server.create_container("con").await;
    server.put_block_blob("/con/b", "x").await;
    let space = server.space_of("b");
    let hold = server.watched.interposer.pause_next_space_change();
    let deleting = tokio::spawn({
        let server = server.clone();
        async move { server.delete(CON, "").await }
    });
    hold.reached.notified().await;
    deleting.abort();
    assert!(deleting.await.is_err());
    // Give the server time to notice.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    hold.resume.notify_one();
    for _ in 0..200 {
        if !server.store.space(space).await.unwrap().unwrap().open {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the space is still open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_deletes_and_restores_leave_space_and_row_consistent() {
    let server = Arc::new(start().await);
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "x").await;
    let space = server.space_of("b");
    let actors = (0..32).map(|actor| {
        let server = server.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                if actor % 2 == 0 {
                    server.delete(CON, "").await;
                } else {
                    let list = server.get("/?comp=list&include=deleted", "").await;
                    let Some((_, rest)) = list.text().split_once("<Version>") else { continue };
                    let restore = TestServer::restore("con", rest.split_once('<').unwrap().0);
                    server.put(&format!("{CON}&comp=undelete"), &restore, "").await;
                }
            }
        })
    });
    for actor in actors.collect::<Vec<_>>() {
        actor.await.unwrap();
    }
    let exists = server.get(CON, "").await.status == 200;
    assert_eq!(server.store.space(space).await.unwrap().unwrap().open, exists);
    let read = server.get("/con/b", "").await;
    assert_eq!(read.status.as_u16(), if exists { 200 } else { 404 });
}

#[tokio::test]
async fn next_sweep_repairs_a_space_that_does_not_match_its_row() {
    let server = start().await;
    server.set(Setting::ContainerSoftDelete(Some(7))).await;
    server.create_container("con").await;
    server.put_block_blob("/con/b", "x").await;
    let space = server.space_of("b");
    server.service.sweep_garbage(Pace::FULL).await.unwrap();

    server.watched.interposer.refuse_next_space_change();
    server.delete(CON, "").await.refused(503, "ServerBusy");
    assert!(server.service.garbage_due());
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert!(!server.store.space(space).await.unwrap().unwrap().open);
    assert!(!server.service.garbage_due());

    let restore = TestServer::restore("con", &server.deleted_version().await);
    server.watched.interposer.refuse_next_space_change();
    server.put(&format!("{CON}&comp=undelete"), &restore, "").await.refused(503, "ServerBusy");
    assert!(server.service.garbage_due());
    server.service.sweep_garbage(Pace::FULL).await.unwrap();
    assert_eq!(server.get("/con/b", "").await.expect(200).text(), "x");
}
