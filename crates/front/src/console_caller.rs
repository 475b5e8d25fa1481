//! The caller of a request that comes from the console.

use lazuli_protocol::request::Caller;

/// The caller of a request that the console has authenticated. It is among the extensions of the request,
/// which no client can set.
#[derive(Clone)]
pub(crate) struct ConsoleCaller {
    pub(crate) caller: Caller,
    /// The name of the session's principal, for logs.
    pub(crate) name: String,
}
