//! What a query tells of what went wrong.

use std::fmt;

/// A statement that is not one of the language, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where in the statement, in bytes.
    pub position: usize,
    /// Why.
    pub reason: String,
}

impl Malformed {
    pub(crate) fn at(position: usize, reason: impl Into<String>) -> Self {
        Self { position, reason: reason.into() }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "The query expression is not valid at character {}: {}", self.position, self.reason)
    }
}

impl std::error::Error for Malformed {}

/// An error that the reply to a query carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// Whether nothing of the blob is looked at any more.
    pub fatal: bool,
    /// Its name on the wire.
    pub name: &'static str,
    /// What happened.
    pub description: String,
    /// Where the record begins that it is about.
    pub position: u64,
}

/// Why a record has no result. Others may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    InvalidTypeConversion,
    InvalidColumnOrdinal,
    ArithmeticOverflow,
    DivideByZero,
    NotUtf8,
    /// A record for which the statement is too much work ends the query: the others would be as much.
    TooComplex,
}

impl Failure {
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

/// Input that cannot be read on.
pub(crate) fn parse_error(position: u64, description: impl Into<String>) -> QueryError {
    QueryError { fatal: true, name: "ParseError", description: description.into(), position }
}

/// A record that is longer than a record may be.
pub(crate) fn record_too_large(position: u64) -> QueryError {
    let description = "The record is larger than 1 MiB.".to_owned();
    QueryError { fatal: true, name: "RecordTooLarge", description, position }
}

/// A statement that names a column which the header does not.
pub(crate) fn unknown_column(name: &str, position: u64) -> QueryError {
    let description = format!("There is no column {name}.");
    QueryError { fatal: true, name: "InvalidColumnName", description, position }
}
