//! The quota of a share, and its statistics.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_file::FileService;
use lazuli_file::handles::Failure;
use lazuli_protocol::ServiceKind;
use lazuli_store::interposed::{Interposed, Interposer, Queueing};
use lazuli_store::{Commit, CommitError, Mutation, Partition, Row, SpaceId, Store};
use lazuli_testing::{ACCOUNT, AllRows};

use crate::handles;
use crate::support::{Server, make_directory, make_file, start, write};

const GIB: u64 = 1 << 30;

async fn usage(server: &Server) -> u64 {
    let stats = server.get("/docs?restype=share&comp=stats", "").await.expect(200);
    let text = stats.text();
    assert!(stats.header("etag").is_some() && text.contains("<ShareStats>"), "{text}");
    text.split("<ShareUsageBytes>").nth(1).unwrap().split('<').next().unwrap().parse().unwrap()
}

async fn set_quota(server: &Server, gib: u64) {
    let headers = format!("x-ms-share-quota: {gib}");
    server.put("/docs?restype=share&comp=properties", &headers, "").await.expect(200);
}

fn is_directory(partition: &Partition) -> bool {
    partition.space != SpaceId::ROOT && partition.key.starts_with(b"d")
}

fn file(length: u64) -> String {
    format!("x-ms-type: file\nx-ms-content-length: {length}")
}

#[tokio::test]
async fn usage_is_the_sum_of_the_lengths_of_all_files_also_after_a_restart() {
    let server = start().await;
    assert_eq!(usage(&server).await, 0);
    make_directory(&server, "d").await;
    make_file(&server, "f", 1000).await;
    make_file(&server, "d/g", 500).await;
    assert_eq!(usage(&server).await, 1500);
    write(&server, "f", 0, b"no change of length").await;
    make_file(&server, "f", 100).await;
    server.put("/docs/d/g?comp=properties", "x-ms-content-length: 700", "").await.expect(200);
    assert_eq!(usage(&server).await, 800);
    let server = server.restart().await;
    assert_eq!(usage(&server).await, 800);
    // A moved file counts once, and a replaced file no longer counts.
    make_file(&server, "h", 50).await;
    let rename = |from: &'static str, to: &'static str| {
        let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
        let headers = format!("x-ms-file-rename-source: {source}\nx-ms-file-rename-replace-if-exists: true");
        let server = &server;
        async move { server.put(&format!("/docs/{to}?comp=rename"), &headers, "").await.expect(200) }
    };
    rename("h", "d/g").await;
    assert_eq!(usage(&server).await, 150);
    rename("f", "e").await;
    make_file(&server, "f", 650).await;
    rename("e", "f").await;
    assert_eq!(usage(&server).await, 150);
    let server = server.restart().await;
    assert_eq!(usage(&server).await, 150);
    server.delete("/docs/f", "").await.expect(202);
    assert_eq!(usage(&server).await, 50);
    let old = server.get("/docs?restype=share&comp=stats", "x-ms-version: 2018-03-28").await.expect(200);
    assert!(old.text().contains("<ShareUsage>1</ShareUsage>"), "{}", old.text());
}

#[tokio::test]
async fn a_share_does_not_grow_beyond_its_quota() {
    const FULL: &str = "ShareSizeLimitReached";
    let server = start().await;
    set_quota(&server, 2).await;
    make_file(&server, "f", 2 * GIB).await;
    server.put("/docs/g", &file(1), "").await.refused(403, FULL);
    let grow = format!("x-ms-content-length: {}", 2 * GIB + 1);
    server.put("/docs/f?comp=properties", &grow, "").await.refused(403, FULL);
    assert_eq!(usage(&server).await, 2 * GIB);
    // Requests that do not grow a file succeed, and freed bytes can be used again.
    make_file(&server, "empty", 0).await;
    write(&server, "f", 0, b"bytes").await;
    make_file(&server, "f", GIB).await;
    make_file(&server, "g", GIB).await;
    server.delete("/docs/g", "").await.expect(202);
    make_file(&server, "h", GIB).await;
    server.put("/docs/g", &file(1), "").await.refused(403, FULL);
    // The quota may be set below the usage. Files stay.
    set_quota(&server, 1).await;
    server.get("/docs/h", "x-ms-range: bytes=0-1").await.expect(206);
    make_file(&server, "f", GIB / 2).await;
    server.put("/docs/f", &file(GIB / 2 + 1), "").await.refused(403, FULL);
    set_quota(&server, 3).await;
    make_file(&server, "f", GIB).await;
}

#[tokio::test]
async fn concurrent_requests_together_stay_within_the_quota() {
    const CLIENTS: u64 = 24;
    let server = start().await;
    set_quota(&server, 1).await;
    for n in 0..CLIENTS {
        make_directory(&server, &format!("d{n}")).await;
    }
    let create = |n: u64| {
        let server = &server;
        async move { server.put(&format!("/docs/d{n}/f"), &file(GIB / 8), "").await.status.as_u16() }
    };
    let statuses = futures_util::future::join_all((0..CLIENTS).map(create)).await;
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 8, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 201 | 403)), "{statuses:?}");
    assert_eq!(usage(&server).await, GIB);
    let server = server.restart().await;
    assert_eq!(usage(&server).await, GIB);
}

#[tokio::test]
async fn raised_quota_applies_to_open_files() {
    let server = start().await;
    set_quota(&server, 1).await;
    let id = handles::open(&server, "f").await;
    let write = async |offset| server.service.write_at(id, offset, Bytes::from_static(b"x"), false).await;
    assert_eq!(write(GIB - 1).await, Ok(()));
    assert_eq!(write(GIB).await, Err(Failure::Full));
    assert_eq!(server.service.set_length(id, GIB + 1).await, Err(Failure::Full));
    set_quota(&server, 2).await;
    assert_eq!(write(GIB).await, Ok(()));
    assert_eq!(write(2 * GIB).await, Err(Failure::Full));
    set_quota(&server, 3).await;
    assert_eq!(server.service.set_length(id, 3 * GIB).await, Ok(()));
    assert_eq!(server.service.set_length(id, 3 * GIB + 1).await, Err(Failure::Full));
    server.service.close_open(id).await.unwrap();
    assert_eq!(usage(&server).await, 3 * GIB);
}

#[tokio::test]
async fn lowered_quota_applies_to_open_files() {
    let server = start().await;
    set_quota(&server, 3).await;
    let id = handles::open(&server, "f").await;
    let write = async |offset| server.service.write_at(id, offset, Bytes::from_static(b"x"), false).await;
    assert_eq!(write(GIB).await, Ok(()));
    set_quota(&server, 2).await;
    assert_eq!(write(2 * GIB).await, Err(Failure::Full));
    assert_eq!(server.service.set_length(id, 2 * GIB + 1).await, Err(Failure::Full));
    set_quota(&server, 1).await;
    // Files stay, and writes that do not grow a file succeed.
    assert_eq!(write(0).await, Ok(()));
    assert_eq!(write(GIB + 1).await, Err(Failure::Full));
    server.service.close_open(id).await.unwrap();
    assert_eq!(usage(&server).await, GIB + 1);
}

#[tokio::test]
async fn quota_counts_a_commit_whose_client_has_disconnected() {
    static QUEUEING: LazyLock<Queueing> = LazyLock::new(Queueing::default);
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, QUEUEING.clone());
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let server = Arc::new(lazuli_testing::start(ServiceKind::File, make).await);
    server.put("/docs?restype=share", "x-ms-share-quota: 1", "").await.expect(201);
    make_directory(&server, "d").await;
    make_file(&server, "f", 1000).await;
    QUEUEING.queue_next(is_directory);
    let growing = tokio::spawn({
        let server = server.clone();
        async move { server.put("/docs/big", &file(GIB - 1000), "").await }
    });
    QUEUEING.queued().await;
    growing.abort();
    QUEUEING.dropped().await;
    let more = server.put("/docs/d/more", &file(1000), "").await;
    assert_eq!(QUEUEING.outcome(), Some(Ok(())), "the file was created");
    more.refused(403, "ShareSizeLimitReached");
    assert_eq!(usage(&server).await, GIB);
    server.get("/docs/big", "range: bytes=0-0").await.expect(206);
}

/// Builds a front end that uses the store directly.
fn plain(parts: lazuli_testing::Parts) -> FileService {
    FileService::new(parts.store, parts.extents, parts.accounts)
}

#[tokio::test]
async fn a_commit_that_another_front_end_has_queued_does_not_exceed_the_quota_later() {
    static QUEUEING: LazyLock<Queueing> = LazyLock::new(Queueing::default);
    let make = |parts: lazuli_testing::Parts| {
        let store = Interposed::new(parts.store, QUEUEING.clone());
        FileService::new(Arc::new(store), parts.extents, parts.accounts)
    };
    let first = Arc::new(lazuli_testing::start(ServiceKind::File, make).await);
    first.put("/docs?restype=share", "x-ms-share-quota: 1", "").await.expect(201);
    make_directory(&first, "d").await;
    make_file(&first, "f", 1000).await;
    QUEUEING.queue_next(is_directory);
    let growing = tokio::spawn({
        let first = first.clone();
        async move { first.put("/docs/big", &file(GIB - 1000), "").await }
    });
    QUEUEING.queued().await;
    growing.abort();
    QUEUEING.dropped().await;
    let second = first.other_front_end(plain);
    make_file(&second, "d/more", 1000).await;
    QUEUEING.wait_for_commits(&*first.store).await.unwrap();
    assert_eq!(
        QUEUEING.outcome(),
        Some(Err(CommitError::Gone)),
        "the commit belongs to a slice from before the recount"
    );
    assert_eq!((usage(&second).await, usage(&first).await), (2000, 2000));
    make_file(&first, "big", GIB - 2000).await;
    second.put("/docs/d/g", &file(1), "").await.refused(403, "ShareSizeLimitReached");
}

#[tokio::test]
async fn two_front_ends_do_not_exceed_the_quota_together() {
    const FILES: u64 = 16;
    let first = start().await;
    set_quota(&first, 1).await;
    let second = first.other_front_end(plain);
    let mut made = 0;
    for n in 0..FILES {
        let front_end = if n % 2 == 0 { &first } else { &second };
        made += u64::from(front_end.put(&format!("/docs/f{n}"), &file(GIB / 8), "").await.status == 201);
        assert!(made <= 8);
    }
    assert_eq!(made, 8, "sequential requests can use all of the quota");
    assert_eq!((usage(&first).await, usage(&second).await), (GIB, GIB));
}

#[tokio::test]
async fn ordinary_writes_cost_no_commit_for_the_quota() {
    static COMMITS: AtomicUsize = AtomicUsize::new(0);
    struct Counting;
    #[async_trait]
    impl Interposer for Counting {
        async fn commit(
            &self,
            store: &dyn Store,
            partition: &Partition,
            commit: Commit,
        ) -> Result<(), CommitError> {
            COMMITS.fetch_add(1, Ordering::SeqCst);
            store.commit(partition, commit).await
        }
    }
    let make = |parts: lazuli_testing::Parts| {
        FileService::new(Arc::new(Interposed::new(parts.store, Counting)), parts.extents, parts.accounts)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "x-ms-share-quota: 10", "").await.expect(201);
    make_file(&server, "first", 1).await;
    COMMITS.store(0, Ordering::SeqCst);
    for n in 0..50 {
        make_file(&server, &format!("f{n}"), 1 << 20).await;
    }
    assert_eq!(COMMITS.load(Ordering::SeqCst), 50);
}

#[tokio::test]
async fn recount_removes_more_slices_than_fit_into_one_commit() {
    const SLICES: usize = 450;
    let first = start().await;
    make_file(&first, "f", 1000).await;
    let slices = || {
        let mut slices = vec![];
        let visit = |space, partition: &Bytes, row: &Row| {
            if space != SpaceId::ROOT && partition == "q" && row.key.starts_with(b"s") {
                slices.push((space, row.clone()));
            }
            Ok(())
        };
        first.store.for_each_row(visit).unwrap();
        slices
    };
    let (space, slice) = slices().pop().unwrap();
    // Slices that stopped front ends have left.
    for n in 1..SLICES as u64 {
        let key = [&slice.key[..1], &n.to_be_bytes()].concat();
        let mutations = vec![Mutation::Put(key.into(), slice.value.clone())];
        let (stamp, epoch) = (first.store.stamp(), first.store.space(space).await.unwrap().unwrap().epoch);
        let commit = Commit {
            stamp,
            epoch,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        };
        first.store.commit(&Partition::new(space, "q"), commit).await.unwrap();
    }
    assert_eq!(slices().len(), SLICES);
    let second = first.other_front_end(plain);
    make_file(&second, "g", 500).await;
    assert_eq!(slices().len(), 1, "only the slice of the second front end is left");
    assert_eq!(usage(&second).await, 1500);
}

/// Builds a front end that keeps the usage of at most two shares in memory.
fn forgetful(parts: lazuli_testing::Parts) -> FileService {
    FileService::new(parts.store, parts.extents, parts.accounts).with_max_usages(2)
}

#[tokio::test]
async fn usage_is_correct_after_a_share_is_evicted_and_reloaded() {
    const SHARES: u64 = 7;
    let server = lazuli_testing::start(ServiceKind::File, forgetful).await;
    let usage = async |share: u64| {
        let stats = server.get(&format!("/share{share}?restype=share&comp=stats"), "").await.expect(200);
        let text =
            stats.text().split("<ShareUsageBytes>").nth(1).unwrap().split('<').next().unwrap().to_owned();
        text.parse::<u64>().unwrap()
    };
    for share in 0..SHARES {
        let path = format!("/share{share}?restype=share");
        server.put(&path, "x-ms-share-quota: 1", "").await.expect(201);
    }
    for round in 0..4 {
        for share in 0..SHARES {
            server.put(&format!("/share{share}/f{round}"), &file(GIB / 4), "").await.expect(201);
            assert!(server.service.share_usages() <= 2, "{}", server.service.share_usages());
        }
        // In every other round, release the slices first.
        if round % 2 == 0 {
            server.service.release_idle_slices(Pace::FULL).await;
            assert!(!server.service.has_idle_slices());
        }
    }
    for share in 0..SHARES {
        assert_eq!(usage(share).await, GIB);
        let full = server.put(&format!("/share{share}/more"), &file(1), "").await;
        full.refused(403, "ShareSizeLimitReached");
        server.delete(&format!("/share{share}/f0"), "").await.expect(202);
    }
    for share in 0..SHARES {
        assert_eq!(usage(share).await, 3 * GIB / 4);
        server.put(&format!("/share{share}/more"), &file(GIB / 4), "").await.expect(201);
    }
}

#[tokio::test]
async fn a_share_with_an_open_file_is_not_evicted_and_keeps_its_quota() {
    let server = lazuli_testing::start(ServiceKind::File, forgetful).await;
    server.put("/docs?restype=share", "x-ms-share-quota: 2", "").await.expect(201);
    let id = handles::open(&server, "f").await;
    set_quota(&server, 1).await;
    for share in 0..5 {
        server.put(&format!("/share{share}?restype=share"), "", "").await.expect(201);
        server.put(&format!("/share{share}/f"), &file(1), "").await.expect(201);
    }
    let write = async |offset| server.service.write_at(id, offset, Bytes::from_static(b"x"), false).await;
    assert_eq!(write(GIB).await, Err(Failure::Full));
    assert_eq!(write(GIB - 1).await, Ok(()));
    server.service.close_open(id).await.unwrap();
    assert_eq!(usage(&server).await, GIB);
}

#[tokio::test]
async fn share_with_a_released_slice_is_used_again_without_a_recount() {
    static QUOTA_COMMITS: AtomicUsize = AtomicUsize::new(0);
    struct Counting;
    #[async_trait]
    impl Interposer for Counting {
        async fn commit(
            &self,
            store: &dyn Store,
            partition: &Partition,
            commit: Commit,
        ) -> Result<(), CommitError> {
            let is_quota = partition.space != SpaceId::ROOT && !is_directory(partition);
            QUOTA_COMMITS.fetch_add(usize::from(is_quota), Ordering::SeqCst);
            store.commit(partition, commit).await
        }
    }
    let make = |parts: lazuli_testing::Parts| {
        let store = Arc::new(Interposed::new(parts.store, Counting));
        FileService::new(store, parts.extents, parts.accounts).with_max_usages(4)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    for share in 0..4 {
        server.put(&format!("/share{share}?restype=share"), "", "").await.expect(201);
        server.put(&format!("/share{share}/f"), &file(1), "").await.expect(201);
    }
    assert!(server.service.has_idle_slices());
    server.service.release_idle_slices(Pace::FULL).await;
    assert_eq!(server.service.share_usages(), 3);
    QUOTA_COMMITS.store(0, Ordering::SeqCst);
    server.put("/share0/g", &file(1), "").await.expect(201);
    assert_eq!(QUOTA_COMMITS.load(Ordering::SeqCst), 1, "a new slice, and no recount");
}
