//! The values that one property has in the rows of a run.

use bytes::Bytes;
use lazuli_store::Run;

use super::bits::Bits;
use crate::filter::Operator;
use crate::filter::evaluate::compare;
use crate::value::Value;

/// Where in the run's buffer bytes lie.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    at: u32,
    length: u32,
}

impl Place {
    /// Where bytes lie that were borrowed from the run; `None` if they were not.
    fn of(run: &Run, bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let at = bytes.as_ptr().addr().checked_sub(run.buffer().as_ptr().addr())?;
        let is_within = at + bytes.len() <= run.buffer().len();
        Some(Self { at: u32::try_from(at).ok()?, length: u32::try_from(bytes.len()).ok()? })
            .filter(|_| is_within)
    }

    fn bytes(self, run: &Run) -> &[u8] {
        &run.buffer()[self.at as usize..][..self.length as usize]
    }
}

/// A value, with strings and binaries left where they are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    String(Place),
    Boolean(bool),
    Int32(i32),
    Int64(i64),
    Double(f64),
    DateTime(u64),
    Guid([u8; 16]),
    Binary(Place),
}

impl Cell {
    /// Of a value that was borrowed from the run; `None` if it was not.
    pub(super) fn of(run: &Run, value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::String(text) => Self::String(Place::of(run, text.as_bytes())?),
            Value::Boolean(value) => Self::Boolean(*value),
            Value::Int32(value) => Self::Int32(*value),
            Value::Int64(value) => Self::Int64(*value),
            Value::Double(value) => Self::Double(*value),
            Value::DateTime(value) => Self::DateTime(*value),
            Value::Guid(value) => Self::Guid(*value),
            Value::Binary(bytes) => Self::Binary(Place::of(run, bytes)?),
        })
    }

    fn value<'a>(&self, run: &'a Run) -> Option<Value<'a>> {
        Some(match self {
            Self::String(place) => Value::String(std::str::from_utf8(place.bytes(run)).ok()?.into()),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Int32(value) => Value::Int32(*value),
            Self::Int64(value) => Value::Int64(*value),
            Self::Double(value) => Value::Double(*value),
            Self::DateTime(value) => Value::DateTime(*value),
            Self::Guid(value) => Value::Guid(*value),
            Self::Binary(place) => Value::Binary(place.bytes(run).into()),
        })
    }
}

/// The values of one property, `None` where a row does not have it. Those of one type lie together.
#[derive(Debug)]
pub(super) struct Column {
    has_it: Bits,
    values: Values,
}

/// What stands where a row does not have the property does not matter.
#[derive(Debug)]
enum Values {
    None,
    String(Box<[Place]>),
    Boolean(Box<[bool]>),
    Int32(Box<[i32]>),
    Int64(Box<[i64]>),
    Double(Box<[f64]>),
    DateTime(Box<[u64]>),
    Guid(Box<[[u8; 16]]>),
    Binary(Box<[Place]>),
    Mixed(Box<[Option<Cell>]>),
}

impl Column {
    pub(super) fn of(cells: &[Option<Cell>]) -> Self {
        macro_rules! all {
            ($edm:ident) => {
                all_of(cells, |cell| if let Cell::$edm(value) = cell { Some(*value) } else { None })
                    .map(Values::$edm)
            };
        }
        let of_one_type = match cells.iter().flatten().next() {
            None => Some(Values::None),
            Some(Cell::String(_)) => all!(String),
            Some(Cell::Boolean(_)) => all!(Boolean),
            Some(Cell::Int32(_)) => all!(Int32),
            Some(Cell::Int64(_)) => all!(Int64),
            Some(Cell::Double(_)) => all!(Double),
            Some(Cell::DateTime(_)) => all!(DateTime),
            Some(Cell::Guid(_)) => all!(Guid),
            Some(Cell::Binary(_)) => all!(Binary),
        };
        let values = of_one_type.unwrap_or_else(|| Values::Mixed(cells.into()));
        Self { has_it: Bits::of(cells, Option::is_some), values }
    }

    /// How much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let values = match &self.values {
            Values::None => 0,
            Values::String(values) | Values::Binary(values) => size_of_val(&**values),
            Values::Boolean(values) => size_of_val(&**values),
            Values::Int32(values) => size_of_val(&**values),
            Values::Int64(values) => size_of_val(&**values),
            Values::Double(values) => size_of_val(&**values),
            Values::DateTime(values) => size_of_val(&**values),
            Values::Guid(values) => size_of_val(&**values),
            Values::Mixed(cells) => size_of_val(&**cells),
        };
        size_of::<Self>() + values
    }

    /// The rows in which a comparison with a literal holds, exactly as [`compare`] has it.
    pub(super) fn judge(&self, run: &Run, operator: Operator, literal: &Value<'_>) -> Bits {
        let found = match (&self.values, literal) {
            (Values::Boolean(values), Value::Boolean(literal)) => ordered(values, operator, *literal),
            (Values::Int32(values), Value::Int32(literal)) => ordered(values, operator, *literal),
            (Values::Int64(values), Value::Int64(literal)) => ordered(values, operator, *literal),
            (Values::Int64(values), Value::Int32(literal)) => ordered(values, operator, (*literal).into()),
            (Values::Double(values), Value::Double(literal)) => ordered(values, operator, *literal),
            (Values::Double(values), Value::Int32(literal)) => ordered(values, operator, (*literal).into()),
            (Values::Double(values), Value::Int64(literal)) => ordered(values, operator, *literal as f64),
            (Values::DateTime(values), Value::DateTime(literal)) => ordered(values, operator, *literal),
            (Values::Guid(values), Value::Guid(literal)) => ordered(values, operator, *literal),
            (Values::Binary(places), Value::Binary(literal)) => bytewise(run, places, operator, literal),
            // Only between texts that both have other characters does the order of code units differ.
            (Values::String(places), Value::String(literal))
                if literal.is_ascii() || matches!(operator, Operator::Equal | Operator::NotEqual) =>
            {
                bytewise(run, places, operator, literal.as_bytes())
            }
            (Values::String(places), Value::String(_)) => {
                let holds = |cell: Cell| cell.value(run).is_some_and(|v| compare(&v, operator, literal));
                Bits::of(places, |place| holds(Cell::String(*place)))
            }
            (Values::Mixed(cells), literal) => Bits::of(cells, |cell| {
                let value = cell.as_ref().and_then(|cell| cell.value(run));
                value.is_some_and(|value| compare(&value, operator, literal))
            }),
            _ => Bits::NONE,
        };
        found & self.has_it
    }
}

fn all_of<T: Default>(cells: &[Option<Cell>], value: impl Fn(&Cell) -> Option<T>) -> Option<Box<[T]>> {
    cells.iter().map(|cell| cell.as_ref().map_or_else(|| Some(T::default()), &value)).collect()
}

/// Compares as the operators of the language do: NaN is unequal to everything, and neither less nor greater.
fn ordered<T: PartialOrd>(values: &[T], operator: Operator, literal: T) -> Bits {
    match operator {
        Operator::Equal => Bits::of(values, |value| *value == literal),
        Operator::NotEqual => Bits::of(values, |value| *value != literal),
        Operator::Less => Bits::of(values, |value| *value < literal),
        Operator::LessOrEqual => Bits::of(values, |value| *value <= literal),
        Operator::Greater => Bits::of(values, |value| *value > literal),
        Operator::GreaterOrEqual => Bits::of(values, |value| *value >= literal),
    }
}

fn bytewise(run: &Run, places: &[Place], operator: Operator, literal: &[u8]) -> Bits {
    let is_equal = |place: &Place| place.length as usize == literal.len() && place.bytes(run) == literal;
    match operator {
        Operator::Equal => Bits::of(places, is_equal),
        Operator::NotEqual => Bits::of(places, |place| !is_equal(place)),
        _ => Bits::of(places, |place| operator.holds(Some(place.bytes(run).cmp(literal)))),
    }
}

/// The rows whose keys, as the store has them, compare so with a literal.
pub(super) fn judge_keys<'a>(
    run: &'a Run,
    key: impl Fn(&'a Run, usize) -> &'a [u8],
    operator: Operator,
    literal: &Bytes,
) -> Bits {
    Bits::of_rows(run.len(), |row| operator.holds(Some(key(run, row).cmp(literal))))
}
