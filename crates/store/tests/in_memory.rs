//! The in-memory engine: the conformance suite, its memory bound, and the same results as the embedded
//! engine.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lazuli_concurrency::{ManualClock, Span, Stamp, SystemClock, Timestamp};
use lazuli_store::conformance::{self, Harness, TakingTurns};
use lazuli_store::{
    Commit, CommitError, Condition, Embedded, InMemoryStore, MAX_SCAN_ROWS, Mutation, Options, Partition,
    Reads, Row, RowPosition, SpaceHeader, SpaceId, Store, Which,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const ENOUGH: u64 = 1 << 30;
const OPEN: SpaceHeader = SpaceHeader { epoch: 0, open: true };

/// Engines by clock. Data lives in the engine, so opening again with the same clock returns the same engine.
#[derive(Default)]
struct InMemory(Mutex<Vec<(Arc<ManualClock>, Arc<InMemoryStore>)>>);

impl Harness for InMemory {
    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        let mut opened = self.0.lock().unwrap();
        if let Some((_, store)) = opened.iter().find(|(known, _)| Arc::ptr_eq(known, &clock)) {
            return store.clone();
        }
        let store = Arc::new(InMemoryStore::new(clock.clone(), ENOUGH));
        opened.push((clock, store.clone()));
        store
    }
}

fn store(max_bytes: u64) -> InMemoryStore {
    InMemoryStore::new(Arc::new(SystemClock), max_bytes)
}

fn row_key(row: u32) -> Bytes {
    Bytes::copy_from_slice(&row.to_be_bytes())
}

async fn commit(store: &dyn Store, space: SpaceId, mutations: Vec<Mutation>) -> Result<(), CommitError> {
    let (stamp, conditions) = (store.stamp(), vec![]);
    let commit =
        Commit { stamp, epoch: 0, conditions, mutations, valid_until: None, fence: None, bulk: false };
    store.commit(&Partition::new(space, "p"), commit).await
}

async fn new_space(store: &dyn Store) -> SpaceId {
    let space = store.new_space().await.unwrap();
    store.set_space(space, None, OPEN).await.unwrap();
    space
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_in_memory_engine_conforms() {
    conformance::run(&InMemory::default()).await;
}

/// Two front ends on the same data.
#[derive(Default)]
struct TwoFrontEnds(InMemory);

impl Harness for TwoFrontEnds {
    async fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        let store = self.0.open(clock).await;
        Arc::new(TakingTurns::new(vec![store.clone(), store]))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_front_ends_conform() {
    conformance::run(&TwoFrontEnds::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_are_linearizable() {
    for seed in 1..=12 {
        conformance::histories(&InMemory::default(), seed, 6, 120).await;
    }
}

#[tokio::test]
async fn full_store_accepts_deletes_and_is_usable_afterwards() {
    let store = store(1 << 20);
    let space = new_space(&store).await;
    let put = |row: u32| Mutation::Put(row_key(row), vec![7; 10_000].into());
    let mut rows = 0;
    let refused = loop {
        match commit(&store, space, vec![put(rows)]).await {
            Ok(()) => rows += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, store.is_full()), (CommitError::Full, true));
    assert!((95..=104).contains(&rows) && store.bytes() <= 1 << 20, "{rows} rows, {} bytes", store.bytes());
    let set = store.read(&Partition::new(space, "p"), &Reads::key(row_key(rows))).await.unwrap();
    assert_eq!(set.rows, [None], "a refused commit leaves no row");
    commit(&store, space, vec![put(0)]).await.expect("a replacement of the same size fits");
    commit(&store, space, (0..5).map(|row| Mutation::Delete(row_key(row))).collect()).await.unwrap();
    commit(&store, space, vec![put(rows)]).await.expect("deletes free memory");
    assert!(!store.is_full());

    let closed = SpaceHeader { epoch: 1, open: false };
    store.set_space(space, Some(OPEN), closed).await.expect("closing takes no memory");
    let mut from = Default::default();
    while let Some(next) = store.sweep_space(space, from, 30).await.unwrap() {
        from = next;
    }
    assert_eq!(store.sweep_space(space, Default::default(), 30).await, Ok(None));
    assert!(store.bytes() < 1000, "{} bytes", store.bytes());
}

#[tokio::test]
async fn space_headers_count_as_memory() {
    let store = store(100_000);
    let refused = loop {
        let space = store.new_space().await.unwrap();
        if let Err(error) = store.set_space(space, None, OPEN).await {
            break error;
        }
    };
    assert_eq!(refused, CommitError::Full);
}

#[tokio::test]
async fn stored_value_does_not_retain_its_input_buffer() {
    let store = store(ENOUGH);
    let space = new_space(&store).await;
    let buffer = Bytes::from(vec![7; 1 << 20]);
    commit(&store, space, vec![Mutation::Put("k".into(), buffer.slice(..10))]).await.unwrap();
    assert!(buffer.try_into_mut().is_ok(), "the store holds no reference to the buffer");
}

#[tokio::test]
async fn walk_over_all_rows_is_paged_and_agrees_with_the_counts() {
    let store = store(ENOUGH);
    let mut expected = vec![];
    for _ in 0..2 {
        let space = new_space(&store).await;
        for from in (0..MAX_SCAN_ROWS as u32).step_by(128) {
            let keys: Vec<Bytes> = (from..from + 128).map(row_key).collect();
            let puts = keys.iter().map(|key| Mutation::Put(key.clone(), Bytes::new())).collect();
            commit(&store, space, puts).await.unwrap();
            expected.extend(keys.into_iter().map(|key| RowPosition { space, partition: "p".into(), key }));
        }
    }
    let (mut all, mut from, mut pages) = (vec![], None, 0);
    loop {
        let mut visitor = |space, partition, Row { key, .. }: Row| {
            all.push(RowPosition { space, partition, key });
            ControlFlow::Continue(())
        };
        from = store.visit_all(from, &mut visitor).await.unwrap();
        pages += 1;
        if from.is_none() {
            break;
        }
    }
    assert_eq!((all.len(), pages), (expected.len(), 2));
    assert_eq!(all, expected);
    let counts = store.row_counts().unwrap();
    assert!(counts.complete && counts.added - counts.removed == all.len() as u64);
}

/// Both engines, on the same clock.
struct Both {
    clock: Arc<ManualClock>,
    stores: [Arc<dyn Store>; 2],
}

impl Both {
    async fn commit(&self, partition: &Partition, commit: &Commit) -> Result<(), CommitError> {
        let [one, other] = [0, 1].map(|i| self.stores[i].commit(partition, commit.clone()));
        let (one, other) = (one.await, other.await);
        assert_eq!(one, other, "{commit:?}");
        one
    }

    /// Returns a stamp above all that either engine has issued.
    fn stamp(&self) -> Stamp {
        self.clock.advance(Span::from_ticks(1000));
        let stamps = self.stores.each_ref().map(|store| store.stamp());
        stamps[0].max(stamps[1])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_engines_return_the_same_results() {
    for seed in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_750_000_000)));
        let embedded = Embedded::open(dir.path(), clock.clone(), Options::SMALL).unwrap();
        let in_memory = InMemoryStore::new(clock.clone(), ENOUGH);
        let both = Both { clock, stores: [Arc::new(embedded), Arc::new(in_memory)] };
        compare(&both, &mut StdRng::seed_from_u64(seed)).await;
    }
}

async fn compare(both: &Both, random: &mut StdRng) {
    let space = SpaceId(77);
    let mut header = OPEN;
    for store in &both.stores {
        store.set_space(space, None, header).await.unwrap();
    }
    let key = |random: &mut StdRng| Bytes::from(format!("k{}", random.random_range(0..12)));
    let mut stamps = vec![both.stamp()];
    for _ in 0..400 {
        let partition = Partition::new(space, ["p", "p\0", "q"][random.random_range(0..3)]);
        let (from, to) = (key(random), key(random));
        let limit = random.random_range(0..15);
        let reads = Reads::keys([key(random), key(random)]).and_range(from..to, limit);
        let [one, other] = [0, 1].map(|i| both.stores[i].read(&partition, &reads));
        let set = one.await.unwrap();
        assert_eq!(set, other.await.unwrap(), "{reads:?}");

        stamps.push(both.stamp());
        // Sometimes use a late stamp or a stale condition.
        let late = random.random_range(0..10) == 0;
        let stamp = stamps[if late { random.random_range(0..stamps.len()) } else { stamps.len() - 1 }];
        let mut conditions: Vec<_> = reads
            .keys
            .iter()
            .zip(&set.rows)
            .map(|(key, row)| match row {
                Some(row) => Condition::Unchanged(key.clone(), row.token),
                None => Condition::Absent(key.clone()),
            })
            .collect();
        conditions.push(Condition::RangeUnchanged(set.ranges[0].range.clone(), set.ranges[0].token));
        if random.random_range(0..4) == 0 {
            conditions.push(Condition::Absent(key(random)));
        }
        let mutations = (0..random.random_range(0..5)).map(|_| match random.random_range(0..5) {
            0 | 1 => Mutation::Put(key(random), Bytes::from(vec![1; random.random_range(0..20)])),
            2 | 3 => Mutation::Delete(key(random)),
            _ => Mutation::Add(key(random), random.random_range(-5..5)),
        });
        let mutations = mutations.collect();
        let now = both.stores[0].now();
        let valid_until = (random.random_range(0..5) == 0)
            .then(|| if random.random() { now + Span::seconds(1) } else { now - Span::seconds(1) });
        let epoch = header.epoch + u64::from(random.random_range(0..20) == 0);
        let commit = Commit { stamp, epoch, conditions, mutations, valid_until, fence: None, bulk: false };
        let _ = both.commit(&partition, &commit).await;

        if random.random_range(0..40) == 0 {
            let to = SpaceHeader { epoch: header.epoch + 1, open: true };
            for store in &both.stores {
                store.set_space(space, Some(header), to).await.unwrap();
            }
            header = to;
        }
        let which = if random.random() { Which::All } else { Which::First };
        let from = (partition.key.clone(), key(random));
        let end = random.random::<bool>().then(|| (Bytes::from("p\0"), key(random)));
        let page = |i: usize| both.stores[i].scan_space(space, from.clone(), end.clone(), which, limit);
        assert_eq!(page(0).await.unwrap(), page(1).await.unwrap(), "{from:?} to {end:?}");
        assert_eq!(both.stores[0].row_counts(), both.stores[1].row_counts());
    }
    let closed = SpaceHeader { epoch: header.epoch + 1, open: false };
    for store in &both.stores {
        store.set_space(space, Some(header), closed).await.unwrap();
    }
    let mut from: (Bytes, Bytes) = Default::default();
    loop {
        let sweep = |i: usize| both.stores[i].sweep_space(space, from.clone(), 3);
        let (one, other) = (sweep(0).await.unwrap(), sweep(1).await.unwrap());
        assert_eq!(one, other);
        let Some(next) = one else { break };
        from = next;
    }
    for store in &both.stores {
        assert_eq!(store.space(space).await.unwrap(), Some(closed));
        assert_eq!(store.sweep_space(space, Default::default(), 3).await.unwrap(), None);
        assert_eq!(store.space(space).await.unwrap(), None);
    }
}
