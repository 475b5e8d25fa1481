//! Who writes to a directory, so that a move out of it or into it comes to its turn.
//!
//! A move takes several commits and holds only if what it moves has not changed between the first and the last. Those who
//! write take one, so under a constant load a move would never end. It gives way a few times, then waits until nobody writes
//! and has everybody wait who comes later. Who has leave to change lengths, see [`crate::usage`], got it before this.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lazuli_store::Partition;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Directories that fall on the same of so many are treated as one.
const SLOTS: usize = 64;

/// Those who write, by directory.
#[derive(Debug)]
pub(crate) struct Writers {
    slots: [Arc<RwLock<()>>; SLOTS],
    hasher: RandomState,
}

impl Default for Writers {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| Arc::default()), hasher: RandomState::new() }
    }
}

impl Writers {
    fn slot(&self, partition: &Partition) -> usize {
        (self.hasher.hash_one(partition) % SLOTS as u64) as usize
    }

    /// One more who writes to a directory, as long as this is held: never while a client is waited for.
    pub(crate) async fn one(&self, partition: &Partition) -> OwnedRwLockReadGuard<()> {
        self.slots[self.slot(partition)].clone().read_owned().await
    }

    /// Nobody writes to these directories as long as this is held.
    pub(crate) async fn none(&self, partitions: &[Partition]) -> Vec<OwnedRwLockWriteGuard<()>> {
        let mut slots: Vec<_> = partitions.iter().map(|partition| self.slot(partition)).collect();
        // In one order, so that nobody waits for somebody who waits for him.
        slots.sort_unstable();
        slots.dedup();
        let mut held = Vec::with_capacity(slots.len());
        for slot in slots {
            held.push(self.slots[slot].clone().write_owned().await);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_store::SpaceId;

    #[tokio::test]
    async fn whoever_wants_nobody_to_write_waits_for_those_who_do_and_others_wait_for_him() {
        let writers = Arc::new(Writers::default());
        let [a, b] = [b"a", b"b"].map(|key| Partition::new(SpaceId(1), &key[..]));
        let (first, second) = (writers.one(&a).await, writers.one(&a).await);
        let alone = tokio::spawn({
            let (writers, both) = (writers.clone(), [b.clone(), a.clone()]);
            async move { writers.none(&both).await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!alone.is_finished());
        let mut late = tokio::spawn({
            let (writers, a) = (writers.clone(), a.clone());
            async move { writers.one(&a).await }
        });
        drop(second);
        let alone = alone.await.unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), &mut late).await;
        assert!(waited.is_err());
        drop(alone);
        late.await.unwrap();
        writers.one(&b).await;
    }
}
