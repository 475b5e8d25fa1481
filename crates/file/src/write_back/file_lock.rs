//! The lock of one open file, and reading its row.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use crate::FileService;
use crate::failure::Failure;
use crate::lock_order::{Rank, Ranked};
use crate::opens::OpenLocation;
use crate::tree::children::At;
use crate::tree::names::{self, Name};
use crate::tree::record::{Node, Share};
use crate::tree::rules::check_no_pending_copy;
use crate::tree::spot::FileKey;

/// The lock of an open file. An SMB operation that holds it may change the content and the row.
pub(crate) struct FileLock {
    pub(crate) file: FileKey,
    _lock: Ranked<OwnedMutexGuard<()>>,
}

impl FileService {
    /// Acquires the lock of a file.
    pub(crate) async fn lock_file(&self, file: FileKey) -> FileLock {
        let lock = self.opens.with(file, |state| state.buffer.lock.clone());
        FileLock { file, _lock: Ranked::wait(Rank::File, lock.lock_owned()).await }
    }

    /// Returns the row of an open file. Reads it if it is not known.
    pub(crate) async fn load(&self, file: FileKey) -> Result<Arc<Node>, Failure> {
        if let Some(node) = self.opens.with(file, |state| state.buffer.node().cloned()) {
            return Ok(node);
        }
        let lock = self.lock_file(file).await;
        self.load_locked(&lock).await
    }

    pub(crate) async fn load_locked(&self, lock: &FileLock) -> Result<Arc<Node>, Failure> {
        let file = lock.file;
        let (known, version, place, share) = self.opens.with(file, |state| {
            let buffer = &state.buffer;
            (buffer.node().cloned(), state.version, state.place.clone(), buffer.share().cloned())
        });
        if let Some(node) = known {
            return Ok(node);
        }
        let share = share.ok_or(Failure::Closed)?;
        let node = Arc::new(self.row(file, &place, &share).await?);
        self.opens.with(file, |state| {
            // Otherwise a request over REST may have changed the row since it was read.
            let is_still_so = state.version == version && !state.has_granted_requests();
            if is_still_so && !state.buffer.is_dirty() && state.buffer.share().is_some() {
                state.buffer.set_node(node.clone());
            }
        });
        Ok(node)
    }

    /// Reads the row of an open file.
    async fn row(&self, file: FileKey, place: &OpenLocation, share: &Share) -> Result<Node, Failure> {
        let at = file.epoch.map_or(At::Now, At::Epoch);
        let node = match name_of(place)? {
            None => Some(self.root(share, at).await?),
            Some(name) => self.child(file.space, place.parent, &name, at).await?,
        };
        node.filter(|node| node.id == file.node).ok_or(Failure::NotFound)
    }
}

/// Refuses directories and targets of pending copies: their rows change without a grant of the
/// open-file table.
pub(crate) fn check_takes_writes(node: &Node) -> Result<(), Failure> {
    if node.is_directory() {
        return Err(Failure::IsDirectory);
    }
    check_no_pending_copy(node).map_err(|_| Failure::Sharing)
}

/// Returns the name of an open file; `None` for the root.
pub(crate) fn name_of(place: &OpenLocation) -> Result<Option<Name>, Failure> {
    Ok(names::path(&place.path, true)?.pop())
}
