//! The refusals of authentication and authorization.

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal};

/// Returns 403 `AuthenticationFailed`, with a reason for the client.
pub(crate) fn authentication_failed(reason: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::AuthenticationFailed).detail("AuthenticationErrorDetail", reason)
}

/// Returns 400 `InvalidAuthenticationInfo`: the header cannot be parsed.
pub(crate) fn malformed_authorization() -> Refusal {
    Refusal::new(ErrorCode::InvalidAuthenticationInfo)
}

/// Returns 401 `InvalidAuthenticationInfo`: the bearer token is not valid.
pub(crate) fn invalid_token(reason: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidAuthenticationInfo)
        .with_status(StatusCode::UNAUTHORIZED)
        .detail("AuthenticationErrorDetail", reason)
}
