//! The pipe that lists shares: DCE/RPC with the one interface that clients ask for.

/// An open pipe.
#[derive(Debug, Default)]
pub(crate) struct Pipe {}
