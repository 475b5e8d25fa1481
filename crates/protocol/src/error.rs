//! Refusals: the answers to requests that are not carried out.
//!
//! A [`Refusal`] has an [`ErrorCode`] and the details of this case; [`Refusal::render`] turns it into the
//! reply that the service's clients expect. The table of codes is in [`code`]. No other module produces an
//! error status or an error body.

pub mod code;
mod render;

use std::borrow::Cow;
use std::fmt;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::conflict::{Attached, Conflict};
use crate::version::Version;

pub use code::ErrorCode;
pub use render::ErrorFormat;

/// A failure while a body is streamed: the client disconnected, sent too much, or was too slow.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request that was not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: ErrorCode,
    status: StatusCode,
    message: Cow<'static, str>,
    details: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    conflict: Attached,
}

impl Refusal {
    /// Creates a refusal with the code's own status and message.
    pub const fn new(code: ErrorCode) -> Self {
        Self {
            code,
            status: code.status(),
            message: Cow::Borrowed(code.message()),
            details: Vec::new(),
            headers: Vec::new(),
            conflict: Attached(None),
        }
    }

    /// Attaches what the rule has compared, for operators. Never part of the reply.
    pub fn with_conflict(mut self, conflict: Conflict) -> Self {
        self.conflict = Attached(Some(Box::new(conflict)));
        self
    }

    /// Returns what the rule has compared.
    pub fn conflict(&self) -> Option<&Conflict> {
        self.conflict.0.as_deref()
    }

    /// Makes the answer to a conditional read if the client's copy is current: 304 without a body.
    pub const fn not_modified() -> Self {
        Self::new(ErrorCode::ConditionNotMet).with_status(StatusCode::NOT_MODIFIED)
    }

    /// Refuses a part of the protocol that this server does not implement.
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(ErrorCode::NotImplemented).message(format!("{what} is not implemented by this server."))
    }

    /// Replaces the code's default message.
    pub fn message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// Adds an element next to the message, such as `HeaderName` or `AuthenticationErrorDetail`.
    pub fn detail(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// Adds a header to the reply.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Replaces the code's usual status, for the few codes that have more than one.
    pub const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Returns the error code.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Returns the status of the reply.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the message, without request id and time.
    pub fn text(&self) -> &str {
        &self.message
    }

    /// Returns the details.
    pub fn details(&self) -> &[(&'static str, String)] {
        &self.details
    }

    /// Returns the refusal for a failure while the request's body was read.
    ///
    /// A stream that already has a refusal, such as a wrong MD5, fails with that [`Refusal`] itself.
    pub fn from_body_error(error: BodyError) -> Self {
        match error.downcast::<Self>() {
            Ok(refusal) => *refusal,
            Err(error) => match error.downcast_ref::<BodyFailure>() {
                Some(BodyFailure::TooLarge) => Self::new(ErrorCode::RequestBodyTooLarge),
                Some(BodyFailure::TooSlow) => {
                    Self::new(ErrorCode::OperationTimedOut).with_status(StatusCode::REQUEST_TIMEOUT)
                }
                // Only a client that has closed just its sending direction can read this.
                Some(BodyFailure::Disconnected) => Self::new(ErrorCode::InvalidInput)
                    .message("The request body ended before its declared length."),
                None => Self::new(ErrorCode::InternalError),
            },
        }
    }

    /// Refuses a request that a valid signature does not cover. Before 2015-04-05 the answer was that the
    /// resource does not exist.
    pub fn not_authorized(code: ErrorCode, version: Version) -> Self {
        Self::new(if version.at_least(2015, 4, 5) { code } else { ErrorCode::ResourceNotFound })
    }

    /// Refuses a header with an invalid value.
    pub fn invalid_header(name: impl fmt::Display, value: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidHeaderValue)
            .detail("HeaderName", name.to_string())
            .detail("HeaderValue", value)
    }

    /// Refuses a request without a required header.
    pub fn missing_header(name: impl fmt::Display) -> Self {
        Self::new(ErrorCode::MissingRequiredHeader).detail("HeaderName", name.to_string())
    }

    /// Refuses a query parameter with an invalid value.
    pub fn invalid_query(name: &str, value: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidQueryParameterValue)
            .detail("QueryParameterName", name)
            .detail("QueryParameterValue", value)
            .detail("Reason", reason)
    }

    /// Refuses a request without a required query parameter.
    pub fn missing_query(name: &str) -> Self {
        Self::new(ErrorCode::MissingRequiredQueryParameter).detail("QueryParameterName", name)
    }
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.code.name(), self.message)
    }
}

impl std::error::Error for Refusal {}

/// Failures of a request's body before its end. The front door's streams fail with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFailure {
    /// The body exceeds the operation's limit.
    #[error("the body is larger than allowed")]
    TooLarge,
    /// The client made no progress for too long.
    #[error("the body arrived too slowly")]
    TooSlow,
    /// The client disconnected before the end of the body.
    #[error("the client disconnected")]
    Disconnected,
}
