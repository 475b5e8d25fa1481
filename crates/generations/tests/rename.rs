//! Renames interrupted at every step, and concurrent renames. At any time exactly one of the two names has
//! the space, and the space is open.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Pace, Span, SystemClock, Timestamp};
use lazuli_generations::{Created, Generation, Generations, Removal, named_space};
use lazuli_protocol::{Account, ErrorCode, Key};
use lazuli_store::interposed::{CrashAtWrite, Interposed, Interposer};
use lazuli_store::{
    Change, CommitError, Decision, Embedded, Gate, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId,
    Store, View, transact,
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::sync::Notify;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Thing {
    space: SpaceId,
    label: String,
    kept_until: Option<u64>,
}

impl Generation for Thing {
    const KIND: &'static str = "thing";
    const NOT_FOUND: ErrorCode = ErrorCode::ContainerNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::ContainerAlreadyExists;

    fn space(&self) -> SpaceId {
        self.space
    }

    fn kept_until(&self) -> Option<Timestamp> {
        self.kept_until.map(Timestamp::from_ticks)
    }
}

struct World {
    store: Arc<Embedded>,
    account: Arc<Account>,
    things: Generations<Thing>,
    _dir: TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap());
        let accounts = AccountDirectory::open(store.clone() as Arc<dyn Store>).await.unwrap();
        let account = Account {
            name: "lapis".into(),
            generation: 0,
            keys: vec![Key::from_bytes(b"a key".to_vec())],
            settings: Default::default(),
            roles: vec![],
        };
        accounts.add(account).await.unwrap();
        let account = accounts.get("lapis").await.unwrap().unwrap();
        let things = Generations::new(store.clone(), accounts);
        Self { store, account, things, _dir: dir }
    }

    /// Returns the things as another process sees them that opens the same store.
    async fn restarted(&self) -> Generations<Thing> {
        self.over(self.store.clone()).await
    }

    async fn over(&self, store: Arc<dyn Store>) -> Generations<Thing> {
        Generations::new(store.clone(), AccountDirectory::open(store).await.unwrap())
    }

    async fn create(&self, name: &str) -> Thing {
        match self.try_create(&self.things, name).await {
            Created::New(thing) => thing,
            Created::Existing(_) => panic!("{name} exists already"),
        }
    }

    async fn try_create(&self, things: &Generations<Thing>, name: &str) -> Created<Thing> {
        let label = name.to_owned();
        let make = move |space, _: &View<'_>| Thing { space, label: label.clone(), kept_until: None };
        things.create(&self.account, name, make).await.unwrap()
    }

    async fn rename(&self, things: &Generations<Thing>, source: &str, target: &str) -> Result<(), ErrorCode> {
        let renamed = things.rename(self.account.clone(), source, target, |_, _| Ok(None));
        renamed.await.map_err(|refusal| refusal.code())
    }

    async fn remove(&self, name: &str, keep: bool) -> Result<(), ErrorCode> {
        let removed = self.things.remove(self.account.clone(), name, move |thing, view| {
            thing.kept_until = keep.then(|| (view.now + Span::seconds(1000)).ticks());
            Ok(Removal { keep, valid_until: None })
        });
        removed.await.map_err(|refusal| refusal.code())
    }

    /// Returns all names and their things. Asserts that lookups and a listing agree.
    async fn names(&self, things: &Generations<Thing>) -> Vec<(String, Thing)> {
        let mut listed = vec![];
        let all = things.list(&self.account, "", None, false, |entry| {
            listed.push((entry.name.to_owned(), entry.record.clone()));
            ControlFlow::Continue(())
        });
        assert_eq!(all.await.unwrap(), None);
        for name in ["a", "b"] {
            let found = things.find(&self.account, name).await.unwrap();
            assert_eq!(found.as_ref(), listed.iter().find(|(n, _)| n == name).map(|(_, thing)| thing));
        }
        listed
    }

    /// Returns the keys of all rows of things.
    fn rows(&self) -> Vec<Bytes> {
        let mut rows = vec![];
        let walk = self.store.for_each_row(|_, partition, row| {
            if partition.starts_with(b"thing/") {
                rows.push(row.key.clone());
            }
            Ok(())
        });
        walk.unwrap();
        rows
    }

    fn named_spaces(&self) -> Vec<SpaceId> {
        let mut spaces = vec![];
        let walk = self.store.for_each_row(|_, partition, row| {
            spaces.extend(named_space::<Thing>(partition, row).unwrap());
            Ok(())
        });
        walk.unwrap();
        spaces.dedup();
        spaces
    }

    async fn is_open(&self, space: SpaceId) -> bool {
        self.store.space(space).await.unwrap().is_some_and(|header| header.open)
    }
}

#[tokio::test]
async fn rename_moves_the_thing_and_its_space_to_the_new_name() {
    let world = World::new().await;
    let thing = world.create("a").await;
    let things = &world.things;
    assert_eq!(world.rename(things, "b", "a").await, Err(ErrorCode::ContainerNotFound));
    assert_eq!(world.rename(things, "a", "a").await, Err(ErrorCode::ContainerAlreadyExists));
    assert_eq!(world.rename(things, "a", "b").await, Ok(()));
    assert_eq!(world.names(things).await, [("b".to_owned(), thing.clone())]);
    assert_eq!(world.rename(things, "a", "b").await, Err(ErrorCode::ContainerNotFound));
    world.create("a").await;
    assert_eq!(world.rename(things, "a", "b").await, Err(ErrorCode::ContainerAlreadyExists));
    assert_eq!(world.rows(), ["current", "current"], "the renames left no rows");
    assert!(world.is_open(thing.space).await);
    let refused =
        things.rename(world.account.clone(), "a", "c", |_, _| Err(ErrorCode::LeaseIdMissing.into()));
    assert_eq!(refused.await.map_err(|refusal| refusal.code()), Err(ErrorCode::LeaseIdMissing));
    assert_eq!(world.rows(), ["current", "current"]);
}

#[tokio::test]
async fn rename_interrupted_at_any_step_leaves_exactly_one_of_the_two_names() {
    let world = World::new().await;
    let mut ends = [0, 0];
    // begin, two to prepare, decide, two to finish, forget, reconcile.
    for write in 0..=8 {
        for last_takes_effect in [false, true] {
            for next_actor in 0..4 {
                let what = format!(
                    "dies at write {write}, which takes effect: {last_takes_effect}; next actor: {next_actor}"
                );
                let thing = world.create("a").await;
                let dying = Interposed::new(world.store.clone(), CrashAtWrite::at(write, last_takes_effect));
                let dying = world.over(Arc::new(dying)).await;
                world.rename(&dying, "a", "b").await.unwrap_err();
                assert_eq!(world.named_spaces(), [thing.space], "{what}");

                let things = world.restarted().await;
                let [(name, found)] = &world.names(&things).await[..] else { panic!("{what}") };
                assert_eq!(*found, thing, "{what}");
                match next_actor {
                    0 => {
                        while things.sweep_due() {
                            things.sweep(Pace::FULL, &()).await.unwrap();
                        }
                    }
                    1 => {
                        let label = |thing: &mut Thing| thing.label = "changed".into();
                        let changed =
                            things.change(&world.account, name, |thing, _| Ok((label(thing), None)));
                        assert_eq!(changed.await.unwrap().0.label, "changed", "{what}");
                    }
                    2 => {
                        let other = if name == "a" { "b" } else { "a" };
                        world.rename(&things, name, other).await.unwrap();
                        world.rename(&things, other, name).await.unwrap();
                    }
                    _ => {
                        let other = if name == "a" { "b" } else { "a" };
                        let like = thing.clone();
                        let make = move |space, _: &View<'_>| Thing { space, ..like.clone() };
                        let made = things.create(&world.account, other, make);
                        assert!(matches!(made.await.unwrap(), Created::New(_)), "{what}");
                        things
                            .remove(world.account.clone(), other, |_, _| Ok(Removal::default()))
                            .await
                            .unwrap();
                        things.sweep(Pace::FULL, &()).await.unwrap();
                    }
                }
                let [(still, found)] = &world.names(&things).await[..] else { panic!("{what}") };
                assert_eq!((still, found.space), (name, thing.space), "{what}");
                assert!(world.is_open(thing.space).await, "{what}");
                things.sweep(Pace::FULL, &()).await.unwrap();
                assert_eq!(world.rows(), ["current"], "{what}");
                world.remove(name, false).await.unwrap();
                things.sweep(Pace::FULL, &()).await.unwrap();
                ends[usize::from(name == "b")] += 1;
            }
        }
    }
    assert!(ends.iter().all(|ended| *ended >= 16), "some before the decision, some after: {ends:?}");
}

#[tokio::test]
async fn new_name_decides_whether_a_renamed_space_is_open() {
    let world = World::new().await;
    let thing = world.create("a").await;
    world.remove("a", true).await.unwrap();
    let mut deleted = None;
    let list = world.things.list(&world.account, "", None, true, |entry| {
        deleted = entry.deleted_at;
        ControlFlow::Continue(())
    });
    list.await.unwrap();
    // The restore stops before it opens the space.
    let stuck = Interposed::new(world.store.clone(), CrashAtWrite::at(2, false));
    let restoring = world.over(Arc::new(stuck)).await;
    let restored =
        restoring.restore(world.account.clone(), "a", deleted.unwrap(), |kept, _| Ok(kept.unwrap()));
    restored.await.unwrap_err();
    assert!(!world.is_open(thing.space).await);
    world.rename(&world.things, "a", "b").await.unwrap();
    assert!(world.is_open(thing.space).await);
    // Operations on the old name do not change the renamed space.
    world.create("a").await;
    world.remove("a", false).await.unwrap();
    world.things.sweep(Pace::FULL, &()).await.unwrap();
    assert!(world.is_open(thing.space).await);
    world.remove("b", false).await.unwrap();
    assert!(!world.is_open(thing.space).await);
    world.things.sweep(Pace::FULL, &()).await.unwrap();
    assert_eq!(world.rows(), Vec::<Bytes>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_renames_creates_and_deletes_never_give_one_space_two_names() {
    const ROUNDS: usize = 40;
    let world = Arc::new(World::new().await);
    for round in 0..ROUNDS {
        let thing = world.create("a").await;
        let actors = (0..32).map(|actor| {
            let world = world.clone();
            tokio::spawn(async move {
                match actor % 8 {
                    0 => world.remove("a", false).await.is_ok().then_some("removed a"),
                    1 => {
                        let made = world.try_create(&world.things, "b").await;
                        matches!(made, Created::New(_)).then_some("created b")
                    }
                    2 => {
                        world.things.sweep(Pace::FULL, &()).await.unwrap();
                        None
                    }
                    3 => {
                        for name in ["a", "b"] {
                            world.things.find(&world.account, name).await.unwrap();
                        }
                        None
                    }
                    _ => world.rename(&world.things, "a", "b").await.is_ok().then_some("renamed"),
                }
            })
        });
        let mut done = vec![];
        for actor in actors.collect::<Vec<_>>() {
            done.extend(actor.await.unwrap());
        }
        let names = world.names(&world.things).await;
        let of_the_first = names.iter().filter(|(_, found)| found.space == thing.space).count();
        let removed = done.iter().filter(|what| **what == "removed a").count();
        let renamed = done.iter().filter(|what| **what == "renamed").count();
        assert_eq!(removed + renamed, 1, "round {round}: {done:?}");
        assert_eq!(of_the_first, renamed, "round {round}: {done:?} {names:?}");
        for (name, found) in &names {
            assert!(world.is_open(found.space).await, "round {round}: {name}");
            world.remove(name, false).await.unwrap();
        }
        assert!(!world.is_open(thing.space).await);
    }
    world.things.sweep(Pace::FULL, &()).await.unwrap();
    assert_eq!(world.rows(), Vec::<Bytes>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_does_not_disturb_writers_into_its_space() {
    let world = Arc::new(World::new().await);
    let thing = world.create("a").await;
    let gate = Arc::new(Gate::default());
    let writers = (0..16).map(|writer: u8| {
        let (store, gate) = (world.store.clone(), gate.clone());
        tokio::spawn(async move {
            let partition = Partition::new(thing.space, vec![writer]);
            for _ in 0..100 {
                transact(&*store, &gate, &partition, Reads::default(), |_| {
                    Ok::<_, ()>(Decision::Write(Change::of([Mutation::Add("n".into(), 1)]), ()))
                })
                .await
                .unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut names = ["a", "b"];
    while writers.iter().any(|writer| !writer.is_finished()) {
        world.rename(&world.things, names[0], names[1]).await.unwrap();
        names.reverse();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for writer in 0..16 {
        let read =
            world.store.read(&Partition::new(thing.space, vec![writer]), &Reads::key("n")).await.unwrap();
        assert_eq!(read.rows[0].as_ref().unwrap().value, 100i64.to_le_bytes().to_vec());
    }
}

/// Blocks a caller that has just opened a space until the test releases it.
#[derive(Clone, Default)]
struct Opening(Arc<(Notify, Notify)>);

#[async_trait]
impl Interposer for Opening {
    async fn set_space(
        &self,
        store: &dyn Store,
        space: SpaceId,
        from: Option<SpaceHeader>,
        to: SpaceHeader,
    ) -> Result<(), CommitError> {
        store.set_space(space, from, to).await?;
        self.0.0.notify_one();
        self.0.1.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn create_that_loses_a_race_leaves_its_space_as_garbage_for_the_sweep() {
    let world = World::new().await;
    let opening = Opening::default();
    let things = world.over(Arc::new(Interposed::new(world.store.clone(), opening.clone()))).await;
    let first = async {
        opening.0.0.notified().await;
        let first = world.create("a").await;
        opening.0.1.notify_one();
        first
    };
    let (second, first) = tokio::join!(world.try_create(&things, "a"), first);
    assert_eq!(second, Created::Existing(first));
    assert!(things.sweep_due());
    assert_eq!(world.things.sweep(Pace::FULL, &()).await.unwrap().spaces, 1);
}

#[tokio::test]
async fn create_names_its_space_even_if_the_caller_is_dropped() {
    let world = World::new().await;
    let opening = Opening::default();
    let things = world.over(Arc::new(Interposed::new(world.store.clone(), opening.clone()))).await;
    tokio::select! {
        _ = world.try_create(&things, "a") => panic!("the create is blocked"),
        () = opening.0.0.notified() => {}
    }
    opening.0.1.notify_one();
    let named = async {
        while world.things.find(&world.account, "a").await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), named).await.expect("the space gets its name");
}
