//! `$filter`: [`parse`] builds a syntax tree, [`range`] determines which keys can match, so that no other
//! rows are read, and [`evaluate`] evaluates the tree on entities.
//!
//! The logic has two values. A comparison is false if the entity does not have the property, or has it with
//! another type, even for `ne`. So `not` of such a comparison is true.

pub(crate) mod evaluate;
mod parse;
pub(crate) mod range;

use crate::value::Value;

/// A condition on entities. `And` and `Or` have at least two operands, none of their own kind, and the
/// operand of `Not` is not a `Not`. So the depth of the tree is at most twice the number of comparisons, and
/// recursion over it is safe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Filter {
    Constant(bool),
    Comparison(Comparison),
    Not(Box<Filter>),
    And(Vec<Filter>),
    Or(Vec<Filter>),
}

/// A comparison of a property with a literal. A property without a comparison is compared with `true`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) property: Property,
    pub(crate) operator: Operator,
    pub(crate) literal: Value<'static>,
}

/// A property that a filter names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    PartitionKey,
    RowKey,
    Timestamp,
    /// A property of the entity, or of a table.
    Named(String),
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Operator {
    /// Parses the name of an operator.
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "eq" => Self::Equal,
            "ne" => Self::NotEqual,
            "lt" => Self::Less,
            "le" => Self::LessOrEqual,
            "gt" => Self::Greater,
            "ge" => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    /// Returns the operator that holds for `b` and `a` when this one holds for `a` and `b`.
    const fn mirrored(self) -> Self {
        match self {
            Self::Equal | Self::NotEqual => self,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// Returns the operator that holds when this one does not, for values that have an order.
    const fn negated(self) -> Self {
        match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }
}

impl Property {
    fn from_name(name: &str) -> Self {
        match name {
            "PartitionKey" => Self::PartitionKey,
            "RowKey" => Self::RowKey,
            "Timestamp" => Self::Timestamp,
            _ => Self::Named(name.to_owned()),
        }
    }
}
