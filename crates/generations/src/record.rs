//! How the value of a row is framed: a byte that names its format, then the fields in order (postcard), so a new field is
//! a new format.

use bytes::{BufMut, Bytes, BytesMut};
use lazuli_protocol::{ErrorCode, Refusal};
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
    let mut value = BytesMut::new().writer();
    value.get_mut().put_u8(FORMAT);
    postcard::to_io(record, &mut value).map_err(|error| {
        tracing::error!(%error, "a record cannot be encoded");
        Refusal::new(ErrorCode::InternalError)
    })?;
    Ok(value.into_inner().freeze())
}

/// What a row holds, all of its value.
pub fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Damage> {
    match value {
        [FORMAT, fields @ ..] => match postcard::take_from_bytes(fields) {
            Ok((record, [])) => Ok(record),
            _ => Err(Damage::Undecodable),
        },
        [format, ..] => Err(Damage::Format(*format)),
        [] => Err(Damage::Undecodable),
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
