//! A connection: frames in, messages to their commands, frames out.

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {}
