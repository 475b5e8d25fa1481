//! A JSON value with its fields in their original order.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::syntax::PathStep;

/// A JSON value. The parser of `serde_json` bounds its depth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonValue<'a> {
    Null,
    Boolean(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    Array(Vec<JsonValue<'a>>),
    Object(Vec<(Cow<'a, str>, JsonValue<'a>)>),
}

impl<'a> JsonValue<'a> {
    /// Parses all of `text` as one value. The error names the problem and its position.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the value one step further.
    pub(crate) fn step(&self, step: &PathStep) -> Option<&JsonValue<'a>> {
        match (self, step) {
            (Self::Array(items), PathStep::Index(index)) => items.get(*index),
            (Self::Object(fields), PathStep::Field { name, .. }) => {
                let exactly = fields.iter().find(|(field, _)| field == name);
                let found = exactly.or_else(|| fields.iter().find(|(field, _)| step.is_to(field)));
                found.map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// Returns the cost of one step.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Object(fields) => fields.len(),
            _ => 0,
        }
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// The name of a field, borrowed unless it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Cow<'de, str>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(NameVisitor).map(Self)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = JsonValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E>(self, boolean: bool) -> Result<Self::Value, E> {
        Ok(JsonValue::Boolean(boolean))
    }

    fn visit_i64<E>(self, int: i64) -> Result<Self::Value, E> {
        Ok(JsonValue::Int(int))
    }

    fn visit_u64<E>(self, int: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(int).map_or(JsonValue::Float(int as f64), JsonValue::Int))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Self::Value, E> {
        Ok(JsonValue::Float(float))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(JsonValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(JsonValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = vec![];
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(JsonValue::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![];
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(JsonValue::Object(fields))
    }
}

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Boolean(boolean) => serializer.serialize_bool(*boolean),
            Self::Int(int) => serializer.serialize_i64(*int),
            Self::Float(float) => serializer.serialize_f64(*float),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_order_and_values_are_preserved() {
        for text in [
            r#"{"b":1,"a":[true,null,"x\ny",{"":-2.5}],"b2":9223372036854775807}"#,
            "[]",
            "{}",
            r#""text""#,
            "1.0",
        ] {
            assert_eq!(JsonValue::parse(text).unwrap().to_json(), text);
        }
    }

    #[test]
    fn invalid_or_too_deep_json_is_refused() {
        for text in ["", "{name: 1}", "{\"a\":1,}", "[1 2]", "01", "1 2", "nan"] {
            assert!(JsonValue::parse(text).is_err(), "{text}");
        }
        assert!(JsonValue::parse(&"[".repeat(100_000)).is_err());
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(JsonValue::parse(&deep).is_err());
    }
}
