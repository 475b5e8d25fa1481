//! Renaming open files.
//!
//! All opens of the file share delete access, or this open would not exist. A rename moves all of them,
//! because a path belongs to the file and not to its opens. A directory with open files below cannot be
//! renamed.

use lazuli_concurrency::{FileAccess, ShareMode};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::run_to_completion;
use lazuli_store::View;

use crate::FileService;
use crate::failure::Failure;
use crate::opens::write_buffer::FlushReason;
use crate::opens::{Admission, OpenId, OpenLocation, PATIENCE};
use crate::rename::Rename;
use crate::tree::children::At;
use crate::tree::names::{self, Name};
use crate::tree::record::Node;
use crate::tree::spot::FileKey;

impl FileService {
    /// Moves an open file or directory to another path. With `replace` it replaces an existing file.
    pub async fn rename_open(&self, id: OpenId, path: &str, replace: bool) -> Result<(), Failure> {
        if id.file.epoch.is_some() {
            return Err(Failure::Denied);
        }
        let target = names::path(path, true)?;
        let is_directory = self.info(id).await?.is_directory;
        self.opens.break_handles(id).await?;
        let this = self.clone();
        // Run to completion: the table has to learn the new path.
        let renamed = run_to_completion(async move {
            let mut admission = this.opens.admission(PATIENCE);
            loop {
                let renamed = this.rename_locked(id, is_directory, &target, replace, &mut admission).await;
                // The file lock is released: never wait for a client with it.
                if renamed.is_ok() || !this.flush_or_wait(&mut admission).await {
                    return renamed;
                }
            }
        });
        renamed.await.map_err(|refusal| refused(refusal, replace))?
    }

    async fn rename_locked(
        &self,
        id: OpenId,
        is_directory: bool,
        target: &[Name],
        replace: bool,
        admission: &mut Admission,
    ) -> Result<Result<(), Failure>, Refusal> {
        let lock = self.lock_file(id.file).await;
        let flushed = self.commit(&lock, FlushReason::Timer, None::<fn(&mut Node, &View<'_>)>).await;
        let place = self.opens.place(id);
        let (Ok(_), Some(place)) = (flushed, place) else { return Ok(Err(Failure::Closed)) };
        let source = names::path(&place.path, true)?;
        if source.is_empty() || target.is_empty() {
            return Ok(Err(Failure::Denied));
        }
        let parents = |path: &[Name]| path.split_last().map(|(_, parents)| parents.to_vec());
        let parent = match (parents(&source), parents(target)) {
            (from, to) if from == to => Some(place.parent),
            (_, to) => self.walk(id.file.space, &to.unwrap_or_default(), At::Now).await?,
        };
        // Adding a name writes to the directory, so no open may be about to delete it.
        let file = parent.map(|node| FileKey { node, ..id.file });
        let writes = ShareMode { access: FileAccess::WRITE, share: FileAccess::READ | FileAccess::WRITE };
        if file.is_some_and(|file| !self.opens.fits(file, writes)) {
            return Ok(Err(Failure::Sharing));
        }
        let path: Vec<_> = target.iter().map(|name| name.text.clone()).collect();
        let rename = Rename::of_open(id.file, is_directory, source, target.to_vec(), replace);
        let (node, parent) = self.run_rename(&rename, admission).await?;
        self.opens.moved(id.file, OpenLocation { parent, path: path.join("/") }, &node.name);
        Ok(Ok(()))
    }
}

/// Maps a refusal to the failure that SMB clients expect.
fn refused(refusal: Refusal, replace: bool) -> Failure {
    match refusal.code() {
        // The existing target cannot be replaced.
        ErrorCode::ResourceAlreadyExists | ErrorCode::ResourceTypeMismatch if replace => Failure::Denied,
        ErrorCode::ResourceTypeMismatch => Failure::Exists,
        ErrorCode::SharingViolation | ErrorCode::SMBDeletePending | ErrorCode::ReadOnlyAttribute => {
            Failure::Denied
        }
        ErrorCode::LeaseIdMissing => Failure::Sharing,
        _ => refusal.into(),
    }
}
