//! Copies one state of a blob: the blob itself, a snapshot or a version.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use lazuli_client::client::{Call, OperationFailure, Reply};
use lazuli_protocol::ServiceKind;
use md5::{Digest, Md5};
use ring::digest::{Context, SHA256};

use super::{Link, Links, MAX_PIECE, PIECE, Refused, Shared, header_text, metadata_of};
use crate::calls::{element, encode, header, metadata};

/// Maximum number of blocks of a blob.
const MAX_BLOCKS: u64 = 50_000;
/// Page ranges are listed for this much of a blob or file at a time.
const WINDOW: u64 = 64 << 20;
/// Length of a page.
const PAGE: usize = 512;
/// How often a copy is repeated if the source changes meanwhile.
const ATTEMPTS: u32 = 3;

/// One state of a blob.
#[derive(Clone, Debug)]
pub(super) struct BlobPlace {
    /// The path below the account, encoded.
    pub(super) path: String,
    /// A query that selects a snapshot or a version, or an empty text for the blob itself.
    pub(super) selector: String,
}

/// The properties of a blob that a copy has to keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CopiedProperties {
    kind: String,
    pub(super) length: u64,
    /// Properties of the content by the names of the headers that set them.
    content: BTreeMap<&'static str, String>,
    metadata: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
    tier: Option<String>,
    sequence_number: String,
    is_sealed: bool,
}

impl BlobPlace {
    pub(super) fn new(container: &str, name: &str, selector: String) -> Self {
        Self { path: format!("/{container}/{}", encode(name)), selector }
    }

    /// Returns the blob itself, as it is written.
    fn base(&self) -> Self {
        Self { path: self.path.clone(), selector: String::new() }
    }

    fn query(&self, operation: &str) -> String {
        let parts = [operation, &self.selector];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&")
    }
}

/// Returns the headers of a blob, if it exists.
pub(super) async fn head(link: &mut Link, place: &BlobPlace) -> Result<Option<HeaderMap>, Refused> {
    let call = Call::new(Method::HEAD, place.path.clone(), place.query(""));
    let reply = link.send(ServiceKind::Blob, &call, &[StatusCode::OK, StatusCode::NOT_FOUND]).await;
    let reply = reply.map_err(|failure| failure.to_string())?;
    Ok((reply.status == StatusCode::OK).then_some(reply.headers))
}

/// Reads the first byte of a blob. Fails if the content cannot be read, as that of an archived blob.
pub(super) async fn check_readable(link: &mut Link, place: &BlobPlace) -> Result<(), Refused> {
    let Some(headers) = head(link, place).await? else { return Ok(()) };
    let properties = CopiedProperties::read(link, place, &headers).await?;
    read_range(link, place, "", 0, properties.length.min(1), properties.length).await.map(drop)
}

/// Copies a state of a blob to the blob of the same name, unless that has this state already. Reads back what
/// it wrote. Returns the number of bytes; `None` if there was nothing to copy.
pub(super) async fn copy(
    import: &Shared,
    links: &mut Links,
    place: &BlobPlace,
    may_be_equal: bool,
) -> Result<Option<u64>, Refused> {
    if may_be_equal && is_equal(links, place, &place.base()).await? {
        return Ok(None);
    }
    let mut attempt = 1;
    loop {
        match copy_once(import, links, place).await {
            // The ETag has changed: the blob was written between two reads.
            Err(reason) if reason.starts_with("412 ") && attempt < ATTEMPTS => attempt += 1,
            copied => return copied.map(Some),
        }
    }
}

/// Returns whether a state on the destination is equal to one on the source, by properties and digests.
pub(super) async fn is_equal(
    links: &mut Links,
    source: &BlobPlace,
    target: &BlobPlace,
) -> Result<bool, Refused> {
    let Some(found) = head(&mut links.target, target).await? else { return Ok(false) };
    let Some(wanted) = head(&mut links.source, source).await? else { return Ok(false) };
    let wanted = CopiedProperties::read(&mut links.source, source, &wanted).await?;
    let found = CopiedProperties::read(&mut links.target, target, &found).await?;
    if found != wanted {
        return Ok(false);
    }
    let wanted = digest(&mut links.source, source, &wanted).await?;
    Ok(digest(&mut links.target, target, &found).await? == wanted)
}

async fn copy_once(import: &Shared, links: &mut Links, place: &BlobPlace) -> Result<u64, Refused> {
    let Some(headers) = head(&mut links.source, place).await? else {
        return Err("it was deleted at the source".into());
    };
    let properties = CopiedProperties::read(&mut links.source, place, &headers).await?;
    let mut source = SourceBlob {
        place: place.clone(),
        etag: header_text(&headers, "etag"),
        length: properties.length,
        digest: ContentDigest::new(),
    };
    match properties.kind.as_str() {
        "BlockBlob" => put_block_blob(import, links, &mut source, &properties).await?,
        "PageBlob" => put_page_blob(links, &mut source, &properties).await?,
        "AppendBlob" => put_append_blob(links, &mut source, &properties).await?,
        other => return Err(format!("unknown type {other}")),
    }
    let (wanted, md5) = source.digest.finish();
    if properties.kind != "PageBlob"
        && properties.content.get("x-ms-blob-content-md5").is_some_and(|stored| *stored != md5)
    {
        import.progress.lost("nothing, but the Content-MD5 of the source does not match the content");
    }
    let base = place.base();
    let Some(found) = head(&mut links.target, &base).await? else {
        return Err("it is missing at the destination after the copy".into());
    };
    let found = CopiedProperties::read(&mut links.target, &base, &found).await?;
    if let Some(difference) = properties.difference(&found) {
        return Err(format!("what was read back has another {difference}"));
    }
    if digest(&mut links.target, &base, &found).await? != wanted {
        return Err("what was read back has another content".into());
    }
    report_lost(import, &headers, place);
    Ok(properties.length)
}

/// Counts properties that the protocol cannot set.
fn report_lost(import: &Shared, headers: &HeaderMap, place: &BlobPlace) {
    for (header, lost) in [
        ("x-ms-copy-id", "the record of the copy that created a blob"),
        ("x-ms-immutability-policy-until-date", "immutability policies of blobs"),
        ("x-ms-legal-hold", "legal holds of blobs"),
        ("x-ms-encryption-scope", "encryption scopes"),
        ("x-ms-owner", "owners and permissions of a hierarchical namespace"),
    ] {
        let value = header_text(headers, header);
        if !value.is_empty() && value != "false" {
            import.progress.lost(lost);
        }
    }
    if place.selector.is_empty() && header_text(headers, "x-ms-lease-state") == "leased" {
        import.progress.lost("leases: the protocol does not reveal their identifiers");
    }
}

impl CopiedProperties {
    /// Reads the properties in the headers of an answer, and the tags if there are any.
    async fn read(link: &mut Link, place: &BlobPlace, headers: &HeaderMap) -> Result<Self, Refused> {
        let length = header_text(headers, "content-length");
        let mut content = BTreeMap::new();
        for (name, set_by) in [
            ("content-type", "x-ms-blob-content-type"),
            ("content-encoding", "x-ms-blob-content-encoding"),
            ("content-language", "x-ms-blob-content-language"),
            ("content-disposition", "x-ms-blob-content-disposition"),
            ("cache-control", "x-ms-blob-cache-control"),
            ("content-md5", "x-ms-blob-content-md5"),
        ] {
            let value = header_text(headers, name);
            if !value.is_empty() {
                content.insert(set_by, value);
            }
        }
        let kind = header_text(headers, "x-ms-blob-type");
        let tier = header_text(headers, "x-ms-access-tier");
        let is_set = kind == "BlockBlob"
            && !tier.is_empty()
            && header_text(headers, "x-ms-access-tier-inferred") != "true";
        let mut tags = BTreeMap::new();
        if header_text(headers, "x-ms-tag-count").parse::<u32>().is_ok_and(|count| count > 0) {
            let document = link.get_xml(ServiceKind::Blob, &place.path, &place.query("comp=tags")).await?;
            for tag in document.child("TagSet").map(|set| &set.children[..]).unwrap_or_default() {
                tags.insert(tag.value("Key").to_owned(), tag.value("Value").to_owned());
            }
        }
        Ok(Self {
            length: length.parse().map_err(|_| format!("the length {length:?} is not a number"))?,
            content,
            metadata: metadata_of(headers),
            tags,
            tier: is_set.then_some(tier),
            sequence_number: header_text(headers, "x-ms-blob-sequence-number"),
            is_sealed: header_text(headers, "x-ms-blob-sealed") == "true",
            kind,
        })
    }

    /// Returns the name of a property that differs.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            ("type", self.kind == other.kind),
            ("length", self.length == other.length),
            ("content property", self.content == other.content),
            ("metadata", self.metadata == other.metadata),
            ("set of tags", self.tags == other.tags),
            ("access tier", self.tier == other.tier),
            ("sequence number", self.sequence_number == other.sequence_number),
            ("seal", self.is_sealed == other.is_sealed),
        ]
        .into_iter()
        .find_map(|(name, is_equal)| (!is_equal).then_some(name))
    }

    /// Adds the headers that set the properties.
    fn add_to(&self, call: &mut Call) -> Result<(), Refused> {
        for (name, value) in &self.content {
            header(call, name, value)?;
        }
        if let Some(tier) = &self.tier {
            header(call, "x-ms-access-tier", tier)?;
        }
        let tags = self.tags.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value)));
        let tags = tags.collect::<Vec<_>>().join("&");
        if !tags.is_empty() {
            header(call, "x-ms-tags", &tags)?;
        }
        metadata(call, Some(&self.metadata))
    }
}

/// A blob that is being read.
struct SourceBlob {
    place: BlobPlace,
    etag: String,
    length: u64,
    digest: ContentDigest,
}

impl SourceBlob {
    /// Reads a range of the content, which has to be unchanged since the first read.
    async fn read(&mut self, link: &mut Link, offset: u64, length: u64) -> Result<Bytes, Refused> {
        let bytes = read_range(link, &self.place, &self.etag, offset, length, self.length).await?;
        self.digest.add(&bytes);
        Ok(bytes)
    }
}

async fn read_range(
    link: &mut Link,
    place: &BlobPlace,
    etag: &str,
    offset: u64,
    length: u64,
    total: u64,
) -> Result<Bytes, Refused> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    let mut call = Call::new(Method::GET, place.path.clone(), place.query(""));
    // A blob that is read at once is read without a range, which some servers verify by its digest.
    if (offset, length) != (0, total) {
        header(&mut call, "x-ms-range", &format!("bytes={offset}-{}", offset + length - 1))?;
    }
    if !etag.is_empty() && place.selector.is_empty() {
        header(&mut call, "if-match", etag)?;
    }
    let expected = [StatusCode::OK, StatusCode::PARTIAL_CONTENT];
    let reply =
        link.send(ServiceKind::Blob, &call, &expected).await.map_err(|failure| failure.to_string())?;
    if reply.length != length {
        return Err(format!("the server sent {} of {length} bytes", reply.length));
    }
    Ok(reply.body)
}

async fn put_block_blob(
    import: &Shared,
    links: &mut Links,
    source: &mut SourceBlob,
    properties: &CopiedProperties,
) -> Result<(), Refused> {
    let (path, length) = (source.place.path.clone(), source.length);
    let blocks = committed_blocks(import, &mut links.source, &source.place).await?;
    let fits = blocks.iter().all(|(_, length)| *length <= MAX_PIECE)
        && blocks.iter().try_fold(0, |sum: u64, (_, length)| sum.checked_add(*length)) == Some(length);
    if (blocks.is_empty() || !fits) && length <= MAX_PIECE {
        let mut body = BytesMut::new();
        while (body.len() as u64) < length {
            let offset = body.len() as u64;
            body.extend_from_slice(
                &source.read(&mut links.source, offset, PIECE.min(length - offset)).await?,
            );
        }
        let mut call = Call::new(Method::PUT, path, "").body(body.freeze());
        header(&mut call, "x-ms-blob-type", "BlockBlob")?;
        properties.add_to(&mut call)?;
        return put(&mut links.target, &call).await;
    }
    let blocks = match fits && !blocks.is_empty() {
        true => blocks,
        false => {
            if !blocks.is_empty() {
                import.progress.lost("the division into blocks, some of which are very long");
            }
            divide(length)?
        }
    };
    let (mut offset, mut xml) = (0, String::from("<BlockList>"));
    for (name, length) in blocks {
        let body = source.read(&mut links.source, offset, length).await?;
        let query = format!("comp=block&blockid={}", encode(&name));
        put(&mut links.target, &Call::new(Method::PUT, path.clone(), query).body(body)).await?;
        element(&mut xml, "Latest", &name);
        offset += length;
    }
    xml += "</BlockList>";
    let mut call = Call::new(Method::PUT, path, "comp=blocklist").body(xml.into());
    properties.add_to(&mut call)?;
    put(&mut links.target, &call).await
}

/// Returns the names and lengths of the committed blocks.
async fn committed_blocks(
    import: &Shared,
    link: &mut Link,
    place: &BlobPlace,
) -> Result<Vec<(String, u64)>, Refused> {
    let kind = if place.selector.is_empty() { "all" } else { "committed" };
    let query = place.query(&format!("comp=blocklist&blocklisttype={kind}"));
    let document = link.get_xml(ServiceKind::Blob, &place.path, &query).await?;
    if document.child("UncommittedBlocks").is_some_and(|blocks| !blocks.children.is_empty()) {
        let reason = "the protocol does not reveal their content";
        import.not_possible(format_args!("uncommitted blocks of {}", place.path), reason);
    }
    let blocks = document.child("CommittedBlocks").map(|blocks| &blocks.children[..]).unwrap_or_default();
    let parse = |block: &super::XmlElement| {
        let size = block.value("Size");
        let size = size.parse().map_err(|_| format!("the length {size:?} of a block is not a number"))?;
        Ok((block.value("Name").to_owned(), size))
    };
    blocks.iter().map(parse).collect()
}

/// Divides content into blocks of equal length.
fn divide(length: u64) -> Result<Vec<(String, u64)>, Refused> {
    let piece = length.div_ceil(MAX_BLOCKS).div_ceil(PIECE).max(1) * PIECE;
    if piece > MAX_PIECE {
        let limit = MAX_BLOCKS * MAX_PIECE;
        return Err(format!("{length} bytes are more than the {limit} that can be imported"));
    }
    let name = |number: u64| BASE64_STANDARD.encode(format!("{number:08}"));
    let block = |number| (name(number), piece.min(length - number * piece));
    Ok((0..length.div_ceil(piece)).map(block).collect())
}

async fn put_page_blob(
    links: &mut Links,
    source: &mut SourceBlob,
    properties: &CopiedProperties,
) -> Result<(), Refused> {
    let path = source.place.path.clone();
    let mut create = Call::new(Method::PUT, path.clone(), "");
    header(&mut create, "x-ms-blob-type", "PageBlob")?;
    header(&mut create, "x-ms-blob-content-length", &source.length.to_string())?;
    if !properties.sequence_number.is_empty() {
        header(&mut create, "x-ms-blob-sequence-number", &properties.sequence_number)?;
    }
    properties.add_to(&mut create)?;
    put(&mut links.target, &create).await?;
    let SourceBlob { place, etag, length, digest } = source;
    let mut from = 0;
    while from < *length {
        for (start, end) in page_ranges(&mut links.source, place, from, WINDOW.min(*length - from)).await? {
            for (offset, count) in pieces(start, end) {
                let body = read_range(&mut links.source, place, etag, offset, count, u64::MAX).await?;
                digest.add_pages(offset, &body);
                let mut call = Call::new(Method::PUT, path.clone(), "comp=page").body(body);
                header(&mut call, "x-ms-page-write", "update")?;
                header(&mut call, "x-ms-range", &format!("bytes={offset}-{}", offset + count - 1))?;
                put(&mut links.target, &call).await?;
            }
        }
        from += WINDOW;
    }
    Ok(())
}

/// Returns the written ranges of a part of a page blob: the first byte of each, and the one after its last.
async fn page_ranges(
    link: &mut Link,
    place: &BlobPlace,
    from: u64,
    length: u64,
) -> Result<Vec<(u64, u64)>, Refused> {
    let mut call = Call::new(Method::GET, place.path.clone(), place.query("comp=pagelist"));
    header(&mut call, "x-ms-range", &format!("bytes={from}-{}", from + length - 1))?;
    let reply = link.send(ServiceKind::Blob, &call, &[StatusCode::OK]).await;
    listed_ranges(&reply.map_err(|failure| failure.to_string())?, "PageRange", from, from + length)
}

/// Returns the ranges in a listing of ranges, each within the given limits and behind the one before.
pub(super) fn listed_ranges(
    reply: &Reply,
    name: &str,
    from: u64,
    until: u64,
) -> Result<Vec<(u64, u64)>, Refused> {
    let mut ranges = vec![];
    let mut behind = from;
    for range in super::XmlElement::parse(&reply.body)?.children.iter().filter(|child| child.name == name) {
        let number = |name: &str| range.value(name).parse::<u64>().ok();
        let (Some(start), Some(last)) = (number("Start"), number("End")) else {
            return Err("a range of the listing is not a pair of numbers".into());
        };
        // Some servers list whole ranges that only begin or end in the requested part.
        let (start, end) = (start.max(from), last.saturating_add(1).min(until));
        if start >= end {
            continue;
        }
        if start < behind {
            return Err("the ranges of the listing overlap".into());
        }
        ranges.push((start, end));
        behind = end;
    }
    Ok(ranges)
}

/// Divides a range into offsets and lengths of pieces.
pub(super) fn pieces(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let count = (end - start).div_ceil(PIECE);
    (0..count).map(move |number| {
        let offset = start + number * PIECE;
        (offset, PIECE.min(end - offset))
    })
}

async fn put_append_blob(
    links: &mut Links,
    source: &mut SourceBlob,
    properties: &CopiedProperties,
) -> Result<(), Refused> {
    let (path, length) = (source.place.path.clone(), source.length);
    let mut create = Call::new(Method::PUT, path.clone(), "");
    header(&mut create, "x-ms-blob-type", "AppendBlob")?;
    properties.add_to(&mut create)?;
    put(&mut links.target, &create).await?;
    let mut offset = 0;
    for (_, count) in divide(length)? {
        let body = source.read(&mut links.source, offset, count).await?;
        let mut call = Call::new(Method::PUT, path.clone(), "comp=appendblock").body(body);
        // A repeated request whose first attempt succeeded fails, instead of appending twice.
        header(&mut call, "x-ms-blob-condition-appendpos", &offset.to_string())?;
        match links.target.send(ServiceKind::Blob, &call, &[StatusCode::CREATED]).await {
            // The comparison after the copy decides whether the first attempt was complete.
            Err(OperationFailure::Refused { code, .. }) if code == "AppendPositionConditionNotMet" => {}
            sent => drop(sent.map_err(|failure| failure.to_string())?),
        }
        offset += count;
    }
    if properties.is_sealed {
        let seal = Call::new(Method::PUT, path, "comp=seal");
        let sent = links.target.send(ServiceKind::Blob, &seal, &[StatusCode::OK]).await;
        sent.map_err(|failure| failure.to_string())?;
    }
    Ok(())
}

async fn put(link: &mut Link, call: &Call) -> Result<(), Refused> {
    let sent = link.send(ServiceKind::Blob, call, &[StatusCode::CREATED]).await;
    sent.map(drop).map_err(|failure| failure.to_string())
}

/// Reads the content and returns its digest.
async fn digest(
    link: &mut Link,
    place: &BlobPlace,
    properties: &CopiedProperties,
) -> Result<Vec<u8>, Refused> {
    let (mut digest, length) = (ContentDigest::new(), properties.length);
    if properties.kind == "PageBlob" {
        let mut from = 0;
        while from < length {
            for (start, end) in page_ranges(link, place, from, WINDOW.min(length - from)).await? {
                for (offset, count) in pieces(start, end) {
                    digest.add_pages(offset, &read_range(link, place, "", offset, count, u64::MAX).await?);
                }
            }
            from += WINDOW;
        }
    } else {
        for (offset, count) in pieces(0, length) {
            digest.add(&read_range(link, place, "", offset, count, length).await?);
        }
    }
    Ok(digest.finish().0)
}

/// Digests of content as it is read.
pub(super) struct ContentDigest {
    sha256: Context,
    md5: Md5,
}

impl ContentDigest {
    pub(super) fn new() -> Self {
        Self { sha256: Context::new(&SHA256), md5: Md5::new() }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.md5.update(bytes);
    }

    /// Adds pages that are not all zero, each with its offset. Pages that were never written count as zero.
    pub(super) fn add_pages(&mut self, offset: u64, bytes: &[u8]) {
        for (number, page) in bytes.chunks(PAGE).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                self.sha256.update(&(offset + (number * PAGE) as u64).to_le_bytes());
                self.sha256.update(page);
            }
        }
    }

    /// Returns the SHA-256, and the MD5 in Base64.
    pub(super) fn finish(&self) -> (Vec<u8>, String) {
        (self.sha256.clone().finish().as_ref().to_vec(), BASE64_STANDARD.encode(self.md5.clone().finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_divided_into_at_most_fifty_thousand_blocks_of_whole_pieces() {
        let shape = |length| divide(length).map(|blocks| (blocks.len(), blocks[0].1));
        assert_eq!(shape(PIECE + 1), Ok((2, PIECE)));
        assert_eq!(shape(MAX_BLOCKS * PIECE), Ok((50_000, PIECE)));
        assert_eq!(shape(MAX_BLOCKS * PIECE + 1), Ok((25_001, 2 * PIECE)));
        assert!(divide(MAX_BLOCKS * MAX_PIECE + 1).is_err());
        assert_eq!(divide(0), Ok(vec![]));
        let last = divide(2 * PIECE + 5).unwrap().pop().unwrap();
        assert_eq!(last.1, 5);
    }

    #[test]
    fn zero_pages_do_not_count_in_the_digest_of_pages() {
        let (mut sparse, mut dense) = (ContentDigest::new(), ContentDigest::new());
        sparse.add_pages(512, &[7; 512]);
        dense.add_pages(0, &[[0; 512], [7; 512], [0; 512]].concat());
        assert_eq!(sparse.finish().0, dense.finish().0);
        let mut moved = ContentDigest::new();
        moved.add_pages(0, &[7; 512]);
        assert_ne!(moved.finish().0, dense.finish().0);
    }

    #[test]
    fn listed_ranges_are_clipped_and_may_not_overlap() {
        let reply = |ranges: &str| Reply {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: format!("<PageList>{ranges}</PageList>").into(),
            end: Bytes::new(),
            length: 0,
        };
        let range =
            |start: u64, end: u64| format!("<PageRange><Start>{start}</Start><End>{end}</End></PageRange>");
        let parse = |text: &str| listed_ranges(&reply(text), "PageRange", 512, 2048);
        assert_eq!(parse(&range(0, 1023)), Ok(vec![(512, 1024)]));
        assert_eq!(parse(&(range(512, 1023) + &range(1024, 9999))), Ok(vec![(512, 1024), (1024, 2048)]));
        assert_eq!(parse(&range(4096, 9999)), Ok(vec![]));
        assert!(parse(&(range(512, 1535) + &range(1024, 2047))).is_err());
        assert!(parse("<PageRange><Start>x</Start><End>1</End></PageRange>").is_err());
        assert_eq!(parse(&range(0, u64::MAX)), Ok(vec![(512, 2048)]));
    }
}
