//! Entry points for fuzzing. Each parses bytes that a client chose, and must not panic. Each returns whether
//! the bytes are valid, and [`seeds`] has valid bytes for each.

pub mod seeds;

use std::str::from_utf8;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::index::tag_query::{TagCondition, TagQuery};
use crate::model::record::Tags;

/// Parses the body of a batch.
pub fn batch(data: &[u8]) -> bool {
    crate::batch::fuzz(data)
}

/// Parses the URL of a copy source.
pub fn copy_source(data: &[u8]) -> bool {
    crate::content::source::fuzz(data)
}

/// Parses the URL of the snapshot that page ranges are compared with.
pub fn previous_snapshot_url(data: &[u8]) -> bool {
    from_utf8(data).is_ok_and(|url| crate::page_ranges::snapshot_in_url(url, "box", "a b/c").is_some())
}

/// Parses the body of Put Block List.
pub fn block_list(data: &[u8]) -> bool {
    crate::block_list::parse(data).is_ok()
}

/// Parses tags in both of their forms.
pub fn tags(data: &[u8]) -> bool {
    let is_document = Tags::parse_xml(data).is_ok();
    let Ok(value) = HeaderValue::from_bytes(data) else { return is_document };
    let is_header =
        Tags::from_headers(&HeaderMap::from_iter([(HeaderName::from_static("x-ms-tags"), value)])).is_ok();
    is_document || is_header
}

/// Parses the body of Query Blob Contents, with the statement in it.
pub fn query_request(data: &[u8]) -> bool {
    crate::query::fuzz(data)
}

/// Parses conditions on tags, and queries for tags.
pub fn tag_query(data: &[u8]) -> bool {
    let Ok(text) = from_utf8(data) else { return false };
    let tags = Tags(vec![("a".into(), "1".into()), ("b".into(), String::new())]);
    let condition = TagCondition::parse(text).map(|condition| condition.holds(&tags));
    let query = TagQuery::parse(text, true).map(|query| (query.rows(), query.matches(&tags)));
    condition.is_ok() || query.is_ok()
}

/// Parses the markers of listings of blobs and of containers.
pub fn marker(data: &[u8]) -> bool {
    crate::list::fuzz_marker(data) | lazuli_generations::fuzz::marker(data)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// Runs a target on random bytes, and on pieces of valid input that are cut and joined at random.
    fn run_fuzz_target(target: fn(&[u8]) -> bool, pieces: &[&[u8]]) {
        let random = |below: usize| rand::random_range(0..below);
        for _ in 0..2000 {
            let mut input = Vec::new();
            for _ in 0..random(12) {
                match random(pieces.len() + 1) {
                    at if at < pieces.len() => {
                        let piece = pieces[at];
                        input.extend_from_slice(&piece[..piece.len() - random(piece.len()) / 3]);
                    }
                    _ => input.push(random(256) as u8),
                }
            }
            target(&input);
        }
    }

    #[test]
    fn block_list_parser_does_not_panic() {
        let pieces: [&[u8]; 5] =
            [b"<BlockList>", b"</BlockList>", b"<Latest>AAAA</Latest>", b"<Committed>", b"</Committed>"];
        run_fuzz_target(super::block_list, &pieces);
    }

    #[test]
    fn tags_parser_does_not_panic() {
        let pieces: [&[u8]; 6] = [
            b"<Tags><TagSet>",
            b"</TagSet></Tags>",
            b"<Tag><Key>a</Key><Value>b</Value></Tag>",
            b"a=b",
            b"&",
            b"%2B",
        ];
        run_fuzz_target(super::tags, &pieces);
    }

    #[test]
    fn tag_query_parser_does_not_panic() {
        let pieces: [&[u8]; 8] =
            [b"a = 'b'", b" AND ", b" OR ", b"(", b")", b"\"a b\" <= ''", b"@container", b"<>"];
        run_fuzz_target(super::tag_query, &pieces);
    }

    #[test]
    fn query_request_parser_does_not_panic() {
        run_fuzz_target(
            super::query_request,
            &[
                b"<QueryRequest><QueryType>SQL</QueryType><Expression>",
                b"</Expression>",
                b"<InputSerialization><Format><Type>json</Type>",
                b"<DelimitedTextConfiguration><FieldQuote>x</FieldQuote></DelimitedTextConfiguration>",
                b"</Format></InputSerialization>",
                b"</QueryRequest>",
            ],
        );
    }

    #[test]
    fn batch_parser_does_not_panic() {
        run_fuzz_target(
            super::batch,
            &[
                b"--b\r\n",
                b"--b--",
                b"\r\n",
                b"Content-Type: application/http\r\nContent-ID: 1\r\n\r\n",
                b"DELETE /c/b HTTP/1.1\r\nx-ms-date: now\r\n\r\n",
            ],
        );
    }

    #[test]
    fn copy_source_parser_does_not_panic() {
        run_fuzz_target(
            super::copy_source,
            &[
                b"http://",
                b"127.0.0.1:10000",
                b"/dev1/c/b",
                b"?snapshot=",
                b"%20",
                b"acc.blob.b",
                b"[::1]",
                b"&sig=x",
            ],
        );
    }

    #[test]
    fn snapshot_url_parser_does_not_panic() {
        let pieces: [&[u8]; 5] = [b"http://h:1", b"/box/", b"a%20b/c", b"?snapshot=", b"%"];
        run_fuzz_target(super::previous_snapshot_url, &pieces);
    }

    #[test]
    fn marker_parser_does_not_panic() {
        run_fuzz_target(super::marker, &[b"name", b"\0", b"s\0\0\0\0\0\0\0\x01", b"\xff", b"/"]);
    }
}
