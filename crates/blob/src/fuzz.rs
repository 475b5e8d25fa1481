//! Entry points for fuzzing: everything here takes bytes that a client chose, and must not panic.

/// The body of a batch.
pub fn batch(data: &[u8]) {
    crate::batch::fuzz(data);
}

/// The URL of a copy's source.
pub fn copy_source(data: &[u8]) {
    crate::content::source::fuzz(data);
}

/// The URL of the snapshot that page ranges are compared with.
pub fn previous_snapshot_url(data: &[u8]) {
    if let Ok(url) = std::str::from_utf8(data) {
        let _ = crate::page_ranges::snapshot_in_url(url, "box", "a b/c");
    }
}

/// The body of a Put Block List.
pub fn block_list(data: &[u8]) {
    let _ = crate::block_list::parse(data);
}

/// Tags in both their forms.
pub fn tags(data: &[u8]) {
    let _ = crate::model::record::Tags::parse_xml(data);
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = http::HeaderValue::from_bytes(data) {
        headers.insert("x-ms-tags", value);
        let _ = crate::model::record::Tags::from_headers(&headers);
    }
}

/// The body of a Query Blob Contents.
pub fn query_request(data: &[u8]) {
    let _ = crate::query::parse(data);
}

/// Conditions on tags, and queries for them.
pub fn tag_query(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = crate::index::tag_query::TagCondition::parse(text);
        if let Ok(query) = crate::index::tag_query::TagQuery::parse(text, true) {
            let _ = query.rows();
        }
    }
}

/// The marker of a listing of blobs, and of one of containers.
pub fn marker(data: &[u8]) {
    crate::list::fuzz_marker(data);
    lazuli_generations::fuzz::marker(data);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    /// Runs a target on random bytes, and on pieces of what it is for, cut and joined at random.
    fn throw(target: fn(&[u8]), pieces: &[&[u8]]) {
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
    fn no_block_list_makes_the_parser_panic() {
        let pieces: [&[u8]; 5] =
            [b"<BlockList>", b"</BlockList>", b"<Latest>AAAA</Latest>", b"<Committed>", b"</Committed>"];
        throw(super::block_list, &pieces);
    }

    #[test]
    fn no_tags_make_the_parser_panic() {
        let pieces: [&[u8]; 6] = [
            b"<Tags><TagSet>",
            b"</TagSet></Tags>",
            b"<Tag><Key>a</Key><Value>b</Value></Tag>",
            b"a=b",
            b"&",
            b"%2B",
        ];
        throw(super::tags, &pieces);
    }

    #[test]
    fn no_tag_query_makes_the_parser_panic() {
        let pieces: [&[u8]; 8] =
            [b"a = 'b'", b" AND ", b" OR ", b"(", b")", b"\"a b\" <= ''", b"@container", b"<>"];
        throw(super::tag_query, &pieces);
    }

    #[test]
    fn no_query_request_makes_the_parser_panic() {
        throw(
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
    fn no_batch_makes_the_parser_panic() {
        throw(
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
    fn no_copy_source_makes_the_parser_panic() {
        throw(
            super::copy_source,
            &[
                b"http://",
                b"127.0.0.1:10000",
                b"/dev1/c/b",
                b"?snapshot=",
                b"%20",
                b"a.blob.b",
                b"[::1]",
                b"&sig=x",
            ],
        );
    }

    #[test]
    fn no_url_of_a_snapshot_makes_the_parser_panic() {
        let pieces: [&[u8]; 5] = [b"http://h:1", b"/box/", b"a%20b/c", b"?snapshot=", b"%"];
        throw(super::previous_snapshot_url, &pieces);
    }

    #[test]
    fn no_marker_makes_a_listing_panic() {
        throw(super::marker, &[b"name", b"\0", b"s\0\0\0\0\0\0\0\x01", b"\xff", b"/"]);
    }
}
