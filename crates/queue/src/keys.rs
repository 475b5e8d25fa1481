//! The keys of rows.
//!
//! ```text
//! space            partition    row                                   value
//! ROOT             queue/…      as crates/generations has them        the queue
//! of the queue     messages     count                                 number of messages
//!                               floor                                 no message has a smaller slot
//!                               m VISIBLE-AT STAMP INDEX              a message, see [`Slot`]
//! ```
//!
//! A queue is one partition. Messages are handed out by commits on single rows, so commits on different
//! messages do not conflict.

use std::ops::Range;

use bytes::Bytes;
use lazuli_store::{Partition, SpaceId, prefix_range};

use crate::slot::{SLOT_BYTES, Slot};

/// The partition of a queue's messages.
const MESSAGES: &str = "messages";
/// The row that counts messages.
pub(crate) const COUNT: Bytes = Bytes::from_static(b"count");
/// The row that holds the floor: the slot below which there are no messages.
pub(crate) const FLOOR: Bytes = Bytes::from_static(b"floor");
/// Prefix of the keys of messages.
const MESSAGE: &[u8] = b"m";

/// Returns the partition of the messages in a queue's space.
pub(crate) fn messages(space: SpaceId) -> Partition {
    Partition::new(space, MESSAGES)
}

/// Returns the key of the message in a slot.
pub(crate) fn message(slot: Slot) -> Bytes {
    [MESSAGE, &slot.to_bytes()].concat().into()
}

/// Returns the slot in the key of a message; `None` for other keys.
pub(crate) fn slot(row: &[u8]) -> Option<Slot> {
    let bytes: &[u8; SLOT_BYTES] = row.strip_prefix(MESSAGE)?.try_into().ok()?;
    Some(Slot::from_bytes(bytes))
}

/// Returns the range of the keys of all messages.
pub(crate) fn all() -> Range<Bytes> {
    prefix_range(MESSAGE)
}

/// Returns the range of keys from one slot, inclusive, to another, exclusive.
pub(crate) fn between(from: Slot, to: Slot) -> Range<Bytes> {
    message(from)..message(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_round_trip_and_other_keys_are_not_messages() {
        let slot = Slot::from_bytes(&[7; SLOT_BYTES]);
        assert_eq!(super::slot(&message(slot)), Some(slot));
        assert!(all().contains(&message(slot)) && all().contains(&message(Slot::FIRST)));
        for other in [&COUNT[..], &FLOOR, b"m", b"", &[b'm'; SLOT_BYTES]] {
            assert_eq!(super::slot(other), None);
            assert!(!all().contains(&Bytes::copy_from_slice(other)) || other.starts_with(MESSAGE));
        }
    }
}
