//! Metadata: the name-value pairs that a client attaches to a container, blob, queue, share, directory or
//! file.
//!
//! Names are C# identifiers, compared without regard to case and stored as spelled. A header map has
//! lower-case names, so the front door and this module pass the spelling in [`SPELLING`], in both directions.
//! Values are ASCII header values.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, Refusal};
use crate::xml;

/// Prefix of the names of metadata headers.
pub const PREFIX: &str = "x-ms-meta-";
/// Internal header with the metadata names that have capital letters, as spelled, separated by commas. Never
/// sent.
pub const SPELLING: HeaderName = HeaderName::from_static("lazuli-metadata-spelling");
/// Maximum bytes of all names and values together.
const MAX_SIZE: usize = 8 << 10;

/// Name-value pairs, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Vec<(String, String)>);

impl Metadata {
    /// Reads the `x-ms-meta-` headers of a request.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut pairs = Vec::new();
        let mut size = 0;
        for (header, value) in headers {
            let Some(name) = header.as_str().strip_prefix(PREFIX) else { continue };
            if name.is_empty() {
                return Err(Refusal::new(ErrorCode::EmptyMetadataKey));
            }
            let text = value.to_str().ok().filter(|_| is_identifier(name));
            let text = text.ok_or_else(|| invalid(header, value))?.trim();
            size += name.len() + text.len();
            if size > MAX_SIZE {
                return Err(
                    Refusal::new(ErrorCode::MetadataTooLarge).detail("MaxLimit", MAX_SIZE.to_string())
                );
            }
            pairs.push((name.to_owned(), text.to_owned()));
        }
        pairs.sort_unstable();
        match pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(Refusal::new(ErrorCode::InvalidMetadata)
                .detail("HeaderName", format!("{PREFIX}{}", pair[0].0))
                .detail("Reason", "The name appears more than once.")),
            None => Ok(Self(spelled(pairs, headers))),
        }
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pairs, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Adds the `x-ms-meta-` headers to a reply.
    pub fn write_headers(&self, headers: &mut HeaderMap) {
        let has_capitals = |name: &&str| name.bytes().any(|byte| byte.is_ascii_uppercase());
        let spelled: Vec<_> = self.iter().map(|(name, _)| name).filter(has_capitals).collect();
        if let (false, Ok(names)) = (spelled.is_empty(), HeaderValue::try_from(spelled.join(","))) {
            headers.insert(SPELLING, names);
        }
        for (name, value) in self.iter() {
            // Names and values were read from headers, so they are valid in headers.
            let name = HeaderName::try_from(format!("{PREFIX}{name}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }

    /// Writes the `Metadata` element of a listing.
    pub fn write_xml(&self, xml: &mut xml::Writer) {
        xml.open("Metadata");
        for (name, value) in self.iter() {
            xml.text(name, value);
        }
        xml.close();
    }
}

/// Restores the spelling of lower-case names from the headers.
fn spelled(mut pairs: Vec<(String, String)>, headers: &HeaderMap) -> Vec<(String, String)> {
    let names = headers.get(SPELLING).and_then(|names| names.to_str().ok()).unwrap_or_default();
    for (name, _) in &mut pairs {
        if let Some(spelled) = names.split(',').find(|spelled| spelled.eq_ignore_ascii_case(name)) {
            *name = spelled.to_owned();
        }
    }
    pairs
}

/// Returns whether a header name is a C# identifier.
fn is_identifier(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn invalid(header: &HeaderName, value: &HeaderValue) -> Refusal {
    Refusal::new(ErrorCode::InvalidMetadata)
        .detail("HeaderName", header.as_str())
        .detail("HeaderValue", String::from_utf8_lossy(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Result<Metadata, ErrorCode> {
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-version", HeaderValue::from_static("2021-12-02"));
        for (name, value) in pairs {
            let name = HeaderName::try_from(format!("x-ms-meta-{name}")).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        Metadata::from_headers(&headers).map_err(|refusal| refusal.code())
    }

    #[test]
    fn pairs_are_returned_as_headers_and_in_listings() {
        let metadata = metadata(&[("Zeta", "a < b"), ("_x1", ""), ("alpha", " spaced ")]).unwrap();
        let pairs: Vec<_> = metadata.iter().collect();
        assert_eq!(pairs, [("_x1", ""), ("alpha", "spaced"), ("zeta", "a < b")]);
        let mut headers = HeaderMap::new();
        metadata.write_headers(&mut headers);
        assert_eq!(headers["x-ms-meta-zeta"], "a < b");
        assert_eq!(Metadata::from_headers(&headers), Ok(metadata.clone()));
        let mut xml = xml::Writer::new();
        metadata.write_xml(&mut xml);
        let expected = "<Metadata><_x1></_x1><alpha>spaced</alpha><zeta>a &lt; b</zeta></Metadata>";
        assert!(xml.finish().ends_with(expected));
        let stored = serde_json::to_string(&metadata).unwrap();
        assert_eq!(serde_json::from_str::<Metadata>(&stored).unwrap(), metadata);
    }

    #[test]
    fn the_spelling_header_restores_the_case_of_names() {
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-meta-filename", HeaderValue::from_static("1"));
        headers.insert("x-ms-meta-b", HeaderValue::from_static("2"));
        headers.insert(SPELLING, HeaderValue::from_static("Other,FileName"));
        let metadata = Metadata::from_headers(&headers).unwrap();
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("b", "2"), ("FileName", "1")]);
        let mut written = HeaderMap::new();
        metadata.write_headers(&mut written);
        assert_eq!(
            (&written["x-ms-meta-filename"], &written[SPELLING]),
            (&headers["x-ms-meta-filename"], &HeaderValue::from_static("FileName"))
        );
    }

    #[test]
    fn names_values_and_size_are_limited() {
        let fits = "v".repeat(MAX_SIZE - 1);
        let too_long = "v".repeat(MAX_SIZE);
        for (pairs, expected) in [
            (&[][..], None),
            (&[("a", fits.as_str())], None),
            (&[("a", too_long.as_str())], Some(ErrorCode::MetadataTooLarge)),
            (&[("a", fits.as_str()), ("b", "")], Some(ErrorCode::MetadataTooLarge)),
            (&[("", "1")], Some(ErrorCode::EmptyMetadataKey)),
            (&[("a", "1"), ("A", "2")], Some(ErrorCode::InvalidMetadata)),
            (&[("a-b", "1")], Some(ErrorCode::InvalidMetadata)),
            (&[("1a", "1")], Some(ErrorCode::InvalidMetadata)),
            (&[("a.b", "1")], Some(ErrorCode::InvalidMetadata)),
            (&[("a", "é")], Some(ErrorCode::InvalidMetadata)),
            (&[("class", "1")], None),
        ] {
            assert_eq!(metadata(pairs).err(), expected, "{pairs:?}");
        }
    }
}
