//! Rules that several operations share. They do no I/O: they decide from a request, rows and the time.

pub(crate) mod body;
pub(crate) mod history;
pub(crate) mod new_blob;
pub(crate) mod precondition;
pub(crate) mod retention;
pub(crate) mod tier;
