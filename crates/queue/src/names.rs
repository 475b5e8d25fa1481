//! Describes rows of this service in words, for reports of damage.

use lazuli_concurrency::Timestamp;
use lazuli_protocol::date;

use crate::{QueueRows, keys};

impl QueueRows {
    /// Describes a row in a queue's space. The text follows the queue's name. Returns `None` for an unknown
    /// row.
    pub fn describe(partition: &[u8], key: &[u8]) -> Option<String> {
        if partition != keys::messages(lazuli_store::SpaceId::ROOT).key {
            return None;
        }
        if *key == keys::COUNT {
            return Some(" (count of messages)".into());
        }
        if *key == keys::FLOOR {
            return Some(" (start of messages)".into());
        }
        let slot = keys::slot(key)?;
        let (stored, visible) = (Timestamp::from_ticks(slot.stamp.ticks()), slot.visible_at);
        Some(format!(
            " message {} of {}, visible at {}",
            slot.index,
            date::iso8601(stored),
            date::iso8601(visible)
        ))
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Stamp;
    use lazuli_store::SpaceId;

    use super::*;
    use crate::slot::Slot;

    #[test]
    fn every_kind_of_row_has_a_description() {
        let partition = keys::messages(SpaceId(1)).key;
        let at = Timestamp::from_unix_seconds(1_700_000_000);
        let slot = Slot { visible_at: at, stamp: Stamp::from_ticks(at.ticks()), index: 3 };
        let time = date::iso8601(at);
        let name = |key: &[u8]| QueueRows::describe(&partition, key);
        assert_eq!(name(&keys::message(slot)), Some(format!(" message 3 of {time}, visible at {time}")));
        assert_eq!(name(&keys::COUNT).as_deref(), Some(" (count of messages)"));
        assert_eq!(name(&keys::FLOOR).as_deref(), Some(" (start of messages)"));
        assert_eq!((name(b"?"), QueueRows::describe(b"?", &keys::COUNT)), (None, None));
    }
}
