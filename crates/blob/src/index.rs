//! Blob index tags: the rows of the index, and the expressions that search them.

pub(crate) mod tag_index;
pub(crate) mod tag_query;
