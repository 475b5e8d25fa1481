//! Paging of XML listings: the parameters that select a page, their echo in the reply, and markers.
//!
//! A marker is where the next page begins. To clients it is an opaque token; it contains a key that only the
//! listing understands. A forged marker begins the page elsewhere, and shows nothing that the client could
//! not list anyway.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{ErrorCode, Refusal};
use crate::kind::ServiceKind;
use crate::query::Query;
use crate::xml;

/// Maximum and default number of entries on a page.
pub const MAX_RESULTS: u16 = 5000;

/// The page that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRequest<'a> {
    query: &'a Query,
    /// Only names with this prefix are listed.
    pub prefix: &'a str,
    /// Names that contain the delimiter after the prefix are folded into one entry.
    pub delimiter: Option<&'a str>,
    /// The key to begin at, as it was passed to [`PageRequest::write_next`].
    pub start: Option<Vec<u8>>,
    /// Maximum number of entries.
    pub limit: usize,
}

impl<'a> PageRequest<'a> {
    /// Parses the query of a listing. A page has at most `cap` entries.
    pub fn parse(service: ServiceKind, query: &'a Query, cap: u16) -> Result<Self, Refusal> {
        let marker = query.get("marker").filter(|marker| !marker.is_empty());
        let start = marker.map(|marker| {
            URL_SAFE_NO_PAD.decode(marker).map_err(|_| match service {
                ServiceKind::Queue => Refusal::new(ErrorCode::InvalidMarker),
                _ => Refusal::new(ErrorCode::OutOfRangeInput),
            })
        });
        Ok(Self {
            query,
            prefix: query.get("prefix").unwrap_or_default(),
            delimiter: query.get("delimiter").filter(|delimiter| !delimiter.is_empty()),
            start: start.transpose()?,
            limit: query.max_results(cap)?,
        })
    }

    /// Writes the parameters that were sent.
    pub fn write_echo(&self, xml: &mut xml::Writer) {
        if let Some(prefix) = self.query.get("prefix") {
            xml.name("Prefix", prefix);
        }
        for (element, parameter) in
            [("Marker", "marker"), ("MaxResults", "maxresults"), ("Delimiter", "delimiter")]
        {
            xml.optional(element, self.query.get(parameter));
        }
    }

    /// Returns the marker of a page that begins at `start`.
    pub fn marker(start: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(start)
    }

    /// Writes where the next page begins; an empty marker if this was the last page.
    pub fn write_next(xml: &mut xml::Writer, start: Option<&[u8]>) {
        match start {
            Some(start) => xml.text("NextMarker", Self::marker(start)),
            None => xml.empty("NextMarker"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut xml::Writer)) -> String {
        let mut xml = xml::Writer::new();
        write(&mut xml);
        let document = xml.finish();
        document[document.find("?>").unwrap() + 2..].to_owned()
    }

    #[test]
    fn a_page_contains_everything_by_default() {
        let query = Query::parse("comp=list").unwrap();
        let page = PageRequest::parse(ServiceKind::Blob, &query, MAX_RESULTS).unwrap();
        assert_eq!((page.prefix, page.delimiter, &page.start, page.limit), ("", None, &None, 5000));
        assert_eq!(written(|xml| page.write_echo(xml)), "");
        let query = Query::parse("marker=&delimiter=&maxresults=7").unwrap();
        let page = PageRequest::parse(ServiceKind::Blob, &query, MAX_RESULTS).unwrap();
        assert_eq!((page.delimiter, &page.start, page.limit), (None, &None, 7));
    }

    #[test]
    fn only_sent_parameters_are_echoed() {
        let query = Query::parse("delimiter=/&prefix=a%26&maxresults=9999").unwrap();
        let page = PageRequest::parse(ServiceKind::Blob, &query, MAX_RESULTS).unwrap();
        assert_eq!((page.prefix, page.delimiter, page.limit), ("a&", Some("/"), 5000));
        let echo = "<Prefix>a&amp;</Prefix><MaxResults>9999</MaxResults><Delimiter>/</Delimiter>";
        assert_eq!(written(|xml| page.write_echo(xml)), echo);
    }

    #[test]
    fn a_marker_decodes_to_its_key() {
        assert_eq!(written(|xml| PageRequest::write_next(xml, None)), "<NextMarker />");
        let key: Vec<u8> = (0..=255).collect();
        let element = written(|xml| PageRequest::write_next(xml, Some(&key)));
        let marker = element.trim_start_matches("<NextMarker>").trim_end_matches("</NextMarker>");
        let query = Query::parse(&format!("marker={marker}")).unwrap();
        assert_eq!(PageRequest::parse(ServiceKind::Blob, &query, 1).unwrap().start, Some(key));
    }

    #[test]
    fn invalid_markers_are_refused() {
        let query = Query::parse("marker=a%20b").unwrap();
        for (service, code) in
            [(ServiceKind::Queue, ErrorCode::InvalidMarker), (ServiceKind::Blob, ErrorCode::OutOfRangeInput)]
        {
            assert_eq!(PageRequest::parse(service, &query, 1).unwrap_err().code(), code);
        }
    }
}
