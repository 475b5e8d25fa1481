//! Tests captures of a store during writes, and stores loaded from the rows of another.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::embedded::Loader;
use lazuli_store::embedded::backup;
use lazuli_store::embedded::transfer::{self, Item};
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store};

fn open(dir: &Path) -> Arc<Embedded> {
    Arc::new(Embedded::open(dir, Arc::new(SystemClock), Options::SMALL).unwrap())
}

async fn new_space(store: &Embedded) -> SpaceId {
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, SpaceHeader { epoch: 1, open: true }).await.unwrap();
    space
}

/// Commits two rows with the same number, so that a torn commit is detected.
async fn put(store: &Embedded, partition: &Partition, n: u64) {
    let value = Bytes::from(n.to_le_bytes().repeat(1000));
    let mutations = vec![Mutation::Put("a".into(), value.clone()), Mutation::Put("b".into(), value)];
    let stamp = store.stamp();
    let commit = Commit {
        stamp,
        epoch: 1,
        conditions: vec![],
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(partition, commit).await.unwrap();
}

fn items(dir: &Path) -> Vec<Item> {
    let mut items = vec![];
    transfer::read_all(dir, |item| {
        items.push(item);
        Ok(())
    })
    .unwrap();
    items
}

#[derive(Default)]
struct History {
    submitted: AtomicU64,
    acknowledged: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn capture_under_load_is_one_state_with_everything_acknowledged_before() {
    const WRITERS: u8 = 4;
    const CAPTURES: u64 = 12;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("store")).unwrap();
    let source = dir.path().join("store");
    let store = open(&source);
    let space = new_space(&store).await;
    let histories: Arc<Vec<History>> = Arc::new((0..WRITERS).map(|_| History::default()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|i| {
            let (store, histories, stop) = (store.clone(), histories.clone(), stop.clone());
            tokio::spawn(async move {
                let partition = Partition::new(space, vec![i]);
                for n in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    histories[i as usize].submitted.store(n, Ordering::SeqCst);
                    put(&store, &partition, n).await;
                    histories[i as usize].acknowledged.store(n, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let counts = |which: fn(&History) -> &AtomicU64| -> Vec<u64> {
        histories.iter().map(|history| which(history).load(Ordering::SeqCst)).collect()
    };
    let mut tables = 0;
    for round in 1..=CAPTURES {
        // Write enough for several memtables and log segments since the last capture.
        while counts(|h| &h.acknowledged).iter().any(|n| *n < 40 * round) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = counts(|history| &history.acknowledged);
        let (from, into) = (source.clone(), dir.path().join(format!("capture{round}")));
        let to = into.clone();
        tokio::task::spawn_blocking(move || backup::capture(&from, &to).unwrap()).await.unwrap();
        let after = counts(|history| &history.submitted);
        tables += backup::files(&into).unwrap().iter().filter(|file| file.identity.is_some()).count();
        let mut found = BTreeMap::new();
        for item in items(&into) {
            if let Item::Row { partition, row, .. } = item {
                let n = u64::from_le_bytes(*row.value.first_chunk().unwrap());
                assert_eq!(row.value, n.to_le_bytes().repeat(1000));
                found.insert((partition[0], row.key), n);
            }
        }
        for i in 0..WRITERS {
            let [a, b] = ["a", "b"].map(|key| found[&(i, Bytes::from(key))]);
            assert_eq!(a, b, "capture {round}: half a commit of writer {i}");
            let (before, after) = (before[i as usize], after[i as usize]);
            assert!((before..=after).contains(&a), "capture {round}: {before} to {after}, but {a}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(tables > 0, "the captures had no tables");
    // A capture can be opened like any store.
    let captured = open(&dir.path().join("capture3"));
    put(&captured, &Partition::new(space, vec![0]), 1).await;
}

#[tokio::test]
async fn loaded_store_has_the_rows_tokens_and_clock_of_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let [source, loaded] = ["source", "loaded"].map(|name| dir.path().join(name));
    for path in [&source, &loaded] {
        std::fs::create_dir(path).unwrap();
    }
    let store = open(&source);
    let space = new_space(&store).await;
    for i in 0..50u8 {
        put(&store, &Partition::new(space, vec![i, 0, i]), i.into()).await;
    }
    drop(store);
    let read = items(&source);
    let mut loader = Loader::create(&loaded).unwrap();
    for item in &read {
        match item.clone() {
            Item::Clock(ceiling) => loader.clock(ceiling.0.timestamp()),
            Item::Space { space, header, token } => loader.header(space, header, token).unwrap(),
            Item::Row { space, partition, row } => loader.row(space, &partition, &row).unwrap(),
        }
    }
    loader.finish().unwrap();
    assert_eq!(items(&loaded), read);

    let store = open(&loaded);
    let partition = Partition::new(space, vec![7, 0, 7]);
    let set = store.read(&partition, &Reads::key("a")).await.unwrap();
    let token = set.rows[0].as_ref().unwrap().token;
    assert!(read.iter().any(|item| matches!(item, Item::Row { row, .. } if row.token == token)));
    assert!(store.stamp() > token.0, "stamps continue above the tokens");
    put(&store, &partition, 8).await;
}
