//! The table, driven as SMB and REST drive it. Nothing sleeps: what waits is polled.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use lazuli_concurrency::{ByteRange, Caching, FileAccess, FileUse, LockKind, ShareMode, Timestamp};
use lazuli_protocol::ErrorCode;
use lazuli_store::SpaceId;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::FileService;
use crate::tree::Spot;

const FILE: FileKey = FileKey::now(SpaceId(1), NodeId(7));
const R: FileAccess = FileAccess::READ;
const ALL: FileAccess = FileAccess::ALL;

fn table() -> Arc<OpenTable> {
    OpenTable::new(PATIENCE)
}

fn request(access: FileAccess, share: FileAccess) -> OpenRequest {
    OpenRequest {
        mode: ShareMode { access, share },
        looks: if access == FileAccess::NONE { Looks::PastAll } else { Looks::No },
        overwrites: false,
        delete_on_close: false,
        cache: CacheRequest::None,
        client: Client { session: 1, ip: [127, 0, 0, 1].into(), name: "client".into() },
        place: Place { parent: NodeId::ROOT, path: "d/f".into() },
        at: Timestamp::from_unix_seconds(1),
        breaks: None,
        waits: None,
    }
}

/// An open for everything that shares everything and caches under a lease key of its own.
fn leasing(key: u128, state: Caching) -> (OpenRequest, UnboundedReceiver<Break>) {
    caching(CacheRequest::Lease { client: 1, key, state })
}

fn caching(cache: CacheRequest) -> (OpenRequest, UnboundedReceiver<Break>) {
    let (breaks, heard) = unbounded_channel();
    (OpenRequest { cache, breaks: Some(breaks), ..request(ALL, ALL) }, heard)
}

fn lease(key: u128) -> CacheKey {
    CacheKey::Lease { client: 1, key }
}

/// Whether something is not done yet.
async fn waits<F: Future>(future: &mut Pin<&mut F>) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

fn code(result: Result<(), lazuli_protocol::Refusal>) -> Option<ErrorCode> {
    result.err().map(|refusal| refusal.code())
}

#[tokio::test]
async fn an_open_that_does_not_fit_another_is_refused_until_that_is_closed() {
    let table = table();
    let first = table.open(FILE, request(R, R)).await.unwrap();
    let writer = request(FileAccess::WRITE, ALL);
    assert_eq!(table.open(FILE, writer.clone()).await, Err(OpenRefusal::SharingViolation));
    assert!(table.close(first.id).is_none());
    assert!(table.open(FILE, writer).await.is_ok());
}

#[tokio::test]
async fn a_cache_that_writes_is_broken_before_another_opens() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RWH);
    assert_eq!(table.open(FILE, first).await.unwrap().caching, Caching::RWH);
    let mut second = pin!(table.open(FILE, leasing(2, Caching::RWH).0));
    assert!(waits(&mut second).await);
    let told = heard.try_recv().unwrap();
    assert_eq!((told.from, told.to, told.acknowledge), (Caching::RWH, Caching::RH, true));
    let too_much = table.acknowledge(FILE, lease(1), Caching::RWH);
    assert_eq!(too_much, Err(AcknowledgeRefusal::KeepsTooMuch));
    assert!(table.is_current(&told));
    assert!(waits(&mut second).await);
    assert!(table.acknowledge(FILE, lease(1), Caching::RH).is_ok());
    assert!(!table.is_current(&told));
    assert_eq!(second.await.unwrap().caching, Caching::RH);
    assert_eq!(table.acknowledge(FILE, lease(1), Caching::RH), Err(AcknowledgeRefusal::NotBreaking));
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn of_a_break_that_goes_on_only_the_last_step_is_current_until_the_cache_is_another() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RWH);
    let first = table.open(FILE, first).await.unwrap();
    let mut second = pin!(table.open(FILE, request(ALL, ALL)));
    assert!(waits(&mut second).await);
    let mut admission = table.admission(PATIENCE);
    assert!(admission.admit(FILE, FileUse::Write).is_err());
    let mut steps = vec![heard.try_recv().unwrap()];
    while let Some(told) = steps.last().copied().filter(|told| told.acknowledge) {
        assert!(table.is_current(&told), "{told:?}");
        assert!(table.acknowledge(FILE, lease(1), told.to).is_ok());
        assert!(!table.is_current(&told), "{told:?}");
        steps.extend(heard.try_recv());
    }
    let states: Vec<_> = steps.iter().map(|told| (told.from, told.to, told.acknowledge)).collect();
    let expected = [
        (Caching::RWH, Caching::RH, true),
        (Caching::RH, Caching::R, true),
        (Caching::R, Caching::NONE, false),
    ];
    assert_eq!(states, expected);
    let current: Vec<_> = steps.iter().map(|told| table.is_current(told)).collect();
    assert_eq!(current, [false, false, true], "all of one epoch");
    drop(admission);
    let second = second.await.unwrap();
    assert!(table.is_current(&steps[2]));
    // It has another one by now.
    table.close(second.id);
    assert_eq!(table.open(FILE, leasing(1, Caching::R).0).await.unwrap().caching, Caching::R);
    assert!(!table.is_current(&steps[2]));
    table.close(first.id);
}

#[tokio::test]
async fn a_client_that_does_not_answer_loses_its_cache() {
    let table = OpenTable::new(Duration::ZERO);
    let (first, _heard) = leasing(1, Caching::RWH);
    table.open(FILE, first).await.unwrap();
    assert_eq!(table.open(FILE, leasing(2, Caching::RWH).0).await.unwrap().caching, Caching::RH);
    assert_eq!(table.acknowledge(FILE, lease(1), Caching::RH), Err(AcknowledgeRefusal::NotBreaking));
}

#[tokio::test]
async fn only_breaks_that_had_their_time_are_taken_as_answered() {
    let table = table();
    let (mut first, _heard) = leasing(1, Caching::RH);
    first.mode = ShareMode { access: R, share: R | FileAccess::DELETE };
    table.open(FILE, first).await.unwrap();
    let (mut second, _heard) = leasing(2, Caching::RH);
    second.mode.access = R;
    table.open(FILE, second).await.unwrap();
    let mut admission = table.admission(PATIENCE);
    assert!(admission.admit(FILE, FileUse::Write).is_err());
    let begun = table.with(FILE, |state| state.breaks());
    assert!(admission.admit(FILE, FileUse::Delete).is_err());
    table.with(FILE, |state| state.revoke(begun));
    assert_eq!(table.acknowledge(FILE, lease(1), Caching::R), Err(AcknowledgeRefusal::NotBreaking));
    assert!(table.acknowledge(FILE, lease(2), Caching::R).is_ok());
}

#[tokio::test]
async fn opens_under_one_lease_key_share_it_and_it_grows() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::R);
    let first = table.open(FILE, first).await.unwrap();
    let second = table.open(FILE, leasing(1, Caching::RWH).0).await.unwrap();
    assert_eq!((first.caching, second.caching), (Caching::R, Caching::RWH));
    assert_eq!((first.epoch, second.epoch), (1, 2));
    // It does not shrink because another asks for less.
    assert_eq!(table.open(FILE, leasing(1, Caching::R).0).await.unwrap().caching, Caching::RWH);
    assert!(heard.try_recv().is_err());
    // It is gone with the last of its opens, and what waits for it goes ahead.
    let mut other = pin!(table.open(FILE, request(ALL, ALL)));
    assert!(waits(&mut other).await);
    for handle in table.handles(FILE.space, 0, 9, |_, _| true) {
        table.close(handle.id);
    }
    assert!(other.await.is_ok());
}

#[tokio::test]
async fn on_a_conflict_a_cached_handle_is_broken_first() {
    for (keeps_open, expected) in [(true, Err(OpenRefusal::SharingViolation)), (false, Ok(()))] {
        let table = table();
        let (mut first, mut heard) = leasing(1, Caching::RH);
        first.mode.share = FileAccess::NONE;
        let first = table.open(FILE, first).await.unwrap();
        let mut second = pin!(table.open(FILE, request(R, ALL)));
        assert!(waits(&mut second).await);
        assert_eq!(heard.try_recv().unwrap().to, Caching::R);
        if keeps_open {
            table.acknowledge(FILE, lease(1), Caching::R).unwrap();
        } else {
            table.close(first.id);
        }
        assert_eq!(second.await.map(|_| ()), expected);
    }
}

#[tokio::test]
async fn a_batch_oplock_falls_to_level_two_and_level_two_without_an_answer() {
    let table = table();
    let (first, mut heard) = caching(CacheRequest::Oplock(Caching::RWH));
    let first = table.open(FILE, first).await.unwrap();
    let mut second = pin!(table.open(FILE, request(ALL, ALL)));
    assert!(waits(&mut second).await);
    let told = heard.try_recv().unwrap();
    assert_eq!((told.to, told.key), (Caching::R, CacheKey::Oplock(first.id.number)));
    table.acknowledge(FILE, told.key, Caching::R).unwrap();
    let second = second.await.unwrap();
    table.check_write(second.id, ByteRange { offset: 0, length: 1 }).unwrap();
    let told = heard.try_recv().unwrap();
    assert_eq!((told.from, told.to, told.acknowledge), (Caching::R, Caching::NONE, false));
}

#[tokio::test]
async fn what_more_is_needed_while_a_break_is_under_way_is_asked_for_after_it() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RWH);
    table.open(FILE, first).await.unwrap();
    let mut read = table.admission(PATIENCE);
    let mut write = table.admission(PATIENCE);
    assert_eq!(code(read.admit(FILE, FileUse::Read)), Some(ErrorCode::ClientCacheFlushDelay));
    assert_eq!(code(write.admit(FILE, FileUse::Write)), Some(ErrorCode::ClientCacheFlushDelay));
    assert_eq!(heard.try_recv().unwrap().to, Caching::RH);
    assert!(heard.try_recv().is_err());
    table.acknowledge(FILE, lease(1), Caching::RH).unwrap();
    // One step after the other, as one break.
    let told = heard.try_recv().unwrap();
    assert_eq!((told.from, told.to, told.acknowledge, told.epoch), (Caching::RH, Caching::R, true, 2));
    assert!(read.again().await && write.again().await);
    assert!(read.admit(FILE, FileUse::Read).is_ok());
    // RH is given up without waiting for it.
    assert!(write.admit(FILE, FileUse::Write).is_ok());
}

#[tokio::test]
async fn nothing_is_cached_that_a_request_is_about_to_change() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RWH);
    let mut write = table.admission(PATIENCE);
    assert!(write.admit(FILE, FileUse::Write).is_ok());
    let opened = table.open(FILE, first.clone()).await.unwrap();
    assert_eq!((opened.caching, opened.epoch), (Caching::NONE, 0));
    drop(write);
    assert_eq!(table.open(FILE, first).await.unwrap().caching, Caching::RWH);
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn who_has_read_what_another_open_empties_is_told_when_it_has() {
    for own in
        [CacheRequest::Lease { client: 1, key: 1, state: Caching::R }, CacheRequest::Oplock(Caching::R)]
    {
        let table = table();
        let empties = table.open(FILE, caching(own).0).await.unwrap();
        let (early, mut heard) = leasing(2, Caching::R);
        assert_eq!(table.open(FILE, early).await.unwrap().caching, Caching::R);
        let emptying = table.emptying(empties.id);
        assert_eq!(table.open(FILE, leasing(3, Caching::R).0).await.unwrap().caching, Caching::NONE);
        assert!(heard.try_recv().is_err());
        drop(emptying);
        assert_eq!(heard.try_recv().map(|told| told.to), Ok(Caching::NONE));
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::R);
        // What changes by itself is everybody's to read again.
        table.outdate(FILE);
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::NONE);
    }
}

#[tokio::test]
async fn who_has_waited_waits_until_no_break_follows() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RWH);
    table.open(FILE, first).await.unwrap();
    let mut reads = pin!(table.open(FILE, request(R, ALL)));
    assert!(waits(&mut reads).await);
    let mut replaces = pin!(table.open(FILE, OpenRequest { overwrites: true, ..request(ALL, ALL) }));
    assert!(waits(&mut replaces).await);
    for (from, to, acknowledge) in [
        (Caching::RWH, Caching::RH, true),
        (Caching::RH, Caching::R, true),
        (Caching::R, Caching::NONE, false),
    ] {
        let told = heard.try_recv().unwrap();
        assert_eq!((told.from, told.to, told.acknowledge), (from, to, acknowledge));
        assert!(heard.try_recv().is_err());
        if acknowledge {
            assert!(waits(&mut reads).await && waits(&mut replaces).await);
            assert_eq!(table.acknowledge(FILE, told.key, to).unwrap().0, to);
        }
    }
    assert!(reads.await.is_ok() && replaces.await.is_ok());
}

#[tokio::test]
async fn a_lease_grows_only_to_all_that_is_asked_for() {
    for (asked, granted) in
        [(Caching::RH, Caching::RH), (Caching::RW, Caching::R), (Caching::RWH, Caching::R)]
    {
        let table = table();
        table.open(FILE, leasing(1, Caching::R).0).await.unwrap();
        table.open(FILE, leasing(2, Caching::RH).0).await.unwrap();
        let again = table.open(FILE, leasing(1, asked).0).await.unwrap();
        assert_eq!(again.caching, granted, "{asked:?}");
    }
}

#[tokio::test]
async fn who_only_looks_breaks_nothing_and_caches_nothing_beside_who_writes() {
    for (looks, broken) in [(Looks::PastAll, false), (Looks::PastLeases, true), (Looks::No, true)] {
        let table = table();
        let (first, mut heard) = caching(CacheRequest::Oplock(Caching::RW));
        let first = table.open(FILE, first).await.unwrap();
        let cache = CacheRequest::Oplock(Caching::RW);
        let look = OpenRequest { looks, cache, ..request(FileAccess::NONE, ALL) };
        let mut second = pin!(table.open(FILE, look));
        assert_eq!(waits(&mut second).await, broken, "{looks:?}");
        assert_eq!(heard.try_recv().is_ok(), broken, "{looks:?}");
        if broken {
            table.acknowledge(FILE, CacheKey::Oplock(first.id.number), Caching::R).unwrap();
            assert_eq!(second.await.unwrap().caching, Caching::R);
        } else {
            let opened = table.handles(FILE.space, 0, 9, |_, _| true);
            assert_eq!(table.opened(opened[1].id).unwrap().caching, Caching::NONE);
        }
    }
}

#[tokio::test]
async fn an_oplock_of_level_two_does_not_outlive_the_writes_of_its_own_open() {
    let table = table();
    let range = ByteRange { offset: 0, length: 1 };
    for (state, broken) in [(Caching::R, true), (Caching::RW, false), (Caching::RWH, false)] {
        let (request, mut heard) = caching(CacheRequest::Oplock(state));
        let open = table.open(FILE, request).await.unwrap().id;
        table.check_write(open, range).unwrap();
        assert_eq!(heard.try_recv().is_ok(), broken, "{state:?}");
        table.close(open);
    }
    let (request, mut heard) = leasing(1, Caching::R);
    let open = table.open(FILE, request).await.unwrap().id;
    table.check_write(open, range).unwrap();
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn a_pending_deletion_can_be_taken_back_and_else_happens_at_the_last_close() {
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
async fn handles_that_others_only_cache_are_given_up_before_a_deletion() {
    let table = table();
    let (first, mut heard) = leasing(1, Caching::RH);
    table.open(FILE, first).await.unwrap();
    let second = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let mut deletes = pin!(table.set_delete_pending(second, true));
    assert!(waits(&mut deletes).await && !table.is_delete_pending(FILE));
    assert_eq!(heard.try_recv().unwrap().to, Caching::R);
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
    // An open that came to nothing deletes nothing.
    let third = table.open(FILE, doomed).await.unwrap().id;
    assert!(table.abandon(third).is_none());
}

#[tokio::test]
async fn a_lock_waits_for_another_and_goes_with_its_open() {
    let table = table();
    let first = table.open(FILE, request(ALL, ALL)).await.unwrap().id;
    let (second, mut heard) = leasing(2, Caching::R);
    let second = table.open(FILE, second).await.unwrap().id;
    let range = ByteRange { offset: 10, length: 10 };
    table.lock(first, range, LockKind::Exclusive).await.unwrap();
    assert_eq!(heard.try_recv().unwrap().to, Caching::NONE);
    assert!(table.lock(second, range, LockKind::Shared).await.is_err());
    assert!(table.check_read(second, range).is_err() && table.check_read(first, range).is_ok());
    assert!(table.check_write(second, range).is_err() && table.check_write(first, range).is_ok());
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
    assert_eq!(table.lock_when_free(first, range, LockKind::Shared).await, Err(Closed));
}

#[tokio::test]
async fn an_open_waits_for_a_request_that_it_conflicts_with_and_others_do_not() {
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
    let mut looks = pin!(table.open(FILE, request(FileAccess::NONE, ALL)));
    assert!(waits(&mut looks).await);
    drop(delete);
    assert!(looks.await.is_ok());
}

#[tokio::test]
async fn nothing_is_opened_below_a_directory_that_is_being_moved() {
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
    let elsewhere = Place { parent: NodeId::ROOT, path: "da".into() };
    let file = FileKey { node: NodeId(8), ..FILE };
    assert!(table.open(file, OpenRequest { place: elsewhere, ..request(R, ALL) }).await.is_ok());
    drop(moves);
    assert!(below.await.is_ok());
}

#[tokio::test]
async fn a_directory_is_moved_once_those_who_only_cache_handles_below_it_have_closed_them() {
    let table = table();
    let files = [7, 8].map(|node| FileKey { node: NodeId(node), ..FILE });
    let mut cached = vec![];
    for (key, file) in (1..).zip(files) {
        let (request, heard) = leasing(key, Caching::RH);
        cached.push((table.open(file, request).await.unwrap().id, heard));
    }
    // What a snapshot shows is not moved.
    let shown = FileKey { node: NodeId(9), epoch: Some(1), ..FILE };
    let shown = table.open(shown, request(R, ALL)).await.unwrap().id;
    let in_use = FileKey { node: NodeId(10), ..FILE };
    let in_use = table.open(in_use, request(R, ALL)).await.unwrap().id;
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::SharingViolation));
    assert!(cached.iter_mut().all(|(_, heard)| heard.try_recv().is_err()), "it would not help");
    table.close(in_use);
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::ClientCacheFlushDelay));
    for (id, heard) in &mut cached {
        let told = heard.try_recv().unwrap();
        assert_eq!((told.file, told.to), (id.file, Caching::R));
    }
    let mut answered = 0;
    let moved = async {
        while moves.admit_move(FILE.space, "d", None).is_err() {
            assert!(moves.again().await);
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
    let (request, mut heard) = leasing(1, Caching::RH);
    table.open(FILE, request).await.unwrap();
    let mut moves = table.admission(PATIENCE);
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::ClientCacheFlushDelay));
    let told = heard.try_recv().unwrap();
    table.acknowledge(FILE, told.key, told.to).unwrap();
    assert_eq!(code(moves.admit_move(FILE.space, "d", None)), Some(ErrorCode::SharingViolation));
}

/// A server with a share `docs` and a file `f` in it, open with a lease that writes; and where the file is.
async fn served() -> (lazuli_testing::TestServer<FileService>, Opened, UnboundedReceiver<Break>, Spot) {
    let make = |parts: lazuli_testing::Parts| FileService::new(parts.store, parts.extents, parts.accounts);
    let server = lazuli_testing::start(lazuli_protocol::ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    server.put("/docs/f", "x-ms-type: file\nx-ms-content-length: 1\nx-ms-meta-is: old", "").await.expect(201);
    let account = server.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
    let (request, heard) = leasing(1, Caching::RWH);
    let opened = server.service.open(&account, "docs", "f", request).await.unwrap();
    let name = crate::names::path("f", true).unwrap().pop().unwrap();
    let spot =
        Spot { space: opened.id.file.space, parent: NodeId::ROOT, name, patience: PATIENCE, quota: u64::MAX };
    (server, opened, heard, spot)
}

#[tokio::test]
async fn a_request_reads_what_a_client_writes_back_before_it_answers() {
    let (server, opened, mut heard, spot) = served().await;
    let service = &server.service;
    let flush = async {
        let told = heard.recv().await.unwrap();
        let written = service.change_row(&spot, |_, old| {
            let mut node = old.unwrap();
            node.metadata = lazuli_protocol::Metadata::default();
            Ok(Some(node))
        });
        written.await.unwrap();
        service.opens().acknowledge(opened.id.file, told.key, told.to).unwrap();
    };
    let (reply, ()) = tokio::join!(server.get("/docs/f?comp=metadata", ""), flush);
    assert_eq!(reply.expect(200).header("x-ms-meta-is"), None);
}

#[tokio::test]
async fn what_a_dropped_request_was_granted_is_held_until_its_commit_is_behind_it() {
    let (server, opened, _heard, spot) = served().await;
    let service = &server.service;
    service.close(opened.id).await.unwrap();
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
            service.close(id).await.unwrap();
        } else {
            let open = service.opens().handles(file.space, 0, 1, |_, _| true);
            service.close(open[0].id).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_leave_nothing_behind_and_never_write_beside_who_denies_it() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let table = OpenTable::new(Duration::from_secs(20));
    // How many have it open so that nobody else may write, and how many write over REST.
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
                            Err(_) if admission.again().await => {}
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
                let (mut request, mut heard) = leasing(task * 1000 + round, Caching::RWH);
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
                while let Ok(told) = heard.try_recv() {
                    if told.acknowledge {
                        table.acknowledge(FILE, told.key, told.to).unwrap();
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

#[tokio::test]
async fn a_file_is_where_one_who_has_it_open_has_found_or_moved_it() {
    let table = table();
    let at = |path: &str| Place { parent: NodeId::ROOT, path: path.into() };
    let open = async |path: &str| {
        table.open(FILE, OpenRequest { place: at(path), ..request(R, ALL) }).await.unwrap().id
    };
    let found = |path: &str| table.with(FILE, |state| state.found(&at(path)));
    let is_at = |id, path: &str| assert_eq!(table.place(id).map(|place| place.path).as_deref(), Some(path));
    // One who has waited long comes in before the file is looked for where he thinks that it is.
    let late = open("old").await;
    let one = open("new").await;
    found("new");
    assert!(table.abandon(late).is_none());
    is_at(one, "new");
    let late = open("old").await;
    is_at(one, "new");
    table.moved(FILE, at("newer"), "newer");
    // Found before that.
    found("new");
    is_at(late, "newer");
    for id in [one, late] {
        assert!(table.close(id).is_none());
    }
    is_at(open("anew").await, "anew");
}
