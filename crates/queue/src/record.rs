//! The values of rows: queues and messages.

use std::borrow::Cow;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_generations::Generation;
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal};
use lazuli_service::{Damage, record};
use lazuli_store::SpaceId;
use serde::{Deserialize, Serialize};

use crate::slot::MessageId;

/// The record of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queue {
    /// The space that holds the queue's messages.
    pub(crate) space: SpaceId,
    pub(crate) metadata: Metadata,
    pub(crate) policies: SignedIdentifiers,
}

impl Generation for Queue {
    const KIND: &'static str = "queue";
    const NOT_FOUND: ErrorCode = ErrorCode::QueueNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::QueueAlreadyExists;

    fn space(&self) -> SpaceId {
        self.space
    }
}

/// A message. The key of its row holds the time at which it becomes visible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message<'a> {
    id: u64,
    inserted: u64,
    expires: u64,
    /// The number of times that a consumer has got the message.
    pub(crate) dequeue_count: u32,
    /// The text that the client put, without XML escapes.
    #[serde(borrow)]
    pub(crate) text: Cow<'a, str>,
}

impl<'a> Message<'a> {
    /// Creates a message that no consumer has got yet.
    pub(crate) fn new(id: MessageId, inserted: Timestamp, expires: Timestamp, text: &'a str) -> Self {
        let (inserted, expires) = (inserted.ticks(), expires.ticks());
        Self { id: id.0.ticks(), inserted, expires, dequeue_count: 0, text: Cow::Borrowed(text) }
    }

    pub(crate) fn id(&self) -> MessageId {
        MessageId(Stamp::from_ticks(self.id))
    }

    /// Returns the time at which the message was put.
    pub(crate) fn inserted(&self) -> Timestamp {
        Timestamp::from_ticks(self.inserted)
    }

    /// Returns the time from which on the message no longer exists for clients.
    pub(crate) fn expires(&self) -> Timestamp {
        Timestamp::from_ticks(self.expires)
    }

    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires() <= now
    }

    /// Returns the value of the message's row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    /// Reads the value of a message's row.
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, Damage> {
        record::decode(value)
    }

    /// Returns the message with an owned text.
    pub(crate) fn into_owned(self) -> Message<'static> {
        Message { text: Cow::Owned(self.text.into_owned()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_damage_is_detected() -> Result<(), Refusal> {
        let moment = Timestamp::from_unix_seconds;
        let id = MessageId(Stamp::from_ticks(5));
        let message = Message { dequeue_count: 3, ..Message::new(id, moment(7), moment(9), "<é>\r\n") };
        let value = message.encode()?;
        assert_eq!(Message::decode(&value), Ok(message.clone()));
        assert!(matches!(Message::decode(&value)?.text, Cow::Borrowed(_)));
        assert!(!message.has_expired(moment(8)) && message.has_expired(moment(9)));
        for length in 0..value.len() {
            assert!(Message::decode(&value[..length]).is_err(), "{length}");
        }
        let queue = Queue { space: SpaceId(7), metadata: Metadata::default(), policies: Default::default() };
        assert_eq!(Queue::decode(&queue.encode()?), Ok(queue));
        Ok(())
    }
}
