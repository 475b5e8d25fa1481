//! Headers of replies.

use http::header::{ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_concurrency::Validators;
use lazuli_protocol::date;

/// Adds a header whose value is known to be good for one; a value that is not, is left out.
pub(crate) fn put(headers: &mut HeaderMap, name: &'static str, value: impl AsRef<str>) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_ref().as_bytes()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// `ETag` and `Last-Modified`.
pub(crate) fn validators(headers: &mut HeaderMap, validators: Validators) {
    if let Ok(etag) = HeaderValue::try_from(validators.etag.to_string()) {
        headers.insert(ETAG, etag);
    }
    headers.insert(LAST_MODIFIED, date::header_value(validators.last_modified));
}
