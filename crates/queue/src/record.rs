//! What rows hold.

use std::borrow::Cow;

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_generations::{Damage, Generation, record};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal};
use lazuli_store::SpaceId;
use serde::{Deserialize, Serialize};

use crate::slot::MessageId;

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queue {
    /// Where its messages are.
    #[serde(with = "record::space")]
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

    fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }
}

/// A message. When it is visible is in the key of its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message<'a> {
    id: u64,
    inserted: u64,
    expires: u64,
    /// How often it was got.
    pub(crate) dequeue_count: u32,
    /// What the client put, as it is without the escapes of XML.
    #[serde(borrow)]
    pub(crate) text: Cow<'a, str>,
}

impl<'a> Message<'a> {
    /// A new message, which nobody has got yet.
    pub(crate) fn new(id: MessageId, inserted: Timestamp, expires: Timestamp, text: &'a str) -> Self {
        let (inserted, expires) = (inserted.ticks(), expires.ticks());
        Self { id: id.0.ticks(), inserted, expires, dequeue_count: 0, text: Cow::Borrowed(text) }
    }

    pub(crate) fn id(&self) -> MessageId {
        MessageId(Stamp::from_ticks(self.id))
    }

    /// When it was put.
    pub(crate) fn inserted(&self) -> Timestamp {
        Timestamp::from_ticks(self.inserted)
    }

    /// When it vanishes.
    pub(crate) fn expires(&self) -> Timestamp {
        Timestamp::from_ticks(self.expires)
    }

    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires() <= now
    }

    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    /// Reads a row.
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, Damage> {
        record::decode(value)
    }

    /// The same on its own.
    pub(crate) fn into_owned(self) -> Message<'static> {
        Message { text: Cow::Owned(self.text.into_owned()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_damage_is_noticed() -> Result<(), Refusal> {
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
