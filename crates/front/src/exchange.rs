//! One request and its reply: collects what the access log and the metrics record. The record is written when
//! the exchange is dropped, so also if the client disconnects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use lazuli_protocol::account::Account;
use lazuli_protocol::error::Refusal;
use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::watch::RequestEvent;
use lazuli_telemetry::RequestTrace;
use tracing::{Span, field};
use uuid::Uuid;

use crate::access_log;
use crate::body_progress::BodyProgress;
use crate::metrics::Metrics;
use crate::observe;
use crate::pace::RequestGuard;
use crate::record::{RequestRecord, recorded_method};
use crate::reply_memory::ConnectionReplies;
use crate::traces;

/// One request and its reply.
pub(crate) struct Exchange {
    record: Box<RequestRecord>,
    metrics: Arc<Metrics>,
    /// Marks the request as in flight on its connection.
    guard: RequestGuard,
    /// Names the request in the log.
    span: Span,
    /// The event for an observer, if it wants one.
    event: Option<Box<RequestEvent>>,
    /// The trace of the request, if it is sampled.
    trace: Option<Arc<RequestTrace>>,
}

impl Exchange {
    /// Records the start of a request.
    pub(crate) fn begin(
        service: ServiceKind,
        request_id: Uuid,
        peer: SocketAddr,
        (method, uri): (Method, Uri),
        metrics: Arc<Metrics>,
        guard: RequestGuard,
    ) -> Self {
        metrics.begin(service);
        let record = RequestRecord {
            service,
            request_id,
            client_request_id: None,
            peer,
            method: recorded_method(&method),
            uri,
            path: None,
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
            via_console: false,
        };
        let span = tracing::error_span!(
            "request",
            %request_id,
            account = field::Empty,
            operation = field::Empty,
        );
        Self { record: Box::new(record), metrics, guard, span, event: None, trace: None }
    }

    /// Sets the event that an observer gets of this request.
    pub(crate) fn set_event(&mut self, event: Option<Box<RequestEvent>>) {
        self.event = event;
    }

    pub(crate) fn request_id(&self) -> Uuid {
        self.record.request_id
    }

    pub(crate) fn method(&self) -> &Method {
        &self.record.method
    }

    pub(crate) fn operation(&self) -> Option<Operation> {
        self.record.operation
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Begins the trace of the request, if it is sampled.
    pub(crate) fn begin_trace(&mut self, headers: &HeaderMap) {
        if let Some(tracer) = &self.metrics.telemetry.tracer {
            let id = self.record.request_id.into_bytes();
            self.trace = tracer.begin(id, traces::of_caller(headers));
        }
    }

    pub(crate) fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.trace.clone()
    }

    pub(crate) fn client_request_id(&self) -> Option<&HeaderValue> {
        self.record.client_request_id.as_ref()
    }

    pub(crate) fn set_client_request_id(&mut self, id: HeaderValue) {
        self.record.client_request_id = Some(id);
    }

    pub(crate) fn set_authorization(&mut self, authorization: Option<HeaderValue>) {
        self.record.authorization = authorization;
    }

    pub(crate) fn set_account(&mut self, account: &Arc<Account>) {
        self.span.record("account", account.name.as_str());
        self.record.account = Some(Arc::clone(account));
    }

    pub(crate) fn set_operation(&mut self, operation: Operation) {
        self.span.record("operation", operation.name());
        self.record.operation = Some(operation);
    }

    pub(crate) fn set_via_console(&mut self, via_console: bool) {
        self.record.via_console = via_console;
    }

    pub(crate) fn set_body_progress(&mut self, progress: Option<Arc<BodyProgress>>) {
        self.record.received = progress;
    }

    /// Returns whether the rest of the request's body was abandoned, so that the connection cannot carry
    /// another request.
    pub(crate) fn is_body_abandoned(&self) -> bool {
        self.record.received.as_ref().is_some_and(|progress| progress.is_abandoned())
    }

    /// Records the reply's status and refusal. Of the request's head only what the access log needs is kept.
    pub(crate) fn answer(&mut self, status: StatusCode, refusal: Option<&Refusal>) {
        if self.record.status.replace(status).is_none() {
            self.metrics.answered(self.record.service);
            self.guard.reply();
        }
        self.record.error = refusal.map(Refusal::code);
        self.metrics.refusals.write(&self.record.refused(), status, refusal);
        let is_path_logged = self.metrics.telemetry.access_log.is_some() || self.trace.is_some();
        self.record.forget_head(is_path_logged);
        self.record.first_byte = Some(self.record.started.elapsed());
    }

    /// Shows the reply to the observer, if there is one.
    pub(crate) fn announce(&mut self, headers: &HeaderMap, refusal: Option<&Refusal>) {
        let Some((event, observer)) = self.event.as_mut().zip(self.metrics.watch().observer()) else {
            return;
        };
        event.client_request_id =
            self.record.client_request_id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned);
        event.operation = self.record.operation;
        event.account = self.record.account.as_ref().map(|account| account.name.clone());
        event.status = self.record.status;
        event.first_byte = self.record.first_byte;
        observe::answer(event, headers, refusal);
        observer.answered(event);
    }

    /// Counts the request among those in progress over HTTP/2. Returns false if there are too many.
    pub(crate) fn begin_stream(&mut self) -> bool {
        self.guard.begin_stream()
    }

    /// Returns the connection's part of the memory for replies.
    pub(crate) fn replies(&self) -> Option<&ConnectionReplies> {
        self.guard.replies()
    }

    /// Counts bytes of the reply's body that were handed to the connection.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.record.sent += bytes;
        self.guard.replied(bytes);
    }

    /// Records that the whole reply was handed to the connection.
    pub(crate) fn finish(&mut self) {
        self.record.finished = true;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.record.status.is_none() {
            self.metrics.answered(self.record.service);
        }
        let elapsed = self.record.started.elapsed();
        if let Some(log) = &self.metrics.telemetry.access_log {
            access_log::write(log, &self.record, elapsed);
        }
        if let (Some(tracer), Some(trace)) = (&self.metrics.telemetry.tracer, self.trace.take()) {
            traces::finish(tracer, trace, &self.record, elapsed);
        }
        self.metrics.end(&self.record, elapsed);
        let watch = self.metrics.watch();
        if let Some((mut event, observer)) = self.event.take().zip(watch.observer())
            && watch.interest().is_all()
        {
            (event.received, event.sent) = (self.record.received(), self.record.sent);
            (event.total, event.is_aborted) = (Some(elapsed), !self.record.finished);
            observer.ended(event);
        }
    }
}
