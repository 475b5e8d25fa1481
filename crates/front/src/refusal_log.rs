//! The log of refusals: answers of 401, 403 and 5xx, whatever becomes of the access log. An entry has the reason that the
//! client gets and what the request says of its caller. It has no signature, no token, no query, and no string to sign,
//! which may hold keys and signatures of sources.
//!
//! A flood of refusals must not become a flood of entries. So each reason has a few entries in a window of time; the first
//! entry after the window says how many were left out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use lazuli_protocol::Query;
use lazuli_protocol::error::{ErrorCode, Refusal};

use crate::exchange::Record;

/// The target of the entries, for filters.
pub const TARGET: &str = "refused";
/// Entries for one reason in one [`WINDOW`].
const ENTRIES: u32 = 10;
/// Long enough that a flood costs an entry a second for each reason.
const WINDOW: Duration = Duration::from_secs(10);
/// Characters of a reason that are logged.
const MAX_REASON: usize = 256;

/// A reason: one of the codes of the protocol, so there are few.
type Reason = (StatusCode, Option<ErrorCode>);

/// Writes refusals down, within limits.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    windows: Mutex<HashMap<Reason, Window>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    entries: u32,
    suppressed: u64,
}

/// Whether answers of that status are logged.
pub(crate) fn is_logged(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) || status.is_server_error()
}

impl RefusalLog {
    /// Logs a refusal, unless its reason has had its entries.
    pub(crate) fn write(&self, record: &Record, status: StatusCode, refusal: Option<&Refusal>) {
        let code = refusal.map(Refusal::code);
        let Some(suppressed) = self.admit((status, code), Instant::now()) else { return };
        let query = record.uri.query().and_then(|query| Query::parse(query).ok()).unwrap_or_default();
        tracing::warn!(
            target: TARGET,
            request_id = %record.request_id,
            service = record.service.name(),
            operation = record.operation.map(|operation| operation.name()),
            account = record.account.as_ref().map(|account| account.name.as_str()),
            caller = lazuli_auth::claimed_caller(&query, record.authorization.as_ref()),
            peer = %record.peer,
            method = record.method.as_str(),
            path = record.uri.path(),
            status = status.as_u16(),
            error = code.map(|code| code.name()),
            reason = refusal.map(reason),
            suppressed,
            "refused",
        );
    }

    /// Whether a reason may have an entry now, and how many were left out since its last one.
    fn admit(&self, reason: Reason, now: Instant) -> Option<u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows.entry(reason).or_insert(Window { began: now, entries: 0, suppressed: 0 });
        if now.saturating_duration_since(window.began) >= WINDOW {
            (window.began, window.entries) = (now, 0);
        }
        if window.entries == ENTRIES {
            window.suppressed += 1;
            return None;
        }
        window.entries += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

/// The reason that the client gets, without the string to sign.
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
    fn each_reason_has_a_few_entries_in_a_window_and_the_next_says_how_many_were_left_out() {
        let (log, began) = (RefusalLog::default(), Instant::now());
        let denied = (StatusCode::FORBIDDEN, Some(ErrorCode::AuthenticationFailed));
        let busy = (StatusCode::SERVICE_UNAVAILABLE, Some(ErrorCode::ServerBusy));
        for _ in 0..ENTRIES {
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
    fn a_reason_has_no_string_to_sign() {
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
    fn refusals_of_access_and_failures_of_the_server_are_logged() {
        for (status, logged) in
            [(401, true), (403, true), (500, true), (503, true), (404, false), (200, false)]
        {
            assert_eq!(is_logged(StatusCode::from_u16(status).unwrap()), logged, "{status}");
        }
    }
}
