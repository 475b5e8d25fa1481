//! Closing handles, and deleting files whose last handle is closed.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{read_refusal, run_to_completion};
use lazuli_store::SpaceId;

use crate::FileService;
use crate::failure::Failure;
use crate::handles::Removed;
use crate::lock_order::{Rank, Ranked};
use crate::opens::write_buffer::FlushReason;
use crate::opens::{OpenId, PATIENCE, Removal};
use crate::tree::children::At;
use crate::tree::move_record::{self, Delete, IntentWork};
use crate::tree::moves::{IntentOutcome, MAX_ATTEMPTS};
use crate::tree::names::{self, Name};
use crate::tree::record::Node;
use crate::tree::rules::extent_bytes;
use crate::tree::spot::{FileKey, Spot};

impl FileService {
    /// Flushes and closes an open. Deletes a file that is marked for deletion if this was its last handle,
    /// and returns what was deleted.
    ///
    /// The handle is closed even if this fails. Then buffered writes may be lost.
    pub async fn close_open(&self, id: OpenId) -> Result<Option<Removed>, Failure> {
        let is_going = self.opens.with_open(id, |state| state.deletes_on_close(id.number))?;
        let mut flushed = Ok(());
        if !is_going {
            flushed = self.flush(id).await;
        }
        let removal = self.opens.close(id);
        let Some(removal) = removal else {
            if flushed.is_err() && !self.opens.with(id.file, |state| state.has_opens()) {
                self.discard(id.file);
            } else if is_going {
                // The file was opened again after the check.
                flushed = self.flush_file(id.file, FlushReason::Requested).await;
            }
            return flushed.map(|()| None);
        };
        self.discard(id.file);
        let path = removal.place.path.clone();
        let removed = self.remove_at_last(removal).await?;
        Ok(removed.map(|is_directory| Removed { path, is_directory }))
    }

    /// Closes all opens of a deleted share, or of a deleted snapshot. Drops their buffered writes.
    pub(crate) fn close_deleted(&self, space: SpaceId, snapshot: Option<u64>) {
        for file in self.opens.close_matching(space, |file| snapshot.is_none() || file.epoch == snapshot) {
            self.discard(file);
        }
    }

    /// Closes all opens of deleted shares, for deletions that were interrupted. May be dropped at any point.
    pub(crate) async fn close_gone(&self) -> Result<(), Refusal> {
        // No share is restored meanwhile.
        let _deleting = Ranked::wait(Rank::ShareDeletion, self.share_deletions.read()).await;
        for space in self.opens.spaces().union(&self.usages.spaces()) {
            let header = self.store.space(*space).await.map_err(read_refusal)?;
            if header.is_none_or(|header| !header.open) {
                self.close_share(*space);
            }
        }
        Ok(())
    }

    pub(crate) fn close_share(&self, space: SpaceId) {
        self.close_deleted(space, None);
        self.usages.forget(space);
    }

    /// Deletes a file or directory after its last handle was closed. Returns whether it was a directory;
    /// `None` if it does not exist.
    pub(crate) async fn remove_at_last(&self, removal: Removal) -> Result<Option<bool>, Refusal> {
        let this = self.clone();
        // Run to completion: the file stays marked for deletion until then.
        run_to_completion(async move { this.remove(&removal).await }).await
    }

    pub(super) async fn remove(&self, removal: &Removal) -> Result<Option<bool>, Refusal> {
        let Some(name) = names::path(&removal.place.path, true)?.pop() else { return Ok(None) };
        let (FileKey { space, node, .. }, parent) = (removal.file, removal.place.parent);
        let found = self.child(space, parent, &name, At::Now).await?;
        let Some(found) = found.filter(|found| found.id == node) else { return Ok(None) };
        let is_directory = found.is_directory();
        let removed = match is_directory {
            true => self.remove_directory(removal, &name, found).await,
            false => self.remove_file(removal, name).await,
        };
        match removed {
            // It was deleted concurrently.
            Err(refusal) if refusal.code() == ErrorCode::ResourceNotFound => Ok(None),
            removed => removed.map(|()| Some(is_directory)),
        }
    }

    async fn remove_file(&self, removal: &Removal, name: Name) -> Result<(), Refusal> {
        let (space, parent) = (removal.file.space, removal.place.parent);
        // A deletion needs no quota.
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: 0 };
        let mut released = 0;
        let removed = self.change_row(&spot, None, |_, old| {
            let old = old.filter(|old| old.id == removal.file.node).ok_or(ErrorCode::ResourceNotFound)?;
            released = extent_bytes(&old);
            Ok(None)
        });
        removed.await?;
        self.extents.released(released);
        Ok(())
    }

    async fn remove_directory(&self, removal: &Removal, name: &Name, found: Node) -> Result<(), Refusal> {
        let (FileKey { space, node, .. }, parent) = (removal.file, removal.place.parent);
        let mut found = found;
        for _ in 0..MAX_ATTEMPTS {
            let place = move_record::DirectoryEntryName { parent, name: name.folded.to_vec() };
            let delete = Delete { place, directory: node, before: found.encode()?.into() };
            if self.run_intent(space, &IntentWork::Delete(delete)).await? == IntentOutcome::Done {
                return Ok(());
            }
            let now = self.child(space, parent, name, At::Now).await?;
            found = now.filter(|now| now.id == node).ok_or(ErrorCode::ResourceNotFound)?;
        }
        Err(ErrorCode::ServerBusy.into())
    }
}
