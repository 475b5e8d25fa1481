//! Functions of strings and dates, `COALESCE` and `NULLIF`.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::evaluate::{Context, text_of};
use crate::moment;
use crate::report::RecordFailure;
use crate::syntax::{Expression, Function, TrimSide};
use crate::value::{Number, Value};

/// Calls a function. The parser has checked the number of arguments.
pub(crate) fn call<'a>(
    context: &Context<'a>,
    function: Function,
    arguments: &'a [Expression],
) -> Result<Value<'a>, RecordFailure> {
    if function == Function::Coalesce {
        for argument in arguments {
            let value = context.value(argument)?;
            if !value.is_absent() {
                return Ok(value);
            }
        }
        return Ok(Value::Null);
    }
    let argument = |at: usize| arguments.get(at).map_or(Ok(Value::Null), |argument| context.value(argument));
    let (first, second) = (argument(0)?, argument(1)?);
    if function == Function::NullIf {
        let is_equal = context.compare(&first, &second)? == Some(Ordering::Equal);
        return Ok(if is_equal { Value::Null } else { first });
    }
    if function == Function::UtcNow {
        return Ok(Value::Timestamp(context.now));
    }
    // All other functions return NULL for NULL.
    if first.is_absent() || (second.is_absent() && arguments.len() > 1) {
        return Ok(Value::Null);
    }
    match function {
        Function::DateAdd(part) => {
            let quantity = whole(&first)?;
            let sum = moment::add(second.timestamp()?, part, quantity);
            sum.map(Value::Timestamp).ok_or(RecordFailure::ArithmeticOverflow)
        }
        Function::DateDiff(part) => {
            Ok(Value::Int(moment::difference(part, first.timestamp()?, second.timestamp()?)))
        }
        Function::Extract(part) => Ok(Value::Int(moment::extract(part, first.timestamp()?))),
        Function::ToTimestamp => first.timestamp().map(Value::Timestamp),
        Function::ToString => {
            let format = text_of(second, context.fuel)?.unwrap_or_default();
            let text =
                moment::format(first.timestamp()?, &format).ok_or(RecordFailure::InvalidTypeConversion)?;
            Ok(Value::Text(Cow::Owned(text)))
        }
        _ => of_text(context, function, first, second, argument(2)?),
    }
}

fn of_text<'a>(
    context: &Context<'a>,
    function: Function,
    first: Value<'a>,
    second: Value<'a>,
    third: Value<'a>,
) -> Result<Value<'a>, RecordFailure> {
    let text = text_of(first, context.fuel)?.unwrap_or_default();
    Ok(match function {
        Function::CharLength => Value::Int(text.chars().count() as i64),
        Function::Lower => Value::Text(Cow::Owned(text.to_lowercase())),
        Function::Upper => Value::Text(Cow::Owned(text.to_uppercase())),
        Function::Substring => {
            let length = if third.is_absent() { i64::MAX } else { whole(&third)? };
            Value::Text(substring(&text, whole(&second)?, length).to_owned().into())
        }
        Function::Trim(side) => {
            let set = text_of(second, context.fuel)?.unwrap_or(Cow::Borrowed(" "));
            context.fuel.spend(set.len().saturating_mul(text.len()) / 16)?;
            Value::Text(trim(&text, side, &set).to_owned().into())
        }
        _ => Value::Null,
    })
}

/// Returns `length` characters of a text from index `start`. Positions before the text count, but are empty.
fn substring(text: &str, start: i64, length: i64) -> &str {
    let end = usize::try_from(start.saturating_add(length)).unwrap_or(0);
    let start = usize::try_from(start).unwrap_or(0);
    let offset = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    if start < end { &text[offset(start)..offset(end)] } else { "" }
}

fn trim<'a>(text: &'a str, side: TrimSide, set: &str) -> &'a str {
    let is_of_set = |character: char| set.contains(character);
    match side {
        TrimSide::Both => text.trim_matches(is_of_set),
        TrimSide::Leading => text.trim_start_matches(is_of_set),
        TrimSide::Trailing => text.trim_end_matches(is_of_set),
    }
}

/// Converts a value to a whole number.
fn whole(value: &Value<'_>) -> Result<i64, RecordFailure> {
    match value.number()? {
        Number::Int(int) => Ok(int),
        Number::Float(_) => Err(RecordFailure::InvalidTypeConversion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substring_counts_characters_from_zero() {
        for (start, length, expected) in [
            (1, 5, "23456"),
            (0, 2, "12"),
            (7, 99, "89"),
            (9, 1, ""),
            (99, 1, ""),
            (-2, 4, "12"),
            (-9, 4, ""),
            (2, 0, ""),
            (2, -1, ""),
            (i64::MAX, i64::MAX, ""),
            (i64::MIN, i64::MIN, ""),
        ] {
            assert_eq!(substring("123456789", start, length), expected, "{start} {length}");
        }
        assert_eq!(substring("größe", 2, 2), "öß");
    }

    #[test]
    fn characters_are_trimmed_from_the_ends() {
        assert_eq!(trim("1112211Microsoft22211122", TrimSide::Both, "123"), "Microsoft");
        assert_eq!(trim("  a  ", TrimSide::Leading, " "), "a  ");
        assert_eq!(trim("  a  ", TrimSide::Trailing, " "), "  a");
    }
}
