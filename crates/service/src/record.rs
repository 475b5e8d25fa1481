//! The encoding of row values: a byte for the format, then the fields in order (postcard). So a new field
//! makes a new format.
//!
//! A record whose fields change becomes [`Versioned`]: written in its new format, and read in that and the
//! previous one. Decision 0021 has the rules.

use std::fmt;
use std::marker::PhantomData;

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_protocol::{ErrorCode, Refusal};
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Serialize};

use crate::internal_error;

/// The format of the values of records that have never changed.
pub const FORMAT: u8 = 1;
/// The highest format of any record.
pub const NEWEST: u8 = 2;

/// A record whose fields have changed.
pub trait Versioned: Serialize + DeserializeOwned {
    /// The format in which the record is written: 2 or more.
    const FORMAT: u8;
    /// The record in the previous format, which can still be read.
    type Previous: DeserializeOwned + Into<Self>;
}

/// Why the value of a row cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A newer program wrote it.
    #[error("it has format {0}, which this program does not read")]
    Format(u8),
    /// The bytes are damaged.
    #[error("it cannot be decoded")]
    Undecodable,
}

impl Damage {
    /// Logs that the row at this place is damaged, or a row of the partition at this place, and returns the
    /// refusal.
    pub fn at(self, place: impl fmt::Display) -> Refusal {
        tracing::error!(damage = %self, %place, "a row is damaged");
        ErrorCode::InternalError.into()
    }
}

/// For rules of transactions: [`Rows`](crate::Rows) logs which rows a failed rule has read.
impl From<Damage> for Refusal {
    fn from(damage: Damage) -> Self {
        tracing::error!(%damage, "a row is damaged");
        Self::new(ErrorCode::InternalError)
    }
}

/// Encodes a record as the value of a row.
pub fn encode(record: &impl Serialize) -> Result<Bytes, Refusal> {
    encode_as(FORMAT, record)
}

fn encode_as(format: u8, record: &impl Serialize) -> Result<Bytes, Refusal> {
    let mut value = BytesMut::with_capacity(256).writer();
    value.get_mut().put_u8(format);
    postcard::to_io(record, &mut value).map_err(unencodable)?;
    Ok(value.into_inner().freeze())
}

/// Appends the fields of a record, without its format.
pub fn append_fields(value: &mut Vec<u8>, record: &impl Serialize) -> Result<(), Refusal> {
    *value = postcard::to_extend(record, std::mem::take(value)).map_err(unencodable)?;
    Ok(())
}

fn unencodable(error: postcard::Error) -> Refusal {
    internal_error(format_args!("a record cannot be encoded: {error}"))
}

/// Decodes a record from the whole value of a row.
pub fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Damage> {
    decode_seed(PhantomData, value)
}

/// Decodes the fields of a record whose fields have changed.
pub fn decode_format<R: Versioned>(format: u8, fields: &[u8]) -> Result<R, Damage> {
    const { assert!(R::FORMAT <= NEWEST, "raise NEWEST, too") };
    if format == R::FORMAT {
        decode_fields(PhantomData, fields)
    } else if R::FORMAT.checked_sub(1) == Some(format) {
        decode_fields(PhantomData::<R::Previous>, fields).map(Into::into)
    } else {
        Err(Damage::Format(format))
    }
}

/// Decodes the part of a record that `seed` selects, without building the rest.
pub fn decode_seed<'a, S: DeserializeSeed<'a>>(seed: S, value: &'a [u8]) -> Result<S::Value, Damage> {
    match value {
        [FORMAT, fields @ ..] => decode_fields(seed, fields),
        [format, ..] => Err(Damage::Format(*format)),
        [] => Err(Damage::Undecodable),
    }
}

/// Decodes the fields of a record, without its format.
pub fn decode_fields<'a, S: DeserializeSeed<'a>>(seed: S, fields: &'a [u8]) -> Result<S::Value, Damage> {
    let mut fields = postcard::Deserializer::from_bytes(fields);
    let record = seed.deserialize(&mut fields).map_err(|_| Damage::Undecodable)?;
    if matches!(fields.finalize(), Ok([])) { Ok(record) } else { Err(Damage::Undecodable) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_records_are_refused() -> Result<(), Refusal> {
        let record = ("name".to_owned(), 7u64);
        let value = encode(&record)?;
        assert_eq!(decode(&value), Ok(record));
        for length in 0..value.len() {
            assert!(decode::<(String, u64)>(&value[..length]).is_err(), "{length}");
        }
        assert_eq!(decode::<(String, u64)>(&[&value[..], b"x"].concat()), Err(Damage::Undecodable));
        let newer = [&[FORMAT + 1], &value[1..]].concat();
        assert_eq!(decode::<(String, u64)>(&newer), Err(Damage::Format(FORMAT + 1)));
        Ok(())
    }

    /// A queue as version 0.1.0 wrote it: a row of the data directory in `crates/lazuli/tests/fixtures`.
    const QUEUE: &[u8] = b"\x01\xa6\xa1\x9b\x8e\xaa\xa5\xd1\xef\x08\x02\x05color\x04blue\x04size\x0242\x00";

    /// The fields of format 1.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Queue {
        space: u64,
        metadata: Vec<(String, String)>,
        policies: Vec<()>,
    }

    /// A later record with one more field.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct LimitedQueue {
        queue: Queue,
        limit: Option<u64>,
    }

    impl From<Queue> for LimitedQueue {
        fn from(queue: Queue) -> Self {
            Self { queue, limit: None }
        }
    }

    impl Versioned for LimitedQueue {
        const FORMAT: u8 = 2;
        type Previous = Queue;
    }

    fn decode_versioned<R: Versioned>(value: &[u8]) -> Result<R, Damage> {
        decode_format(value[0], &value[1..])
    }

    #[test]
    fn only_records_of_the_current_and_previous_format_are_read() -> Result<(), Refusal> {
        let old: LimitedQueue = decode_versioned(QUEUE)?;
        assert_eq!(old.limit, None);
        assert_eq!(
            old.queue.metadata,
            [("color".to_owned(), "blue".to_owned()), ("size".into(), "42".into())]
        );
        let new = LimitedQueue { limit: Some(7), ..old };
        let value = encode_as(LimitedQueue::FORMAT, &new)?;
        assert_eq!(value[0], 2);
        assert_eq!(decode_versioned(&value), Ok(new));
        assert_eq!(
            decode::<Queue>(&value),
            Err(Damage::Format(2)),
            "an older program reports the unknown format"
        );
        for format in [0, 3, 255] {
            let other = [&[format], &value[1..]].concat();
            assert_eq!(decode_versioned::<LimitedQueue>(&other), Err(Damage::Format(format)));
        }
        // A value with the first byte of format 1 must not have the additional field.
        let mixed = [&[1], &value[1..]].concat();
        assert_eq!(decode_versioned::<LimitedQueue>(&mixed), Err(Damage::Undecodable));
        Ok(())
    }
}
