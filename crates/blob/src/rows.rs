//! What rows of this service refer to, for those who walk over all rows of a store: sweeps and checks.

use std::collections::HashSet;

use lazuli_extents::Content;
use lazuli_generations::named_space;
use lazuli_store::{Row, SpaceId};

use crate::keys::{self, RowKind};
use crate::record::{Blob, Container, Damage, StagedBlock};

/// One walk over all rows, in order, those of the directory first: it says which spaces are containers.
#[derive(Debug, Default)]
pub struct BlobRows {
    containers: HashSet<SpaceId>,
}

impl BlobRows {
    /// The space of the container that a row of the directory names, if it is such a row and can be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Container>(partition, row).ok().flatten()
    }

    /// The content that a row refers to; none for a row of somebody else, or of a container that is gone.
    pub fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
        if space == SpaceId::ROOT {
            self.containers.extend(named_space::<Container>(partition, row)?);
            return Ok(vec![]);
        }
        if self.containers.contains(&space) { contents(partition, row) } else { Ok(vec![]) }
    }
}

/// Returns the content that a row refers to, whatever has become of its container; none for a row of another service.
pub fn content_of_row(space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    if space == SpaceId::ROOT { Ok(vec![]) } else { contents(partition, row) }
}

/// The content that a row in a container's space refers to.
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
        Some(RowKind::Staged(_)) => Ok(vec![StagedBlock::decode(&row.value)?.content]),
        Some(RowKind::StagedCount) => Ok(vec![]),
        None => Err(Damage::Undecodable),
    }
}
