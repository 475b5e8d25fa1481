//! The file service: shares, directories and files over REST, and the table of open files that SMB shares
//! with it.
//!
//! The modules, lowest first. Each uses only modules listed before it:
//!
//! - `lock_order`: all locks and the order in which they are taken.
//! - `tree`: stored rows and content, the quota, snapshots. Knows neither opens nor HTTP.
//! - [`opens`]: the table of open files, in memory. Changes no rows.
//! - `write_back`: what SMB clients write, from memory to the row.
//! - `rename`: renames, which need both the tree and the open-file table.
//! - [`handles`]: the API of the SMB server.
//! - `rest`: the operations over REST. [`FileService::call`] lists them.
//!
//! Decision 0013 explains the rows. Decisions 0014 and 0016 explain how SMB and REST see the same state.

mod failure;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
pub mod handles;
mod lock_order;
pub mod opens;
mod rename;
mod rest;
mod restore;
mod tree;
mod write_back;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Pace;
use lazuli_copy::{Copies, CopySources};
use lazuli_extents::Extents;
use lazuli_generations::{GarbageWatch, Generations, Swept};
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::structured::Structured;
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_service::Rows;
use lazuli_store::Store;
use tokio::sync::{Mutex, RwLock};

use crate::opens::{CLIENT_PATIENCE, OpenTable};
use crate::tree::directory_locks::DirectoryLocks;
use crate::tree::move_locks::DirectoryMoveLocks;
use crate::tree::record::Share;
use crate::tree::usage::Usages;

pub use lazuli_store::SpaceId;
pub use lock_order::operation;
pub use tree::names::fold as fold_name;
pub use tree::permissions::INHERITED_SDDL;
pub use tree::record::NodeId;
pub use tree::row_names::{DirectoryName, RowName};
pub use tree::rows::{FileRows, content_of_row};

/// The file service. Clones share their state.
#[derive(Clone)]
pub struct FileService {
    store: Arc<dyn Store>,
    extents: Arc<dyn Extents>,
    accounts: AccountDirectory,
    shares: Generations<Share>,
    rows: Rows,
    directory_moves: Arc<DirectoryMoveLocks>,
    directory_locks: Arc<DirectoryLocks>,
    opens: Arc<OpenTable>,
    /// Lets one snapshot be taken at a time.
    snapshot_lock: Arc<Mutex<()>>,
    /// Shared by deletions of shares, exclusive for a restore. So all opens of a deleted share are closed
    /// before it is restored, and later opens stay.
    share_deletions: Arc<RwLock<()>>,
    /// Schedules sweeps of rows that were kept for snapshots and that no snapshot shows.
    snapshot_garbage: Arc<GarbageWatch>,
    usages: Arc<Usages>,
    copies: Arc<Copies>,
}

impl FileService {
    /// Makes the service of these accounts on a store and extents.
    pub fn new(store: Arc<dyn Store>, extents: Arc<dyn Extents>, accounts: AccountDirectory) -> Self {
        let shares = Generations::new(store.clone(), accounts.clone());
        let opens = OpenTable::new(CLIENT_PATIENCE);
        let rows = Rows::new(store.clone(), ErrorCode::ShareNotFound);
        let (directory_moves, directory_locks) = Default::default();
        let (snapshot_lock, share_deletions, snapshot_garbage) = Default::default();
        let usages = Arc::new(Usages::new(store.stamp()));
        let copies = Arc::new(Copies::new(store.clone(), tree::keys::COPIES, None));
        Self {
            store,
            extents,
            accounts,
            shares,
            rows,
            directory_moves,
            directory_locks,
            opens,
            snapshot_lock,
            share_deletions,
            snapshot_garbage,
            usages,
            copies,
        }
    }

    /// Sets how long SMB clients have to acknowledge a break.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { opens: OpenTable::new(patience), ..self }
    }

    /// Sets the sources of copies. Without them the service refuses copies.
    #[must_use]
    pub fn with_copy_sources(mut self, sources: CopySources) -> Self {
        self.copies = Arc::new(Copies::new(self.store.clone(), tree::keys::COPIES, Some(sources)));
        self
    }

    /// Returns the table of open files.
    pub fn opens(&self) -> &Arc<OpenTable> {
        &self.opens
    }

    /// Returns the number of repeated attempts of transactions.
    pub fn retries(&self) -> u64 {
        self.rows.retries() + self.shares.retries()
    }

    /// Returns the number of transactions that wait in a queue.
    pub fn waiting(&self) -> usize {
        self.rows.waiting() + self.shares.waiting()
    }

    /// Returns the number of spaces that are being filled before they have a name.
    pub fn incoming_spaces(&self) -> usize {
        self.shares.incoming_spaces()
    }

    /// Returns whether [`FileService::sweep`] may find garbage.
    pub fn sweep_due(&self) -> bool {
        self.shares.sweep_due() || self.snapshot_garbage.is_due(self.store.now())
    }

    /// Removes what deleted shares and snapshots have left behind. May be dropped at any point.
    pub async fn sweep(&self, pace: Pace) -> Result<Swept, Refusal> {
        let mut swept = Swept::default();
        if self.shares.sweep_due() {
            let result = self.shares.sweep(pace, &tree::rows::Contents(&*self.extents)).await;
            if let Some(reopened) = self.shares.take_reopened()
                && self.resume_copies().await
            {
                reopened.done();
            }
            swept = result?;
        }
        // Try again with the next sweep if this fails.
        self.close_gone().await.inspect_err(|_| self.snapshot_garbage.schedule(None))?;
        if self.snapshot_garbage.is_due(self.store.now()) {
            swept.bytes += self.sweep_kept(pace).await?;
        }
        Ok(swept)
    }
}

#[async_trait]
impl Service for FileService {
    async fn call(&self, mut request: Request) -> Result<Response, Refusal> {
        let structured = Structured::from_request(&mut request)?;
        let response = match request.operation {
            Operation::ListShares => self.list_shares(request).await,
            Operation::CreateShare => self.create_share(request).await,
            Operation::GetShareProperties => self.get_share_properties(request).await,
            Operation::GetShareMetadata => self.get_share_metadata(request).await,
            Operation::SetShareProperties => self.set_share_properties(request).await,
            Operation::SetShareMetadata => self.set_share_metadata(request).await,
            Operation::GetShareAcl => self.get_share_acl(request).await,
            Operation::SetShareAcl => self.set_share_acl(request).await,
            Operation::GetShareStats => self.get_share_stats(request).await,
            Operation::SnapshotShare => self.snapshot_share(request).await,
            Operation::LeaseShare => self.lease_share(request).await,
            Operation::RestoreShare => self.restore_share(request).await,
            Operation::DeleteShare => self.delete_share(request).await,
            Operation::CreatePermission => self.create_permission(request).await,
            Operation::GetPermission => self.get_permission(request).await,
            Operation::CreateDirectory => self.create_directory(request).await,
            Operation::GetDirectoryProperties => self.get_directory_properties(request).await,
            Operation::GetDirectoryMetadata => self.get_directory_metadata(request).await,
            Operation::SetDirectoryProperties => self.set_directory_properties(request).await,
            Operation::SetDirectoryMetadata => self.set_directory_metadata(request).await,
            Operation::DeleteDirectory => self.delete_directory(request).await,
            Operation::RenameDirectory => self.rename(request, true).await,
            Operation::RenameFile => self.rename(request, false).await,
            Operation::ListDirectoriesAndFiles => self.list_directories_and_files(request).await,
            Operation::CreateFile => self.create_file(request).await,
            Operation::GetFile => self.get_file(request).await,
            Operation::GetFileProperties => self.get_file_properties(request).await,
            Operation::GetFileMetadata => self.get_file_metadata(request).await,
            Operation::SetFileProperties => self.set_file_properties(request).await,
            Operation::SetFileMetadata => self.set_file_metadata(request).await,
            Operation::PutRange => self.put_range(request).await,
            Operation::PutRangeFromUrl => self.put_range_from_url(request).await,
            Operation::CopyFile => self.copy_file(request).await,
            Operation::AbortCopyFile => self.abort_copy_file(request).await,
            Operation::ListRanges => self.list_ranges(request).await,
            Operation::DeleteFile => self.delete_file(request).await,
            Operation::LeaseFile => self.lease_file(request).await,
            Operation::ListHandles => self.list_handles(request).await,
            Operation::ForceCloseHandles => self.force_close_handles(request).await,
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
        share: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal> {
        let found = self.shares.find(account, share).await?;
        Ok(found.and_then(|share| share.policies.get(id).cloned()))
    }
}
