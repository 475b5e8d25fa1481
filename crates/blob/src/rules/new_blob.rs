//! Builds new blobs from the headers of a request: content headers, metadata, tags, tier, protection.

use http::HeaderMap;
use lazuli_protocol::{Headers, Metadata, Refusal, Request};

use super::retention::protect;
use super::tier::access_tier;
use crate::model::record::{Blob, ContentHeaders, DEFAULT_CONTENT_TYPE, Kind, MAX_PAGE_BLOB, PAGE, Tags};

/// Returns the blob that a request describes, without content.
pub(crate) fn new_blob(request: &Request, kind: Kind) -> Result<Blob, Refusal> {
    new_blob_with(request, kind, ContentHeaderForms::OwnOrPlain)
}

/// Like [`new_blob`], but reads the content headers in these forms.
pub(crate) fn new_blob_with(
    request: &Request,
    kind: Kind,
    forms: ContentHeaderForms,
) -> Result<Blob, Refusal> {
    let headers = &request.headers;
    let mut blob = Blob::new(kind, Default::default(), request.now);
    blob.headers = content_headers(headers, forms)?;
    blob.headers.content_type.get_or_insert_with(|| DEFAULT_CONTENT_TYPE.to_owned());
    blob.metadata = Metadata::from_headers(headers)?;
    blob.tags = Tags::from_headers(headers)?;
    blob.tier.tier = access_tier(request)?;
    if blob.tier.tier.is_some() {
        blob.tier.changed = Some(request.now);
    }
    protect(&mut blob, headers, request.now)?;
    Ok(blob)
}

/// The headers of a request that set the content headers of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentHeaderForms {
    /// Headers that begin with `x-ms-blob-`.
    Own,
    /// Headers that begin with `x-ms-blob-`, or else the plain ones. Then the headers of the body become
    /// those of the blob.
    OwnOrPlain,
}

/// Returns the content headers that a request sets.
pub(crate) fn content_headers(
    headers: &HeaderMap,
    forms: ContentHeaderForms,
) -> Result<ContentHeaders, Refusal> {
    let text = |own: &str, plain: &str| -> Result<Option<String>, Refusal> {
        let value = match headers.text(own)? {
            None if forms == ContentHeaderForms::OwnOrPlain => headers.text(plain)?,
            value => value,
        };
        Ok(value.map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned))
    };
    Ok(ContentHeaders {
        content_type: text("x-ms-blob-content-type", "content-type")?,
        content_encoding: text("x-ms-blob-content-encoding", "content-encoding")?,
        content_language: text("x-ms-blob-content-language", "content-language")?,
        content_disposition: text("x-ms-blob-content-disposition", "")?,
        cache_control: text("x-ms-blob-cache-control", "cache-control")?,
        content_md5: headers.unchecked_md5("x-ms-blob-content-md5")?,
    })
}

/// Reads the length of a page blob. Refuses a length that is not whole pages.
pub(crate) fn page_blob_length(headers: &HeaderMap) -> Result<u64, Refusal> {
    const NAME: &str = "x-ms-blob-content-length";
    let length = headers.required_number(NAME, 0..=MAX_PAGE_BLOB as i64)?.unsigned_abs();
    if length % PAGE != 0 {
        return Err(Refusal::invalid_header(NAME, length.to_string()));
    }
    Ok(length)
}
