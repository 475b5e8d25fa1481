//! Shared code of the services.
//!
//! The four services, `account`, `generations` and `copy` depend on this crate. It depends on the store and
//! the protocol, but on no service. Code for rows that refer to bytes is in `lazuli-content`.
//!
//! [`Rows`] runs transactions, [`SpaceScan`] scans a space, [`record`] encodes the values of rows and
//! [`reply`] writes headers. [`run_to_completion`] continues work after its client has disconnected.

mod deleted;
mod detached;
pub mod record;
mod refusal;
pub mod reply;
mod rows;
mod scan;

pub use deleted::Deleted;
pub use detached::run_to_completion;
pub use record::Damage;
pub use refusal::{commit_refusal, internal_error, log_failed_rule, read_refusal, transaction_refusal};
pub use rows::Rows;
pub use scan::SpaceScan;
