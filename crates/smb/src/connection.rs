//! A connection: frames in, messages to their commands, frames out.

use crate::call::Call;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {}

impl Connection {
    /// Sends the interim response to a request, once.
    pub(crate) fn send_interim(&self, _call: &Call) {}
}
