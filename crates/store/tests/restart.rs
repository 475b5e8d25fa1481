//! Tests restarts: the disk usage of a new store, and of a store after many crashes.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use lazuli_concurrency::SystemClock;
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store};

const CRASHES: usize = 12;
const REPLAYED: &str = "replayed frames: ";
const BYTES: &str = "LAZULI_TEST_CRASH_BYTES";
const DIRECTORY: &str = "LAZULI_TEST_CRASH_DIRECTORY";

fn open(dir: &Path) -> Embedded {
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    Embedded::open(dir, Arc::new(SystemClock), options).unwrap()
}

/// Opens a store with segments of this many bytes. Prints the number of replayed frames for the parent
/// process.
fn open_in_child(dir: &Path, log_segment_bytes: usize) -> Embedded {
    let options = Options { log_segment_bytes, cache_bytes: 1 << 20, ..Options::default() };
    let store = Embedded::open(dir, Arc::new(SystemClock), options).unwrap();
    println!("{REPLAYED}{}", store.replayed_frames());
    store
}

/// Returns the bytes that files below a directory use on disk.
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

// Opens the store, commits one row and exits without cleanup. Does nothing unless a parent process sets the
// environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashing_child() {
    let Ok(dir) = std::env::var(DIRECTORY) else { return };
    let bytes = std::env::var(BYTES).map_or(1, |bytes| bytes.parse().unwrap());
    // Segments are small in tests whose commits must fill them.
    let segment = if bytes > 1 { 1 << 20 } else { Options::default().log_segment_bytes };
    let store = open_in_child(Path::new(&dir), segment);
    if store.space(SpaceId(7)).await.unwrap().is_none() {
        store.set_space(SpaceId(7), None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    }
    let stamp = store.stamp();
    let mutations = vec![Mutation::Put(stamp.ticks().to_be_bytes().to_vec().into(), vec![7; bytes].into())];
    let commit = Commit {
        stamp,
        epoch: 0,
        conditions: vec![],
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(&partition(), commit).await.unwrap();
    std::process::abort();
}

/// Runs a child that commits a row of `bytes` bytes and crashes. Returns how many frames it replayed.
fn crash(dir: &Path, bytes: usize) -> u64 {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashing_child", "--nocapture"])
        .env(DIRECTORY, dir)
        .env(BYTES, bytes.to_string())
        .output()
        .unwrap();
    assert!(!child.status.success());
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let count = said.split(REPLAYED).nth(1).and_then(|rest| rest.split_whitespace().next());
    count.unwrap_or_else(|| panic!("{said} {}", String::from_utf8_lossy(&child.stderr))).parse().unwrap()
}

// Each crash leaves a few frames. A start replays those of one or two segments, regardless of the number of
// crashes.
#[test]
fn replayed_frames_do_not_grow_with_the_number_of_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let mut replayed = vec![];
    for _ in 0..40 {
        replayed.push(crash(dir.path(), 100_000));
        let segments = std::fs::read_dir(dir.path().join("log")).unwrap().count();
        assert!(segments <= 3, "{segments} segments");
    }
    let (first, last) = replayed.split_at(20);
    // A start may add a frame for the clock.
    assert!(last.iter().max().unwrap() <= &(first.iter().max().unwrap() + 3), "{replayed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_stays_small_and_complete_in_a_crash_loop() {
    let dir = tempfile::tempdir().unwrap();
    let mut sizes = vec![];
    for _ in 0..CRASHES {
        crash(dir.path(), 1);
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
fn empty_store_uses_less_than_four_mebibytes_also_after_restarts() {
    let dir = tempfile::tempdir().unwrap();
    for restart in 0..4 {
        let store = open(dir.path());
        assert!(disk_bytes(dir.path()) < 4 << 20, "open, {restart}: {}", disk_bytes(dir.path()));
        drop(store);
        assert!(disk_bytes(dir.path()) < 4 << 20, "closed, {restart}: {}", disk_bytes(dir.path()));
    }
}
