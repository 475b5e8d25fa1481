//! Finding directories and files by their paths.
//!
//! Following a path takes one point read for each name. It is repeated if a directory of the share was moved
//! meanwhile. The result can be moved before it is changed, so each change depends on the directory still
//! existing, whatever its path is.

use std::ops::Range;

use bytes::Bytes;
use lazuli_protocol::{Account, ErrorCode, Refusal, names as shares};
use lazuli_store::{MAX_SCAN_ROWS, Partition, ReadSet, Reads, RowPosition, SpaceId};

use crate::FileService;
use crate::tree::children::{self, At};
use crate::tree::keys;
use crate::tree::move_record::NameReservation;
use crate::tree::moves::MAX_ATTEMPTS;
use crate::tree::names::Name;
use crate::tree::record::{Node, NodeId, Share};

impl FileService {
    /// Returns the share of this name.
    pub(crate) async fn share(&self, account: &Account, name: &str) -> Result<Share, Refusal> {
        shares::check_share(name)?;
        self.shares.get(account, name).await
    }

    /// Returns the directory at a path.
    pub(crate) async fn walk(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<NodeId>, Refusal> {
        let nodes = self.follow(space, path, at).await?;
        Ok(nodes.and_then(|nodes| directory(&nodes)))
    }

    /// Returns all nodes on a path. `None` if one is missing or lies in a file.
    pub(crate) async fn follow(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<Vec<Node>>, Refusal> {
        let version = self.directory_moves.version(space);
        let nodes = self.follow_once(space, path, at).await?;
        // A single read is consistent, and so is a snapshot.
        let is_one_state = path.len() < 2 || at != At::Now;
        if is_one_state || (version.is_some() && version == self.directory_moves.version(space)) {
            return Ok(nodes);
        }
        let _paused = self.directory_moves.pause(space).await;
        self.follow_once(space, path, at).await
    }

    /// Follows a path once. Sufficient while no directory of the share can move.
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

    /// Returns a child of a directory.
    pub(crate) async fn child(
        &self,
        space: SpaceId,
        directory: NodeId,
        name: &Name,
        at: At,
    ) -> Result<Option<Node>, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let partition = keys::directory(space, directory);
            let set = self.rows.read(&partition, &children::reads(name, at)).await?;
            match children::reserved(&set).map_err(|damage| damage.at(&partition))? {
                Some(reservation) if !self.is_pending_or_finish(space, &reservation).await? => {}
                _ => return children::found(&set, at).map_err(|damage| damage.at(&partition)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Reads rows of a directory while no decided move of a range of its children is unfinished.
    pub(crate) async fn read_between_moves(
        &self,
        partition: &Partition,
        reads: Reads,
        children: &Range<Bytes>,
    ) -> Result<ReadSet, Refusal> {
        let reads = reads.and_range(keys::moving_among(children), MAX_SCAN_ROWS);
        'again: for _ in 0..MAX_ATTEMPTS {
            let mut set = self.rows.read(partition, &reads).await?;
            let Some(moving) = set.ranges.pop() else { return Ok(set) };
            for row in &moving.rows {
                let reservation = NameReservation::decode(&row.value);
                let reservation =
                    reservation.map_err(|damage| damage.at(RowPosition::new(partition, &row.key)))?;
                if !self.is_pending_or_finish(partition.space, &reservation).await? {
                    continue 'again;
                }
            }
            if !moving.more {
                return Ok(set);
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns the root directory with its own or initial properties.
    pub(crate) async fn root(&self, share: &Share, at: At) -> Result<Node, Refusal> {
        let partition = keys::directory(share.space, NodeId::ROOT);
        let set = self.rows.read(&partition, &children::root_reads(at)).await?;
        let found = children::found_root(&set, at).map_err(|damage| damage.at(&partition))?;
        Ok(found.unwrap_or_else(|| Node::root(share)))
    }
}

/// Returns the last of these directories; the root if there are none.
fn directory(nodes: &[Node]) -> Option<NodeId> {
    match nodes.last() {
        None => Some(NodeId::ROOT),
        Some(node) => node.is_directory().then_some(node.id),
    }
}
