//! Finding directories and files by their paths.
//!
//! A path is followed one point read for each name. Directories on the way may be moved meanwhile; what counts is where the
//! last read led to, and a change depends on that directory still being there.

use lazuli_protocol::request::Request;
use lazuli_protocol::{Account, ErrorCode, Headers, Refusal, names as shares};
use lazuli_store::{Partition, Reads, SpaceId, View};

use crate::children::{self, At};
use crate::names::{self, Name};
use crate::record::{Node, NodeId, Own, Share};
use crate::{FileService, keys};

/// What a request addresses: a share and a path in it.
pub(crate) struct Target {
    pub(crate) share: Share,
    pub(crate) path: Vec<Name>,
    pub(crate) at: At,
}

/// Where a directory or file is, or would be.
pub(crate) struct Spot {
    pub(crate) space: SpaceId,
    pub(crate) parent: NodeId,
    pub(crate) name: Name,
}

impl Spot {
    /// The partition of the directory that it is in.
    pub(crate) fn partition(&self) -> Partition {
        keys::directory(self.space, self.parent)
    }
}

impl FileService {
    /// The share of that name.
    pub(crate) async fn share(&self, account: &Account, name: &str) -> Result<Share, Refusal> {
        shares::check_share(name)?;
        self.shares.get(account, name).await
    }

    /// What a request addresses.
    pub(crate) async fn target(&self, request: &Request) -> Result<Target, Refusal> {
        let keep_dots = request.headers.flag("x-ms-allow-trailing-dot")?.unwrap_or_default();
        let path = names::path(&request.object, keep_dots)?;
        if request.query.contains("sharesnapshot") {
            return Err(Refusal::not_implemented("A share snapshot"));
        }
        let share = self.share(&request.account, &request.container).await?;
        Ok(Target { share, path, at: At::Now })
    }

    /// Where the last name of a path is to be looked for. `None` for the root, which is nowhere.
    pub(crate) async fn spot(&self, target: Target) -> Result<Option<Spot>, Refusal> {
        let Target { share, mut path, at } = target;
        let Some(name) = path.pop() else { return Ok(None) };
        let parent = self.walk(share.space, &path, at).await?.ok_or(ErrorCode::ParentNotFound)?;
        Ok(Some(Spot { space: share.space, parent, name }))
    }

    /// The directory that a path leads to.
    pub(crate) async fn walk(
        &self,
        space: SpaceId,
        path: &[Name],
        at: At,
    ) -> Result<Option<NodeId>, Refusal> {
        let mut directory = NodeId::ROOT;
        for name in path {
            match self.child(space, directory, name, at).await? {
                Some(node) if node.is_directory() => directory = node.id,
                _ => return Ok(None),
            }
        }
        Ok(Some(directory))
    }

    /// A child of a directory.
    pub(crate) async fn child(
        &self,
        space: SpaceId,
        directory: NodeId,
        name: &Name,
        at: At,
    ) -> Result<Option<Node>, Refusal> {
        let set = self.read(&keys::directory(space, directory), &children::reads(name, at)).await?;
        Ok(children::found(&set, at)?)
    }

    /// The directory or file that a request addresses, and the directory it is in.
    pub(crate) async fn find(&self, request: &Request) -> Result<(Node, NodeId), Refusal> {
        let target = self.target(request).await?;
        let (space, at) = (target.share.space, target.at);
        let Some((name, directories)) = target.path.split_last() else {
            return Ok((self.root(&target.share).await?, NodeId::ROOT));
        };
        let parent = self.walk(space, directories, at).await?.ok_or(ErrorCode::ResourceNotFound)?;
        let node = self.child(space, parent, name, at).await?;
        Ok((node.ok_or(ErrorCode::ResourceNotFound)?, parent))
    }

    /// The root directory: as it was set, or as the share was made.
    pub(crate) async fn root(&self, share: &Share) -> Result<Node, Refusal> {
        let set = self.read(&keys::directory(share.space, NodeId::ROOT), &Reads::key(keys::OWN)).await?;
        let own = set.rows.first().and_then(Option::as_ref);
        let own = own.map(|row| Own::decode(&row.value)).transpose()?;
        Ok(own.and_then(|own| own.root).unwrap_or_else(|| Node::root(share)))
    }
}

/// Refuses what is of the other kind than the operation is for.
pub(crate) fn check_kind(node: &Node, is_directory: bool) -> Result<(), Refusal> {
    if node.is_directory() == is_directory { Ok(()) } else { Err(ErrorCode::ResourceTypeMismatch.into()) }
}

/// Whether a directory may be written to, by its own row. The root always may.
pub(crate) fn check_parent(spot: &Spot, view: &View<'_>) -> Result<(), Refusal> {
    match spot.parent == NodeId::ROOT || view.row(&keys::OWN).is_some() {
        true => Ok(()),
        false => Err(ErrorCode::ParentNotFound.into()),
    }
}
