//! A line to stand in for those who met a conflict.
//!
//! A rule runs without any lock at first. When its commit conflicts it queues for its partition, and whoever comes
//! later and finds a queue joins its end. So a hot row is served first come, first served, one rule at a time,
//! instead of everybody running again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::Partition;

/// Queues of partitions that somebody waits for.
#[derive(Debug, Default)]
pub struct Gate {
    lines: Mutex<HashMap<Partition, Line>>,
    /// Attempts that had to be made again.
    retries: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Line {
    turn: Arc<Turn<()>>,
    /// How many hold a place in it.
    places: usize,
}

/// A place in a line; leaving gives it up.
pub(crate) struct Place<'a> {
    gate: &'a Gate,
    partition: &'a Partition,
    turn: Arc<Turn<()>>,
}

impl Gate {
    /// A gate with lines of its own, whose retries count here.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { lines: Mutex::default(), retries: self.retries.clone() }
    }

    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether anybody waits for that partition.
    pub(crate) fn has_line(&self, partition: &Partition) -> bool {
        self.lines.lock().contains_key(partition)
    }

    /// Takes a place at the end of the line.
    pub(crate) fn join<'a>(&'a self, partition: &'a Partition) -> Place<'a> {
        let mut lines = self.lines.lock();
        let line = lines.entry(partition.clone()).or_default();
        line.places += 1;
        Place { gate: self, partition, turn: line.turn.clone() }
    }
}

impl Place<'_> {
    /// Waits until everybody before has left.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.gate.lines.lock();
        if let Some(line) = lines.get_mut(self.partition) {
            line.places -= 1;
            if line.places == 0 {
                lines.remove(self.partition);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceId;

    #[tokio::test]
    async fn places_are_served_in_order_and_an_empty_line_vanishes() {
        let gate = Gate::default();
        let partition = Partition::new(SpaceId(1), "p");
        let first = gate.join(&partition);
        let second = gate.join(&partition);
        let held = first.turn().await;
        assert!(second.turn.try_lock().is_err());
        assert!(gate.has_line(&partition));
        drop((held, first));
        let _held = second.turn().await;
        drop(second);
        assert!(!gate.has_line(&partition));
    }
}
