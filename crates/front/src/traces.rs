//! The span of a request. Spans never contain a query or an `Authorization` header, because those have
//! signatures and tokens.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use lazuli_telemetry::{RequestFacts, RequestTrace, TraceContext, Tracer, Value};

use crate::record::RequestRecord;

/// Returns the trace that the caller of a request names.
pub(crate) fn of_caller(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceContext::parse(text("traceparent")?, text("tracestate"))
}

/// Adds a finished request.
pub(crate) fn finish(tracer: &Tracer, trace: Arc<RequestTrace>, record: &RequestRecord, elapsed: Duration) {
    let text = |text: &str| Value::Text(text.to_owned());
    let mut attributes = vec![
        ("lazuli.service", text(record.service.name())),
        ("lazuli.request_id", Value::Text(record.request_id.to_string())),
        ("http.request.method", text(record.method.as_str())),
        ("url.path", text(record.path())),
        ("client.address", Value::Text(record.peer.ip().to_string())),
        ("http.request.body.size", Value::Number(record.received())),
        ("http.response.body.size", Value::Number(record.sent)),
    ];
    if let Some(account) = &record.account {
        attributes.push(("lazuli.account", text(&account.name)));
    }
    if let Some(status) = record.status {
        attributes.push(("http.response.status_code", Value::Number(status.as_u16().into())));
    }
    if let Some(code) = record.error {
        attributes.push(("error.type", text(code.name())));
    }
    let has_failed = !record.finished || record.status.is_none_or(|status| status.is_server_error());
    let name = record.operation.map_or("(unknown)", |operation| operation.name());
    let first_byte = record.first_byte;
    tracer.finish(trace, RequestFacts { name, attributes, has_failed, first_byte, elapsed });
}
