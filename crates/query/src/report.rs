//! The errors of statements and records.

use std::fmt;

/// A statement that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementError {
    /// Position of the error in the statement, in bytes.
    pub position: usize,
    /// Reason, for the client.
    pub reason: String,
}

impl StatementError {
    pub(crate) fn at(position: usize, reason: impl Into<String>) -> Self {
        Self { position, reason: reason.into() }
    }
}

impl fmt::Display for StatementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The query expression is not valid at character {}: {}", self.position, self.reason)
    }
}

impl std::error::Error for StatementError {}

/// An error in the reply to a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// Whether the error ends the query.
    pub fatal: bool,
    /// Name of the error in the protocol.
    pub name: &'static str,
    /// Description, for the client.
    pub description: String,
    /// Offset of the affected record in the blob.
    pub position: u64,
}

/// Why a record has no result. Other records are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordFailure {
    InvalidTypeConversion,
    InvalidColumnOrdinal,
    ArithmeticOverflow,
    DivideByZero,
    NotUtf8,
    /// The statement takes too much work for one record. Ends the query, since other records would take as
    /// much.
    TooComplex,
}

impl RecordFailure {
    pub(crate) fn at(self, position: u64) -> QueryError {
        let (name, description) = match self {
            Self::InvalidTypeConversion => ("InvalidTypeConversion", "Invalid type conversion."),
            Self::InvalidColumnOrdinal => ("InvalidColumnOrdinal", "Invalid column ordinal."),
            Self::ArithmeticOverflow => ("ArithmeticOverflow", "Arithmetic overflow."),
            Self::DivideByZero => ("DivideByZero", "Divide by zero."),
            Self::NotUtf8 => ("InvalidTextEncoding", "The record is not UTF-8."),
            Self::TooComplex => ("QueryTooComplex", "The query takes too much work for one record."),
        };
        QueryError { fatal: self == Self::TooComplex, name, description: description.to_owned(), position }
    }
}

/// Returns the error for input that cannot be parsed any further.
pub(crate) fn parse_error(position: u64, description: impl Into<String>) -> QueryError {
    QueryError { fatal: true, name: "ParseError", description: description.into(), position }
}

/// Returns the error for a record that exceeds the maximum size.
pub(crate) fn record_too_large(position: u64) -> QueryError {
    let description = "The record is larger than 1 MiB.".to_owned();
    QueryError { fatal: true, name: "RecordTooLarge", description, position }
}

/// Returns the error for a statement that names a column which is not in the header.
pub(crate) fn unknown_column(name: &str, position: u64) -> QueryError {
    let description = format!("There is no column {name}.");
    QueryError { fatal: true, name: "InvalidColumnName", description, position }
}
