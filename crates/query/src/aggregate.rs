//! What an aggregate expression has seen so far.

use std::cmp::Ordering;

use crate::report::Failure;
use crate::syntax::AggregateKind;
use crate::value::{Number, Value};

/// One aggregate over the rows so far.
#[derive(Debug, Default)]
pub(crate) struct Accumulator {
    count: u64,
    /// Whole numbers are summed up exactly; no number of rows that a blob can have overflows this.
    ints: i128,
    floats: f64,
    has_floats: bool,
    extreme: Option<Value<'static>>,
}

/// What a row adds to an aggregate.
pub(crate) enum Addend {
    /// Nothing: there is no value.
    Nothing,
    /// One more to count.
    One,
    Number(Number),
    /// A value beyond all so far.
    Extreme(Value<'static>),
}

impl Accumulator {
    /// What a row with that value adds.
    pub(crate) fn judge(&self, kind: AggregateKind, value: Value<'_>) -> Result<Addend, Failure> {
        if value.is_absent() {
            return Ok(Addend::Nothing);
        }
        let beyond = match kind {
            AggregateKind::Count => return Ok(Addend::One),
            AggregateKind::Sum | AggregateKind::Average => return value.number().map(Addend::Number),
            AggregateKind::Min => Ordering::Less,
            AggregateKind::Max => Ordering::Greater,
        };
        let is_beyond = match &self.extreme {
            Some(extreme) => value.compare(extreme)? == Some(beyond),
            None => true,
        };
        Ok(if is_beyond { Addend::Extreme(value.into_owned()?) } else { Addend::One })
    }

    /// Adds that.
    pub(crate) fn add(&mut self, addend: Addend) {
        match addend {
            Addend::Nothing => return,
            Addend::One => {}
            Addend::Number(Number::Int(int)) => self.ints += i128::from(int),
            Addend::Number(Number::Float(float)) => {
                self.floats += float;
                self.has_floats = true;
            }
            Addend::Extreme(value) => self.extreme = Some(value),
        }
        self.count += 1;
    }

    /// The result. Without any value there is a count, and nothing else.
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

/// Sums of huge numbers may have no value.
fn finite(float: f64) -> Value<'static> {
    if float.is_finite() { Value::Float(float) } else { Value::Null }
}
