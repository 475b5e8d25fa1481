//! A simulated cluster, for tests: the objects are in memory, and the faults of networks, machines and front
//! ends follow from a seed.
//!
//! The simulation runs in a single-threaded runtime of tokio with paused time. Every delay is drawn from one
//! generator, so a seed always gives the same run. [`SimulatedCluster::fingerprint`] digests all ops and
//! shows that.
//!
//! The simulation keeps the promises of [`crate::Cluster`] and nothing more:
//!
//! - An op takes effect after a delay, and its reply arrives after another. Either may be lost. An op without
//!   a reply may take effect long after its sender has given up.
//! - Ops of one connection on one object keep their order, except for those without a reply.
//! - A machine that has stopped performs its ops once it returns, in any order.
//! - A blocklisted connection is refused only by machines that know the new map. A machine learns of the map
//!   after some time, or from an op of a client that knows it.
//! - Pages of keys may be short.

mod clock;
mod connection;
mod faults;
mod objects;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{
    InstanceAddress, ObjectName, Pool, PoolSpace, ReadFailure, ReadOp, ReadReply, WriteError, WriteOp,
};

pub use clock::SimulatedClock;
pub use connection::Connection;
pub use faults::{Delivery, Fate, Faults};
use objects::ObjectMap;

/// Number of machines that hold objects.
pub const MACHINES: usize = 3;
/// Maximum keys that a read returns at once, as by `osd_max_omap_entries_per_request`.
const PAGE_LIMIT: usize = 1024;

/// A cluster, shared by its connections.
#[derive(Clone)]
pub struct SimulatedCluster {
    shared: Arc<Mutex<ClusterState>>,
    start: Instant,
}

struct ClusterState {
    random: SmallRng,
    faults: Faults,
    objects: ObjectMap,
    machines: [Machine; MACHINES],
    /// Number of the newest map. Every fence makes another one.
    map: u64,
    /// Fenced connections, with the map that shuts them out.
    fenced: BTreeMap<InstanceAddress, u64>,
    is_full: bool,
    watchers: BTreeMap<(Pool, ObjectName), Vec<mpsc::UnboundedSender<Bytes>>>,
    fingerprint: u64,
    ops: u64,
}

#[derive(Clone, Copy)]
struct Machine {
    /// The newest map that the machine knows.
    map: u64,
    stopped_until: Instant,
}

impl SimulatedCluster {
    /// Creates an empty cluster. Call this within a runtime with paused time.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let start = Instant::now();
        let state = ClusterState {
            random: SmallRng::seed_from_u64(seed),
            faults,
            objects: ObjectMap::default(),
            machines: [Machine { map: 0, stopped_until: start }; MACHINES],
            map: 0,
            fenced: BTreeMap::new(),
            is_full: false,
            watchers: BTreeMap::new(),
            fingerprint: seed,
            ops: 0,
        };
        Self { shared: Arc::new(Mutex::new(state)), start }
    }

    /// Connects an instance. The name must be unique.
    pub fn connect(&self, name: &str) -> Arc<Connection> {
        Arc::new(Connection::new(self.clone(), InstanceAddress(name.to_owned())))
    }

    /// Replaces the faults of ops that are sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.shared.lock().faults = faults;
    }

    /// Stops a machine for some time. It performs the ops that arrive meanwhile when it returns.
    pub fn stop_machine(&self, machine: usize, duration: Duration) {
        self.shared.lock().machines[machine].stopped_until = Instant::now() + duration;
    }

    /// Sets whether the pools are full.
    pub fn set_full(&self, is_full: bool) {
        self.shared.lock().is_full = is_full;
    }

    /// Returns a digest of all ops so far and their results. Equal for two runs of the same seed.
    pub fn fingerprint(&self) -> u64 {
        self.shared.lock().fingerprint
    }

    /// Returns the number of ops and reads so far.
    pub fn ops(&self) -> u64 {
        self.shared.lock().ops
    }

    /// Returns the names of all objects, without any fault or delay.
    pub fn object_names(&self, pool: Pool) -> Vec<ObjectName> {
        self.shared.lock().objects.names(pool)
    }

    /// Reads an object as it is now, without any fault or delay.
    pub fn inspect(&self, pool: Pool, name: &ObjectName, op: &ReadOp) -> Result<ReadReply, ReadFailure> {
        self.shared.lock().objects.read(pool, name, op, usize::MAX)
    }

    /// Draws what happens to one op.
    fn delivery(&self) -> Delivery {
        let mut state = self.shared.lock();
        let faults = state.faults;
        faults.draw(&mut state.random)
    }

    /// Draws a duration of up to `max` milliseconds.
    fn random_millis(&self, max: u64) -> Duration {
        Duration::from_millis(self.shared.lock().random.random_range(0..=max))
    }

    /// Waits until the machine that holds an object runs.
    async fn wait_for_machine(&self, pool: Pool, name: &ObjectName) {
        loop {
            let until = self.shared.lock().machines[machine_of(pool, name)].stopped_until;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until + self.random_millis(20)).await;
        }
    }

    /// Returns the newest map that any client can know.
    fn newest_map(&self) -> u64 {
        self.shared.lock().map
    }

    /// Makes a map that shuts an instance out. Machines learn of it later.
    fn shut_out(&self, instance: &InstanceAddress) {
        let mut state = self.shared.lock();
        if !state.fenced.contains_key(instance) {
            state.map += 1;
            let map = state.map;
            state.fenced.insert(instance.clone(), map);
        }
    }

    /// Lets a machine learn of a map.
    fn teach(&self, machine: usize, map: u64) {
        let known = &mut self.shared.lock().machines[machine].map;
        *known = map.max(*known);
    }

    fn perform_write(
        &self,
        by: &InstanceAddress,
        client_map: u64,
        pool: Pool,
        name: &ObjectName,
        op: &WriteOp,
    ) -> Result<(), WriteError> {
        let mut state = self.shared.lock();
        let result = if state.is_refused(by, client_map, pool, name) {
            Err(WriteError::Fenced)
        } else {
            let is_full = state.is_full;
            state.objects.write(pool, name, op, is_full)
        };
        let when = self.start.elapsed();
        state.note(&format!("{when:?} {} {name} {op:?} {result:?}", by.0));
        result
    }

    fn perform_read(
        &self,
        by: &InstanceAddress,
        client_map: u64,
        pool: Pool,
        name: &ObjectName,
        op: &ReadOp,
    ) -> Result<ReadReply, ReadFailure> {
        let mut state = self.shared.lock();
        let result = if state.is_refused(by, client_map, pool, name) {
            Err(ReadFailure::Fenced)
        } else {
            let short = state.faults.short_page_per_mille;
            let is_short = state.random.random_range(0..1000) < short;
            let limit = if is_short { state.random.random_range(1..8) } else { PAGE_LIMIT };
            state.objects.read(pool, name, op, limit)
        };
        let when = self.start.elapsed();
        state.note(&format!("{when:?} {} reads {name} {}", by.0, result.is_ok()));
        result
    }

    fn space(&self, pool: Pool) -> PoolSpace {
        let state = self.shared.lock();
        let space = state.objects.space(pool);
        if state.is_full { PoolSpace { available_bytes: 0, ..space } } else { space }
    }
}

impl ClusterState {
    /// Returns whether the machine that holds an object refuses an instance. An op teaches the machine the
    /// map that its sender knows.
    fn is_refused(
        &mut self,
        instance: &InstanceAddress,
        client_map: u64,
        pool: Pool,
        name: &ObjectName,
    ) -> bool {
        let machine = &mut self.machines[machine_of(pool, name)];
        machine.map = machine.map.max(client_map);
        self.fenced.get(instance).is_some_and(|map| machine.map >= *map)
    }

    fn note(&mut self, event: &str) {
        if std::env::var_os("LAZULI_TRACE").is_some() {
            eprintln!("{event}");
        }
        self.ops += 1;
        for byte in event.bytes() {
            self.fingerprint = (self.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

/// Returns the machine that holds an object.
fn machine_of(pool: Pool, name: &ObjectName) -> usize {
    let sum = name.0.bytes().fold(pool as usize, |sum, byte| sum.wrapping_mul(31) + usize::from(byte));
    sum % MACHINES
}

#[cfg(test)]
mod tests;
