//! Tests the memory use of a store.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_concurrency::SystemClock;
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, SpaceHeader, SpaceId, Store};

const SPACE: SpaceId = SpaceId(7);
const MAX_WAIT: Duration = Duration::from_secs(60);

async fn put(store: &Embedded, key: String, bytes: usize) {
    let mutations = vec![Mutation::Put(key.into(), vec![7; bytes].into())];
    let stamp = store.stamp();
    let commit = Commit { stamp, epoch: 0, conditions: vec![], mutations, valid_until: None, bulk: false };
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
            put(&store, format!("{round}-{row:06}"), 4096).await;
            row += 1;
        }
        let deadline = Instant::now() + MAX_WAIT;
        while store.figures().old_versions > 0 || store.figures().sealed_memtables > 0 {
            assert!(Instant::now() < deadline, "round {round}: {:?}", store.figures());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
