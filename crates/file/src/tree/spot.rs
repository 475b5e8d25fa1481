//! A name in a directory, whether or not it exists.

use std::time::Duration;

use lazuli_store::{Partition, SpaceId};

use crate::tree::keys;
use crate::tree::names::Name;
use crate::tree::record::NodeId;

/// A name in a directory, whether or not it exists.
pub(crate) struct Spot {
    pub(crate) space: SpaceId,
    pub(crate) parent: NodeId,
    pub(crate) name: Name,
    /// Maximum time that a request waits for SMB clients.
    pub(crate) patience: Duration,
    /// The quota of the share. `u64::MAX`: growth is already reserved.
    pub(crate) quota: u64,
}

impl Spot {
    /// Returns the partition of the directory.
    pub(crate) fn partition(&self) -> Partition {
        keys::directory(self.space, self.parent)
    }

    /// Returns the key of a node of the same share.
    pub(crate) fn file(&self, node: NodeId) -> FileKey {
        FileKey::now(self.space, node)
    }

    /// Returns the quota. `None`: growth is already reserved.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.quota != u64::MAX).then_some(self.quota)
    }
}

/// The key of a directory or file in the open-file table. Renames do not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// The space of the share.
    pub space: SpaceId,
    /// The id in the share.
    pub node: NodeId,
    /// The file as a snapshot shows it, at the end of this epoch. It is another file, which never changes.
    pub epoch: Option<u64>,
}

impl FileKey {
    /// Returns the key of the current file.
    pub const fn now(space: SpaceId, node: NodeId) -> Self {
        Self { space, node, epoch: None }
    }
}
