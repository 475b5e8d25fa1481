//! The line of a request in the access log. Lines never contain a query or an `Authorization` header, because
//! those have signatures and tokens.

use std::time::Duration;

use lazuli_telemetry::AccessLog;

use crate::record::RequestRecord;

/// Logs a finished request.
pub(crate) fn write(log: &AccessLog, record: &RequestRecord, elapsed: Duration) {
    log.write(|line| {
        line.text("service", record.service.name());
        line.optional("operation", record.operation.map(|operation| operation.name()));
        line.optional("account", record.account.as_ref().map(|account| account.name.as_str()));
        line.text("method", record.method.as_str());
        line.text("path", record.path());
        if let Some(status) = record.status {
            line.number("status", status.as_u16().into());
        }
        line.optional("error", record.error.map(|code| code.name()));
        line.number("request_bytes", record.received());
        line.number("reply_bytes", record.sent);
        if let Some(first_byte) = record.first_byte {
            line.number("first_byte_us", as_micros(first_byte));
        }
        line.number("total_us", as_micros(elapsed));
        line.flag("aborted", !record.finished);
        line.display("peer", record.peer);
        line.optional("via", record.via_console.then_some("console"));
        line.display("request_id", record.request_id);
        line.optional("client_request_id", record.client_request_id.as_ref().and_then(|id| id.to_str().ok()));
    });
}

fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
