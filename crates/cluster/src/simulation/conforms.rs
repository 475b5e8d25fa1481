//! The conformance suite of stores, with one to three front ends that take turns.

use std::sync::Arc;

use lazuli_concurrency::ManualClock;
use lazuli_rados::simulated::{Faults, SimulatedCluster};
use lazuli_store::Store;
use lazuli_store::conformance::{self, Harness, TakingTurns};
use parking_lot::Mutex;

use crate::{ClusterStore, ShardLimits};

/// Front ends on one cluster for each clock.
struct FrontEnds {
    front_ends: usize,
    split_rows: usize,
    clusters: Mutex<Vec<(Arc<ManualClock>, SimulatedCluster, usize)>>,
}

impl FrontEnds {
    fn new(front_ends: usize, split_rows: usize) -> Self {
        Self { front_ends, split_rows, clusters: Mutex::default() }
    }

    fn cluster(&self, clock: &Arc<ManualClock>) -> (SimulatedCluster, usize) {
        let mut clusters = self.clusters.lock();
        if let Some((_, cluster, opened)) =
            clusters.iter_mut().find(|(known, _, _)| Arc::ptr_eq(known, clock))
        {
            *opened += 1;
            return (cluster.clone(), *opened);
        }
        let faults = Faults { short_page_per_mille: 200, ..Faults::NONE };
        clusters.push((clock.clone(), SimulatedCluster::new(7, faults), 0));
        (clusters[clusters.len() - 1].1.clone(), 0)
    }
}

impl Harness for FrontEnds {
    const REMEMBERS_REMOVALS: bool = false;

    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        let (cluster, opened) = self.cluster(&clock);
        let mut stores: Vec<Arc<dyn Store>> = vec![];
        for front_end in 0..self.front_ends {
            let connection = cluster.connect(&format!("{opened}.{front_end}"));
            let limits = ShardLimits { split_rows: self.split_rows };
            stores.push(Arc::new(ClusterStore::open(connection, clock.clone(), limits).await.unwrap()));
        }
        Arc::new(TakingTurns::new(stores))
    }
}

#[tokio::test(start_paused = true)]
async fn one_front_end_conforms() {
    conformance::run(&FrontEnds::new(1, 64 << 10)).await;
}

#[tokio::test(start_paused = true)]
async fn histories_of_two_and_three_front_ends_are_linearizable() {
    for seed in 1..=6 {
        conformance::histories(&FrontEnds::new(2, 50), seed, 6, 60).await;
        conformance::histories(&FrontEnds::new(3, 50), seed, 6, 60).await;
    }
}
