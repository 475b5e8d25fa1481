//! The content that rows of this service refer to, for sweeps and checks that walk over all rows of a store.

use std::collections::HashSet;

use lazuli_extents::Content;
use lazuli_generations::named_space;
use lazuli_store::{Row, SpaceId};

use crate::model::container::Container;
use crate::model::keys::{self, RowKind};
use crate::model::record::{Blob, Damage, StagedBlock};

/// A walk over all rows in order. The rows of the directory come first and name the spaces of containers.
#[derive(Debug, Default)]
pub struct BlobRows {
    containers: HashSet<SpaceId>,
}

impl BlobRows {
    /// Returns the space of the container that a row of the directory names.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Container>(partition, row).ok().flatten()
    }

    /// Returns the content that a row refers to. Returns none for a row of another service or of a deleted
    /// container.
    pub fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
        if space == SpaceId::ROOT {
            self.containers.extend(named_space::<Container>(partition, row)?);
            return Ok(vec![]);
        }
        if self.containers.contains(&space) { contents(partition, row) } else { Ok(vec![]) }
    }
}

/// Returns whether a row in the space of a container is the current state of a blob.
pub fn is_blob_row(partition: &[u8], row: &Row) -> bool {
    keys::blob_name(partition).is_some() && matches!(keys::row_kind(&row.key), Some(RowKind::Base))
}

/// Returns the content that a row refers to, even if its container is deleted. Returns none for a row of
/// another service.
pub fn content_of_row(space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    if space == SpaceId::ROOT { Ok(vec![]) } else { contents(partition, row) }
}

/// Returns the content that a row in the space of a container refers to.
pub(crate) fn contents(partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    if keys::blob_name(partition).is_none() {
        return Ok(vec![]);
    }
    match keys::row_kind(&row.key) {
        Some(
            RowKind::Base
            | RowKind::DeletedSnapshot(_)
            | RowKind::DeletedVersion(_)
            | RowKind::Snapshot(_)
            | RowKind::Version(_),
        ) => {
            let blob = Blob::decode(&row.value)?;
            Ok(vec![blob.content, blob.block_list])
        }
        Some(RowKind::Staged { .. }) => Ok(vec![StagedBlock::decode(&row.value)?.content]),
        Some(RowKind::StagedCount) => Ok(vec![]),
        None => Err(Damage::Undecodable),
    }
}
