//! Evaluates expressions for a row.
//!
//! `NULL` is neither true nor false. Comparisons with `NULL` return `NULL`. `AND` and `OR` ignore it if
//! another operand decides the result. All work is charged to [`Fuel`], so that no statement can occupy a
//! thread for long.

use std::borrow::Cow;
use std::cmp::Ordering;

use time::OffsetDateTime;

use crate::fuel::Fuel;
use crate::function::call;
use crate::like::is_like;
use crate::moment;
use crate::report::RecordFailure;
use crate::row::Row;
use crate::syntax::{Absence, Arithmetic, Comparison, Expression};
use crate::value::{Number, Value};

/// The inputs of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) row: Row<'a>,
    /// Value of `UTCNOW`.
    pub(crate) now: OffsetDateTime,
    pub(crate) fuel: &'a Fuel,
}

impl<'a> Context<'a> {
    pub(crate) fn value(&self, expression: &'a Expression) -> Result<Value<'a>, RecordFailure> {
        self.fuel.spend(1)?;
        Ok(match expression {
            Expression::Literal(literal) => literal.into(),
            Expression::Column(column) => self.row.field(column, self.fuel)?,
            Expression::All(parts) => from_truth(self.all(parts, false)?),
            Expression::Any(parts) => from_truth(self.all(parts, true)?),
            Expression::Not(inner) => from_truth(self.truth(inner)?.map(|truth| !truth)),
            Expression::Negative(inner) => {
                let inner = self.value(inner)?;
                arithmetic(Value::Int(0), Arithmetic::Subtract, inner)?
            }
            Expression::Arithmetic(first, rest) => {
                let first = self.value(first)?;
                rest.iter().try_fold(first, |left, (operator, right)| {
                    arithmetic(left, *operator, self.value(right)?)
                })?
            }
            Expression::Compare(left, comparison, right) => {
                let ordering = self.compare(&self.value(left)?, &self.value(right)?)?;
                from_truth(ordering.map(|ordering| comparison.holds(ordering)))
            }
            Expression::Between(value, bounds) => {
                let value = self.value(value)?;
                let low = self.compare(&value, &self.value(&bounds.0)?)?.map(Ordering::is_ge);
                let high = self.compare(&value, &self.value(&bounds.1)?)?.map(Ordering::is_le);
                from_truth(match (low, high) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                })
            }
            Expression::In(value, list) => from_truth(self.is_in(&self.value(value)?, list)?),
            Expression::Like(value, pattern, escape) => {
                let (value, pattern) = (self.value(value)?, self.value(pattern)?);
                match (text_of(value, self.fuel)?, text_of(pattern, self.fuel)?) {
                    (Some(value), Some(pattern)) => {
                        Value::Boolean(is_like(&value, &pattern, *escape, self.fuel)?)
                    }
                    _ => Value::Null,
                }
            }
            Expression::Is(value, absence) => {
                let value = self.value(value)?;
                Value::Boolean(match absence {
                    Absence::Null => value.is_absent(),
                    Absence::Missing => value == Value::Missing,
                })
            }
            Expression::Cast(value, to) => {
                let value = self.value(value)?.cast(*to)?;
                self.fuel.spend(value.weight())?;
                value
            }
            Expression::Call(function, arguments) => call(self, *function, arguments)?,
        })
    }

    /// Evaluates a condition. Returns `None` if it is neither true nor false.
    pub(crate) fn truth(&self, expression: &'a Expression) -> Result<Option<bool>, RecordFailure> {
        self.value(expression)?.truth()
    }

    /// Evaluates `AND` (if `decides` is false) or `OR` (if `decides` is true), up to the first part that
    /// decides.
    fn all(&self, parts: &'a [Expression], decides: bool) -> Result<Option<bool>, RecordFailure> {
        let mut result = Some(!decides);
        for part in parts {
            match self.truth(part)? {
                Some(truth) if truth == decides => return Ok(Some(decides)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    fn is_in(&self, value: &Value<'a>, list: &'a [Expression]) -> Result<Option<bool>, RecordFailure> {
        let mut result = Some(false);
        for item in list {
            match self.compare(value, &self.value(item)?)? {
                Some(Ordering::Equal) => return Ok(Some(true)),
                Some(_) => {}
                None => result = None,
            }
        }
        Ok(result)
    }

    pub(crate) fn compare(
        &self,
        left: &Value<'_>,
        right: &Value<'_>,
    ) -> Result<Option<Ordering>, RecordFailure> {
        self.fuel.spend(left.weight().max(right.weight()))?;
        left.compare(right)
    }
}

impl Comparison {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

fn from_truth<'a>(truth: Option<bool>) -> Value<'a> {
    truth.map_or(Value::Null, Value::Boolean)
}

/// Applies an arithmetic operator. A number added to a time is a number of days.
pub(crate) fn arithmetic<'a>(
    left: Value<'a>,
    operator: Arithmetic,
    right: Value<'a>,
) -> Result<Value<'a>, RecordFailure> {
    if left.is_absent() || right.is_absent() {
        return Ok(Value::Null);
    }
    if let Value::Timestamp(moment) = left {
        let days = right.number()?.float();
        let days = match operator {
            Arithmetic::Add => days,
            Arithmetic::Subtract => -days,
            _ => return Err(RecordFailure::InvalidTypeConversion),
        };
        return moment::add_days(moment, days).map(Value::Timestamp).ok_or(RecordFailure::ArithmeticOverflow);
    }
    if matches!((&right, operator), (Value::Timestamp(_), Arithmetic::Add)) {
        return arithmetic(right, operator, left);
    }
    Ok(apply(left.number()?, operator, right.number()?)?.into())
}

fn apply(left: Number, operator: Arithmetic, right: Number) -> Result<Number, RecordFailure> {
    let divides = matches!(operator, Arithmetic::Divide | Arithmetic::Remainder);
    if divides && right.float() == 0.0 {
        return Err(RecordFailure::DivideByZero);
    }
    if let (Number::Int(left), Number::Int(right)) = (left, right) {
        let result = match operator {
            Arithmetic::Add => left.checked_add(right),
            Arithmetic::Subtract => left.checked_sub(right),
            Arithmetic::Multiply => left.checked_mul(right),
            Arithmetic::Divide => left.checked_div(right),
            Arithmetic::Remainder => left.checked_rem(right),
        };
        return result.map(Number::Int).ok_or(RecordFailure::ArithmeticOverflow);
    }
    let (left, right) = (left.float(), right.float());
    let result = match operator {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
        Arithmetic::Remainder => left % right,
    };
    if result.is_finite() { Ok(Number::Float(result)) } else { Err(RecordFailure::ArithmeticOverflow) }
}

/// Converts a value to text and charges for its length.
pub(crate) fn text_of<'a>(value: Value<'a>, fuel: &Fuel) -> Result<Option<Cow<'a, str>>, RecordFailure> {
    let text = value.into_text();
    fuel.spend(text.as_ref().map_or(0, |text| text.len() / 4))?;
    Ok(text)
}
