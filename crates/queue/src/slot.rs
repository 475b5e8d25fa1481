//! Slots, which are the positions of messages in a queue; and the names by which clients know messages.
//!
//! A message is in one slot at a time. The slot consists of the time at which the message becomes visible and
//! the stamp of the commit that moved it there. Getting or updating a message moves it to another slot. **No
//! slot is used twice**, so a slot identifies a version of the message. The pop receipt is the slot itself:
//! while the message is in that slot, no consumer has got or updated it since. When it has moved, the slot in
//! the old receipt stays empty forever.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use lazuli_concurrency::{Span, Stamp, Timestamp};
use lazuli_store::SpaceId;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Size of a slot in a row's key, in bytes.
pub(crate) const SLOT_BYTES: usize = 17;

/// A position in a queue. Messages are handed out in the order of their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// The time from which on the message can be got.
    pub(crate) visible_at: Timestamp,
    /// The stamp of the commit that moved the message to this slot.
    pub(crate) stamp: Stamp,
    /// Distinguishes the messages that one commit moved.
    pub(crate) index: u8,
}

impl Slot {
    /// The first slot, which no message has.
    pub(crate) const FIRST: Self = Self::first_at(Timestamp::from_ticks(0));

    /// Returns the first slot of the messages that become visible at `visible_at` or later.
    pub(crate) const fn first_at(visible_at: Timestamp) -> Self {
        Self { visible_at, stamp: Stamp::from_ticks(0), index: 0 }
    }

    /// Returns the first slot after those of all messages that are visible at `now`.
    pub(crate) fn end_of_visible(now: Timestamp) -> Self {
        Self::first_at(now + Span::from_ticks(1))
    }

    /// Encodes the slot for a row's key. The order of the bytes is the order of slots.
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

/// A pop receipt: the slot to which its holder's request moved the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PopReceipt(pub(crate) Slot);

impl fmt::Display for PopReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.0.to_bytes()))
    }
}

/// The error for a text that is not a pop receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidReceipt;

impl FromStr for PopReceipt {
    type Err = InvalidReceipt;

    fn from_str(text: &str) -> Result<Self, InvalidReceipt> {
        let bytes: [u8; SLOT_BYTES] =
            BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or(InvalidReceipt)?;
        Ok(Self(Slot::from_bytes(&bytes)))
    }
}

/// The id of a message: the stamp of the commit that put it into the queue. Clients see a GUID. Its first
/// half is the stamp, and its second half is a digest of the stamp and the queue, which detects ids that this
/// queue never gave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageId(pub(crate) Stamp);

impl MessageId {
    /// Returns the id as clients of the queue see it.
    pub(crate) fn to_guid(self, queue: SpaceId) -> Uuid {
        let ticks = self.0.ticks();
        Uuid::from_u64_pair(ticks, xxh3_64_with_seed(&ticks.to_be_bytes(), queue.0))
    }

    /// Parses an id of the queue. Returns `None` if the queue never gave it out.
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
    fn receipts_round_trip_and_other_texts_are_refused() {
        let receipt = PopReceipt(slot(0x08DE_0102_0304_0506, 0x08DE_0102_0304_0507, 31));
        let text = receipt.to_string();
        assert_eq!(text.parse(), Ok(receipt));
        for other in [&format!("{text}Random"), &text[1..], &format!("{text}="), "", "a b", "été", "AAAA"] {
            assert_eq!(other.parse::<PopReceipt>(), Err(InvalidReceipt), "{other}");
        }
    }

    #[test]
    fn id_is_valid_only_in_the_queue_that_gave_it_out() {
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
