//! Put Page: writes and clears pages of a page blob.
//!
//! Pages that were never written, or were cleared, take no space and read as zeros.

use std::ops::Range;

use http::{HeaderMap, StatusCode};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Refusal, Request, Response, Version};
use lazuli_store::View;

use crate::access::target::Target;
use crate::content::edit::{BlobChange, ContentEdit};
use crate::content::encryption::{Seal, check_update};
use crate::content::intake::Md5Policy;
use crate::model::record::{Blob, Damage, Kind, PAGE};
use crate::rules::body::check_empty_body;
use crate::rules::precondition::{Preconditions, check_changeable, check_mutable, not_found};
use crate::{BlobService, reply};

/// Maximum number of bytes that one request can write.
pub(crate) const MAX_PAGE_WRITE: u64 = 4 << 20;

impl BlobService {
    /// Handles Put Page.
    pub(crate) async fn put_page(&self, mut request: Request) -> Result<Response, Refusal> {
        let write = PageWrite::parse(&request)?;
        let clear = request.headers.one_of("x-ms-page-write", &[("update", false), ("clear", true)])?;
        if clear.ok_or_else(|| Refusal::missing_header("x-ms-page-write"))? {
            check_empty_body(&request)?;
            let target = self.write_target(&request).await?;
            let seal = self.seal(&request, &target.container)?;
            let blob = self.clear_pages(&target, &write, seal.as_ref()).await?;
            return Ok(pages_reply(&blob, request.version));
        }
        check_length(request.content_length, &write.range)?;
        let target = self.write_target(&request).await?;
        let (blob, md5, crc64) = match self.seal(&request, &target.container)? {
            None => {
                let want = Md5Policy::of_block(request.version);
                let received = self.receive(&mut request, MAX_PAGE_WRITE, want, None).await?;
                let blob = self.write_pages(&target, &write, &received.content, &received.writer).await?;
                (blob, received.md5, received.crc64)
            }
            Some(seal) => {
                let received = self.receive_document(&mut request, MAX_PAGE_WRITE as usize).await?;
                let blob = self.write_sealed_pages(&target, &write, &seal, &received.bytes).await?;
                (blob, received.md5, received.crc64)
            }
        };
        let mut response = pages_reply(&blob, request.version);
        reply::digests(&mut response.headers, md5, crc64, request.version);
        Ok(response)
    }

    /// Writes pages to a blob that is not encrypted. The content is durable and as long as the range, and
    /// `writer` holds it.
    pub(crate) async fn write_pages(
        &self,
        target: &Target,
        write: &PageWrite,
        content: &Content,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        let rule = |view: &View<'_>, blob| {
            write.decide(view, blob, |blob| {
                check_update(blob.encryption.as_ref(), None)?;
                Ok(ContentEdit::Write { offset: write.range.start, content: content.clone() })
            })
        };
        let written = self.edit(&target.partition, writer, rule).await;
        written.inspect_err(|_| self.extents.released(content.extent_bytes()))
    }

    /// Writes pages to an encrypted blob. The salt of the encryption is in the blob's row, so each attempt
    /// encrypts the pages again.
    pub(crate) async fn write_sealed_pages(
        &self,
        target: &Target,
        write: &PageWrite,
        seal: &Seal,
        pages: &[u8],
    ) -> Result<Blob, Refusal> {
        let rule = |view: &View<'_>, blob| {
            write.decide(view, blob, |blob| {
                check_update(blob.encryption.as_ref(), Some(seal))?;
                let salt = blob.nonce.ok_or(Damage::Undecodable)?;
                let mut sealed = pages.to_vec();
                seal.key.pages(&salt)?.encrypt(write.range.start, &mut sealed);
                Ok(ContentEdit::Write { offset: write.range.start, content: Content::inline(sealed) })
            })
        };
        self.edit(&target.partition, &self.extents.writer(), rule).await
    }

    async fn clear_pages(
        &self,
        target: &Target,
        write: &PageWrite,
        seal: Option<&Seal>,
    ) -> Result<Blob, Refusal> {
        let rule = |view: &View<'_>, blob| {
            write.decide(view, blob, |blob| {
                check_update(blob.encryption.as_ref(), seal)?;
                Ok(ContentEdit::Clear(write.range.clone()))
            })
        };
        self.edit(&target.partition, &self.extents.writer(), rule).await
    }
}

/// The pages that a request changes, and its preconditions.
#[derive(Clone, Debug)]
pub(crate) struct PageWrite {
    pub(crate) range: Range<u64>,
    preconditions: Preconditions,
    sequence_number: SequenceConditions,
}

impl PageWrite {
    /// Reads the headers of a request: `Range` or `x-ms-range`, and the conditions.
    pub(crate) fn parse(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            range: whole_pages(&request.headers)?,
            preconditions: Preconditions::of_write(request)?,
            sequence_number: SequenceConditions::parse(&request.headers)?,
        })
    }

    /// Decides a change of pages. Calls `change` after all other checks.
    fn decide(
        &self,
        view: &View<'_>,
        blob: Option<Blob>,
        change: impl FnOnce(&Blob) -> Result<ContentEdit, Refusal>,
    ) -> Result<BlobChange, Refusal> {
        let is_page = |kind: Kind| matches!(kind, Kind::Page { .. });
        let admission = self.preconditions.admit_write_to(blob.as_ref(), is_page, view.now)?;
        let mut blob = blob.ok_or_else(not_found)?;
        if let Kind::Page { sequence_number } = blob.kind {
            self.sequence_number.check(sequence_number)?;
        }
        check_mutable(&blob, view.now)?;
        check_changeable(&blob, view.now)?;
        if self.range.end > blob.content.len() {
            return Err(ErrorCode::InvalidPageRange.into());
        }
        let content = change(&blob)?;
        blob.touch(view.stamp, view.now);
        blob.lease = admission.lease;
        Ok(BlobChange { blob, content, valid_until: admission.valid_until })
    }
}

/// Returns the range that a request writes to.
fn whole_pages(headers: &HeaderMap) -> Result<Range<u64>, Refusal> {
    let range = ByteRange::of_write(headers)?;
    if !range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE) {
        return Err(ErrorCode::InvalidPageRange.into());
    }
    Ok(range)
}

/// Conditions on the sequence number of a page blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SequenceConditions {
    at_most: Option<u64>,
    less_than: Option<u64>,
    equal: Option<u64>,
}

impl SequenceConditions {
    fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        let number = |name| match headers.number(name, i64::MIN..=i64::MAX)? {
            Some(negative @ ..0) => Err(Refusal::new(ErrorCode::InvalidInput)
                .detail("HeaderName", name)
                .detail("HeaderValue", negative.to_string())),
            number => Ok(number.map(i64::unsigned_abs)),
        };
        Ok(Self {
            at_most: number("x-ms-if-sequence-number-le")?,
            less_than: number("x-ms-if-sequence-number-lt")?,
            equal: number("x-ms-if-sequence-number-eq")?,
        })
    }

    fn check(&self, current: u64) -> Result<(), Refusal> {
        let met = self.at_most.is_none_or(|number| current <= number)
            && self.less_than.is_none_or(|number| current < number)
            && self.equal.is_none_or(|number| current == number);
        if met { Ok(()) } else { Err(ErrorCode::SequenceNumberConditionNotMet.into()) }
    }
}

/// Returns the reply to a change of pages.
pub(crate) fn pages_reply(blob: &Blob, version: Version) -> Response {
    let mut response = Response::empty(StatusCode::CREATED);
    let headers = &mut response.headers;
    reply::validators(headers, blob.validators(), version);
    if let Kind::Page { sequence_number } = blob.kind {
        reply::put(headers, "x-ms-blob-sequence-number", sequence_number.to_string());
    }
    reply::put(headers, "x-ms-request-server-encrypted", "true");
    reply::encryption(headers, blob.encryption.as_ref());
    response
}

/// Refuses a body whose length differs from that of the range.
pub(crate) fn check_length(length: Option<u64>, range: &Range<u64>) -> Result<(), Refusal> {
    let length = length.ok_or(ErrorCode::MissingContentLengthHeader)?;
    if range.end - range.start > MAX_PAGE_WRITE {
        return Err(
            Refusal::new(ErrorCode::RequestBodyTooLarge).detail("MaxLimit", MAX_PAGE_WRITE.to_string())
        );
    }
    if length != range.end - range.start {
        return Err(Refusal::invalid_header("content-length", length.to_string()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn write_range_must_be_whole_pages() {
        for (range, expected) in [
            ("bytes=0-511", Ok(0..512)),
            ("bytes=512-2047", Ok(512..2048)),
            ("bytes=0-510", Err(ErrorCode::InvalidPageRange)),
            ("bytes=1-511", Err(ErrorCode::InvalidPageRange)),
            ("bytes=0-512", Err(ErrorCode::InvalidPageRange)),
            ("bytes=0-", Err(ErrorCode::InvalidHeaderValue)),
        ] {
            let read = whole_pages(&headers(&[("x-ms-range", range)]));
            assert_eq!(read.map_err(|refusal| refusal.code()), expected, "{range}");
        }
    }

    #[test]
    fn sequence_number_conditions_compare_as_their_headers_say() {
        for (name, number, met) in [
            ("x-ms-if-sequence-number-le", "6", false),
            ("x-ms-if-sequence-number-le", "7", true),
            ("x-ms-if-sequence-number-lt", "7", false),
            ("x-ms-if-sequence-number-lt", "8", true),
            ("x-ms-if-sequence-number-eq", "7", true),
            ("x-ms-if-sequence-number-eq", "8", false),
            ("x-ms-if-sequence-number-eq", "9223372036854775807", false),
        ] {
            let conditions = SequenceConditions::parse(&headers(&[(name, number)])).unwrap();
            assert_eq!(conditions.check(7).is_ok(), met, "{name}: {number}");
        }
        for (number, code) in [
            ("-1", ErrorCode::InvalidInput),
            ("x", ErrorCode::InvalidHeaderValue),
            ("9223372036854775808", ErrorCode::InvalidHeaderValue),
        ] {
            let refused = SequenceConditions::parse(&headers(&[("x-ms-if-sequence-number-lt", number)]));
            assert_eq!(refused.unwrap_err().code(), code, "{number}");
        }
    }
}
