//! Put Blob From URL, and how content is taken from a source within a request.
//!
//! From a source in this server it is shared; bytes are read only to verify a digest. From elsewhere it is fetched, and
//! received like the body of a request.

use std::future::poll_fn;
use std::ops::Range;

use crc_fast::CrcAlgorithm::Crc64Nvme;
use http::{HeaderMap, HeaderName, StatusCode};
use lazuli_concurrency::Access;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Refusal, Request, Response};
use md5::{Digest as _, Md5};

use crate::intake::WantMd5;
use crate::precondition::Preconditions;
use crate::put::{
    ContentHeaderForms, DEFAULT_CONTENT_TYPE, check_no_body, content_headers, max_put_blob, new_blob,
};
use crate::record::{ContentHeaders, Kind};
use crate::source::{Place, Source, copies_tags, too_large};
use crate::{BlobService, reply};

/// Content that was taken from a source, and is durable.
pub(crate) struct Taken {
    pub(crate) content: Content,
    pub(crate) digest: SourceDigest,
    /// Keeps the content until the commit that refers to it is decided. A source in this server keeps its own.
    _writer: Writer,
}

/// The digest of a source that the client sent, once it was found to be right; else what is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceDigest {
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) crc64: Option<u64>,
}

impl SourceDigest {
    /// What the source's bytes have to be.
    fn sent(headers: &HeaderMap) -> Result<Self, Refusal> {
        let md5 = headers.md5("x-ms-source-content-md5")?;
        let crc64 = headers.crc64("x-ms-source-content-crc64")?.map(u64::from_le_bytes);
        if md5.is_some() && crc64.is_some() {
            return Err(Refusal::new(ErrorCode::InvalidInput)
                .message("A source is verified with its MD5 or its CRC64, not with both."));
        }
        Ok(Self { md5, crc64 })
    }

    /// Tells the client.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        reply::put_optional(headers, "content-md5", self.md5.as_ref().map(reply::md5_text));
        reply::put_optional(headers, "x-ms-content-crc64", self.crc64.map(reply::crc64_text));
    }
}

impl BlobService {
    /// Put Blob From URL.
    pub(crate) async fn put_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request.headers)?;
        let mut new = new_blob(&request, Kind::Block)?;
        let copies_properties = request.headers.flag("x-ms-copy-source-blob-properties")?.unwrap_or(true);
        let copies_tags = copies_tags(&request)?;
        let target = self.write_target(&request).await?;
        let source = self.source(&request).await?;
        if source.length > max_put_blob(request.version) {
            return Err(too_large(max_put_blob(request.version)));
        }
        source.check_online(&request)?;
        let whole = 0..source.length;
        let taken = self.take(&mut request, &source, whole, source.length).await?;
        // Plain content headers speak of the request's body, which is empty.
        new.headers = content_headers(&request.headers, ContentHeaderForms::Own)?;
        if copies_properties {
            new.headers = new.headers.or(&source.blob.headers);
            if new.metadata.is_empty() {
                new.metadata = source.blob.metadata.clone();
            }
        }
        new.headers.content_type.get_or_insert_with(|| DEFAULT_CONTENT_TYPE.to_owned());
        new.headers.content_md5 =
            new.headers.content_md5.or(source.blob.headers.content_md5).or(taken.digest.md5);
        if copies_tags {
            new.tags = source.blob.tags.clone();
        }
        new.content = taken.content.clone();
        let replaced = self.replace(&request, &target, &preconditions, Access::Write, &new).await;
        if replaced.is_err() {
            self.forget(&source, &taken);
        }
        let blob = replaced?;
        let mut response = reply::written(StatusCode::CREATED, &blob, request.version);
        SourceDigest { md5: taken.digest.md5.or(blob.headers.content_md5), ..taken.digest }
            .write(&mut response.headers);
        Ok(response)
    }

    /// Takes a part of a source, of at most `limit` bytes, and verifies it if the client sent a digest. What follows
    /// reads the request without its body.
    pub(crate) async fn take(
        &self,
        request: &mut Request,
        source: &Source,
        part: Range<u64>,
        limit: u64,
    ) -> Result<Taken, Refusal> {
        let sent = SourceDigest::sent(&request.headers)?;
        if part.end - part.start > limit {
            return Err(too_large(limit));
        }
        match &source.place {
            Place::Here(_) => {
                self.verify(source, part.clone(), sent).await?;
                let writer = self.extents.pins().writer();
                let content = self.slice(&writer, &source.blob.content, part).await?;
                Ok(Taken { content, digest: sent, _writer: writer })
            }
            Place::There(_) => {
                carry(request, self.source_body(source, part.clone()), part.end - part.start);
                let received = self.receive(request, limit, WantMd5::IfSent).await?;
                let digest = match sent.md5 {
                    Some(_) => sent,
                    None => SourceDigest { md5: None, crc64: Some(received.crc64) },
                };
                Ok(Taken { content: received.content, digest, _writer: received.writer })
            }
        }
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

    /// Compares the bytes of a source with what the client says they are.
    async fn verify(&self, source: &Source, part: Range<u64>, sent: SourceDigest) -> Result<(), Refusal> {
        if sent == SourceDigest::default() {
            return Ok(());
        }
        let mut md5 = Md5::new();
        let mut crc64 = crc_fast::Digest::new(Crc64Nvme);
        let mut body = self.source_body(source, part);
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            if let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() {
                match sent.md5 {
                    Some(_) => md5.update(&bytes),
                    None => crc64.update(&bytes),
                }
            }
        }
        if sent.md5.is_some_and(|sent| sent != <[u8; 16]>::from(md5.finalize())) {
            return Err(ErrorCode::Md5Mismatch.into());
        }
        if sent.crc64.is_some_and(|sent| sent != crc64.finalize()) {
            return Err(ErrorCode::Crc64Mismatch.into());
        }
        Ok(())
    }

    /// What was taken came to nothing.
    pub(crate) fn forget(&self, source: &Source, taken: &Taken) {
        if let Place::There(_) = source.place {
            self.extents.released(taken.content.allocated());
        }
    }
}

/// Gives a request a body, with the digests that the client sent for it.
fn carry(request: &mut Request, body: lazuli_protocol::request::RequestBody, length: u64) {
    for (theirs, ours) in
        [("x-ms-source-content-md5", "content-md5"), ("x-ms-source-content-crc64", "x-ms-content-crc64")]
    {
        let ours = HeaderName::from_static(ours);
        request.headers.remove(&ours);
        if let Some(value) = request.headers.get(theirs).cloned() {
            request.headers.insert(ours, value);
        }
    }
    request.body = body;
    request.content_length = Some(length);
}

/// `x-ms-source-range` within a source; all of it if there is none.
pub(crate) fn source_part(headers: &HeaderMap, source: &Source) -> Result<Range<u64>, Refusal> {
    match headers.value("x-ms-source-range", ByteRange::parse)? {
        Some(range) => range.within(source.length),
        None => Ok(0..source.length),
    }
}

impl ContentHeaders {
    /// These, and the others where there is none. An MD5 is of its content, so it is not taken over.
    fn or(self, other: &Self) -> Self {
        let other = other.clone();
        Self {
            content_type: self.content_type.or(other.content_type),
            content_encoding: self.content_encoding.or(other.content_encoding),
            content_language: self.content_language.or(other.content_language),
            content_disposition: self.content_disposition.or(other.content_disposition),
            cache_control: self.cache_control.or(other.cache_control),
            content_md5: self.content_md5,
        }
    }
}
