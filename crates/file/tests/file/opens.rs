//! REST requests to files that SMB clients have open. The tests use the handle API, like the SMB server.

use std::time::Duration;

use lazuli_concurrency::{ByteRange, Caching, FileAccess, LockKind, ShareMode, Timestamp};
use lazuli_file::FileService;
use lazuli_file::handles::{CreateRequest, Disposition, Failure};
use lazuli_file::opens::{
    AttributeOpen, Break, CacheKey, CacheRequest, Client, FileKey, OpenId, OpenLocation, OpenRequest,
};
use lazuli_protocol::ServiceKind;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::handles::{create, create_request};
use crate::support::{Server, make_directory, make_file, names, start, write};

const NONE: FileAccess = FileAccess::NONE;
const R: FileAccess = FileAccess::READ;
const W: FileAccess = FileAccess::WRITE;
const D: FileAccess = FileAccess::DELETE;
const ALL: FileAccess = FileAccess::ALL;
const KEY: CacheKey = CacheKey::Lease { client: 1, key: 2 };

/// Returns an open request with the given access and share mode.
pub(crate) fn request(access: FileAccess, share: FileAccess) -> OpenRequest {
    OpenRequest {
        mode: ShareMode { access, share },
        attribute_open: if access == FileAccess::NONE {
            AttributeOpen::AttributesOnly
        } else {
            AttributeOpen::No
        },
        overwrites: false,
        delete_on_close: false,
        cache: CacheRequest::None,
        client: Client { session: 77, ip: [10, 0, 0, 9].into(), name: "desk".into() },
        place: OpenLocation::default(),
        at: Timestamp::from_ticks(0),
        breaks: None,
        waits: None,
    }
}

/// Opens a file of the share `docs`.
pub(crate) async fn open(server: &Server, path: &str, request: OpenRequest) -> Result<OpenId, Failure> {
    let request = CreateRequest { open: request, ..create_request(path, Disposition::Open) };
    create(server, request).await.map(|created| created.opened.id)
}

/// Opens a file for reading with a lease, sharing all access.
async fn open_leasing(server: &Server, path: &str, state: Caching) -> (OpenId, UnboundedReceiver<Break>) {
    let (breaks, received) = unbounded_channel();
    let cache = CacheRequest::Lease { client: 1, key: 2, state };
    let request = OpenRequest { cache, breaks: Some(breaks), ..request(R, ALL) };
    (open(server, path, request).await.unwrap(), received)
}

/// Starts a server that does not wait for SMB clients.
async fn start_impatient() -> Server {
    let make = |parts: lazuli_testing::Parts| {
        FileService::new(parts.store, parts.extents, parts.accounts).with_patience(Duration::ZERO)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    server
}

/// The operations on a file in the tables below.
const OPERATIONS: [&str; 10] = [
    "Create",
    "Get",
    "Properties",
    "Metadata",
    "Set Properties",
    "Set Metadata",
    "Put Range",
    "List Ranges",
    "Lease",
    "Delete",
];

/// Runs an operation and returns its status and error code.
async fn run(server: &Server, operation: &str, path: &str) -> (u16, String) {
    let at = |query: &str| format!("/docs/{path}{query}");
    let create = "x-ms-type: file\nx-ms-content-length: 10";
    let reply = match operation {
        "Create" => server.put(&at(""), create, "").await,
        "Get" => server.get(&at(""), "").await,
        "Properties" => server.call("HEAD", &at(""), "", "").await,
        "Metadata" => server.get(&at("?comp=metadata"), "").await,
        "Set Properties" => server.put(&at("?comp=properties"), "x-ms-content-type: a/b", "").await,
        "Set Metadata" => server.put(&at("?comp=metadata"), "x-ms-meta-a: b", "").await,
        "Put Range" => {
            let range = "x-ms-write: update\nx-ms-range: bytes=0-0";
            server.put(&at("?comp=range"), range, "x").await
        }
        "List Ranges" => server.get(&at("?comp=rangelist"), "").await,
        "Lease" => {
            let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
            server.put(&at("?comp=lease"), acquire, "").await
        }
        "Delete" => server.delete(&at(""), "").await,
        "Rename" => {
            let source = format!("http://{}/{}/docs/{path}", server.address, lazuli_testing::ACCOUNT);
            server.put("/docs/renamed?comp=rename", &format!("x-ms-file-rename-source: {source}"), "").await
        }
        _ => panic!("no operation {operation}"),
    };
    let (status, code) = reply.outcome();
    (status, code.to_owned())
}

#[tokio::test]
async fn each_share_mode_refuses_the_operations_of_its_table_row() {
    let server = start().await;
    for (row, (share, refused)) in [
        (NONE, "Create, Get, Set Properties, Set Metadata, Delete, Put Range, List Ranges, Lease"),
        (R, "Create, Set Properties, Set Metadata, Delete, Put Range, Lease"),
        (W, "Create, Get, Delete, List Ranges, Lease"),
        (D, "Create, Get, Set Properties, Set Metadata, Put Range, List Ranges, Delete, Lease"),
        (R | W, "Create, Delete, Lease"),
        (R | D, "Create, Set Properties, Set Metadata, Put Range, Delete, Lease"),
        (W | D, "Get, List Ranges, Delete, Lease"),
        (R | W | D, "Delete"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("f{row}");
        make_file(&server, &path, 10).await;
        let id = open(&server, &path, request(R, share)).await.unwrap();
        let refused: Vec<_> = refused.split(", ").collect();
        for operation in OPERATIONS {
            let (status, code) = run(&server, operation, &path).await;
            let expected = refused.contains(&operation);
            assert_eq!(code == "SharingViolation", expected, "{operation} {share:?}: {status} {code}");
            assert_eq!(status == 409, expected, "{operation} {share:?}: {status} {code}");
            if operation == "Lease" && !expected {
                server
                    .put(&format!("/docs/{path}?comp=lease"), "x-ms-lease-action: break", "")
                    .await
                    .expect(202);
            }
        }
        assert_eq!(run(&server, "Rename", &path).await, (409, "SharingViolation".into()));
        assert!(names(&server, "").await.contains(&path));
        server.service.close_open(id).await.unwrap();
        assert_eq!(run(&server, "Delete", &path).await.0, 202, "{share:?}");
    }
}

#[tokio::test]
async fn rest_leases_and_smb_opens_exclude_each_other() {
    let server = start().await;
    let sets = [NONE, R, W, D, R | W, R | D, W | D, R | W | D];
    for (row, access) in sets.into_iter().enumerate() {
        let path = format!("f{row}");
        make_file(&server, &path, 10).await;
        let only_reads = access == NONE || access == R;
        let id = open(&server, &path, request(access, ALL)).await.unwrap();
        let expected = if only_reads { (201, "") } else { (409, "SharingViolation") };
        assert_eq!(run(&server, "Lease", &path).await, (expected.0, expected.1.into()), "{access:?}");
        server.service.close_open(id).await.unwrap();
        if !only_reads {
            assert_eq!(run(&server, "Lease", &path).await.0, 201);
        }
        // With an active lease.
        match open(&server, &path, request(access, ALL)).await {
            Ok(id) if only_reads => drop(server.service.close_open(id).await.unwrap()),
            Err(Failure::Sharing) if !only_reads => {}
            other => panic!("{access:?}: {other:?}"),
        }
        // A broken lease blocks nothing.
        server.put(&format!("/docs/{path}?comp=lease"), "x-ms-lease-action: break", "").await.expect(202);
        let id = open(&server, &path, request(access, ALL)).await.unwrap();
        server.service.close_open(id).await.unwrap();
    }
}

#[tokio::test]
async fn file_marked_for_deletion_is_inaccessible_until_unmarked() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    make_file(&server, "g", 10).await;
    let id = open(&server, "f", request(ALL, ALL)).await.unwrap();
    server.service.opens().set_delete_pending(id, true).await.unwrap();
    for operation in OPERATIONS.into_iter().chain(["Rename"]) {
        let (status, code) = run(&server, operation, "f").await;
        let code = if operation == "Properties" { "SMBDeletePending" } else { code.as_str() };
        assert_eq!((status, code), (409, "SMBDeletePending"), "{operation}");
    }
    server.put("/docs/f?restype=directory", "", "").await.refused(409, "SMBDeletePending");
    assert_eq!(names(&server, "").await, ["g"]);
    assert_eq!(open(&server, "f", request(R, ALL)).await, Err(Failure::DeletePending));
    server.service.opens().set_delete_pending(id, false).await.unwrap();
    assert_eq!(names(&server, "").await, ["f", "g"]);
    server.get("/docs/f", "").await.expect(200);
    // The file is deleted when the last handle closes.
    let other = open(&server, "f", request(R, ALL)).await.unwrap();
    server.service.opens().set_delete_pending(id, true).await.unwrap();
    server.service.close_open(id).await.unwrap();
    server.get("/docs/f", "").await.refused(409, "SMBDeletePending");
    server.service.close_open(other).await.unwrap();
    server.get("/docs/f", "").await.refused(404, "ResourceNotFound");
    assert_eq!(names(&server, "").await, ["g"]);
    // The name is free.
    make_file(&server, "f", 3).await;
}

#[tokio::test]
async fn delete_on_close_deletes_and_a_failed_open_does_not() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    assert_eq!(run(&server, "Lease", "f").await.0, 201);
    let doomed = OpenRequest { delete_on_close: true, ..request(D, ALL) };
    assert!(open(&server, "f", doomed.clone()).await.is_err());
    server.get("/docs/f", "").await.expect(200);
    server.put("/docs/f?comp=lease", "x-ms-lease-action: break", "").await.expect(202);
    let id = open(&server, "f", doomed).await.unwrap();
    server.get("/docs/f", "").await.expect(200);
    server.service.close_open(id).await.unwrap();
    server.get("/docs/f", "").await.refused(404, "ResourceNotFound");
}

#[tokio::test]
async fn range_locks_refuse_all_put_range_and_overlapping_reads() {
    let server = start().await;
    make_file(&server, "f", 100).await;
    let id = open(&server, "f", request(ALL, ALL)).await.unwrap();
    let locked = ByteRange { offset: 50, length: 10 };
    server.service.opens().lock(id, locked, LockKind::Exclusive).await.unwrap();
    for (operation, expected) in [
        ("Put Range", (409, "FileLockConflict")),
        ("Create", (409, "FileLockConflict")),
        ("Get", (409, "FileLockConflict")),
        ("Properties", (200, "")),
        ("Set Metadata", (200, "")),
        ("Set Properties", (200, "")),
    ] {
        assert_eq!(run(&server, operation, "f").await, (expected.0, expected.1.into()), "{operation}");
    }
    let resize = server.put("/docs/f?comp=properties", "x-ms-content-length: 40", "").await;
    resize.refused(409, "FileLockConflict");
    server.get("/docs/f", "x-ms-range: bytes=0-49").await.expect(206);
    server.get("/docs/f", "x-ms-range: bytes=0-50").await.refused(409, "FileLockConflict");
    server.get("/docs/f", "x-ms-range: bytes=60-").await.expect(206);
    server.service.opens().unlock(id, locked).unwrap();
    server.service.opens().lock(id, locked, LockKind::Shared).await.unwrap();
    server.get("/docs/f", "").await.expect(200);
    assert_eq!(run(&server, "Put Range", "f").await, (409, "FileLockConflict".into()));
    server.service.close_open(id).await.unwrap();
    write(&server, "f", 0, b"abc").await;
}

#[tokio::test]
async fn each_request_breaks_caches_and_waits_as_in_its_table_row() {
    let server = start().await;
    let (rwh, rh, rw) = (Caching::RWH, Caching::RH, Caching::RW);
    let mut row = 0;
    // The break that is sent, if any, and whether the request waits for its acknowledgment.
    let flushed = [Some((rh, true)), None, Some((Caching::R, true))];
    let dropped = [Some((Caching::NONE, true)), Some((Caching::NONE, false)), Some((Caching::NONE, true))];
    for (operations, expected) in [
        (&["Get", "Properties", "Metadata", "List Ranges"][..], flushed),
        (&["Put Range", "Set Properties", "Set Metadata"], dropped),
        (&["Delete"], [Some((rw, true)), Some((Caching::R, true)), None]),
    ] {
        for operation in operations {
            for (held, expected) in [rwh, rh, rw].into_iter().zip(expected) {
                row += 1;
                let path = format!("f{row}");
                make_file(&server, &path, 10).await;
                let (id, mut received) = open_leasing(&server, &path, held).await;
                let case = format!("{operation} {held:?}");
                let answer = async {
                    let Some((to, waits)) = expected else { return };
                    let notice = received.recv().await.unwrap();
                    assert_eq!((notice.from, notice.to), (held, to), "{case}");
                    if waits {
                        server.service.opens().acknowledge(notice.file, KEY, notice.to).unwrap();
                    }
                };
                let (outcome, ()) = tokio::join!(run(&server, operation, &path), answer);
                // The client keeps the handle open, so the deletion fails.
                let refused = *operation == "Delete";
                assert_eq!(outcome.1 == "SharingViolation", refused, "{case} {outcome:?}");
                assert_eq!(outcome.0 >= 400, refused, "{case} {outcome:?}");
                assert!(received.try_recv().is_err(), "{case}");
                assert_eq!(names(&server, "").await.len(), row, "{case}");
                server.service.close_open(id).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn request_fails_if_a_client_does_not_acknowledge_its_break_in_time() {
    let server = start_impatient().await;
    make_file(&server, "f", 10).await;
    let (id, mut received) = open_leasing(&server, "f", Caching::RWH).await;
    for operation in
        ["Get", "Metadata", "List Ranges", "Put Range", "Set Metadata", "Set Properties", "Delete"]
    {
        assert_eq!(run(&server, operation, "f").await, (500, "ClientCacheFlushDelay".into()), "{operation}");
    }
    assert_eq!(names(&server, "").await, ["f"]);
    // One break is sent; the next follows its acknowledgment.
    let notice = received.try_recv().unwrap();
    assert_eq!((notice.to, received.try_recv().is_err()), (Caching::RH, true));
    server.service.opens().acknowledge(notice.file, KEY, notice.to).unwrap();
    // Handle caching is broken before read caching, whose break needs no acknowledgment.
    assert_eq!(received.try_recv().unwrap().to, Caching::R);
    server.service.opens().acknowledge(notice.file, KEY, Caching::R).unwrap();
    assert_eq!(received.try_recv().unwrap().to, Caching::NONE);
    server.get("/docs/f", "").await.expect(200);
    server.service.close_open(id).await.unwrap();
    server.delete("/docs/f", "").await.expect(202);
}

#[tokio::test]
async fn delete_breaks_and_waits_for_a_cached_handle() {
    let server = start().await;
    make_file(&server, "f", 10).await;
    let (id, mut received) = open_leasing(&server, "f", Caching::RH).await;
    let close = async {
        assert_eq!(received.recv().await.unwrap().to, Caching::R);
        server.service.close_open(id).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(run(&server, "Delete", "f"), close);
    assert_eq!(outcome.0, 202);
}

#[tokio::test]
async fn open_directories_and_parents_of_open_files_are_not_deleted_or_moved() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_directory(&server, "d/e").await;
    make_file(&server, "d/e/f", 1).await;
    let rename = |to: &'static str| {
        let source = format!("http://{}/{}/docs/d", server.address, lazuli_testing::ACCOUNT);
        let headers = format!("x-ms-file-rename-source: {source}");
        let server = &server;
        async move { server.put(&format!("/docs/{to}?restype=directory&comp=rename"), &headers, "").await }
    };
    let file = open(&server, "d/e/f", request(R, ALL)).await.unwrap();
    rename("x").await.refused(409, "SharingViolation");
    server.service.close_open(file).await.unwrap();
    let directory = open(&server, "d", request(R, ALL)).await.unwrap();
    rename("x").await.refused(409, "SharingViolation");
    // Other clients can change files in it.
    make_file(&server, "d/g", 1).await;
    server.delete("/docs/d/g", "").await.expect(202);
    server.service.close_open(directory).await.unwrap();
    rename("x").await.expect(200);
    server.delete("/docs/x/e/f", "").await.expect(202);
    let directory = open(&server, "x/e", request(R, ALL)).await.unwrap();
    server.delete("/docs/x/e?restype=directory", "").await.refused(409, "SharingViolation");
    server.service.opens().set_delete_pending(directory, true).await.unwrap();
    server.delete("/docs/x/e?restype=directory", "").await.refused(409, "SMBDeletePending");
    server.get("/docs/x/e?restype=directory", "").await.refused(409, "SMBDeletePending");
    let create = "x-ms-type: file\nx-ms-content-length: 1";
    server.put("/docs/x/e/h", create, "").await.refused(409, "SMBDeletePending");
    assert_eq!(names(&server, "x").await, Vec::<String>::new());
    server.service.opens().set_delete_pending(directory, false).await.unwrap();
    make_file(&server, "x/e/h", 1).await;
    // A directory that is not empty is not deleted, although it was marked.
    server.service.opens().set_delete_pending(directory, true).await.unwrap();
    assert!(server.service.close_open(directory).await.is_err());
    assert_eq!(names(&server, "x/e").await, ["h"]);
    server.delete("/docs/x/e/h", "").await.expect(202);
    let directory = open(&server, "x/e", request(R, ALL)).await.unwrap();
    server.service.opens().set_delete_pending(directory, true).await.unwrap();
    server.service.close_open(directory).await.unwrap();
    server.get("/docs/x/e?restype=directory", "").await.refused(404, "ResourceNotFound");
    assert_eq!(names(&server, "x").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rest_write_is_refused_while_an_open_denies_writing() {
    let server = std::sync::Arc::new(start().await);
    make_file(&server, "f", 8).await;
    let mut tasks = vec![];
    for task in 0..4u8 {
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..30u8 {
                if task % 2 == 0 {
                    let range = "x-ms-write: update\nx-ms-range: bytes=0-7";
                    let reply = server.put("/docs/f?comp=range", range, vec![round; 8]).await;
                    assert!(matches!(reply.outcome(), (201, _) | (409, "SharingViolation")), "{reply:?}");
                    continue;
                }
                let Ok(id) = open(&server, "f", request(R, R)).await else { continue };
                let before = server.call("HEAD", "/docs/f", "", "").await.expect(200);
                tokio::task::yield_now().await;
                let after = server.call("HEAD", "/docs/f", "", "").await.expect(200);
                assert_eq!(before.etag(), after.etag());
                server.service.close_open(id).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let opens = server.service.opens();
    let space = |key: FileKey| key.space;
    let id = open(&server, "f", request(R, ALL)).await.unwrap();
    assert_eq!(opens.handles(space(id.file), 0, 9, |_, _| true).len(), 1);
}
