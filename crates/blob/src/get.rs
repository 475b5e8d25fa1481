//! Get Blob, Get Blob Properties, Get Blob Metadata.
//!
//! The headers and the bytes of a reply are of one state, because both come from one row. The content is held
//! until its last byte is sent, even if the blob is replaced or deleted meanwhile.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazuli_protocol::range::content_range;
use lazuli_protocol::{Body, ByteRange, ErrorCode, Headers, Refusal, Request, Response};
use md5::{Digest, Md5};

use crate::access::target::PinnedState;
use crate::model::record::Kind;
use crate::rules::precondition::{Preconditions, not_found};
use crate::{BlobService, reply};

/// Maximum length of a range whose digest a client can ask for, in bytes.
const MAX_DIGESTED_RANGE: u64 = 4 << 20;

impl BlobService {
    /// Handles Get Blob.
    pub(crate) async fn get_blob(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_read(&request.headers);
        let digest = RangeDigest::parse(&request.headers, range)?;
        let PinnedState { blob, is_current, held, now } = self.find_to_read(&request).await?;
        if blob.tier.is_archived(now) {
            return Err(ErrorCode::BlobArchived.into());
        }
        if is_current && blob.copy.as_ref().is_some_and(|copy| copy.incremental) {
            return Err(ErrorCode::OperationNotAllowedOnIncrementalCopyBlob.into());
        }
        let seal = self.unseal(&request, &blob)?;
        let length = blob.content.len();
        let part = range.map(|range| range.within(length)).transpose()?;
        let mut response =
            Response::empty(if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK });
        let headers = &mut response.headers;
        reply::properties(headers, &blob, is_current, request.version, now);
        if request.version.at_least(2026, 10, 6) {
            reply::tier(headers, &blob, &request.account.settings.default_tier, now);
        }
        let md5 = blob.headers.content_md5.as_ref().map(reply::md5_text);
        match &part {
            Some(part) => {
                headers.insert(CONTENT_RANGE, content_range(part, length));
                reply::put_optional(headers, "x-ms-blob-content-md5", md5);
            }
            None => reply::put_optional(headers, "content-md5", md5),
        }
        let part = part.unwrap_or(0..length);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
        request.caller.override_headers(headers);
        response.body = match digest {
            None => self.body(&blob, seal.as_ref(), part, held).await?,
            Some(digest) => {
                let bytes = self.read_plain_bytes(&blob, seal.as_ref(), part).await?;
                digest.write(&mut response.headers, &bytes);
                Body::Whole(bytes)
            }
        };
        Ok(response)
    }

    /// Handles Get Blob Properties.
    pub(crate) async fn get_blob_properties(&self, request: Request) -> Result<Response, Refusal> {
        let PinnedState { blob, is_current, now, .. } = self.find_to_read(&request).await?;
        self.unseal(&request, &blob)?;
        let mut response = Response::empty(StatusCode::OK);
        let headers = &mut response.headers;
        reply::properties(headers, &blob, is_current, request.version, now);
        reply::tier(headers, &blob, &request.account.settings.default_tier, now);
        reply::put_optional(headers, "content-md5", blob.headers.content_md5.as_ref().map(reply::md5_text));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(blob.content.len()));
        request.caller.override_headers(headers);
        Ok(response)
    }

    /// Handles Get Blob Metadata.
    pub(crate) async fn get_blob_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let PinnedState { blob, .. } = self.find_to_read(&request).await?;
        self.unseal(&request, &blob)?;
        let mut response = Response::empty(StatusCode::OK);
        reply::validators(&mut response.headers, blob.validators(), request.version);
        blob.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Reads the state that a request addresses, and checks the preconditions.
    pub(crate) async fn find_to_read(&self, request: &Request) -> Result<PinnedState, Refusal> {
        self.find_to_read_of(request, |_| true).await
    }

    /// Like [`Self::find_to_read`], for an operation on some types of blobs.
    pub(crate) async fn find_to_read_of(
        &self,
        request: &Request,
        fits: impl FnOnce(Kind) -> bool,
    ) -> Result<PinnedState, Refusal> {
        let preconditions = Preconditions::of_read(request)?;
        let target = self.target(request).await?;
        let found = self.find(&target).await?;
        let now = found.as_ref().map_or(request.now, |found| found.now);
        let blob = found.as_ref().map(|found| &found.blob);
        preconditions.admit_read_of(blob, fits, request.version, now)?;
        found.ok_or_else(not_found)
    }
}

/// The kind of digest that a client asks for.
#[derive(Clone, Copy)]
enum RangeDigest {
    Md5,
    Crc64,
}

impl RangeDigest {
    fn parse(headers: &HeaderMap, range: Option<ByteRange>) -> Result<Option<Self>, Refusal> {
        const NAMES: [(&str, RangeDigest); 2] = [
            ("x-ms-range-get-content-md5", RangeDigest::Md5),
            ("x-ms-range-get-content-crc64", RangeDigest::Crc64),
        ];
        let mut wanted = None;
        for (name, digest) in NAMES {
            if headers.flag(name)? == Some(true) && wanted.replace((name, digest)).is_some() {
                return Err(ErrorCode::BothCrc64AndMd5RangeHeaderPresent.into());
            }
        }
        let Some((name, digest)) = wanted else { return Ok(None) };
        let short = range.and_then(|range| range.last.map(|last| last - range.first < MAX_DIGESTED_RANGE));
        if short == Some(true) { Ok(Some(digest)) } else { Err(Refusal::invalid_header(name, "true")) }
    }

    fn write(self, headers: &mut HeaderMap, bytes: &Bytes) {
        match self {
            Self::Md5 => reply::put(headers, "content-md5", reply::md5_text(Md5::digest(bytes))),
            Self::Crc64 => {
                let crc64 = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
                reply::put(headers, "x-ms-content-crc64", reply::crc64_text(crc64));
            }
        }
    }
}
