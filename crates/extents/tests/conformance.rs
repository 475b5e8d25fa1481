//! Both engines pass the conformance suite: the in-memory engine, and the local one with segments of the
//! default size and with small ones.

use std::sync::Arc;

use lazuli_extents::{InMemoryExtents, LocalExtents, Options, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_engine_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(Arc::new(LocalExtents::open(dir.path(), Options::default()).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_engine_conforms_with_small_segments() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 16 << 20, grow_bytes: 1 << 20 };
    conformance::run(Arc::new(LocalExtents::open(dir.path(), options).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_in_memory_engine_conforms() {
    conformance::run(Arc::new(InMemoryExtents::new(1 << 30))).await;
}
