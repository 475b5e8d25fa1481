//! Values of expressions, and their conversion to other types.
//!
//! If two types meet, the one that comes later in `STRING, BOOLEAN, INT, FLOAT, TIMESTAMP` wins. The other
//! value is converted to it, or the record fails. Text that meets a number is converted to the kind of number
//! that it spells.

use std::borrow::Cow;
use std::cmp::Ordering;

use time::OffsetDateTime;

use crate::moment;
use crate::report::RecordFailure;
use crate::syntax::{Literal, Type};
use crate::tree::JsonValue;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// A field that a record does not have. Equivalent to `NULL` except for `IS MISSING`.
    Missing,
    Null,
    Boolean(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    Timestamp(OffsetDateTime),
    /// An array or an object.
    Json(&'a JsonValue<'a>),
}

/// An operand of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub(crate) fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

impl From<Number> for Value<'_> {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(int) => Self::Int(int),
            Number::Float(float) => Self::Float(float),
        }
    }
}

impl<'a> From<&'a Literal> for Value<'a> {
    fn from(literal: &'a Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Boolean(boolean) => Self::Boolean(*boolean),
            Literal::Int(int) => Self::Int(*int),
            Literal::Float(float) => Self::Float(*float),
            Literal::Text(text) => Self::Text(Cow::Borrowed(text)),
        }
    }
}

impl<'a> From<&'a JsonValue<'a>> for Value<'a> {
    fn from(tree: &'a JsonValue<'a>) -> Self {
        match tree {
            JsonValue::Null => Self::Null,
            JsonValue::Boolean(boolean) => Self::Boolean(*boolean),
            JsonValue::Int(int) => Self::Int(*int),
            JsonValue::Float(float) => Self::Float(*float),
            JsonValue::Text(text) => Self::Text(Cow::Borrowed(text)),
            JsonValue::Array(_) | JsonValue::Object(_) => Self::Json(tree),
        }
    }
}

impl<'a> Value<'a> {
    /// Returns whether the value is `NULL` or missing.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Missing | Self::Null)
    }

    /// Returns the cost of processing the value, in units of [`Fuel`](crate::fuel::Fuel).
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len() / 4,
            _ => 0,
        }
    }

    /// Converts the value to a boolean. `None` is neither true nor false.
    pub(crate) fn truth(&self) -> Result<Option<bool>, RecordFailure> {
        match self {
            Self::Missing | Self::Null => Ok(None),
            Self::Boolean(boolean) => Ok(Some(*boolean)),
            Self::Int(int) => Ok(Some(*int != 0)),
            Self::Float(float) => Ok(Some(*float != 0.0)),
            Self::Text(text) => parse_boolean(text).map(Some).ok_or(RecordFailure::InvalidTypeConversion),
            Self::Timestamp(_) | Self::Json(_) => Err(RecordFailure::InvalidTypeConversion),
        }
    }

    /// Converts the value to a number.
    pub(crate) fn number(&self) -> Result<Number, RecordFailure> {
        match self {
            Self::Boolean(boolean) => Ok(Number::Int((*boolean).into())),
            Self::Int(int) => Ok(Number::Int(*int)),
            Self::Float(float) => Ok(Number::Float(*float)),
            Self::Text(text) => {
                let text = text.trim();
                let int = text.parse().map(Number::Int).ok();
                int.or_else(|| parse_float(text).map(Number::Float))
                    .ok_or(RecordFailure::InvalidTypeConversion)
            }
            Self::Missing | Self::Null | Self::Timestamp(_) | Self::Json(_) => {
                Err(RecordFailure::InvalidTypeConversion)
            }
        }
    }

    /// Converts the value to a timestamp.
    pub(crate) fn timestamp(&self) -> Result<OffsetDateTime, RecordFailure> {
        match self {
            Self::Timestamp(timestamp) => Ok(*timestamp),
            Self::Text(text) => moment::parse(text).ok_or(RecordFailure::InvalidTypeConversion),
            _ => Err(RecordFailure::InvalidTypeConversion),
        }
    }

    /// Converts the value to text. Returns `None` if it is absent.
    pub(crate) fn into_text(self) -> Option<Cow<'a, str>> {
        Some(match self {
            Self::Missing | Self::Null => return None,
            Self::Boolean(boolean) => Cow::Borrowed(if boolean { "true" } else { "false" }),
            Self::Int(int) => Cow::Owned(int.to_string()),
            Self::Float(float) => Cow::Owned(float_text(float)),
            Self::Text(text) => text,
            Self::Timestamp(timestamp) => Cow::Owned(moment::to_text(timestamp)),
            Self::Json(tree) => Cow::Owned(tree.to_json()),
        })
    }

    /// Converts the value as `CAST` does.
    pub(crate) fn cast(self, to: Type) -> Result<Self, RecordFailure> {
        if self.is_absent() {
            return Ok(Self::Null);
        }
        match to {
            Type::String => Ok(self.into_text().map_or(Self::Null, Self::Text)),
            Type::Timestamp => self.timestamp().map(Self::Timestamp),
            Type::Boolean => Ok(self.truth()?.map_or(Self::Null, Self::Boolean)),
            Type::Float => Ok(Self::Float(self.number()?.float())),
            Type::Int => match (&self, self.number()?) {
                (_, Number::Int(int)) => Ok(Self::Int(int)),
                // Text must spell a whole number. The fraction of a number is dropped.
                (Self::Float(_), Number::Float(float))
                    if float.trunc().abs() < 9_223_372_036_854_775_808.0 =>
                {
                    Ok(Self::Int(float as i64))
                }
                _ => Err(RecordFailure::InvalidTypeConversion),
            },
        }
    }

    /// Compares two values. Returns `None` if one of them is absent.
    pub(crate) fn compare(&self, other: &Self) -> Result<Option<Ordering>, RecordFailure> {
        if self.is_absent() || other.is_absent() {
            return Ok(None);
        }
        let ordering = match (self, other) {
            (Self::Json(_), _) | (_, Self::Json(_)) => {
                return Err(RecordFailure::InvalidTypeConversion);
            }
            (Self::Timestamp(_), _) | (_, Self::Timestamp(_)) => self.timestamp()?.cmp(&other.timestamp()?),
            (Self::Text(left), Self::Text(right)) => left.cmp(right),
            (Self::Int(_) | Self::Float(_), _) | (_, Self::Int(_) | Self::Float(_)) => {
                return Ok(compare_numbers(self.number()?, other.number()?));
            }
            (Self::Boolean(_), _) | (_, Self::Boolean(_)) => self.truth()?.cmp(&other.truth()?),
            (Self::Missing | Self::Null, _) => return Ok(None),
            (_, Self::Missing | Self::Null) => return Ok(None),
        };
        Ok(Some(ordering))
    }

    /// Converts the value to one without references.
    pub(crate) fn into_owned(self) -> Result<Value<'static>, RecordFailure> {
        Ok(match self {
            Self::Missing => Value::Missing,
            Self::Null => Value::Null,
            Self::Boolean(boolean) => Value::Boolean(boolean),
            Self::Int(int) => Value::Int(int),
            Self::Float(float) => Value::Float(float),
            Self::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Self::Timestamp(timestamp) => Value::Timestamp(timestamp),
            Self::Json(_) => return Err(RecordFailure::InvalidTypeConversion),
        })
    }
}

fn compare_numbers(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        _ => left.float().partial_cmp(&right.float()),
    }
}

fn parse_boolean(text: &str) -> Option<bool> {
    match text.trim() {
        "1" => Some(true),
        "0" => Some(false),
        word if word.eq_ignore_ascii_case("true") => Some(true),
        word if word.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Parses a finite number. Rust also parses `inf` and `nan`, which are text here.
fn parse_float(text: &str) -> Option<f64> {
    text.parse().ok().filter(|float: &f64| float.is_finite())
}

/// Formats a number as JSON, so that parsing it returns the same number.
pub(crate) fn float_text(float: f64) -> String {
    format!("{float:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value<'_> {
        Value::Text(Cow::Borrowed(text))
    }

    #[test]
    fn values_are_cast() {
        let time = moment::parse("2020-01-02T03:04:05Z").unwrap();
        for (value, to, expected) in [
            (text(" 12 "), Type::Int, Ok(Value::Int(12))),
            (text("12.5"), Type::Int, Err(RecordFailure::InvalidTypeConversion)),
            (text(""), Type::Int, Err(RecordFailure::InvalidTypeConversion)),
            (text("pizza"), Type::Float, Err(RecordFailure::InvalidTypeConversion)),
            (text("inf"), Type::Float, Err(RecordFailure::InvalidTypeConversion)),
            (text("1e3"), Type::Float, Ok(Value::Float(1000.0))),
            (Value::Float(-2.9), Type::Int, Ok(Value::Int(-2))),
            (Value::Float(1e19), Type::Int, Err(RecordFailure::InvalidTypeConversion)),
            (Value::Boolean(true), Type::Int, Ok(Value::Int(1))),
            (text("TRUE"), Type::Boolean, Ok(Value::Boolean(true))),
            (text("yes"), Type::Boolean, Err(RecordFailure::InvalidTypeConversion)),
            (Value::Int(0), Type::Boolean, Ok(Value::Boolean(false))),
            (text("2020-01-02T03:04:05Z"), Type::Timestamp, Ok(Value::Timestamp(time))),
            (Value::Int(1), Type::Timestamp, Err(RecordFailure::InvalidTypeConversion)),
            (Value::Timestamp(time), Type::String, Ok(text("2020-01-02T03:04:05Z"))),
            (Value::Float(2.0), Type::String, Ok(text("2.0"))),
            (Value::Missing, Type::Int, Ok(Value::Null)),
        ] {
            assert_eq!(value.clone().cast(to), expected, "{value:?} {to:?}");
        }
    }

    #[test]
    fn values_of_two_types_compare_as_the_higher_one() {
        let time = moment::parse("2020-01-02T03:04:05Z").unwrap();
        for (left, right, expected) in [
            (text("300"), Value::Int(25), Ok(Some(Ordering::Greater))),
            (text("300"), text("25"), Ok(Some(Ordering::Greater))),
            (text("300"), text("4"), Ok(Some(Ordering::Less))),
            (text("2.5"), Value::Int(2), Ok(Some(Ordering::Greater))),
            (text("x"), Value::Int(2), Err(RecordFailure::InvalidTypeConversion)),
            (Value::Int(2), Value::Float(2.0), Ok(Some(Ordering::Equal))),
            (Value::Boolean(true), Value::Int(1), Ok(Some(Ordering::Equal))),
            (text("false"), Value::Boolean(true), Ok(Some(Ordering::Less))),
            (Value::Timestamp(time), text("2020T"), Ok(Some(Ordering::Greater))),
            (Value::Null, Value::Int(1), Ok(None)),
            (Value::Missing, Value::Missing, Ok(None)),
        ] {
            assert_eq!(left.compare(&right), expected, "{left:?} {right:?}");
        }
    }
}
