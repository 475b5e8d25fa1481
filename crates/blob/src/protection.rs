//! Containers with protected blobs, which cannot be deleted.
//!
//! Deleting a container does not look at its blobs: that would take as long as there are many. So a container says whether
//! a policy or a legal hold has ever been set in it, and only one that does is searched. Nothing must become protected
//! between the search and the delete. That is judged on rows, so it holds for dropped requests and several front ends:
//!
//! - A request that protects a blob reads the epoch of the space with the blob's row, then raises the version of the
//!   container's guard row, then commits the blob, which fails if the epoch was raised since.
//! - Delete Container reads the version of the guard row, raises the epoch, searches, and deletes on the condition that
//!   neither the guard row nor the container's row has changed. Else it begins again.
//!
//! A commit that protects a blob and read its epoch before the delete raised it is decided before the search, which finds
//! the blob. One that read it later changes the guard row after the delete has read it.
//! `docs/decisions/0023-sweeps-and-guards.md` has the argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lazuli_generations::Generation;
use lazuli_generations::keys::{CURRENT, GUARD};
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, Token, View, Which, prefix_range};

use crate::keys::{self, RowKind};
use crate::precondition::check_mutable;
use crate::record::{Blob, Container};
use crate::retention::asks_for_protection;
use crate::target::Target;
use crate::{BlobService, container_gone, reply};

/// Rows that are searched at once.
const STEP: usize = 256;
/// How often Delete Container searches again because blobs may have become protected meanwhile.
pub(crate) const MAX_SEARCHES: usize = 16;

/// A container in which a request protects a blob.
pub(crate) struct Protecting<'a> {
    account: &'a Account,
    container: &'a str,
    space: SpaceId,
}

impl<'a> Protecting<'a> {
    /// The container of a request that protects a state of a blob.
    pub(crate) fn new(request: &'a Request, target: &Target) -> Self {
        Self { account: &request.account, container: &request.container, space: target.partition.space }
    }

    /// The same if the headers of the request ask for a policy or a legal hold.
    pub(crate) fn if_asked(request: &'a Request, target: &Target) -> Result<Option<Self>, Refusal> {
        let asked = asks_for_protection(&request.headers)?;
        Ok(asked.then(|| Self::new(request, target)))
    }
}

/// A container in which a search has found nothing protected, as the search found its rows. None: it has never protected
/// anything.
#[derive(Clone)]
pub(crate) struct Unprotected {
    searched: Option<Versions>,
    is_outdated: Arc<AtomicBool>,
}

/// The versions of a container's row and of its guard row.
type Versions = (Option<Token>, Option<Token>);

fn versions(view: &View<'_>) -> Versions {
    let version = |key: &[u8]| view.row(key).map(|row| row.token);
    (version(&CURRENT), version(&GUARD))
}

impl Unprotected {
    /// What [`Unprotected::check`] reads beside the container's row.
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

    /// Whether the delete was refused because the search is outdated.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Acquire)
    }
}

/// Refuses to protect a blob in a container that has no version-level immutability. To end a protection needs none.
pub(crate) fn check_opted_in(request: &Request) -> Result<(), Refusal> {
    use Operation::{
        CopyBlob, CopyBlobFromUrl, IncrementalCopyBlob, PutBlob, PutBlobFromUrl, PutBlockList,
        SetBlobImmutabilityPolicy, SetBlobLegalHold,
    };
    let protects = matches!(
        request.operation,
        PutBlob
            | PutBlobFromUrl
            | PutBlockList
            | CopyBlob
            | CopyBlobFromUrl
            | IncrementalCopyBlob
            | SetBlobImmutabilityPolicy
            | SetBlobLegalHold
    );
    let settings = &request.account.settings;
    if !protects
        || settings.has_version_immutability(&request.container)
        || !asks_for_protection(&request.headers)?
    {
        return Ok(());
    }
    let message = "Version-level immutability is not enabled for the container.";
    Err(Refusal::new(ErrorCode::FeatureNotEnabled).message(message))
}

impl BlobService {
    /// Raises the version of the guard row, and notes in the container that it protects blobs.
    pub(crate) async fn announce_protection(
        &self,
        protecting: Option<&Protecting<'_>>,
    ) -> Result<(), Refusal> {
        let Some(Protecting { account, container, space }) = protecting else { return Ok(()) };
        let announced =
            self.containers.transact_beside(account, container, Reads::default(), |current, _| {
                let current = current.filter(|current| current.space == *space);
                let mut container: Container = current.ok_or_else(container_gone)?;
                let mut mutations = vec![Mutation::Add(GUARD, 1)];
                if !container.protects {
                    container.protects = true;
                    mutations.push(Mutation::Put(CURRENT, container.encode()?));
                }
                Ok(Decision::Write(Change::of(mutations), ()))
            });
        // On the heap: requests that protect nothing do not carry this.
        Box::pin(announced).await
    }

    /// Refuses if the container has a protected blob.
    pub(crate) async fn unprotected(&self, account: &Account, name: &str) -> Result<Unprotected, Refusal> {
        let container = self.container(account, name).await?;
        let mut searched = None;
        if container.protects {
            // A delete that is refused here has disturbed no writer.
            self.find_protected(container.space).await?;
            let read = self.containers.transact_beside(account, name, Reads::key(GUARD), |current, view| {
                let current = current.filter(|current| current.space == container.space);
                current.ok_or_else(container_gone)?;
                Ok(Decision::Answer(versions(view)))
            });
            searched = Some(read.await?);
            self.containers.fence(container.space).await?;
            self.find_protected(container.space).await?;
        }
        Ok(Unprotected { searched, is_outdated: Arc::default() })
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
