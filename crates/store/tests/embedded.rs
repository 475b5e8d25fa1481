//! The embedded engine under the suite that every engine has to pass.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use lazuli_concurrency::ManualClock;
use lazuli_store::conformance::{self, Harness};
use lazuli_store::{Embedded, Options, Store};

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
