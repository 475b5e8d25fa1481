//! The vocabulary of the REST services, the front door and authentication: versions, operations, errors,
//! dates, XML. Contains values and pure functions, and the counter in [`peers`]; nothing here does I/O.

pub mod account;
pub mod address;
pub mod conflict;
pub mod cors;
pub mod date;
pub mod digest;
pub mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
pub mod header;
pub mod kind;
pub mod lease;
pub mod listing;
pub mod log_rate;
pub mod metadata;
pub mod multipart;
pub mod names;
pub mod operation;
pub mod peers;
pub mod policy;
pub mod properties;
pub mod proxies;
pub mod query;
pub mod range;
pub mod request;
pub mod service;
pub mod source;
pub mod structured;
pub mod version;
pub mod watch;
pub mod xml;

pub use account::{Account, Key};
pub use address::Address;
pub use error::{ErrorCode, Refusal};
pub use header::Headers;
pub use kind::ServiceKind;
pub use metadata::Metadata;
pub use operation::Operation;
pub use query::Query;
pub use range::ByteRange;
pub use request::{Body, Request, Response};
pub use service::{Accounts, Service};
pub use source::{SourceAccess, SourceRead};
pub use version::Version;
