//! The value of an expression for a row.
//!
//! `NULL` is neither true nor false: comparisons with it give it back, `AND` and `OR` decide without it where they can.
//! Whatever is looked at is paid for out of [`Fuel`], so that no statement can hold a thread for long.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;

use time::OffsetDateTime;

use crate::function::call;
use crate::like::is_like;
use crate::moment;
use crate::report::Failure;
use crate::row::Row;
use crate::syntax::{Absence, Arithmetic, Comparison, Expression};
use crate::value::{Number, Value};

/// What may still be done for a record: about one for each operation and each few bytes looked at.
#[derive(Debug)]
pub(crate) struct Fuel(Cell<usize>);

impl Fuel {
    pub(crate) fn new(amount: usize) -> Self {
        Self(Cell::new(amount))
    }

    pub(crate) fn spend(&self, amount: usize) -> Result<(), Failure> {
        let left = self.0.get().checked_sub(amount).ok_or(Failure::TooComplex)?;
        self.0.set(left);
        Ok(())
    }

    pub(crate) fn left(&self) -> usize {
        self.0.get()
    }
}

/// What an expression is evaluated for.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) row: Row<'a>,
    /// What `UTCNOW` gives.
    pub(crate) now: OffsetDateTime,
    pub(crate) fuel: &'a Fuel,
}

impl<'a> Context<'a> {
    pub(crate) fn value(&self, expression: &'a Expression) -> Result<Value<'a>, Failure> {
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

    /// Its truth, or `None` where it is neither true nor false.
    pub(crate) fn truth(&self, expression: &'a Expression) -> Result<Option<bool>, Failure> {
        self.value(expression)?.truth()
    }

    /// `AND` of all parts, up to the first that decides; `OR`, if what decides is true.
    fn all(&self, parts: &'a [Expression], decides: bool) -> Result<Option<bool>, Failure> {
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

    fn is_in(&self, value: &Value<'a>, list: &'a [Expression]) -> Result<Option<bool>, Failure> {
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

    pub(crate) fn compare(&self, left: &Value<'_>, right: &Value<'_>) -> Result<Option<Ordering>, Failure> {
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

/// Reckons with two values. A number added to a time is a number of days.
pub(crate) fn arithmetic<'a>(
    left: Value<'a>,
    operator: Arithmetic,
    right: Value<'a>,
) -> Result<Value<'a>, Failure> {
    if left.is_absent() || right.is_absent() {
        return Ok(Value::Null);
    }
    if let Value::Timestamp(moment) = left {
        let days = right.number()?.float();
        let days = match operator {
            Arithmetic::Add => days,
            Arithmetic::Subtract => -days,
            _ => return Err(Failure::InvalidTypeConversion),
        };
        return moment::add_days(moment, days).map(Value::Timestamp).ok_or(Failure::ArithmeticOverflow);
    }
    if matches!((&right, operator), (Value::Timestamp(_), Arithmetic::Add)) {
        return arithmetic(right, operator, left);
    }
    Ok(reckon(left.number()?, operator, right.number()?)?.into())
}

fn reckon(left: Number, operator: Arithmetic, right: Number) -> Result<Number, Failure> {
    let divides = matches!(operator, Arithmetic::Divide | Arithmetic::Remainder);
    if divides && right.float() == 0.0 {
        return Err(Failure::DivideByZero);
    }
    if let (Number::Int(left), Number::Int(right)) = (left, right) {
        let result = match operator {
            Arithmetic::Add => left.checked_add(right),
            Arithmetic::Subtract => left.checked_sub(right),
            Arithmetic::Multiply => left.checked_mul(right),
            Arithmetic::Divide => left.checked_div(right),
            Arithmetic::Remainder => left.checked_rem(right),
        };
        return result.map(Number::Int).ok_or(Failure::ArithmeticOverflow);
    }
    let (left, right) = (left.float(), right.float());
    let result = match operator {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
        Arithmetic::Remainder => left % right,
    };
    if result.is_finite() { Ok(Number::Float(result)) } else { Err(Failure::ArithmeticOverflow) }
}

/// The text of a value, which is paid for.
pub(crate) fn text_of<'a>(value: Value<'a>, fuel: &Fuel) -> Result<Option<Cow<'a, str>>, Failure> {
    let text = value.into_text();
    fuel.spend(text.as_ref().map_or(0, |text| text.len() / 4))?;
    Ok(text)
}
