//! Entities: the properties that a row holds.
//!
//! PartitionKey and RowKey are in the row's key, and the Timestamp is the stamp of the commit that wrote the
//! row, so the value holds none of them.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{Damage, record};
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::keys::Keys;
use crate::value::Value;

/// Maximum number of properties, not counting PartitionKey, RowKey and Timestamp.
const MAX_PROPERTIES: usize = 252;
/// Maximum size of an entity in bytes, as the data model counts them.
const MAX_ENTITY_BYTES: usize = 1 << 20;
/// Maximum length of a property's name.
const MAX_NAME_CHARS: usize = 255;

/// A property's name and value.
pub(crate) type Property<'a> = (Cow<'a, str>, Value<'a>);

/// The properties of an entity, without its keys and Timestamp, in the order in which they were sent. Names
/// are unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entity<'a> {
    pub(crate) properties: Vec<Property<'a>>,
}

impl<'a> Entity<'a> {
    /// Decodes the value of a row.
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, Damage> {
        let properties: Vec<StoredProperty<'a>> = record::decode(value)?;
        Ok(Self {
            properties: properties.into_iter().map(|StoredProperty(name, value)| (name, value)).collect(),
        })
    }

    /// Decodes the value of a row and passes each property to the visitor.
    pub(crate) fn visit(value: &'a [u8], visitor: impl FnMut(Cow<'a, str>, Value<'a>)) -> Result<(), Damage> {
        record::decode_seed(PropertyVisitor(visitor), value)
    }

    /// Returns the value of the entity's row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(&self.properties)
    }

    /// Returns the value of a property.
    pub(crate) fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.properties.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// Adds the properties of another entity. They replace those with the same names.
    pub(crate) fn merge(&mut self, other: &Entity<'a>) {
        for (name, value) in &other.properties {
            match self.properties.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = value.clone(),
                None => self.properties.push((name.clone(), value.clone())),
            }
        }
    }

    /// Refuses an entity that is too large or has too many properties.
    pub(crate) fn check(&self, keys: &Keys) -> Result<(), Refusal> {
        if self.properties.len() > MAX_PROPERTIES {
            return Err(ErrorCode::TooManyProperties.into());
        }
        let units = |text: &str| 2 * text.encode_utf16().count();
        let own = self.properties.iter().map(|(name, value)| 8 + units(name) + value.size());
        let size = 4 + units(&keys.partition) + units(&keys.row) + own.sum::<usize>();
        if size > MAX_ENTITY_BYTES { Err(ErrorCode::EntityTooLarge.into()) } else { Ok(()) }
    }
}

/// A property while it is decoded. A tuple struct, because serde can mark only fields as borrowed.
#[derive(Deserialize)]
struct StoredProperty<'a>(#[serde(borrow)] Cow<'a, str>, #[serde(borrow)] Value<'a>);

/// Passes decoded properties to a function, one by one.
struct PropertyVisitor<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, Value<'de>)> DeserializeSeed<'de> for PropertyVisitor<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Cow<'de, str>, Value<'de>)> Visitor<'de> for PropertyVisitor<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("properties")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut properties: A) -> Result<(), A::Error> {
        while let Some(StoredProperty(name, value)) = properties.next_element()? {
            self.0(name, value);
        }
        Ok(())
    }
}

/// Refuses an invalid property name. Valid names are C# identifiers.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.chars().take(MAX_NAME_CHARS + 1).count() > MAX_NAME_CHARS {
        return Err(ErrorCode::PropertyNameTooLong.into());
    }
    let mut chars = name.chars();
    let starts_as_identifier = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_');
    if starts_as_identifier && chars.all(|c| c.is_alphanumeric() || c == '_') {
        Ok(())
    } else {
        Err(Refusal::new(ErrorCode::PropertyNameInvalid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(properties: &[(&'static str, Value<'static>)]) -> Entity<'static> {
        let properties = properties.iter().map(|(name, value)| (Cow::Borrowed(*name), value.clone()));
        Entity { properties: properties.collect() }
    }

    #[test]
    fn entity_round_trips_and_damage_is_detected() -> Result<(), Refusal> {
        let entity = entity(&[
            ("S", Value::String("ä\0😀".into())),
            ("B", Value::Boolean(true)),
            ("I", Value::Int32(i32::MIN)),
            ("L", Value::Int64(i64::MAX)),
            ("D", Value::Double(f64::INFINITY)),
            ("T", Value::DateTime(u64::MAX)),
            ("G", Value::Guid([7; 16])),
            ("Y", Value::Binary(vec![0, 255].into())),
        ]);
        let value = entity.encode()?;
        let decoded = Entity::decode(&value);
        let mut visited = Entity::default();
        Entity::visit(&value, |name, value| visited.properties.push((name, value)))?;
        assert_eq!((decoded.as_ref(), &visited), (Ok(&entity), &entity));
        let is_borrowed = |property: &Property<'_>| match property {
            (Cow::Borrowed(_), Value::String(text)) => matches!(text, Cow::Borrowed(_)),
            (Cow::Borrowed(_), Value::Binary(bytes)) => matches!(bytes, Cow::Borrowed(_)),
            (name, _) => matches!(name, Cow::Borrowed(_)),
        };
        assert!(decoded.is_ok_and(|entity| entity.properties.iter().all(is_borrowed)), "nothing is copied");
        for length in 0..value.len() {
            assert!(Entity::decode(&value[..length]).is_err(), "{length}");
            assert!(Entity::visit(&value[..length], |_, _| ()).is_err(), "{length}");
        }
        let longer = [&value[..], b"x"].concat();
        assert!(Entity::decode(&longer).is_err() && Entity::visit(&longer, |_, _| ()).is_err());
        Ok(())
    }

    #[test]
    fn merging_replaces_common_properties_and_keeps_the_others() {
        let mut old = entity(&[("A", Value::Int32(1)), ("B", Value::Int32(2))]);
        old.merge(&entity(&[("B", Value::Boolean(true)), ("C", Value::Int32(3))]));
        let expected = [("A", Value::Int32(1)), ("B", Value::Boolean(true)), ("C", Value::Int32(3))];
        assert_eq!(old, entity(&expected));
    }

    #[test]
    fn names_are_identifiers_of_at_most_255_characters() {
        let code = |name: &str| check_name(name).map_err(|refusal| refusal.code());
        for name in ["a", "_", "Ünï_9", "日本", &"x".repeat(255)] {
            assert_eq!(code(name), Ok(()), "{name}");
        }
        for name in ["", "9a", "a-b", "a b", "a.b", "a@b", "<a>"] {
            assert_eq!(code(name), Err(ErrorCode::PropertyNameInvalid), "{name}");
        }
        assert_eq!(code(&"x".repeat(256)), Err(ErrorCode::PropertyNameTooLong));
    }

    #[test]
    fn entity_has_at_most_252_properties_and_one_mebibyte() {
        let with = |count: usize, size: usize| {
            let value = Value::Binary(vec![0; size].into());
            Entity { properties: (0..count).map(|i| (format!("P{i:03}").into(), value.clone())).collect() }
                .check(&Keys::default())
                .map_err(|refusal| refusal.code())
        };
        assert_eq!(with(252, 1), Ok(()));
        assert_eq!(with(253, 1), Err(ErrorCode::TooManyProperties));
        // Each property counts 8 + 2 × 4 + 4 + 65,516 bytes = 64 KiB, and the entity another 4 bytes.
        assert_eq!(with(15, 65_516), Ok(()));
        assert_eq!(with(16, 65_516), Err(ErrorCode::EntityTooLarge));
    }
}
