//! The queues of transactions on hot partitions.
//!
//! A transaction first runs without a lock. After a conflict it joins the queue of its partition, and so do
//! new transactions that find a queue. The queue is first in, first out and runs one rule at a time, so
//! transactions on a hot row do not make each other retry again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::Partition;

/// The queues of all partitions for which transactions wait.
#[derive(Debug, Default)]
pub struct Gate {
    queues: Mutex<HashMap<Partition, PartitionQueue>>,
    /// Number of attempts that had to be repeated.
    retries: Arc<AtomicU64>,
    /// Number of tickets in all queues.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct PartitionQueue {
    front: Arc<AsyncMutex<()>>,
    /// Number of transactions that hold a ticket.
    tickets: usize,
}

/// A place in a partition's queue. Dropping it leaves the queue.
pub(crate) struct Ticket<'a> {
    gate: &'a Gate,
    partition: &'a Partition,
    front: Arc<AsyncMutex<()>>,
}

impl Gate {
    /// Makes a gate with separate queues that shares this gate's counters.
    #[must_use]
    pub fn with_separate_queues(&self) -> Self {
        Self { queues: Mutex::default(), retries: self.retries.clone(), waiting: self.waiting.clone() }
    }

    /// Returns how many attempts of transactions had to be repeated.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Returns how many transactions are in queues, including those at the front.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the partition has a queue.
    pub(crate) fn has_queue(&self, partition: &Partition) -> bool {
        self.queues.lock().contains_key(partition)
    }

    /// Joins the end of the partition's queue.
    pub(crate) fn join<'a>(&'a self, partition: &'a Partition) -> Ticket<'a> {
        let mut queues = self.queues.lock();
        let queue = queues.entry(partition.clone()).or_default();
        queue.tickets += 1;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ticket { gate: self, partition, front: queue.front.clone() }
    }
}

impl Ticket<'_> {
    /// Waits until all transactions that joined earlier have left.
    pub(crate) async fn wait_for_turn(&self) -> OwnedMutexGuard<()> {
        self.front.clone().lock_owned().await
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut queues = self.gate.queues.lock();
        if let Some(queue) = queues.get_mut(self.partition) {
            queue.tickets -= 1;
            self.gate.waiting.fetch_sub(1, Ordering::Relaxed);
            if queue.tickets == 0 {
                queues.remove(self.partition);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    #[tokio::test]
    async fn tickets_are_served_in_order_and_empty_queues_are_removed() {
        let gate = Gate::default();
        let partition = Partition::new(SpaceId(1), "p");
        let first = gate.join(&partition);
        let second = gate.join(&partition);
        let permit = first.wait_for_turn().await;
        assert!(second.front.try_lock().is_err());
        assert!(gate.has_queue(&partition));
        assert_eq!((gate.waiting(), gate.with_separate_queues().waiting()), (2, 2));
        drop((permit, first));
        let _permit = second.wait_for_turn().await;
        drop(second);
        assert!(!gate.has_queue(&partition));
        assert_eq!(gate.waiting(), 0);
    }
}
