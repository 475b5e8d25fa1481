//! One front end's connection to a simulated cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Clock, Timestamp};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::{Delivery, Fate, MACHINES, SimulatedClock, SimulatedCluster};
use crate::{
    Cluster, InstanceAddress, ObjectName, Pool, PoolSpace, ReadFailure, ReadOp, ReadReply, Watch, WriteError,
    WriteOp,
};

/// How long a read waits for an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until an op without a reply takes effect, after its sender has given up.
const MAX_LATE_MILLIS: u64 = 20_000;
/// Maximum time until a machine learns of a new map on its own.
const MAX_MAP_DELAY_MILLIS: u64 = 3000;

/// A connection of one instance. It can be frozen, as by SIGSTOP, and cut off, as by a crash.
pub struct Connection {
    cluster: SimulatedCluster,
    address: InstanceAddress,
    is_frozen: AtomicBool,
    woken: Notify,
    /// The newest map that this client knows.
    map: AtomicU64,
    /// When the last op on each object takes effect. Later ops of this connection come after it.
    last_effects: Mutex<BTreeMap<(Pool, ObjectName), Instant>>,
}

impl Connection {
    pub(super) fn new(cluster: SimulatedCluster, address: InstanceAddress) -> Self {
        Self {
            cluster,
            address,
            is_frozen: AtomicBool::new(false),
            woken: Notify::new(),
            map: AtomicU64::new(0),
            last_effects: Mutex::default(),
        }
    }

    /// Freezes the instance: it sends nothing and learns nothing until [`Connection::wake`]. Ops that were
    /// sent before take effect. An instance that never wakes has crashed.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    /// Wakes the instance.
    pub fn wake(&self) {
        self.is_frozen.store(false, Ordering::SeqCst);
        self.woken.notify_waiters();
    }

    /// Waits while the instance is frozen.
    pub async fn wait_until_awake(&self) {
        // In one thread, no wake-up comes between the look and the wait.
        while self.is_frozen.load(Ordering::SeqCst) {
            self.woken.notified().await;
        }
    }

    /// Returns when an op that is sent now takes effect.
    fn effect_time(&self, pool: Pool, object: &ObjectName, delivery: Delivery) -> Instant {
        let arrival = Instant::now() + delivery.before;
        let mut last_effects = self.last_effects.lock();
        let last = last_effects.entry((pool, object.clone())).or_insert(arrival);
        // One millisecond is the resolution of timers.
        *last = arrival.max(*last + Duration::from_millis(1));
        *last
    }

    /// Sends a job to the machine that holds an object, and returns its result. The job goes on if the caller
    /// is dropped. Returns `None` if no reply arrives in time.
    async fn send<T: Send + 'static>(
        &self,
        pool: Pool,
        object: &ObjectName,
        timeout: Duration,
        job: impl FnOnce(&SimulatedCluster, u64) -> T + Send + 'static,
    ) -> Option<T> {
        self.wait_until_awake().await;
        let delivery = self.cluster.delivery();
        let (cluster, object) = (self.cluster.clone(), object.clone());
        let client_map = self.map.load(Ordering::SeqCst);
        let (reply, replied) = oneshot::channel();
        let effect = match delivery.fate {
            Fate::LostRequest => None,
            Fate::Late => Some(Instant::now() + timeout + cluster.random_millis(MAX_LATE_MILLIS)),
            Fate::Normal | Fate::LostReply => Some(self.effect_time(pool, &object, delivery)),
        };
        if let Some(effect) = effect {
            tokio::spawn(async move {
                tokio::time::sleep_until(effect).await;
                cluster.wait_for_machine(pool, &object).await;
                let result = job(&cluster, client_map);
                tokio::time::sleep(delivery.after).await;
                if delivery.fate == Fate::Normal {
                    // The sender may have given up.
                    _ = reply.send(result);
                } else {
                    drop(reply);
                }
            });
        } else {
            drop(reply);
        }
        let deadline = Instant::now() + timeout;
        let result = match tokio::time::timeout_at(deadline, replied).await {
            Ok(Ok(result)) => Some(result),
            // Nothing arrives, so the sender waits until it gives up.
            Ok(Err(_)) => {
                tokio::time::sleep_until(deadline).await;
                None
            }
            Err(_) => None,
        };
        self.wait_until_awake().await;
        result
    }
}

#[async_trait]
impl Cluster for Connection {
    async fn write(
        &self,
        pool: Pool,
        object: &ObjectName,
        op: WriteOp,
        timeout: Duration,
    ) -> Result<(), WriteError> {
        let (by, name) = (self.address.clone(), object.clone());
        let job = move |cluster: &SimulatedCluster, map| cluster.perform_write(&by, map, pool, &name, &op);
        let result = self.send(pool, object, timeout, job).await;
        result.unwrap_or_else(|| Err(WriteError::InDoubt("no reply".into())))
    }

    async fn read(&self, pool: Pool, object: &ObjectName, op: ReadOp) -> Result<ReadReply, ReadFailure> {
        let (by, name) = (self.address.clone(), object.clone());
        let job = move |cluster: &SimulatedCluster, map| cluster.perform_read(&by, map, pool, &name, &op);
        self.send(pool, object, READ_TIMEOUT, job).await.unwrap_or(Err(ReadFailure::TimedOut))
    }

    async fn list(
        &self,
        pool: Pool,
        from: Option<Bytes>,
    ) -> Result<(Vec<ObjectName>, Option<Bytes>), ReadFailure> {
        const PAGE: usize = 100;
        self.wait_until_awake().await;
        tokio::time::sleep(self.cluster.random_millis(5)).await;
        // Not the order of names, as in a real cluster.
        let order = |name: &ObjectName| Bytes::from(name.0.bytes().rev().collect::<Vec<_>>());
        let mut names = self.cluster.object_names(pool);
        names.sort_by_key(&order);
        names.retain(|name| from.as_ref().is_none_or(|from| order(name) >= *from));
        let next = names.get(PAGE).map(order);
        names.truncate(PAGE);
        Ok((names, next))
    }

    async fn notify(&self, pool: Pool, object: &ObjectName, message: Bytes, _timeout: Duration) {
        self.wait_until_awake().await;
        let delivery = self.cluster.delivery();
        tokio::time::sleep(delivery.before).await;
        if delivery.fate == Fate::Normal {
            let mut state = self.cluster.shared.lock();
            if let Some(watchers) = state.watchers.get_mut(&(pool, object.clone())) {
                watchers.retain(|watcher| watcher.send(message.clone()).is_ok());
            }
        }
        tokio::time::sleep(delivery.after).await;
    }

    async fn watch(&self, pool: Pool, object: &ObjectName) -> Result<Box<dyn Watch>, ReadFailure> {
        self.wait_until_awake().await;
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.cluster.shared.lock();
        state.watchers.entry((pool, object.clone())).or_default().push(sender);
        Ok(Box::new(Messages(receiver)))
    }

    async fn fence(&self, instance: &InstanceAddress) -> Result<(), ReadFailure> {
        self.wait_until_awake().await;
        self.cluster.shut_out(instance);
        let map = self.cluster.newest_map();
        for machine in 0..MACHINES {
            let (cluster, delay) = (self.cluster.clone(), self.cluster.random_millis(MAX_MAP_DELAY_MILLIS));
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                cluster.teach(machine, map);
            });
        }
        tokio::time::sleep(Duration::from_millis(300) + self.cluster.random_millis(700)).await;
        self.wait_until_awake().await;
        self.map.fetch_max(map, Ordering::SeqCst);
        Ok(())
    }

    fn address(&self) -> &InstanceAddress {
        &self.address
    }

    async fn server_time(&self, _pool: Pool, _object: &ObjectName) -> Result<Timestamp, ReadFailure> {
        self.wait_until_awake().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(SimulatedClock::exact(self.cluster.start).now())
    }

    async fn space(&self, pool: Pool) -> Result<PoolSpace, ReadFailure> {
        Ok(self.cluster.space(pool))
    }
}

/// The messages of one watch.
struct Messages(mpsc::UnboundedReceiver<Bytes>);

#[async_trait]
impl Watch for Messages {
    async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }
}
