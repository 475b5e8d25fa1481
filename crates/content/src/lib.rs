//! What rows that refer to bytes have in common.
//!
//! Blobs, files and copies stand on this crate; tables and queues have no content and do not depend on it.
//! [`record`] frames values with content in them, [`sweep`] frees content that no row refers to any more.

mod headers;
pub mod record;
mod refusal;
pub mod sweep;

pub use headers::ContentHeaders;
pub use refusal::content_refusal;
