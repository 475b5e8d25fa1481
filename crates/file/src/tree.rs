//! Finding directories and files by their paths.
//!
//! A path is followed one point read for each name, and again if a directory of the share was moved meanwhile. What was
//! found can be moved before it is changed: a change depends on the directory still being there, whatever it is called.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use lazuli_protocol::request::Request;
use lazuli_protocol::{Account, ErrorCode, Headers, Operation, Query, Refusal, names as shares};
use lazuli_store::{MAX_SCAN_ROWS, Partition, ReadSet, Reads, SpaceId, View};

use crate::children::{self, At};
use crate::moves::{MAX_ATTEMPTS, Reservation};
use crate::names::{self, Name};
use crate::opens::{FileKey, PATIENCE};
use crate::record::{Node, NodeId, Share};
use crate::{FileService, keys};

/// What a request needs beside waiting.
const MARGIN: Duration = Duration::from_millis(500);

/// What a request addresses: a share and a path in it.
pub(crate) struct Target {
    pub(crate) share: Share,
    pub(crate) path: Vec<Name>,
    pub(crate) at: At,
    /// How long the request waits for SMB clients.
    pub(crate) patience: Duration,
}

/// Where a directory or file is, or would be.
pub(crate) struct Spot {
    pub(crate) space: SpaceId,
    pub(crate) parent: NodeId,
    pub(crate) name: Name,
    /// How long the request waits for SMB clients.
    pub(crate) patience: Duration,
    /// What the share may grow to. The largest number: whatever was promised.
    pub(crate) quota: u64,
}

impl Spot {
    /// The partition of the directory that it is in.
    pub(crate) fn partition(&self) -> Partition {
        keys::directory(self.space, self.parent)
    }

    /// What the share may grow to, unless what grows was promised.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.quota != u64::MAX).then_some(self.quota)
    }

    /// What the table of opens knows a node of the same share by.
    pub(crate) fn file(&self, node: NodeId) -> FileKey {
        FileKey::now(self.space, node)
    }
}

impl FileService {
    /// The share of that name.
    pub(crate) async fn share(&self, account: &Account, name: &str) -> Result<Share, Refusal> {
        shares::check_share(name)?;
        self.shares.get(account, name).await
    }

    /// What a request addresses: in a snapshot, if it names one.
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

    /// Where the last name of a path is to be looked for. `None` for the root, which is nowhere.
    pub(crate) async fn spot(&self, target: Target) -> Result<Option<Spot>, Refusal> {
        let Target { share, mut path, at, patience } = target;
        let Some(name) = path.pop() else { return Ok(None) };
        let parent = self.walk(share.space, &path, at).await?.ok_or(ErrorCode::ParentNotFound)?;
        Ok(Some(Spot { space: share.space, parent, name, patience, quota: share.quota_bytes() }))
    }

    /// The directory that a path leads to.
    pub(crate) async fn walk(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<NodeId>, Refusal> {
        let nodes = self.follow(space, path, at).await?;
        Ok(nodes.and_then(|nodes| directory(&nodes)))
    }

    /// What lies on a path, the last of it included; none if something is missing, or lies in a file.
    pub(crate) async fn follow(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<Vec<Node>>, Refusal> {
        let count = self.turns.count(space);
        let nodes = self.follow_once(space, path, at).await?;
        // One read sees one state, and a snapshot is one.
        let is_one_state = path.len() < 2 || at != At::Now;
        if is_one_state || (count.is_some() && count == self.turns.count(space)) {
            return Ok(nodes);
        }
        let _still = self.turns.none(space).await;
        self.follow_once(space, path, at).await
    }

    /// The same, for whoever has the turn to move directories.
    pub(crate) async fn follow_once(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<Vec<Node>>, Refusal> {
        let mut nodes = Vec::with_capacity(path.len());
        for name in path {
            let Some(directory) = directory(&nodes) else { return Ok(None) };
            let Some(node) = self.child(space, directory, name, at).await? else { return Ok(None) };
            nodes.push(node);
        }
        Ok(Some(nodes))
    }

    /// A child of a directory.
    pub(crate) async fn child(
        &self,
        space: SpaceId,
        directory: NodeId,
        name: &Name,
        at: At,
    ) -> Result<Option<Node>, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let set = self.read(&keys::directory(space, directory), &children::reads(name, at)).await?;
            match children::reserved(&set)? {
                Some(reservation) if !self.is_as_before(space, &reservation).await? => {}
                _ => return Ok(children::found(&set, at)?),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Reads rows of a directory once no move among a range of its children was decided and not yet done.
    pub(crate) async fn read_settled(
        &self,
        partition: &Partition,
        reads: Reads,
        children: &Range<Bytes>,
    ) -> Result<ReadSet, Refusal> {
        let reads = reads.and_range(keys::moving_among(children), MAX_SCAN_ROWS);
        'again: for _ in 0..MAX_ATTEMPTS {
            let mut set = self.read(partition, &reads).await?;
            let Some(moving) = set.ranges.pop() else { return Ok(set) };
            for row in &moving.rows {
                if !self.is_as_before(partition.space, &Reservation::decode(&row.value)?).await? {
                    continue 'again;
                }
            }
            if !moving.more {
                return Ok(set);
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// The directory or file that a request addresses, and the directory it is in.
    pub(crate) async fn find(&self, request: &Request) -> Result<(Node, NodeId), Refusal> {
        self.find_target(&self.target(request).await?).await
    }

    /// The directory or file that is addressed, and the directory it is in. Not what is marked for deletion.
    pub(crate) async fn find_target(&self, target: &Target) -> Result<(Node, NodeId), Refusal> {
        let (node, parent) = self.find_any(target).await?;
        let file = FileKey::now(target.share.space, node.id);
        if target.at == At::Now && self.opens.is_delete_pending(file) {
            return Err(ErrorCode::SMBDeletePending.into());
        }
        Ok((node, parent))
    }

    /// The same, but also what is marked for deletion.
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

    /// What is missing where nothing was found: what is addressed, or the directory that it would be in.
    pub(crate) async fn missing(&self, target: &Target) -> Result<ErrorCode, Refusal> {
        let parents = target.path.split_last().map_or(&[][..], |(_, parents)| parents);
        let parent = self.walk(target.share.space, parents, target.at).await?;
        Ok(if parent.is_some() { ErrorCode::ResourceNotFound } else { ErrorCode::ParentNotFound })
    }

    /// The root directory: as it was set, or as the share was made.
    pub(crate) async fn root(&self, share: &Share, at: At) -> Result<Node, Refusal> {
        let partition = keys::directory(share.space, NodeId::ROOT);
        let set = self.read(&partition, &children::root_reads(at)).await?;
        Ok(children::found_root(&set, at)?.unwrap_or_else(|| Node::root(share)))
    }
}

/// How long a request waits for SMB clients: a little less than it may take altogether.
pub(crate) fn patience(query: &Query) -> Result<Duration, Refusal> {
    Ok(match query.number("timeout", 0..=i64::MAX)? {
        None | Some(0) => PATIENCE,
        Some(seconds) => Duration::from_secs(seconds.unsigned_abs()).saturating_sub(MARGIN).min(PATIENCE),
    })
}

/// Refuses what is of the other kind than the operation is for.
pub(crate) fn check_kind(node: &Node, is_directory: bool) -> Result<(), Refusal> {
    if node.is_directory() == is_directory { Ok(()) } else { Err(ErrorCode::ResourceTypeMismatch.into()) }
}

/// The same for who only looks: to him it is not there. So clients find out which of the two a path leads to.
pub(crate) fn check_seen(node: &Node, is_directory: bool) -> Result<(), Refusal> {
    check_kind(node, is_directory).map_err(|_| ErrorCode::ResourceNotFound.into())
}

/// The directory at the end of these, which lie in each other; the root if there are none.
fn directory(nodes: &[Node]) -> Option<NodeId> {
    match nodes.last() {
        None => Some(NodeId::ROOT),
        Some(node) => node.is_directory().then_some(node.id),
    }
}

/// What is at a spot, as a rule sees it.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(crate) enum Entry {
    /// A directory, a file, or nothing.
    Free(Option<Node>),
    /// It is reserved. Who wants to change it has to [end](FileService::end) that first.
    Reserved(Reservation),
}

/// Looks at a spot to change it, in a directory that must be there. The root always is.
pub(crate) fn entry(spot: &Spot, view: &View<'_>) -> Result<Entry, Refusal> {
    if spot.parent != NodeId::ROOT && view.row(&keys::OWN).is_none() {
        return Err(ErrorCode::ParentNotFound.into());
    }
    Ok(match children::obstacle(view, &spot.name)? {
        Some(reservation) => Entry::Reserved(reservation),
        None => Entry::Free(children::current(view, &spot.name)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_clients_a_little_less_than_it_may_take() {
        for (query, millis) in
            [("", 29_000), ("timeout=0", 29_000), ("timeout=5", 4500), ("timeout=90", 29_000)]
        {
            let query = Query::parse(query).unwrap();
            assert_eq!(patience(&query).unwrap(), Duration::from_millis(millis), "{query:?}");
        }
    }
}
