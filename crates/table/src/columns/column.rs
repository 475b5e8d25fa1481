//! The values that one property has in the rows of a run.

use bytes::Bytes;
use lazuli_store::Run;

use super::bits::Bits;
use crate::filter::Operator;
use crate::filter::evaluate::compare;
use crate::value::Value;

/// The position of bytes in the run's buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferRange {
    at: u32,
    length: u32,
}

impl BufferRange {
    /// Returns the position of bytes that are borrowed from the run; `None` if they are not.
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

/// A value. Strings and binaries stay in the run's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    String(BufferRange),
    Boolean(bool),
    Int32(i32),
    Int64(i64),
    Double(f64),
    DateTime(u64),
    Guid([u8; 16]),
    Binary(BufferRange),
}

impl Cell {
    /// Converts a value that is borrowed from the run; returns `None` if it is not.
    pub(super) fn of(run: &Run, value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::String(text) => Self::String(BufferRange::of(run, text.as_bytes())?),
            Value::Boolean(value) => Self::Boolean(*value),
            Value::Int32(value) => Self::Int32(*value),
            Value::Int64(value) => Self::Int64(*value),
            Value::Double(value) => Self::Double(*value),
            Value::DateTime(value) => Self::DateTime(*value),
            Value::Guid(value) => Self::Guid(*value),
            Value::Binary(bytes) => Self::Binary(BufferRange::of(run, bytes)?),
        })
    }

    fn value<'a>(&self, run: &'a Run) -> Option<Value<'a>> {
        Some(match self {
            Self::String(range) => Value::String(std::str::from_utf8(range.bytes(run)).ok()?.into()),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Int32(value) => Value::Int32(*value),
            Self::Int64(value) => Value::Int64(*value),
            Self::Double(value) => Value::Double(*value),
            Self::DateTime(value) => Value::DateTime(*value),
            Self::Guid(value) => Value::Guid(*value),
            Self::Binary(range) => Value::Binary(range.bytes(run).into()),
        })
    }
}

/// The values of one property in the rows of a run.
#[derive(Debug)]
pub(super) struct Column {
    /// The rows that have the property.
    present: Bits,
    values: ColumnValues,
}

/// Values by row. If all are of one type, they are stored without tags. Rows without the property have
/// arbitrary values.
#[derive(Debug)]
enum ColumnValues {
    None,
    String(Box<[BufferRange]>),
    Boolean(Box<[bool]>),
    Int32(Box<[i32]>),
    Int64(Box<[i64]>),
    Double(Box<[f64]>),
    DateTime(Box<[u64]>),
    Guid(Box<[[u8; 16]]>),
    Binary(Box<[BufferRange]>),
    Mixed(Box<[Option<Cell>]>),
}

impl Column {
    /// Builds a column from the cell of each row.
    pub(super) fn of(cells: &[Option<Cell>]) -> Self {
        macro_rules! all {
            ($edm:ident) => {
                collect_cells(cells, |cell| if let Cell::$edm(value) = cell { Some(*value) } else { None })
                    .map(ColumnValues::$edm)
            };
        }
        let of_one_type = match cells.iter().flatten().next() {
            None => Some(ColumnValues::None),
            Some(Cell::String(_)) => all!(String),
            Some(Cell::Boolean(_)) => all!(Boolean),
            Some(Cell::Int32(_)) => all!(Int32),
            Some(Cell::Int64(_)) => all!(Int64),
            Some(Cell::Double(_)) => all!(Double),
            Some(Cell::DateTime(_)) => all!(DateTime),
            Some(Cell::Guid(_)) => all!(Guid),
            Some(Cell::Binary(_)) => all!(Binary),
        };
        let values = of_one_type.unwrap_or_else(|| ColumnValues::Mixed(cells.into()));
        Self { present: Bits::of(cells, Option::is_some), values }
    }

    /// Returns the memory that the column takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let values = match &self.values {
            ColumnValues::None => 0,
            ColumnValues::String(values) | ColumnValues::Binary(values) => size_of_val(&**values),
            ColumnValues::Boolean(values) => size_of_val(&**values),
            ColumnValues::Int32(values) => size_of_val(&**values),
            ColumnValues::Int64(values) => size_of_val(&**values),
            ColumnValues::Double(values) => size_of_val(&**values),
            ColumnValues::DateTime(values) => size_of_val(&**values),
            ColumnValues::Guid(values) => size_of_val(&**values),
            ColumnValues::Mixed(cells) => size_of_val(&**cells),
        };
        size_of::<Self>() + values
    }

    /// Returns the rows in which a comparison with a literal holds, exactly as [`compare`] decides.
    pub(super) fn compare(&self, run: &Run, operator: Operator, literal: &Value<'_>) -> Bits {
        let found = match (&self.values, literal) {
            (ColumnValues::Boolean(values), Value::Boolean(literal)) => {
                compare_ordered(values, operator, *literal)
            }
            (ColumnValues::Int32(values), Value::Int32(literal)) => {
                compare_ordered(values, operator, *literal)
            }
            (ColumnValues::Int64(values), Value::Int64(literal)) => {
                compare_ordered(values, operator, *literal)
            }
            (ColumnValues::Int64(values), Value::Int32(literal)) => {
                compare_ordered(values, operator, (*literal).into())
            }
            (ColumnValues::Double(values), Value::Double(literal)) => {
                compare_ordered(values, operator, *literal)
            }
            (ColumnValues::Double(values), Value::Int32(literal)) => {
                compare_ordered(values, operator, (*literal).into())
            }
            (ColumnValues::Double(values), Value::Int64(literal)) => {
                compare_ordered(values, operator, *literal as f64)
            }
            (ColumnValues::DateTime(values), Value::DateTime(literal)) => {
                compare_ordered(values, operator, *literal)
            }
            (ColumnValues::Guid(values), Value::Guid(literal)) => compare_ordered(values, operator, *literal),
            (ColumnValues::Binary(ranges), Value::Binary(literal)) => {
                compare_bytes(run, ranges, operator, literal)
            }
            // The order of UTF-16 code units differs from that of bytes only between two texts that are not
            // ASCII.
            (ColumnValues::String(ranges), Value::String(literal))
                if literal.is_ascii() || matches!(operator, Operator::Equal | Operator::NotEqual) =>
            {
                compare_bytes(run, ranges, operator, literal.as_bytes())
            }
            (ColumnValues::String(ranges), Value::String(_)) => {
                let holds = |cell: Cell| cell.value(run).is_some_and(|v| compare(&v, operator, literal));
                Bits::of(ranges, |range| holds(Cell::String(*range)))
            }
            (ColumnValues::Mixed(cells), literal) => Bits::of(cells, |cell| {
                let value = cell.as_ref().and_then(|cell| cell.value(run));
                value.is_some_and(|value| compare(&value, operator, literal))
            }),
            _ => Bits::NONE,
        };
        found & self.present
    }
}

/// Converts the cells to values of one type. Returns `None` if a cell has another type.
fn collect_cells<T: Default>(cells: &[Option<Cell>], value: impl Fn(&Cell) -> Option<T>) -> Option<Box<[T]>> {
    cells.iter().map(|cell| cell.as_ref().map_or_else(|| Some(T::default()), &value)).collect()
}

/// Compares values with Rust's operators: NaN is unequal to everything, and neither less nor greater.
fn compare_ordered<T: PartialOrd>(values: &[T], operator: Operator, literal: T) -> Bits {
    match operator {
        Operator::Equal => Bits::of(values, |value| *value == literal),
        Operator::NotEqual => Bits::of(values, |value| *value != literal),
        Operator::Less => Bits::of(values, |value| *value < literal),
        Operator::LessOrEqual => Bits::of(values, |value| *value <= literal),
        Operator::Greater => Bits::of(values, |value| *value > literal),
        Operator::GreaterOrEqual => Bits::of(values, |value| *value >= literal),
    }
}

fn compare_bytes(run: &Run, ranges: &[BufferRange], operator: Operator, literal: &[u8]) -> Bits {
    let is_equal =
        |range: &BufferRange| range.length as usize == literal.len() && range.bytes(run) == literal;
    match operator {
        Operator::Equal => Bits::of(ranges, is_equal),
        Operator::NotEqual => Bits::of(ranges, |range| !is_equal(range)),
        _ => Bits::of(ranges, |range| operator.holds(Some(range.bytes(run).cmp(literal)))),
    }
}

/// Returns the rows whose encoded keys compare with an encoded literal as the operator requires.
pub(super) fn compare_keys<'a>(
    run: &'a Run,
    key: impl Fn(&'a Run, usize) -> &'a [u8],
    operator: Operator,
    literal: &Bytes,
) -> Bits {
    Bits::of_rows(run.len(), |row| operator.holds(Some(key(run, row).cmp(literal))))
}
