//! The records of moves and deletions, and the rows that reserve names and directories for them.

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_extents::Content;
use lazuli_service::{Damage, record};
use lazuli_store::intent::IntentId;
use lazuli_store::{Partition, SpaceId};
use serde::{Deserialize, Serialize};

use crate::tree::keys;
use crate::tree::record::{Node, NodeId};

/// The work of an intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum IntentWork {
    Move(Move),
    Delete(Delete),
}

/// Moves a child from one directory to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Move {
    pub(crate) source: DirectoryEntryName,
    pub(crate) target: DirectoryEntryName,
    /// The node before and after the move, and the node that it replaces, as records.
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
    pub(crate) replaced: Option<Vec<u8>>,
}

/// Deletes a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Delete {
    pub(crate) place: DirectoryEntryName,
    pub(crate) directory: NodeId,
    /// The node before the deletion, as a record.
    pub(crate) before: Vec<u8>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryEntryName {
    pub(crate) parent: NodeId,
    /// The folded name.
    pub(crate) name: Vec<u8>,
}

/// The value of a row that reserves a name or a directory: the intent, and its participant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameReservation {
    pub(crate) id: u64,
    pub(crate) participant: u8,
    pub(crate) work: IntentWork,
}

impl NameReservation {
    /// Decodes a row.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }

    /// Returns the content of the moved node.
    pub(crate) fn content(&self) -> Result<Option<Content>, Damage> {
        match &self.work {
            IntentWork::Delete(_) => Ok(None),
            IntentWork::Move(work) => Ok(node(&work.after)?.file.map(|file| file.content)),
        }
    }
}

impl NameReservation {
    pub(crate) fn intent(&self) -> IntentId {
        IntentId(Stamp::from_ticks(self.id))
    }
}

impl IntentWork {
    /// Returns the partition of the intent's row.
    pub(crate) fn home(&self, space: SpaceId) -> Partition {
        match self {
            Self::Move(work) => work.source.partition(space),
            Self::Delete(work) => work.place.partition(space),
        }
    }
}

impl DirectoryEntryName {
    pub(crate) fn partition(&self, space: SpaceId) -> Partition {
        keys::directory(space, self.parent)
    }
}

pub(crate) fn node(record: &[u8]) -> Result<Node, Damage> {
    Node::decode(&Bytes::copy_from_slice(record))
}
