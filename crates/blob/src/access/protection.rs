//! Keeps containers with protected blobs from being deleted.
//!
//! Searching all blobs of a container can take long. So the row of a container records whether any blob in it
//! was ever protected by a policy or a legal hold; only then does a delete search it. No blob must become
//! protected between the search and the delete. Rows decide that, so it also holds for dropped requests and
//! with several front ends:
//!
//! - A request that protects a blob reads the epoch of the space with the blob's row, then raises the version
//!   of the container's guard row, then commits the blob. The commit fails if the epoch was raised since.
//! - Delete Container reads the version of the guard row, raises the epoch, searches, and deletes on
//!   condition that neither the guard row nor the container's row has changed. Otherwise it begins again.
//!
//! A commit that protects a blob and read its epoch before the delete raised it is decided before the search,
//! so the search finds the blob. A commit that read the epoch later changes the guard row after the delete
//! has read it. `docs/decisions/0023-sweeps-and-guards.md` has the argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazuli_generations::Generation;
use lazuli_generations::keys::{CURRENT, GUARD};
use lazuli_protocol::{Account, ErrorCode, Refusal, Request};
use lazuli_service::SpaceScan;
use lazuli_store::{Change, Decision, Mutation, Reads, RowPosition, SpaceId, Token, View, Which};

use crate::BlobService;
use crate::model::container::Container;
use crate::model::keys::{self, RowKind};
use crate::model::record::Blob;
use crate::rules::precondition::check_mutable;
use crate::rules::retention::asks_for_protection;

/// Rows that a search reads at once.
const STEP: usize = 256;
/// Maximum number of searches of one Delete Container. Blobs may become protected between two of them.
pub(crate) const MAX_SEARCHES: usize = 16;

/// The container in which a request protects a blob.
pub(crate) struct ProtectingRequest<'a> {
    account: &'a Account,
    container: &'a str,
    space: SpaceId,
}

impl<'a> ProtectingRequest<'a> {
    /// Names the container in which a request protects a blob.
    pub(crate) fn new(request: &'a Request, space: SpaceId) -> Self {
        Self { account: &request.account, container: &request.container, space }
    }

    /// Like [`Self::new`], but only if the request's headers name a policy or a legal hold.
    pub(crate) fn if_requested(request: &'a Request, space: SpaceId) -> Result<Option<Self>, Refusal> {
        let asked = asks_for_protection(&request.headers)?;
        Ok(asked.then(|| Self::new(request, space)))
    }
}

/// A container in which a search found no protected blob.
#[derive(Clone)]
pub(crate) struct UnprotectedContainer {
    /// The versions of the rows before the search. `None` if no blob was ever protected, so that no search
    /// was necessary.
    searched: Option<Versions>,
    is_outdated: Arc<AtomicBool>,
}

/// The versions of a container's row and of its guard row.
type Versions = (Option<Token>, Option<Token>);

fn versions(view: &View<'_>) -> Versions {
    let version = |key: &[u8]| view.row(key).map(|row| row.token);
    (version(&CURRENT), version(&GUARD))
}

impl UnprotectedContainer {
    /// Returns the rows that [`UnprotectedContainer::check`] needs in addition to the row of the container.
    pub(crate) fn reads(&self) -> Reads {
        if self.searched.is_some() { Reads::key(GUARD) } else { Reads::default() }
    }

    /// Refuses to delete a container in which blobs may have become protected since the search.
    pub(crate) fn check(&self, container: &Container, view: &View<'_>) -> Result<(), Refusal> {
        if !container.protects || self.searched == Some(versions(view)) {
            return Ok(());
        }
        self.is_outdated.store(true, Ordering::Release);
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns whether the delete was refused because the search is outdated.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Acquire)
    }
}

impl BlobService {
    /// Raises the version of the guard row, and records in the container that it protects blobs.
    pub(crate) async fn announce_protection(
        &self,
        protecting: Option<&ProtectingRequest<'_>>,
    ) -> Result<(), Refusal> {
        let Some(ProtectingRequest { account, container, space }) = protecting else { return Ok(()) };
        let announced = self.containers.transact_with(account, container, Reads::default(), |current, _| {
            let current = current.filter(|current| current.space == *space);
            let mut container: Container = current.ok_or(ErrorCode::ContainerNotFound)?;
            let mut mutations = vec![Mutation::Add(GUARD, 1)];
            if !container.protects {
                container.protects = true;
                mutations.push(Mutation::Put(CURRENT, container.encode()?));
            }
            Ok(Decision::Write(Change::of(mutations), ()))
        });
        // On the heap, so that it does not enlarge the futures of requests that protect nothing.
        Box::pin(announced).await
    }

    /// Returns proof that a container has no protected blob. Refuses if it has one.
    pub(crate) async fn unprotected(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<UnprotectedContainer, Refusal> {
        let container = self.container(account, name).await?;
        let mut searched = None;
        if container.protects {
            // Search once before raising the epoch, so that a delete that is refused here disturbs no writer.
            self.find_protected(container.space).await?;
            let read = self.containers.transact_with(account, name, Reads::key(GUARD), |current, view| {
                let current = current.filter(|current| current.space == container.space);
                current.ok_or(ErrorCode::ContainerNotFound)?;
                Ok(Decision::Answer(versions(view)))
            });
            searched = Some(read.await?);
            self.containers.fence(container.space).await?;
            self.find_protected(container.space).await?;
        }
        Ok(UnprotectedContainer { searched, is_outdated: Arc::default() })
    }

    async fn find_protected(&self, space: SpaceId) -> Result<(), Refusal> {
        let mut scan = SpaceScan::new(&*self.store, space, keys::BLOBS, Which::All, STEP);
        while let Some(rows) = scan.next().await? {
            let now = self.store.now();
            for (partition, row) in &rows {
                if let Some(RowKind::Base | RowKind::Snapshot(_) | RowKind::Version(_)) =
                    keys::row_kind(&row.key)
                {
                    let blob = Blob::decode(&row.value);
                    let place = || RowPosition { space, partition: partition.clone(), key: row.key.clone() };
                    check_mutable(&blob.map_err(|damage| damage.at(place()))?, now)?;
                }
            }
        }
        Ok(())
    }
}
