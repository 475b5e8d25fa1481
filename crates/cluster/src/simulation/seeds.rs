//! Runs seeds, counts the steps of the protocols, and shows that planted mistakes are found.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_store::{CommitError, Row, SpaceHeader, SpaceId, Store, Which};
use tokio::task::LocalSet;

use super::PLANTED;
use super::clients;
use super::world::{FRONT_ENDS, SimulatedWorld};
use crate::{ProtocolEvent, ProtocolEvents};

/// Clients of each front end.
const CLIENTS: usize = 2;
/// Operations of each client.
const OPERATIONS: usize = 40;
/// Number of seeds without LAZULI_SECONDS.
const MIN_SEEDS: u64 = 200;
/// Simulated time after which a run is stuck.
const STUCK: Duration = Duration::from_secs(2 * 3600);

/// The planted mistakes: number and description. Up to 11 as in the model.
const MISTAKES: [(u8, &str); 11] = [
    (1, "rows are copied without comparing the generation of the new shard"),
    (2, "the new shard becomes active before the old one has given the range up"),
    (3, "a freeze by an older change is taken for one's own"),
    (4, "a change is decided without freezing"),
    (5, "the shard that a split has made is forgotten"),
    (6, "a shard is thawed before the decision"),
    (7, "commits go on in the part that is being moved"),
    (8, "a reader believes the header of a frozen shard"),
    (10, "a reader joins old rows with the header of a later change"),
    (11, "a late helper freezes over a younger change"),
    (12, "the buckets of a new shard begin empty"),
];

/// The result of one seed.
struct SeedRun {
    violation: Option<String>,
    events: ProtocolEvents,
    fingerprint: u64,
    operations: usize,
    disturbances: u32,
}

fn run(seed: u64) -> SeedRun {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let world = SimulatedWorld::new(seed).await;
        let finished = tokio::time::timeout(STUCK, simulate(world.clone())).await;
        world.collect_events();
        let violation = match finished {
            Ok(Ok(())) => world.record.borrow().check().err(),
            Ok(Err(violation)) => Some(violation),
            Err(_) => Some("stuck".to_owned()),
        };
        let record = world.record.borrow();
        let events = ProtocolEvents::default();
        events.add(&world.events);
        SeedRun {
            violation,
            events,
            fingerprint: world.cluster.fingerprint(),
            operations: record.reads.len() + record.writes.len() + record.epochs.len(),
            disturbances: world.disturbances.get(),
        }
    })
}

/// Runs all clients to their end, heals the world, and checks its final state.
async fn simulate(world: Rc<SimulatedWorld>) -> Result<(), String> {
    let disturbing = tokio::task::spawn_local(world.clone().disturb());
    let clients: Vec<_> = (0..FRONT_ENDS * CLIENTS)
        .map(|client| tokio::task::spawn_local(clients::run(world.clone(), client % FRONT_ENDS, OPERATIONS)))
        .collect();
    for client in clients {
        client.await.map_err(|error| error.to_string())?;
    }
    world.stopped.set(true);
    disturbing.await.map_err(|error| error.to_string())?;
    // Ops that are late arrive.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let last = world.start_front_end().await;
    for partition in 0..world.profile.partitions {
        clients::read(&world, &last, partition).await.ok_or("a partition cannot be read at the end")?;
    }
    check_scan(&world, &*last.store).await?;
    let swept = sweep(&world, &*last.store).await;
    world.events.add(last.store.events());
    swept
}

/// Compares a scan over the space with the last reads of each partition.
async fn check_scan(world: &SimulatedWorld, store: &dyn Store) -> Result<(), String> {
    let (mut from, mut rows) = (Default::default(), 0);
    loop {
        let page =
            store.scan_space(world.space, from, None, Which::All, 100).await.map_err(|e| e.to_string())?;
        rows += page.rows.len();
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    if count_all_rows(world, store).await? != rows {
        return Err("a walk over all rows and a scan have different numbers of rows".to_owned());
    }
    let record = world.record.borrow();
    let last = record.reads.iter().rev().take(world.profile.partitions);
    let expected: usize = last.map(|read| read.content.len() + usize::from(read.version != 0)).sum();
    if rows == expected { Ok(()) } else { Err(format!("a scan returned {rows} rows instead of {expected}")) }
}

/// Counts the rows of the space in a walk over the rows of all spaces.
async fn count_all_rows(world: &SimulatedWorld, store: &dyn Store) -> Result<usize, String> {
    let (space, mut rows, mut position) = (world.space, 0, None);
    loop {
        let mut count = |found: SpaceId, _: Bytes, _: Row| {
            rows += usize::from(found == space);
            ControlFlow::Continue(())
        };
        position = store.visit_all(position, &mut count).await.map_err(|error| error.to_string())?;
        if position.is_none() {
            return Ok(rows);
        }
    }
}

/// Closes and sweeps the space. No shard of it may be left.
async fn sweep(world: &SimulatedWorld, store: &dyn Store) -> Result<(), String> {
    let error = |error: CommitError| format!("while sweeping: {error}");
    loop {
        let from = store.space(world.space).await.map_err(|e| e.to_string())?.ok_or("the space is gone")?;
        let closed = SpaceHeader { epoch: from.epoch, open: false };
        match store.set_space(world.space, Some(from), closed).await {
            Ok(()) => break,
            // A change that its client abandoned was decided meanwhile.
            Err(CommitError::Conflict) => {}
            Err(other) => return Err(error(other)),
        }
    }
    let mut place = Default::default();
    loop {
        let is_start = place == Default::default();
        match store.sweep_space(world.space, place, 5).await.map_err(error)? {
            Some(next) => place = next,
            None if is_start => break,
            None => place = Default::default(),
        }
    }
    match store.space(world.space).await {
        Ok(None) => {}
        other => return Err(format!("the space is left after its sweep: {other:?}")),
    }
    match clients::write_blindly(world, store).await {
        Err(CommitError::Gone) => Ok(()),
        other => Err(format!("a commit to a space that was swept: {other:?}")),
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs a seed and turns a panic into a violation.
fn run_caught(seed: u64) -> SeedRun {
    catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|_| SeedRun {
        violation: Some("a panic".to_owned()),
        events: ProtocolEvents::default(),
        fingerprint: 0,
        operations: 0,
        disturbances: 0,
    })
}

#[test]
fn seeds_have_linearizable_histories_and_perform_every_step() {
    if let Some(mistake) = number_from("LAZULI_MISTAKE") {
        PLANTED.set(mistake as u8);
    }
    if let Some(seed) = number_from("LAZULI_SEED") {
        let run = run(seed);
        println!("seed {seed}: {:?}\n{}", run.violation, run.events);
        assert_eq!(run.violation, None);
        return;
    }
    let (seconds, seeds) = (number_from("LAZULI_SECONDS"), number_from("LAZULI_SEEDS"));
    let (start, total) = (Instant::now(), ProtocolEvents::default());
    let first = number_from("LAZULI_FIRST_SEED").unwrap_or(1);
    let (mut seed, mut operations, mut disturbances) = (first, 0, 0);
    let is_over = |start: Instant| seconds.is_none_or(|most| start.elapsed() >= Duration::from_secs(most));
    // A minimum of seeds, so that a slow machine runs every step as well.
    while seed - first < MIN_SEEDS || (!is_over(start) && seeds.is_none_or(|most| seed - first < most)) {
        let run = run_caught(seed);
        assert_eq!(run.violation, None, "seed {seed}");
        total.add(&run.events);
        operations += run.operations;
        disturbances += run.disturbances;
        seed += 1;
    }
    println!("{} seeds, {operations} operations, {disturbances} disturbances\n{total}", seed - first);
    for event in ProtocolEvent::ALL.iter().filter(|event| total.of(**event) == 0) {
        println!("never happened: {event:?}");
    }
    let is_rare =
        |event| matches!(event, ProtocolEvent::DoubtNotAppliedByEarlierProbe | ProtocolEvent::DoubtUnknown);
    let missing =
        ProtocolEvent::ALL.iter().filter(|event| total.of(**event) == 0 && !is_rare(**event)).count();
    assert_eq!(missing, 0, "steps never happened");
}

#[test]
fn seed_replays_exactly() {
    let (first, second) = (run(11), run(11));
    assert_eq!(first.fingerprint, second.fingerprint);
    assert_ne!(first.fingerprint, run(12).fingerprint);
}

/// Takes minutes, because some mistakes need rare histories.
#[test]
#[ignore = "takes minutes: make test-long"]
fn planted_mistakes_are_found() {
    const MAX_SEEDS: u64 = 20_000;
    let mut missed = vec![];
    for (mistake, description) in MISTAKES {
        PLANTED.set(mistake);
        let start = Instant::now();
        let found = (1..=MAX_SEEDS).find_map(|seed| Some((seed, run_caught(seed).violation?)));
        match found {
            Some((seed, violation)) => {
                let violation: String = violation.chars().take(150).collect();
                println!(
                    "mistake {mistake} ({description}): seed {seed}, {:?}: {violation}",
                    start.elapsed()
                );
            }
            None => missed.push(mistake),
        }
    }
    PLANTED.set(0);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
