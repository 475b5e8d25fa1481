//! The table, driven as SMB and REST drive it. Nothing sleeps: what waits is polled.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use lazuli_concurrency::{ByteRange, Caching, FileAccess, FileUse, LockKind, ShareMode, Timestamp};
use lazuli_protocol::ErrorCode;
use lazuli_store::SpaceId;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::tree::record::NodeId;

mod caches;
mod requests;

const FILE: FileKey = FileKey::now(SpaceId(1), NodeId(7));
const R: FileAccess = FileAccess::READ;
const ALL: FileAccess = FileAccess::ALL;

fn table() -> Arc<OpenTable> {
    OpenTable::new(PATIENCE)
}

fn request(access: FileAccess, share: FileAccess) -> OpenRequest {
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
        client: Client { session: 1, ip: [127, 0, 0, 1].into(), name: "client".into() },
        place: OpenLocation { parent: NodeId::ROOT, path: "d/f".into() },
        at: Timestamp::from_unix_seconds(1),
        breaks: None,
        waits: None,
    }
}

/// Returns a request for all access that shares all access, with a lease of the given key.
fn leasing(key: u128, state: Caching) -> (OpenRequest, UnboundedReceiver<Break>) {
    caching(CacheRequest::Lease { client: 1, key, state })
}

fn caching(cache: CacheRequest) -> (OpenRequest, UnboundedReceiver<Break>) {
    let (breaks, received) = unbounded_channel();
    (OpenRequest { cache, breaks: Some(breaks), ..request(ALL, ALL) }, received)
}

fn lease(key: u128) -> CacheKey {
    CacheKey::Lease { client: 1, key }
}

/// Polls a future once and returns whether it is pending.
async fn waits<F: Future>(future: &mut Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn code(result: Result<(), lazuli_protocol::Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code())
}

#[tokio::test]
async fn conflicting_open_is_refused_until_the_other_closes() {
    let table = table();
    let first = table.open(FILE, request(R, R)).await.unwrap();
    let writer = request(FileAccess::WRITE, ALL);
    assert_eq!(table.open(FILE, writer.clone()).await, Err(OpenRefusal::SharingViolation));
    assert!(table.close(first.id).is_none());
    assert!(table.open(FILE, writer).await.is_ok());
}

#[tokio::test]
async fn pending_deletion_is_cleared_or_takes_effect_at_the_last_close() {
    let table = table();
    let first = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let second = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    table.set_delete_pending(first, true).await.unwrap();
    assert!(table.is_delete_pending(FILE) && table.delete_pending(FILE.space).contains(&FILE.node));
    assert_eq!(table.open(FILE, request(R, ALL)).await, Err(OpenRefusal::DeletePending));
    table.set_delete_pending(second, false).await.unwrap();
    assert!(!table.is_delete_pending(FILE));
    let third = table.open(FILE, request(R, ALL)).await.unwrap().id;
    table.set_delete_pending(first, true).await.unwrap();
    assert!(table.close(first).is_none() && table.close(third).is_none());
    let removal = table.close(second).unwrap();
    assert_eq!((removal.file, removal.place.path.as_str()), (FILE, "d/f"));
    assert_eq!(table.open(FILE, request(R, ALL)).await, Err(OpenRefusal::DeletePending));
    drop(removal);
    assert!(!table.is_delete_pending(FILE));
    assert_eq!(table.set_delete_pending(second, true).await, Err(Closed));
}

#[tokio::test]
async fn deletion_breaks_cached_handles_first() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RH);
    table.open(FILE, first).await.unwrap();
    let second = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let mut deletes = pin!(table.set_delete_pending(second, true));
    assert!(waits(&mut deletes).await && !table.is_delete_pending(FILE));
    assert_eq!(received.try_recv().unwrap().to, Caching::R);
    table.acknowledge(FILE, lease(1), Caching::R).unwrap();
    assert!(deletes.await.is_ok() && table.is_delete_pending(FILE));
}

#[tokio::test]
async fn delete_on_close_marks_the_file_when_that_open_closes() {
    let table = table();
    let doomed = OpenRequest { delete_on_close: true, ..request(ALL, ALL) };
    let first = table.open(FILE, doomed.clone()).await.unwrap().id;
    let second = table.open(FILE, request(R, ALL)).await.unwrap().id;
    assert!(!table.is_delete_pending(FILE));
    assert!(table.close(first).is_none());
    assert!(table.is_delete_pending(FILE));
    assert!(table.close(second).is_some());
    // An abandoned open deletes nothing.
    let third = table.open(FILE, doomed).await.unwrap().id;
    assert!(table.abandon(third).is_none());
}

#[tokio::test]
async fn range_lock_waits_and_is_released_by_close() {
    let table = table();
    let first = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let (second, mut received) = leasing(2, Caching::R);
    let second = table.open(FILE, second).await.unwrap().id;
    let range = ByteRange { offset: 10, length: 10 };
    table.lock(first, range, LockKind::Exclusive).await.unwrap();
    assert_eq!(received.try_recv().unwrap().to, Caching::NONE);
    assert!(table.lock(second, range, LockKind::Shared).await.is_err());
    for (open, is_admitted) in [(first, true), (second, false)] {
        table.with(FILE, |state| {
            assert_eq!(state.locks().admits_read(Some(open.number), range), is_admitted);
            assert_eq!(state.locks().admits_write(Some(open.number), range), is_admitted);
        });
    }
    let mut waiting = pin!(table.lock_when_free(second, range, LockKind::Shared));
    assert!(waits(&mut waiting).await);
    table.unlock(first, range).unwrap();
    assert!(waiting.await.is_ok());
    assert!(table.lock(first, range, LockKind::Exclusive).await.is_err());
    let mut waiting = pin!(table.lock_when_free(first, range, LockKind::Exclusive));
    assert!(waits(&mut waiting).await);
    table.close(second);
    assert!(waiting.await.is_ok());
    table.close(first);
    assert_eq!(table.lock_when_free(first, range, LockKind::Shared).await, Err(Closed.into()));
}

#[tokio::test]
async fn locks_of_all_files_together_are_bounded() {
    let table = OpenTable::with_max_locks(PATIENCE, 3);
    let other = FileKey::now(SpaceId(1), NodeId(8));
    let [first, second] = [
        table.open(FILE, request(ALL, ALL)).await.unwrap().id,
        table.open(other, request(ALL, ALL)).await.unwrap().id,
    ];
    let lock = async |id, offset| table.lock(id, ByteRange { offset, length: 1 }, LockKind::Exclusive).await;
    for (id, offset) in [(first, 1), (first, 2), (second, 1)] {
        lock(id, offset).await.unwrap();
    }
    assert_eq!((lock(second, 2).await, table.locks()), (Err(RangeRefusal::TooMany), 3));
    let range = ByteRange { offset: 2, length: 1 };
    let waited = table.lock_when_free(second, range, LockKind::Exclusive).await;
    assert_eq!(waited, Err(RangeRefusal::TooMany), "a release in another file does not wake the waiter");
    table.unlock(first, range).unwrap();
    lock(second, 2).await.unwrap();
    table.undo_lock(second, range, LockKind::Exclusive).unwrap();
    assert_eq!(table.locks(), 2);
    table.close(first);
    assert_eq!(table.locks(), 1, "locks are released with their open");
    table.close_matching(SpaceId(1), |_| true);
    assert_eq!(table.locks(), 0, "locks are released by a forced close");
}

#[tokio::test]
async fn open_location_follows_finds_and_renames() {
    let table = table();
    let at = |path: &str| OpenLocation { parent: NodeId::ROOT, path: path.into() };
    let open = async |path: &str| {
        table.open(FILE, OpenRequest { place: at(path), ..request(R, ALL) }).await.unwrap().id
    };
    let found = |path: &str| table.with(FILE, |state| state.confirm_place(&at(path)));
    let is_at = |id, path: &str| assert_eq!(table.place(id).map(|place| place.path).as_deref(), Some(path));
    // An open that has waited long may still have an old path.
    let late = open("old").await;
    let one = open("new").await;
    found("new");
    assert!(table.abandon(late).is_none());
    is_at(one, "new");
    let late = open("old").await;
    is_at(one, "new");
    table.moved(FILE, at("newer"), "newer");
    // A lookup from before the rename.
    found("new");
    is_at(late, "newer");
    for id in [one, late] {
        assert!(table.close(id).is_none());
    }
    is_at(open("anew").await, "anew");
}
