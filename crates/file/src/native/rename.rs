//! Renaming what is open.
//!
//! Everybody who has it open has let others delete it, or this open would not be there. So it is renamed for all of them:
//! where a file is belongs to the file, not to each open. A directory below which something is open stays.

use lazuli_concurrency::{FileAccess, ShareMode};
use lazuli_generations::carry_through;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::View;

use super::Failure;
use crate::FileService;
use crate::children::At;
use crate::names::{self, Name};
use crate::opens::newest::Moment;
use crate::opens::{Admission, FileKey, OpenId, PATIENCE, Place};
use crate::record::Node;
use crate::rename::Rename;

impl FileService {
    /// Gives an open file or directory another path, in place of what is there if `replace`.
    pub async fn rename_open(&self, id: OpenId, path: &str, replace: bool) -> Result<(), Failure> {
        if id.file.epoch.is_some() {
            return Err(Failure::Denied);
        }
        let target = names::path(path, true)?;
        let is_directory = self.info(id).await?.is_directory;
        self.opens.break_handles(id).await?;
        let this = self.clone();
        // To its end: where the file is has to be known.
        let renamed = carry_through(async move {
            let mut admission = this.opens.admission(PATIENCE);
            loop {
                let renamed = this.rename_in_turn(id, is_directory, &target, replace, &mut admission).await;
                // Without the turn: whoever is waited for has nobody else wait.
                if renamed.is_ok() || !this.again(&mut admission).await {
                    return renamed;
                }
            }
        });
        renamed.await.map_err(|refusal| refused(refusal, replace))?
    }

    async fn rename_in_turn(
        &self,
        id: OpenId,
        is_directory: bool,
        target: &[Name],
        replace: bool,
        admission: &mut Admission,
    ) -> Result<Result<(), Failure>, Refusal> {
        let turn = self.turn(id.file).await;
        let flushed = self.commit(&turn, Moment::Timer, None::<fn(&mut Node, &View<'_>)>).await;
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
        // To put a name into a directory is to write to it, while nobody is about to delete it.
        let file = parent.map(|node| FileKey { node, ..id.file });
        let writes = ShareMode { access: FileAccess::WRITE, share: FileAccess::READ | FileAccess::WRITE };
        if file.is_some_and(|file| !self.opens.fits(file, writes)) {
            return Ok(Err(Failure::Sharing));
        }
        let path: Vec<_> = target.iter().map(|name| name.text.clone()).collect();
        let rename = Rename::of_open(id.file, is_directory, source, target.to_vec(), replace);
        let (node, parent) = self.carry_out(&rename, admission).await?;
        self.opens.moved(id.file, Place { parent, path: path.join("/") }, &node.name);
        Ok(Ok(()))
    }
}

/// What an SMB client is told.
fn refused(refusal: Refusal, replace: bool) -> Failure {
    match refusal.code() {
        // Of what is in the way and cannot be replaced.
        ErrorCode::ResourceAlreadyExists | ErrorCode::ResourceTypeMismatch if replace => Failure::Denied,
        ErrorCode::ResourceTypeMismatch => Failure::Exists,
        ErrorCode::SharingViolation | ErrorCode::SMBDeletePending | ErrorCode::ReadOnlyAttribute => {
            Failure::Denied
        }
        ErrorCode::LeaseIdMissing => Failure::Sharing,
        _ => refusal.into(),
    }
}
