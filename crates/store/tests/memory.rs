//! Tests the memory use of a store.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_concurrency::SystemClock;
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store};

const SPACE: SpaceId = SpaceId(7);
const MAX_WAIT: Duration = Duration::from_secs(60);

async fn put(store: &Embedded, key: String, value: Vec<u8>) {
    let mutations = vec![Mutation::Put(key.into(), value.into())];
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
    store.commit(&Partition::new(SPACE, "p"), commit).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_memtable_is_freed_without_waiting_for_the_next_flush() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    // Flush several times, because the first flush is followed by a compaction, which makes the tree free old
    // versions.
    for round in 0..3 {
        let mut row = 0;
        let mut before = 0;
        while store.figures().memtable_bytes >= before {
            before = store.figures().memtable_bytes;
            put(&store, format!("{round}-{row:06}"), vec![7; 4096]).await;
            row += 1;
        }
        let deadline = Instant::now() + MAX_WAIT;
        while store.figures().old_versions > 0 || store.figures().sealed_memtables > 0 {
            assert!(Instant::now() < deadline, "round {round}: {:?}", store.figures());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns bytes that do not compress, different for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        // Xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_keeps_no_blocks_of_tables_that_compaction_has_replaced() {
    const ROWS: u64 = 200;
    const ROUNDS: u64 = 30;
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: 256 << 20, ..Options::SMALL };
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), options).unwrap();
    store.set_space(SPACE, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    let keys: Vec<_> = (0..ROWS).map(|row| format!("{row:06}")).collect();
    for round in 0..ROUNDS {
        for (row, key) in (0..).zip(&keys) {
            put(&store, key.clone(), noise(round * ROWS + row, 4096)).await;
        }
        let keys = keys.iter().map(|key| key.clone().into()).collect();
        let reads = Reads { keys, ranges: vec![] };
        let found = store.read(&Partition::new(SPACE, "p"), &reads).await.unwrap();
        assert!(found.rows.iter().all(Option::is_some), "round {round}");
    }
    // All rounds wrote 24 MB. What is left in tables is a fraction of it.
    let deadline = Instant::now() + MAX_WAIT;
    let has_only_current_blocks = || store.figures().cached_block_bytes <= store.disk_bytes();
    while !has_only_current_blocks() {
        assert!(Instant::now() < deadline, "{} bytes in tables, {:?}", store.disk_bytes(), store.figures());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(store.disk_bytes() < 12 << 20, "{}", store.disk_bytes());
}
