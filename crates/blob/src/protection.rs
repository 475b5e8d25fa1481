//! Containers with protected blobs, which cannot be deleted.
//!
//! Deleting a container does not look at its blobs: that would take as long as there are many. So a container says whether
//! a policy or a legal hold has ever been set in it, and only one that does is searched. That is written before the first
//! such blob is. Whoever protects a blob and whoever deletes the container take turns, so that nothing becomes protected
//! between the search and the delete. A client that disconnects gives up its turn while its commit may still be queued. So
//! the delete first lets the store decide every commit that was submitted before the delete's turn.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_generations::not_settled;
use lazuli_protocol::{Account, ErrorCode, Refusal, Request};
use lazuli_store::{SpaceId, Which, prefix_range};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::keys::{self, RowKind};
use crate::precondition::check_mutable;
use crate::record::{Blob, Container};
use crate::retention::asks_for_protection;
use crate::target::Target;
use crate::{BlobService, container_gone, reply};

/// Containers that share a turn are as many as there are of them, divided by this.
const TURNS: usize = 64;
/// Rows that are searched at once.
const STEP: usize = 256;

/// The turns of those who protect blobs, which do not exclude one another, and of those who delete containers.
pub(crate) struct Turns(Vec<Arc<RwLock<()>>>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..TURNS).map(|_| Arc::default()).collect())
    }
}

impl Turns {
    fn of(&self, space: SpaceId) -> Arc<RwLock<()>> {
        self.0[space.0 as usize % TURNS].clone()
    }
}

/// Leave to protect blobs of a container, for as long as it is kept.
pub(crate) type Protecting = OwnedRwLockReadGuard<()>;

/// Leave to delete a container if it is this one, or one that says that it protects nothing.
pub(crate) struct Unprotected {
    space: SpaceId,
    _turn: OwnedRwLockWriteGuard<()>,
}

impl Unprotected {
    /// Judges what is there when the container is deleted.
    pub(crate) fn check(&self, container: &Container) -> Result<(), Refusal> {
        if container.protects && container.space != self.space {
            // Another one of that name was made meanwhile.
            return Err(ErrorCode::ServerBusy.into());
        }
        Ok(())
    }
}

impl BlobService {
    /// Leave to make the blob that a request describes, if that is protected.
    pub(crate) async fn protecting_if_asked(
        &self,
        request: &Request,
        target: &Target,
    ) -> Result<Option<Protecting>, Refusal> {
        if !asks_for_protection(&request.headers)? {
            return Ok(None);
        }
        self.protecting(request, target).await.map(Some)
    }

    /// Leave to protect a state of a blob.
    pub(crate) async fn protecting(&self, request: &Request, target: &Target) -> Result<Protecting, Refusal> {
        let (account, name) = (&request.account, &request.container);
        let space = target.partition.space;
        let turn = self.turns.of(space).read_owned().await;
        let current = self.container(account, name).await?;
        if current.space != space {
            return Err(container_gone());
        }
        if !current.protects {
            let noted = self.containers.change(account, name, |container, _| {
                if container.space != space {
                    return Err(container_gone());
                }
                container.protects = true;
                Ok(((), None))
            });
            noted.await?;
        }
        Ok(turn)
    }

    /// Leave to delete a container, unless a blob in it is protected.
    pub(crate) async fn unprotected(&self, account: &Account, name: &str) -> Result<Unprotected, Refusal> {
        let space = self.check_unprotected(account, name).await?;
        // Nobody had to wait for that. It is very likely to be so still.
        let _turn = self.turns.of(space).write_owned().await;
        self.check_unprotected(account, name).await?;
        Ok(Unprotected { space, _turn })
    }

    /// Refuses if the container has a protected blob. Its space.
    async fn check_unprotected(&self, account: &Account, name: &str) -> Result<SpaceId, Refusal> {
        let container = self.container(account, name).await?;
        if container.protects {
            // A protecting request that was dropped has given up its turn, and its commit may still be queued.
            self.store.settled().await.map_err(not_settled)?;
            self.find_protected(container.space).await?;
        }
        Ok(container.space)
    }

    async fn find_protected(&self, space: SpaceId) -> Result<(), Refusal> {
        let blobs = prefix_range(keys::BLOBS);
        let mut from = (blobs.start, Bytes::new());
        loop {
            let end = Some((blobs.end.clone(), Bytes::new()));
            let page = self.store.scan_space(space, from, end, Which::All, STEP).await;
            let page = page.map_err(reply::unreadable)?;
            let now = self.store.now();
            for (_, row) in &page.rows {
                if let Some(RowKind::Base | RowKind::Snapshot(_) | RowKind::Version(_)) =
                    keys::row_kind(&row.key)
                {
                    check_mutable(&Blob::decode(&row.value)?, now)?;
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            from = next;
        }
    }
}
