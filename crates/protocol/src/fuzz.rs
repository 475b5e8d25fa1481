//! Fuzz targets: one function for each parser that reads the network. No input may panic. Each returns
//! whether the input is valid, and [`seeds`] has valid inputs for each.
//!
//! If a parser has a writer, the parsed value is written, parsed again and compared.

pub mod seeds;

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
use crate::{date, names, proxies, structured};

/// Fuzzes [`Query::parse`] with its typed readers, and [`PageRequest::parse`].
pub fn query(data: &[u8]) -> bool {
    let Ok(query) = Query::parse(&String::from_utf8_lossy(data)) else { return false };
    for (name, _) in query.iter() {
        let _ = (query.number(name, 1..=5000), query.flag(name), query.list(name, &[("metadata", ())]));
    }
    ServiceKind::ALL.into_iter().all(|service| PageRequest::parse(service, &query, MAX_RESULTS).is_ok())
}

/// Fuzzes [`Update::parse`] for every service.
pub fn xml_service_properties(data: &[u8]) -> bool {
    let mut is_valid = false;
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
        is_valid = true;
    }
    is_valid
}

/// Fuzzes [`SignedIdentifiers::parse`].
pub fn signed_identifiers(data: &[u8]) -> bool {
    let Ok(identifiers) = SignedIdentifiers::parse(data) else { return false };
    let has_identifiers = !identifiers.0.is_empty();
    assert_eq!(SignedIdentifiers::parse(identifiers.to_xml().as_bytes()), Ok(identifiers));
    has_identifiers
}

/// Fuzzes the parsers of [`date`].
pub fn dates(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let (http, iso8601) = (date::parse_http(&text), date::parse_iso8601(&text));
    if let Some(moment) = http {
        assert_eq!(date::parse_http(&date::rfc1123(moment)), Some(moment));
    }
    if let Some(moment) = iso8601 {
        assert_eq!(date::parse_snapshot(&date::iso8601(moment)), Some(moment));
    }
    http.or(iso8601).is_some()
}

/// Fuzzes [`Address::parse`]. The input has three lines: host, path, query.
pub fn address(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (host, path) = (line(), line());
    let Ok(query) = Query::parse(line()) else { return false };
    let mut is_valid = false;
    for service in ServiceKind::ALL {
        let suffixes = ["example.com".to_owned()];
        let Ok(address) = Address::parse(service, host, path, &query, &suffixes) else { continue };
        let checks = [
            names::check_blob(&address.container, &address.object),
            names::check_container(&address.container),
            names::check_queue(&address.container),
            names::check_share(&address.container),
            names::check_table(&address.container),
        ];
        is_valid |= names::is_account(&address.account) && checks.iter().any(Result::is_ok);
        let _ = address.endpoint("http", host);
        if let Ok(inner) = address.sub_request(service, path, &query) {
            assert_eq!(inner.account, address.account);
        }
        let _ = Address::of_source(service, host, path, &query, &suffixes);
    }
    is_valid
}

/// Fuzzes [`ByteRange`] from both headers.
pub fn range(data: &[u8]) -> bool {
    let Ok(value) = HeaderValue::from_bytes(data) else { return false };
    let mut is_range = false;
    for name in ["range", "x-ms-range"] {
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.clone())]);
        let _ = ByteRange::of_write(&headers);
        let _ = ByteRange::of_file_read(&headers);
        if let Some(range) = ByteRange::of_read(&headers)
            && let Ok(part) = range.within(1 << 40)
        {
            assert!(part.start < part.end && part.end <= 1 << 40);
            is_range = true;
        }
    }
    is_range
}

/// Fuzzes [`Metadata`] and the typed header readers. The input has lines of `name:value`.
pub fn metadata(data: &[u8]) -> bool {
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
    let conditions = [headers.conditions(), headers.source_conditions(), headers.blob_conditions()];
    let Ok(metadata) = Metadata::from_headers(&headers) else { return false };
    let has_metadata = !metadata.is_empty();
    let mut written = HeaderMap::new();
    metadata.write_headers(&mut written);
    assert_eq!(Metadata::from_headers(&written), Ok(metadata));
    has_metadata && conditions.iter().all(Result::is_ok)
}

/// Fuzzes [`Version::parse`].
pub fn version(data: &[u8]) -> bool {
    let Some(version) = Version::parse(&String::from_utf8_lossy(data)) else { return false };
    assert_eq!(Version::parse(&version.to_string()), Some(version));
    true
}

/// Fuzzes the decoder of structured messages. The input has the announced length, the length of the pieces,
/// and the bytes after a valid version and length.
pub fn structured(data: &[u8]) -> bool {
    let Some((&[length, piece], rest)) = data.split_first_chunk() else { return false };
    let mut message = vec![1];
    message.extend_from_slice(&(rest.len() as u64 + 9).to_le_bytes());
    message.extend_from_slice(rest);
    let Ok(content) = structured::content(&message, length.into(), piece.into()) else { return false };
    assert_eq!(content.len(), usize::from(length));
    true
}

/// Fuzzes the beginning of a connection from a proxy and, as text, the headers of a proxy.
pub fn proxies(bytes: &[u8]) -> bool {
    let mut is_valid = false;
    if let proxies::Preface::Header { length, .. } = proxies::parse_preface(bytes) {
        assert!(length <= bytes.len() && length <= proxies::MAX_PREFACE);
        is_valid = true;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return is_valid };
    let client = proxies::forwarded_client(text.lines(), |address| address.is_loopback());
    is_valid || client.is_some() || proxies::forwarded_protocol(text).is_some()
}
