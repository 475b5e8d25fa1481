//! Runs the embedded engine through the conformance suite.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{ManualClock, SystemClock};
use lazuli_store::conformance::{self, Harness};
use lazuli_store::{
    Commit, Embedded, Mutation, Options, Partition, Reads, Row, RowPosition, SpaceHeader, Store,
};

struct InDirectory(PathBuf);

impl Harness for InDirectory {
    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        Arc::new(Embedded::open(&self.0, clock, Options::SMALL).expect("the store opens"))
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

#[tokio::test]
async fn keys_longer_than_the_tree_accepts_match_no_row() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    let partition = Partition::new(space, "p");
    let mutations = ["a", "b"].map(|key| Mutation::Put(key.into(), Bytes::new())).to_vec();
    let (stamp, conditions) = (store.stamp(), vec![]);
    let commit =
        Commit { stamp, epoch: 1, conditions, mutations, valid_until: None, fence: None, bulk: false };
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

// Row counts must equal the number of rows after commits, removals, sweeps, repeated sweeps and dropped
// callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_counts_agree_with_a_walk_over_all_rows_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    let mut store = open();
    let (mut state, mut spaces) = (7u64, vec![]);
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for round in 0..400 {
        while spaces.len() < 3 {
            let space = store.new_space().await.unwrap();
            store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
            spaces.push(space);
        }
        let space = spaces[random(3) as usize];
        let key = |n: u64| Bytes::from(format!("k{n:02}"));
        let mut mutations = vec![];
        for _ in 0..1 + random(4) {
            mutations.push(match random(5) {
                0 | 1 => Mutation::Put(key(random(40)), Bytes::from_static(b"8 bytes.")),
                2 | 3 => Mutation::Delete(key(random(40))),
                _ => Mutation::Add(key(random(40)), 1),
            });
        }
        let commit = Commit {
            stamp: store.stamp(),
            epoch: 0,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        };
        store.commit(&Partition::new(space, "p"), commit).await.unwrap();
        if round % 50 == 49 {
            let space = spaces.swap_remove(0);
            let (open, closed) =
                (SpaceHeader { epoch: 0, open: true }, SpaceHeader { epoch: 1, open: false });
            store.set_space(space, Some(open), closed).await.unwrap();
            let start = || (Bytes::new(), Bytes::new());
            // Sweep the same rows twice, as if one caller was dropped while its commit was still queued.
            let (one, two) =
                tokio::join!(store.sweep_space(space, start(), 30), store.sweep_space(space, start(), 30));
            assert!(one.is_ok() && two.is_ok());
            while store.sweep_space(space, start(), 30).await.unwrap().is_some() {}
        }
        if round % 20 == 0 {
            let counts = store.row_counts().unwrap();
            assert!(counts.complete);
            assert_eq!(counts.added - counts.removed, walk(&store, 7).await.len() as u64, "round {round}");
        }
        if round % 70 == 69 {
            drop(store);
            store = open();
        }
    }
}

/// Returns all rows, read in pages of `page` rows.
async fn walk(store: &Embedded, page: usize) -> Vec<RowPosition> {
    let (mut all, mut from) = (vec![], None);
    loop {
        let mut left = page;
        let mut visitor = |space, partition, row: Row| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            all.push(RowPosition { space, partition, key: row.key });
            ControlFlow::Continue(())
        };
        from = store.visit_all(from, &mut visitor).await.unwrap();
        if from.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn walk_in_pages_visits_every_unmoved_row_exactly_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    let mut expected = vec![];
    for _ in 0..3 {
        let space = store.new_space().await.unwrap();
        store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        for partition in ["", "a", "a\0", "b"] {
            let keys = ["", "\0", "k", "k\0", "l"];
            let mutations = keys.iter().map(|key| Mutation::Put((*key).into(), Bytes::new())).collect();
            let (stamp, conditions) = (store.stamp(), vec![]);
            let commit = Commit {
                stamp,
                epoch: 0,
                conditions,
                mutations,
                valid_until: None,
                fence: None,
                bulk: false,
            };
            store.commit(&Partition::new(space, partition), commit).await.unwrap();
            let place =
                |key: &&'static str| RowPosition { space, partition: partition.into(), key: (*key).into() };
            expected.extend(keys.iter().map(place));
        }
    }
    for page in [1, 2, 3, 7, 1000] {
        assert_eq!(walk(&store, page).await, expected, "pages of {page}");
    }
}
