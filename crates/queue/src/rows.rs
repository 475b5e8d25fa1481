//! Whether rows of this service are what was written, for those who walk over all rows of a store.

use std::collections::HashSet;

use lazuli_generations::{Damage, named_space};
use lazuli_store::{Row, SpaceId};

use crate::keys;
use crate::record::{Message, Queue};
use crate::slot::SLOT_BYTES;

/// One walk over all rows, in order, those of the directory first: it says which spaces are queues.
#[derive(Debug, Default)]
pub struct QueueRows {
    queues: HashSet<SpaceId>,
}

impl QueueRows {
    /// The space of the queue that a row of the directory names, if it is such a row and can be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Queue>(partition, row).ok().flatten()
    }

    /// Fails if a row is damaged. A row of somebody else, or of a queue that is gone, is not looked at.
    pub fn check(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<(), Damage> {
        if space == SpaceId::ROOT {
            self.queues.extend(named_space::<Queue>(partition, row)?);
            return Ok(());
        }
        if !self.queues.contains(&space) {
            return Ok(());
        }
        let is_right = match &row.key {
            key if *key == keys::COUNT => row.value.len() == size_of::<i64>(),
            key if *key == keys::FLOOR => row.value.len() == SLOT_BYTES,
            key => {
                keys::slot(key).ok_or(Damage::Undecodable)?;
                return Message::decode(&row.value).map(|_| ());
            }
        };
        if is_right { Ok(()) } else { Err(Damage::Undecodable) }
    }
}
