//! The blob service: containers, and block, append and page blobs in them.
//!
//! A handler reads the request, runs a rule in a transaction on one partition, and replies. The files here
//! are named after the families of REST operations; [`BlobService::call`] is the table of contents. Code that
//! several families use is in modules below them: [`access`] finds and changes the blob that a request
//! addresses, [`content`] moves bytes, [`rules`] holds checks without I/O, [`index`] finds blobs by tags,
//! [`model`] names and encodes rows, and [`reply`] writes headers. None of these modules refers to a family
//! of operations. [`background`] runs between requests.
//!
//! Checks run in the protocol's order: container, lease, existence, conditions, then the operation's own
//! rules. All of them run in the transaction, so they still hold when the change takes effect.

mod access;
mod append;
mod background;
mod batch;
mod block;
mod block_list;
mod container;
mod content;
mod copy;
mod delete;
mod find_by_tags;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod get;
mod incremental_copy;
mod index;
mod lease;
mod list;
mod list_containers;
mod model;
mod page;
mod page_ranges;
mod properties;
mod put;
mod put_from_url;
mod query;
mod reply;
mod retention;
mod rules;
mod snapshot;
mod tags;
mod tier;
mod website;

use std::sync::Arc;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_copy::{Copies, CopySources};
use lazuli_extents::Extents;
use lazuli_generations::Generations;
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::structured::Structured;
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_service::Rows;
use lazuli_store::{Decision, Partition, Reads, Store, View};

use access::protection::ProtectingRequest;
use background::dropped::DroppedBlocks;
use background::expiry::ExpiryWatch;
use model::container::Container;
use model::keys;
use model::staging::drops_blocks;
use rules::precondition::check_tag_permission;
use rules::retention::check_opted_in;

pub use background::expiry::Expired;
pub use lazuli_generations::Swept;
pub use lazuli_service::Damage;
pub use model::rows::{BlobRows, content_of_row, is_blob_row};

/// The blob service on a store. Clones are the same service.
#[derive(Clone)]
pub struct BlobService {
    store: Arc<dyn Store>,
    extents: Arc<dyn Extents>,
    accounts: AccountDirectory,
    rows: Rows,
    containers: Generations<Container>,
    expiry: Arc<ExpiryWatch>,
    dropped: Arc<DroppedBlocks>,
    copies: Arc<Copies>,
}

impl BlobService {
    /// Creates the service of these accounts. Rows are in `store`, bytes in `extents`.
    pub fn new(store: Arc<dyn Store>, extents: Arc<dyn Extents>, accounts: AccountDirectory) -> Self {
        let copies = Arc::new(Copies::new(store.clone(), keys::COPIES, None));
        let expiry = Arc::new(ExpiryWatch::new(store.now()));
        let containers = Generations::new(store.clone(), accounts.clone());
        let rows = Rows::new(store.clone(), ErrorCode::ContainerNotFound);
        Self { store, extents, accounts, rows, containers, expiry, dropped: Arc::default(), copies }
    }

    /// Lets the service copy from these sources. Without sources it refuses copies.
    #[must_use]
    pub fn with_copy_sources(mut self, sources: CopySources) -> Self {
        self.copies = Arc::new(Copies::new(self.store.clone(), keys::COPIES, Some(sources)));
        self
    }

    /// Runs a rule on a blob's partition.
    async fn transact<T>(
        &self,
        partition: &Partition,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.transact_protecting(None, partition, reads, rule).await
    }

    /// Runs a rule that may set a policy or a legal hold on the blob.
    async fn transact_protecting<T>(
        &self,
        protecting: Option<&ProtectingRequest<'_>>,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let watch = self.dropped.watch(partition);
        let rule = |view: &View<'_>| {
            let decision = rule(view)?;
            if matches!(&decision, Decision::Write(change, _) if drops_blocks(change)) {
                watch.set();
            }
            Ok(decision)
        };
        let announce = || self.announce_protection(protecting);
        self.rows.transact_announced(partition, reads, rule, announce).await
    }
}

#[async_trait]
impl Service for BlobService {
    async fn call(&self, mut request: Request) -> Result<Response, Refusal> {
        let structured = Structured::from_request(&mut request)?;
        check_tag_permission(&request)?;
        check_opted_in(&request)?;
        let response = match request.operation {
            Operation::BlobBatch | Operation::ContainerBatch => self.blob_batch(request).await,
            Operation::ListContainers => self.list_containers(request).await,
            Operation::CreateContainer => self.create_container(request).await,
            Operation::GetContainerProperties => self.get_container_properties(request).await,
            Operation::GetContainerMetadata => self.get_container_metadata(request).await,
            Operation::SetContainerMetadata => self.set_container_metadata(request).await,
            Operation::GetContainerAcl => self.get_container_acl(request).await,
            Operation::SetContainerAcl => self.set_container_acl(request).await,
            Operation::DeleteContainer => self.delete_container(request).await,
            Operation::LeaseContainer => self.lease_container(request).await,
            Operation::ListBlobs => self.list_blobs(request).await,
            Operation::RestoreContainer => self.restore_container(request).await,
            Operation::RenameContainer => self.rename_container(request).await,
            Operation::PutBlob => self.put_blob(request).await,
            Operation::GetBlob => self.get_blob(request).await,
            Operation::GetWebContent | Operation::GetWebContentProperties => {
                self.get_web_content(request).await
            }
            Operation::GetBlobProperties => self.get_blob_properties(request).await,
            Operation::GetBlobMetadata => self.get_blob_metadata(request).await,
            Operation::SetBlobProperties => self.set_blob_properties(request).await,
            Operation::SetBlobMetadata => self.set_blob_metadata(request).await,
            Operation::PutBlock => self.put_block(request).await,
            Operation::PutBlockList => self.put_block_list(request).await,
            Operation::GetBlockList => self.get_block_list(request).await,
            Operation::AppendBlock => self.append_block(request).await,
            Operation::SealAppendBlob => self.seal_append_blob(request).await,
            Operation::CopyBlob => self.copy_blob(request).await,
            Operation::CopyBlobFromUrl => Box::pin(self.copy_blob_from_url(request)).await,
            Operation::IncrementalCopyBlob => self.incremental_copy_blob(request).await,
            Operation::AbortCopyBlob => self.abort_copy_blob(request).await,
            Operation::PutBlobFromUrl => self.put_blob_from_url(request).await,
            Operation::QueryBlobContents => self.query_blob_contents(request).await,
            Operation::GetBlobTags => self.get_blob_tags(request).await,
            Operation::SetBlobTags => self.set_blob_tags(request).await,
            Operation::FindBlobsByTags => self.find_blobs_by_tags(request).await,
            Operation::FindBlobsByTagsInContainer => self.find_blobs_by_tags_in_container(request).await,
            Operation::PutBlockFromUrl => self.put_block_from_url(request).await,
            Operation::PutPageFromUrl => self.put_page_from_url(request).await,
            Operation::AppendBlockFromUrl => self.append_block_from_url(request).await,
            Operation::LeaseBlob => self.lease_blob(request).await,
            Operation::DeleteBlob => self.delete_blob(request).await,
            Operation::UndeleteBlob => self.undelete_blob(request).await,
            Operation::SnapshotBlob => self.snapshot_blob(request).await,
            Operation::PutPage => self.put_page(request).await,
            Operation::GetPageRanges => self.get_page_ranges(request).await,
            Operation::SetBlobTier => self.set_blob_tier(request).await,
            Operation::SetBlobExpiry => self.set_blob_expiry(request).await,
            Operation::SetBlobImmutabilityPolicy => self.set_blob_immutability_policy(request).await,
            Operation::DeleteBlobImmutabilityPolicy => self.delete_blob_immutability_policy(request).await,
            Operation::SetBlobLegalHold => self.set_blob_legal_hold(request).await,
            // Clients that receive this answer continue with their bearer token.
            Operation::CreateSession => Err(ErrorCode::FeatureNotEnabled.into()),
            operation => Err(Refusal::not_implemented(operation.name())),
        }?;
        Ok(match structured {
            Some(structured) => structured.encode_reply(response),
            None => response,
        })
    }

    async fn access_policy(
        &self,
        account: &Account,
        container: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal> {
        let found = self.containers.find(account, container).await?;
        Ok(found.and_then(|container| container.policies.get(id).cloned()))
    }

    async fn public_access(&self, account: &Account, container: &str) -> Result<PublicAccess, Refusal> {
        Ok(self.container(account, container).await?.public_access)
    }
}
