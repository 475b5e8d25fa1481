//! A record of JSON, its fields in the order in which they came.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::syntax::Step;

/// A value of JSON. How deep it can be is bounded by the parser of `serde_json`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree<'a> {
    Null,
    Boolean(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    Array(Vec<Tree<'a>>),
    Object(Vec<(Cow<'a, str>, Tree<'a>)>),
}

impl<'a> Tree<'a> {
    /// Reads one value, all of the text. The error says what is wrong and where.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// What lies one step further.
    pub(crate) fn step(&self, step: &Step) -> Option<&Tree<'a>> {
        match (self, step) {
            (Self::Array(items), Step::Index(index)) => items.get(*index),
            (Self::Object(fields), Step::Field { name, .. }) => {
                let exactly = fields.iter().find(|(field, _)| field == name);
                let found = exactly.or_else(|| fields.iter().find(|(field, _)| step.is_to(field)));
                found.map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// How much there is to look at for a step.
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

impl<'de: 'a, 'a> Deserialize<'de> for Tree<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

/// A name of a field, without a copy where it has no escapes.
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

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, boolean: bool) -> Result<Self::Value, E> {
        Ok(Tree::Boolean(boolean))
    }

    fn visit_i64<E>(self, int: i64) -> Result<Self::Value, E> {
        Ok(Tree::Int(int))
    }

    fn visit_u64<E>(self, int: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(int).map_or(Tree::Float(int as f64), Tree::Int))
    }

    fn visit_f64<E>(self, float: f64) -> Result<Self::Value, E> {
        Ok(Tree::Float(float))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Tree::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = vec![];
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![];
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Tree::Object(fields))
    }
}

impl Serialize for Tree<'_> {
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
    fn order_and_values_survive() {
        for text in [
            r#"{"b":1,"a":[true,null,"x\ny",{"":-2.5}],"b2":9223372036854775807}"#,
            "[]",
            "{}",
            r#""text""#,
            "1.0",
        ] {
            assert_eq!(Tree::parse(text).unwrap().to_json(), text);
        }
    }

    #[test]
    fn what_is_not_json_or_is_too_deep_is_refused() {
        for text in ["", "{name: 1}", "{\"a\":1,}", "[1 2]", "01", "1 2", "nan"] {
            assert!(Tree::parse(text).is_err(), "{text}");
        }
        assert!(Tree::parse(&"[".repeat(100_000)).is_err());
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(Tree::parse(&deep).is_err());
    }
}
