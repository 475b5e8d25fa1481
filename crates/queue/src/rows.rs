//! Checks the rows of this service during a walk over all rows of a store.

use std::collections::HashSet;

use lazuli_generations::named_space;
use lazuli_service::Damage;
use lazuli_store::{Row, SpaceId};

use crate::keys;
use crate::record::{Message, Queue};
use crate::slot::SLOT_BYTES;

/// State of one walk over all rows. The walk must visit the rows in order, beginning with those of the
/// directory, which say which spaces are queues.
#[derive(Debug, Default)]
pub struct QueueRows {
    /// The spaces of the queues that the walk has found.
    queues: HashSet<SpaceId>,
}

impl QueueRows {
    /// Returns the space of the queue that a row of the directory names. Returns `None` if it is another row
    /// or cannot be read.
    pub fn named_space(partition: &[u8], row: &Row) -> Option<SpaceId> {
        lazuli_generations::named_space::<Queue>(partition, row).ok().flatten()
    }

    /// Fails if a row is damaged. Rows of other services and of deleted queues are not checked.
    pub fn check(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<(), Damage> {
        if space == SpaceId::ROOT {
            self.queues.extend(named_space::<Queue>(partition, row)?);
            return Ok(());
        }
        if !self.queues.contains(&space) {
            return Ok(());
        }
        let is_intact = match &row.key {
            key if *key == keys::COUNT => row.value.len() == size_of::<i64>(),
            key if *key == keys::FLOOR => row.value.len() == SLOT_BYTES,
            key => {
                keys::slot(key).ok_or(Damage::Undecodable)?;
                return Message::decode(&row.value).map(|_| ());
            }
        };
        if is_intact { Ok(()) } else { Err(Damage::Undecodable) }
    }

    /// Returns whether a row in the space of a queue is a message.
    pub fn is_message(partition: &[u8], row: &Row) -> bool {
        partition == keys::messages(SpaceId::ROOT).key && keys::slot(&row.key).is_some()
    }
}
