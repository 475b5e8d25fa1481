//! The content that rows refer to, for sweeps and checks of a whole store.

use std::collections::HashSet;

use lazuli_extents::{Content, Extents};
use lazuli_generations::{ContentRefs, Generation, keys as shares};
use lazuli_service::Damage;
use lazuli_store::{Row, SpaceId};

use crate::tree::keys;
use crate::tree::move_record::NameReservation;
use crate::tree::record::{Node, Own, Share};

/// A scan of all rows in order. The rows of shares come first and say which spaces belong to shares.
#[derive(Debug, Default)]
pub struct FileRows {
    shares: HashSet<SpaceId>,
}

impl FileRows {
    /// Returns the space of the share in a row, if it is the row of a share and readable.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Share>(partition, row).ok().flatten()
    }

    /// Returns the content that a row refers to. `None` for rows of other services and of deleted shares.
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

    /// Returns whether a row in the space of a share is a file or directory.
    pub fn is_node(partition: &[u8], row: &Row) -> bool {
        keys::directory_id(partition).is_some() && keys::is_child(&row.key)
    }
}

/// Returns the content that a row refers to, even if its share is deleted. Empty for rows of other services.
pub fn content_of_row(space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, Damage> {
    if space == SpaceId::ROOT { Ok(vec![]) } else { Ok(content(partition, row)?.into_iter().collect()) }
}

/// Returns the content that a row in a share's space refers to.
fn content(partition: &[u8], row: &Row) -> Result<Option<Content>, Damage> {
    if keys::directory_id(partition).is_none() {
        return Ok(None);
    }
    if keys::is_child(&row.key) {
        return Ok(Node::decode(&row.value)?.file.map(|file| file.content));
    }
    if keys::is_moving(&row.key) {
        return NameReservation::decode(&row.value)?.content();
    }
    if row.key == keys::OWN {
        Own::decode(&row.value)?;
    }
    Ok(None)
}

/// Reports the content of removed rows to the extents.
pub(crate) struct Contents<'a>(pub(crate) &'a dyn Extents);

impl ContentRefs for Contents<'_> {
    fn bytes(&self, partition: &[u8], row: &Row) -> u64 {
        // An unreadable row is removed all the same.
        content(partition, row).ok().flatten().map_or(0, |content| content.extent_bytes())
    }

    fn released(&self, bytes: u64) {
        self.0.released(bytes);
    }
}
