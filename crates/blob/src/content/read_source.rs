//! Reads a source for an operation that takes its content from a URL instead of a body.
//!
//! If the source is in this server, its content is shared, and its bytes are read only if their digest is
//! needed. The bytes of any other source are fetched, and received like the body of a request.

use std::ops::Range;

use http::{HeaderMap, HeaderName};
use lazuli_copy::{too_large, unverified};
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{ByteRange, Headers, Refusal, Request, Version};

use super::cipher::Nonce;
use super::encryption::Seal;
use super::intake::{Md5Policy, Received};
use super::source::{Source, SourceLocation};
use crate::{BlobService, reply};

/// Pairs of headers: the digest of a source, and the digest of a body.
const DIGESTS: [(&str, &str); 2] =
    [("x-ms-source-content-md5", "content-md5"), ("x-ms-source-content-crc64", "x-ms-content-crc64")];

/// Durable content of a source that matches the digests that the client sent. The source must live until the
/// commit that refers to the content is decided.
pub(crate) struct SourceContent {
    pub(crate) content: Content,
    /// Set if the client sent an MD5, or the reply reports it.
    pub(crate) md5: Option<[u8; 16]>,
    /// Set if the client sent a CRC64, the reply reports it, or it was computed for another reason.
    pub(crate) crc64: Option<u64>,
    /// The nonce of the content's encryption.
    pub(crate) nonce: Option<Nonce>,
    /// Whether the source refers to the same content.
    pub(crate) is_shared: bool,
    /// Holds the content that was stored.
    pub(crate) writer: Writer,
}

/// The digest of the source that a reply reports if the client sent none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyDigest {
    /// The digest that the reply to Put Block reports, see [`Md5Policy::of_block`].
    OfBlock,
    /// Only the MD5.
    Md5,
    /// The CRC64, if the version has it.
    Crc64,
    /// No digest that requires reading the bytes.
    None,
}

impl ReplyDigest {
    /// Returns whether to read shared content for its digests, and whether to compute the MD5.
    fn of_shared(self, was_sent: bool, version: Version) -> Option<Md5Policy> {
        let reads = match self {
            Self::OfBlock | Self::Md5 => true,
            Self::Crc64 => was_sent || reply::has_crc64(version),
            Self::None => was_sent,
        };
        reads.then(|| self.md5(was_sent, version))
    }

    fn md5(self, was_sent: bool, version: Version) -> Md5Policy {
        match self {
            Self::Md5 if !was_sent => Md5Policy::Always,
            Self::OfBlock | Self::Md5 => Md5Policy::of_block(version),
            Self::Crc64 | Self::None => Md5Policy::IfSent,
        }
    }

    fn includes_crc64(self, was_sent: bool) -> bool {
        self != Self::Md5 || was_sent
    }
}

impl BlobService {
    /// Reads a part of a source, of at most `limit` bytes. Encrypts stored bytes if there is a seal. The
    /// request must not have a body, and has none afterwards.
    pub(crate) async fn read_source(
        &self,
        request: &mut Request,
        source: &Source,
        part: Range<u64>,
        limit: u64,
        digest: ReplyDigest,
        seal: Option<&Seal>,
    ) -> Result<SourceContent, Refusal> {
        if part.end - part.start > limit {
            return Err(too_large(limit));
        }
        source.check_online(request)?;
        let was_sent = adopt_source_digests(&mut request.headers)?;
        match &source.location {
            SourceLocation::Local(local) if local.seal.is_none() && seal.is_none() => {
                let (mut md5, mut crc64) = (None, None);
                if let Some(want_md5) = digest.of_shared(was_sent, request.version) {
                    self.attach_body(request, source, part.clone()).await?;
                    let digests = self.digest(request, want_md5).await?;
                    (md5, crc64) = (digests.0, digest.includes_crc64(was_sent).then_some(digests.1));
                }
                let writer = self.extents.writer();
                let content = self.slice(&writer, &source.blob.content, part).await?;
                Ok(SourceContent { content, md5, crc64, nonce: None, is_shared: true, writer })
            }
            _ => {
                self.attach_body(request, source, part).await?;
                let want_md5 = digest.md5(was_sent, request.version);
                let received = self.receive(request, limit, want_md5, seal).await?;
                let Received { content, nonce, md5, crc64, writer, .. } = received;
                let crc64 = digest.includes_crc64(was_sent).then_some(crc64);
                Ok(SourceContent { content, md5, crc64, nonce, is_shared: false, writer })
            }
        }
    }

    /// Makes a part of a source the body of the request.
    pub(crate) async fn attach_body(
        &self,
        request: &mut Request,
        source: &Source,
        part: Range<u64>,
    ) -> Result<(), Refusal> {
        request.content_length = Some(part.end - part.start);
        request.body = self.source_body(source, part).await?;
        Ok(())
    }

    /// Returns a durable part of content.
    async fn slice(&self, writer: &Writer, content: &Content, part: Range<u64>) -> Result<Content, Refusal> {
        if part == (0..content.len()) {
            return Ok(content.clone());
        }
        let mut edit = Edit::new(&self.extents, writer, content);
        edit.slice(part).await.map_err(reply::content_refusal)?;
        let slice = edit.finish().await.map_err(reply::content_refusal)?;
        self.sync(&slice).await?;
        Ok(slice)
    }

    /// Reports the bytes that were stored for a source as garbage, because no row will refer to them.
    pub(crate) fn release(&self, source: &SourceContent) {
        if !source.is_shared {
            self.extents.released(source.content.extent_bytes());
        }
    }
}

impl SourceContent {
    /// Adds the known digests to a reply.
    pub(crate) fn write_digests(&self, headers: &mut HeaderMap, version: Version) {
        write_digests(headers, self.md5, self.crc64, version);
    }
}

/// Adds the digests of a source to a reply.
pub(crate) fn write_digests(
    headers: &mut HeaderMap,
    md5: Option<[u8; 16]>,
    crc64: Option<u64>,
    version: Version,
) {
    match crc64 {
        Some(crc64) => reply::digests(headers, md5, crc64, version),
        None => reply::put_optional(headers, "content-md5", md5.as_ref().map(reply::md5_text)),
    }
}

impl Source {
    /// Returns the part that `x-ms-source-range` names, or the whole source. Refuses an empty part.
    pub(crate) fn part(&self, request: &Request) -> Result<Range<u64>, Refusal> {
        const NAME: &str = "x-ms-source-range";
        let part = match request.headers.value(NAME, ByteRange::parse)? {
            None => 0..self.length,
            Some(range) => range.within(self.length).map_err(|refusal| {
                let (code, text) = (refusal.code().name(), refusal.text());
                unverified(refusal.status(), Some(code), text, request.version)
            })?,
        };
        if part.is_empty() { Err(Refusal::invalid_header(NAME, "")) } else { Ok(part) }
    }
}

/// Moves the digests of the source to the headers for digests of the body. Returns whether the client sent
/// one. The refusal of an invalid digest names the header that the client sent.
pub(crate) fn adopt_source_digests(headers: &mut HeaderMap) -> Result<bool, Refusal> {
    SentDigests::parse_of_source(headers)?;
    let mut was_sent = false;
    for (of_source, of_body) in DIGESTS {
        let of_body = HeaderName::from_static(of_body);
        headers.remove(&of_body);
        if let Some(value) = headers.get(of_source).cloned() {
            headers.insert(of_body, value);
            was_sent = true;
        }
    }
    Ok(was_sent)
}
