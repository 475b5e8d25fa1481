//! The log of refusals: answers of 401, 403 and 5xx, also if the access log is off. An entry holds the reason
//! that the client gets and the caller that the request claims. It holds no signature, no token, no query and
//! no string to sign, which may contain keys and signatures of sources. Sub-requests of a batch have their
//! own entries.
//!
//! Entries are rate-limited. Each reason has a few entries in a time window; the first entry after the window
//! reports how many were suppressed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, StatusCode, Uri};
use lazuli_protocol::error::{ErrorCode, Refusal};
use lazuli_protocol::{Operation, Query, ServiceKind};
use uuid::Uuid;

/// Target of the log entries, for filters.
pub const TARGET: &str = "refused";
/// Maximum number of entries for one reason in one [`WINDOW`].
const MAX_ENTRIES: u32 = 10;
/// Length of a time window: limits a flood to one entry per second for each reason.
const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of logged characters of a reason.
const MAX_REASON: usize = 256;

/// Entries are rate-limited by status and error code. The protocol's error codes are few, so the map stays
/// small.
type Reason = (StatusCode, Option<ErrorCode>);

/// The facts known of a refused request.
pub(crate) struct Refused<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) service: ServiceKind,
    pub(crate) operation: Option<Operation>,
    pub(crate) account: Option<&'a str>,
    pub(crate) peer: SocketAddr,
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) authorization: Option<&'a HeaderValue>,
}

/// Logs refusals at a limited rate.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    windows: Mutex<HashMap<Reason, RateWindow>>,
}

#[derive(Debug)]
struct RateWindow {
    began: Instant,
    entries: u32,
    suppressed: u64,
}

/// Returns whether answers with this status are logged.
fn is_logged(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) || status.is_server_error()
}

impl RefusalLog {
    /// Logs a refusal, unless the limit of its reason is reached.
    pub(crate) fn write(&self, refused: &Refused<'_>, status: StatusCode, refusal: Option<&Refusal>) {
        if !is_logged(status) {
            return;
        }
        let code = refusal.map(Refusal::code);
        let Some(suppressed) = self.admit((status, code), Instant::now()) else { return };
        let query = refused.uri.query().and_then(|query| Query::parse(query).ok()).unwrap_or_default();
        tracing::warn!(
            target: TARGET,
            request_id = %refused.request_id,
            service = refused.service.name(),
            operation = refused.operation.map(|operation| operation.name()),
            account = refused.account,
            caller = lazuli_auth::claimed_caller(&query, refused.authorization),
            peer = %refused.peer,
            method = refused.method.as_str(),
            path = refused.uri.path(),
            status = status.as_u16(),
            error = code.map(|code| code.name()),
            reason = refusal.map(reason),
            suppressed,
            "refused",
        );
    }

    /// Returns the number of entries suppressed since the last one if a reason may have an entry now.
    fn admit(&self, reason: Reason, now: Instant) -> Option<u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows.entry(reason).or_insert(RateWindow { began: now, entries: 0, suppressed: 0 });
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.entries) = (now, 0);
        }
        if window.entries == MAX_ENTRIES {
            window.suppressed += 1;
            return None;
        }
        window.entries += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

/// Returns the reason that the client gets, without the string to sign.
fn reason(refusal: &Refusal) -> String {
    const DETAILS: [&str; 2] = ["AuthenticationErrorDetail", "ExtendedErrorDetail"];
    let detail = refusal.details().iter().find(|(name, _)| DETAILS.contains(name));
    let text = match detail {
        Some((_, text)) if text.contains("tring to sign") => "The signature does not match.",
        Some((_, text)) => text,
        None => refusal.text(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_limited_for_each_reason_and_report_how_many_were_suppressed() {
        let (log, began) = (RefusalLog::default(), Instant::now());
        let denied = (StatusCode::FORBIDDEN, Some(ErrorCode::AuthenticationFailed));
        let busy = (StatusCode::SERVICE_UNAVAILABLE, Some(ErrorCode::ServerBusy));
        for _ in 0..MAX_ENTRIES {
            assert_eq!(log.admit(denied, began), Some(0));
        }
        for _ in 0..100 {
            assert_eq!(log.admit(denied, began + WINDOW / 2), None);
        }
        assert_eq!(log.admit(busy, began), Some(0), "another reason");
        assert_eq!(log.admit(denied, began + WINDOW), Some(100));
        assert_eq!(log.admit(denied, began + WINDOW), Some(0));
    }

    #[test]
    fn logged_reasons_contain_no_string_to_sign() {
        for (detail, expected) in [
            ("Request date header not specified.", "Request date header not specified."),
            ("Signature did not match. String to sign used was r\n\nsecret", "The signature does not match."),
            ("The MAC 'x' … Server used following string to sign: 'secret'", "The signature does not match."),
            ("two\nlines", "two"),
        ] {
            let refusal =
                Refusal::new(ErrorCode::AuthenticationFailed).detail("AuthenticationErrorDetail", detail);
            assert_eq!(reason(&refusal), expected);
        }
    }

    #[test]
    fn denied_access_and_server_errors_are_logged() {
        for (status, logged) in
            [(401, true), (403, true), (500, true), (503, true), (404, false), (200, false)]
        {
            assert_eq!(is_logged(StatusCode::from_u16(status).unwrap()), logged, "{status}");
        }
    }
}
