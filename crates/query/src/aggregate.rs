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

impl Accumulator {
    /// Takes the value of one more row into account. Absent ones do not count.
    pub(crate) fn add(&mut self, kind: AggregateKind, value: Value<'_>) -> Result<(), Failure> {
        if value.is_absent() {
            return Ok(());
        }
        match kind {
            AggregateKind::Count => {}
            AggregateKind::Sum | AggregateKind::Average => match value.number()? {
                Number::Int(int) => self.ints += i128::from(int),
                Number::Float(float) => {
                    self.floats += float;
                    self.has_floats = true;
                }
            },
            AggregateKind::Min => self.replace_if(value, Ordering::Less)?,
            AggregateKind::Max => self.replace_if(value, Ordering::Greater)?,
        }
        self.count += 1;
        Ok(())
    }

    /// One more row for `COUNT(*)`.
    pub(crate) fn count(&mut self) {
        self.count += 1;
    }

    fn replace_if(&mut self, value: Value<'_>, wanted: Ordering) -> Result<(), Failure> {
        let replaces = match &self.extreme {
            Some(extreme) => value.compare(extreme)? == Some(wanted),
            None => true,
        };
        if replaces {
            self.extreme = Some(value.into_owned()?);
        }
        Ok(())
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
