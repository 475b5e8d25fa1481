//! Query Blob Contents: the query language, the input and output formats, and the encoding of the reply.
//!
//! Pure: no I/O, no clock, no randomness. A [`Query`] is a parsed statement. A [`QueryScan`] runs it over the
//! bytes of a blob, which arrive in parts. A [`QueryReply`] encodes the results as the body of a reply.
//! Memory is bounded for any size of the blob, and so is the work of each call.
//!
//! The language is that of the "Query acceleration SQL language reference". docs/decisions/0018 records the
//! choices where that reference is silent.

mod aggregate;
mod avro;
mod delimited;
mod evaluate;
mod fuel;
mod function;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod like;
mod lines;
mod moment;
mod parse;
mod reply;
mod report;
mod row;
mod scan;
mod sink;
mod statement;
mod syntax;
mod token;
mod tree;
mod value;
mod write;

pub use delimited::{Delimited, MAX_RECORD};
pub use reply::{QueryReply, ReplyStep};
pub use report::{QueryError, StatementError};
pub use scan::{QueryScan, ScanStep};
pub use statement::Query;

/// The layout of records, in the blob or in the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Delimited text.
    Delimited(Delimited),
    /// A sequence of JSON values.
    Json {
        /// Text after each value. Values of a blob may also follow each other without it.
        record_separator: String,
    },
}

impl Default for Format {
    fn default() -> Self {
        Self::Delimited(Delimited::default())
    }
}
