//! Opening and closing as SMB does it: the table first, the row second.
//!
//! Whoever is in the table cannot be overtaken by a request over REST any more, so what the row says after that holds: that
//! the file is still there, and whether it is leased.

use std::sync::Arc;

use lazuli_concurrency::LeaseState;
use lazuli_generations::carry_through;
use lazuli_protocol::{Account, ErrorCode, Refusal};
use lazuli_store::SpaceId;
use tokio::runtime::Handle;

use super::{
    Admission, FileKey, OpenId, OpenRefusal, OpenRequest, OpenTable, Opened, PATIENCE, Place, Removal,
};
use crate::FileService;
use crate::children::At;
use crate::file::allocated;
use crate::moves::{self, Attempted, Delete, MAX_ATTEMPTS, Work};
use crate::names::{self, Name};
use crate::native::Failure;
use crate::pending::check_no_pending_copy;
use crate::record::Node;
use crate::tree::{Spot, Target};

/// How often a file may be replaced by another one while it is being opened.
const MAX_TRIES: usize = 16;

/// Why a path could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// By what is open or leased.
    Refused(OpenRefusal),
    /// By what is stored.
    Failed(Refusal),
}

impl From<OpenRefusal> for OpenError {
    fn from(refusal: OpenRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Refusal> for OpenError {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal)
    }
}

impl FileService {
    /// The table of open files.
    pub fn opens(&self) -> &Arc<OpenTable> {
        &self.opens
    }

    /// A request over REST that changes what is at a spot.
    pub(crate) fn admission(&self, spot: &Spot) -> Admission {
        self.opens.admission(spot.patience).committing(self.store.clone(), spot.partition())
    }

    /// Opens the file or directory at a path of a share.
    pub async fn open(
        &self,
        account: &Account,
        share: &str,
        path: &str,
        mut request: OpenRequest,
    ) -> Result<Opened, OpenError> {
        let (path, share) = (names::path(path, true)?, self.share(account, share).await?);
        let target = Target { share, path, at: At::Now, patience: PATIENCE };
        request.at = self.store.now();
        for _ in 0..MAX_TRIES {
            let (node, parent) = match self.find_target(&target).await {
                Err(refusal) if refusal.code() == ErrorCode::SMBDeletePending => {
                    return Err(OpenRefusal::DeletePending.into());
                }
                found => found?,
            };
            let path: Vec<_> = target.path.iter().map(|name| name.text.as_str()).collect();
            request.place = Place { parent, path: path.join("/") };
            let file = FileKey::now(target.share.space, node.id);
            let opened = self.opens.open(file, request.clone()).await?;
            let unsettled = Unsettled::new(self, opened.id);
            match self.find_any(&target).await? {
                // Another file has come in its place.
                (now, _) if now.id != node.id => {}
                (now, _) if is_only_read(&now) && !request.mode.fits_lease() => {
                    return Err(OpenRefusal::SharingViolation.into());
                }
                _ => {
                    self.opens.with(file, |state| state.found(&request.place));
                    unsettled.settled();
                    return Ok(opened);
                }
            }
        }
        Err(OpenError::Failed(ErrorCode::ServerBusy.into()))
    }

    /// Closes an open. A file that was marked for deletion goes with its last one.
    pub async fn close(&self, id: OpenId) -> Result<(), Refusal> {
        match self.close_open(id).await {
            Ok(_) | Err(Failure::Closed) => Ok(()),
            Err(failure) => {
                tracing::warn!(%failure, "what was closed may have lost something");
                Err(ErrorCode::InternalError.into())
            }
        }
    }

    /// Closes what is open of a share that was deleted, or of a snapshot of it: what it showed at the end of that epoch. What was
    /// written is lost with it.
    pub(crate) fn close_deleted(&self, space: SpaceId, snapshot: Option<u64>) {
        for file in self.opens.close_some(space, |file| snapshot.is_none() || file.epoch == snapshot) {
            self.discard(file);
        }
    }

    /// Deletes a file or directory whose last handle was closed. Whether it was a directory; none if it was not there.
    pub(crate) async fn remove_at_last(&self, removal: Removal) -> Result<Option<bool>, Refusal> {
        let this = self.clone();
        // To its end, as the file stays marked for deletion until then.
        carry_through(async move { this.remove(&removal).await }).await
    }

    async fn remove(&self, removal: &Removal) -> Result<Option<bool>, Refusal> {
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
            // Somebody else was faster.
            Err(refusal) if refusal.code() == ErrorCode::ResourceNotFound => Ok(None),
            removed => removed.map(|()| Some(is_directory)),
        }
    }

    async fn remove_file(&self, removal: &Removal, name: Name) -> Result<(), Refusal> {
        let (space, parent) = (removal.file.space, removal.place.parent);
        // What goes needs no room.
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: 0 };
        let mut released = 0;
        let removed = self.change_row(&spot, |_, old| {
            let old = old.filter(|old| old.id == removal.file.node).ok_or(ErrorCode::ResourceNotFound)?;
            released = allocated(&old);
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
            let place = moves::Place { parent, name: name.folded.to_vec() };
            let delete = Delete { place, directory: node, before: found.encode()?.into() };
            if self.attempt(space, &Work::Delete(delete)).await? == Attempted::Done {
                return Ok(());
            }
            let now = self.child(space, parent, name, At::Now).await?;
            found = now.filter(|now| now.id == node).ok_or(ErrorCode::ResourceNotFound)?;
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

/// An open that is in the table while its row is being made or looked at. Dropped, it came to nothing.
pub(crate) struct Unsettled<'a> {
    service: &'a FileService,
    id: Option<OpenId>,
}

impl<'a> Unsettled<'a> {
    pub(crate) fn new(service: &'a FileService, id: OpenId) -> Self {
        Self { service, id: Some(id) }
    }

    /// It came to something.
    pub(crate) fn settled(mut self) {
        self.id = None;
    }
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let removal = self.service.opens.abandon(id);
        // Others may have marked the file for deletion and closed it meanwhile.
        if let (Some(removal), Ok(runtime)) = (removal, Handle::try_current()) {
            let service = self.service.clone();
            runtime.spawn(async move {
                if let Err(refusal) = service.remove(&removal).await {
                    tracing::warn!(?refusal, "a file that was marked for deletion stays");
                }
            });
        }
    }
}

/// Whether it is leased, or waits for a copy.
pub(crate) fn is_only_read(node: &Node) -> bool {
    let is_leased = node.file.as_ref().is_some_and(|file| file.lease.state() == LeaseState::Leased);
    is_leased || check_no_pending_copy(node).is_err()
}
