//! The bytes of blobs: receiving, encrypting, editing, copying and reading them.

pub(crate) mod block_list;
pub(crate) mod cipher;
pub(crate) mod edit;
pub(crate) mod encryption;
pub(crate) mod intake;
pub(crate) mod read_source;
pub(crate) mod sealed;
pub(crate) mod sink;
pub(crate) mod source;
