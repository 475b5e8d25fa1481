//! Session Setup.

use crate::call::{Answer, Call};
use crate::wire::status::Status;

/// Session Setup.
pub(crate) async fn session_setup(_call: &Call) -> Answer {
    Err(Status::NOT_IMPLEMENTED.into())
}
