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
use lazuli_store::{Commit, Partition, SpaceId, Store};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::state::{Admitted, Denied, FileState, Step};
use super::{FileKey, Move, OpenTable, Wait};
use crate::names;

/// What a request over REST has been granted.
#[must_use]
pub struct Admission {
    table: Arc<OpenTable>,
    deadline: Instant,
    number: u64,
    held: Vec<(FileKey, FileUse)>,
    moves: Vec<String>,
    wait: Option<Wait>,
    /// What has to be made durable before it is asked again.
    flush: Option<FileKey>,
    /// What was.
    flushed: Vec<FileKey>,
    /// Where commits of the request go, until none is under way any more.
    commits: Option<(Arc<dyn Store>, Partition)>,
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
            flush: None,
            flushed: vec![],
            commits: None,
        }
    }
}

impl Admission {
    /// The same for a request that commits to a partition and may be dropped meanwhile: what it was granted is then held
    /// until its commit is behind it. [`Admission::done`] says that it was not dropped.
    pub fn committing(mut self, store: Arc<dyn Store>, partition: Partition) -> Self {
        self.commits = Some((store, partition));
        self
    }

    /// No commit is under way any more.
    pub fn done(mut self) {
        self.commits = None;
    }

    /// Asks to use a file or directory.
    pub fn admit(&mut self, file: FileKey, usage: FileUse) -> Result<(), Refusal> {
        self.admit_range(file, usage, ByteRange::ALL)
    }

    /// Asks to use bytes of a file.
    pub fn admit_range(&mut self, file: FileKey, usage: FileUse, range: ByteRange) -> Result<(), Refusal> {
        if self.held.contains(&(file, usage)) {
            return Ok(());
        }
        if !usage.changes() && self.table.is_empty() {
            return Ok(());
        }
        let number = self.number;
        // Together with the judgement, so that no change is missed.
        // One that changes the file has nobody write between this and its commit.
        let flushed = !usage.changes() && self.flushed.contains(&file);
        let version = self.table.number();
        let admitted = self.table.with(file, |state| {
            let admitted = state.admit(number, usage, range, flushed, version)?;
            Ok((admitted, (admitted == Admitted::Wait).then(|| state.subscribe())))
        });
        match admitted {
            Ok((Admitted::Done, _)) => {
                if usage.changes() {
                    self.held.push((file, usage));
                }
                Ok(())
            }
            Ok((Admitted::Wait, wait)) => {
                self.wait = wait;
                Err(ErrorCode::ClientCacheFlushDelay.into())
            }
            Ok((Admitted::Flush, _)) => {
                if usage.changes() {
                    self.held.push((file, usage));
                }
                self.flush = Some(file);
                Err(ErrorCode::ClientCacheFlushDelay.into())
            }
            Err(Denied::DeletePending) => Err(ErrorCode::SMBDeletePending.into()),
            Err(Denied::Sharing) => Err(ErrorCode::SharingViolation.into()),
            Err(Denied::Locked) => Err(ErrorCode::FileLockConflict.into()),
        }
    }

    /// Refuses what is marked for deletion. Asked before anything else is judged: what SMB clients have written has to be in
    /// the row by then.
    pub fn check(&mut self, file: FileKey) -> Result<(), Refusal> {
        self.check_stays(file)?;
        let is_dirty = self.table.peek(file, |state| state.newest.is_dirty()).unwrap_or_default();
        if is_dirty && !self.flushed.contains(&file) {
            self.flush = Some(file);
            return Err(ErrorCode::ClientCacheFlushDelay.into());
        }
        Ok(())
    }

    /// Refuses what is marked for deletion, whatever was written to it.
    pub fn check_stays(&self, file: FileKey) -> Result<(), Refusal> {
        match self.table.is_delete_pending(file) {
            true => Err(ErrorCode::SMBDeletePending.into()),
            false => Ok(()),
        }
    }

    /// Asks to move a directory: nothing at or below its path may be open, but for the open that moves it over SMB, nor is
    /// opened until this is dropped. Handles that only caches keep are given up first, if that can help.
    pub fn admit_move(&mut self, space: SpaceId, path: &str, by: Option<FileKey>) -> Result<(), Refusal> {
        let path = names::fold(path);
        if !self.moves.contains(&path) {
            self.moves.push(path.clone());
            let (number, path, done) = (self.number, path.clone(), watch::channel(()).0);
            self.table.moves.lock().push(Move { number, space, path, done });
        }
        // Announced first: an open was there before and is found, or looks after and waits.
        let mut open = self.table.open_below(space, &path);
        open.retain(|file| Some(*file) != by);
        if !open.iter().all(|file| self.table.with(*file, |state| state.is_only_cached())) {
            return Err(ErrorCode::SharingViolation.into());
        }
        let mut wait = None;
        for file in open {
            let cleared = self.table.with(file, |state| Some((state.clear()?, state.subscribe())));
            match cleared {
                None => return Err(ErrorCode::SharingViolation.into()),
                Some((Step::Done(()), _)) => {}
                Some((Step::Wait, changed)) => wait = Some(changed),
            }
        }
        if wait.is_none() {
            return Ok(());
        }
        // All are told by now. One is waited for, then those that are left.
        self.wait = wait;
        Err(ErrorCode::ClientCacheFlushDelay.into())
    }

    /// After a refusal: what SMB clients have written to this file has to be made durable before it is asked again.
    pub(crate) fn flush(&mut self) -> Option<FileKey> {
        let file = self.flush.take()?;
        self.flushed.push(file);
        Some(file)
    }

    /// Until when clients are waited for.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// After a refusal: whether it was for a client that has meanwhile answered, so that it is worth asking again.
    pub async fn again(&mut self) -> bool {
        let Some(mut wait) = self.wait.take() else { return false };
        self.release();
        timeout_at(self.deadline, wait.changed()).await.is_ok()
    }

    fn release(&mut self) {
        for (file, _) in self.held.drain(..) {
            self.table.with(file, |state: &mut FileState| state.finish(self.number, self.table.number()));
        }
        if !std::mem::take(&mut self.moves).is_empty() {
            self.table.moves.lock().retain(|it| it.number != self.number);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let commits = self.commits.take().filter(|_| !self.held.is_empty());
        let (Some((store, partition)), Ok(runtime)) = (commits, Handle::try_current()) else {
            return self.release();
        };
        // The client has gone, or the request was refused after it was granted this. A commit may be on its way, and this
        // one, of nothing, comes after it.
        let mut rest = Self {
            table: self.table.clone(),
            deadline: self.deadline,
            number: self.number,
            held: std::mem::take(&mut self.held),
            moves: std::mem::take(&mut self.moves),
            wait: None,
            flush: None,
            flushed: vec![],
            commits: None,
        };
        runtime.spawn(async move {
            let header = store.space(partition.space).await.ok().flatten();
            let commit = Commit {
                stamp: store.stamp(),
                epoch: header.map_or(0, |header| header.epoch),
                conditions: vec![],
                mutations: vec![],
                valid_until: None,
                bulk: false,
            };
            // Whether it succeeds does not matter.
            let _ = store.commit(&partition, commit).await;
            rest.release();
        });
    }
}
