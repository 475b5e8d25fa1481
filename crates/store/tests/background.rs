//! Tests failing background work: it leaves no files, is visible, and does not harm commits and reads.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::embedded::{Backoff, Cause, Task};
use lazuli_store::{
    Commit, CommitError, Embedded, MAX_SCAN_ROWS, Mutation, Options, Partition, Reads, RowPosition,
    SpaceHeader, SpaceId, Store, prefix_range,
};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

const SPACE: SpaceId = SpaceId(7);
const QUICK: Duration = Duration::from_millis(1);

fn options() -> Options {
    Options { backoff: Backoff { first: QUICK, max: QUICK, max_if_full: QUICK }, ..Options::SMALL }
}

async fn open(dir: &Path) -> Embedded {
    open_with(dir, options()).await
}

async fn open_with(dir: &Path, options: Options) -> Embedded {
    let store = Embedded::open(dir, Arc::new(SystemClock), options).unwrap();
    if store.space(SPACE).await.unwrap().is_none() {
        store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    }
    store
}

/// Returns bytes that do not compress.
fn noise(seed: u64) -> Bytes {
    let mut bytes = vec![0; 1024];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes.into()
}

fn key(n: u64) -> Bytes {
    format!("k{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into()
}

async fn put(store: &Embedded, n: u64) -> Result<(), CommitError> {
    put_all(store, n..n + 1).await
}

async fn put_all(store: &Embedded, rows: std::ops::Range<u64>) -> Result<(), CommitError> {
    let mutations = rows.map(|n| Mutation::Put(key(n), noise(n))).collect();
    let stamp = store.stamp();
    let commit = Commit {
        stamp,
        epoch: 0,
        conditions: vec![],
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(&Partition::new(SPACE, "blobs"), commit).await
}

fn files(dir: &Path) -> HashSet<(PathBuf, u64)> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.path(), entry.metadata().unwrap().len())).collect()
}

/// Changes one byte in the middle of the largest table.
fn damage(tables: &Path) -> PathBuf {
    let (path, length) = files(tables).into_iter().max_by_key(|(_, length)| *length).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, length / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 1], length / 2).unwrap();
    path
}

/// Makes a store of 3,000 rows in one table, and damages the table.
async fn store_with_damaged_table(dir: &Path) -> PathBuf {
    let store = open(dir).await;
    for n in 0..30 {
        put_all(&store, 100 * n..100 * (n + 1)).await.unwrap();
    }
    let closed = tokio::task::spawn_blocking(move || {
        store.compact().unwrap();
        store.close();
        drop(store);
    });
    closed.await.unwrap();
    damage(&dir.join("tree/tables"))
}

#[tokio::test]
async fn read_of_a_damaged_table_names_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    store_with_damaged_table(dir.path()).await;
    let store = open(dir.path()).await;
    let partition = Partition::new(SPACE, "blobs");
    let mut failed = 0;
    for n in 0..3000 {
        if let Err(error) = store.read(&partition, &Reads::key(key(n))).await {
            let row = RowPosition::new(&partition, &key(n));
            assert!(error.to_string().contains(&format!("{row}: ")), "{error}");
            failed += 1;
        }
    }
    assert!(failed > 0);
    let all = Reads::default().and_range(prefix_range(b""), MAX_SCAN_ROWS);
    let error = store.read(&partition, &all).await.unwrap_err().to_string();
    assert!(error.contains(&format!("at or after {partition}")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_compaction_of_a_damaged_table_leaves_no_files_and_names_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let tables = dir.path().join("tree/tables");
    let damaged = store_with_damaged_table(dir.path()).await;

    let store = open(dir.path()).await;
    let logged = Arc::new(AtomicU64::new(0));
    store.on_failure(Arc::new({
        let logged = logged.clone();
        move |failure| {
            assert_eq!((failure.task, failure.cause), (Task::Compaction, Cause::Damaged));
            logged.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut written = 3000;
    while store.failed_attempts(Task::Compaction) < 20 {
        assert!(Instant::now() < deadline, "compaction reaches the damaged table: {:?}", store.health());
        if store.failed_attempts(Task::Compaction) == 0 {
            put_all(&store, written..written + 100).await.unwrap();
            written += 100;
        } else {
            tokio::time::sleep(QUICK).await;
        }
    }
    let health = store.health();
    assert!(store.is_healthy() && health.stopped.is_none() && !health.full);
    let [failure] = &health.failing[..] else { panic!("{health:?}") };
    let table = failure.table.as_ref().unwrap();
    assert_eq!(table.path, damaged);
    assert_eq!((&table.spaces[..], table.more_spaces), (&[SPACE][..], false));
    let (before, after) = (table.before.as_ref().unwrap(), table.after.as_ref().unwrap());
    assert_eq!((before.space, &before.partition[..]), (SPACE, &b"blobs"[..]));
    assert!(before.key < after.key, "{before} {after}");
    let name = damaged.file_name().unwrap().to_str().unwrap();
    assert!(failure.to_string().contains(&format!("table {name} is damaged")), "{failure}");
    assert_eq!(logged.load(Ordering::SeqCst), 1, "one log line for many attempts");

    put(&store, 1 << 40).await.unwrap();
    let reads = Reads::key(key(written - 1));
    assert!(store.read(&Partition::new(SPACE, "blobs"), &reads).await.unwrap().rows[0].is_some());
    tokio::task::spawn_blocking(move || {
        store.close();
        let on_disk: u64 = files(&tables).iter().map(|(_, length)| length).sum();
        // The tree does not count the trailers of the files.
        let in_manifest = store.disk_bytes() / 100 * 105;
        assert!(on_disk <= in_manifest, "{on_disk} above {in_manifest}: {:?}", files(&tables));
    })
    .await
    .unwrap();
}

// The tree retries the merge with the damaged table. The rest of the first level must still be merged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_table_does_not_block_commits_when_the_first_level_is_full() {
    const ROUNDS: u64 = 60;
    const ROWS: u64 = 250;
    let dir = tempfile::tempdir().unwrap();
    store_with_damaged_table(dir.path()).await;
    let never = Duration::from_secs(3600);
    let backoff = Backoff { first: never, max: never, max_if_full: never };
    let store = open_with(dir.path(), Options { backoff, ..Options::SMALL }).await;
    let blobs = Partition::new(SPACE, "blobs");
    for round in 1..=ROUNDS {
        // About one memtable, with the same rows in each round.
        let mutations = (0..ROWS).map(|n| Mutation::Put(key(10_000 + n), noise(round * ROWS + n))).collect();
        let stamp = store.stamp();
        let commit = Commit {
            stamp,
            epoch: 0,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: false,
        };
        store.commit(&blobs, commit).await.unwrap_or_else(|error| {
            panic!("round {round}: {error}, {:?}, {:?}", store.figures(), store.health())
        });
    }
    for n in 0..ROWS {
        let read = store.read(&blobs, &Reads::key(key(10_000 + n))).await.unwrap().rows.remove(0).unwrap();
        assert_eq!(read.value, noise(ROUNDS * ROWS + n), "row {n} has its newest value");
    }
    let health = store.health();
    assert!(health.failing.iter().any(|failure| failure.cause == Cause::Damaged), "{health:?}");
    assert!(store.figures().level0_runs <= 24, "{:?}", store.figures());
}
