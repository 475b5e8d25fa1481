//! Byte-range locks of open files.

use lazuli_concurrency::{ByteRange, LockKind, NotLocked};

use crate::lock_order::check_client_wait;
use crate::opens::state::{FileState, StateStep};
use crate::opens::types::{OpenId, RangeRefusal};
use crate::opens::{OpenTable, Wait};

impl OpenTable {
    /// Acquires a byte-range lock, or fails if it conflicts.
    pub async fn lock(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<(), RangeRefusal> {
        while let Some(mut wait) = self.try_lock(id, range, kind)? {
            // A granted request ends without help.
            check_client_wait();
            let _ = wait.changed().await;
        }
        Ok(())
    }

    /// Acquires a byte-range lock once it conflicts with no other. Drop the future to give up.
    pub async fn lock_when_free(
        &self,
        id: OpenId,
        range: ByteRange,
        kind: LockKind,
    ) -> Result<(), RangeRefusal> {
        loop {
            // Subscribe before the attempt, to miss no change.
            let mut wait = self.with(id.file, FileState::subscribe);
            match self.try_lock(id, range, kind) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) | Err(RangeRefusal::Locked(_)) => {}
                Err(refusal) => return Err(refusal),
            }
            check_client_wait();
            let _ = wait.changed().await;
        }
    }

    /// Tries to acquire a lock. Returns what to wait for if a granted request is in the way.
    fn try_lock(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<Option<Wait>, RangeRefusal> {
        self.with_open(id, |state| {
            if self.locks() >= self.max_locks {
                return Err(RangeRefusal::TooMany);
            }
            match state.lock(id.number, range, kind)? {
                StateStep::Done(()) => Ok(None),
                StateStep::Wait => Ok(Some(state.subscribe())),
            }
        })?
    }

    /// Releases a byte-range lock.
    pub fn unlock(&self, id: OpenId, range: ByteRange) -> Result<(), NotLocked> {
        self.with(id.file, |state| state.unlock(id.number, range))
    }

    /// Takes back a lock as if it had not been acquired. Other locks on the same range stay.
    pub fn undo_lock(&self, id: OpenId, range: ByteRange, kind: LockKind) -> Result<(), NotLocked> {
        self.with(id.file, |state| state.undo_lock(id.number, range, kind))
    }
}
