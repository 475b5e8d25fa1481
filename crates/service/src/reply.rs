//! Headers of replies.

use http::header::{ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_concurrency::Validators;
use lazuli_protocol::date;

/// Adds a header. Omits it if the value is not a valid header value, which callers rule out.
pub fn put(headers: &mut HeaderMap, name: &'static str, value: impl AsRef<str>) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_ref().as_bytes()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Adds a header if there is a value.
pub fn put_optional(headers: &mut HeaderMap, name: &'static str, value: Option<impl AsRef<str>>) {
    if let Some(value) = value {
        put(headers, name, value);
    }
}

/// Adds `ETag` and `Last-Modified`.
pub fn put_validators(headers: &mut HeaderMap, validators: Validators) {
    put(headers, ETAG.as_str(), validators.etag.to_string());
    headers.insert(LAST_MODIFIED, date::header_value(validators.last_modified));
}
