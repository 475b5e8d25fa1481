//! Fuzz targets: one function for each parser that reads the network. No input may panic.
//!
//! If a parser has a writer, the parsed value is written, parsed again and compared.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::address::Address;
use crate::header::Headers;
use crate::kind::ServiceKind;
use crate::listing::{MAX_RESULTS, PageRequest};
use crate::metadata::Metadata;
use crate::policy::SignedIdentifiers;
use crate::properties::{ServiceProperties, Update};
use crate::query::Query;
use crate::range::ByteRange;
use crate::version::Version;
use crate::{date, names, structured};

/// Fuzzes [`Query::parse`] with its typed readers, and [`PageRequest::parse`].
pub fn query(data: &[u8]) {
    let Ok(query) = Query::parse(&String::from_utf8_lossy(data)) else { return };
    for (name, _) in query.iter() {
        let _ = (query.number(name, 1..=5000), query.flag(name), query.list(name, &[("metadata", ())]));
    }
    for service in ServiceKind::ALL {
        let _ = PageRequest::parse(service, &query, MAX_RESULTS);
    }
}

/// Fuzzes [`Update::parse`] for every service.
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

/// Fuzzes [`SignedIdentifiers::parse`].
pub fn signed_identifiers(data: &[u8]) {
    if let Ok(identifiers) = SignedIdentifiers::parse(data) {
        assert_eq!(SignedIdentifiers::parse(identifiers.to_xml().as_bytes()), Ok(identifiers));
    }
}

/// Fuzzes the parsers of [`date`].
pub fn dates(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(moment) = date::parse_http(&text) {
        assert_eq!(date::parse_http(&date::rfc1123(moment)), Some(moment));
    }
    if let Some(moment) = date::parse_iso8601(&text) {
        assert_eq!(date::parse_snapshot(&date::iso8601(moment)), Some(moment));
    }
}

/// Fuzzes [`Address::parse`]. The input has three lines: host, path, query.
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

/// Fuzzes [`ByteRange`] from both headers.
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

/// Fuzzes [`Metadata`] and the typed header readers. The input has lines of `name:value`.
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

/// Fuzzes [`Version::parse`].
pub fn version(data: &[u8]) {
    if let Some(version) = Version::parse(&String::from_utf8_lossy(data)) {
        assert_eq!(Version::parse(&version.to_string()), Some(version));
    }
}

/// Fuzzes the decoder of structured messages. The input has the announced length, the length of the pieces,
/// and the bytes after a valid version and length.
pub fn structured(data: &[u8]) {
    let Some((&[length, piece], rest)) = data.split_first_chunk() else { return };
    let mut message = vec![1];
    message.extend_from_slice(&(rest.len() as u64 + 9).to_le_bytes());
    message.extend_from_slice(rest);
    if let Ok(content) = structured::content(&message, length.into(), piece.into()) {
        assert_eq!(content.len(), usize::from(length));
    }
}

/// Fuzzes the beginning of a connection from a proxy and, as text, the headers of a proxy.
pub fn proxies(bytes: &[u8]) {
    if let crate::proxies::Preface::Header { length, .. } = crate::proxies::parse_preface(bytes) {
        assert!(length <= bytes.len() && length <= crate::proxies::MAX_PREFACE);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = crate::proxies::forwarded_client(text.lines(), |address| address.is_loopback());
        let _ = crate::proxies::forwarded_protocol(text);
    }
}
