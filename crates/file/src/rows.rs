//! What rows of this service refer to, for those who walk over all rows of a store: sweeps and checks.

use std::collections::HashSet;

use lazuli_extents::{Content, Extents};
use lazuli_generations::{Damage, Generation, Referred, keys as shares};
use lazuli_store::{Row, SpaceId};

use crate::keys;
use crate::moves::Reservation;
use crate::record::{Node, Own, Share};

/// One walk over all rows, in order, those of the directory first: it says which spaces are shares.
#[derive(Debug, Default)]
pub struct FileRows {
    shares: HashSet<SpaceId>,
}

impl FileRows {
    /// The space of the share that a row of the directory names, if it is such a row and can be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Share>(partition, row).ok().flatten()
    }

    /// The content that a row refers to; none for a row of somebody else, or of a share that is gone.
    pub fn contents(
        &mut self,
        space: SpaceId,
        partition: &[u8],
        row: &Row,
    ) -> Result<Option<Content>, Damage> {
        if space == SpaceId::ROOT {
            if partition.starts_with(&shares::kind(Share::KIND)) && shares::garbage_space(&row.key).is_none()
            {
                self.shares.insert(Share::decode(&row.value)?.space);
            }
            return Ok(None);
        }
        if self.shares.contains(&space) { content(partition, row) } else { Ok(None) }
    }
}

/// Returns the content that a row refers to, whatever has become of its share; none for a row of another service.
pub fn content_of_row(space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    if space == SpaceId::ROOT { Ok(vec![]) } else { Ok(content(partition, row)?.into_iter().collect()) }
}

/// The content that a row in a share's space refers to.
fn content(partition: &[u8], row: &Row) -> Result<Option<Content>, Damage> {
    if keys::directory_id(partition).is_none() {
        return Ok(None);
    }
    if keys::is_child(&row.key) {
        return Ok(Node::decode(&row.value)?.file.map(|file| file.content));
    }
    if keys::is_moving(&row.key) {
        return Reservation::decode(&row.value)?.content();
    }
    if row.key == keys::OWN {
        Own::decode(&row.value)?;
    }
    Ok(None)
}

/// Tells the extents what rows that are gone referred to.
pub(crate) struct Contents<'a>(pub(crate) &'a dyn Extents);

impl Referred for Contents<'_> {
    fn bytes(&self, partition: &[u8], row: &Row) -> u64 {
        // What cannot be read is no reason to keep it.
        content(partition, row).ok().flatten().map_or(0, |content| content.allocated())
    }

    fn released(&self, bytes: u64) {
        self.0.released(bytes);
    }
}
