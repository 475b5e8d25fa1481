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

/// Maximum length of a path in the access log, in bytes.
const MAX_PATH: usize = 4096;
/// Maximum length of a recorded method in bytes. All methods that the server knows are shorter.
const MAX_METHOD: usize = 32;

/// The facts known of one request and its reply so far.
pub(crate) struct RequestRecord {
    pub(crate) service: ServiceKind,
    pub(crate) request_id: Uuid,
    pub(crate) client_request_id: Option<HeaderValue>,
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    /// The query may hold a signature: log the path only. Empty once there is a reply.
    pub(crate) uri: Uri,
    /// The path, once there is a reply, cut to [`MAX_PATH`]. `None` if neither the access log nor a
    /// trace needs it.
    pub(crate) path: Option<Box<str>>,
    /// Holds a signature or a token: log only the caller that it claims. `None` once there is a reply.
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
    /// Whether the request comes from the console.
    pub(crate) via_console: bool,
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

    /// Drops the parts of the request's head, except the path, if it is logged. They may be long, and so may
    /// be the time until the client has read the reply.
    pub(crate) fn forget_head(&mut self, is_path_logged: bool) {
        if is_path_logged && self.path.is_none() {
            self.path = Some(logged_path(&self.uri, MAX_PATH).into());
        }
        self.uri = Uri::default();
        self.authorization = None;
    }

    /// Returns the path to log.
    pub(crate) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_else(|| logged_path(&self.uri, MAX_PATH))
    }

    /// Returns the bytes of the request's body received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.as_ref().map_or(0, |progress| progress.received())
    }
}

/// Returns the path of a request, cut to a length in bytes.
pub(crate) fn logged_path(uri: &Uri, length: usize) -> &str {
    let path = uri.path();
    let end = (0..=path.len().min(length)).rev().find(|at| path.is_char_boundary(*at));
    &path[..end.unwrap_or_default()]
}

/// Returns the method of a request. A client can send one of any length, so a long one is cut.
pub(crate) fn recorded_method(method: &Method) -> Method {
    let bytes = method.as_str().as_bytes();
    match bytes.len() > MAX_METHOD {
        true => Method::from_bytes(&bytes[..MAX_METHOD]).unwrap_or_default(),
        false => method.clone(),
    }
}
