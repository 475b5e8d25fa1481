//! The record of one request and its reply, for the access log and the metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, StatusCode, Uri};
use lazuli_protocol::account::Account;
use lazuli_protocol::error::ErrorCode;
use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::operation::Operation;
use uuid::Uuid;

use crate::body_progress::BodyProgress;
use crate::refusal_log::Refused;

/// The facts known of one request and its reply so far.
pub(crate) struct RequestRecord {
    pub(crate) service: ServiceKind,
    pub(crate) request_id: Uuid,
    pub(crate) client_request_id: Option<HeaderValue>,
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    /// The query may hold a signature: log the path only.
    pub(crate) uri: Uri,
    /// Holds a signature or a token: log only the caller that it claims.
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) account: Option<Arc<Account>>,
    pub(crate) operation: Option<Operation>,
    pub(crate) received: Option<Arc<BodyProgress>>,
    /// `None` if the client disconnected before there was a reply.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<ErrorCode>,
    pub(crate) started: Instant,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) sent: u64,
    /// Whether the whole reply was handed to the connection.
    pub(crate) finished: bool,
}

impl RequestRecord {
    pub(crate) fn refused(&self) -> Refused<'_> {
        Refused {
            request_id: self.request_id,
            service: self.service,
            operation: self.operation,
            account: self.account.as_ref().map(|account| account.name.as_str()),
            peer: self.peer,
            method: &self.method,
            uri: &self.uri,
            authorization: self.authorization.as_ref(),
        }
    }

    /// Returns the bytes of the request's body received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.as_ref().map_or(0, |progress| progress.received())
    }
}
