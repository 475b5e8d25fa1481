//! Background tasks: they remove expired blobs, dropped blocks, and the rows of deleted containers.

pub(crate) mod dropped;
pub(crate) mod expiry;
mod sweep;
