//! How the value of a row is framed: a byte that names its format, then the fields in order (postcard), so a new field is
//! a new format.
//!
//! A record whose fields change becomes a [`Versioned`] one: it is written in its new format and read in the one before,
//! too. Decision 0021 has the rules.

use std::marker::PhantomData;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_extents::Content;
use lazuli_protocol::{ErrorCode, Refusal};
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde::{Deserialize, Serialize};

/// The format of the values of records that have never changed.
pub const FORMAT: u8 = 1;

/// A record whose fields have changed.
pub trait Versioned: Serialize + DeserializeOwned {
    /// The format that is written: 2 or more.
    const FORMAT: u8;
    /// The record as it is in the format before, which is still read.
    type Previous: DeserializeOwned + Into<Self>;
}

/// A row that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It was written by a program that knows more.
    #[error("it has format {0}, which this program does not read")]
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
    encode_as(FORMAT, record)
}

/// The same for a record whose fields have changed.
pub fn encode_versioned<R: Versioned>(record: &R) -> Result<Bytes, Refusal> {
    encode_as(R::FORMAT, record)
}

fn encode_as(format: u8, record: &impl Serialize) -> Result<Bytes, Refusal> {
    let mut value = BytesMut::with_capacity(256).writer();
    value.get_mut().put_u8(format);
    postcard::to_io(record, &mut value).map_err(unencodable)?;
    Ok(value.into_inner().freeze())
}

fn unencodable(error: postcard::Error) -> Refusal {
    tracing::error!(%error, "a record cannot be encoded");
    Refusal::new(ErrorCode::InternalError)
}

/// What a row holds, all of its value.
pub fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Damage> {
    decode_seed(PhantomData, value)
}

/// The same for a record whose fields have changed, in its format or the one before.
pub fn decode_versioned<R: Versioned>(value: &[u8]) -> Result<R, Damage> {
    let (format, fields) = value.split_first().ok_or(Damage::Undecodable)?;
    decode_format(*format, fields)
}

fn decode_format<R: Versioned>(format: u8, fields: &[u8]) -> Result<R, Damage> {
    if format == R::FORMAT {
        decode_fields(PhantomData, fields)
    } else if R::FORMAT.checked_sub(1) == Some(format) {
        decode_fields(PhantomData::<R::Previous>, fields).map(Into::into)
    } else {
        Err(Damage::Format(format))
    }
}

/// The same for somebody who takes out of it what it needs, and makes no record of the rest.
pub fn decode_seed<'a, S: DeserializeSeed<'a>>(seed: S, value: &'a [u8]) -> Result<S::Value, Damage> {
    match value {
        [FORMAT, fields @ ..] => decode_fields(seed, fields),
        [format, ..] => Err(Damage::Format(*format)),
        [] => Err(Damage::Undecodable),
    }
}

fn decode_fields<'a, S: DeserializeSeed<'a>>(seed: S, fields: &'a [u8]) -> Result<S::Value, Damage> {
    let mut fields = postcard::Deserializer::from_bytes(fields);
    let record = seed.deserialize(&mut fields).map_err(|_| Damage::Undecodable)?;
    if matches!(fields.finalize(), Ok([])) { Ok(record) } else { Err(Damage::Undecodable) }
}

/// The value of a row that holds this and then content, which is not copied when the row is read.
pub fn encode_with(head: &impl Serialize, contents: &[&Content]) -> Result<Bytes, Refusal> {
    encode_parts(FORMAT, head, contents)
}

/// The same for a record whose fields have changed.
pub fn encode_versioned_with<R: Versioned>(head: &R, contents: &[&Content]) -> Result<Bytes, Refusal> {
    encode_parts(R::FORMAT, head, contents)
}

fn encode_parts(format: u8, head: &impl Serialize, contents: &[&Content]) -> Result<Bytes, Refusal> {
    let mut value = Vec::with_capacity(512);
    value.put_u8(format);
    put_part(&mut value, |value| {
        *value = postcard::to_extend(head, std::mem::take(value)).map_err(unencodable)?;
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
    decode_parts(value, |format, head| match format {
        FORMAT => decode_fields(PhantomData, head),
        format => Err(Damage::Format(format)),
    })
}

/// The same for a record whose fields have changed, in its format or the one before.
pub fn decode_versioned_with<R: Versioned, const N: usize>(
    value: &Bytes,
) -> Result<(R, [Content; N]), Damage> {
    decode_parts(value, decode_format)
}

fn decode_parts<T, const N: usize>(
    value: &Bytes,
    decode_head: impl FnOnce(u8, &[u8]) -> Result<T, Damage>,
) -> Result<(T, [Content; N]), Damage> {
    let format = *value.first().ok_or(Damage::Undecodable)?;
    let mut at = 1;
    // A format that is not known may look different from here on.
    let head = take_part(value, &mut at).map(|head| &value[head]);
    let head = decode_head(format, head.unwrap_or_default())?;
    if at == 1 {
        return Err(Damage::Undecodable);
    }
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

/// Takes content out of the value of a row that was made by [`encode_with`], for an export. Returns the value with nothing
/// in its place, and what was taken, each with its number among the parts behind the head. Fails if one of `wanted` is
/// not among them.
pub fn take_contents(value: &Bytes, wanted: &[Content]) -> Result<(Bytes, Vec<(u8, Content)>), Damage> {
    if wanted.is_empty() {
        return Ok((value.clone(), vec![]));
    }
    let mut taken = vec![];
    let value = replace_contents(value, |part, content| {
        wanted.contains(&content).then(|| {
            taken.push((part, content));
            Content::empty()
        })
    })?;
    if taken.len() == wanted.len() { Ok((value, taken)) } else { Err(Damage::Undecodable) }
}

/// Puts content back that [`take_contents`] took, or a copy of it.
pub fn put_contents(value: &Bytes, contents: &[(u8, Content)]) -> Result<Bytes, Damage> {
    let mut found = 0;
    let value = replace_contents(value, |part, _| {
        let (_, content) = contents.iter().find(|(number, _)| *number == part)?;
        found += 1;
        Some(content.clone())
    })?;
    if found == contents.len() { Ok(value) } else { Err(Damage::Undecodable) }
}

/// Replaces content in a value where the caller has other content for it.
fn replace_contents(
    value: &Bytes,
    mut other: impl FnMut(u8, Content) -> Option<Content>,
) -> Result<Bytes, Damage> {
    if value.first() != Some(&FORMAT) {
        return Err(Damage::Undecodable);
    }
    let mut at = 1;
    take_part(value, &mut at)?;
    let mut replaced = value[..at].to_vec();
    for number in 0..=u8::MAX {
        if at == value.len() {
            return Ok(replaced.into());
        }
        let part = value.slice(take_part(value, &mut at)?);
        let content = Content::decode(part.clone()).ok_or(Damage::Undecodable)?;
        let written = put_part(&mut replaced, |replaced| {
            match other(number, content) {
                Some(content) => content.encode(replaced),
                None => replaced.put_slice(&part),
            }
            Ok(())
        });
        written.map_err(|_| Damage::Undecodable)?;
    }
    Err(Damage::Undecodable)
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

    /// A queue as version 0.1.0 wrote it: a row of the data directory in `crates/lazuli/tests/fixtures`.
    const QUEUE: &[u8] = b"\x01\xa6\xa1\x9b\x8e\xaa\xa5\xd1\xef\x08\x02\x05color\x04blue\x04size\x0242\x00";

    /// The fields that it has.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Queue {
        space: u64,
        metadata: Vec<(String, String)>,
        policies: Vec<()>,
    }

    /// A later record with one field more.
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

    #[test]
    fn a_record_of_the_format_before_is_read_and_one_that_is_neither_is_not() -> Result<(), Refusal> {
        let old: LimitedQueue = decode_versioned(QUEUE)?;
        assert_eq!(old.limit, None);
        assert_eq!(
            old.queue.metadata,
            [("color".to_owned(), "blue".to_owned()), ("size".into(), "42".into())]
        );
        let new = LimitedQueue { limit: Some(7), ..old };
        let value = encode_versioned(&new)?;
        assert_eq!(value[0], 2);
        assert_eq!(decode_versioned(&value), Ok(new));
        assert_eq!(
            decode::<Queue>(&value),
            Err(Damage::Format(2)),
            "an older program says that it does not know it"
        );
        for format in [0, 3, 255] {
            let other = [&[format], &value[1..]].concat();
            assert_eq!(decode_versioned::<LimitedQueue>(&other), Err(Damage::Format(format)));
        }
        // What is a format 1 by its first byte has no field more.
        let mixed = [&[1], &value[1..]].concat();
        assert_eq!(decode_versioned::<LimitedQueue>(&mixed), Err(Damage::Undecodable));
        Ok(())
    }

    #[test]
    fn a_record_with_content_is_read_in_the_format_before() -> Result<(), Refusal> {
        let content = Content::inline(Bytes::from_static(b"bytes"));
        let queue: Queue = decode(QUEUE)?;
        let old = encode_with(&queue, &[&content])?;
        let (head, [read]) = decode_versioned_with::<LimitedQueue, 1>(&old)?;
        assert_eq!((&head.queue, head.limit, &read), (&queue, None, &content));
        let new = encode_versioned_with(&head, &[&content])?;
        assert_eq!(decode_versioned_with::<LimitedQueue, 1>(&new), Ok((head, [content])));
        assert_eq!(decode_with::<Queue, 1>(&new), Err(Damage::Format(2)));
        Ok(())
    }
}
