//! Locks that keep moves from starving.
//!
//! A move takes several commits and must see its source unchanged from the first to the last. Ordinary writes
//! take one commit, so a busy directory could make a move retry forever. After a few failed attempts the move
//! takes the exclusive lock, which drains current writers and blocks new ones.
//!
//! Lock order: [`crate::lock_order`].

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lazuli_store::Partition;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::lock_order::{Rank, Ranked};

/// Number of lock slots. Directories that hash to the same slot share a lock.
const SLOTS: usize = 64;

/// A shared lock on one directory.
pub(crate) type SharedLock = Ranked<OwnedRwLockReadGuard<()>>;
/// Exclusive locks on several directories.
pub(crate) type ExclusiveLocks = Ranked<Vec<OwnedRwLockWriteGuard<()>>>;

/// The locks of all directories.
#[derive(Debug)]
pub(crate) struct DirectoryLocks {
    slots: [Arc<RwLock<()>>; SLOTS],
    hasher: RandomState,
}

impl Default for DirectoryLocks {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| Arc::default()), hasher: RandomState::new() }
    }
}

impl DirectoryLocks {
    fn slot(&self, partition: &Partition) -> usize {
        (self.hasher.hash_one(partition) % SLOTS as u64) as usize
    }

    /// Acquires a shared lock on the directory. Do not hold it while waiting for a client.
    pub(crate) async fn shared(&self, partition: &Partition) -> SharedLock {
        let slot = self.slots[self.slot(partition)].clone();
        Ranked::wait(Rank::Directory, slot.read_owned()).await
    }

    /// Acquires exclusive locks on the directories.
    pub(crate) async fn exclusive(&self, partitions: &[Partition]) -> ExclusiveLocks {
        let mut slots: Vec<_> = partitions.iter().map(|partition| self.slot(partition)).collect();
        // Lock in slot order to avoid deadlock.
        slots.sort_unstable();
        slots.dedup();
        let locks = async {
            let mut held = Vec::with_capacity(slots.len());
            for slot in slots {
                held.push(self.slots[slot].clone().write_owned().await);
            }
            held
        };
        Ranked::wait(Rank::Directory, locks).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_store::SpaceId;

    #[tokio::test]
    async fn exclusive_lock_waits_for_shared_locks_and_blocks_new_ones() {
        let locks = Arc::new(DirectoryLocks::default());
        let [a, b] = [b"a", b"b"].map(|key| Partition::new(SpaceId(1), &key[..]));
        let shared = |partition: &Partition| {
            let (locks, partition) = (locks.clone(), partition.clone());
            tokio::spawn(async move { locks.shared(&partition).await })
        };
        let (first, second) = (shared(&a).await.unwrap(), shared(&a).await.unwrap());
        let exclusive = tokio::spawn({
            let (locks, both) = (locks.clone(), [b.clone(), a.clone()]);
            async move { locks.exclusive(&both).await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!exclusive.is_finished());
        let mut late = shared(&a);
        drop(second);
        let exclusive = exclusive.await.unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(10), &mut late).await;
        assert!(waited.is_err());
        drop(exclusive);
        drop(late.await.unwrap());
        drop(shared(&b).await.unwrap());
    }
}
