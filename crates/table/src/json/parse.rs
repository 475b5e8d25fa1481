//! Parses an entity, or the name of a table, from the body of a request.
//!
//! A property has the type of its annotation `Name@odata.type`, which may precede or follow it. Without an
//! annotation, the type follows from the JSON value: a number without point or exponent is an Int32 if it
//! fits, other numbers are Doubles. A null counts as a missing property. The service's own annotations (such
//! as `odata.etag`) and the Timestamp may be sent and are ignored.

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

/// An object must have fewer members than this, annotations included. No valid entity has that many.
const MAX_MEMBERS: usize = 2048;
const ANNOTATION: &str = "@odata.type";
const TIMESTAMP: &str = "Timestamp";
/// The earliest value of a DateTime: 1601-01-01.
pub(crate) const FIRST_DATE_TIME: Timestamp = Timestamp::from_filetime(0);
/// Number of decimals of a second in a DateTime.
const TICK_DIGITS: usize = 7;

/// An entity as the body of a write holds it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EntityBody<'a> {
    pub(crate) partition: Option<Value<'a>>,
    pub(crate) row: Option<Value<'a>>,
    pub(crate) entity: Entity<'a>,
}

/// Parses an entity.
pub(crate) fn entity(body: &[u8]) -> Result<EntityBody<'_>, Refusal> {
    let Members(members) = object(body)?;
    let mut types = HashMap::new();
    for (Text(name), raw) in &members {
        let Some(name) = name.strip_suffix(ANNOTATION) else { continue };
        let RawValue::String(edm) = raw else {
            return Err(invalid("An annotation of a type is not a string."));
        };
        let edm = EdmType::from_name(edm).ok_or_else(|| invalid(format!("There is no type {edm:?}.")))?;
        types.insert(name, edm);
    }
    let typed: Vec<_> = members.iter().map(|(Text(name), _)| types.get(name.as_ref()).copied()).collect();
    let mut sent = EntityBody::default();
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

/// Parses the name of a table to create.
pub(crate) fn table_name(body: &[u8]) -> Result<String, Refusal> {
    let Members(members) = object(body)?;
    match members.into_iter().find(|(Text(name), _)| name == "TableName") {
        Some((_, RawValue::String(name))) => Ok(name.into_owned()),
        Some((_, RawValue::Null)) | None => Err(ErrorCode::PropertiesNeedValue.into()),
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

fn value(raw: RawValue<'_>, edm: Option<EdmType>) -> Result<Option<Value<'_>>, Refusal> {
    let edm = match (edm, &raw) {
        (_, RawValue::Null) => return Ok(None),
        (Some(edm), _) => edm,
        (None, RawValue::Boolean(_)) => EdmType::Boolean,
        (None, RawValue::Integer(number)) if i32::try_from(*number).is_ok() => EdmType::Int32,
        (None, RawValue::Integer(_) | RawValue::Float(_)) => EdmType::Double,
        (None, RawValue::String(_) | RawValue::Nested) => EdmType::String,
    };
    let value = match (edm, raw) {
        (EdmType::String, RawValue::String(text)) => Some(Value::String(text)),
        (EdmType::Boolean, RawValue::Boolean(is)) => Some(Value::Boolean(is)),
        (EdmType::Boolean, RawValue::String(text)) => {
            text.to_ascii_lowercase().parse().ok().map(Value::Boolean)
        }
        (EdmType::Int32, RawValue::Integer(number)) => i32::try_from(number).ok().map(Value::Int32),
        (EdmType::Int32, RawValue::String(text)) => text.parse().ok().map(Value::Int32),
        (EdmType::Int64, RawValue::Integer(number)) => i64::try_from(number).ok().map(Value::Int64),
        (EdmType::Int64, RawValue::String(text)) => text.parse().ok().map(Value::Int64),
        (EdmType::Double, RawValue::Integer(number)) => Some(Value::Double(number as f64)),
        (EdmType::Double, RawValue::Float(number)) => Some(Value::Double(number)),
        (EdmType::Double, RawValue::String(text)) => double(&text).map(Value::Double),
        (EdmType::DateTime, RawValue::String(text))
            if moment(&text).is_some_and(|moment| moment < FIRST_DATE_TIME) =>
        {
            return Err(ErrorCode::OutOfRangeInput.into());
        }
        (EdmType::DateTime, RawValue::String(text)) => date_time(&text).map(Value::DateTime),
        (EdmType::Guid, RawValue::String(text)) => guid(&text).map(Value::Guid),
        (EdmType::Binary, RawValue::String(text)) => {
            BASE64.decode(text.as_ref()).ok().map(|bytes| Value::Binary(bytes.into()))
        }
        _ => None,
    };
    value.map(Some).ok_or_else(|| invalid(format!("A value is not of type {}.", edm.name())))
}

/// Parses a Double from text. JSON uses texts for NaN and infinities, filters for all Doubles.
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

/// Parses a DateTime and returns its ticks. Without an offset it is in UTC.
pub(crate) fn date_time(text: &str) -> Option<u64> {
    moment(text).filter(|moment| *moment >= FIRST_DATE_TIME).map(Timestamp::ticks)
}

/// Parses a moment, which may be outside the range of a DateTime. Fractions of a tick are dropped.
pub(crate) fn moment(text: &str) -> Option<Timestamp> {
    let is_digit = |c: char| c.is_ascii_digit();
    let ticks = text.split_once('.').and_then(|(whole, rest)| {
        let end = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        (end > TICK_DIGITS).then(|| format!("{whole}.{}{}", &rest[..TICK_DIGITS], &rest[end..]))
    });
    let text = ticks.as_deref().unwrap_or(text);
    date::parse_iso8601(text).or_else(|| date::parse_iso8601(&format!("{text}Z")))
}

/// Parses a Guid and returns its bytes.
pub(crate) fn guid(text: &str) -> Option<[u8; 16]> {
    uuid::Uuid::try_parse(text).ok().map(uuid::Uuid::into_bytes)
}

/// Returns the refusal of invalid input.
pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(ErrorCode::InvalidInput).message(why)
}

/// A member's value, before its type is known.
enum RawValue<'a> {
    Null,
    Boolean(bool),
    Integer(i128),
    Float(f64),
    String(Cow<'a, str>),
    /// An array or an object, which no property can hold.
    Nested,
}

/// The members of an object in order, including duplicates.
struct Members<'a>(Vec<(Text<'a>, RawValue<'a>)>);

/// A string, borrowed from the body unless it contains escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
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
        deserializer.deserialize_str(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::with_capacity(32);
                while let Some(member) = map.next_entry()? {
                    // The caller refuses an object with this many members, so the rest need not be kept.
                    if members.len() < MAX_MEMBERS {
                        members.push(member);
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'de> Deserialize<'de> for RawValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;

        impl<'de> Visitor<'de> for RawVisitor {
            type Value = RawValue<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<RawValue<'de>, E> {
                Ok(RawValue::Null)
            }

            fn visit_bool<E>(self, is: bool) -> Result<RawValue<'de>, E> {
                Ok(RawValue::Boolean(is))
            }

            fn visit_i64<E>(self, number: i64) -> Result<RawValue<'de>, E> {
                Ok(RawValue::Integer(number.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<RawValue<'de>, E> {
                Ok(RawValue::Integer(number.into()))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<RawValue<'de>, E> {
                if number.is_finite() {
                    Ok(RawValue::Float(number))
                } else {
                    Err(E::custom("a number is out of range"))
                }
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<RawValue<'de>, E> {
                Ok(RawValue::String(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<RawValue<'de>, E> {
                Ok(RawValue::String(Cow::Owned(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawValue<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(RawValue::Nested)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawValue<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(RawValue::Nested)
            }
        }
        deserializer.deserialize_any(RawVisitor).map_err(D::Error::custom)
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
    fn value_has_the_type_of_its_annotation_or_of_its_json_value() {
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
    fn nulls_and_annotations_of_the_service_are_ignored() {
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
    fn invalid_entities_are_refused() {
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
    fn table_name_is_a_string() {
        assert_eq!(table_name(br#"{"TableName":"abc"}"#), Ok("abc".into()));
        let code = |body: &[u8]| table_name(body).unwrap_err().code();
        assert_eq!(code(b"{}"), ErrorCode::PropertiesNeedValue);
        assert_eq!(code(br#"{"TableName":5}"#), ErrorCode::InvalidInput);
    }
}
