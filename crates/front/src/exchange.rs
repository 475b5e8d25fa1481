//! One request and its reply, from the first byte of the one to the last of the other: what the access log says and
//! the metrics count. It is written down when it is dropped, so also when the client goes away half way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, StatusCode, Uri};
use lazuli_protocol::account::Account;
use lazuli_protocol::error::{ErrorCode, Refusal};
use lazuli_protocol::operation::Operation;
use lazuli_protocol::service::ServiceKind;
use uuid::Uuid;

use crate::access_log;
use crate::body::Tally;
use crate::metrics::Metrics;
use crate::pace::UnderWay;
use crate::refusal_log;

/// One request and its reply.
pub(crate) struct Exchange(Box<Record>);

/// What is known of it so far.
pub(crate) struct Record {
    pub(crate) service: ServiceKind,
    pub(crate) request_id: Uuid,
    pub(crate) client_request_id: Option<HeaderValue>,
    pub(crate) peer: SocketAddr,
    pub(crate) method: Method,
    /// Its query may hold a signature: log the path only.
    pub(crate) uri: Uri,
    /// Holds a signature or a token: only what it says of the caller is logged.
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) account: Option<Arc<Account>>,
    pub(crate) operation: Option<Operation>,
    pub(crate) received: Option<Arc<Tally>>,
    /// None = the client went away before there was a reply.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<ErrorCode>,
    pub(crate) started: Instant,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) sent: u64,
    /// Whether the whole reply was handed to the connection.
    pub(crate) finished: bool,
    metrics: Arc<Metrics>,
    /// Frees the connection for the next request.
    under_way: UnderWay,
}

impl Exchange {
    /// A request has begun.
    pub(crate) fn begin(
        service: ServiceKind,
        request_id: Uuid,
        peer: SocketAddr,
        (method, uri): (Method, Uri),
        metrics: Arc<Metrics>,
        under_way: UnderWay,
    ) -> Self {
        metrics.begin(service);
        Self(Box::new(Record {
            service,
            request_id,
            client_request_id: None,
            peer,
            method,
            uri,
            authorization: None,
            account: None,
            operation: None,
            received: None,
            status: None,
            error: None,
            started: Instant::now(),
            first_byte: None,
            sent: 0,
            finished: false,
            metrics,
            under_way,
        }))
    }

    pub(crate) fn request_id(&self) -> Uuid {
        self.0.request_id
    }

    pub(crate) fn method(&self) -> &Method {
        &self.0.method
    }

    pub(crate) fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    pub(crate) fn client_request_id(&self) -> Option<&HeaderValue> {
        self.0.client_request_id.as_ref()
    }

    pub(crate) fn set_client_request_id(&mut self, id: HeaderValue) {
        self.0.client_request_id = Some(id);
    }

    pub(crate) fn set_authorization(&mut self, authorization: Option<HeaderValue>) {
        self.0.authorization = authorization;
    }

    pub(crate) fn set_account(&mut self, account: &Arc<Account>) {
        self.0.account = Some(Arc::clone(account));
    }

    pub(crate) fn set_operation(&mut self, operation: Operation) {
        self.0.operation = Some(operation);
    }

    pub(crate) fn set_tally(&mut self, tally: Option<Arc<Tally>>) {
        self.0.received = tally;
    }

    /// Whether the request's body was given up, so that the connection cannot carry another.
    pub(crate) fn is_body_abandoned(&self) -> bool {
        self.0.received.as_ref().is_some_and(|tally| tally.is_abandoned())
    }

    /// The reply is known.
    pub(crate) fn answer(&mut self, status: StatusCode, refusal: Option<&Refusal>) {
        if self.0.status.replace(status).is_none() {
            self.0.metrics.answered(self.0.service);
            self.0.under_way.reply();
        }
        self.0.error = refusal.map(Refusal::code);
        if refusal_log::is_logged(status) {
            self.0.metrics.refusals.write(&self.0, status, refusal);
        }
        self.0.first_byte = Some(self.0.started.elapsed());
    }

    /// Bytes of the reply's body were handed to the connection.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.0.sent += bytes;
        self.0.under_way.replied(bytes);
    }

    /// They were the last.
    pub(crate) fn finish(&mut self) {
        self.0.finished = true;
    }
}

impl Record {
    /// Bytes of the request's body received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.as_ref().map_or(0, |tally| tally.received())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.metrics.answered(self.service);
        }
        let elapsed = self.started.elapsed();
        self.metrics.end(self, elapsed);
        access_log::write(self, elapsed);
    }
}
