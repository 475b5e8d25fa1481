//! The log of refusals: answers of 401, 403 and 5xx, also if the access log is off. An entry holds the reason
//! that the client gets and the caller that the request claims. It holds no signature, no token, no query and
//! no string to sign, which may contain keys and signatures of sources. Sub-requests of a batch have their
//! own entries.
//!
//! Entries are rate-limited for each reason and peer, see [`LogRate`].

use std::net::SocketAddr;
use std::time::Instant;

use http::{HeaderValue, Method, StatusCode, Uri};
use lazuli_protocol::error::{ErrorCode, Refusal};
use lazuli_protocol::log_rate::{LogRate, REFUSAL_LOG};
use lazuli_protocol::{Operation, Query, ServiceKind};
use uuid::Uuid;

use crate::record::logged_path;

/// Maximum number of logged characters of a reason.
const MAX_REASON: usize = 256;

/// Maximum length of a logged path in bytes. Clients without credentials choose it.
const MAX_PATH: usize = 1024;

/// Entries are rate-limited by status and error code. The protocol's error codes are few.
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
    rate: LogRate<Reason>,
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
        let Some(suppressed) = self.rate.admit((status, code), refused.peer.ip(), Instant::now()) else {
            return;
        };
        let query = refused.uri.query().and_then(|query| Query::parse(query).ok()).unwrap_or_default();
        tracing::warn!(
            target: REFUSAL_LOG,
            request_id = %refused.request_id,
            service = refused.service.name(),
            operation = refused.operation.map(|operation| operation.name()),
            account = refused.account,
            caller = lazuli_auth::claimed_caller(&query, refused.authorization),
            peer = %refused.peer,
            method = refused.method.as_str(),
            path = logged_path(refused.uri, MAX_PATH),
            status = status.as_u16(),
            error = code.map(|code| code.name()),
            reason = refusal.map(reason),
            suppressed,
            "refused",
        );
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
