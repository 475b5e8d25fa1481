//! Maps errors of the extents to refusals.

use lazuli_extents::Error;
use lazuli_protocol::{ErrorCode, Refusal};

/// Returns the refusal of a request whose bytes could not be stored or read.
pub fn content_refusal(error: Error) -> Refusal {
    match error {
        Error::Full => Refusal::new(ErrorCode::ServerBusy).message("There is no space left on the server."),
        Error::Busy(_) => ErrorCode::ServerBusy.into(),
        Error::Size => ErrorCode::RequestBodyTooLarge.into(),
        Error::Stopped | Error::Damaged(_) | Error::Io(_) => {
            tracing::error!(%error, "bytes cannot be stored or read");
            ErrorCode::InternalError.into()
        }
    }
}
