//! Generations that are restored for a reserved account, before the account exists.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_account::{AccountDirectory, ReservedAccount};
use lazuli_concurrency::{Pace, Stamp, SystemClock, Timestamp};
use lazuli_generations::{Generation, Generations};
use lazuli_protocol::{Account, ErrorCode, Key};
use lazuli_store::{Commit, Embedded, Mutation, Options, Partition, Reads, SpaceHeader, SpaceId, Store};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Thing {
    space: SpaceId,
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
    accounts: AccountDirectory,
    things: Generations<Thing>,
    _dir: TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(dir.path(), Arc::new(SystemClock), Options::SMALL).unwrap());
        let accounts = AccountDirectory::open(store.clone() as Arc<dyn Store>).await.unwrap();
        let things = Generations::new(store.clone(), accounts.clone());
        Self { store, accounts, things, _dir: dir }
    }

    /// Imports a thing with one row, deleted at the stamp or current. Returns its space.
    async fn import(&self, owner: &Account, name: &str, deleted: Option<Stamp>) -> SpaceId {
        let incoming = self.things.begin_incoming(owner, name, 7).await.unwrap();
        let (space, stamp) = (incoming.space(), self.store.stamp());
        let mutations = vec![Mutation::Put("row".into(), Bytes::new())];
        let epoch = incoming.epoch();
        let commit = Commit {
            stamp,
            epoch,
            conditions: vec![],
            mutations,
            valid_until: None,
            fence: None,
            bulk: true,
        };
        self.store.commit(&Partition::new(space, "p"), commit).await.unwrap();
        let kept_until = deleted.map(|_| Timestamp::MAX.ticks());
        let made = self
            .things
            .finish_incoming(incoming, deleted, |space, _, _| Ok((Thing { space, kept_until }, vec![])));
        made.await.unwrap();
        space
    }

    async fn has_row(&self, space: SpaceId) -> bool {
        let set = self.store.read(&Partition::new(space, "p"), &Reads::key("row")).await.unwrap();
        set.rows[0].is_some()
    }

    async fn sweep(&self) {
        self.things.sweep(Pace::FULL, &()).await.unwrap();
    }
}

fn owner(reserved: &ReservedAccount) -> Account {
    Account {
        name: reserved.name().into(),
        generation: reserved.generation(),
        keys: vec![Key::from_bytes(b"a key".to_vec())],
        settings: Default::default(),
        roles: vec![],
    }
}

#[tokio::test]
async fn data_restored_for_a_reserved_account_survives_sweeps_and_appears_with_the_account() {
    let world = World::new().await;
    let reserved = world.accounts.reserve("lapis").await.unwrap();
    let owner = owner(&reserved);
    let space = world.import(&owner, "a", None).await;
    world.sweep().await;
    assert!(world.accounts.get("lapis").await.unwrap().is_none());
    let added = world.accounts.add_reserved(reserved, owner.clone(), BTreeMap::new()).await.unwrap();
    world.sweep().await;
    assert_eq!(world.things.get(&added, "a").await.unwrap().space, space);
    assert!(world.has_row(space).await);
}

#[tokio::test]
async fn restored_data_becomes_garbage_when_the_reservation_ends_without_an_account() {
    let world = World::new().await;
    let reserved = world.accounts.reserve("lapis").await.unwrap();
    let owner = owner(&reserved);
    let stamp = world.store.stamp();
    let spaces = [world.import(&owner, "a", Some(stamp)).await, world.import(&owner, "a", None).await];
    drop(reserved);
    world.things.schedule_sweep();
    assert!(world.things.sweep_due());
    world.sweep().await;
    for space in spaces {
        assert!(!world.has_row(space).await);
        assert_eq!(world.store.space(space).await.unwrap(), None);
    }
    // The name is free again, and another generation sees nothing.
    let account = world.accounts.add(owner).await.unwrap();
    assert_eq!(world.things.find(&account, "a").await.unwrap(), None);
}

#[tokio::test]
async fn deleted_generation_is_imported_closed_and_can_be_restored() {
    let world = World::new().await;
    let reserved = world.accounts.reserve("lapis").await.unwrap();
    let owner = owner(&reserved);
    let deleted = world.store.stamp();
    let space = world.import(&owner, "a", Some(deleted)).await;
    let closed = Some(SpaceHeader { epoch: 8, open: false });
    assert_eq!(world.store.space(space).await.unwrap(), closed);
    let account = world.accounts.add_reserved(reserved, owner, BTreeMap::new()).await.unwrap();
    world.sweep().await;
    assert_eq!(world.store.space(space).await.unwrap(), closed);
    assert_eq!(world.things.find(&account, "a").await.unwrap(), None);
    let restored = world.things.restore(account.clone(), "a", deleted, |kept, _| {
        let kept = kept.ok_or(ErrorCode::ContainerNotFound)?;
        Ok(Thing { kept_until: None, ..kept })
    });
    restored.await.unwrap();
    assert_eq!(world.things.get(&account, "a").await.unwrap().space, space);
    assert!(world.has_row(space).await);
}
