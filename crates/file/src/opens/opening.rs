//! Opening and closing files in the table.

use std::sync::Arc;

use lazuli_store::SpaceId;
use tokio::time::timeout_at;

use crate::lock_order::check_client_wait;
use crate::opens::state::{FileState, StateStep};
use crate::opens::types::{Closed, OpenId, OpenLocation, OpenRefusal, OpenRequest, Opened};
use crate::opens::{OpenTable, Wait};
use crate::tree::spot::FileKey;

/// Number of times that an open waits for breaks and revokes caches before it is refused.
const MAX_ROUNDS: usize = 3;

/// A file that has to be deleted because its last handle was closed. It stays marked for deletion until this
/// is dropped.
#[must_use]
#[derive(Debug)]
pub struct Removal {
    table: Arc<OpenTable>,
    /// The file.
    pub file: FileKey,
    /// The path and directory.
    pub place: OpenLocation,
}

/// An open that is truncating its file, until this is dropped.
#[must_use]
pub(crate) struct TruncatingOpen {
    table: Arc<OpenTable>,
    id: OpenId,
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.table.with(self.file, FileState::finish_deletion);
    }
}

impl Drop for TruncatingOpen {
    fn drop(&mut self) {
        let version = self.table.number();
        self.table.with(self.id.file, |state| state.finish_truncating_open(self.id.number, version));
    }
}

impl OpenTable {
    /// Opens a file or directory. Waits for breaks and for granted requests. A client that does not
    /// acknowledge a break in time loses its cache.
    ///
    /// The caller has to read the row afterwards: only from now on the file cannot be deleted or newly
    /// leased.
    pub async fn open(&self, file: FileKey, request: OpenRequest) -> Result<Opened, OpenRefusal> {
        let number = self.number();
        let mut is_first = true;
        let attempt = || {
            let opened = self.try_open(file, number, &request, std::mem::take(&mut is_first))?;
            if let (Err(_), Some(waits)) = (&opened, &request.waits) {
                waits.notify_one();
            }
            Ok(opened.map_err(|wait| (wait, file)))
        };
        self.retry_after_breaks(attempt).await?.ok_or(OpenRefusal::SharingViolation)
    }

    /// Repeats an attempt until it need not wait. A client that does not acknowledge a break in time loses
    /// its cache. Returns `None` if that did not help several times.
    async fn retry_after_breaks<T, E>(
        &self,
        mut attempt: impl FnMut() -> Result<Result<T, (Wait, FileKey)>, E>,
    ) -> Result<Option<T>, E> {
        for _ in 0..MAX_ROUNDS {
            let deadline = self.deadline();
            let mut overdue = None;
            loop {
                let (mut wait, file) = match attempt()? {
                    Ok(done) => return Ok(Some(done)),
                    Err(wait) => wait,
                };
                // Breaks that have begun have the full time until the deadline.
                let first = *overdue.get_or_insert_with(|| self.with(file, |state| state.breaks()));
                check_client_wait();
                if timeout_at(deadline, wait.changed()).await.is_err() {
                    self.with(file, |state| state.revoke(first));
                    break;
                }
            }
        }
        Ok(None)
    }

    fn try_open(
        &self,
        file: FileKey,
        number: u64,
        request: &OpenRequest,
        is_first: bool,
    ) -> Result<Result<Opened, Wait>, OpenRefusal> {
        self.with(file, |state| {
            // Check while the shard is locked: a move is announced before it searches for opens.
            if let Some(wait) = self.move_above(file.space, &request.place.path) {
                return Ok(Err(wait));
            }
            Ok(match state.open(number, request, is_first)? {
                StateStep::Wait => Err(state.subscribe()),
                StateStep::Done((caching, epoch, breaking)) => {
                    Ok(Opened { id: OpenId { file, number }, caching, epoch, breaking })
                }
            })
        })
    }

    /// Closes an open. Returns the file if it has to be deleted now.
    pub fn close(self: &Arc<Self>, id: OpenId) -> Option<Removal> {
        let place = self.with(id.file, |state| state.close(id.number))?;
        Some(Removal { table: self.clone(), file: id.file, place })
    }

    /// Closes an open whose creation failed. The file stays, unless another open has marked it for deletion.
    pub fn abandon(self: &Arc<Self>, id: OpenId) -> Option<Removal> {
        self.with(id.file, |state| state.keep_on_close(id.number));
        self.close(id)
    }

    /// Closes all matching opens of a share. Returns their files. The caller discards their buffered writes.
    pub(crate) fn close_matching(&self, space: SpaceId, picks: impl Fn(FileKey) -> bool) -> Vec<FileKey> {
        let mut files = vec![];
        for shard in self.all_shards() {
            files.extend(shard.keys().filter(|file| file.space == space && picks(**file)).copied());
        }
        for file in &files {
            self.with(*file, FileState::close_all);
        }
        files
    }

    /// Marks a file for deletion at the last close, or removes the mark.
    pub async fn set_delete_pending(&self, id: OpenId, pending: bool) -> Result<(), Closed> {
        if pending {
            self.break_handles(id).await?;
        }
        self.with_open(id, |state| state.set_delete_pending(pending))
    }

    /// Breaks handle caches of other opens, for example before a rename. A client that does not acknowledge
    /// loses its cache.
    pub async fn break_handles(&self, id: OpenId) -> Result<(), Closed> {
        let attempt = || {
            self.with_open(id, |state| match state.break_handles(id.number) {
                StateStep::Done(()) => Ok(()),
                StateStep::Wait => Err((state.subscribe(), id.file)),
            })
        };
        // Go on even if a client has not acknowledged.
        self.retry_after_breaks(attempt).await.map(|_| ())
    }

    /// Announces that the holder of a file lock truncates the file. Until the result is dropped no reader
    /// keeps the row in memory, and writers wait.
    pub(crate) fn begin_truncating_open(self: &Arc<Self>, id: OpenId) -> TruncatingOpen {
        let version = self.number();
        self.with(id.file, |state| state.begin_truncating_open(id.number, version));
        TruncatingOpen { table: self.clone(), id }
    }
}
