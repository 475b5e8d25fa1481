//! Reads an entity, or the name of a table, from the body of a request.
//!
//! A property's type is that of its annotation, `Name@odata.type`, which may come before it or after; without one it is
//! the type that the JSON value shows: a number without point or exponent is an Int32 if it fits, another number a Double.
//! A null is as good as nothing. What the service says of an entity (`odata.etag` and the like) and its Timestamp may be
//! sent back and are not looked at.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{ErrorCode, Refusal, date};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::entity::{Entity, check_name};
use crate::value::{EdmType, Value};

/// Members of an object, annotations included: far more than an entity can have.
const MAX_MEMBERS: usize = 2048;
const ANNOTATION: &str = "@odata.type";
const TIMESTAMP: &str = "Timestamp";
/// The first moment that a DateTime can hold: 1601-01-01.
pub(crate) const FIRST_DATE_TIME: Timestamp = Timestamp::from_filetime(0);
/// Decimals of a second that it can tell.
const TICK_DIGITS: usize = 7;

/// The body of a write.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sent<'a> {
    pub(crate) partition: Option<Value<'a>>,
    pub(crate) row: Option<Value<'a>>,
    pub(crate) entity: Entity<'a>,
}

/// Reads an entity.
pub(crate) fn entity(body: &[u8]) -> Result<Sent<'_>, Refusal> {
    let Members(members) = object(body)?;
    let mut types = HashMap::new();
    for (Text(name), raw) in &members {
        let Some(name) = name.strip_suffix(ANNOTATION) else { continue };
        let Raw::String(edm) = raw else { return Err(invalid("An annotation of a type is not a string.")) };
        let edm = EdmType::of_name(edm).ok_or_else(|| invalid(format!("There is no type {edm:?}.")))?;
        types.insert(name, edm);
    }
    let typed: Vec<_> = members.iter().map(|(Text(name), _)| types.get(name.as_ref()).copied()).collect();
    let mut sent = Sent::default();
    for ((Text(name), raw), edm) in members.into_iter().zip(typed) {
        if name.contains('@') || name.starts_with("odata.") || name == TIMESTAMP {
            continue;
        }
        let value = value(raw, edm)?;
        match name.as_ref() {
            "PartitionKey" => sent.partition = value,
            "RowKey" => sent.row = value,
            _ => {
                check_name(&name)?;
                let Some(value) = value else { continue };
                value.check()?;
                sent.entity.properties.push((name, value));
            }
        }
    }
    Ok(sent)
}

/// Reads the name of a table that is to be created.
pub(crate) fn table_name(body: &[u8]) -> Result<String, Refusal> {
    let Members(members) = object(body)?;
    match members.into_iter().find(|(Text(name), _)| name == "TableName") {
        Some((_, Raw::String(name))) => Ok(name.into_owned()),
        Some((_, Raw::Null)) | None => Err(ErrorCode::PropertiesNeedValue.into()),
        Some(_) => Err(invalid("The name of a table is a string.")),
    }
}

fn object(body: &[u8]) -> Result<Members<'_>, Refusal> {
    let members: Members<'_> = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("The body is not a JSON object: {error}.")))?;
    let mut names = HashSet::with_capacity(members.0.len());
    if members.0.len() >= MAX_MEMBERS {
        Err(ErrorCode::TooManyProperties.into())
    } else if members.0.iter().all(|(Text(name), _)| names.insert(name.as_ref())) {
        Ok(members)
    } else {
        Err(ErrorCode::DuplicatePropertiesSpecified.into())
    }
}

fn value(raw: Raw<'_>, edm: Option<EdmType>) -> Result<Option<Value<'_>>, Refusal> {
    let edm = match (edm, &raw) {
        (_, Raw::Null) => return Ok(None),
        (Some(edm), _) => edm,
        (None, Raw::Boolean(_)) => EdmType::Boolean,
        (None, Raw::Integer(number)) if i32::try_from(*number).is_ok() => EdmType::Int32,
        (None, Raw::Integer(_) | Raw::Float(_)) => EdmType::Double,
        (None, Raw::String(_) | Raw::Nested) => EdmType::String,
    };
    let value = match (edm, raw) {
        (EdmType::String, Raw::String(text)) => Some(Value::String(text)),
        (EdmType::Boolean, Raw::Boolean(is)) => Some(Value::Boolean(is)),
        (EdmType::Boolean, Raw::String(text)) => text.to_ascii_lowercase().parse().ok().map(Value::Boolean),
        (EdmType::Int32, Raw::Integer(number)) => i32::try_from(number).ok().map(Value::Int32),
        (EdmType::Int32, Raw::String(text)) => text.parse().ok().map(Value::Int32),
        (EdmType::Int64, Raw::Integer(number)) => i64::try_from(number).ok().map(Value::Int64),
        (EdmType::Int64, Raw::String(text)) => text.parse().ok().map(Value::Int64),
        (EdmType::Double, Raw::Integer(number)) => Some(Value::Double(number as f64)),
        (EdmType::Double, Raw::Float(number)) => Some(Value::Double(number)),
        (EdmType::Double, Raw::String(text)) => double(&text).map(Value::Double),
        (EdmType::DateTime, Raw::String(text)) if moment(&text).is_some_and(|it| it < FIRST_DATE_TIME) => {
            return Err(ErrorCode::OutOfRangeInput.into());
        }
        (EdmType::DateTime, Raw::String(text)) => date_time(&text).map(Value::DateTime),
        (EdmType::Guid, Raw::String(text)) => guid(&text).map(Value::Guid),
        (EdmType::Binary, Raw::String(text)) => {
            BASE64.decode(text.as_ref()).ok().map(|bytes| Value::Binary(bytes.into()))
        }
        _ => None,
    };
    value.map(Some).ok_or_else(|| invalid(format!("A value is not of type {}.", edm.name())))
}

/// A Double as text: in JSON those that are no number, in queries any.
pub(crate) fn double(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" | "INF" => Some(f64::INFINITY),
        "-Infinity" | "-INF" => Some(f64::NEG_INFINITY),
        _ => {
            let is_number = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
            text.parse().ok().filter(|number: &f64| is_number && number.is_finite())
        }
    }
}

/// The ticks of a DateTime; one without an offset is UTC.
pub(crate) fn date_time(text: &str) -> Option<u64> {
    moment(text).filter(|moment| *moment >= FIRST_DATE_TIME).map(Timestamp::ticks)
}

/// A moment, which need not be one that a DateTime can hold. What is smaller than a tick is left out.
pub(crate) fn moment(text: &str) -> Option<Timestamp> {
    let is_digit = |c: char| c.is_ascii_digit();
    let ticks = text.split_once('.').and_then(|(whole, rest)| {
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        (end > TICK_DIGITS).then(|| format!("{whole}.{}{}", &rest[..TICK_DIGITS], &rest[end..]))
    });
    let text = ticks.as_deref().unwrap_or(text);
    date::parse_iso8601(text).or_else(|| date::parse_iso8601(&format!("{text}Z")))
}

/// The bytes of a Guid.
pub(crate) fn guid(text: &str) -> Option<[u8; 16]> {
    uuid::Uuid::try_parse(text).ok().map(uuid::Uuid::into_bytes)
}

/// What cannot be read.
pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(ErrorCode::InvalidInput).message(why)
}

/// A member's value, before its type is known.
enum Raw<'a> {
    Null,
    Boolean(bool),
    Integer(i128),
    Float(f64),
    String(Cow<'a, str>),
    /// An array or an object: nothing that a property can hold.
    Nested,
}

/// The members of an object in their order, repeats included.
struct Members<'a>(Vec<(Text<'a>, Raw<'a>)>);

/// A string, lent from the body unless something in it is escaped.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lent;

        impl<'de> Visitor<'de> for Lent {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Lent)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::with_capacity(32);
                while let Some(member) = map.next_entry()? {
                    // Whoever sees so many refuses them all.
                    if members.len() < MAX_MEMBERS {
                        members.push(member);
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Raw<'de>, E> {
                Ok(Raw::Null)
            }

            fn visit_bool<E>(self, is: bool) -> Result<Raw<'de>, E> {
                Ok(Raw::Boolean(is))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Raw<'de>, E> {
                Ok(Raw::Integer(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Raw<'de>, E> {
                Ok(Raw::Integer(number.into()))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Raw<'de>, E> {
                if number.is_finite() {
                    Ok(Raw::Float(number))
                } else {
                    Err(E::custom("a number is out of range"))
                }
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Raw<'de>, E> {
                Ok(Raw::String(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw<'de>, E> {
                Ok(Raw::String(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Raw::Nested)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Raw::Nested)
            }
        }
        deserializer.deserialize_any(Any).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(body: &str) -> Result<Option<Value<'_>>, ErrorCode> {
        let sent = entity(body.as_bytes()).map_err(|refusal| refusal.code())?;
        Ok(sent.entity.properties.into_iter().next().map(|(_, value)| value))
    }

    #[test]
    fn a_value_has_the_type_of_its_annotation_or_else_the_one_it_shows() {
        let text = |text: &'static str| Value::String(text.into());
        for (json, expected) in [
            (r#"{"P":"x"}"#, text("x")),
            (r#"{"P":""}"#, text("")),
            (r#"{"P":true}"#, Value::Boolean(true)),
            (r#"{"P":"False","P@odata.type":"Edm.Boolean"}"#, Value::Boolean(false)),
            (r#"{"P":5}"#, Value::Int32(5)),
            (r#"{"P":-2147483648}"#, Value::Int32(i32::MIN)),
            (r#"{"P":2147483648}"#, Value::Double(2_147_483_648.0)),
            (r#"{"P":5.0}"#, Value::Double(5.0)),
            (r#"{"P":1e3}"#, Value::Double(1000.0)),
            (r#"{"P":4.35,"P@odata.type":"Edm.Double"}"#, Value::Double(4.35)),
            (r#"{"P@odata.type":"Edm.Int64","P":"9223372036854775807"}"#, Value::Int64(i64::MAX)),
            (r#"{"P":"-5","P@odata.type":"Edm.Int64"}"#, Value::Int64(-5)),
            (r#"{"P":5,"P@odata.type":"Edm.Int64"}"#, Value::Int64(5)),
            (r#"{"P":5,"P@odata.type":"Edm.Double"}"#, Value::Double(5.0)),
            (r#"{"P":"Infinity","P@odata.type":"Edm.Double"}"#, Value::Double(f64::INFINITY)),
            (r#"{"P":"-Infinity","P@odata.type":"Edm.Double"}"#, Value::Double(f64::NEG_INFINITY)),
            (r#"{"P":"1601-01-01T00:00:00Z","P@odata.type":"Edm.DateTime"}"#, {
                Value::DateTime(FIRST_DATE_TIME.ticks())
            }),
            (r#"{"P":"1601-01-01T00:00:00.0000001Z","P@odata.type":"Edm.DateTime"}"#, {
                Value::DateTime(FIRST_DATE_TIME.ticks() + 1)
            }),
            (r#"{"P":"1601-01-01T00:00:00.000000199Z","P@odata.type":"Edm.DateTime"}"#, {
                Value::DateTime(FIRST_DATE_TIME.ticks() + 1)
            }),
            (r#"{"P":"1601-01-01T02:00:00+02:00","P@odata.type":"Edm.DateTime"}"#, {
                Value::DateTime(FIRST_DATE_TIME.ticks())
            }),
            (r#"{"P":"01020304-0506-0708-090a-0b0c0d0e0f10","P@odata.type":"Edm.Guid"}"#, {
                Value::Guid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])
            }),
            (r#"{"P":"AP8=","P@odata.type":"Edm.Binary"}"#, Value::Binary(vec![0, 255].into())),
            (r#"{"P":"x","P@odata.type":"Edm.String"}"#, text("x")),
        ] {
            assert_eq!(only(json), Ok(Some(expected)), "{json}");
        }
        let nan = only(r#"{"P":"NaN","P@odata.type":"Edm.Double"}"#);
        assert!(matches!(nan, Ok(Some(Value::Double(number))) if number.is_nan()));
    }

    #[test]
    fn nulls_and_what_the_service_says_of_an_entity_are_left_out() {
        for json in [
            r#"{"P":null}"#,
            r#"{"P":null,"P@odata.type":"Edm.Guid"}"#,
            r#"{"Timestamp":"2013-08-22T01:12:06.2608595Z","Timestamp@odata.type":"Edm.DateTime"}"#,
            r#"{"odata.etag":"W/\"x\"","odata.type":"a.b","odata.id":"u","odata.editLink":"e"}"#,
        ] {
            assert_eq!(only(json), Ok(None), "{json}");
        }
    }

    #[test]
    fn what_is_no_entity_is_refused() {
        use ErrorCode::{
            DuplicatePropertiesSpecified, InvalidInput, OutOfRangeInput, PropertyNameInvalid,
            PropertyValueTooLarge,
        };
        let long = format!(r#"{{"P":"{}"}}"#, "x".repeat((32 << 10) + 1));
        for (json, code) in [
            ("", InvalidInput),
            ("[]", InvalidInput),
            ("{", InvalidInput),
            ("{}x", InvalidInput),
            (r#"{"P":1e400}"#, InvalidInput),
            (r#"{"P":[1]}"#, InvalidInput),
            (r#"{"P":{}}"#, InvalidInput),
            (r#"{"P":"x","P@odata.type":"Edm.Int32"}"#, InvalidInput),
            (r#"{"P":"9223372036854775808","P@odata.type":"Edm.Int64"}"#, InvalidInput),
            (r#"{"P":"1600-12-31T23:59:59Z","P@odata.type":"Edm.DateTime"}"#, OutOfRangeInput),
            (r#"{"P":"0001-01-01T00:00:00Z","P@odata.type":"Edm.DateTime"}"#, OutOfRangeInput),
            (r#"{"P":"2024-05-01T10:11:12.Z","P@odata.type":"Edm.DateTime"}"#, InvalidInput),
            (r#"{"P":"x","P@odata.type":"Edm.Guid"}"#, InvalidInput),
            (r#"{"P":"x!","P@odata.type":"Edm.Binary"}"#, InvalidInput),
            (r#"{"P":5,"P@odata.type":"Edm.Stream"}"#, InvalidInput),
            (r#"{"P":1,"P":2}"#, DuplicatePropertiesSpecified),
            (r#"{"a-b":1}"#, PropertyNameInvalid),
            (&long, PropertyValueTooLarge),
        ] {
            assert_eq!(only(json), Err(code), "{}", &json[..json.len().min(80)]);
        }
    }

    #[test]
    fn a_table_is_named_by_a_string() {
        assert_eq!(table_name(br#"{"TableName":"abc"}"#), Ok("abc".into()));
        let code = |body: &[u8]| table_name(body).unwrap_err().code();
        assert_eq!(code(b"{}"), ErrorCode::PropertiesNeedValue);
        assert_eq!(code(br#"{"TableName":5}"#), ErrorCode::InvalidInput);
    }
}
