//! Where a message stands in its queue, and the names that clients know it by.
//!
//! A message is in one slot at a time: when it becomes visible, and which commit put it there. Getting or updating it moves
//! it to another slot. **No slot is used twice**, so a slot is as good as a version, and the pop receipt is just that: the
//! slot that the message was moved to. As long as it is there nobody has got or updated it since; once it has moved on
//! the old receipt names a slot that is empty for good.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use lazuli_concurrency::{Span, Stamp, Timestamp};
use lazuli_store::SpaceId;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a slot in a row's key.
pub(crate) const SLOT_BYTES: usize = 17;

/// A place in a queue. Slots are in the order in which messages are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// From then on the message can be got.
    pub(crate) visible_at: Timestamp,
    /// The commit that moved it there.
    pub(crate) stamp: Stamp,
    /// Tells apart the messages that one commit moved.
    pub(crate) index: u8,
}

impl Slot {
    /// Before every message.
    pub(crate) const FIRST: Self = Self::first_at(Timestamp::from_ticks(0));

    /// Not after any message that becomes visible then or later, and after all that do before.
    pub(crate) const fn first_at(visible_at: Timestamp) -> Self {
        Self { visible_at, stamp: Stamp::from_ticks(0), index: 0 }
    }

    /// After every message that is visible by then.
    pub(crate) fn end_of_visible(now: Timestamp) -> Self {
        Self::first_at(now + Span::from_ticks(1))
    }

    /// For the key of a row: in the order of slots.
    pub(crate) fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [self.index; SLOT_BYTES];
        bytes[..8].copy_from_slice(&self.visible_at.ticks().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.stamp.ticks().to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let ticks = |at: usize| bytes[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Self {
            visible_at: Timestamp::from_ticks(ticks(0)),
            stamp: Stamp::from_ticks(ticks(8)),
            index: bytes[16],
        }
    }
}

/// What the holder of a message proves it with: the slot that it was moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PopReceipt(pub(crate) Slot);

impl fmt::Display for PopReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0.to_bytes()))
    }
}

/// A text that is no pop receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAReceipt;

impl FromStr for PopReceipt {
    type Err = NotAReceipt;

    fn from_str(text: &str) -> Result<Self, NotAReceipt> {
        let bytes: [u8; SLOT_BYTES] =
            BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(NotAReceipt)?;
        Ok(Self(Slot::from_bytes(&bytes)))
    }
}

/// The id of a message: which commit put it into the queue. Clients see a GUID, whose other half is a digest of the queue
/// and the first, so that an id that this queue never gave out is told from one that it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId(pub(crate) Stamp);

impl MessageId {
    /// As clients of that queue see it.
    pub(crate) fn to_guid(self, queue: SpaceId) -> Uuid {
        let ticks = self.0.ticks();
        Uuid::from_u64_pair(ticks, xxh3_64_with_seed(&ticks.to_be_bytes(), queue.0))
    }

    /// The id that a text is in that queue; `None` for one that was never given out.
    pub(crate) fn parse(text: &str, queue: SpaceId) -> Option<Self> {
        let guid = Uuid::try_parse(text).ok()?;
        let id = Self(Stamp::from_ticks(guid.as_u64_pair().0));
        (id.to_guid(queue) == guid).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(visible_at: u64, stamp: u64, index: u8) -> Slot {
        let (visible_at, stamp) = (Timestamp::from_ticks(visible_at), Stamp::from_ticks(stamp));
        Slot { visible_at, stamp, index }
    }

    #[test]
    fn bytes_are_in_the_order_of_slots() {
        let slots = [
            Slot::FIRST,
            slot(1, 300, 0),
            slot(255, 1, 0),
            slot(256, 1, 0),
            slot(256, 1, 1),
            slot(256, 2, 0),
            Slot::end_of_visible(Timestamp::from_ticks(256)),
            slot(257, 1, 0),
            slot(u64::MAX, 0, 255),
        ];
        assert!(slots.is_sorted() && slots.map(Slot::to_bytes).is_sorted());
        for slot in slots {
            assert_eq!(Slot::from_bytes(&slot.to_bytes()), slot);
        }
    }

    #[test]
    fn a_receipt_is_read_back_and_nothing_else_is_one() {
        let receipt = PopReceipt(slot(0x08DE_0102_0304_0506, 0x08DE_0102_0304_0507, 31));
        let text = receipt.to_string();
        assert_eq!(text.parse(), Ok(receipt));
        for other in [&format!("{text}Random"), &text[1..], &format!("{text}="), "", "a b", "été", "AAAA"] {
            assert_eq!(other.parse::<PopReceipt>(), Err(NotAReceipt), "{other}");
        }
    }

    #[test]
    fn an_id_is_known_only_in_the_queue_that_gave_it_out() {
        let id = MessageId(Stamp::from_ticks(0x08DE_0102_0304_0506));
        let text = id.to_guid(SpaceId(7)).to_string();
        assert_eq!(text.len(), 36);
        assert_eq!(MessageId::parse(&text, SpaceId(7)), Some(id));
        assert_eq!(MessageId::parse(&text.to_uppercase(), SpaceId(7)), Some(id));
        assert_eq!(MessageId::parse(&text, SpaceId(8)), None);
        for other in [&format!("{text}Random"), "", "x", "d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01"] {
            assert_eq!(MessageId::parse(other, SpaceId(7)), None, "{other}");
        }
    }
}
