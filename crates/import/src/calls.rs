//! Parts of requests: encoded names, headers, XML elements and times.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use http::{HeaderName, HeaderValue};
use lazuli_client::client::Call;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::date;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use quick_xml::escape::escape;

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Appends an element with text.
pub(crate) fn element(xml: &mut String, name: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = write!(xml, "<{name}>{}</{name}>", escape(value));
}

/// Adds a header. Returns an error if the value cannot be one.
pub(crate) fn header(call: &mut Call, name: &str, value: &str) -> Result<(), String> {
    let invalid = |error: &dyn Display| format!("{name}: {error}");
    let parsed = HeaderName::try_from(name).map_err(|error| invalid(&error))?;
    call.headers.insert(parsed, HeaderValue::try_from(value).map_err(|error| invalid(&error))?);
    Ok(())
}

/// Adds the headers of metadata.
pub(crate) fn metadata(call: &mut Call, metadata: Option<&BTreeMap<String, String>>) -> Result<(), String> {
    metadata
        .into_iter()
        .flatten()
        .try_for_each(|(name, value)| header(call, &format!("x-ms-meta-{name}"), value))
}

/// Encodes a part of a path or a value of a query.
pub(crate) fn encode(text: &str) -> impl Display {
    utf8_percent_encode(text, UNRESERVED)
}

/// Returns the milliseconds since 1970 of an ISO time.
pub(crate) fn unix_milliseconds(text: &str) -> Option<i64> {
    let moment = date::parse_iso8601(text)?;
    i64::try_from(moment.unix_nanos() / 1_000_000).ok()
}

/// Returns the milliseconds since 1970.
pub(crate) fn now_milliseconds() -> i64 {
    i64::try_from(SystemClock.now().unix_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_milliseconds() {
        assert_eq!(unix_milliseconds("1970-01-01T00:00:01.500Z"), Some(1500));
        assert_eq!(unix_milliseconds("soon"), None);
    }
}
