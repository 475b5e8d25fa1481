//! A row: what a statement sees of a record.

use crate::delimited::Fields;
use crate::evaluate::Fuel;
use crate::report::Failure;
use crate::syntax::{Column, TableStep};
use crate::tree::Tree;
use crate::value::Value;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    Delimited(Fields<'a>),
    Json {
        tree: &'a Tree<'a>,
        /// Whether it is a record as it stands in the blob, not a part of one.
        whole: bool,
    },
}

impl<'a> Row<'a> {
    /// The field that a column refers to.
    pub(crate) fn field(&self, column: &Column, fuel: &Fuel) -> Result<Value<'a>, Failure> {
        let value = match self {
            Self::Delimited(fields) => {
                let index = column.ordinal.and_then(|ordinal| ordinal.checked_sub(1));
                let field = index.and_then(|index| fields.get(index));
                field.map(Value::Text).ok_or(Failure::InvalidColumnOrdinal)?
            }
            Self::Json { tree, .. } => {
                let mut found: Option<&'a Tree<'a>> = Some(tree);
                for step in &column.steps {
                    fuel.spend(found.map_or(0, Tree::width))?;
                    found = found.and_then(|tree| tree.step(step));
                }
                found.map_or(Value::Missing, Value::from)
            }
        };
        fuel.spend(value.weight())?;
        Ok(value)
    }

    /// All fields in order, with their names where they have some. A value that is a record by itself has none.
    pub(crate) fn for_each_field(
        &self,
        mut visit: impl FnMut(Option<&str>, Value<'a>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match self {
            Self::Delimited(fields) => (0..fields.len()).try_for_each(|index| {
                visit(fields.name(index), fields.get(index).map_or(Value::Missing, Value::Text))
            }),
            Self::Json { tree: Tree::Object(fields), .. } => {
                fields.iter().try_for_each(|(name, value)| visit(Some(name), value.into()))
            }
            Self::Json { tree: Tree::Array(items), .. } => {
                items.iter().try_for_each(|item| visit(None, item.into()))
            }
            Self::Json { whole: true, .. } => Ok(()),
            Self::Json { tree, .. } => visit(None, (*tree).into()),
        }
    }
}

/// The rows of a record of JSON: what the path of a table leads to.
pub(crate) fn for_each_row<'a, E>(
    tree: &'a Tree<'a>,
    path: &[TableStep],
    visit: &mut impl FnMut(&'a Tree<'a>) -> Result<(), E>,
) -> Result<(), E> {
    match path.split_first() {
        None => visit(tree),
        Some((TableStep::To(step), rest)) => match tree.step(step) {
            Some(inner) => for_each_row(inner, rest, visit),
            None => Ok(()),
        },
        Some((TableStep::Each, rest)) => match tree {
            Tree::Array(items) => items.iter().try_for_each(|item| for_each_row(item, rest, visit)),
            _ => for_each_row(tree, rest, visit),
        },
    }
}
