//! The state of aggregate expressions.

use std::cmp::Ordering;

use crate::report::RecordFailure;
use crate::syntax::AggregateKind;
use crate::value::{Number, Value};

/// The state of one aggregate over the rows so far.
#[derive(Debug, Default)]
pub(crate) struct Accumulator {
    count: u64,
    /// Exact sum of whole numbers. No number of rows that fits in a blob overflows it.
    ints: i128,
    floats: f64,
    has_floats: bool,
    extreme: Option<Value<'static>>,
}

/// The contribution of one row to an aggregate.
pub(crate) enum Contribution {
    /// The row has no value.
    Nothing,
    /// The row only counts.
    One,
    Number(Number),
    /// A value beyond the extreme of all rows so far.
    Extreme(Value<'static>),
}

impl Accumulator {
    /// Returns the contribution of a row with this value.
    pub(crate) fn contribution(
        &self,
        kind: AggregateKind,
        value: Value<'_>,
    ) -> Result<Contribution, RecordFailure> {
        if value.is_absent() {
            return Ok(Contribution::Nothing);
        }
        let beyond = match kind {
            AggregateKind::Count => return Ok(Contribution::One),
            AggregateKind::Sum | AggregateKind::Average => return value.number().map(Contribution::Number),
            AggregateKind::Min => Ordering::Less,
            AggregateKind::Max => Ordering::Greater,
        };
        let is_beyond = match &self.extreme {
            Some(extreme) => value.compare(extreme)? == Some(beyond),
            None => true,
        };
        Ok(if is_beyond { Contribution::Extreme(value.into_owned()?) } else { Contribution::One })
    }

    /// Adds the contribution of a row.
    pub(crate) fn add(&mut self, contribution: Contribution) {
        match contribution {
            Contribution::Nothing => return,
            Contribution::One => {}
            Contribution::Number(Number::Int(int)) => self.ints += i128::from(int),
            Contribution::Number(Number::Float(float)) => {
                self.floats += float;
                self.has_floats = true;
            }
            Contribution::Extreme(value) => self.extreme = Some(value),
        }
        self.count += 1;
    }

    /// Returns the result. Without any value, all aggregates except a count are `NULL`.
    pub(crate) fn result(self, kind: AggregateKind) -> Value<'static> {
        let sum = self.ints as f64 + self.floats;
        match kind {
            AggregateKind::Count => Value::Int(i64::try_from(self.count).unwrap_or(i64::MAX)),
            _ if self.count == 0 => Value::Null,
            AggregateKind::Average => finite(sum / self.count as f64),
            AggregateKind::Sum => match i64::try_from(self.ints) {
                Ok(sum) if !self.has_floats => Value::Int(sum),
                _ => finite(sum),
            },
            AggregateKind::Min | AggregateKind::Max => self.extreme.unwrap_or(Value::Null),
        }
    }
}

/// Returns `NULL` for results that are not finite, such as sums of huge numbers.
fn finite(float: f64) -> Value<'static> {
    if float.is_finite() { Value::Float(float) } else { Value::Null }
}
