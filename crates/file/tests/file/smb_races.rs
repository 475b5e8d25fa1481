//! Races between SMB clients and other operations. The store holds an operation up at a chosen step.

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

use crate::handles::{connect, create, create_request, get, open, read};
use crate::held_store::{start, take_slice};
use crate::opens::request;
use crate::shares::{deleted_version, keep_deleted};
use crate::support::{Server, make_file, names, write};

/// Longer than any operation takes that does not hang.
const LONG: Duration = Duration::from_secs(20);
const READ_ONLY: u32 = 1;
const HIDDEN: u32 = 2;
const SPARSE: u32 = 0x200;

#[tokio::test]
async fn rename_by_handle_succeeds_during_concurrent_writes() {
    let (server, hold) = start(LONG).await;
    let mut held_rounds = 0;
    for after in 0.. {
        let (from, to) = (format!("from{after}"), format!("to{after}"));
        make_file(&server, &from, 4).await;
        let (one, two) = (open(&server, &from).await, open(&server, &from).await);
        server.service.write_at(two, 0, Bytes::from_static(b"then"), true).await.unwrap();
        hold.hold_reads(after);
        let (service, path) = (server.service.clone(), to.clone());
        let renaming = tokio::spawn(async move { service.rename_open(one, &path, false).await });
        if !hold.wait_until_held_or_done(&renaming).await {
            break;
        }
        held_rounds += 1;
        server.service.write_at(two, 0, Bytes::from_static(b"when"), false).await.unwrap();
        hold.release();
        let renamed = timeout(LONG, renaming).await.expect("the rename does not deadlock");
        assert_eq!(renamed.unwrap(), Ok(()), "written to after {after} reads");
        assert_eq!(server.service.close_open(two).await, Ok(None));
        assert_eq!(get(&server, &to).await, b"when", "written to after {after} reads");
        server.service.close_open(one).await.unwrap();
    }
    assert!(held_rounds >= 1, "a rename reads the row");
}

#[tokio::test]
async fn rename_waiting_for_a_client_does_not_block_writes() {
    let (server, _) = start(LONG).await;
    make_file(&server, "to", 4).await;
    let (one, two) = (open(&server, "from").await, open(&server, "from").await);
    let (breaks, mut received) = unbounded_channel();
    let mut keeps = create_request("to", Disposition::Open);
    keeps.open.cache = CacheRequest::Lease { client: 1, key: 2, state: Caching::RWH };
    keeps.open.breaks = Some(breaks);
    let kept = create(&server, keeps).await.unwrap().opened;
    assert_eq!(kept.caching, Caching::RWH);
    let service = server.service.clone();
    let renaming = tokio::spawn(async move { service.rename_open(one, "to", true).await });
    let notice = timeout(LONG, received.recv()).await.unwrap().expect("the target's cache is broken");
    let written = server.service.write_at(two, 0, Bytes::from_static(b"then"), true);
    assert_eq!(timeout(LONG / 4, written).await.expect("the write is not blocked"), Ok(()));
    assert!(!renaming.is_finished());
    // The client closes its cached handle.
    assert_eq!(server.service.close_open(kept.id).await, Ok(None));
    assert_eq!(notice.key, CacheKey::Lease { client: 1, key: 2 });
    assert_eq!(timeout(LONG, renaming).await.unwrap().unwrap(), Ok(()));
    for id in [one, two] {
        assert_eq!(server.service.close_open(id).await, Ok(None));
    }
    assert_eq!(get(&server, "to").await, b"then");
    assert_eq!(names(&server, "").await, ["to"]);
}

#[tokio::test]
async fn concurrent_renames_over_each_other_do_not_deadlock() {
    let (server, hold) = start(Duration::from_millis(500)).await;
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
    hold.hold_reads(0);
    let renaming = [(a, "b"), (b, "a")].map(|(id, path)| {
        let service = server.service.clone();
        tokio::spawn(async move { service.rename_open(id, path, true).await })
    });
    hold.wait_until_held(2).await;
    write(b"that").await;
    hold.release();
    for renaming in renaming {
        let renamed = timeout(LONG, renaming).await.expect("a blocked rename gives up").unwrap();
        assert!(matches!(renamed, Err(Failure::Denied | Failure::Sharing)), "{renamed:?}");
    }
    for (id, path) in [(a, "a"), (b, "b")] {
        assert_eq!(server.service.close_open(id).await, Ok(None));
        assert_eq!(get(&server, path).await, b"that");
    }
    assert_eq!(names(&server, "").await, ["a", "b"]);
}

#[tokio::test]
async fn open_during_truncation_does_not_restore_old_bytes() {
    use Disposition::{Overwrite, OverwriteIf, Supersede};
    let (server, hold) = start(LONG).await;
    for disposition in [Overwrite, OverwriteIf, Supersede] {
        let path = format!("{disposition:?}");
        make_file(&server, &path, 8).await;
        write(&server, &path, 0, b"deleted!").await;
        let first = open(&server, &path).await;
        server.service.write_at(first, 0, Bytes::from_static(b"D"), false).await.unwrap();
        let (service, tree) = (server.service.clone(), connect(&server).await);
        let asked = create_request(&path, disposition);
        hold.hold_commits();
        let truncating = tokio::spawn(async move { service.create(&tree, asked).await.unwrap() });
        hold.wait_until_held(1).await;
        let late = open(&server, &path).await;
        let service = server.service.clone();
        let waits =
            tokio::spawn(async move { service.write_at(late, 1, Bytes::from_static(b"ew"), false).await });
        tokio::task::yield_now().await;
        hold.release();
        let emptied = timeout(LONG, truncating).await.expect("the operation ends").unwrap();
        assert_ne!(emptied.action, Action::Opened);
        timeout(LONG, waits).await.expect("the write ends").unwrap().unwrap();
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
async fn truncating_open_is_refused_if_a_rest_lease_is_acquired_meanwhile() {
    let (server, hold) = start(LONG).await;
    let tree = connect(&server).await;
    let mut held_rounds = 0;
    for after in 0.. {
        let path = format!("f{after}");
        make_file(&server, &path, 4).await;
        write(&server, &path, 0, b"kept").await;
        let asked = CreateRequest {
            open: request(FileAccess::READ, FileAccess::ALL),
            ..create_request(&path, Disposition::Overwrite)
        };
        hold.hold_reads(after);
        let (service, tree) = (server.service.clone(), tree.clone());
        let truncating = tokio::spawn(async move { service.create(&tree, asked).await });
        if !hold.wait_until_held_or_done(&truncating).await {
            break;
        }
        held_rounds += 1;
        hold.stop_holding();
        let lease = "x-ms-lease-action: acquire\nx-ms-lease-duration: -1";
        server.put(&format!("/docs/{path}?comp=lease"), lease, "").await.expect(201);
        hold.release();
        let emptied = timeout(LONG, truncating).await.expect("the operation ends").unwrap();
        assert_eq!(emptied.unwrap_err(), Failure::Sharing, "leased after {after} reads");
        assert_eq!(get(&server, &path).await, b"kept", "leased after {after} reads");
    }
    assert!(held_rounds >= 3, "the row is read before the open, after it and to be changed");
}

#[tokio::test]
async fn open_during_deletion_of_its_share_or_snapshot_is_closed() {
    let (server, hold) = start(LONG).await;
    for of_snapshot in [false, true] {
        let mut held_rounds = 0;
        for after in 0.. {
            make_file(&server, "f", 4).await;
            let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
            let tree = connect(&server).await;
            let snapshot = server.service.snapshots_of(&tree).await.unwrap()[0];
            let asked = CreateRequest {
                snapshot: of_snapshot.then_some(snapshot),
                open: request(FileAccess::READ, FileAccess::ALL),
                ..create_request("f", Disposition::Open)
            };
            hold.hold_reads(after);
            let (service, space) = (server.service.clone(), tree.space());
            let opening = tokio::spawn(async move { service.create(&tree, asked).await });
            let is_held = hold.wait_until_held_or_done(&opening).await;
            hold.stop_holding();
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
            hold.release();
            if let Ok(opened) = timeout(LONG, opening).await.expect("the operation ends").unwrap() {
                let read = server.service.read_at(opened.opened.id, 0..4).await;
                assert_eq!(read, Err(Failure::Closed), "after {after} reads");
            }
            let open = server.service.opens().handles(space, 0, 10, |_, _| true);
            assert!(open.is_empty(), "after {after} reads: {open:?}");
            if !is_held {
                break;
            }
            held_rounds += 1;
        }
        assert!(held_rounds >= 3, "the share's row is read, and the file's before and after the open");
    }
}

#[tokio::test]
async fn interrupted_share_deletion_still_closes_open_files() {
    let (server, hold) = start(LONG).await;
    let mut held_rounds = 0;
    for after in 0.. {
        make_file(&server, "f", 4).await;
        let (tree, early) = (connect(&server).await, open(&server, "f").await);
        hold.hold_reads(after);
        let (service, space) = (server.service.clone(), tree.space());
        let opening =
            tokio::spawn(async move { service.create(&tree, create_request("f", Disposition::Open)).await });
        let is_held = hold.wait_until_held_or_done(&opening).await;
        hold.stop_holding();
        hold.refuse_to_close();
        let deleted = server.delete("/docs?restype=share", "").await;
        assert!(deleted.status.is_server_error(), "{deleted:?}");
        assert_eq!(server.service.read_at(early, 0..4).await, Err(Failure::Closed), "after {after} reads");
        server.get("/docs?restype=share", "").await.refused(404, "ShareNotFound");
        server.put("/docs?restype=share", "", "").await.expect(201);
        hold.release();
        // The open may succeed: the space stays open until the sweep.
        let _ = timeout(LONG, opening).await.expect("the operation ends").unwrap();
        assert!(server.service.sweep_due());
        assert_eq!(server.service.sweep(Pace::FULL).await.unwrap().spaces, 1);
        let open = server.service.opens().handles(space, 0, 10, |_, _| true);
        assert!(open.is_empty(), "after {after} reads: {open:?}");
        if !is_held {
            break;
        }
        held_rounds += 1;
    }
    assert!(held_rounds >= 3, "the share's row is read, and the file's before and after the open");
}

#[tokio::test]
async fn late_share_deletion_does_not_close_opens_of_the_restored_share() {
    let (server, hold) = start(LONG).await;
    let server = Arc::new(server);
    keep_deleted(&server, 7).await;
    make_file(&server, "f", 4).await;
    let early = open(&server, "f").await;
    // Hold up the answer to closing the space; the share's row is already retired.
    hold.hold_answers(1);
    let rest = server.clone();
    let deleting = tokio::spawn(async move { rest.delete("/docs?restype=share", "").await.expect(202) });
    hold.wait_until_held(1).await;
    hold.stop_holding();
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
    // The restoration may or may not wait for the deletion.
    let at_once = timeout(Duration::from_millis(500), &mut restoring).await;
    hold.release();
    timeout(LONG, deleting).await.expect("the operation ends").unwrap();
    let late = match at_once {
        Ok(late) => late.unwrap(),
        Err(_) => timeout(LONG, restoring).await.expect("the operation ends").unwrap(),
    };
    assert_eq!(server.service.read_at(early, 0..4).await, Err(Failure::Closed));
    assert_eq!(server.service.close_open(late).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"late");
}

#[tokio::test]
async fn canceled_truncating_open_keeps_concurrent_writes() {
    let (server, hold) = start(LONG).await;
    let id = open(&server, "f").await;
    server.service.write_at(id, 0, Bytes::from_static(b"then"), false).await.unwrap();
    hold.hold_commits();
    let service = server.service.clone();
    let flushing = tokio::spawn(async move { service.flush(id).await });
    hold.wait_until_held(1).await;
    server.service.write_at(id, 0, Bytes::from_static(b"when"), false).await.unwrap();
    let handles = || server.service.opens().handles(id.file.space, 0, 10, |_, _| true).len();
    let (service, tree) = (server.service.clone(), connect(&server).await);
    let truncating =
        tokio::spawn(async move { service.create(&tree, create_request("f", Disposition::Overwrite)).await });
    for (count, gives_up) in [(2, false), (1, true)] {
        if gives_up {
            truncating.abort();
        }
        let count_reached = async {
            while handles() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // Give it time to reach the wait for the file lock.
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        timeout(LONG, count_reached).await.expect("the number of handles is reached");
    }
    hold.release();
    assert_eq!(timeout(LONG, flushing).await.unwrap().unwrap(), Ok(()));
    assert_eq!(server.service.flush(id).await, Ok(()));
    assert_eq!(read(&server, id, 0..8).await, b"when");
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"when");
}

#[tokio::test]
async fn smb_changes_wait_for_a_rest_commit_despite_other_opens() {
    let (server, hold) = start(LONG).await;
    let server = Arc::new(server);
    make_file(&server, "f", 4).await;
    let id = open(&server, "f").await;
    hold.hold_commits();
    let rest = server.clone();
    let rest = tokio::spawn(async move { write(&rest, "f", 0, b"rest").await });
    hold.wait_until_held(1).await;
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
        // Each open and close wakes the waiting changes.
        let other = open(&server, "f").await;
        assert_eq!(server.service.close_open(other).await, Ok(None));
    }
    assert!(changes.iter().all(|change| !change.is_finished()));
    hold.release();
    rest.await.unwrap();
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(timeout(LONG, change).await.unwrap().unwrap(), Ok(()), "change {number}");
    }
    assert_eq!(server.service.info(id).await.unwrap().attributes & (HIDDEN | SPARSE), HIDDEN | SPARSE);
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"bes");
}

#[tokio::test]
async fn rest_write_survives_an_smb_commit_acknowledged_after_it() {
    let (server, hold) = start(LONG).await;
    make_file(&server, "f", 4).await;
    write(&server, "f", 0, b"then").await;
    for is_opened_again in [false, true] {
        let id = open(&server, "f").await;
        let hide = PropertyChange { attributes: Some(HIDDEN), ..PropertyChange::default() };
        hold.hold_answers(0);
        let service = server.service.clone();
        let changing = tokio::spawn(async move { service.set_properties(id, hide).await });
        hold.wait_until_held(1).await;
        hold.stop_holding();
        write(&server, "f", 0, b"rest").await;
        let other = if is_opened_again { Some(open(&server, "f").await) } else { None };
        if let Some(other) = other {
            server.service.write_at(other, 1, Bytes::from_static(b"u"), false).await.unwrap();
        }
        hold.release();
        assert_eq!(timeout(LONG, changing).await.expect("the operation ends").unwrap(), Ok(()));
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
async fn access_is_checked_against_the_attributes_at_open_time() {
    let (server, hold) = start(LONG).await;
    let tree = connect(&server).await;
    for was_read_only in [false, true] {
        let mut held_rounds = 0;
        for after in 0.. {
            let path = format!("{was_read_only}{after}");
            make_file(&server, &path, 4).await;
            let set = async |read_only: bool| {
                let attributes = if read_only { "ReadOnly" } else { "None" };
                let headers = format!("x-ms-file-attributes: {attributes}");
                server.put(&format!("/docs/{path}?comp=properties"), &headers, "").await.expect(200);
            };
            set(was_read_only).await;
            let asked = CreateRequest {
                if_read_only: Some(FileAccess::READ),
                ..create_request(&path, Disposition::Open)
            };
            hold.hold_reads(after);
            let (service, space, tree) = (server.service.clone(), tree.space(), tree.clone());
            let opening = tokio::spawn(async move { service.create(&tree, asked).await });
            if !hold.wait_until_held_or_done(&opening).await {
                hold.release();
                break;
            }
            hold.stop_holding();
            // Once the open is in the table, it blocks Set File Properties, so the change is left out.
            if server.service.opens().handles(space, 0, 10, |_, place| place.path == path).is_empty() {
                held_rounds += 1;
                set(!was_read_only).await;
            }
            hold.release();
            let opened = timeout(LONG, opening).await.expect("the operation ends").unwrap().unwrap();
            let is_read_only = opened.info.attributes & READ_ONLY != 0;
            assert_eq!(opened.opened_read_only, is_read_only, "{was_read_only}, after {after} reads");
            server.service.close_open(opened.opened.id).await.unwrap();
        }
        assert!(held_rounds >= 2, "the share's row is read, and the file's before the open");
    }
}

/// Fails a number of commits and counts the others.
struct FailingCommits {
    left: AtomicUsize,
    done: AtomicUsize,
}

#[async_trait]
impl Interposer for &'static FailingCommits {
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
async fn failed_flush_is_retried_without_client_action() {
    static REFUSING: FailingCommits = FailingCommits { left: AtomicUsize::new(0), done: AtomicUsize::new(0) };
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
        // No client requests a flush.
        while done() == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, durable).await.expect("the flush is retried");
    assert_eq!(REFUSING.left.load(Ordering::SeqCst), 0, "one commit has failed");
    assert_eq!(server.service.close_open(id).await, Ok(None));
    assert_eq!(get(&server, "f").await, b"then");
}

/// Deletes the file and creates it again after every read.
struct ReplacingFile {
    server: OnceLock<Weak<Server>>,
    is_off: AtomicBool,
}

#[async_trait]
impl Interposer for &'static ReplacingFile {
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
async fn read_of_a_constantly_replaced_file_gives_up() {
    static REPLACING: ReplacingFile =
        ReplacingFile { server: OnceLock::new(), is_off: AtomicBool::new(false) };
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, &REPLACING);
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let server = Arc::new(lazuli_testing::start(ServiceKind::File, make).await);
    server.put("/docs?restype=share", "", "").await.expect(201);
    make_file(&server, "f", 1).await;
    // While the share has an open file, a request reads the row again after its admission.
    let other = open(&server, "other").await;
    assert!(REPLACING.server.set(Arc::downgrade(&server)).is_ok());
    let read = timeout(LONG, server.get("/docs/f", "")).await.expect("the request gives up");
    read.refused(503, "ServerBusy");
    REPLACING.is_off.store(true, Ordering::SeqCst);
    server.get("/docs/f", "").await.expect(200);
    server.service.close_open(other).await.unwrap();
}
