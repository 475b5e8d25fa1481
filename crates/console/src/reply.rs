//! Replies of the console: JSON, refusals, and the headers that all replies have.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use lazuli_concurrency::Timestamp;
use lazuli_front::{ConsoleBody, whole};
use lazuli_protocol::date;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

/// A reply, or the reason why there is none.
pub(crate) type Result<T = Response<ConsoleBody>> = std::result::Result<T, Problem>;

/// Rules for the page: it may load its own scripts and styles, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' blob:; media-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none'; \
    form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
/// Rules for content of clients: it may load and do nothing.
const CONTENT_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// A request that the console refuses.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidRequest", message)
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "There is nothing at this address.")
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// Refuses a request without a valid session.
    pub(crate) fn signed_out() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "SignedOut", "Sign in first.")
    }

    /// Logs a failure of the server and returns its refusal.
    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        tracing::error!(%error, "a request to the console failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "The server failed. Its log says why.")
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn into_reply(self) -> Response<ConsoleBody> {
        let body = json!({
            "code": self.code,
            "message": self.message,
            "requestId": Uuid::from_bytes(rand::random()).to_string(),
            "detail": null,
        });
        let mut reply = json(&body);
        *reply.status_mut() = self.status;
        reply
    }
}

impl From<lazuli_protocol::Refusal> for Problem {
    fn from(refusal: lazuli_protocol::Refusal) -> Self {
        Self::new(refusal.status(), refusal.code().name(), refusal.text())
    }
}

/// Returns a reply of 200 with JSON.
pub(crate) fn json(value: &impl Serialize) -> Response<ConsoleBody> {
    let mut reply = Response::new(whole(serde_json::to_vec(value).unwrap_or_default()));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Formats a time as RFC 3339 with 7 fractional digits.
pub(crate) fn time_text(time: Timestamp) -> String {
    date::iso8601(time.min(Timestamp::MAX))
}

/// Adds the headers that all replies have. Keeps a cache rule that is already there.
pub(crate) fn harden(headers: &mut HeaderMap) {
    let mut put = |name: &'static str, value: &'static str| {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    };
    put("x-content-type-options", "nosniff");
    put("referrer-policy", "no-referrer");
    put("cross-origin-opener-policy", "same-origin");
    put("cross-origin-resource-policy", "same-origin");
    put("content-security-policy", PAGE_POLICY);
    put("x-frame-options", "DENY");
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Replaces the headers of a reply with content of clients, so that a browser never takes it for a document
/// of the console. The content is shown only if its type is harmless, and is downloaded otherwise.
pub(crate) fn contain(headers: &mut HeaderMap, name: Option<&str>) {
    harden(headers);
    let policy = HeaderValue::from_static(CONTENT_POLICY);
    headers.insert(HeaderName::from_static("content-security-policy"), policy);
    for name in ["set-cookie", "access-control-allow-origin", "refresh", "link", "location", "server"] {
        headers.remove(name);
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let disposition = match (HARMLESS.contains(&&*essence) && name.is_none(), name) {
        (true, _) => return drop(headers.remove("content-disposition")),
        (false, None) => "attachment".to_owned(),
        (false, Some(name)) => format!(
            "attachment; filename*=UTF-8''{}",
            percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC)
        ),
    };
    let value = HeaderValue::try_from(disposition).unwrap_or_else(|_| HeaderValue::from_static("attachment"));
    headers.insert(HeaderName::from_static("content-disposition"), value);
}

/// Types that a browser shows without running anything. SVG is not among them.
const HARMLESS: [&str; 16] = [
    "audio/aac",
    "audio/flac",
    "audio/mp4",
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "audio/webm",
    "image/avif",
    "image/bmp",
    "image/gif",
    "image/jpeg",
    "image/png",
    "image/webp",
    "video/mp4",
    "video/ogg",
    "video/webm",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_content_is_shown() {
        for (content_type, name, disposition) in [
            ("image/png", None, None),
            ("image/png; q=1", None, None),
            ("image/png", Some("a\"b.png"), Some("attachment; filename*=UTF-8''a%22b%2Epng")),
            ("image/svg+xml", None, Some("attachment")),
            ("text/html", None, Some("attachment")),
            ("application/pdf", None, Some("attachment")),
            ("", None, Some("attachment")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            headers.insert("content-disposition", HeaderValue::from_static("inline"));
            headers.insert("set-cookie", HeaderValue::from_static("a=b"));
            contain(&mut headers, name);
            let got = headers.get("content-disposition").and_then(|value| value.to_str().ok());
            assert_eq!(got, disposition, "{content_type}");
            assert!(headers.get("set-cookie").is_none());
            assert_eq!(headers["content-security-policy"], CONTENT_POLICY);
            assert_eq!(headers["x-content-type-options"], "nosniff");
        }
    }
}
