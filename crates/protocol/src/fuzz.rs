//! One function per parser that reads the network, for fuzzers: any bytes at all, and none may panic.
//!
//! Where a parser has a writer, what was read is written and read again, and has to come out the same.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::address::Address;
use crate::header::Headers;
use crate::listing::{MAX_RESULTS, Page};
use crate::metadata::Metadata;
use crate::policy::SignedIdentifiers;
use crate::properties::{ServiceProperties, Update};
use crate::query::Query;
use crate::range::ByteRange;
use crate::service::ServiceKind;
use crate::version::Version;
use crate::{date, names, structured};

/// [`Query::parse`] and its readers, [`Page::parse`] among them.
pub fn query(data: &[u8]) {
    let Ok(query) = Query::parse(&String::from_utf8_lossy(data)) else { return };
    for (name, _) in query.iter() {
        let _ = (query.number(name, 1..=5000), query.flag(name), query.list(name, &[("metadata", ())]));
    }
    for service in ServiceKind::ALL {
        let _ = Page::parse(service, &query, MAX_RESULTS);
    }
}

/// [`Update::parse`], for every service.
pub fn xml_service_properties(data: &[u8]) {
    for service in ServiceKind::ALL {
        let Ok(update) = Update::parse(service, data) else { continue };
        let mut properties = ServiceProperties::default();
        properties.apply(update);
        let written = properties.to_xml(service, Version::NEWEST);
        let mut again = ServiceProperties::default();
        match Update::parse(service, written.as_bytes()) {
            Ok(update) => again.apply(update),
            Err(refusal) => panic!("{refusal}: {written}"),
        }
        assert_eq!(properties, again);
    }
}

/// [`SignedIdentifiers::parse`].
pub fn signed_identifiers(data: &[u8]) {
    if let Ok(identifiers) = SignedIdentifiers::parse(data) {
        assert_eq!(SignedIdentifiers::parse(identifiers.to_xml().as_bytes()), Ok(identifiers));
    }
}

/// The parsers of [`date`].
pub fn dates(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(moment) = date::parse_http(&text) {
        assert_eq!(date::parse_http(&date::rfc1123(moment)), Some(moment));
    }
    if let Some(moment) = date::parse_iso8601(&text) {
        assert_eq!(date::parse_snapshot(&date::iso8601(moment)), Some(moment));
    }
}

/// [`Address::parse`]: a line with the host, a line with the path, a line with the query.
pub fn address(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (host, path) = (line(), line());
    let Ok(query) = Query::parse(line()) else { return };
    for service in ServiceKind::ALL {
        let address = Address::parse(service, host, path, &query, &["example.com".to_owned()]);
        let Ok(address) = address else { continue };
        let _ = names::check_blob(&address.container, &address.object);
        let _ = names::check_container(&address.container);
        let _ = names::check_table(&address.container);
    }
}

/// [`ByteRange`], from both of its headers.
pub fn range(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    for name in ["range", "x-ms-range"] {
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.clone())]);
        let _ = ByteRange::of_write(&headers);
        let _ = ByteRange::of_file_read(&headers);
        if let Some(range) = ByteRange::of_read(&headers)
            && let Ok(part) = range.within(1 << 40)
        {
            assert!(part.start < part.end && part.end <= 1 << 40);
        }
    }
}

/// [`Metadata`] and the typed readers, from headers: lines of `name:value`.
pub fn metadata(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in data.split(|b| *b == b'\n').take(100) {
        let (name, value) = line.split_at(line.iter().position(|b| *b == b':').unwrap_or(line.len()));
        let value = HeaderValue::from_bytes(value.strip_prefix(b":").unwrap_or_default());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
            headers.append(name, value);
        }
    }
    for name in headers.keys().map(HeaderName::as_str) {
        let _ = (headers.md5(name), headers.crc64(name), headers.date(name), headers.flag(name));
        let _ = (headers.number(name, 0..=i64::MAX), headers.parsed::<uuid::Uuid>(name));
    }
    let _ = (headers.conditions(), headers.source_conditions());
    if let Ok(metadata) = Metadata::from_headers(&headers) {
        let mut written = HeaderMap::new();
        metadata.write_headers(&mut written);
        assert_eq!(Metadata::from_headers(&written), Ok(metadata));
    }
}

/// [`Version::parse`].
pub fn version(data: &[u8]) {
    if let Some(version) = Version::parse(&String::from_utf8_lossy(data)) {
        assert_eq!(Version::parse(&version.to_string()), Some(version));
    }
}

/// A structured message: the length that is announced, the length of its pieces, then its bytes behind a good version
/// and length, so that the rest is reached.
pub fn structured(data: &[u8]) {
    let Some((&[length, piece], rest)) = data.split_first_chunk() else { return };
    let mut message = vec![1];
    message.extend_from_slice(&(rest.len() as u64 + 9).to_le_bytes());
    message.extend_from_slice(rest);
    if let Ok(content) = structured::content(&message, length.into(), piece.into()) {
        assert_eq!(content.len(), usize::from(length));
    }
}
