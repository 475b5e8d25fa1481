//! `$filter`: [`parse`] makes a tree of it once, [`range`] tells which keys can match, so that no others are read, and
//! [`evaluate`] judges the entities that were.
//!
//! The logic has two values. A comparison with a property that an entity does not have, or has with another type, is
//! false, for `ne` too, and so `not` makes it true.

pub(crate) mod evaluate;
mod parse;
pub(crate) mod range;

use crate::value::Value;

/// A condition on entities. `And` and `Or` have at least two operands and hold none of their own kind, and `Not` no
/// `Not`, so a tree is at most twice as deep as its comparisons are many, and can be walked by recursion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Filter {
    Constant(bool),
    Comparison(Comparison),
    Not(Box<Filter>),
    And(Vec<Filter>),
    Or(Vec<Filter>),
}

/// A property compared with a literal. A boolean property that stands alone is compared with `true`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) property: Property,
    pub(crate) operator: Operator,
    pub(crate) literal: Value<'static>,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    PartitionKey,
    RowKey,
    Timestamp,
    /// One of the entity's own, or what a table has.
    Named(String),
}

/// How it is compared.
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
    /// The one of that name.
    fn of_name(name: &str) -> Option<Self> {
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

    /// The one that holds for `b` and `a` where this one holds for `a` and `b`.
    const fn mirrored(self) -> Self {
        match self {
            Self::Equal | Self::NotEqual => self,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }

    /// The one that holds where this one does not, of values that have an order.
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
    fn of_name(name: &str) -> Self {
        match name {
            "PartitionKey" => Self::PartitionKey,
            "RowKey" => Self::RowKey,
            "Timestamp" => Self::Timestamp,
            _ => Self::Named(name.to_owned()),
        }
    }
}
