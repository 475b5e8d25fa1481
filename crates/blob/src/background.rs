//! Work between requests: removing what has expired, staged blocks that were dropped, and the rows of deleted
//! containers.

pub(crate) mod dropped;
pub(crate) mod expiry;
mod sweep;
