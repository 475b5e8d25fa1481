//! Clients: they read, write, change the epoch and split shards through a front end of their own, and record
//! what they learn.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_store::{Commit, CommitError, Condition, Mutation, Partition, ReadSet, Reads, SpaceHeader, Store};

use super::history::{Content, End, EpochRecord, ReadRecord, WriteRecord};
use super::world::{FrontEnd, SimulatedWorld};

/// The row that holds the version of a partition.
const VERSION: &[u8] = b"n";
/// Number of other rows of a partition.
const ROWS: u64 = 4;

pub(super) fn partition_of(world: &SimulatedWorld, partition: usize) -> Partition {
    Partition::new(world.space, format!("p{partition}"))
}

/// Runs one client.
pub(super) async fn run(world: Rc<SimulatedWorld>, slot: usize, operations: usize) {
    for _ in 0..operations {
        let front_end = world.front_end(slot);
        let patience =
            if world.percent(world.profile.abandon_percent) { 1 + world.below(2000) } else { 120_000 };
        let abandoned = tokio::time::sleep(Duration::from_millis(patience));
        tokio::select! {
            biased;
            () = operate(&world, &front_end) => {}
            () = front_end.wait_until_dead() => {}
            () = abandoned => {}
        }
        tokio::time::sleep(Duration::from_millis(world.below(30))).await;
    }
}

async fn operate(world: &SimulatedWorld, front_end: &FrontEnd) {
    front_end.connection.wait_until_awake().await;
    let roll = world.below(100) as u32;
    let (epoch, split) = (world.profile.epoch_percent, world.profile.split_percent);
    let partition = world.below(world.profile.partitions as u64) as usize;
    match roll {
        roll if roll < epoch => change_epoch(world, front_end).await,
        roll if roll < epoch + split => split_shard(world, front_end, partition).await,
        roll if roll % 4 == 0 => _ = read(world, front_end, partition).await,
        _ => write(world, front_end, partition).await,
    }
}

fn reads() -> Reads {
    Reads::key(VERSION).and_range(Bytes::from_static(b"a")..Bytes::from_static(b"z"), 100)
}

fn number(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Reads a partition and records the result.
pub(super) async fn read(
    world: &SimulatedWorld,
    front_end: &FrontEnd,
    partition: usize,
) -> Option<(ReadSet, u64)> {
    let start = world.tick();
    let set = front_end.store.read(&partition_of(world, partition), &reads()).await.ok()?;
    front_end.connection.wait_until_awake().await;
    let version = set.rows[0].as_ref().map_or(0, |row| number(&row.value));
    let epoch = set.space.map_or(u64::MAX, |space| space.epoch);
    let rows = set.ranges[0].rows.iter().filter(|row| row.key != VERSION);
    let content: Content = rows.map(|row| (row.key.to_vec(), number(&row.value))).collect();
    let record = ReadRecord { start, end: world.tick(), partition, version, epoch, content };
    world.record.borrow_mut().reads.push(record);
    Some((set, version))
}

/// Writes a new version on condition of the one that was read.
async fn write(world: &SimulatedWorld, front_end: &FrontEnd, partition: usize) {
    let Some((set, read)) = read(world, front_end, partition).await else { return };
    if world.percent(20) {
        // A client that takes its time.
        tokio::time::sleep(Duration::from_millis(world.below(3000))).await;
    }
    let store = &front_end.store;
    let stamp = store.stamp();
    let version = stamp.ticks();
    let value = || Bytes::copy_from_slice(&version.to_le_bytes());
    let row = Bytes::from(format!("x{}", world.below(ROWS)));
    let is_set = world.percent(70);
    let change = if is_set { Mutation::Put(row.clone(), value()) } else { Mutation::Delete(row.clone()) };
    let now = store.now();
    let deadline = world.percent(20).then(|| now + lazuli_concurrency::Span::millis(world.below(5000)));
    let fence = world.percent(10).then_some(now);
    let commit = Commit {
        stamp,
        epoch: set.space.map_or(0, |space| space.epoch),
        conditions: conditions(world, &set),
        mutations: vec![Mutation::Put(Bytes::from_static(VERSION), value()), change],
        valid_until: deadline,
        fence,
        bulk: false,
    };
    let record = WriteRecord {
        start: world.tick(),
        end: End::Unknown,
        partition,
        read,
        version,
        epoch: commit.epoch,
        row: (row.to_vec(), is_set),
        deadline: deadline.map(|at| at.ticks()),
        fence: fence.map(|at| at.ticks()),
    };
    // Recorded before it is sent, because the client may abandon it.
    world.record.borrow_mut().writes.push(record);
    let result = store.commit(&partition_of(world, partition), commit).await;
    front_end.connection.wait_until_awake().await;
    let end = world.tick();
    let mut record = world.record.borrow_mut();
    match result {
        Ok(()) => {
            let mine = record.writes.iter_mut().find(|w| w.version == version);
            mine.expect("recorded above").end = End::Done(end);
        }
        Err(CommitError::Unknown) => {}
        // The write has not taken effect. If the version is read nevertheless, it is not in the chain.
        Err(_) => record.writes.retain(|w| w.version != version),
    }
}

/// Returns conditions on the version, as a row, as a range, or both.
fn conditions(world: &SimulatedWorld, set: &ReadSet) -> Vec<Condition> {
    let row = match &set.rows[0] {
        Some(row) => Condition::Unchanged(Bytes::from_static(VERSION), row.token),
        None => Condition::Absent(Bytes::from_static(VERSION)),
    };
    let range = Condition::RangeUnchanged(set.ranges[0].range.clone(), set.ranges[0].token);
    // The range has the version as well.
    match world.below(3) {
        0 => vec![row],
        1 => vec![range],
        _ => vec![row, range],
    }
}

async fn change_epoch(world: &SimulatedWorld, front_end: &FrontEnd) {
    let Ok(Some(from)) = front_end.store.space(world.space).await else { return };
    let to = SpaceHeader { epoch: from.epoch + 1, open: true };
    let start = world.tick();
    let at = {
        let mut record = world.record.borrow_mut();
        record.epochs.push(EpochRecord { start, end: End::Unknown, from: from.epoch });
        record.epochs.len() - 1
    };
    let result = front_end.store.set_space(world.space, Some(from), to).await;
    front_end.connection.wait_until_awake().await;
    let end = world.tick();
    let mut record = world.record.borrow_mut();
    match result {
        Ok(()) => record.epochs[at].end = End::Done(end),
        Err(CommitError::Unknown) => {}
        // Refused changes have no place in the order.
        Err(_) => record.epochs[at].from = u64::MAX,
    }
}

/// Begins to split the shard of a partition at the partition.
async fn split_shard(world: &SimulatedWorld, front_end: &FrontEnd, partition: usize) {
    front_end.store.split_now(&partition_of(world, partition)).await;
}

/// Commits without conditions in the first epoch.
pub(super) async fn write_blindly(world: &SimulatedWorld, store: &dyn Store) -> Result<(), CommitError> {
    let commit = Commit {
        stamp: store.stamp(),
        epoch: 0,
        conditions: vec![],
        mutations: vec![Mutation::Put(Bytes::from_static(b"x"), Bytes::new())],
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(&partition_of(world, 0), commit).await
}
