//! The access log: one event of target `access` for each request. Events never contain a query or an
//! `Authorization` header, because those have signatures and tokens.

use std::time::Duration;

use crate::record::RequestRecord;

/// Target of access log events, for filters.
pub const TARGET: &str = "access";

/// Logs a finished request.
pub(crate) fn write(record: &RequestRecord, elapsed: Duration) {
    if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
        return;
    }
    tracing::info!(
        target: TARGET,
        request_id = %record.request_id,
        client_request_id = record.client_request_id.as_ref().and_then(|id| id.to_str().ok()),
        service = record.service.name(),
        operation = record.operation.map(|operation| operation.name()),
        account = record.account.as_ref().map(|account| account.name.as_str()),
        method = record.method.as_str(),
        path = record.path(),
        status = record.status.map(|status| status.as_u16()),
        error = record.error.map(|code| code.name()),
        request_bytes = record.received(),
        reply_bytes = record.sent,
        first_byte_us = record.first_byte.map(as_micros),
        total_us = as_micros(elapsed),
        aborted = !record.finished,
        peer = %record.peer,
        via = record.via_console.then_some("console"),
    );
}

fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
