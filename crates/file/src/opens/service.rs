//! Opening and closing as SMB does it: the table first, the row second.
//!
//! Whoever is in the table cannot be overtaken by a request over REST any more, so what the row says after that holds: that
//! the file is still there, and whether it is leased.

use std::sync::Arc;

use lazuli_concurrency::LeaseState;
use lazuli_protocol::{Account, ErrorCode, Refusal};

use super::{
    Admission, FileKey, OpenId, OpenRefusal, OpenRequest, OpenTable, Opened, PATIENCE, Place, Removal,
};
use crate::children::At;
use crate::record::Node;
use crate::tree::{Spot, Target};
use crate::{FileService, names};

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
            let file = FileKey { space: target.share.space, node: node.id };
            let opened = self.opens.open(file, request.clone()).await?;
            let refused = match self.find_any(&target).await {
                Ok((now, _)) if now.id != node.id => None,
                Ok((now, _)) if is_leased(&now) && !request.mode.fits_lease() => {
                    Some(OpenRefusal::SharingViolation.into())
                }
                Ok(_) => return Ok(opened),
                Err(refusal) => Some(refusal.into()),
            };
            self.remove(self.opens.abandon(opened.id)).await?;
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        Err(OpenError::Failed(ErrorCode::ServerBusy.into()))
    }

    /// Closes an open. A file that was marked for deletion goes with its last one.
    pub async fn close(&self, id: OpenId) -> Result<(), Refusal> {
        self.remove(self.opens.close(id)).await
    }

    /// Deletes a file whose last handle was closed.
    pub(crate) async fn remove(&self, removal: Option<Removal>) -> Result<(), Refusal> {
        let Some(removal) = removal else { return Ok(()) };
        let Some(name) = names::path(&removal.place.path, true)?.pop() else { return Ok(()) };
        let (space, parent) = (removal.file.space, removal.place.parent);
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: 0 };
        let mut released = 0;
        let removed = self.change_row(&spot, |_, old| {
            let is_it = old.as_ref().is_some_and(|old| old.id == removal.file.node && !old.is_directory());
            if !is_it {
                return Err(ErrorCode::ResourceNotFound.into());
            }
            released = old.as_ref().map_or(0, crate::file::allocated);
            Ok(None)
        });
        match removed.await {
            Ok(_) => self.extents.released(released),
            Err(refusal) if refusal.code() == ErrorCode::ResourceNotFound => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }
}

fn is_leased(node: &Node) -> bool {
    node.file.as_ref().is_some_and(|file| file.lease.state() == LeaseState::Leased)
}
