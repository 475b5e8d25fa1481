//! Restarts: what a store costs when it is new, and after many crashes.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use lazuli_concurrency::SystemClock;
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store};

const CRASHES: usize = 12;
const DIRECTORY: &str = "LAZULI_TEST_CRASH_DIRECTORY";

fn open(dir: &Path) -> Embedded {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    Embedded::open(dir, Arc::new(SystemClock), options).unwrap()
}

/// Bytes that files below a directory take on disk.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| match path.is_dir() {
            true => disk_bytes(&path),
            false => std::fs::metadata(&path).unwrap().blocks() * 512,
        })
        .sum()
}

fn partition() -> Partition {
    Partition::new(SpaceId(7), "p")
}

/// Opens the store, commits one row and dies, if a parent asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashing_child() {
    let Ok(dir) = std::env::var(DIRECTORY) else { return };
    let store = open(Path::new(&dir));
    if store.space(SpaceId(7)).await.unwrap().is_none() {
        store.set_space(SpaceId(7), None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    }
    let stamp = store.stamp();
    let mutations = vec![Mutation::Put(stamp.ticks().to_be_bytes().to_vec().into(), "v".into())];
    let commit = Commit { stamp, epoch: 0, conditions: vec![], mutations, valid_until: None, bulk: false };
    store.commit(&partition(), commit).await.unwrap();
    std::process::abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loop_keeps_a_small_log_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut sizes = vec![];
    for _ in 0..CRASHES {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crashing_child"])
            .env(DIRECTORY, dir.path())
            .output()
            .unwrap();
        assert!(!child.status.success());
        let segments = std::fs::read_dir(dir.path().join("log")).unwrap().count();
        assert!(segments <= 3, "{segments} segments");
        sizes.push(disk_bytes(dir.path()));
    }
    assert!(sizes.iter().all(|bytes| *bytes < 4 << 20), "{sizes:?}");
    let store = open(dir.path());
    let reads = Reads::default().and_range("".into()..vec![0xff; 9].into(), 1000);
    assert_eq!(store.read(&partition(), &reads).await.unwrap().ranges[0].rows.len(), CRASHES);
}

#[test]
fn an_empty_store_takes_less_than_four_mebibytes_also_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    for restart in 0..4 {
        let store = open(dir.path());
        assert!(disk_bytes(dir.path()) < 4 << 20, "open, {restart}: {}", disk_bytes(dir.path()));
        drop(store);
        assert!(disk_bytes(dir.path()) < 4 << 20, "closed, {restart}: {}", disk_bytes(dir.path()));
    }
}
