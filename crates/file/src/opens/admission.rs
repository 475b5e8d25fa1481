//! A request over REST in the table: what it does, from the check until its commit.
//!
//! A rule inside a transaction asks for each file that it touches. What it is granted it holds until the admission is
//! dropped, after the commit: SMB opens and locks that would conflict wait so long. If a client has to answer a break
//! first, the rule is refused, and the transaction is run again when it has:
//!
//! ```text
//! let mut admission = self.opens.admission(patience);
//! loop {
//!     let result = self.transact(…, |view| { …; admission.admit(file, usage)?; … }).await;
//!     if result.is_ok() || !admission.again().await { return result }
//! }
//! ```

use std::sync::Arc;
use std::time::Duration;

use lazuli_concurrency::{ByteRange, FileUse};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::SpaceId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::state::{Denied, FileState, Step};
use super::{FileKey, Move, OpenTable, Wait, is_below};
use crate::names;

/// What a request over REST has been granted.
#[must_use]
#[derive(Debug)]
pub struct Admission {
    table: Arc<OpenTable>,
    deadline: Instant,
    number: u64,
    held: Vec<(FileKey, FileUse)>,
    moves: Vec<String>,
    wait: Option<Wait>,
}

impl OpenTable {
    /// A request over REST that waits for clients at most so long.
    pub fn admission(self: &Arc<Self>, patience: Duration) -> Admission {
        Admission {
            table: self.clone(),
            deadline: Instant::now() + patience.min(self.patience),
            number: self.number(),
            held: vec![],
            moves: vec![],
            wait: None,
        }
    }
}

impl Admission {
    /// Asks to use a file or directory.
    pub fn admit(&mut self, file: FileKey, usage: FileUse) -> Result<(), Refusal> {
        self.admit_range(file, usage, ByteRange::ALL)
    }

    /// Asks to use bytes of a file.
    pub fn admit_range(&mut self, file: FileKey, usage: FileUse, range: ByteRange) -> Result<(), Refusal> {
        if self.held.contains(&(file, usage)) {
            return Ok(());
        }
        let number = self.number;
        // Together with the judgement, so that no change is missed.
        let admitted = self.table.with(file, |state| match state.admit(number, usage, range) {
            Ok(Step::Done(())) => Ok(None),
            Ok(Step::Wait) => Ok(Some(state.subscribe())),
            Err(denied) => Err(denied),
        });
        match admitted {
            Ok(None) => {
                if usage.changes() {
                    self.held.push((file, usage));
                }
                Ok(())
            }
            Ok(Some(wait)) => {
                self.wait = Some(wait);
                Err(ErrorCode::ClientCacheFlushDelay.into())
            }
            Err(Denied::DeletePending) => Err(ErrorCode::SMBDeletePending.into()),
            Err(Denied::Sharing) => Err(ErrorCode::SharingViolation.into()),
            Err(Denied::Locked) => Err(ErrorCode::FileLockConflict.into()),
        }
    }

    /// Refuses what is marked for deletion.
    pub fn check(&self, file: FileKey) -> Result<(), Refusal> {
        if self.table.is_delete_pending(file) { Err(ErrorCode::SMBDeletePending.into()) } else { Ok(()) }
    }

    /// Asks to move a directory: nothing at or below its path may be open, nor is opened until this is dropped.
    pub fn admit_move(&mut self, space: SpaceId, path: &str) -> Result<(), Refusal> {
        let path = names::fold(path);
        if !self.moves.contains(&path) {
            self.moves.push(path.clone());
            let (number, path, done) = (self.number, path.clone(), watch::channel(()).0);
            self.table.moves.lock().push(Move { number, space, path, done });
        }
        // Announced first: an open was there before and is found, or looks after and waits.
        let open = self.table.handles(space, 0, 1, |_, place| is_below(&names::fold(&place.path), &path));
        if open.is_empty() { Ok(()) } else { Err(ErrorCode::SharingViolation.into()) }
    }

    /// After a refusal: whether it was for a client that has meanwhile answered, so that it is worth asking again.
    pub async fn again(&mut self) -> bool {
        let Some(mut wait) = self.wait.take() else { return false };
        self.release();
        timeout_at(self.deadline, wait.changed()).await.is_ok()
    }

    fn release(&mut self) {
        for (file, _) in self.held.drain(..) {
            self.table.with(file, |state: &mut FileState| state.finish(self.number));
        }
        if !std::mem::take(&mut self.moves).is_empty() {
            self.table.moves.lock().retain(|it| it.number != self.number);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.release();
    }
}
