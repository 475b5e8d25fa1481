//! Checks the rows of this service during a walk over all rows of a store. They refer to no content.

use std::collections::HashSet;

use lazuli_generations::{Generation, keys as names};
use lazuli_service::Damage;
use lazuli_store::{Row, SpaceId};

use crate::entity::Entity;
use crate::keys::Keys;
use crate::table::Table;

/// State of one walk over all rows. The walk must visit the rows in order, beginning with those of the
/// directory, which say which spaces are tables.
#[derive(Debug, Default)]
pub struct TableRows {
    /// The spaces of the tables that the walk has found.
    tables: HashSet<SpaceId>,
}

impl TableRows {
    /// Returns the space of the table that a row of the directory names. Returns `None` if it is another row
    /// or cannot be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Table>(partition, row).ok().flatten()
    }

    /// Fails if a row is damaged. Rows of other services and of deleted tables are not checked.
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

    /// Returns whether a row in the space of a table is an entity.
    pub fn is_entity(partition: &[u8], row: &Row) -> bool {
        Keys::is_entity_row(partition, &row.key)
    }
}
