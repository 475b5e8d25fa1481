//! How a request takes content from its source.
//!
//! What a source in this server consists of is shared; its bytes are read only for their digest. What is elsewhere is
//! fetched, and received like the body of a request.

use std::ops::Range;

use http::{HeaderMap, HeaderName};
use lazuli_copy::{too_large, unverified};
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{ByteRange, Headers, Refusal, Request, Version};

use crate::cipher::Nonce;
use crate::encryption::Seal;
use crate::intake::{Received, WantMd5};
use crate::source::{Place, Source};
use crate::{BlobService, reply};

/// The digests that clients send of a source, and what they are called of a body.
const DIGESTS: [(&str, &str); 2] =
    [("x-ms-source-content-md5", "content-md5"), ("x-ms-source-content-crc64", "x-ms-content-crc64")];

/// Content that was taken from a source as the client meant it, and is durable. The source has to live until the commit
/// that refers to it is decided.
pub(crate) struct Taken {
    pub(crate) content: Content,
    /// If it was sent, or wanted.
    pub(crate) md5: Option<[u8; 16]>,
    /// If it was sent, wanted, or cost nothing.
    pub(crate) crc64: Option<u64>,
    /// What its encryption starts from.
    pub(crate) nonce: Option<Nonce>,
    /// Whether the source has it too.
    pub(crate) is_shared: bool,
    /// Keeps what is new of the content.
    pub(crate) writer: Writer,
}

/// Whether the digest of a source is wanted though the client sends none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantDigest {
    /// The reply has to tell one, as the reply to a block does: see [`WantMd5::of_block`].
    OfBlock,
    /// The reply has to tell its MD5, and that alone.
    Md5,
    /// The reply tells the CRC64, in the versions that know it.
    Crc64,
    /// Not if the bytes would have to be read for it.
    IfSent,
}

impl WantDigest {
    /// Whether bytes that are at hand are read for their digests, and for which.
    fn of_shared(self, was_sent: bool, version: Version) -> Option<WantMd5> {
        let reads = match self {
            Self::OfBlock | Self::Md5 => true,
            Self::Crc64 => was_sent || reply::tells_crc64(version),
            Self::IfSent => was_sent,
        };
        reads.then(|| self.md5(was_sent, version))
    }

    fn md5(self, was_sent: bool, version: Version) -> WantMd5 {
        match self {
            Self::Md5 if !was_sent => WantMd5::Always,
            Self::OfBlock | Self::Md5 => WantMd5::of_block(version),
            Self::Crc64 | Self::IfSent => WantMd5::IfSent,
        }
    }

    fn tells_crc64(self, was_sent: bool) -> bool {
        self != Self::Md5 || was_sent
    }
}

impl BlobService {
    /// Takes a part of a source, of at most `limit` bytes, encrypted if there is a seal. The request has no body of its
    /// own, and none afterwards.
    pub(crate) async fn take(
        &self,
        request: &mut Request,
        source: &Source,
        part: Range<u64>,
        limit: u64,
        want: WantDigest,
        seal: Option<&Seal>,
    ) -> Result<Taken, Refusal> {
        if part.end - part.start > limit {
            return Err(too_large(limit));
        }
        source.check_online(request)?;
        let was_sent = carry_digests(&mut request.headers)?;
        match &source.place {
            Place::Here(here) if here.seal.is_none() && seal.is_none() => {
                let (mut md5, mut crc64) = (None, None);
                if let Some(want_md5) = want.of_shared(was_sent, request.version) {
                    self.carry(request, source, part.clone()).await?;
                    let digests = self.digest(request, want_md5).await?;
                    (md5, crc64) = (digests.0, want.tells_crc64(was_sent).then_some(digests.1));
                }
                let writer = self.extents.writer();
                let content = self.slice(&writer, &source.blob.content, part).await?;
                Ok(Taken { content, md5, crc64, nonce: None, is_shared: true, writer })
            }
            _ => {
                self.carry(request, source, part).await?;
                let want_md5 = want.md5(was_sent, request.version);
                let received = self.receive(request, limit, want_md5, seal).await?;
                let Received { content, nonce, md5, crc64, writer, .. } = received;
                let crc64 = want.tells_crc64(was_sent).then_some(crc64);
                Ok(Taken { content, md5, crc64, nonce, is_shared: false, writer })
            }
        }
    }

    /// Gives a request a part of its source as its body.
    pub(crate) async fn carry(
        &self,
        request: &mut Request,
        source: &Source,
        part: Range<u64>,
    ) -> Result<(), Refusal> {
        request.content_length = Some(part.end - part.start);
        request.body = self.source_body(source, part).await?;
        Ok(())
    }

    /// A part of content, durable.
    async fn slice(&self, writer: &Writer, content: &Content, part: Range<u64>) -> Result<Content, Refusal> {
        if part == (0..content.len()) {
            return Ok(content.clone());
        }
        let mut edit = Edit::new(&self.extents, writer, content);
        edit.slice(part).await.map_err(reply::extents)?;
        let slice = edit.finish().await.map_err(reply::extents)?;
        self.sync(&slice).await?;
        Ok(slice)
    }

    /// What was taken came to nothing.
    pub(crate) fn forget(&self, taken: &Taken) {
        if !taken.is_shared {
            self.extents.released(taken.content.allocated());
        }
    }
}

impl Taken {
    /// Tells the client the digests, as far as they are known.
    pub(crate) fn write_digest(&self, headers: &mut HeaderMap, version: Version) {
        write_digests(headers, self.md5, self.crc64, version);
    }
}

/// Tells the client these digests of a source.
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
    /// The part that `x-ms-source-range` names; all of it if that is not there. Never nothing.
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

/// Makes the digests of the source those of the body. Says whether there is one. What is none is refused by the name that it
/// was sent with.
pub(crate) fn carry_digests(headers: &mut HeaderMap) -> Result<bool, Refusal> {
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
