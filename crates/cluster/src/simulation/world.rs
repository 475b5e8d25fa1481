//! The simulated world: a cluster, front ends that come and go, and the record of what clients learned.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lazuli_rados::Cluster;
use lazuli_rados::simulated::{Connection, Faults, MACHINES, SimulatedClock, SimulatedCluster};
use lazuli_store::{SpaceHeader, SpaceId, Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::history::OperationRecords;
use crate::{ClusterStore, ProtocolEvents, ShardLimits};

/// Number of front ends.
pub(super) const FRONT_ENDS: usize = 3;

/// Minimum number of disturbances in a run.
const MIN_DISTURBANCES: u32 = 3;
/// Maximum number of processes in a run.
const MAX_INSTANCES: usize = 40;

/// The choices of a seed for a whole run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) faults: Faults,
    /// Maximum pause between two disturbances, in milliseconds.
    pub(super) calm_millis: u64,
    /// Of 100 operations, how many change the epoch.
    pub(super) epoch_percent: u32,
    /// Of 100 operations, how many split a shard.
    pub(super) split_percent: u32,
    /// Of 100 operations, how many are abandoned by their client.
    pub(super) abandon_percent: u32,
    pub(super) partitions: usize,
    pub(super) split_rows: usize,
}

impl Profile {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed ^ 0xFA17);
        let mut one_of = |values: &[u32]| values[random.random_range(0..values.len())];
        let faults = Faults {
            lost_request_per_mille: one_of(&[0, 3, 10]),
            lost_reply_per_mille: one_of(&[0, 3, 10]),
            late_per_mille: one_of(&[0, 3, 10]),
            slow_per_mille: one_of(&[20, 100, 250]),
            slow_millis: u64::from(one_of(&[200, 1200, 4000])),
            short_page_per_mille: one_of(&[0, 300]),
        };
        Self {
            faults,
            calm_millis: u64::from(one_of(&[1000, 4000, 15_000])),
            epoch_percent: one_of(&[1, 5, 15, 40]),
            split_percent: one_of(&[0, 2, 10]),
            abandon_percent: one_of(&[0, 5, 20]),
            partitions: one_of(&[2, 3, 6]) as usize,
            split_rows: one_of(&[4, 8, 100]) as usize,
        }
    }
}

/// One process.
pub(super) struct FrontEnd {
    pub(super) store: Arc<ClusterStore>,
    pub(super) connection: Arc<Connection>,
    is_dead: Cell<bool>,
    died: Notify,
}

impl FrontEnd {
    /// Waits until the process has ended.
    pub(super) async fn wait_until_dead(&self) {
        while !self.is_dead.get() {
            self.died.notified().await;
        }
    }
}

pub(super) struct SimulatedWorld {
    pub(super) cluster: SimulatedCluster,
    pub(super) profile: Profile,
    pub(super) space: SpaceId,
    pub(super) random: RefCell<SmallRng>,
    pub(super) record: RefCell<OperationRecords>,
    pub(super) events: ProtocolEvents,
    front_ends: RefCell<Vec<Rc<FrontEnd>>>,
    start: Instant,
    ticks: Cell<u64>,
    instances: Cell<usize>,
    pub(super) stopped: Cell<bool>,
    pub(super) disturbances: Cell<u32>,
}

impl SimulatedWorld {
    pub(super) async fn new(seed: u64) -> Rc<Self> {
        let profile = Profile::of(seed);
        let cluster = SimulatedCluster::new(seed, Faults::NONE);
        let mut world = Self {
            cluster,
            profile,
            space: SpaceId::ROOT,
            random: RefCell::new(SmallRng::seed_from_u64(seed)),
            record: RefCell::default(),
            events: ProtocolEvents::default(),
            front_ends: RefCell::default(),
            start: Instant::now(),
            ticks: Cell::new(0),
            instances: Cell::new(0),
            stopped: Cell::new(false),
            disturbances: Cell::new(0),
        };
        for _ in 0..FRONT_ENDS {
            let front_end = world.start_front_end().await;
            world.front_ends.borrow_mut().push(front_end);
        }
        let store = world.front_end(0).store.clone();
        world.space = store.new_space().await.expect("a space");
        store.set_space(world.space, None, SpaceHeader { epoch: 0, open: true }).await.expect("opened");
        world.cluster.set_faults(profile.faults);
        Rc::new(world)
    }

    pub(super) fn front_end(&self, at: usize) -> Rc<FrontEnd> {
        self.front_ends.borrow()[at].clone()
    }

    /// Returns a moment. Later moments are greater.
    pub(super) fn tick(&self) -> u64 {
        self.ticks.set(self.ticks.get() + 1);
        self.ticks.get()
    }

    /// Draws a number below `end`.
    pub(super) fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().random_range(0..end.max(1))
    }

    pub(super) fn percent(&self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Starts a process that joins the cluster.
    pub(super) async fn start_front_end(&self) -> Rc<FrontEnd> {
        loop {
            let instance = self.instances.replace(self.instances.get() + 1);
            let connection = self.cluster.connect(&format!("fe{instance}"));
            let skew = self.below(800) as i64 - 400;
            let clock = Arc::new(SimulatedClock::exact(self.start).ahead_by(skew));
            let limits = ShardLimits { split_rows: self.profile.split_rows };
            if let Ok(store) = ClusterStore::open(connection.clone(), clock, limits).await {
                return Rc::new(FrontEnd {
                    store: Arc::new(store),
                    connection,
                    is_dead: Cell::new(false),
                    died: Notify::new(),
                });
            }
        }
    }

    /// Disturbs the world until it is stopped, then heals everything.
    pub(super) async fn disturb(self: Rc<Self>) {
        while !self.stopped.get() || self.disturbances.get() < MIN_DISTURBANCES {
            tokio::time::sleep(Duration::from_millis(1 + self.below(self.profile.calm_millis))).await;
            self.disturbances.set(self.disturbances.get() + 1);
            let duration = Duration::from_millis(100 + self.below(8000));
            match self.below(6) {
                0 | 1 => self.cluster.stop_machine(self.below(MACHINES as u64) as usize, duration),
                2 => self.freeze(duration).await,
                3 => self.kill(false).await,
                4 => self.kill(true).await,
                _ => {
                    self.cluster.set_full(true);
                    tokio::time::sleep(duration / 2).await;
                    self.cluster.set_full(false);
                }
            }
        }
        self.cluster.set_faults(Faults::NONE);
    }

    fn random_slot(&self) -> usize {
        self.below(FRONT_ENDS as u64) as usize
    }

    async fn freeze(&self, duration: Duration) {
        let front_end = self.front_end(self.random_slot());
        front_end.connection.freeze();
        tokio::time::sleep(duration).await;
        front_end.connection.wake();
    }

    /// Ends a process, and starts another one in its place. A fenced process is frozen first and wakes later.
    async fn kill(&self, fence: bool) {
        // Every instance takes a slot.
        if self.instances.get() >= MAX_INSTANCES {
            return;
        }
        let slot = self.random_slot();
        let old = self.front_end(slot);
        old.connection.freeze();
        if fence {
            let other = self.front_end((slot + 1) % FRONT_ENDS);
            _ = other.connection.fence(old.connection.address()).await;
        } else {
            old.is_dead.set(true);
            old.died.notify_waiters();
        }
        let new = self.start_front_end().await;
        self.events.add(old.store.events());
        self.front_ends.borrow_mut()[slot] = new;
        if fence {
            old.connection.wake();
        }
    }

    /// Adds the events of the front ends that still run.
    pub(super) fn collect_events(&self) {
        for front_end in self.front_ends.borrow().iter() {
            self.events.add(front_end.store.events());
        }
    }
}
