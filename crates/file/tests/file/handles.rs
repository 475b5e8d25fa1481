//! Files as SMB clients use them, together with requests over REST.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Caching, FileAccess, Timestamp};
use lazuli_file::FileService;
use lazuli_file::handles::{
    Action, CreateRequest, Created, Disposition, Failure, Kind, NewTime, Position, PropertyChange, Removed,
    Tree,
};
use lazuli_file::opens::{CacheRequest, OpenId, OpenRequest};
use lazuli_protocol::ServiceKind;
use lazuli_store::interposed::{Interposed, Interposer};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use crate::opens::request;
use crate::support::{Server, make_directory, make_file, names, start, write};

const ALL: FileAccess = FileAccess::ALL;
const READ_ONLY: u32 = 1;
const HIDDEN: u32 = 2;
const ARCHIVE: u32 = 0x20;

pub(crate) async fn connect(server: &Server) -> Tree {
    let account = server.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
    server.service.connect(&account, "docs").await.unwrap()
}

pub(crate) fn create_request(path: &str, disposition: Disposition) -> CreateRequest {
    CreateRequest {
        path: path.into(),
        disposition,
        kind: Kind::Any,
        attributes: 0,
        allocation: 0,
        permission: None,
        snapshot: None,
        if_read_only: None,
        open: request(ALL, ALL),
    }
}

pub(crate) async fn create(server: &Server, request: CreateRequest) -> Result<Created, Failure> {
    server.service.create(&connect(server).await, request).await
}

pub(crate) async fn open(server: &Server, path: &str) -> OpenId {
    create(server, create_request(path, Disposition::OpenIf)).await.unwrap().opened.id
}

pub(crate) async fn read(server: &Server, id: OpenId, range: std::ops::Range<u64>) -> Vec<u8> {
    server.service.read_at(id, range).await.unwrap().concat()
}

pub(crate) async fn get(server: &Server, path: &str) -> Vec<u8> {
    server.get(&format!("/docs/{path}"), "").await.expect(200).body.to_vec()
}

#[tokio::test]
async fn allocation_above_the_maximum_file_size_is_refused() {
    let server = start().await;
    for allocation in [u64::MAX, u64::MAX - 4095, (4 << 40) + 1] {
        let asked = CreateRequest { allocation, ..create_request("f", Disposition::OpenIf) };
        assert_eq!(create(&server, asked).await.err(), Some(Failure::Full), "{allocation}");
    }
    let most = CreateRequest { allocation: 4 << 40, ..create_request("f", Disposition::OpenIf) };
    assert_eq!(create(&server, most).await.unwrap().info.allocated, 4 << 40);
}

#[tokio::test]
async fn each_disposition_creates_opens_or_truncates_as_specified() {
    use Disposition::{Create, Open, OpenIf, Overwrite, OverwriteIf, Supersede};
    let server = start().await;
    for (disposition, absent, present) in [
        (Supersede, Ok(Action::Created), Ok(Action::Superseded)),
        (Open, Err(Failure::NotFound), Ok(Action::Opened)),
        (Create, Ok(Action::Created), Err(Failure::Exists)),
        (OpenIf, Ok(Action::Created), Ok(Action::Opened)),
        (Overwrite, Err(Failure::NotFound), Ok(Action::Overwritten)),
        (OverwriteIf, Ok(Action::Created), Ok(Action::Overwritten)),
    ] {
        let path = format!("new-{disposition:?}");
        let made = create(&server, create_request(&path, disposition)).await;
        assert_eq!(made.as_ref().map(|made| made.action), absent.as_ref().copied(), "{disposition:?}");
        if let Ok(made) = made {
            assert_eq!((made.info.attributes, made.info.length), (ARCHIVE, 0));
            assert_eq!(server.service.close_open(made.opened.id).await, Ok(None));
            server.get(&format!("/docs/{path}"), "").await.expect(200);
        }
        let path = format!("old-{disposition:?}");
        make_file(&server, &path, 7).await;
        let opened = create(&server, create_request(&path, disposition)).await;
        assert_eq!(opened.as_ref().map(|opened| opened.action), present.as_ref().copied(), "{disposition:?}");
        if let Ok(opened) = opened {
            let length = if opened.action == Action::Opened { 7 } else { 0 };
            assert_eq!(opened.info.length, length, "{disposition:?}");
            server.service.close_open(opened.opened.id).await.unwrap();
            assert_eq!(get(&server, &path).await.len() as u64, length);
        }
    }
}

#[tokio::test]
async fn failed_opens_return_distinct_errors() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "f", 1).await;
    for (path, disposition, kind, expected) in [
        ("x", Disposition::Open, Kind::Any, Failure::NotFound),
        ("x/y", Disposition::Open, Kind::Any, Failure::PathNotFound),
        ("x/y", Disposition::Create, Kind::Any, Failure::PathNotFound),
        ("f/y", Disposition::Open, Kind::Any, Failure::PathNotFound),
        ("d/y", Disposition::Open, Kind::Any, Failure::NotFound),
        ("a*", Disposition::Open, Kind::Any, Failure::InvalidName),
        ("a//b", Disposition::Open, Kind::Any, Failure::InvalidName),
        ("f", Disposition::Open, Kind::Directory, Failure::NotDirectory),
        ("f", Disposition::Create, Kind::Directory, Failure::Exists),
        ("d", Disposition::Open, Kind::File, Failure::IsDirectory),
        ("d", Disposition::Create, Kind::Directory, Failure::Exists),
        ("d", Disposition::OverwriteIf, Kind::Any, Failure::Invalid),
    ] {
        let asked = CreateRequest { kind, ..create_request(path, disposition) };
        assert_eq!(create(&server, asked).await.unwrap_err(), expected, "{path} {disposition:?} {kind:?}");
    }
    // Lookup ignores case. The stored case is returned.
    let found = create(&server, create_request("D/../f", Disposition::Open)).await;
    assert_eq!(found.unwrap_err(), Failure::InvalidName);
    let found = create(&server, create_request("F", Disposition::Open)).await.unwrap();
    assert_eq!((found.info.name.as_str(), found.info.path.as_str()), ("f", "f"));
    let root = create(&server, create_request("", Disposition::Open)).await.unwrap();
    assert!(root.info.is_directory && root.info.name.is_empty());
}

#[tokio::test]
async fn read_only_and_hidden_attributes_restrict_opens_and_truncation() {
    let server = start().await;
    let make = |path: &'static str, attributes| {
        let asked = CreateRequest { attributes, ..create_request(path, Disposition::Create) };
        let server = &server;
        async move {
            let made = create(server, asked).await.unwrap();
            server.service.close_open(made.opened.id).await.unwrap();
        }
    };
    make("r", READ_ONLY).await;
    make("h", HIDDEN).await;
    let with = |path, disposition, attributes, access| CreateRequest {
        attributes,
        open: request(access, ALL),
        ..create_request(path, disposition)
    };
    let (read, write) = (FileAccess::READ, FileAccess::WRITE);
    for (asked, expected) in [
        (with("r", Disposition::Open, 0, read), None),
        (with("r", Disposition::Open, 0, write), Some(Failure::Denied)),
        (with("r", Disposition::Overwrite, READ_ONLY, read), Some(Failure::Denied)),
        (CreateRequest { if_read_only: Some(read), ..with("r", Disposition::Open, 0, write) }, None),
        (with("h", Disposition::Overwrite, 0, write), Some(Failure::Denied)),
        (with("h", Disposition::Overwrite, HIDDEN, write), None),
    ] {
        let case = format!("{asked:?}");
        let opened = create(&server, asked).await;
        assert_eq!(opened.as_ref().err(), expected.as_ref(), "{case}");
        if let Ok(opened) = opened {
            server.service.close_open(opened.opened.id).await.unwrap();
        }
    }
    let doomed = OpenRequest { delete_on_close: true, ..request(FileAccess::DELETE, ALL) };
    let asked = CreateRequest { open: doomed, ..create_request("r", Disposition::Open) };
    assert_eq!(create(&server, asked).await.unwrap_err(), Failure::CannotDelete);
    let id = create(&server, with("r", Disposition::Open, 0, FileAccess::DELETE)).await.unwrap().opened.id;
    assert_eq!(server.service.set_delete(id, true).await, Err(Failure::CannotDelete));
}

#[tokio::test]
async fn unflushed_writes_are_visible_to_all_handles_and_rest() {
    let server = start().await;
    let (one, two) = (open(&server, "f").await, open(&server, "F").await);
    server.service.write_at(one, 0, Bytes::from_static(b"hello world"), false).await.unwrap();
    assert_eq!(read(&server, two, 0..100).await, b"hello world");
    server.service.write_at(two, 6, Bytes::from_static(b"there"), false).await.unwrap();
    server.service.write_at(two, 14, Bytes::from_static(b"!"), false).await.unwrap();
    let expected = b"hello there\0\0\0!";
    assert_eq!(read(&server, one, 0..100).await, expected);
    assert_eq!(read(&server, one, 6..11).await, b"there");
    assert_eq!(read(&server, one, 15..16).await, b"");
    assert_eq!(server.service.info(one).await.unwrap().length, 15);
    let listed = server.get("/docs?restype=directory&comp=list", "").await.expect(200);
    assert!(listed.text().contains("<Content-Length>15</Content-Length>"), "{}", listed.text());
    server.service.write_at(one, 0, Bytes::from_static(b"J"), false).await.unwrap();
    assert_eq!(get(&server, "f").await, b"Jello there\0\0\0!");
    server.service.write_at(one, 15, Bytes::from_static(b"?"), false).await.unwrap();
    let head = server.call("HEAD", "/docs/f", "", "").await.expect(200);
    assert_eq!(head.header("content-length"), Some("16"));
    // SMB handles see REST writes.
    server.service.write_at(one, 1, Bytes::from_static(b"E"), false).await.unwrap();
    write(&server, "f", 2, b"LL").await;
    assert_eq!(read(&server, two, 0..5).await, b"JELLo");
    server.put("/docs/f?comp=properties", "x-ms-content-length: 4", "").await.expect(200);
    assert_eq!(read(&server, two, 0..5).await, b"JELL");
    assert_eq!(server.service.info(two).await.unwrap().length, 4);
    server.service.write_at(two, 4, Bytes::from_static(b"Y"), true).await.unwrap();
    server.service.close_open(one).await.unwrap();
    server.service.close_open(two).await.unwrap();
    assert_eq!(get(&server, "f").await, b"JELLY");
    assert_eq!(server.service.read_at(one, 0..1).await, Err(Failure::Closed));
}

#[tokio::test]
async fn long_files_are_stored_while_they_are_written() {
    let server = start().await;
    let id = open(&server, "big").await;
    let block = |n: u64| Bytes::from(vec![n as u8 + 1; 1 << 20]);
    for n in 0..24 {
        server.service.write_at(id, n << 20, block(n), false).await.unwrap();
    }
    // This range overlaps bytes that may already be stored.
    server.service.write_at(id, (3 << 20) - 5, Bytes::from_static(b"0123456789"), false).await.unwrap();
    let mut expected: Vec<u8> = (0..24).flat_map(|n| block(n).to_vec()).collect();
    expected[(3 << 20) - 5..(3 << 20) + 5].copy_from_slice(b"0123456789");
    assert!(read(&server, id, 0..u64::MAX >> 1).await == expected);
    server.service.set_length(id, (20 << 20) + 3).await.unwrap();
    expected.truncate((20 << 20) + 3);
    server.service.set_length(id, (20 << 20) + 6).await.unwrap();
    expected.extend([0; 3]);
    server.service.zero(id, 1000..(1 << 20) + 1000).await.unwrap();
    expected[1000..(1 << 20) + 1000].fill(0);
    assert!(read(&server, id, 0..30 << 20).await == expected);
    let ranges = server.service.allocated_ranges(id, 0..1 << 40, 1000).await.unwrap();
    assert_eq!(ranges.first().map(|range| range.start), Some(0));
    assert_eq!(server.service.allocated_ranges(id, 0..1 << 40, 1).await.unwrap(), ranges[..1]);
    assert!(ranges.iter().all(|range| !range.contains(&500_000)), "{ranges:?}");
    let copy = open(&server, "copy").await;
    server.service.write_at(copy, 0, Bytes::from_static(b"abc"), false).await.unwrap();
    server.service.copy_range(id, 2 << 20..4 << 20, copy, 2).await.unwrap();
    let mut copied = b"ab".to_vec();
    copied.extend_from_slice(&expected[2 << 20..4 << 20]);
    assert!(read(&server, copy, 0..5 << 20).await == copied);
    assert!(get(&server, "copy").await == copied && get(&server, "big").await == expected);
    server.service.close_open(id).await.unwrap();
    assert!(get(&server, "big").await == expected);
}

#[tokio::test]
async fn deleted_file_is_listed_until_its_last_handle_closes() {
    let server = start().await;
    let tree = connect(&server).await;
    let (one, two) = (open(&server, "f").await, open(&server, "f").await);
    server.service.write_at(one, 0, Bytes::from_static(b"gone"), false).await.unwrap();
    server.service.set_delete(one, true).await.unwrap();
    assert!(server.service.info(two).await.unwrap().delete_pending);
    assert_eq!(
        create(&server, create_request("f", Disposition::Open)).await.unwrap_err(),
        Failure::DeletePending
    );
    let root = create(&server, create_request("", Disposition::Open)).await.unwrap().opened.id;
    let listed = server.service.enumerate(root, &mut Position::default(), 10).await.unwrap();
    assert_eq!(listed.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["f"]);
    assert_eq!(names(&server, "").await, Vec::<String>::new());
    assert_eq!(server.service.close_open(one).await, Ok(None));
    let removed = Removed { path: "f".into(), is_directory: false };
    assert_eq!(server.service.close_open(two).await, Ok(Some(removed)));
    assert_eq!(create(&server, create_request("f", Disposition::Open)).await.unwrap_err(), Failure::NotFound);
    // The unflushed bytes no longer count.
    assert_eq!(server.service.space_of(&tree).await.unwrap().1, 0);
    let directory = CreateRequest { kind: Kind::Directory, ..create_request("d", Disposition::Create) };
    let directory = create(&server, directory).await.unwrap().opened.id;
    let inner = open(&server, "d/f").await;
    assert_eq!(server.service.set_delete(directory, true).await, Err(Failure::NotEmpty));
    server.service.set_delete(inner, true).await.unwrap();
    server.service.close_open(inner).await.unwrap();
    server.service.set_delete(directory, true).await.unwrap();
    assert_eq!(
        create(&server, create_request("d/g", Disposition::Create)).await.unwrap_err(),
        Failure::DeletePending
    );
    let removed = Removed { path: "d".into(), is_directory: true };
    assert_eq!(server.service.close_open(directory).await, Ok(Some(removed)));
}

#[tokio::test]
async fn directories_are_enumerated_in_order_a_page_at_a_time() {
    let server = start().await;
    for name in ["b", "A", "c", "E", "d"] {
        make_file(&server, name, 3).await;
    }
    let id = open(&server, "c").await;
    server.service.write_at(id, 10, Bytes::from_static(b"x"), false).await.unwrap();
    let root = create(&server, create_request("", Disposition::Open)).await.unwrap().opened.id;
    let mut position = Position::default();
    let mut pages = vec![];
    loop {
        let page = server.service.enumerate(root, &mut position, 2).await.unwrap();
        if page.is_empty() {
            break;
        }
        pages.push(page.into_iter().map(|info| (info.name, info.length)).collect::<Vec<_>>());
    }
    let page = |entries: &[(&str, u64)]| {
        entries.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect::<Vec<_>>()
    };
    assert_eq!(pages, [page(&[("A", 3), ("b", 3)]), page(&[("c", 11), ("d", 3)]), page(&[("E", 3)])]);
}

#[tokio::test]
async fn explicit_last_write_time_survives_later_writes_of_that_handle() {
    let server = start().await;
    let id = open(&server, "f").await;
    let time = |seconds: u64| Timestamp::from_unix_seconds(1_600_000_000 + seconds);
    let change = PropertyChange {
        created: NewTime::Set(time(1)),
        accessed: NewTime::Set(time(2)),
        written: NewTime::Set(time(3)),
        changed: NewTime::Set(time(4)),
        attributes: Some(HIDDEN),
    };
    server.service.set_properties(id, change).await.unwrap();
    let info = server.service.info(id).await.unwrap();
    assert_eq!(
        (info.created, info.accessed, info.written, info.changed),
        (time(1), time(2), time(3), time(4))
    );
    assert_eq!(info.attributes, HIDDEN);
    server.service.write_at(id, 0, Bytes::from_static(b"x"), true).await.unwrap();
    let info = server.service.info(id).await.unwrap();
    assert_eq!((info.written, info.attributes), (time(3), HIDDEN | ARCHIVE));
    server.service.set_sparse(id, true).await.unwrap();
    let sddl = "O:BAG:BAD:(A;;FA;;;BA)";
    server.service.set_permission(id, sddl).await.unwrap();
    assert_eq!(server.service.permission_of(id).await.unwrap(), sddl);
    server.service.close_open(id).await.unwrap();
    let found = create(&server, create_request("f", Disposition::Open)).await.unwrap();
    assert_eq!((found.info.attributes, found.info.written), (HIDDEN | ARCHIVE | 0x200, time(3)));
    server.clock.advance(lazuli_concurrency::Span::seconds(10));
    server.service.write_at(found.opened.id, 0, Bytes::from_static(b"y"), false).await.unwrap();
    server.service.close_open(found.opened.id).await.unwrap();
    let found = create(&server, create_request("f", Disposition::Open)).await.unwrap();
    assert!(found.info.written > time(3));
}

#[tokio::test]
async fn writes_to_a_full_share_fail() {
    let server = start().await;
    server.put("/docs?restype=share&comp=properties", "x-ms-share-quota: 1", "").await.expect(200);
    let id = open(&server, "f").await;
    server.service.write_at(id, (1 << 30) - 1, Bytes::from_static(b"x"), false).await.unwrap();
    let more = server.service.write_at(id, 1 << 30, Bytes::from_static(b"y"), false).await;
    assert_eq!(more, Err(Failure::Full));
    let other = open(&server, "g").await;
    let more = server.service.write_at(other, 0, Bytes::from_static(b"y"), false).await;
    assert_eq!(more, Err(Failure::Full));
    server
        .put("/docs/h", "x-ms-type: file\nx-ms-content-length: 1", "")
        .await
        .refused(403, "ShareSizeLimitReached");
    server.service.set_length(id, 0).await.unwrap();
    server.service.write_at(other, 0, Bytes::from_static(b"y"), true).await.unwrap();
    server.service.close_open(id).await.unwrap();
    server.service.close_open(other).await.unwrap();
    assert_eq!(server.service.space_of(&connect(&server).await).await.unwrap(), (1 << 30, 1));
}

#[tokio::test]
async fn snapshot_includes_unflushed_writes_and_is_read_only() {
    let server = start().await;
    let id = open(&server, "f").await;
    server.service.write_at(id, 0, Bytes::from_static(b"before"), false).await.unwrap();
    server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    server.service.write_at(id, 0, Bytes::from_static(b"behind"), false).await.unwrap();
    let tree = connect(&server).await;
    let snapshots = server.service.snapshots_of(&tree).await.unwrap();
    assert_eq!(snapshots.len(), 1);
    let old = |access| CreateRequest {
        snapshot: Some(snapshots[0]),
        open: request(access, ALL),
        ..create_request("f", Disposition::Open)
    };
    assert_eq!(create(&server, old(ALL)).await.unwrap_err(), Failure::Denied);
    let shown = create(&server, old(FileAccess::READ)).await.unwrap().opened.id;
    assert_eq!(read(&server, shown, 0..10).await, b"before");
    assert_eq!(read(&server, id, 0..10).await, b"behind");
    let refused = server.service.write_at(shown, 0, Bytes::from_static(b"x"), false).await;
    assert_eq!(refused, Err(Failure::Denied));
    server.service.close_open(shown).await.unwrap();
    assert_eq!(get(&server, "f").await, b"behind");
}

#[tokio::test]
async fn deleting_a_share_or_snapshot_closes_its_handles() {
    let server = start().await;
    let id = open(&server, "f").await;
    server.service.write_at(id, 0, Bytes::from_static(b"before"), true).await.unwrap();
    let mut shown = vec![];
    for _ in 0..2 {
        let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
        let snapshot = taken.header("x-ms-snapshot").unwrap().to_owned();
        server.clock.advance(lazuli_concurrency::Span::seconds(2));
        let newest = server.service.snapshots_of(&connect(&server).await).await.unwrap()[0];
        let asked = CreateRequest {
            snapshot: Some(newest),
            open: request(FileAccess::READ, ALL),
            ..create_request("f", Disposition::Open)
        };
        shown.push((snapshot, create(&server, asked).await.unwrap().opened.id));
    }
    let (snapshot, one) = &shown[0];
    server.delete(&format!("/docs?restype=share&sharesnapshot={snapshot}"), "").await.expect(202);
    assert_eq!(server.service.read_at(*one, 0..10).await, Err(Failure::Closed));
    assert_eq!(read(&server, shown[1].1, 0..10).await, b"before");
    server.service.write_at(id, 0, Bytes::from_static(b"behind"), false).await.unwrap();
    server.service.set_delete(id, true).await.unwrap();
    server.delete("/docs?restype=share", "x-ms-delete-snapshots: include").await.expect(202);
    for id in [id, shown[1].1] {
        assert_eq!(server.service.read_at(id, 0..10).await, Err(Failure::Closed));
        assert_eq!(server.service.close_open(id).await, Err(Failure::Closed));
    }
    let write = server.service.write_at(id, 0, Bytes::from_static(b"x"), true).await;
    assert_eq!(write, Err(Failure::Closed));
    assert!(server.service.opens().handles(id.file.space, 0, 10, |_, _| true).is_empty());
    server.put("/docs?restype=share", "", "").await.expect(201);
    assert_eq!(create(&server, create_request("f", Disposition::Open)).await.unwrap_err(), Failure::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_concurrent_creates_creates_the_file() {
    let server = std::sync::Arc::new(start().await);
    for round in 0..8 {
        let mut tasks = vec![];
        for _ in 0..32 {
            let server = server.clone();
            tasks.push(tokio::spawn(async move {
                let made =
                    create(&server, create_request(&format!("f{round}"), Disposition::OpenIf)).await.unwrap();
                (made.action, made.info.id, made.opened.id)
            }));
        }
        let mut made = vec![];
        for task in tasks {
            made.push(task.await.unwrap());
        }
        assert_eq!(made.iter().filter(|(action, ..)| *action == Action::Created).count(), 1);
        assert!(made.iter().all(|(_, id, _)| *id == made[0].1));
        for (_, _, id) in made {
            server.service.close_open(id).await.unwrap();
        }
    }
}

/// Flushes a file once, after a given number of store reads, before that read returns.
#[derive(Clone, Default)]
struct FlushAfter(Arc<(AtomicI64, OnceLock<(FileService, OpenId)>)>);

#[async_trait]
impl Interposer for FlushAfter {
    async fn was_read(&self) {
        let (reads, flush) = &*self.0;
        if reads.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some((service, id)) = flush.get()
        {
            // The reading request may hold the file's lock itself, so the flush gets a time limit.
            let _ = timeout(Duration::from_millis(200), service.flush(*id)).await;
        }
    }
}

#[tokio::test]
async fn rest_reads_see_smb_writes_whenever_a_flush_intervenes() {
    static BETWEEN: LazyLock<FlushAfter> = LazyLock::new(FlushAfter::default);
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, BETWEEN.clone());
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    make_file(&server, "f", 64).await;
    let id = open(&server, "f").await;
    let (reads, flush) = &*BETWEEN.0;
    assert!(flush.set((server.service.clone(), id)).is_ok());
    let mut held_rounds = 0;
    for after in 1..=4u8 {
        server.service.write_at(id, 0, Bytes::from(vec![after; 64]), false).await.unwrap();
        reads.store(i64::from(after), Ordering::SeqCst);
        assert_eq!(get(&server, "f").await, [after; 64], "flushed after {after} reads");
        held_rounds += u8::from(reads.swap(0, Ordering::SeqCst) <= 0);
    }
    assert!(held_rounds >= 2, "a request reads the share's row and the file's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_smb_and_rest_writes_are_all_kept() {
    const WRITERS: u64 = 32;
    let server = std::sync::Arc::new(start().await);
    make_file(&server, "f", WRITERS * 64).await;
    let mut tasks = vec![];
    for writer in 0..WRITERS {
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let offset = writer * 64;
            if writer % 8 == 0 {
                for round in 0..8u8 {
                    let bytes = vec![round; 64];
                    write(&server, "f", offset as usize, &bytes).await;
                }
                return;
            }
            let id = open(&server, "f").await;
            for round in 0..64u8 {
                let bytes = Bytes::from(vec![round.min(7); 64]);
                server.service.write_at(id, offset, bytes, round % 16 == 3).await.unwrap();
                if round % 4 == 0 {
                    assert_eq!(read(&server, id, offset..offset + 64).await, [round.min(7); 64]);
                }
                if round % 16 == 5 {
                    let seen = get(&server, "f").await;
                    assert_eq!(&seen[offset as usize..offset as usize + 64], [round.min(7); 64]);
                }
            }
            server.service.close_open(id).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(get(&server, "f").await, vec![7; WRITERS as usize * 64]);
}

#[tokio::test]
async fn rename_of_an_open_file_applies_to_all_its_handles() {
    let server = start().await;
    make_directory(&server, "d").await;
    let (one, two) = (open(&server, "f").await, open(&server, "f").await);
    server.service.write_at(one, 0, Bytes::from_static(b"here"), false).await.unwrap();
    server.service.rename_open(one, "d/Moved", false).await.unwrap();
    server.service.write_at(two, 4, Bytes::from_static(b"!"), false).await.unwrap();
    for id in [one, two] {
        let info = server.service.info(id).await.unwrap();
        assert_eq!((info.name.as_str(), info.path.as_str(), info.length), ("Moved", "d/Moved", 5));
        assert_eq!(server.service.path_of(id).as_deref(), Some("d/Moved"));
    }
    assert_eq!(get(&server, "d/moved").await, b"here!");
    assert_eq!(names(&server, "").await, ["d"]);
    // A rename that changes only the case.
    server.service.rename_open(two, "d/moved", false).await.unwrap();
    assert_eq!(names(&server, "d").await, ["moved"]);
    // Existing targets.
    make_file(&server, "other", 1).await;
    make_directory(&server, "e").await;
    let rename = |path: &'static str, replace| server.service.rename_open(one, path, replace);
    assert_eq!(rename("other", false).await, Err(Failure::Exists));
    assert_eq!(rename("e", true).await, Err(Failure::Denied));
    assert_eq!(rename("no/where", true).await, Err(Failure::PathNotFound));
    assert_eq!(rename("a?b", true).await, Err(Failure::InvalidName));
    let other = open(&server, "other").await;
    assert_eq!(rename("other", true).await, Err(Failure::Denied));
    server.service.close_open(other).await.unwrap();
    assert_eq!(rename("other", true).await, Ok(()));
    assert_eq!((names(&server, "d").await.len(), get(&server, "other").await), (0, b"here!".to_vec()));
    server.service.write_at(one, 0, Bytes::from_static(b"T"), false).await.unwrap();
    server.service.close_open(one).await.unwrap();
    server.service.close_open(two).await.unwrap();
    assert_eq!(
        get(&server, "other").await,
        b"There!"[..1].iter().chain(b"ere!").copied().collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn directories_get_no_cache_however_they_are_opened() {
    let server = start().await;
    make_directory(&server, "d").await;
    for (path, disposition, kind) in [
        ("d", Disposition::Open, Kind::Any),
        ("d", Disposition::Open, Kind::Directory),
        ("e", Disposition::Create, Kind::Directory),
    ] {
        for cache in [
            CacheRequest::Lease { client: 1, key: 2, state: Caching::RWH },
            CacheRequest::Oplock(Caching::RWH),
        ] {
            let (breaks, mut received) = unbounded_channel();
            let open = OpenRequest { cache, breaks: Some(breaks), ..request(ALL, ALL) };
            let first = create(&server, CreateRequest { kind, open, ..create_request(path, disposition) })
                .await
                .unwrap();
            assert_eq!(first.opened.caching, Caching::NONE, "{path} {cache:?}");
            // An open that waits for a cache sends a break first.
            let second = create(&server, create_request(path, Disposition::Open)).await.unwrap();
            assert!(received.try_recv().is_err(), "{path} {cache:?}");
            server.service.set_delete(first.opened.id, disposition == Disposition::Create).await.unwrap();
            for id in [first.opened.id, second.opened.id] {
                server.service.close_open(id).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn waiting_open_does_not_undo_a_rename() {
    let server = start().await;
    let (breaks, mut received) = unbounded_channel();
    let cache = CacheRequest::Lease { client: 1, key: 2, state: Caching::R | Caching::W };
    let leasing = OpenRequest { cache, breaks: Some(breaks), ..request(ALL, ALL) };
    let asked = CreateRequest { open: leasing, ..create_request("f", Disposition::OpenIf) };
    let one = create(&server, asked).await.unwrap().opened.id;
    let (service, tree) = (server.service.clone(), connect(&server).await);
    let waits =
        tokio::spawn(async move { service.create(&tree, create_request("f", Disposition::Open)).await });
    let notice = received.recv().await.unwrap();
    server.service.rename_open(one, "g", false).await.unwrap();
    server.service.write_at(one, 0, Bytes::from_static(b"kept"), false).await.unwrap();
    server.service.opens().acknowledge(notice.file, notice.key, Caching::R).unwrap();
    assert_eq!(waits.await.unwrap().unwrap_err(), Failure::NotFound);
    assert_eq!(server.service.path_of(one).as_deref(), Some("g"));
    assert_eq!(server.service.close_open(one).await, Ok(None));
    assert_eq!((names(&server, "").await, get(&server, "g").await), (vec!["g".to_owned()], b"kept".to_vec()));
}

#[tokio::test]
async fn open_directory_can_be_renamed_unless_a_descendant_is_open() {
    let server = start().await;
    make_directory(&server, "d").await;
    make_file(&server, "d/f", 1).await;
    let directory = open(&server, "d").await;
    let file = open(&server, "d/f").await;
    assert_eq!(server.service.rename_open(directory, "e", false).await, Err(Failure::Denied));
    server.service.close_open(file).await.unwrap();
    // A client with only a cached handle closes it when its cache is broken.
    let (breaks, mut received) = unbounded_channel();
    let cache = CacheRequest::Lease { client: 1, key: 2, state: Caching::RWH };
    let kept = OpenRequest { cache, breaks: Some(breaks), ..request(ALL, ALL) };
    let kept = create(&server, CreateRequest { open: kept, ..create_request("d/f", Disposition::Open) })
        .await
        .unwrap();
    let close = async {
        assert_eq!(received.recv().await.unwrap().file, kept.opened.id.file);
        server.service.close_open(kept.opened.id).await.unwrap();
    };
    let (renamed, ()) = tokio::join!(server.service.rename_open(directory, "e", false), close);
    renamed.unwrap();
    assert_eq!(server.service.info(directory).await.unwrap().path, "e");
    let file = open(&server, "e/f").await;
    assert_eq!(server.service.info(file).await.unwrap().length, 1);
    server.service.set_delete(file, true).await.unwrap();
    server.service.close_open(file).await.unwrap();
    server.service.set_delete(directory, true).await.unwrap();
    let removed = Removed { path: "e".into(), is_directory: true };
    assert_eq!(server.service.close_open(directory).await, Ok(Some(removed)));
}

#[tokio::test]
async fn rename_into_a_directory_opened_for_delete_is_refused() {
    let server = start().await;
    make_directory(&server, "d").await;
    let file = open(&server, "d/f").await;
    let (read, none) = (FileAccess::READ, FileAccess::NONE);
    for (access, share, expected) in [
        (ALL, ALL, Err(Failure::Sharing)),
        (read, none, Err(Failure::Sharing)),
        (none, none, Ok(())),
        (read, ALL, Ok(())),
    ] {
        let asked = CreateRequest { open: request(access, share), ..create_request("d", Disposition::Open) };
        let directory = create(&server, asked).await.unwrap().opened.id;
        assert_eq!(server.service.rename_open(file, "d/g", false).await, expected, "{access:?} {share:?}");
        server.service.close_open(directory).await.unwrap();
    }
}

#[tokio::test]
async fn directory_properties_are_shared_by_smb_and_rest() {
    let server = start().await;
    make_directory(&server, "d").await;
    for path in ["d", ""] {
        let id = open(&server, path).await;
        let set = PropertyChange { attributes: Some(HIDDEN), ..PropertyChange::default() };
        server.service.set_properties(id, set).await.unwrap();
        assert_eq!(server.service.info(id).await.unwrap().attributes, 0x10 | HIDDEN, "{path:?}");
        let url = format!("/docs/{path}?restype=directory&comp=properties");
        server.put(&url, "x-ms-file-attributes: System", "").await.expect(200);
        assert_eq!(server.service.info(id).await.unwrap().attributes, 0x14, "{path:?}");
        server.service.set_permission(id, "O:BAG:BAD:(A;;FA;;;BA)").await.unwrap();
        server.service.close_open(id).await.unwrap();
    }
}

/// Writes to the model buffer, growing it with zeros.
fn write_model(model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[offset..end].copy_from_slice(bytes);
}

#[tokio::test]
async fn random_smb_and_rest_changes_match_a_plain_buffer() {
    let server = start().await;
    for seed in 1..=3u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let path = format!("f{seed}");
        let (one, two) = (open(&server, &path).await, open(&server, &path).await);
        let mut model: Vec<u8> = vec![];
        for step in 0..150u64 {
            let id = if random(2) == 0 { one } else { two };
            let (offset, value) = (random(40_000) as usize, step as u8);
            let length = if random(4) == 0 { random(200_000) } else { random(3000) } as usize + 1;
            match random(10) {
                0..4 => {
                    let bytes = vec![value; length];
                    write_model(&mut model, offset, &bytes);
                    server.service.write_at(id, offset as u64, bytes.into(), random(8) == 0).await.unwrap();
                }
                4 => {
                    model.resize(offset, 0);
                    server.service.set_length(id, offset as u64).await.unwrap();
                }
                5 => {
                    let end = (offset + length).min(model.len());
                    model[offset.min(end)..end].fill(0);
                    let range = offset as u64..(offset + length) as u64;
                    server.service.zero(id, range).await.unwrap();
                }
                6 if offset + length <= model.len() => {
                    let bytes = vec![value; length];
                    write_model(&mut model, offset, &bytes);
                    write(&server, &path, offset, &bytes).await;
                }
                7 => assert!(get(&server, &path).await == model, "seed {seed} step {step}"),
                8 if offset + length <= model.len() => {
                    let copied = model[offset..offset + length].to_vec();
                    let to = random(40_000) as usize;
                    write_model(&mut model, to, &copied);
                    let range = offset as u64..(offset + length) as u64;
                    server.service.copy_range(one, range, two, to as u64).await.unwrap();
                }
                _ => server.service.flush(id).await.unwrap(),
            }
            let end = (offset + length).min(model.len());
            let expected = &model[offset.min(end)..end];
            let seen = read(&server, id, offset as u64..(offset + length) as u64).await;
            assert!(seen == expected, "seed {seed} step {step}");
            let length = server.service.info(id).await.unwrap().length;
            assert_eq!(length, model.len() as u64, "seed {seed} step {step}");
        }
        server.service.close_open(one).await.unwrap();
        server.service.close_open(two).await.unwrap();
        assert!(get(&server, &path).await == model, "seed {seed}");
    }
    let used = server.service.space_of(&connect(&server).await).await.unwrap().1;
    let listed = server.get("/docs?restype=directory&comp=list", "").await.expect(200);
    let lengths = listed.text().split("<Content-Length>").skip(1);
    let sum: u64 = lengths.map(|rest| rest.split('<').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(used, sum);
}
