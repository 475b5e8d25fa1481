//! Refusals: what every layer above the rules answers when it does not do what was asked.
//!
//! A [`Refusal`] names an [`ErrorCode`] and what is particular to this case; [`Refusal::render`] turns it into the
//! reply that the service's clients expect. The table of codes is in [`code`]. Nothing else in the project writes an
//! error status or an error body.

pub mod code;
mod render;

use std::borrow::Cow;
use std::fmt;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::request::BodyError;
use crate::version::Version;

pub use code::ErrorCode;
pub use render::ErrorFormat;

/// A request that was not carried out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    code: ErrorCode,
    status: StatusCode,
    message: Cow<'static, str>,
    details: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// A refusal with the code's own status and message.
    pub const fn new(code: ErrorCode) -> Self {
        Self {
            code,
            status: code.status(),
            message: Cow::Borrowed(code.message()),
            details: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// The answer to a conditional read whose copy is still good: 304, no body.
    pub const fn not_modified() -> Self {
        Self::new(ErrorCode::ConditionNotMet).with_status(StatusCode::NOT_MODIFIED)
    }

    /// The answer to a part of the protocol that this server does not have.
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(ErrorCode::NotImplemented).message(format!("{what} is not implemented by this server."))
    }

    /// Says something more particular than the code's default.
    pub fn message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// Adds an element beside the message, such as `HeaderName` or `AuthenticationErrorDetail`.
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

    /// Why.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// The status of the reply.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The message, without request id and time.
    pub fn text(&self) -> &str {
        &self.message
    }

    /// The details beside the message.
    pub fn details(&self) -> &[(&'static str, String)] {
        &self.details
    }

    /// What to answer when the request's body failed while it was read.
    ///
    /// A stream that already knows its refusal (a wrong MD5, say) fails with that [`Refusal`] itself.
    pub fn from_body_error(error: BodyError) -> Self {
        match error.downcast::<Self>() {
            Ok(refusal) => *refusal,
            Err(error) => match error.downcast_ref::<BodyFailure>() {
                Some(BodyFailure::TooLarge) => Self::new(ErrorCode::RequestBodyTooLarge),
                Some(BodyFailure::TooSlow) => {
                    Self::new(ErrorCode::OperationTimedOut).with_status(StatusCode::REQUEST_TIMEOUT)
                }
                // Read only by a client that closed just its own direction.
                Some(BodyFailure::Gone) => Self::new(ErrorCode::InvalidInput)
                    .message("The request body ended before its declared length."),
                None => Self::new(ErrorCode::InternalError),
            },
        }
    }

    /// What a signature does not reach, though it holds. Before 2015-04-05 that looked like a resource that is not there.
    pub fn not_authorized(code: ErrorCode, version: Version) -> Self {
        Self::new(if version.at_least(2015, 4, 5) { code } else { ErrorCode::ResourceNotFound })
    }

    /// A header is there, but its value cannot be used.
    pub fn invalid_header(name: impl fmt::Display, value: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidHeaderValue)
            .detail("HeaderName", name.to_string())
            .detail("HeaderValue", value)
    }

    /// A header that the operation needs is not there.
    pub fn missing_header(name: impl fmt::Display) -> Self {
        Self::new(ErrorCode::MissingRequiredHeader).detail("HeaderName", name.to_string())
    }

    /// A query parameter is there, but its value cannot be used.
    pub fn invalid_query(name: &str, value: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidQueryParameterValue)
            .detail("QueryParameterName", name)
            .detail("QueryParameterValue", value)
            .detail("Reason", reason)
    }

    /// A query parameter that the operation needs is not there.
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

/// How a request's body can fail before its end. The front door's streams fail with these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFailure {
    /// More bytes than the operation takes.
    #[error("the body is larger than allowed")]
    TooLarge,
    /// No progress for too long.
    #[error("the body arrived too slowly")]
    TooSlow,
    /// The connection closed first.
    #[error("the client went away")]
    Gone,
}
