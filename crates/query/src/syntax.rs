//! A statement as it is after parsing.
//!
//! Chains of one operator are lists, not trees, so how deep a statement can be is bounded by its parentheses alone and
//! nothing that walks it can run out of stack.

use crate::moment::Part;

/// A `SELECT` statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Select {
    pub(crate) projection: Projection,
    /// Behind `BlobStorage[*]`: which part of each record is a row.
    pub(crate) table: Vec<TableStep>,
    pub(crate) predicate: Option<Expression>,
    pub(crate) limit: Option<u64>,
}

/// What a statement gives for its rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Projection {
    /// `*`
    All,
    Columns(Vec<Selected>),
    /// One row for all of them.
    Aggregates(Vec<(Aggregate, Option<String>)>),
    /// `sys.split(size)`
    Split(u64),
}

/// One expression of a projection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selected {
    pub(crate) expression: Expression,
    /// What the column is called, if it has a name.
    pub(crate) name: Option<String>,
}

/// An aggregate expression. `None` is `COUNT(*)`.
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

/// A step from a record to its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableStep {
    To(Step),
    /// `[*]`
    Each,
}

/// A step from a row to a value in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A field. Names in quotes are exact, others are so without regard to case.
    Field {
        name: String,
        exact: bool,
    },
    Index(usize),
}

impl Step {
    /// Whether it leads to the field of that name.
    pub(crate) fn is_to(&self, field: &str) -> bool {
        match self {
            Self::Field { name, exact: true } => name == field,
            Self::Field { name, exact: false } => name.eq_ignore_ascii_case(field),
            Self::Index(_) => false,
        }
    }

    /// `_3` is the third column of delimited text.
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
    pub(crate) steps: Vec<Step>,
    /// Its number among the columns of delimited text, counted from one, once that is known.
    pub(crate) ordinal: Option<usize>,
}

impl Column {
    /// What it is called in a reply: its last name.
    pub(crate) fn name(&self) -> Option<&str> {
        self.steps.iter().rev().find_map(|step| match step {
            Step::Field { name, .. } => Some(name.as_str()),
            Step::Index(_) => None,
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

/// What `IS` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    Null,
    Missing,
}

/// The ends of a string that `TRIM` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Both,
    Leading,
    Trailing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    CharLength,
    Lower,
    Upper,
    /// Of text, where it begins (from zero), and how long it is, if it does not go to the end.
    Substring,
    /// Of text, and the characters to remove, if not spaces.
    Trim(Side),
    /// A quantity, and a time.
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
    /// A value, a pattern, and the character that escapes in it.
    Like(Box<Expression>, Box<Expression>, Option<char>),
    Is(Box<Expression>, Absence),
    Cast(Box<Expression>, Type),
    Call(Function, Vec<Expression>),
}

impl Expression {
    /// Every reference to a field that it holds.
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
    /// Every reference to a field that it holds.
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
