//! The rows of a container: their keys and their values.

pub(crate) mod container;
pub(crate) mod keys;
mod names;
pub(crate) mod record;
pub(crate) mod rows;
pub(crate) mod staging;
pub(crate) mod tier;
