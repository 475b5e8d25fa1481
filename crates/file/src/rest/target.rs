//! The target of a request: a share or snapshot, and a path in it.

use std::time::Duration;

use lazuli_concurrency::{Access, ByteRange, FileUse, LeaseId};
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::request::Request;
use lazuli_protocol::{ErrorCode, Headers, Operation, Query, Refusal};

use crate::FileService;
use crate::opens::PATIENCE;
use crate::rest::snapshot_id::{check_not_named, named};
use crate::tree::children::At;
use crate::tree::names::{self, Name};
use crate::tree::record::{Node, NodeId, Share};
use crate::tree::rules::check_kind;
use crate::tree::spot::{FileKey, Spot};

/// Time that a request needs besides waiting for clients.
const MARGIN: Duration = Duration::from_millis(500);
/// Maximum number of attempts to read a file that is being replaced.
const MAX_TRIES: usize = 64;

/// A share and a path in it.
pub(crate) struct Target {
    pub(crate) share: Share,
    pub(crate) path: Vec<Name>,
    pub(crate) at: At,
    /// Maximum time that the request waits for SMB clients.
    pub(crate) patience: Duration,
}

impl FileService {
    /// Returns the target of a request, perhaps in a snapshot.
    pub(crate) async fn target(&self, request: &Request) -> Result<Target, Refusal> {
        let keep_dots = request.headers.flag("x-ms-allow-trailing-dot")?.unwrap_or_default();
        let path = match request.operation {
            Operation::CreateDirectory
            | Operation::CreateFile
            | Operation::CopyFile
            | Operation::RenameDirectory
            | Operation::RenameFile => names::path(&request.object, keep_dots)?,
            _ => names::existing_path(&request.object, keep_dots)?,
        };
        let share = self.addressed_share(request).await?;
        let at = share.snapshot.map_or(At::Now, |snapshot| At::Epoch(snapshot.epoch));
        Ok(Target { share, path, at, patience: patience(&request.query)? })
    }

    /// Returns the name to change. `None` for the root.
    pub(crate) async fn spot(&self, target: Target) -> Result<Option<Spot>, Refusal> {
        let Target { share, mut path, at, patience } = target;
        let Some(name) = path.pop() else { return Ok(None) };
        let parent = self.walk(share.space, &path, at).await?.ok_or(ErrorCode::ParentNotFound)?;
        Ok(Some(Spot { space: share.space, parent, name, patience, quota: share.quota_bytes() }))
    }

    /// Returns the node that a request addresses and the id of its parent.
    pub(crate) async fn find(&self, request: &Request) -> Result<(Node, NodeId), Refusal> {
        self.find_target(&self.target(request).await?).await
    }

    /// Returns the node at a path and the id of its parent. Refuses nodes marked for deletion.
    pub(crate) async fn find_target(&self, target: &Target) -> Result<(Node, NodeId), Refusal> {
        let (node, parent) = self.find_any(target).await?;
        let file = FileKey::now(target.share.space, node.id);
        if target.at == At::Now && self.opens.is_delete_pending(file) {
            return Err(ErrorCode::SMBDeletePending.into());
        }
        Ok((node, parent))
    }

    /// Finds the target like [`FileService::find_target`], including nodes marked for deletion.
    pub(crate) async fn find_any(&self, target: &Target) -> Result<(Node, NodeId), Refusal> {
        if target.path.is_empty() {
            return Ok((self.root(&target.share, target.at).await?, NodeId::ROOT));
        }
        let Some(mut nodes) = self.follow(target.share.space, &target.path, target.at).await? else {
            return Err(self.missing(target).await?.into());
        };
        let node = nodes.pop().ok_or(ErrorCode::ResourceNotFound)?;
        Ok((node, nodes.last().map_or(NodeId::ROOT, |parent| parent.id)))
    }

    /// Returns which error applies when nothing was found: the node or its directory is missing.
    pub(crate) async fn missing(&self, target: &Target) -> Result<ErrorCode, Refusal> {
        let parents = target.path.split_last().map_or(&[][..], |(_, parents)| parents);
        let parent = self.walk(target.share.space, parents, target.at).await?;
        Ok(if parent.is_some() { ErrorCode::ResourceNotFound } else { ErrorCode::ParentNotFound })
    }

    /// Returns the addressed share or snapshot. Only reads, and closing handles, may address a snapshot.
    pub(crate) async fn addressed_share(&self, request: &Request) -> Result<Share, Refusal> {
        let id = named(&request.query)?;
        if !request.operation.row().read && request.operation != Operation::ForceCloseHandles {
            check_not_named(&request.query)?;
        }
        let share = self.share(&request.account, &request.container).await?;
        match id {
            Some(id) => self.snapshot_of(&request.account, &request.container, &share, id).await,
            None => Ok(share),
        }
    }

    /// Returns the file that a read addresses. Checks the lease id, and waits until SMB clients have written
    /// back what they cache.
    pub(crate) async fn file_to_read(
        &self,
        request: &Request,
        usage: FileUse,
        range: ByteRange,
    ) -> Result<(Node, NodeId), Refusal> {
        let id = lease_id(&request.headers)?;
        let target = self.target(request).await?;
        self.file_at(&target, id, usage, range).await
    }

    /// Returns the file at a target, like [`FileService::file_to_read`].
    pub(crate) async fn file_at(
        &self,
        target: &Target,
        id: Option<LeaseId>,
        usage: FileUse,
        range: ByteRange,
    ) -> Result<(Node, NodeId), Refusal> {
        let mut admission = self.opens.admission(target.patience);
        // The file that was admitted. Its row is read once more after that, so it includes all earlier
        // writes.
        let mut admitted = None;
        for _ in 0..MAX_TRIES {
            let no_file_is_open = self.opens.is_empty();
            let (node, parent) = self.find_target(target).await?;
            let check = if usage == FileUse::ReadAttributes { check_kind_for_read } else { check_kind };
            check(&node, false)?;
            if let Some(file) = &node.file {
                let leased = file.lease.admits(Access::Read, id);
                leased.map_err(|refusal| Refusal::lease(refusal, Leased::File))?;
            }
            if target.at != At::Now || admitted == Some(node.id) {
                return Ok((node, parent));
            }
            let file = FileKey::now(target.share.space, node.id);
            match admission.admit_range(file, usage, range) {
                Ok(()) if no_file_is_open => return Ok((node, parent)),
                // A flush may have changed the row since it was read.
                Ok(()) => admitted = Some(node.id),
                // Read again: the flush may have changed the row.
                Err(refusal) if !self.flush_or_wait(&mut admission).await => return Err(refusal),
                Err(_) => {}
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

/// Returns how long a request waits for SMB clients: a little less than its timeout.
pub(crate) fn patience(query: &Query) -> Result<Duration, Refusal> {
    Ok(match query.number("timeout", 0..=i64::MAX)? {
        None | Some(0) => PATIENCE,
        Some(seconds) => Duration::from_secs(seconds.unsigned_abs()).saturating_sub(MARGIN).min(PATIENCE),
    })
}

/// Checks the kind for reads: an object of the other kind does not exist. Clients find the kind of an object
/// this way.
pub(crate) fn check_kind_for_read(node: &Node, is_directory: bool) -> Result<(), Refusal> {
    check_kind(node, is_directory).map_err(|_| ErrorCode::ResourceNotFound.into())
}

/// Returns the byte range that a request touches.
pub(crate) fn touched(part: Option<lazuli_protocol::ByteRange>) -> ByteRange {
    part.map_or(ByteRange::ALL, |part| ByteRange {
        offset: part.first,
        length: part.last.map_or(u64::MAX, |last| last.saturating_sub(part.first).saturating_add(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_slightly_below_the_request_timeout() {
        for (query, millis) in
            [("", 29_000), ("timeout=0", 29_000), ("timeout=5", 4500), ("timeout=90", 29_000)]
        {
            let query = Query::parse(query).unwrap();
            assert_eq!(patience(&query).unwrap(), Duration::from_millis(millis), "{query:?}");
        }
    }
}
