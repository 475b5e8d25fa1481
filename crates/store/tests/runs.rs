//! Tests visits in runs during commits: every visit returns one state with all commits acknowledged before.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::{
    Commit, Embedded, MAX_RUN_ROWS, Mutation, Options, Partition, SpaceHeader, SpaceId, Store, Stretch,
};

const OPEN: SpaceHeader = SpaceHeader { epoch: 1, open: true };

async fn open(dir: &Path, options: Options) -> (Arc<Embedded>, SpaceId) {
    let store = Arc::new(Embedded::open(dir, Arc::new(SystemClock), options).unwrap());
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, OPEN).await.unwrap();
    (store, space)
}

async fn commit(store: &Embedded, partition: &Partition, mutations: Vec<Mutation>) {
    let (stamp, epoch) = (store.stamp(), OPEN.epoch);
    let commit =
        Commit { stamp, epoch, conditions: vec![], mutations, valid_until: None, fence: None, bulk: false };
    store.commit(partition, commit).await.unwrap();
}

fn put(row: usize, value: u64) -> Mutation {
    Mutation::Put(Bytes::copy_from_slice(&(row as u32).to_be_bytes()), value.to_le_bytes().to_vec().into())
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Visits all rows in one call. Returns how many of the runs were kept ones.
async fn visit(store: &Embedded, space: SpaceId, mut row: impl FnMut(&[u8], &[u8], u64) + Send) -> usize {
    let mut kept = 0;
    let mut visitor = |stretch: &Stretch| {
        kept += usize::from(stretch.kept);
        for i in stretch.rows.clone() {
            row(stretch.run.partition(i), stretch.run.key(i), number(stretch.run.value(i)));
        }
        ControlFlow::Continue(())
    };
    let start = (Bytes::new(), Bytes::new());
    let visited = store.visit_runs(space, start, None, &mut visitor).await.unwrap();
    assert_eq!(visited.next, None, "all in one visit");
    kept
}

// Each writer sets three rows of its own partition, several runs apart, to one number, and publishes the
// acknowledged number. A visit must find the same number three times, and at least the acknowledged one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn visit_returns_whole_commits_and_all_acknowledged_ones() {
    const WRITERS: usize = 3;
    const COMMITS: u64 = 400;
    const ROWS: usize = 3 * MAX_RUN_ROWS;
    const POSITIONS: [usize; 3] = [1, MAX_RUN_ROWS + 100, ROWS - 1];
    let dir = tempfile::tempdir().unwrap();
    let (store, space) = open(dir.path(), Options::SMALL).await;
    let partition = |writer: usize| Partition::new(space, vec![writer as u8]);
    for writer in 0..WRITERS {
        for start in (0..ROWS).step_by(128) {
            commit(&store, &partition(writer), (start..start + 128).map(|row| put(row, 0)).collect()).await;
        }
    }
    let acknowledged: Arc<[AtomicU64; WRITERS]> = Arc::default();
    let (over, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (store, acknowledged) = (store.clone(), acknowledged.clone());
            let (over, kept) = (over.clone(), kept.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let least: Vec<_> = acknowledged.iter().map(|n| n.load(Ordering::SeqCst)).collect();
                    let mut seen = vec![vec![]; WRITERS];
                    let mut rows = 0;
                    let found = visit(&store, space, |partition, key, value| {
                        rows += 1;
                        let row = u32::from_be_bytes(key.try_into().unwrap()) as usize;
                        if POSITIONS.contains(&row) {
                            seen[partition[0] as usize].push(value);
                        }
                    });
                    kept.fetch_add(found.await, Ordering::SeqCst);
                    assert_eq!(rows, WRITERS * ROWS);
                    for (seen, least) in seen.iter().zip(least) {
                        assert!(seen.len() == 3 && seen.iter().all(|n| *n == seen[0]), "torn: {seen:?}");
                        assert!(seen[0] >= least, "{} after {least} was acknowledged", seen[0]);
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, acknowledged, partition) = (store.clone(), acknowledged.clone(), partition(writer));
            tokio::spawn(async move {
                for n in 1..=COMMITS {
                    commit(&store, &partition, POSITIONS.map(|row| put(row, n)).to_vec()).await;
                    acknowledged[writer].store(n, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(kept.load(Ordering::SeqCst) > 0, "no run was kept in memory");
    let mut last = vec![];
    visit(&store, space, |_, _, value| last.extend((value > 0).then_some(value))).await;
    assert_eq!(last, [COMMITS; WRITERS * 3]);
}

#[tokio::test]
async fn second_visit_finds_every_run_and_a_change_drops_one() {
    const ROWS: usize = 4 * MAX_RUN_ROWS;
    let dir = tempfile::tempdir().unwrap();
    let (store, space) = open(dir.path(), Options::SMALL).await;
    let partition = Partition::new(space, "p");
    for start in (0..ROWS).step_by(128) {
        commit(&store, &partition, (start..start + 128).map(|row| put(row, 0)).collect()).await;
    }
    let count = || async {
        let mut rows = 0;
        let kept = visit(&store, space, |_, _, _| rows += 1).await;
        (rows, kept)
    };
    assert_eq!(count().await, (ROWS, 0));
    let (rows, all) = count().await;
    assert!(rows == ROWS && all >= 4);
    commit(&store, &partition, vec![put(ROWS - 1, 1)]).await;
    assert_eq!(count().await, (ROWS, all - 1), "only the changed run is read again");
    assert_eq!(count().await, (ROWS, all));
    let closed = SpaceHeader { epoch: 2, open: false };
    store.set_space(space, Some(OPEN), closed).await.unwrap();
    assert_eq!(count().await, (ROWS, 0), "a closed space keeps no runs");
}

#[tokio::test]
async fn space_larger_than_the_budget_is_visited_partly_from_memory() {
    const ROWS: usize = 12 * MAX_RUN_ROWS;
    let dir = tempfile::tempdir().unwrap();
    let options = Options { run_bytes: 512 << 10, ..Options::SMALL };
    let (store, space) = open(dir.path(), options).await;
    let partition = Partition::new(space, "p");
    for start in (0..ROWS).step_by(256) {
        commit(&store, &partition, (start..start + 256).map(|row| put(row, row as u64)).collect()).await;
    }
    let mut kept = 0;
    for _ in 0..10 {
        let mut found = vec![];
        kept += visit(&store, space, |_, _, value| found.push(value as usize)).await;
        assert_eq!(found, (0..ROWS).collect::<Vec<_>>());
    }
    assert!(kept > 10, "repeated scans find some runs in memory: {kept}");
}
