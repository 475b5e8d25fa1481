//! Granting and breaking caches.

use super::*;

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
    table.with(FILE, |state| state.break_other_caches(second.id.number));
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
    assert!(read.wait_for_clients().await && write.wait_for_clients().await);
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
async fn readers_are_told_when_a_truncation_has_ended() {
    for own in
        [CacheRequest::Lease { client: 1, key: 1, state: Caching::R }, CacheRequest::Oplock(Caching::R)]
    {
        let table = table();
        let empties = table.open(FILE, caching(own).0).await.unwrap();
        let (early, mut heard) = leasing(2, Caching::R);
        assert_eq!(table.open(FILE, early).await.unwrap().caching, Caching::R);
        let truncating = table.begin_truncating_open(empties.id);
        assert_eq!(table.open(FILE, leasing(3, Caching::R).0).await.unwrap().caching, Caching::NONE);
        assert!(heard.try_recv().is_err());
        drop(truncating);
        assert_eq!(heard.try_recv().map(|told| told.to), Ok(Caching::NONE));
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::R);
        // A change without an open breaks all caches.
        table.invalidate_caches(FILE);
        assert_eq!(table.opened(empties.id).unwrap().caching, Caching::NONE);
    }
}

#[tokio::test]
async fn a_waiting_open_waits_until_no_break_follows() {
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
async fn an_attribute_open_breaks_nothing_and_caches_nothing_next_to_a_writer() {
    for (attribute_open, broken) in [
        (AttributeOpen::AttributesOnly, false),
        (AttributeOpen::AttributesAndSecurity, true),
        (AttributeOpen::No, true),
    ] {
        let table = table();
        let (first, mut heard) = caching(CacheRequest::Oplock(Caching::RW));
        let first = table.open(FILE, first).await.unwrap();
        let cache = CacheRequest::Oplock(Caching::RW);
        let look = OpenRequest { attribute_open, cache, ..request(FileAccess::NONE, ALL) };
        let mut second = pin!(table.open(FILE, look));
        assert_eq!(waits(&mut second).await, broken, "{attribute_open:?}");
        assert_eq!(heard.try_recv().is_ok(), broken, "{attribute_open:?}");
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
    for (state, broken) in [(Caching::R, true), (Caching::RW, false), (Caching::RWH, false)] {
        let (request, mut heard) = caching(CacheRequest::Oplock(state));
        let open = table.open(FILE, request).await.unwrap().id;
        table.with(FILE, |state| state.break_other_caches(open.number));
        assert_eq!(heard.try_recv().is_ok(), broken, "{state:?}");
        table.close(open);
    }
    let (request, mut heard) = leasing(1, Caching::R);
    let open = table.open(FILE, request).await.unwrap().id;
    table.with(FILE, |state| state.break_other_caches(open.number));
    assert!(heard.try_recv().is_err());
}
