//! The refusals of authentication and authorisation: what went wrong to code, status and details.

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal};

/// 403 `AuthenticationFailed`, with the reason that the client may see.
pub(crate) fn authentication_failed(reason: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::AuthenticationFailed).detail("AuthenticationErrorDetail", reason)
}

/// 400 `InvalidAuthenticationInfo`: the header cannot be read at all.
pub(crate) fn malformed_authorization() -> Refusal {
    Refusal::new(ErrorCode::InvalidAuthenticationInfo)
}

/// 401 `InvalidAuthenticationInfo`: a bearer token that does not hold.
pub(crate) fn invalid_token(reason: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidAuthenticationInfo)
        .with_status(StatusCode::UNAUTHORIZED)
        .detail("AuthenticationErrorDetail", reason)
}
