//! The file service: shares, directories, files, and the table of open files that SMB shares with it.
//!
//! A handler reads the request, runs a rule inside a transaction on one partition, and answers. [`FileService::call`] is
//! the table of contents. Below the handlers: [`tree`] finds what a path leads to, [`children`] reads and changes the
//! children of a directory, [`names`] and [`smb_properties`] read what requests say, [`keys`] and [`record`] are what is
//! stored. Why it is stored so: docs/decisions/0013.

mod children;
mod content;
mod copy;
mod digest;
mod directory;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod handles;
mod keys;
mod lease;
mod level;
mod list;
mod list_ranges;
mod moves;
mod names;
pub mod native;
pub mod opens;
mod pending;
mod permission;
mod range_from_url;
mod record;
mod rename;
mod reply;
mod row_names;
mod rows;
mod share;
mod smb_properties;
mod snapshot;
mod source;
mod taken_in;
mod tree;
mod usage;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_copy::{Copies, CopySources};
use lazuli_extents::{Extents, Pace};
use lazuli_generations::{GarbageWatch, Generations, Swept, unreadable};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::structured::Structured;
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_store::{Decision, Gate, Partition, ReadSet, Reads, Store, View, transact};

pub use lazuli_store::SpaceId;
pub use names::fold as fold_name;
pub use record::NodeId;
pub use row_names::{DirectoryName, RowName};
pub use rows::{FileRows, content_of_row};

use moves::Turns;
use opens::{CLIENT_PATIENCE, OpenTable};
use record::Share;
use usage::Usages;
use writers::Writers;

/// The type of bodies that are documents.
const XML: &str = "application/xml";
/// The key of the permission of whatever has none of its own.
const INHERITED_PERMISSION: &str = "0*0";
/// That permission: everything for administrators, the system and whoever has logged in.
pub const INHERITED_SDDL: &str = "O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)";

/// The file service on a store. Clones are the same service.
#[derive(Clone)]
pub struct FileService {
    store: Arc<dyn Store>,
    extents: Arc<dyn Extents>,
    accounts: AccountDirectory,
    shares: Generations<Share>,
    gate: Arc<Gate>,
    turns: Arc<Turns>,
    writers: Arc<Writers>,
    opens: Arc<OpenTable>,
    /// Share snapshots are taken one at a time.
    snapshots: Arc<tokio::sync::Mutex<()>>,
    /// Shared by those who delete shares, held alone by whoever restores one: what was open of it is closed by then, and
    /// what is opened from then on stays.
    deletions: Arc<tokio::sync::RwLock<()>>,
    /// Whether something may be kept that no snapshot can show.
    kept: Arc<GarbageWatch>,
    usages: Arc<Usages>,
    copies: Arc<Copies>,
}

impl FileService {
    /// The service of these accounts, with rows here and bytes there.
    pub fn new(store: Arc<dyn Store>, extents: Arc<dyn Extents>, accounts: AccountDirectory) -> Self {
        let shares = Generations::new(store.clone(), accounts.clone());
        let opens = OpenTable::new(CLIENT_PATIENCE);
        let (gate, turns, writers, snapshots, deletions, kept) = Default::default();
        let usages = Arc::new(Usages::new(store.stamp()));
        let copies = Arc::new(Copies::new(store.clone(), keys::COPIES, None));
        Self {
            store,
            extents,
            accounts,
            shares,
            gate,
            turns,
            writers,
            opens,
            snapshots,
            deletions,
            kept,
            usages,
            copies,
        }
    }

    /// The same, but SMB clients have so long to answer a break of what they cache.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { opens: OpenTable::new(patience), ..self }
    }

    /// The same service, which may copy from these sources. Without any it does not copy.
    #[must_use]
    pub fn with_copy_sources(mut self, sources: CopySources) -> Self {
        self.copies = Arc::new(Copies::new(self.store.clone(), keys::COPIES, Some(sources)));
        self
    }

    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.gate.retries() + self.shares.retries()
    }

    /// Whether [`FileService::sweep`] may find something to do.
    pub fn sweep_due(&self) -> bool {
        self.shares.sweep_due() || self.kept.is_due(self.store.now())
    }

    /// Removes what deleted shares and snapshots have left behind. May be dropped at any point.
    pub async fn sweep(&self, pace: Pace) -> Result<Swept, Refusal> {
        let mut swept = Swept::default();
        if self.shares.sweep_due() {
            let result = self.shares.sweep(pace, &rows::Contents(&*self.extents)).await;
            if let Some(reopened) = self.shares.take_reopened()
                && self.resume_copies().await
            {
                reopened.done();
            }
            swept = result?;
        }
        // If that fails, it is due again.
        self.close_gone().await.inspect_err(|_| self.kept.arises(None))?;
        if self.kept.is_due(self.store.now()) {
            swept.bytes += self.sweep_kept(pace).await?;
        }
        Ok(swept)
    }

    /// Runs a rule on a partition of a share.
    async fn transact<T>(
        &self,
        partition: &Partition,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let result = transact(&*self.store, &self.gate, partition, reads, rule).await;
        result.map_err(|error| lazuli_account::refusal(error, share_gone))
    }

    /// Reads rows of a partition, if its share is still there.
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, Refusal> {
        let set = self.store.read(partition, reads).await.map_err(unreadable)?;
        if set.space.is_some_and(|space| space.open) { Ok(set) } else { Err(share_gone()) }
    }
}

/// The share was deleted while the request was under way.
fn share_gone() -> Refusal {
    ErrorCode::ShareNotFound.into()
}

#[async_trait]
impl Service for FileService {
    async fn call(&self, mut request: Request) -> Result<Response, Refusal> {
        let structured = Structured::of(&mut request)?;
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
            Operation::RenameDirectory => self.rename_directory(request).await,
            Operation::RenameFile => self.rename_file(request).await,
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
            Some(structured) => structured.answer(response),
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

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::None)
    }
}
