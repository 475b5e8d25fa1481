//! Commits buffered writes, and changes of the row by handles, in one commit.

use std::sync::Arc;

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::run_to_completion;
use lazuli_store::View;

use crate::FileService;
use crate::failure::Failure;
use crate::opens::write_buffer::{FlushReason, PendingCommit};
use crate::opens::{OpenLocation, PATIENCE};
use crate::tree::record::{ARCHIVE, NORMAL, Node, Share};
use crate::tree::rules::extent_bytes;
use crate::tree::spot::{FileKey, Spot};
use crate::write_back::{FileLock, name_of};

impl FileService {
    /// Flushes a file: afterwards its writes are durable.
    pub(crate) async fn flush_file(&self, file: FileKey, reason: FlushReason) -> Result<(), Failure> {
        let this = self.clone();
        // Runs to completion, so that the buffer records the commit.
        let flushed = async move {
            let lock = this.lock_file(file).await;
            Ok(this.commit(&lock, reason, None::<fn(&mut Node, &View<'_>)>).await)
        };
        run_to_completion(flushed).await.map_err(|refusal: Refusal| Failure::from(refusal))?.map(drop)
    }

    /// Commits buffered writes together with a change of the row. Returns the new row, if there was anything
    /// to commit.
    pub(crate) async fn commit(
        &self,
        lock: &FileLock,
        reason: FlushReason,
        mut change: Option<impl FnMut(&mut Node, &View<'_>)>,
    ) -> Result<Option<Arc<Node>>, Failure> {
        let file = lock.file;
        if change.is_some() {
            self.load_locked(lock).await?;
        }
        self.spill(lock).await?;
        let pending = self.opens.with(file, |state| {
            let pending = state.buffer.pending_commit(reason, change.is_some())?;
            Some((pending, state.place.clone(), state.buffer.share().cloned()))
        });
        let Some((pending, place, share)) = pending else { return Ok(None) };
        let committed = self.commit_row(file, &pending, &place, share.as_deref(), &mut change).await;
        self.opens.with(file, |state| {
            if let Ok(node) = &committed {
                let has_granted_requests = state.has_granted_requests();
                state.buffer.committed(&pending, reason, node.clone(), has_granted_requests);
                // The row was written, so an earlier background error no longer matters.
                state.buffer.failed = None;
            }
            // Release quota that was not needed, or reserve again what a failed commit did not use.
            state.buffer.rebalance_quota(|more| self.usages.adjust_buffered(file.space, more));
        });
        committed.map(Some)
    }

    /// Commits a change of an open directory.
    pub(crate) async fn commit_directory(
        &self,
        lock: &FileLock,
        change: impl FnMut(&mut Node, &View<'_>),
    ) -> Result<Option<Arc<Node>>, Failure> {
        let node = self.load_locked(lock).await?;
        let (place, share) =
            self.opens.with(lock.file, |state| (state.place.clone(), state.buffer.share().cloned()));
        let pending = PendingCommit::row_only(node);
        self.commit_row(lock.file, &pending, &place, share.as_deref(), &mut Some(change)).await.map(Some)
    }

    async fn commit_row(
        &self,
        file: FileKey,
        pending: &PendingCommit,
        place: &OpenLocation,
        share: Option<&Share>,
        change: &mut Option<impl FnMut(&mut Node, &View<'_>)>,
    ) -> Result<Arc<Node>, Failure> {
        let content = pending.node.file.as_ref().map(|file| &file.content);
        if pending.wrote && content.is_some_and(|content| content.as_inline().is_none()) {
            self.extents.sync().await?;
        }
        let Some(name) = name_of(place)? else {
            let changed = self.change_root(share.ok_or(Failure::Closed)?, |node, view| {
                node.touch(view.stamp, view.now);
                if let Some(change) = change {
                    change(node, view);
                }
                Ok(())
            });
            return Ok(Arc::new(changed.await?));
        };
        let mut reserved = None;
        if pending.reserved > 0 {
            let mut reservation = self.usages.begin_change(file.space).await;
            // Take the reserved bytes only now: bytes that are not used stay reserved.
            self.opens.with(file, |state| reservation.commit_reserved(state.buffer.take_reserved(pending)));
            reserved = Some(reservation);
        }
        let (space, parent) = (file.space, place.parent);
        // Growth was reserved when it was written.
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: u64::MAX };
        let mut released = 0;
        let changed = self.write_row(&spot, reserved, |view, old| {
            let old = old.filter(|old| old.id == file.node).ok_or(ErrorCode::ResourceNotFound)?;
            let mut node = pending.apply(old.clone(), view);
            if let Some(change) = change {
                change(&mut node, view);
            }
            released = extent_bytes(&old).saturating_sub(extent_bytes(&node));
            Ok(node)
        });
        let node = changed.await?;
        self.extents.released(released);
        Ok(Arc::new(node))
    }
}

impl PendingCommit {
    /// Returns the row with the buffered writes.
    fn apply(&self, mut node: Node, view: &View<'_>) -> Node {
        let change = node.properties.change;
        node.touch(view.stamp, view.now);
        if self.keeps_change {
            node.properties.change = change;
        }
        if self.wrote {
            if let (Some(file), Some(newest)) = (&mut node.file, &self.node.file) {
                file.content = newest.content.clone();
            }
            node.properties.attributes = node.properties.attributes & !NORMAL | ARCHIVE;
            node.properties.last_write = self.node.properties.last_write;
        }
        if self.stamps {
            node.properties.last_write = view.now;
        }
        node
    }
}
