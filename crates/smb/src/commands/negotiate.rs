//! Negotiate.

use crate::call::{Answer, Call};
use crate::wire::status::Status;

/// Negotiate.
pub(crate) async fn negotiate(_call: &Call) -> Answer {
    Err(Status::NOT_IMPLEMENTED.into())
}

/// Negotiate of the first version, with which clients begin that may know nothing newer.
pub(crate) async fn old(_call: &Call) -> Answer {
    Err(Status::NOT_IMPLEMENTED.into())
}
