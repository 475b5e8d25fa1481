//! How the value of a row is framed: a byte that names its format, then the fields in order (postcard), so a new field is
//! a new format.

use std::marker::PhantomData;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_extents::Content;
use lazuli_protocol::{ErrorCode, Refusal};
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Serialize};

/// The format of the values that this program writes.
pub const FORMAT: u8 = 1;

/// A row that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It was written by a program that knows more.
    #[error("it has format {0}; this program reads format {FORMAT}")]
    Format(u8),
    /// Its bytes make no sense.
    #[error("it cannot be decoded")]
    Undecodable,
}

impl From<Damage> for Refusal {
    fn from(damage: Damage) -> Self {
        tracing::error!(%damage, "a row is damaged");
        Self::new(ErrorCode::InternalError)
    }
}

/// The value of a row that holds this.
pub fn encode(record: &impl Serialize) -> Result<Bytes, Refusal> {
    let mut value = BytesMut::with_capacity(256).writer();
    value.get_mut().put_u8(FORMAT);
    postcard::to_io(record, &mut value).map_err(|error| {
        tracing::error!(%error, "a record cannot be encoded");
        Refusal::new(ErrorCode::InternalError)
    })?;
    Ok(value.into_inner().freeze())
}

/// What a row holds, all of its value.
pub fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Damage> {
    decode_seed(PhantomData, value)
}

/// The same for somebody who takes out of it what it needs, and makes no record of the rest.
pub fn decode_seed<'a, S: DeserializeSeed<'a>>(seed: S, value: &'a [u8]) -> Result<S::Value, Damage> {
    match value {
        [FORMAT, fields @ ..] => {
            let mut fields = postcard::Deserializer::from_bytes(fields);
            let record = seed.deserialize(&mut fields).map_err(|_| Damage::Undecodable)?;
            if matches!(fields.finalize(), Ok([])) { Ok(record) } else { Err(Damage::Undecodable) }
        }
        [format, ..] => Err(Damage::Format(*format)),
        [] => Err(Damage::Undecodable),
    }
}

/// The value of a row that holds this and then content, which is not copied when the row is read.
pub fn encode_with(head: &impl Serialize, contents: &[&Content]) -> Result<Bytes, Refusal> {
    let mut value = Vec::with_capacity(512);
    value.put_u8(FORMAT);
    put_part(&mut value, |value| {
        let head = postcard::to_extend(head, std::mem::take(value)).map_err(|error| {
            tracing::error!(%error, "a record cannot be encoded");
            Refusal::new(ErrorCode::InternalError)
        })?;
        *value = head;
        Ok(())
    })?;
    for content in contents {
        put_part(&mut value, |value| {
            content.encode(value);
            Ok(())
        })?;
    }
    Ok(value.into())
}

/// Writes something behind its own length.
fn put_part(
    value: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let at = value.len();
    value.put_u32_le(0);
    write(value)?;
    let length = (value.len() - at - 4) as u32;
    value[at..at + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// What such a row holds, and so many contents.
pub fn decode_with<T: DeserializeOwned, const N: usize>(value: &Bytes) -> Result<(T, [Content; N]), Damage> {
    match value.first() {
        Some(&FORMAT) => {}
        Some(format) => return Err(Damage::Format(*format)),
        None => return Err(Damage::Undecodable),
    }
    let mut at = 1;
    let head = &value[take_part(value, &mut at)?];
    let head = postcard::from_bytes(head).map_err(|_| Damage::Undecodable)?;
    let mut contents = [const { None }; N];
    for content in &mut contents {
        let part = value.slice(take_part(value, &mut at)?);
        *content = Some(Content::decode(part).ok_or(Damage::Undecodable)?);
    }
    if at == value.len() {
        Ok((head, contents.map(Option::unwrap_or_default)))
    } else {
        Err(Damage::Undecodable)
    }
}

/// Where the part that begins there lies, behind its length. Moves on behind it.
fn take_part(value: &[u8], at: &mut usize) -> Result<Range<usize>, Damage> {
    let (length, rest) = value[*at..].split_first_chunk::<4>().ok_or(Damage::Undecodable)?;
    let length = u32::from_le_bytes(*length) as usize;
    if rest.len() < length {
        return Err(Damage::Undecodable);
    }
    let start = *at + 4;
    *at = start + length;
    Ok(start..*at)
}

/// For `#[serde(with = …)]`: a moment by its ticks.
pub mod ticks {
    use lazuli_concurrency::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(moment: &Timestamp, s: S) -> Result<S::Ok, S::Error> {
        moment.ticks().serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        u64::deserialize(d).map(Timestamp::from_ticks)
    }
}

/// For `#[serde(with = …)]`: a moment, if there is one.
pub mod optional_ticks {
    use lazuli_concurrency::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(moment: &Option<Timestamp>, s: S) -> Result<S::Ok, S::Error> {
        moment.map(Timestamp::ticks).serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::deserialize(d)?.map(Timestamp::from_ticks))
    }
}

/// For `#[serde(with = …)]`: a stamp by its ticks.
pub mod stamp {
    use lazuli_concurrency::Stamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(stamp: &Stamp, s: S) -> Result<S::Ok, S::Error> {
        stamp.ticks().serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Stamp, D::Error> {
        u64::deserialize(d).map(Stamp::from_ticks)
    }
}

/// For `#[serde(with = …)]`: a stamp, if there is one.
pub mod optional_stamp {
    use lazuli_concurrency::Stamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(stamp: &Option<Stamp>, s: S) -> Result<S::Ok, S::Error> {
        stamp.map(Stamp::ticks).serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Stamp>, D::Error> {
        Ok(Option::deserialize(d)?.map(Stamp::from_ticks))
    }
}

/// For `#[serde(with = …)]`: a tag by its stamp.
pub mod etag {
    use lazuli_concurrency::{ETag, Stamp};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(etag: &ETag, s: S) -> Result<S::Ok, S::Error> {
        etag.stamp().ticks().serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ETag, D::Error> {
        u64::deserialize(d).map(|ticks| Stamp::from_ticks(ticks).into())
    }
}

/// For `#[serde(with = …)]`: a lease as it encodes itself.
pub mod lease {
    use lazuli_concurrency::Lease;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    /// Writes it.
    pub fn serialize<S: Serializer>(lease: &Lease, s: S) -> Result<S::Ok, S::Error> {
        lease.encode().serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Lease, D::Error> {
        Lease::decode(&Vec::<u8>::deserialize(d)?).map_err(de::Error::custom)
    }
}

/// For `#[serde(with = …)]`: a space by its number.
pub mod space {
    use lazuli_store::SpaceId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it.
    pub fn serialize<S: Serializer>(space: &SpaceId, s: S) -> Result<S::Ok, S::Error> {
        space.0.serialize(s)
    }

    /// Reads it.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SpaceId, D::Error> {
        u64::deserialize(d).map(SpaceId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_damaged_record_is_read() -> Result<(), Refusal> {
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
}
