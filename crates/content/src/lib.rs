//! Shared code for rows that refer to content.
//!
//! Blobs, files and copies use this crate. Tables and queues have no content and do not depend on it.
//! [`record`] encodes values with content references, and [`sweep`] frees content that no row refers to.

mod headers;
pub mod record;
mod refusal;
pub mod sweep;

pub use headers::ContentHeaders;
pub use refusal::content_refusal;
