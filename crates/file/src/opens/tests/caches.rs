//! Granting and breaking caches.

use super::*;

#[tokio::test]
async fn a_cache_that_writes_is_broken_before_another_opens() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RWH);
    assert_eq!(table.open(FILE, first).await.unwrap().caching, Caching::RWH);
    let mut second = pin!(table.open(FILE, leasing(2, Caching::RWH).0));
    assert!(waits(&mut second).await);
    let notice = received.try_recv().unwrap();
    assert_eq!((notice.from, notice.to, notice.acknowledge), (Caching::RWH, Caching::RH, true));
    let too_much = table.acknowledge(FILE, lease(1), Caching::RWH);
    assert_eq!(too_much, Err(AcknowledgeRefusal::KeepsTooMuch));
    assert!(table.is_current(&notice));
    assert!(waits(&mut second).await);
    assert!(table.acknowledge(FILE, lease(1), Caching::RH).is_ok());
    assert!(!table.is_current(&notice));
    assert_eq!(second.await.unwrap().caching, Caching::RH);
    assert_eq!(table.acknowledge(FILE, lease(1), Caching::RH), Err(AcknowledgeRefusal::NotBreaking));
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn only_the_last_step_of_a_break_is_current() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RWH);
    let first = table.open(FILE, first).await.unwrap();
    let mut second = pin!(table.open(FILE, request(ALL, ALL)));
    assert!(waits(&mut second).await);
    let mut admission = table.admission(PATIENCE);
    assert!(admission.admit(FILE, FileUse::Write).is_err());
    let mut steps = vec![received.try_recv().unwrap()];
    while let Some(notice) = steps.last().copied().filter(|notice| notice.acknowledge) {
        assert!(table.is_current(&notice), "{notice:?}");
        assert!(table.acknowledge(FILE, lease(1), notice.to).is_ok());
        assert!(!table.is_current(&notice), "{notice:?}");
        steps.extend(received.try_recv());
    }
    let states: Vec<_> = steps.iter().map(|notice| (notice.from, notice.to, notice.acknowledge)).collect();
    let expected = [
        (Caching::RWH, Caching::RH, true),
        (Caching::RH, Caching::R, true),
        (Caching::R, Caching::NONE, false),
    ];
    assert_eq!(states, expected);
    let current: Vec<_> = steps.iter().map(|notice| table.is_current(notice)).collect();
    assert_eq!(current, [false, false, true], "all of one epoch");
    drop(admission);
    let second = second.await.unwrap();
    assert!(table.is_current(&steps[2]));
    // The client has a new cache now.
    table.close(second.id);
    assert_eq!(table.open(FILE, leasing(1, Caching::R).0).await.unwrap().caching, Caching::R);
    assert!(!table.is_current(&steps[2]));
    table.close(first.id);
}

#[tokio::test]
async fn unacknowledged_break_removes_the_cache() {
    let table = OpenTable::new(Duration::ZERO);
    let (first, _received) = leasing(1, Caching::RWH);
    table.open(FILE, first).await.unwrap();
    assert_eq!(table.open(FILE, leasing(2, Caching::RWH).0).await.unwrap().caching, Caching::RH);
    assert_eq!(table.acknowledge(FILE, lease(1), Caching::RH), Err(AcknowledgeRefusal::NotBreaking));
}

#[tokio::test]
async fn only_expired_breaks_count_as_acknowledged() {
    let table = table();
    let (mut first, _received) = leasing(1, Caching::RH);
    first.mode = ShareMode { access: R, share: R | FileAccess::DELETE };
    table.open(FILE, first).await.unwrap();
    let (mut second, _received) = leasing(2, Caching::RH);
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
async fn opens_with_one_lease_key_share_and_upgrade_the_lease() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::R);
    let first = table.open(FILE, first).await.unwrap();
    let second = table.open(FILE, leasing(1, Caching::RWH).0).await.unwrap();
    assert_eq!((first.caching, second.caching), (Caching::R, Caching::RWH));
    assert_eq!((first.epoch, second.epoch), (1, 2));
    // A request for less does not downgrade the lease.
    assert_eq!(table.open(FILE, leasing(1, Caching::R).0).await.unwrap().caching, Caching::RWH);
    assert!(received.try_recv().is_err());
    // The lease ends with its last open, and waiting opens proceed.
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
        let (mut first, mut received) = leasing(1, Caching::RH);
        first.mode.share = FileAccess::NONE;
        let first = table.open(FILE, first).await.unwrap();
        let mut second = pin!(table.open(FILE, request(R, ALL)));
        assert!(waits(&mut second).await);
        assert_eq!(received.try_recv().unwrap().to, Caching::R);
        if keeps_open {
            table.acknowledge(FILE, lease(1), Caching::R).unwrap();
        } else {
            table.close(first.id);
        }
        assert_eq!(second.await.map(|_| ()), expected);
    }
}

#[tokio::test]
async fn level_two_oplock_breaks_without_acknowledgment() {
    let table = table();
    let (first, mut received) = caching(CacheRequest::Oplock(Caching::RWH));
    let first = table.open(FILE, first).await.unwrap();
    let mut second = pin!(table.open(FILE, request(ALL, ALL)));
    assert!(waits(&mut second).await);
    let notice = received.try_recv().unwrap();
    assert_eq!((notice.to, notice.key), (Caching::R, CacheKey::Oplock(first.id.number)));
    table.acknowledge(FILE, notice.key, Caching::R).unwrap();
    let second = second.await.unwrap();
    table.with(FILE, |state| state.break_other_caches(second.id.number));
    let notice = received.try_recv().unwrap();
    assert_eq!((notice.from, notice.to, notice.acknowledge), (Caching::R, Caching::NONE, false));
}

#[tokio::test]
async fn further_break_is_sent_after_the_pending_one() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RWH);
    table.open(FILE, first).await.unwrap();
    let mut read = table.admission(PATIENCE);
    let mut write = table.admission(PATIENCE);
    assert_eq!(code(read.admit(FILE, FileUse::Read)), Some(ErrorCode::ClientCacheFlushDelay));
    assert_eq!(code(write.admit(FILE, FileUse::Write)), Some(ErrorCode::ClientCacheFlushDelay));
    assert_eq!(received.try_recv().unwrap().to, Caching::RH);
    assert!(received.try_recv().is_err());
    table.acknowledge(FILE, lease(1), Caching::RH).unwrap();
    // The second step continues the same break.
    let notice = received.try_recv().unwrap();
    assert_eq!(
        (notice.from, notice.to, notice.acknowledge, notice.epoch),
        (Caching::RH, Caching::R, true, 2)
    );
    assert!(read.wait_for_clients().await && write.wait_for_clients().await);
    assert!(read.admit(FILE, FileUse::Read).is_ok());
    // RH is broken without waiting for an acknowledgment.
    assert!(write.admit(FILE, FileUse::Write).is_ok());
}

#[tokio::test]
async fn open_gets_no_cache_during_a_conflicting_request() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RWH);
    let mut write = table.admission(PATIENCE);
    assert!(write.admit(FILE, FileUse::Write).is_ok());
    let opened = table.open(FILE, first.clone()).await.unwrap();
    assert_eq!((opened.caching, opened.epoch), (Caching::NONE, 0));
    drop(write);
    assert_eq!(table.open(FILE, first).await.unwrap().caching, Caching::RWH);
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn end_of_a_truncation_breaks_read_caches() {
    for own in
        [CacheRequest::Lease { client: 1, key: 1, state: Caching::R }, CacheRequest::Oplock(Caching::R)]
    {
        let table = table();
        let empties = table.open(FILE, caching(own).0).await.unwrap();
        let (early, mut received) = leasing(2, Caching::R);
        assert_eq!(table.open(FILE, early).await.unwrap().caching, Caching::R);
        let truncating = table.begin_truncating_open(empties.id);
        assert_eq!(table.open(FILE, leasing(3, Caching::R).0).await.unwrap().caching, Caching::NONE);
        assert!(received.try_recv().is_err());
        drop(truncating);
        assert_eq!(received.try_recv().map(|notice| notice.to), Ok(Caching::NONE));
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::R);
        // A change without an open breaks all caches.
        table.invalidate_caches(FILE);
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::NONE);
    }
}

#[tokio::test]
async fn a_waiting_open_waits_until_no_break_follows() {
    let table = table();
    let (first, mut received) = leasing(1, Caching::RWH);
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
        let notice = received.try_recv().unwrap();
        assert_eq!((notice.from, notice.to, notice.acknowledge), (from, to, acknowledge));
        assert!(received.try_recv().is_err());
        if acknowledge {
            assert!(waits(&mut reads).await && waits(&mut replaces).await);
            assert_eq!(table.acknowledge(FILE, notice.key, to).unwrap().0, to);
        }
    }
    assert!(reads.await.is_ok() && replaces.await.is_ok());
}

#[tokio::test]
async fn lease_upgrade_is_all_or_nothing() {
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
async fn attribute_open_breaks_no_cache_and_gets_none_next_to_a_writer() {
    for (attribute_open, broken) in [
        (AttributeOpen::AttributesOnly, false),
        (AttributeOpen::AttributesAndSecurity, true),
        (AttributeOpen::No, true),
    ] {
        let table = table();
        let (first, mut received) = caching(CacheRequest::Oplock(Caching::RW));
        let first = table.open(FILE, first).await.unwrap();
        let cache = CacheRequest::Oplock(Caching::RW);
        let look = OpenRequest { attribute_open, cache, ..request(FileAccess::NONE, ALL) };
        let mut second = pin!(table.open(FILE, look));
        assert_eq!(waits(&mut second).await, broken, "{attribute_open:?}");
        assert_eq!(received.try_recv().is_ok(), broken, "{attribute_open:?}");
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
async fn level_two_oplock_ends_with_the_first_write_of_its_open() {
    let table = table();
    for (state, broken) in [(Caching::R, true), (Caching::RW, false), (Caching::RWH, false)] {
        let (request, mut received) = caching(CacheRequest::Oplock(state));
        let open = table.open(FILE, request).await.unwrap().id;
        table.with(FILE, |state| state.break_other_caches(open.number));
        assert_eq!(received.try_recv().is_ok(), broken, "{state:?}");
        table.close(open);
    }
    let (request, mut received) = leasing(1, Caching::R);
    let open = table.open(FILE, request).await.unwrap().id;
    table.with(FILE, |state| state.break_other_caches(open.number));
    assert!(received.try_recv().is_err());
}
