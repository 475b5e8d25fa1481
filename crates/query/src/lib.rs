//! Query Blob Contents: the query language, the formats it reads and writes, and the form of the reply.
//!
//! Pure: no I/O, no clock, no randomness. A [`Query`] is a statement, a [`Scan`] runs it over bytes that come in pieces, and
//! an [`Answer`] makes of that the body of a reply. What any of them holds is bounded whatever the blob's size, and so is
//! the work that they do at a time.
//!
//! The language is that of the "Query acceleration SQL language reference". Where that is silent, docs/decisions/0018 says
//! what was chosen.

mod aggregate;
mod answer;
mod avro;
mod delimited;
mod evaluate;
mod function;
#[doc(hidden)]
pub mod fuzz;
mod like;
mod lines;
mod moment;
mod parse;
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

pub use answer::{Answer, Next};
pub use delimited::Delimited;
pub use report::{Malformed, QueryError};
pub use scan::{MAX_RECORD, Scan, Step};
pub use statement::Query;

/// How records are laid out, in the blob or in the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Delimited text.
    Delimited(Delimited),
    /// Values of JSON.
    Json {
        /// What stands behind each of them. Values of a blob need not have it between them.
        record_separator: String,
    },
}

impl Default for Format {
    fn default() -> Self {
        Self::Delimited(Delimited::default())
    }
}
