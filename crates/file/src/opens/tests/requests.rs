//! Requests over REST and moves, together with opens.

use super::*;
use crate::FileService;
use crate::handles::{CreateRequest, Disposition, Kind};
use crate::tree::spot::Spot;

#[tokio::test]
async fn only_conflicting_opens_wait_for_a_request() {
    let table = table();
    let mut write = table.admission(PATIENCE);
    write.admit(FILE, FileUse::PutRange).unwrap();
    let mut denies = pin!(table.open(FILE, request(R, R)));
    assert!(waits(&mut denies).await);
    let shares = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let range = ByteRange { offset: 0, length: 1 };
    let mut locks = pin!(table.lock(shares, range, LockKind::Shared));
    assert!(waits(&mut locks).await);
    // Requests over REST never block each other.
    assert!(table.admission(PATIENCE).admit(FILE, FileUse::PutRange).is_ok());
    drop(write);
    assert!(locks.await.is_ok());
    assert_eq!(denies.await, Err(OpenRefusal::SharingViolation));
    table.close(shares);
    let mut delete = table.admission(PATIENCE);
    delete.admit(FILE, FileUse::Delete).unwrap();
    let mut attributes = pin!(table.open(FILE, request(FileAccess::NONE, ALL)));
    assert!(waits(&mut attributes).await);
    drop(delete);
    assert!(attributes.await.is_ok());
}

#[tokio::test]
async fn open_below_a_moving_directory_is_refused() {
    let table = table();
    let open = table.open(FILE, request(R, ALL)).await.unwrap().id;
    let mut moves = table.admission(PATIENCE);
    for (path, refused) in [("D", true), ("d/f", true), ("e", false), ("d/f/g", false), ("", true)] {
        let mut moves = table.admission(PATIENCE);
        let expected = refused.then_some(ErrorCode::SharingViolation);
        assert_eq!(code(moves.admit_move(FILE.space, path, None)), expected, "{path}");
    }
    assert!(table.admission(PATIENCE).admit_move(FILE.space, "d/f", Some(FILE)).is_ok());
    table.close(open);
    moves.admit_move(FILE.space, "D", None).unwrap();
    let mut below = pin!(table.open(FILE, request(R, ALL)));
    assert!(waits(&mut below).await);
    let elsewhere = OpenLocation { parent: NodeId::ROOT, path: "da".into() };
    let file = FileKey { node: NodeId(8), ..FILE };
    assert!(table.open(file, OpenRequest { place: elsewhere, ..request(R, ALL) }).await.is_ok());
    drop(moves);
    assert!(below.await.is_ok());
}

#[tokio::test]
async fn a_directory_is_moved_once_cached_handles_below_it_are_closed() {
    let table = table();
    let files = [7, 8].map(|node| FileKey { node: NodeId(node), ..FILE });
    let mut cached = vec![];
    for (key, file) in (1..).zip(files) {
        let (request, received) = leasing(key, Caching::RH);
        cached.push((table.open(file, request).await.unwrap().id, received));
    }
    // An open of a snapshot does not block the move.
    let shown = FileKey { node: NodeId(9), epoch: Some(1), ..FILE };
    let shown = table.open(shown, request(R, ALL)).await.unwrap().id;
    let in_use = FileKey { node: NodeId(10), ..FILE };
    let in_use = table.open(in_use, request(R, ALL)).await.unwrap().id;
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::SharingViolation));
    assert!(
        cached.iter_mut().all(|(_, received)| received.try_recv().is_err()),
        "no break is sent while an open blocks the move"
    );
    table.close(in_use);
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::ClientCacheFlushDelay));
    for (id, received) in &mut cached {
        let notice = received.try_recv().unwrap();
        assert_eq!((notice.file, notice.to), (id.file, Caching::R));
    }
    let mut answered = 0;
    let moved = async {
        while moves.admit_move(FILE.space, "d", None).is_err() {
            assert!(moves.wait_for_clients().await);
            answered += 1;
        }
    };
    let close = async {
        for (id, _) in &cached {
            tokio::task::yield_now().await;
            assert!(table.close(*id).is_none());
        }
    };
    tokio::join!(moved, close);
    assert!(answered >= 1);
    drop(moves);
    table.close(shown);
    assert!(table.is_empty());
}

#[tokio::test]
async fn a_directory_is_not_moved_if_a_handle_below_it_is_kept_open() {
    let table = table();
    let (request, mut received) = leasing(1, Caching::RH);
    table.open(FILE, request).await.unwrap();
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::ClientCacheFlushDelay));
    let notice = received.try_recv().unwrap();
    table.acknowledge(FILE, notice.key, notice.to).unwrap();
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::SharingViolation));
}

/// Starts a server with a share `docs` and a file `f`, opened with a write-caching lease. Also returns the
/// receiver of breaks and the spot of the file.
async fn served() -> (lazuli_testing::TestServer<FileService>, Opened, UnboundedReceiver<Break>, Spot) {
    let make = |parts: lazuli_testing::Parts| FileService::new(parts.store, parts.extents, parts.accounts);
    let server = lazuli_testing::start(lazuli_protocol::ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    server.put("/docs/f", "x-ms-type: file\nx-ms-content-length: 1\nx-ms-meta-is: old", "").await.expect(201);
    let account = server.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
    let (request, received) = leasing(1, Caching::RWH);
    let request = CreateRequest {
        path: "f".into(),
        disposition: Disposition::Open,
        kind: Kind::Any,
        attributes: 0,
        allocation: 0,
        permission: None,
        snapshot: None,
        if_read_only: None,
        open: request,
    };
    let tree = server.service.connect(&account, "docs").await.unwrap();
    let opened = server.service.create(&tree, request).await.unwrap().opened;
    let name = crate::tree::names::path("f", true).unwrap().pop().unwrap();
    let spot =
        Spot { space: opened.id.file.space, parent: NodeId::ROOT, name, patience: PATIENCE, quota: u64::MAX };
    (server, opened, received, spot)
}

#[tokio::test]
async fn request_reads_data_written_back_before_the_acknowledgment() {
    let (server, opened, mut received, spot) = served().await;
    let service = &server.service;
    let flush = async {
        let notice = received.recv().await.unwrap();
        let written = service.change_row(&spot, None, |_, old| {
            let mut node = old.unwrap();
            node.metadata = lazuli_protocol::Metadata::default();
            Ok(Some(node))
        });
        written.await.unwrap();
        service.opens().acknowledge(opened.id.file, notice.key, notice.to).unwrap();
    };
    let (reply, ()) = tokio::join!(server.get("/docs/f?comp=metadata", ""), flush);
    assert_eq!(reply.expect(200).header("x-ms-meta-is"), None);
}

#[tokio::test]
async fn a_dropped_request_keeps_its_grant_until_its_commit_is_decided() {
    let (server, opened, _received, spot) = served().await;
    let service = &server.service;
    service.close_open(opened.id).await.unwrap();
    let file = opened.id.file;
    for (is_done, waits_on) in [(true, false), (false, true)] {
        let mut admission = service.admission(&spot);
        admission.admit(file, FileUse::Write).unwrap();
        let mut denies = pin!(service.opens().open(file, request(R, R)));
        assert!(waits(&mut denies).await);
        if is_done {
            admission.done()
        } else {
            drop(admission)
        }
        assert_eq!(waits(&mut denies).await, waits_on);
        if waits_on {
            let id = denies.await.unwrap().id;
            service.close_open(id).await.unwrap();
        } else {
            let open = service.opens().handles(file.space, 0, 1, |_, _| true);
            service.close_open(open[0].id).await.unwrap();
        }
    }
}

#[tokio::test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: an operation that holds [Directory] waits for File")]
async fn a_flush_does_not_wait_for_a_file_with_a_lock_on_its_directory() {
    let (server, opened, _received, spot) = served().await;
    let _directory = server.service.directory_locks.shared(&spot.partition()).await;
    let _file = server.service.lock_file(opened.id.file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_opens_and_requests_respect_share_modes_and_leave_no_state() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let table = OpenTable::new(Duration::from_secs(20));
    // The number of opens that deny writing, and of writers over REST.
    let (denying, writing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = vec![];
    for task in 0..16u128 {
        let (table, denying, writing) = (table.clone(), denying.clone(), writing.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..100u128 {
                if (task + round) % 3 == 0 {
                    let mut admission = table.admission(PATIENCE);
                    let admitted = loop {
                        match admission.admit(FILE, FileUse::PutRange) {
                            Ok(()) => break true,
                            Err(_) if admission.wait_for_clients().await => {}
                            Err(_) => break false,
                        }
                    };
                    if admitted {
                        writing.fetch_add(1, SeqCst);
                        assert_eq!(denying.load(SeqCst), 0);
                        tokio::task::yield_now().await;
                        writing.fetch_sub(1, SeqCst);
                    }
                    continue;
                }
                let denies = round % 2 == 0;
                let (mut request, mut received) = leasing(task * 1000 + round, Caching::RWH);
                if denies {
                    request.mode = ShareMode { access: R, share: R };
                }
                let Ok(opened) = table.open(FILE, request).await else { continue };
                if denies {
                    denying.fetch_add(1, SeqCst);
                    assert_eq!(writing.load(SeqCst), 0);
                }
                let range = ByteRange { offset: 0, length: 10 };
                let locked = table.lock(opened.id, range, LockKind::Exclusive).await.is_ok();
                tokio::task::yield_now().await;
                if locked {
                    assert_eq!(writing.load(SeqCst), 0);
                    table.unlock(opened.id, range).unwrap();
                }
                while let Ok(notice) = received.try_recv() {
                    if notice.acknowledge {
                        table.acknowledge(FILE, notice.key, notice.to).unwrap();
                    }
                }
                if denies {
                    denying.fetch_sub(1, SeqCst);
                }
                assert!(table.close(opened.id).is_none());
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(table.known.load(SeqCst), 0);
    assert!(table.shards.iter().all(|shard| shard.lock().is_empty()));
}
