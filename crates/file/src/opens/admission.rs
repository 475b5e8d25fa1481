//! A request over REST in the open-file table, from its check until its commit.
//!
//! A rule inside a transaction asks for each file that it uses. It holds what it was granted until the
//! admission is dropped, after the commit; conflicting opens and locks over SMB wait for that. If a client
//! has to acknowledge a break first, the rule is refused, and the caller repeats the transaction afterwards:
//!
//! ```text
//! let mut admission = self.opens.admission(patience);
//! loop {
//!     let result = self.rows.transact(…, |view| { …; admission.admit(file, usage)?; … }).await;
//!     if result.is_ok() || !admission.wait_for_clients().await { return result }
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

use crate::lock_order::check_client_wait;
use crate::opens::state::{Admitted, Denied, FileState, StateStep};
use crate::opens::{Move, OpenTable, Wait};
use crate::tree::names;
use crate::tree::spot::FileKey;

/// The grants of one request over REST.
#[must_use]
pub struct Admission {
    table: Arc<OpenTable>,
    deadline: Instant,
    number: u64,
    held: Vec<(FileKey, FileUse)>,
    moves: Vec<String>,
    wait: Option<Wait>,
    /// The file to flush before the next attempt.
    flush: Option<FileKey>,
    /// Files that were flushed for this request.
    flushed: Vec<FileKey>,
    /// The store and partition of the request's commit, until no commit is in flight.
    commits: Option<(Arc<dyn Store>, Partition)>,
}

impl OpenTable {
    /// Begins a request over REST that waits for clients at most this long.
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
    /// Makes the grants outlive a dropped request until its commit is decided. Call [`Admission::done`] when
    /// the commit has returned.
    pub fn committing(mut self, store: Arc<dyn Store>, partition: Partition) -> Self {
        self.commits = Some((store, partition));
        self
    }

    /// Notes that no commit is in flight.
    pub fn done(mut self) {
        self.commits = None;
    }

    /// Asks to use a file or directory.
    pub fn admit(&mut self, file: FileKey, usage: FileUse) -> Result<(), Refusal> {
        self.admit_range(file, usage, ByteRange::ALL)
    }

    /// Asks to use a byte range of a file.
    pub fn admit_range(&mut self, file: FileKey, usage: FileUse, range: ByteRange) -> Result<(), Refusal> {
        if self.held.contains(&(file, usage)) {
            return Ok(());
        }
        if !usage.changes() && self.table.is_empty() {
            return Ok(());
        }
        let number = self.number;
        // A request that changes the file blocks writers from its grant on, so an earlier flush does not
        // count.
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
            Err(Denied::DeletePending) => Err(self.table.blocked(file, ErrorCode::SMBDeletePending)),
            Err(Denied::Sharing) => Err(self.table.blocked(file, ErrorCode::SharingViolation)),
            Err(Denied::Locked) => Err(self.table.blocked(file, ErrorCode::FileLockConflict)),
        }
    }

    /// Refuses a file that is marked for deletion. Also refuses a file with buffered writes until they are
    /// flushed, and notes it for the flush. Called before the rule checks anything else, because the row has
    /// to include all data that SMB clients have written.
    pub fn check(&mut self, file: FileKey) -> Result<(), Refusal> {
        self.check_stays(file)?;
        let is_dirty = self.table.peek(file, |state| state.buffer.is_dirty()).unwrap_or_default();
        if is_dirty && !self.flushed.contains(&file) {
            self.flush = Some(file);
            return Err(ErrorCode::ClientCacheFlushDelay.into());
        }
        Ok(())
    }

    /// Refuses a file that is marked for deletion, even if it has buffered writes.
    pub fn check_stays(&self, file: FileKey) -> Result<(), Refusal> {
        match self.table.is_delete_pending(file) {
            true => Err(self.table.blocked(file, ErrorCode::SMBDeletePending)),
            false => Ok(()),
        }
    }

    /// Asks to move a directory. Nothing may be open at or below its path except the open that moves it, and
    /// nothing is opened there until this is dropped. Breaks handle caches first if that can help.
    pub fn admit_move(&mut self, space: SpaceId, path: &str, by: Option<FileKey>) -> Result<(), Refusal> {
        let path = names::fold(path);
        if !self.moves.contains(&path) {
            self.moves.push(path.clone());
            let (number, path, done) = (self.number, path.clone(), watch::channel(()).0);
            self.table.directory_moves().push(Move { number, space, path, done });
        }
        // Announce the move first. Then each open either is found here or finds the move and waits.
        let mut open = self.table.open_below(space, &path);
        open.retain(|file| Some(*file) != by);
        if !open.iter().all(|file| self.table.with(*file, |state| state.is_only_cached())) {
            return Err(ErrorCode::SharingViolation.into());
        }
        let mut wait = None;
        for file in open {
            let cleared =
                self.table.with(file, |state| Some((state.break_all_handles()?, state.subscribe())));
            match cleared {
                None => return Err(ErrorCode::SharingViolation.into()),
                Some((StateStep::Done(()), _)) => {}
                Some((StateStep::Wait, changed)) => wait = Some(changed),
            }
        }
        if wait.is_none() {
            return Ok(());
        }
        // All breaks are sent. Wait for one of them, then look again.
        self.wait = wait;
        Err(ErrorCode::ClientCacheFlushDelay.into())
    }

    /// Returns the file to flush after a refusal.
    pub(crate) fn flush(&mut self) -> Option<FileKey> {
        let file = self.flush.take()?;
        self.flushed.push(file);
        Some(file)
    }

    /// Returns until when the request waits for clients.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits for a client after a refusal. Returns whether to try again.
    pub async fn wait_for_clients(&mut self) -> bool {
        let Some(mut wait) = self.wait.take() else { return false };
        self.release();
        check_client_wait();
        timeout_at(self.deadline, wait.changed()).await.is_ok()
    }

    fn release(&mut self) {
        for (file, _) in self.held.drain(..) {
            self.table.with(file, |state: &mut FileState| state.finish(self.number, self.table.number()));
        }
        if !std::mem::take(&mut self.moves).is_empty() {
            self.table.directory_moves().retain(|it| it.number != self.number);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let commits = self.commits.take().filter(|_| !self.held.is_empty());
        let (Some((store, partition)), Ok(runtime)) = (commits, Handle::try_current()) else {
            return self.release();
        };
        // The request was dropped, or refused after its grant. Its commit may be in flight: an empty commit
        // ends after it.
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
                fence: None,
                bulk: false,
            };
            // Ignore the result: only the order matters.
            let _ = store.commit(&partition, commit).await;
            rest.release();
        });
    }
}
