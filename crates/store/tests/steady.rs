//! Tests a store on a machine whose clock jumps.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use lazuli_concurrency::{Clock, ManualClock, Span, Timestamp, WrongTime};
use lazuli_store::{
    Commit, Embedded, Mutation, OpenError, Options, Partition, SpaceHeader, SpaceId, SteadyClock, Store,
    Trust,
};

const TWO_DAYS: Span = Span::seconds(2 * 24 * 3600);

struct Machine {
    wall: Arc<ManualClock>,
    boot: Arc<ManualClock>,
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let wall = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_800_000_000)));
        let boot = Arc::new(ManualClock::new(Timestamp::from_ticks(1000)));
        Self { wall, boot, dir: tempfile::tempdir().unwrap() }
    }

    fn pass(&self, span: Span) {
        self.wall.advance(span);
        self.boot.advance(span);
    }

    fn open(&self) -> Result<Embedded, OpenError> {
        let clock = SteadyClock::new(self.wall.clone(), self.boot.clone(), Trust::Checked);
        Embedded::open(self.dir.path(), Arc::new(clock), Options::SMALL)
    }
}

/// Writes a row and returns its stamp.
async fn write(store: &Embedded) -> Timestamp {
    let stamp = store.stamp();
    let mutations = vec![Mutation::Put("row".into(), "value".into())];
    let commit = Commit {
        stamp,
        epoch: 0,
        conditions: vec![],
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(&Partition::new(SpaceId(7), "p"), commit).await.unwrap();
    stamp.timestamp()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jump_of_the_machine_clock_does_not_affect_tokens_or_stop_timeouts() {
    let machine = Machine::new();
    let store = machine.open().unwrap();
    store.set_space(SpaceId(7), None, SpaceHeader { epoch: 0, open: true }).await.unwrap();
    let start = machine.wall.now();
    let mut last = write(&store).await;
    machine.wall.advance(Span::seconds(400 * 24 * 3600));
    for _ in 0..10 {
        machine.pass(Span::seconds(60));
        let stamp = write(&store).await;
        assert!(stamp > last);
        last = stamp;
    }
    assert!(last >= start + Span::seconds(600), "ten minutes have passed");
    assert!(last < start + Span::seconds(660), "at most eleven minutes have passed");
    machine.wall.set(start + Span::seconds(610));
    machine.boot.advance(Span::seconds(10));
    assert!(write(&store).await > last);
    machine.pass(Span::seconds(100));
    assert_eq!(store.now(), machine.wall.now(), "time follows the machine again");
    store.close();
    drop(store);
    // The jump is not stored, so the next start accepts the right time.
    let store = machine.open().unwrap();
    assert!(write(&store).await > last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_refuses_to_open_with_a_clock_days_behind_and_is_not_changed() {
    let machine = Machine::new();
    drop(machine.open().unwrap());
    machine.wall.set(machine.wall.now() - TWO_DAYS);
    assert!(matches!(machine.open(), Err(OpenError::Time(WrongTime::Behind { .. }))));
    machine.wall.advance(TWO_DAYS);
    drop(machine.open().unwrap());
}
