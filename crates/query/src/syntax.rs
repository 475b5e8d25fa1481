//! The syntax tree of a statement.
//!
//! Chains of one operator are lists, not trees. So the depth of a statement is bounded by its parentheses,
//! and walking it cannot overflow the stack.

use crate::moment::Part;

/// A `SELECT` statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Select {
    pub(crate) projection: Projection,
    /// The path after `BlobStorage[*]`, which selects the rows of each record.
    pub(crate) table: Vec<TableStep>,
    pub(crate) predicate: Option<Expression>,
    pub(crate) limit: Option<u64>,
}

/// The results that a statement returns for its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Projection {
    /// `*`
    All,
    Columns(Vec<Selected>),
    /// One result row for all input rows.
    Aggregates(Vec<(Aggregate, Option<String>)>),
    /// `sys.split(size)`
    Split(u64),
}

/// One expression of a projection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selected {
    pub(crate) expression: Expression,
    /// Name of the result column, if it has one.
    pub(crate) name: Option<String>,
}

/// An aggregate expression. `of` is `None` for `COUNT(*)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Aggregate {
    pub(crate) kind: AggregateKind,
    pub(crate) of: Option<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AggregateKind {
    Count,
    Average,
    Min,
    Max,
    Sum,
}

/// A step of the path from a record to its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableStep {
    To(PathStep),
    /// `[*]`
    Each,
}

/// A step of the path from a row to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathStep {
    /// A field. Quoted names are compared exactly, others ignoring case.
    Field {
        name: String,
        exact: bool,
    },
    Index(usize),
}

impl PathStep {
    /// Returns whether the step selects a field with this name.
    pub(crate) fn is_to(&self, field: &str) -> bool {
        match self {
            Self::Field { name, exact: true } => name == field,
            Self::Field { name, exact: false } => name.eq_ignore_ascii_case(field),
            Self::Index(_) => false,
        }
    }

    /// Returns the column number of names such as `_3`, the third column of delimited text.
    pub(crate) fn ordinal(&self) -> Option<usize> {
        match self {
            Self::Field { name, exact: false } => {
                let digits = name.strip_prefix('_')?;
                let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
                digits.parse().ok().filter(|ordinal| is_number && *ordinal > 0)
            }
            _ => None,
        }
    }
}

/// A reference to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) steps: Vec<PathStep>,
    /// Column number in delimited text, counted from one, once it is known.
    pub(crate) ordinal: Option<usize>,
}

impl Column {
    /// Returns the name of the column in results: the last field name of the path.
    pub(crate) fn name(&self) -> Option<&str> {
        self.steps.iter().rev().find_map(|step| match step {
            PathStep::Field { name, .. } => Some(name.as_str()),
            PathStep::Index(_) => None,
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Boolean(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A type of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Int,
    Float,
    String,
    Timestamp,
    Boolean,
}

/// The condition that `IS` tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    Null,
    Missing,
}

/// The ends of a string that `TRIM` trims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimSide {
    Both,
    Leading,
    Trailing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    CharLength,
    Lower,
    Upper,
    /// Arguments: text, start (from zero), and optionally the length.
    Substring,
    /// Arguments: text, and optionally the characters to remove instead of spaces.
    Trim(TrimSide),
    /// Arguments: a quantity and a time.
    DateAdd(Part),
    DateDiff(Part),
    Extract(Part),
    ToString,
    ToTimestamp,
    UtcNow,
    NullIf,
    Coalesce,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Literal(Literal),
    Column(Column),
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Arithmetic(Box<Expression>, Vec<(Arithmetic, Expression)>),
    Compare(Box<Expression>, Comparison, Box<Expression>),
    Between(Box<Expression>, Box<(Expression, Expression)>),
    In(Box<Expression>, Vec<Expression>),
    /// A value, a pattern, and the escape character of the pattern.
    Like(Box<Expression>, Box<Expression>, Option<char>),
    Is(Box<Expression>, Absence),
    Cast(Box<Expression>, Type),
    Call(Function, Vec<Expression>),
}

impl Expression {
    /// Calls `visit` for every column reference in the expression.
    pub(crate) fn try_for_each_column<E>(
        &mut self,
        visit: &mut impl FnMut(&mut Column) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Literal(_) => Ok(()),
            Self::Column(column) => visit(column),
            Self::All(parts) | Self::Any(parts) | Self::Call(_, parts) => {
                parts.iter_mut().try_for_each(|part| part.try_for_each_column(visit))
            }
            Self::Not(inner) | Self::Negative(inner) | Self::Is(inner, _) | Self::Cast(inner, _) => {
                inner.try_for_each_column(visit)
            }
            Self::Arithmetic(first, rest) => {
                first.try_for_each_column(visit)?;
                rest.iter_mut().try_for_each(|(_, part)| part.try_for_each_column(visit))
            }
            Self::Compare(left, _, right) | Self::Like(left, right, _) => {
                left.try_for_each_column(visit)?;
                right.try_for_each_column(visit)
            }
            Self::Between(value, bounds) => {
                value.try_for_each_column(visit)?;
                bounds.0.try_for_each_column(visit)?;
                bounds.1.try_for_each_column(visit)
            }
            Self::In(value, list) => {
                value.try_for_each_column(visit)?;
                list.iter_mut().try_for_each(|part| part.try_for_each_column(visit))
            }
        }
    }
}

impl Select {
    /// Calls `visit` for every column reference in the statement.
    pub(crate) fn try_for_each_column<E>(
        &mut self,
        visit: &mut impl FnMut(&mut Column) -> Result<(), E>,
    ) -> Result<(), E> {
        match &mut self.projection {
            Projection::All | Projection::Split(_) => {}
            Projection::Columns(columns) => {
                columns.iter_mut().try_for_each(|column| column.expression.try_for_each_column(visit))?;
            }
            Projection::Aggregates(aggregates) => {
                let mut inner = aggregates.iter_mut().filter_map(|(aggregate, _)| aggregate.of.as_mut());
                inner.try_for_each(|of| of.try_for_each_column(visit))?;
            }
        }
        self.predicate.iter_mut().try_for_each(|predicate| predicate.try_for_each_column(visit))
    }
}
