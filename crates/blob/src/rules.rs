//! Rules that several operations share. They are pure: given a request, a row and the time, they say what
//! becomes of it.

pub(crate) mod history;
pub(crate) mod new_blob;
pub(crate) mod precondition;
pub(crate) mod retention;
pub(crate) mod tier;
