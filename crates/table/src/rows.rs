//! Reads rows of this service for those who walk over all rows of a store. They refer to no content.

use std::collections::HashSet;

use lazuli_generations::{Damage, Generation, keys as names};
use lazuli_store::{Row, SpaceId};

use crate::entity::Entity;
use crate::keys::Keys;
use crate::table::Table;

/// One walk over all rows, in order, those of the directory first: it says which spaces are tables.
#[derive(Debug, Default)]
pub struct TableRows {
    tables: HashSet<SpaceId>,
}

impl TableRows {
    /// The space of the table that a row of the directory names, if it is such a row and can be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Table>(partition, row).ok().flatten()
    }

    /// Whether a row can be read, if it is one of this service.
    pub fn check(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<(), Damage> {
        if space == SpaceId::ROOT {
            if partition.starts_with(&names::kind(Table::KIND)) && names::garbage_space(&row.key).is_none() {
                self.tables.insert(Table::decode(&row.value)?.space);
            }
        } else if self.tables.contains(&space) {
            Keys::of_row(partition, &row.key).ok_or(Damage::Undecodable)?;
            Entity::decode(&row.value)?;
        }
        Ok(())
    }
}
