//! How rows are named.
//!
//! ```text
//! space            partition    row                                   value
//! ROOT             queue/…      as crates/generations has them        the queue
//! of the queue     messages     count                                 how many messages there are
//!                               floor                                 no message has a slot below this one
//!                               m VISIBLE-AT STAMP INDEX              a message, see [`Slot`]
//! ```
//!
//! A queue is one partition: its messages are handed out by commits on single rows, which do not conflict.

use std::ops::Range;

use bytes::Bytes;
use lazuli_store::{Partition, SpaceId, prefix_range};

use crate::slot::{SLOT_BYTES, Slot};

/// The partition of a queue's messages.
const MESSAGES: &str = "messages";
/// The row that counts messages.
pub(crate) const COUNT: Bytes = Bytes::from_static(b"count");
/// The row that says from where on there are messages.
pub(crate) const FLOOR: Bytes = Bytes::from_static(b"floor");
/// What rows of messages begin with.
const MESSAGE: &[u8] = b"m";

/// The partition of the messages in a queue's space.
pub(crate) fn messages(space: SpaceId) -> Partition {
    Partition::new(space, MESSAGES)
}

/// The row of a message.
pub(crate) fn message(slot: Slot) -> Bytes {
    [MESSAGE, &slot.to_bytes()].concat().into()
}

/// The slot that a row of a message is in.
pub(crate) fn slot(row: &[u8]) -> Option<Slot> {
    let bytes: &[u8; SLOT_BYTES] = row.strip_prefix(MESSAGE)?.try_into().ok()?;
    Some(Slot::from_bytes(bytes))
}

/// The rows of all messages.
pub(crate) fn all() -> Range<Bytes> {
    prefix_range(MESSAGE)
}

/// The rows of messages from one slot on and before another.
pub(crate) fn between(from: Slot, to: Slot) -> Range<Bytes> {
    message(from)..message(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_by_its_slot_and_nothing_else_is_taken_for_one() {
        let slot = Slot::from_bytes(&[7; SLOT_BYTES]);
        assert_eq!(super::slot(&message(slot)), Some(slot));
        assert!(all().contains(&message(slot)) && all().contains(&message(Slot::FIRST)));
        for other in [&COUNT[..], &FLOOR, b"m", b"", &[b'm'; SLOT_BYTES]] {
            assert_eq!(super::slot(other), None);
            assert!(!all().contains(&Bytes::copy_from_slice(other)) || other.starts_with(MESSAGE));
        }
    }
}
