//! Entities: their own properties, as a row holds them.
//!
//! The keys are the row's name and the Timestamp is the stamp of the commit that wrote it, so neither is stored again.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use lazuli_generations::{Damage, record};
use lazuli_protocol::{ErrorCode, Refusal};
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::keys::Keys;
use crate::value::Value;

/// Properties beside PartitionKey, RowKey and Timestamp.
const MAX_PROPERTIES: usize = 252;
/// The size of an entity as the data model counts it.
const MAX_ENTITY_BYTES: usize = 1 << 20;
/// The longest name of a property.
const MAX_NAME_CHARS: usize = 255;

/// A property's name and value.
pub(crate) type Property<'a> = (Cow<'a, str>, Value<'a>);

/// The own properties of an entity, in the order in which they came. No name is there twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entity<'a> {
    pub(crate) properties: Vec<Property<'a>>,
}

impl<'a> Entity<'a> {
    /// What a row holds.
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, Damage> {
        let properties: Vec<Borrowed<'a>> = record::decode(value)?;
        Ok(Self { properties: properties.into_iter().map(|Borrowed(name, value)| (name, value)).collect() })
    }

    /// Shows what a row holds, property by property.
    pub(crate) fn visit(value: &'a [u8], visitor: impl FnMut(Cow<'a, str>, Value<'a>)) -> Result<(), Damage> {
        record::decode_seed(Each(visitor), value)
    }

    /// The value of its row.
    pub(crate) fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(&self.properties)
    }

    /// The value of a property.
    pub(crate) fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.properties.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// Takes over the properties of another, in place of its own where both have one.
    pub(crate) fn merge(&mut self, other: &Entity<'a>) {
        for (name, value) in &other.properties {
            match self.properties.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = value.clone(),
                None => self.properties.push((name.clone(), value.clone())),
            }
        }
    }

    /// Refuses an entity that is too large as a whole.
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

/// A property as it is decoded. Only a field can be told to borrow, so a pair of its own.
#[derive(Deserialize)]
struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>, #[serde(borrow)] Value<'a>);

/// Takes properties one by one.
struct Each<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, Value<'de>)> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Cow<'de, str>, Value<'de>)> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("properties")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut properties: A) -> Result<(), A::Error> {
        while let Some(Borrowed(name, value)) = properties.next_element()? {
            self.0(name, value);
        }
        Ok(())
    }
}

/// Refuses what cannot be the name of a property: those are identifiers as C# has them.
pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.chars().take(MAX_NAME_CHARS + 1).count() > MAX_NAME_CHARS {
        return Err(ErrorCode::PropertyNameTooLong.into());
    }
    let mut chars = name.chars();
    let starts_well = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_');
    if starts_well && chars.all(|c| c.is_alphanumeric() || c == '_') {
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
    fn an_entity_is_read_back_as_it_was_written_and_a_damaged_one_is_not() -> Result<(), Refusal> {
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
    fn merging_replaces_what_both_have_and_keeps_the_rest() {
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
    fn an_entity_has_at_most_252_properties_and_one_mebibyte() {
        let with = |count: usize, size: usize| {
            let value = Value::Binary(vec![0; size].into());
            Entity { properties: (0..count).map(|i| (format!("P{i:03}").into(), value.clone())).collect() }
                .check(&Keys::default())
                .map_err(|refusal| refusal.code())
        };
        assert_eq!(with(252, 1), Ok(()));
        assert_eq!(with(253, 1), Err(ErrorCode::TooManyProperties));
        // Each of these counts 8 + 2 × 4 + 4 + 65,516 = 64 KiB, and the entity another four bytes.
        assert_eq!(with(15, 65_516), Ok(()));
        assert_eq!(with(16, 65_516), Err(ErrorCode::EntityTooLarge));
    }
}
