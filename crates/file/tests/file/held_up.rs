//! SMB clients while another operation is in progress: the store is held up in its middle.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Caching, FileAccess, Pace};
use lazuli_file::FileService;
use lazuli_file::handles::{Action, CreateRequest, Disposition, Failure, PropertyChange};
use lazuli_file::opens::{CacheKey, CacheRequest};
use lazuli_protocol::ServiceKind;
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_store::{Commit, CommitError, Partition, Store};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use crate::handles::{asks, connect, create, get, open, read};
use crate::hold_up::{start, take_slice};
use crate::opens::request;
use crate::shares::{deleted_version, keep_deleted};
use crate::support::{Server, make_file, names, write};

/// Longer than anything takes that has an end.
const LONG: Duration = Duration::from_secs(20);
const READ_ONLY: u32 = 1;
const HIDDEN: u32 = 2;
const SPARSE: u32 = 0x200;

#[tokio::test]
async fn a_file_is_renamed_by_its_open_while_others_write_to_it() {
    let (server, hold_up) = start(LONG).await;
    let mut came_between = 0;
    for after in 0.. {
        let (from, to) = (format!("from{after}"), format!("to{after}"));
        make_file(&server, &from, 4).await;
        let (one, two) = (open(&server, &from).await, open(&server, &from).await);
        server.service.write_at(two, 0, Bytes::from_static(b"then"), true).await.unwrap();
        hold_up.hold_reads(after);
        let (service, path) = (server.service.clone(), to.clone());
        let renaming = tokio::spawn(async move { service.rename_open(one, &path, false).await });
        if !hold_up.holds(1).await {
            break;
        }
        came_between += 1;
        server.service.write_at(two, 0, Bytes::from_static(b"when"), false).await.unwrap();
        hold_up.let_go();
        let renamed = timeout(LONG, renaming).await.expect("it does not wait for itself");
        assert_eq!(renamed.unwrap(), Ok(()), "written to after {after} reads");
        assert_eq!(server.service.close_open(two).await, Ok(None));
        assert_eq!(get(&server, &to).await, b"when", "written to after {after} reads");
        server.service.close_open(one).await.unwrap();
    }
    assert!(came_between >= 1, "a rename reads the row");
}

#[tokio::test]
async fn a_rename_that_waits_for_a_client_does_not_keep_others_from_the_file() {
    let (server, _) = start(LONG).await;
    make_file(&server, "to", 4).await;
    let (one, two) = (open(&server, "from").await, open(&server, "from").await);
    let (breaks, mut heard) = unbounded_channel();
    let mut keeps = asks("to", Disposition::Open);
    keeps.open.cache = CacheRequest::Lease { client: 1, key: 2, state: Caching::RWH };
    keeps.open.breaks = Some(breaks);
    let kept = create(&server, keeps).await.unwrap().opened;
    assert_eq!(kept.caching, Caching::RWH);
    let service = server.service.clone();
    let renaming = tokio::spawn(async move { service.rename_open(one, "to", true).await });
    let told = timeout(LONG, heard.recv()).await.unwrap().expect("it is in the way");
    let written = server.service.write_at(two, 0, Bytes::from_static(b"then"), true);
    assert_eq!(timeout(LONG / 4, written).await.expect("it has its turn"), Ok(()));
    assert!(!renaming.is_finished());
    // The client closes what it only kept.
    assert_eq!(server.service.close_open(kept.id).await, Ok(None));
    assert_eq!(told.key, CacheKey::Lease { client: 1, key: 2 });
    assert_eq!(timeout(LONG, renaming).await.unwrap().unwrap(), Ok(()));
    for id in [one, two] {
        assert_eq!(server.service.close_open(id).await, Ok(None));
    }
    assert_eq!(get(&server, "to").await, b"then");
    assert_eq!(names(&server, "").await, ["to"]);
}

#[tokio::test]
async fn two_who_rename_over_each_others_files_do_not_wait_for_ever() {
    let (server, hold_up) = start(Duration::from_millis(500)).await;
    for path in ["a", "b"] {
        make_file(&server, path, 4).await;
        write(&server, path, 0, b"then").await;
    }
    let (a, b) = (open(&server, "a").await, open(&server, "b").await);
    let write = async |bytes: &'static [u8]| {
        for id in [a, b] {
            server.service.write_at(id, 0, Bytes::from_static(bytes), false).await.unwrap();
        }
    };
    write(b"this").await;
    hold_up.hold_reads(0);
    let renaming = [(a, "b"), (b, "a")].map(|(id, path)| {
        let service = server.service.clone();
        tokio::spawn(async move { service.rename_open(id, path, true).await })
    });
    assert!(hold_up.holds(2).await, "each has its own turn");
    write(b"that").await;
    hold_up.let_go();
    for renaming in renaming {
        let renamed = timeout(LONG, renaming).await.expect("whoever waits gives up").unwrap();
        assert!(matches!(renamed, Err(Failure::Denied | Failure::Sharing)), "{renamed:?}");
    }
    for (id, path) in [(a, "a"), (b, "b")] {
        assert_eq!(server.service.close_open(id).await, Ok(None));
        assert_eq!(get(&server, path).await, b"that");
    }
    assert_eq!(names(&server, "").await, ["a", "b"]);
}

#[tokio::test]
async fn whoever_opens_a_file_while_it_is_emptied_does_not_bring_its_bytes_back() {
    use Disposition::{Overwrite, OverwriteIf, Supersede};
    let (server, hold_up) = start(LONG).await;
    for disposition in [Overwrite, OverwriteIf, Supersede] {
        let path = format!("{disposition:?}");
        make_file(&server, &path, 8).await;
        write(&server, &path, 0, b"deleted!").await;
        let first = open(&server, &path).await;
        server.service.write_at(first, 0, Bytes::from_static(b"D"), false).await.unwrap();
        let (service, tree) = (server.service.clone(), connect(&server).await);
        let asked = asks(&path, disposition);
        hold_up.hold_commits();
        let truncating = tokio::spawn(async move { service.create(&tree, asked).await.unwrap() });
        assert!(hold_up.holds(1).await, "it commits");
        let late = open(&server, &path).await;
        let service = server.service.clone();
        let waits =
            tokio::spawn(async move { service.write_at(late, 1, Bytes::from_static(b"ew"), false).await });
        tokio::task::yield_now().await;
        hold_up.let_go();
        let emptied = timeout(LONG, truncating).await.expect("it ends").unwrap();
        assert_ne!(emptied.action, Action::Opened);
        timeout(LONG, waits).await.expect("writers are told").unwrap().unwrap();
        let ids = [first, late, emptied.opened.id];
        for id in ids {
            assert_eq!(read(&server, id, 0..8).await, b"\0ew", "{disposition:?}");
        }
        server.service.write_at(first, 0, Bytes::from_static(b"n"), false).await.unwrap();
        for id in ids {
            assert_eq!(server.service.close_open(id).await, Ok(None));
        }
        assert_eq!(get(&server, &path).await, b"new", "{disposition:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_leased_over_rest_while_it_is_opened_is_not_emptied() {
    let (server, hold_up) = start(LONG).await;
    let tree = connect(&server).await;
    let mut came_between = 0;
    for after in 0.. {
        let path = format!("f{after}");
        make_file(&server, &path, 4).await;
        write(&server, &path, 0, b"kept").await;
        let asked = CreateRequest {
            open: request(FileAccess::READ, FileAccess::ALL),
            ..asks(&path, Disposition::Overwrite)
        };
        hold_up.hold_reads(after);
        let (service, tree) = (server.service.clone(), tree.clone());
        let truncating = tokio::spawn(async move { service.create(&tree, asked).await });
        if !hold_up.holds(1).await {
            break;
        }
        came_between += 1;
        hold_up.hold_no_more();
        let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
        server.put(&format!("/docs/{path}?comp=lease"), lease, "").await.expect(201);
        hold_up.let_go();
        let emptied = timeout(LONG, truncating).await.expect("it ends").unwrap();
        assert_eq!(emptied.unwrap_err(), Failure::Sharing, "leased after {after} reads");
        assert_eq!(get(&server, &path).await, b"kept", "leased after {after} reads");
    }
    assert!(came_between >= 3, "the row is read before the open, after it and to be changed");
}

#[tokio::test]
async fn what_is_opened_while_its_share_or_snapshot_is_deleted_does_not_stay_open() {
    let (server, hold_up) = start(LONG).await;
    for of_snapshot in [false, true] {
        let mut came_between = 0;
        for after in 0.. {
            make_file(&server, "f", 4).await;
            let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
            let tree = connect(&server).await;
            let snapshot = server.service.snapshots_of(&tree).await.unwrap()[0];
            let asked = CreateRequest {
                snapshot: of_snapshot.then_some(snapshot),
                open: request(FileAccess::READ, FileAccess::ALL),
                ..asks("f", Disposition::Open)
            };
            hold_up.hold_reads(after);
            let (service, space) = (server.service.clone(), tree.space());
            let opening = tokio::spawn(async move { service.create(&tree, asked).await });
            let is_held = hold_up.holds(1).await;
            hold_up.hold_no_more();
            match of_snapshot {
                true => {
                    let id = taken.header("x-ms-snapshot").unwrap();
                    server.delete(&format!("/docs?restype=share&sharesnapshot={id}"), "").await.expect(202);
                }
                false => {
                    let all = "x-ms-delete-snapshots: include";
                    server.delete("/docs?restype=share", all).await.expect(202);
                    server.put("/docs?restype=share", "", "").await.expect(201);
                }
            }
            hold_up.let_go();
            if let Ok(opened) = timeout(LONG, opening).await.expect("it ends").unwrap() {
                let read = server.service.read_at(opened.opened.id, 0..4).await;
                assert_eq!(read, Err(Failure::Closed), "after {after} reads");
            }
            let open = server.service.opens().handles(space, 0, 10, |_, _| true);
            assert!(open.is_empty(), "after {after} reads: {open:?}");
            if !is_held {
                break;
            }
            came_between += 1;
        }
        assert!(came_between >= 3, "the share's row is read, and the file's before and after the open");
    }
}

#[tokio::test]
async fn what_is_open_of_a_share_whose_deletion_was_broken_off_is_closed_all_the_same() {
    let (server, hold_up) = start(LONG).await;
    let mut came_between = 0;
    for after in 0.. {
        make_file(&server, "f", 4).await;
        let (tree, early) = (connect(&server).await, open(&server, "f").await);
        hold_up.hold_reads(after);
        let (service, space) = (server.service.clone(), tree.space());
        let opening = tokio::spawn(async move { service.create(&tree, asks("f", Disposition::Open)).await });
        let is_held = hold_up.holds(1).await;
        hold_up.hold_no_more();
        hold_up.refuse_to_close();
        let deleted = server.delete("/docs?restype=share", "").await;
        assert!(deleted.status.is_server_error(), "{deleted:?}");
        assert_eq!(server.service.read_at(early, 0..4).await, Err(Failure::Closed), "after {after} reads");
        server.get("/docs?restype=share", "").await.refused(404, "ShareNotFound");
        server.put("/docs?restype=share", "", "").await.expect(201);
        hold_up.let_go();
        // It may have found the space open, which it is until the sweep.
        let _ = timeout(LONG, opening).await.expect("it ends").unwrap();
        assert!(server.service.sweep_due());
        assert_eq!(server.service.sweep(Pace::FULL).await.unwrap().spaces, 1);
        let open = server.service.opens().handles(space, 0, 10, |_, _| true);
        assert!(open.is_empty(), "after {after} reads: {open:?}");
        if !is_held {
            break;
        }
        came_between += 1;
    }
    assert!(came_between >= 3, "the share's row is read, and the file's before and after the open");
}

#[tokio::test]
async fn what_is_open_of_a_share_that_was_restored_at_once_is_not_closed_by_its_deletion() {
    let (server, hold_up) = start(LONG).await;
    let server = Arc::new(server);
    keep_deleted(&server, 7).await;
    make_file(&server, "f", 4).await;
    let early = open(&server, "f").await;
    // The row has moved by then.
    hold_up.hold_answers(1);
    let rest = server.clone();
    let deleting = tokio::spawn(async move { rest.delete("/docs?restype=share", "").await.expect(202) });
    assert!(hold_up.holds(1).await, "it closes the space");
    hold_up.hold_no_more();
    let rest = server.clone();
    let mut restoring = tokio::spawn(async move {
        let listed = rest.get("/?comp=list&include=deleted", "").await.expect(200);
        let version = deleted_version(listed.text());
        let restore = format!("x-ms-deleted-share-name: docs\nx-ms-deleted-share-version: {version}");
        rest.put("/docs?restype=share&comp=undelete", &restore, "").await.expect(201);
        let late = open(&rest, "f").await;
        rest.service.write_at(late, 0, Bytes::from_static(b"late"), false).await.unwrap();
        late
    });
    // Whether it waits for the deletion to end, or not.
    let at_once = timeout(Duration::from_millis(500), &mut restoring).await;
    hold_up.let_go();
    timeout(LONG, deleting).await.expect("it ends").unwrap();
    let late = match at_once {
        Ok(late) => late.unwrap(),
        Err(_) => timeout(LONG, restoring).await.expect("it ends").unwrap(),
    };
    assert_eq!(server.service.read_at(early, 0..4).await, Err(Failure::Closed));
    assert_eq!(server.service.close_open(late).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"late");
}

#[tokio::test]
async fn who_gives_up_emptying_a_file_does_not_take_away_what_others_write() {
    let (server, hold_up) = start(LONG).await;
    let id = open(&server, "f").await;
    server.service.write_at(id, 0, Bytes::from_static(b"then"), false).await.unwrap();
    hold_up.hold_commits();
    let service = server.service.clone();
    let flushing = tokio::spawn(async move { service.flush(id).await });
    assert!(hold_up.holds(1).await, "it has the turn");
    server.service.write_at(id, 0, Bytes::from_static(b"when"), false).await.unwrap();
    let handles = || server.service.opens().handles(id.file.space, 0, 10, |_, _| true).len();
    let (service, tree) = (server.service.clone(), connect(&server).await);
    let truncating =
        tokio::spawn(async move { service.create(&tree, asks("f", Disposition::Overwrite)).await });
    for (count, gives_up) in [(2, false), (1, true)] {
        if gives_up {
            truncating.abort();
        }
        let comes = async {
            while handles() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // On to where it waits for the turn.
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        timeout(LONG, comes).await.expect("it opens and closes");
    }
    hold_up.let_go();
    assert_eq!(timeout(LONG, flushing).await.unwrap().unwrap(), Ok(()));
    assert_eq!(server.service.flush(id).await, Ok(()));
    assert_eq!(read(&server, id, 0..8).await, b"when");
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"when");
}

#[tokio::test]
async fn what_smb_clients_change_waits_for_a_request_over_rest_whatever_else_happens_to_the_file() {
    let (server, hold_up) = start(LONG).await;
    let server = Arc::new(server);
    make_file(&server, "f", 4).await;
    let id = open(&server, "f").await;
    hold_up.hold_commits();
    let rest = server.clone();
    let rest = tokio::spawn(async move { write(&rest, "f", 0, b"rest").await });
    assert!(hold_up.holds(1).await, "it commits");
    let (one, two, three, four) =
        (server.service.clone(), server.service.clone(), server.service.clone(), server.service.clone());
    let hide = PropertyChange { attributes: Some(HIDDEN), ..PropertyChange::default() };
    let changes = [
        tokio::spawn(async move { one.write_at(id, 0, Bytes::from_static(b"b"), false).await }),
        tokio::spawn(async move { two.set_length(id, 3).await }),
        tokio::spawn(async move { three.set_properties(id, hide).await }),
        tokio::spawn(async move { four.set_sparse(id, true).await }),
    ];
    for _ in 0..100 {
        // The waiting open learns that the file has changed.
        let other = open(&server, "f").await;
        assert_eq!(server.service.close_open(other).await, Ok(None));
    }
    assert!(changes.iter().all(|change| !change.is_finished()));
    hold_up.let_go();
    rest.await.unwrap();
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(timeout(LONG, change).await.unwrap().unwrap(), Ok(()), "the change number {number}");
    }
    assert_eq!(server.service.info(id).await.unwrap().attributes & (HIDDEN | SPARSE), HIDDEN | SPARSE);
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"bes");
}

#[tokio::test]
async fn what_a_request_over_rest_writes_is_not_lost_to_a_change_over_smb_that_was_committed_before() {
    let (server, hold_up) = start(LONG).await;
    make_file(&server, "f", 4).await;
    write(&server, "f", 0, b"then").await;
    for is_opened_again in [false, true] {
        let id = open(&server, "f").await;
        let hide = PropertyChange { attributes: Some(HIDDEN), ..PropertyChange::default() };
        hold_up.hold_answers(0);
        let service = server.service.clone();
        let changing = tokio::spawn(async move { service.set_properties(id, hide).await });
        assert!(hold_up.holds(1).await, "it commits");
        hold_up.hold_no_more();
        write(&server, "f", 0, b"rest").await;
        let other = if is_opened_again { Some(open(&server, "f").await) } else { None };
        if let Some(other) = other {
            server.service.write_at(other, 1, Bytes::from_static(b"u"), false).await.unwrap();
        }
        hold_up.let_go();
        assert_eq!(timeout(LONG, changing).await.expect("it ends").unwrap(), Ok(()));
        let expected: &[u8] = if is_opened_again { b"rust" } else { b"rest" };
        assert_eq!(read(&server, id, 0..4).await, expected, "opened again: {is_opened_again}");
        server.service.write_at(id, 0, Bytes::from_static(b"b"), false).await.unwrap();
        for id in other.into_iter().chain([id]) {
            assert_eq!(server.service.close_open(id).await, Ok(None));
        }
        let expected: &[u8] = if is_opened_again { b"bust" } else { b"best" };
        assert_eq!(get(&server, "f").await, expected, "opened again: {is_opened_again}");
    }
}

#[tokio::test]
async fn all_that_is_allowed_of_a_file_is_judged_by_what_it_is_like_when_it_is_open() {
    let (server, hold_up) = start(LONG).await;
    let tree = connect(&server).await;
    for was_read_only in [false, true] {
        let mut came_between = 0;
        for after in 0.. {
            let path = format!("{was_read_only}{after}");
            make_file(&server, &path, 4).await;
            let set = async |read_only: bool| {
                let attributes = if read_only { "ReadOnly" } else { "None" };
                let headers = format!("x-ms-file-attributes: {attributes}");
                server.put(&format!("/docs/{path}?comp=properties"), &headers, "").await.expect(200);
            };
            set(was_read_only).await;
            let asked =
                CreateRequest { if_read_only: Some(FileAccess::READ), ..asks(&path, Disposition::Open) };
            hold_up.hold_reads(after);
            let (service, space, tree) = (server.service.clone(), tree.space(), tree.clone());
            let opening = tokio::spawn(async move { service.create(&tree, asked).await });
            if !hold_up.holds(1).await {
                hold_up.let_go();
                break;
            }
            hold_up.hold_no_more();
            // An open for writing conflicts permanently, so it is not held up.
            if server.service.opens().handles(space, 0, 10, |_, place| place.path == path).is_empty() {
                came_between += 1;
                set(!was_read_only).await;
            }
            hold_up.let_go();
            let opened = timeout(LONG, opening).await.expect("it ends").unwrap().unwrap();
            let is_read_only = opened.info.attributes & READ_ONLY != 0;
            assert_eq!(opened.opened_read_only, is_read_only, "{was_read_only}, after {after} reads");
            server.service.close_open(opened.opened.id).await.unwrap();
        }
        assert!(came_between >= 2, "the share's row is read, and the file's before the open");
    }
}

/// Refuses a number of commits, and counts the others.
struct Refusing {
    left: AtomicUsize,
    done: AtomicUsize,
}

#[async_trait]
impl Interposer for &'static Refusing {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            return Err(CommitError::Full);
        }
        store.commit(partition, commit).await?;
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn what_was_written_is_made_durable_once_the_store_can() {
    static REFUSING: Refusing = Refusing { left: AtomicUsize::new(0), done: AtomicUsize::new(0) };
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, &REFUSING);
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    take_slice(&server).await;
    let id = open(&server, "f").await;
    let done = || REFUSING.done.load(Ordering::SeqCst);
    let before = done();
    REFUSING.left.store(1, Ordering::SeqCst);
    server.service.write_at(id, 0, Bytes::from_static(b"then"), false).await.unwrap();
    let durable = async {
        // No client asks for it.
        while done() == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, durable).await.expect("it is tried again");
    assert_eq!(REFUSING.left.load(Ordering::SeqCst), 0, "it was refused once");
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"then");
}

/// Creates a file again after every read.
struct Replacing {
    server: OnceLock<Weak<Server>>,
    is_off: AtomicBool,
}

#[async_trait]
impl Interposer for &'static Replacing {
    async fn was_read(&self) {
        if let Some(server) = self.server.get().and_then(Weak::upgrade)
            && !self.is_off.swap(true, Ordering::SeqCst)
        {
            server.delete("/docs/f", "").await.expect(202);
            make_file(&server, "f", 1).await;
            self.is_off.store(false, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn a_file_that_is_another_one_whenever_it_is_looked_at_is_not_read_for_ever() {
    static REPLACING: Replacing = Replacing { server: OnceLock::new(), is_off: AtomicBool::new(false) };
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, &REPLACING);
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let server = Arc::new(lazuli_testing::start(ServiceKind::File, make).await);
    server.put("/docs?restype=share", "", "").await.expect(201);
    make_file(&server, "f", 1).await;
    // As long as anything is open, a file is read again.
    let other = open(&server, "other").await;
    assert!(REPLACING.server.set(Arc::downgrade(&server)).is_ok());
    let read = timeout(LONG, server.get("/docs/f", "")).await.expect("it gives up");
    read.refused(503, "ServerBusy");
    REPLACING.is_off.store(true, Ordering::SeqCst);
    server.get("/docs/f", "").await.expect(200);
    server.service.close_open(other).await.unwrap();
}
