//! A row: the part of a record that a statement processes.

use crate::delimited::Fields;
use crate::fuel::Fuel;
use crate::report::RecordFailure;
use crate::syntax::{Column, TableStep};
use crate::tree::JsonValue;
use crate::value::Value;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<'a> {
    Delimited(Fields<'a>),
    Json {
        tree: &'a JsonValue<'a>,
        /// Whether the row is a complete record of the blob rather than a part of one.
        is_whole_record: bool,
    },
}

impl<'a> Row<'a> {
    /// Returns the value of a column.
    pub(crate) fn field(&self, column: &Column, fuel: &Fuel) -> Result<Value<'a>, RecordFailure> {
        let value = match self {
            Self::Delimited(fields) => {
                let index = column.ordinal.and_then(|ordinal| ordinal.checked_sub(1));
                let field = index.and_then(|index| fields.get(index));
                field.map(Value::Text).ok_or(RecordFailure::InvalidColumnOrdinal)?
            }
            Self::Json { tree, .. } => {
                let mut found: Option<&'a JsonValue<'a>> = Some(tree);
                for step in &column.steps {
                    fuel.spend(found.map_or(0, JsonValue::width))?;
                    found = found.and_then(|tree| tree.step(step));
                }
                found.map_or(Value::Missing, Value::from)
            }
        };
        fuel.spend(value.weight())?;
        Ok(value)
    }

    /// Calls `visit` for all fields in order, with their names if they have any. A scalar that is a whole
    /// record has no fields.
    pub(crate) fn for_each_field(
        &self,
        mut visit: impl FnMut(Option<&str>, Value<'a>) -> Result<(), RecordFailure>,
    ) -> Result<(), RecordFailure> {
        match self {
            Self::Delimited(fields) => (0..fields.len()).try_for_each(|index| {
                visit(fields.name(index), fields.get(index).map_or(Value::Missing, Value::Text))
            }),
            Self::Json { tree: JsonValue::Object(fields), .. } => {
                fields.iter().try_for_each(|(name, value)| visit(Some(name), value.into()))
            }
            Self::Json { tree: JsonValue::Array(items), .. } => {
                items.iter().try_for_each(|item| visit(None, item.into()))
            }
            Self::Json { is_whole_record: true, .. } => Ok(()),
            Self::Json { tree, .. } => visit(None, (*tree).into()),
        }
    }
}

/// Calls `visit` for each row of a JSON record: each value that the path of the table leads to.
pub(crate) fn for_each_row<'a, E>(
    tree: &'a JsonValue<'a>,
    path: &[TableStep],
    visit: &mut impl FnMut(&'a JsonValue<'a>) -> Result<(), E>,
) -> Result<(), E> {
    match path.split_first() {
        None => visit(tree),
        Some((TableStep::To(step), rest)) => match tree.step(step) {
            Some(inner) => for_each_row(inner, rest, visit),
            None => Ok(()),
        },
        Some((TableStep::Each, rest)) => match tree {
            JsonValue::Array(items) => items.iter().try_for_each(|item| for_each_row(item, rest, visit)),
            _ => for_each_row(tree, rest, visit),
        },
    }
}
