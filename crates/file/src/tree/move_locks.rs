//! Locks that let one directory of a share move at a time.
//!
//! Two moves at once could put each of two directories below the other. A reader that follows a path takes no
//! lock: it compares versions, and waits only if a directory was moved meanwhile.
//!
//! Lock order: [`crate::lock_order`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli_store::SpaceId;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::lock_order::{Rank, Ranked};

/// Number of lock slots. Shares that fall on the same slot share a lock.
const SLOTS: usize = 64;

/// The locks of all shares.
#[derive(Debug)]
pub(crate) struct DirectoryMoveLocks([Slot; SLOTS]);

#[derive(Debug, Default)]
struct Slot {
    lock: Arc<Mutex<()>>,
    /// Odd while a directory is moved.
    version: Arc<AtomicU64>,
}

/// Permission to move a directory of a share, until this is dropped.
pub(crate) struct DirectoryMove {
    version: Arc<AtomicU64>,
    _lock: Ranked<OwnedMutexGuard<()>>,
}

impl Default for DirectoryMoveLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Slot::default()))
    }
}

impl DirectoryMoveLocks {
    fn slot(&self, space: SpaceId) -> &Slot {
        &self.0[(space.0 % SLOTS as u64) as usize]
    }

    /// Waits until no directory of the share is moved, and begins a move.
    pub(crate) async fn begin(&self, space: SpaceId) -> DirectoryMove {
        let lock = self.pause(space).await;
        let version = self.slot(space).version.clone();
        version.fetch_add(1, Ordering::SeqCst);
        DirectoryMove { version, _lock: lock }
    }

    /// Waits until no directory of the share is moved, and blocks moves.
    pub(crate) async fn pause(&self, space: SpaceId) -> Ranked<OwnedMutexGuard<()>> {
        let lock = self.slot(space).lock.clone();
        Ranked::wait(Rank::DirectoryMove, lock.lock_owned()).await
    }

    /// Returns a number that changes whenever a directory of the share may have been moved. `None` during a
    /// move.
    pub(crate) fn version(&self, space: SpaceId) -> Option<u64> {
        let version = self.slot(space).version.load(Ordering::SeqCst);
        version.is_multiple_of(2).then_some(version)
    }
}

impl Drop for DirectoryMove {
    fn drop(&mut self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}
