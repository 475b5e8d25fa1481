//! A parsed statement, checked against the input format.

use crate::Format;
use crate::parse::parse;
use crate::report::StatementError;
use crate::syntax::{Column, Expression, Projection, Select, Selected};

/// A statement that can run on input of a given format.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    pub(crate) select: Select,
}

impl Query {
    /// Parses a statement for blobs of the given format.
    pub fn parse(statement: &str, input: &Format) -> Result<Self, StatementError> {
        let mut select = parse(statement)?;
        match input {
            Format::Delimited(dialect) => {
                if !select.table.is_empty() {
                    return Err(StatementError::at(
                        0,
                        "Delimited text has no paths: the table is BlobStorage.",
                    ));
                }
                select.try_for_each_column(&mut |column| bind_ordinal(column, dialect.has_headers))?;
            }
            Format::Json { .. } => {
                if matches!(select.projection, Projection::Split(_)) {
                    return Err(StatementError::at(0, "sys.split is for delimited text."));
                }
            }
        }
        name_columns(&mut select.projection);
        Ok(Self { select })
    }

    /// Resolves the columns that are named in the header of delimited text. Returns the name of a missing
    /// column.
    pub(crate) fn bind(&mut self, header: &[String]) -> Result<(), String> {
        self.select.try_for_each_column(&mut |column| {
            let (None, Some(step)) = (column.ordinal, column.steps.first()) else { return Ok(()) };
            let name = column.name().unwrap_or_default();
            let exactly = header.iter().position(|field| field == name);
            let found = exactly.or_else(|| header.iter().position(|field| step.is_to(field)));
            column.ordinal = Some(found.ok_or_else(|| name.to_owned())? + 1);
            Ok(())
        })
    }
}

fn bind_ordinal(column: &mut Column, has_headers: bool) -> Result<(), StatementError> {
    let name = column.name().unwrap_or_default();
    let [step] = column.steps.as_slice() else {
        return Err(StatementError::at(0, format!("Delimited text has no paths: {name}.")));
    };
    match step.ordinal() {
        Some(ordinal) => column.ordinal = Some(ordinal),
        None if has_headers => {}
        None => {
            return Err(StatementError::at(
                0,
                format!("The text has no header that could name a column {name}."),
            ));
        }
    }
    Ok(())
}

/// Names unnamed result columns after the field that they select, unless that is a column number.
fn name_columns(projection: &mut Projection) {
    let Projection::Columns(columns) = projection else { return };
    for Selected { expression, name } in columns {
        if let (Expression::Column(column), None) = (expression, &name) {
            *name = column.name().filter(|_| column.ordinal.is_none()).map(str::to_owned);
        }
    }
}
