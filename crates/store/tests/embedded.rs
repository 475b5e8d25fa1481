//! The embedded engine under the suite that every engine has to pass.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use lazuli_concurrency::{ManualClock, SystemClock};
use lazuli_store::conformance::{self, Harness};
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, Store};

struct InDirectory(PathBuf);

impl Harness for InDirectory {
    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        Arc::new(Embedded::open(&self.0, clock, Options::SMALL).expect("it opens"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_embedded_engine_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(&InDirectory(dir.path().into())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_are_linearizable() {
    for seed in 1..=12 {
        let dir = tempfile::tempdir().unwrap();
        conformance::histories(&InDirectory(dir.path().into()), seed, 6, 120).await;
    }
}

/// Each removal comes to 5 MB of keys in the log, though it asks for two: more than a group may hold, together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn removals_that_come_to_more_than_a_group_holds_are_all_done_in_order() {
    const PARTITIONS: usize = 8;
    const ROWS: usize = 640;
    let dir = tempfile::tempdir().unwrap();
    let open = || Embedded::open(dir.path(), Arc::new(SystemClock), Options::default()).unwrap();
    let store = open();
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    let partitions: Vec<_> = (0..PARTITIONS).map(|i| Partition::new(space, vec![i as u8])).collect();
    let key = |row: usize| Bytes::from([&row.to_be_bytes()[..], &[7; 8000]].concat());
    let all = Bytes::new()..Bytes::from_static(&[0xff]);
    let commit = async |partition: &Partition, mutations| {
        let commit = Commit {
            stamp: store.stamp(),
            epoch: 1,
            conditions: vec![],
            mutations,
            valid_until: None,
            bulk: true,
        };
        store.commit(partition, commit).await
    };
    for partition in &partitions {
        for rows in (0..ROWS).collect::<Vec<_>>().chunks(160) {
            let puts = rows.iter().map(|row| Mutation::Put(key(*row), Bytes::new())).collect();
            commit(partition, puts).await.unwrap();
        }
    }
    let removals = partitions.iter().map(|p| commit(p, vec![Mutation::DeleteRange(all.clone())]));
    let later = partitions.iter().map(|p| commit(p, vec![Mutation::Put(key(ROWS), Bytes::new())]));
    let (removals, later) = tokio::join!(join_all(removals), join_all(later));
    assert!(removals.iter().chain(&later).all(Result::is_ok), "{removals:?} {later:?}");
    drop(store);
    let store = open();
    for partition in &partitions {
        let reads = Reads { ranges: vec![(all.clone(), 1000)], ..Reads::default() };
        let rows = store.read(partition, &reads).await.unwrap().ranges.remove(0).rows;
        assert_eq!(rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), [key(ROWS)]);
    }
}

#[tokio::test]
async fn no_row_has_a_key_that_is_longer_than_any_row_can_have() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    let partition = Partition::new(space, "p");
    let mutations = ["a", "b"].map(|key| Mutation::Put(key.into(), Bytes::new())).to_vec();
    let (stamp, conditions) = (store.stamp(), vec![]);
    let commit = Commit { stamp, epoch: 1, conditions, mutations, valid_until: None, bulk: false };
    store.commit(&partition, commit).await.unwrap();
    let long = |first: &str| Bytes::from([first.as_bytes(), &[b'x'; 200_000]].concat());
    let found = async |from: Bytes, to: Bytes| {
        let reads = Reads { keys: vec![long("a")], ranges: vec![(from..to, 10)] };
        let set = store.read(&partition, &reads).await.unwrap();
        assert_eq!(set.rows, [None]);
        set.ranges[0].rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(found("a".into(), long("b")).await, ["a", "b"]);
    assert_eq!(found(long("a"), long("b")).await, ["b"]);
    assert_eq!(found(long("a"), long("ax")).await, [""; 0]);
    assert_eq!(found(long("b"), long("a")).await, [""; 0]);
}
