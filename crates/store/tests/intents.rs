//! Tests intents interrupted at every step. The moved row is in exactly one partition, before and after other
//! callers end them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_store::intent::{Ended, IntentError, IntentId, IntentPlan, IntentPlanner, Intents};
use lazuli_store::interposed::{CrashAtWrite, Interposed};
use lazuli_store::{
    Change, Commit, Embedded, Gate, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store, View,
};

/// Moves the row `thing` from one partition to another. While prepared, `coming` reserves the target and
/// `leaving` the source. The target comes first, so that readers that ignore the marks may see the row twice,
/// but never miss it.
struct Move;

struct MovePlan([Partition; 2]);

const THING: Bytes = Bytes::from_static(b"thing");
const LEAVING: Bytes = Bytes::from_static(b"leaving");
const COMING: Bytes = Bytes::from_static(b"coming");
const VALUE: Bytes = Bytes::from_static(b"value");

impl IntentPlanner for Move {
    type Plan = MovePlan;
    fn plan(&self, kind: u8, payload: &Bytes) -> Option<MovePlan> {
        let space = SpaceId(u64::from_be_bytes(payload[..8].try_into().ok()?));
        let partition = |name: &'static str| Partition::new(space, name);
        (kind == 1).then(|| MovePlan([partition("target"), partition("source")]))
    }
}

impl IntentPlan for MovePlan {
    type Refusal = &'static str;

    fn participants(&self) -> Vec<Partition> {
        self.0.to_vec()
    }
    fn reads(&self, _: usize) -> Reads {
        Reads::keys([THING, LEAVING, COMING])
    }
    fn prepare(&self, _: IntentId, participant: usize, view: &View<'_>) -> Result<Change, &'static str> {
        match (participant, view.row(&THING), view.row(&LEAVING), view.row(&COMING)) {
            (0, None, _, None) => Ok(Change::of([Mutation::Put(COMING, Bytes::new())])),
            (0, ..) => Err("the target is taken"),
            (_, Some(_), None, _) => Ok(Change::of([Mutation::Put(LEAVING, Bytes::new())])),
            _ => Err("nothing to move"),
        }
    }
    fn apply(&self, participant: usize, _: u64, _: &View<'_>) -> Result<Vec<Mutation>, &'static str> {
        Ok(match participant {
            0 => vec![Mutation::Put(THING, VALUE), Mutation::Delete(COMING)],
            _ => vec![Mutation::Delete(THING), Mutation::Delete(LEAVING)],
        })
    }
    fn undo(&self, participant: usize, _: &View<'_>) -> Vec<Mutation> {
        vec![Mutation::Delete(if participant == 0 { COMING } else { LEAVING })]
    }
}

struct TestStore {
    store: Arc<Embedded>,
    space: SpaceId,
    home: Partition,
}

impl TestStore {
    async fn new(store: Arc<Embedded>) -> Self {
        let space = store.new_space().await.unwrap();
        store.set_space(space, None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
        let world = Self { store, space, home: Partition::new(space, "home") };
        world.put("source", THING).await;
        world
    }

    async fn put(&self, partition: &'static str, key: Bytes) {
        let commit = Commit {
            stamp: self.store.stamp(),
            epoch: 0,
            conditions: vec![],
            mutations: vec![Mutation::Put(key, VALUE)],
            valid_until: None,
            fence: None,
            bulk: false,
        };
        self.store.commit(&Partition::new(self.space, partition), commit).await.unwrap();
    }

    /// Returns which of `thing` and the reservations a partition has.
    async fn rows(&self, partition: &'static str) -> Vec<Bytes> {
        let reads = Reads::default().and_range(Bytes::new()..vec![0xFF; 10].into(), 100);
        let set = self.store.read(&Partition::new(self.space, partition), &reads).await.unwrap();
        set.ranges[0].rows.iter().map(|row| row.key.clone()).collect()
    }

    fn payload(&self) -> Bytes {
        self.space.0.to_be_bytes().to_vec().into()
    }

    async fn assert_ended(&self, ended: Ended, case: &str) {
        let (here, there) = match ended {
            Ended::Applied => (vec![], vec![THING]),
            Ended::Aborted => (vec![THING], vec![]),
        };
        assert_eq!(self.rows("source").await, here, "{case}: source");
        assert_eq!(self.rows("target").await, there, "{case}: target");
        assert_eq!(self.rows("home").await, Vec::<Bytes>::new(), "{case}: home");
    }
}

/// Opens a store. Its files are removed when the returned directory is dropped.
fn store() -> (tempfile::TempDir, Arc<Embedded>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap();
    (dir, Arc::new(store))
}

#[tokio::test]
async fn intent_interrupted_at_any_step_is_ended_by_any_caller() {
    let (_dir, store) = store();
    let gate = Gate::default();
    let mut applied = 0;
    // The steps: begin, two to prepare, decide, two to finish, remove the row.
    for lives in 0..=7 {
        for last_takes_effect in [false, true] {
            let case = format!("dies at commit {lives}, which takes effect: {last_takes_effect}");
            let world = TestStore::new(store.clone()).await;
            let dying = Interposed::new(store.clone(), CrashAtWrite::at(lives, last_takes_effect));
            let intents = Intents { store: &dying, gate: &gate, home: &world.home, planner: &Move };
            let outcome = intents.run(1, world.payload()).await;
            assert_eq!(outcome.is_err(), lives <= 7, "{case}: {outcome:?}");

            // While the intent is unfinished, the row is in at least one place.
            let here = world.rows("source").await.contains(&THING);
            let there = world.rows("target").await.contains(&THING);
            assert!(here || there, "{case}: lost");

            let intents = Intents { store: &*store, gate: &gate, home: &world.home, planner: &Move };
            let left = intents.unfinished().await.unwrap();
            let mut ended = if there { Ended::Applied } else { Ended::Aborted };
            for (id, _) in left {
                // Resolve twice concurrently, as two readers might.
                let (a, b) = tokio::join!(intents.resolve(id, None), intents.resolve(id, None));
                ended = a.unwrap();
                let _ = b;
                assert!(intents.resolve(id, None).await.is_ok(), "{case}: again");
            }
            if ended == Ended::Applied {
                applied += 1;
            }
            world
                .assert_ended(
                    if world.rows("target").await.is_empty() { Ended::Aborted } else { Ended::Applied },
                    &case,
                )
                .await;
        }
    }
    assert!(applied >= 6, "decided intents are applied: {applied}");
}

#[tokio::test]
async fn refused_intent_leaves_no_rows() {
    let gate = Gate::default();
    let (_dir, store) = store();
    let world = TestStore::new(store.clone()).await;
    world.put("target", THING).await;
    let intents = Intents { store: &*world.store, gate: &gate, home: &world.home, planner: &Move };
    let refused = intents.run(1, world.payload()).await;
    assert!(matches!(refused, Err(IntentError::Refused("the target is taken"))));
    assert_eq!((world.rows("source").await, world.rows("home").await), (vec![THING], vec![]));
    assert!(matches!(intents.run(9, world.payload()).await, Err(IntentError::UnknownKind)));
}

#[tokio::test]
async fn mark_without_an_intent_is_undone() {
    let gate = Gate::default();
    let (_dir, store) = store();
    let world = TestStore::new(store.clone()).await;
    // The intent was begun, then aborted and removed by another caller before its slow owner prepared the
    // source.
    let id = IntentId(world.store.stamp());
    world.put("source", LEAVING).await;
    world.put("source", lazuli_store::intent::mark_key(id)).await;
    let intents = Intents { store: &*world.store, gate: &gate, home: &world.home, planner: &Move };
    let plan = Move.plan(1, &world.payload()).unwrap();
    assert_eq!(intents.resolve(id, Some((&plan, 1))).await.unwrap(), Ended::Aborted);
    world.assert_ended(Ended::Aborted, "an orphaned mark").await;
}
