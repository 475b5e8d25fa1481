//! The vocabulary that the REST services, the front door and authentication share: versions, operations, errors,
//! dates, XML. Values and pure functions only; nothing here does I/O.

pub mod account;
pub mod cors;
pub mod date;
pub mod error;
pub mod operation;
pub mod policy;
pub mod properties;
pub mod query;
pub mod request;
pub mod service;
pub mod version;
pub mod xml;

pub use account::{Account, Key};
pub use error::{ErrorCode, Refusal};
pub use operation::Operation;
pub use query::Query;
pub use request::{Body, Request, Response};
pub use service::{Accounts, Service, ServiceKind};
pub use version::Version;
