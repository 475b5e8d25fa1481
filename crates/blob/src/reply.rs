//! Headers of replies, and the refusals of what the layers below could not do.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, ETAG, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::{Lease, Stamp, Timestamp, Validators};
pub(crate) use lazuli_generations::unreadable;
use lazuli_protocol::{ErrorCode, Refusal, Response, Version, date};

use crate::record::{Blob, BlobCopy, ContentHeaders, Encryption, Kind, Tier, Tiering};

/// Adds a header whose value is known to be good for one; a value that is not, is left out.
pub(crate) fn put(headers: &mut HeaderMap, name: &'static str, value: impl AsRef<str>) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_ref().as_bytes()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Adds a header if there is a value.
pub(crate) fn put_optional(headers: &mut HeaderMap, name: &'static str, value: Option<impl AsRef<str>>) {
    if let Some(value) = value {
        put(headers, name, value);
    }
}

/// `ETag` and `Last-Modified`.
pub(crate) fn validators(headers: &mut HeaderMap, validators: Validators, version: Version) {
    let etag =
        if version.at_least(2011, 8, 18) { validators.etag.to_string() } else { validators.etag.unquoted() };
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(LAST_MODIFIED, date::header_value(validators.last_modified));
}

/// The reply to a write: the blob's new tag, its version, and how it is encrypted.
pub(crate) fn written(status: StatusCode, blob: &Blob, version: Version) -> Response {
    let mut response = Response::empty(status);
    let headers = &mut response.headers;
    validators(headers, blob.validators(), version);
    put_optional(headers, "x-ms-version-id", blob.version.map(stamp_text));
    put(headers, "x-ms-request-server-encrypted", "true");
    encryption(headers, blob.encryption.as_ref());
    response
}

/// The digests of a body that became a block: the MD5 where one was sent or the version knows no other, and the CRC64.
pub(crate) fn digests(headers: &mut HeaderMap, md5: Option<[u8; 16]>, crc64: u64, version: Version) {
    put_optional(headers, "content-md5", md5.as_ref().map(md5_text));
    if tells_crc64(version) {
        put(headers, "x-ms-content-crc64", crc64_text(crc64));
    }
}

/// Whether the version knows the CRC64.
pub(crate) fn tells_crc64(version: Version) -> bool {
    version.at_least(2019, 2, 2)
}

/// Which key the content is encrypted with, if it is not the server's own.
pub(crate) fn encryption(headers: &mut HeaderMap, encryption: Option<&Encryption>) {
    match encryption {
        Some(Encryption::Customer { key_sha256 }) => {
            put(headers, "x-ms-encryption-key-sha256", sha256_text(key_sha256));
        }
        Some(Encryption::Scope { name }) => put(headers, "x-ms-encryption-scope", name),
        None => {}
    }
}

/// The id of a snapshot or version: a time with seven decimals.
pub(crate) fn stamp_text(stamp: Stamp) -> String {
    date::iso8601(Timestamp::from_ticks(stamp.ticks()))
}

/// The state of a lease.
pub(crate) fn lease(headers: &mut HeaderMap, lease: &Lease, now: Timestamp) {
    put(headers, "x-ms-lease-status", lease.status(now).to_string());
    put(headers, "x-ms-lease-state", lease.state(now).to_string());
    put_optional(headers, "x-ms-lease-duration", lease.duration(now).map(|duration| duration.to_string()));
}

/// Everything that Get Blob and Get Blob Properties say about a blob, but for its length and MD5.
pub(crate) fn properties(
    headers: &mut HeaderMap,
    blob: &Blob,
    is_current: bool,
    version: Version,
    now: Timestamp,
) {
    validators(headers, blob.validators(), version);
    content_headers(headers, &blob.headers);
    blob.metadata.write_headers(headers);
    put(headers, "x-ms-blob-type", blob.kind.name());
    put(headers, "accept-ranges", "bytes");
    put(headers, "x-ms-creation-time", date::rfc1123(blob.created));
    put(headers, "x-ms-server-encrypted", "true");
    encryption(headers, blob.encryption.as_ref());
    match blob.kind {
        Kind::Block => {}
        Kind::Page { sequence_number } => {
            put(headers, "x-ms-blob-sequence-number", sequence_number.to_string());
        }
        Kind::Append { blocks, sealed } => {
            put(headers, "x-ms-blob-committed-block-count", blocks.to_string());
            if sealed {
                put(headers, "x-ms-blob-sealed", "true");
            }
        }
    }
    if is_current {
        lease(headers, &blob.lease, now);
    }
    if let Some(stamp) = blob.version {
        put(headers, "x-ms-version-id", stamp_text(stamp));
        if is_current {
            put(headers, "x-ms-is-current-version", "true");
        }
    }
    if !blob.tags.0.is_empty() {
        put(headers, "x-ms-tag-count", blob.tags.0.len().to_string());
    }
    if let Some(copy) = &blob.copy {
        copy_state(headers, copy);
    }
    put_optional(headers, "x-ms-expiry-time", blob.expires.map(date::rfc1123));
    if let Some(policy) = blob.immutability {
        put(headers, "x-ms-immutability-policy-until-date", date::rfc1123(policy.until));
        put(headers, "x-ms-immutability-policy-mode", policy.mode());
    }
    put_optional(headers, "x-ms-legal-hold", blob.legal_hold.said().map(|held| held.to_string()));
}

/// The tier, which Get Blob Properties says, and Get Blob in newer versions.
pub(crate) fn tier(headers: &mut HeaderMap, blob: &Blob, default_tier: &str, now: Timestamp) {
    let tiering = blob.tier.at(now);
    match (tiering.tier, blob.kind) {
        (Some(tier), _) => {
            put(headers, "x-ms-access-tier", tier.name());
            put_optional(headers, "x-ms-smart-access-tier", tier.chosen(default_tier));
        }
        (None, Kind::Block) => {
            put(headers, "x-ms-access-tier", default_tier);
            put(headers, "x-ms-access-tier-inferred", "true");
        }
        (None, _) => {}
    }
    put_optional(headers, "x-ms-access-tier-change-time", tiering.changed.map(date::rfc1123));
    if let Some(rehydration) = tiering.rehydration {
        put(headers, "x-ms-archive-status", rehydration.status());
        put(headers, "x-ms-rehydrate-priority", if rehydration.high_priority { "High" } else { "Standard" });
    }
}

/// The content headers as they are served. Whoever cleared the type gets none.
pub(crate) fn content_headers(headers: &mut HeaderMap, stored: &ContentHeaders) {
    for (name, value) in [
        (CONTENT_TYPE, stored.content_type.as_deref()),
        (CONTENT_ENCODING, stored.content_encoding.as_deref()),
        (CONTENT_LANGUAGE, stored.content_language.as_deref()),
        (CONTENT_DISPOSITION, stored.content_disposition.as_deref()),
        (CACHE_CONTROL, stored.cache_control.as_deref()),
    ] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()) {
            headers.insert(name, value);
        }
    }
}

/// What is known of the last copy onto the blob.
pub(crate) fn copy_state(headers: &mut HeaderMap, copy: &BlobCopy) {
    copy.state.write_headers(headers);
    if copy.incremental {
        put(headers, "x-ms-incremental-copy", "true");
        put_optional(headers, "x-ms-copy-destination-snapshot", copy.destination_snapshot.map(stamp_text));
    }
}

impl Tier {
    /// The value of `x-ms-access-tier`.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Hot => "Hot".into(),
            Self::Cool => "Cool".into(),
            Self::Cold => "Cold".into(),
            Self::Archive => "Archive".into(),
            Self::Premium(level) => format!("P{level}"),
            Self::Smart => "Smart".into(),
        }
    }

    /// The tier that a blob of which the service chooses the tier is in: bytes never move here, so it stays where new
    /// ones come.
    pub(crate) fn chosen(self, default_tier: &str) -> Option<&str> {
        (self == Self::Smart).then_some(default_tier)
    }
}

impl crate::record::Immutability {
    /// The value of `x-ms-immutability-policy-mode`.
    pub(crate) const fn mode(&self) -> &'static str {
        if self.locked { "locked" } else { "unlocked" }
    }
}

impl crate::record::Rehydration {
    /// The value of `x-ms-archive-status`.
    pub(crate) const fn status(&self) -> &'static str {
        match self.to {
            Tier::Cool => "rehydrate-pending-to-cool",
            Tier::Cold => "rehydrate-pending-to-cold",
            Tier::Smart => "rehydrate-pending-to-smart",
            _ => "rehydrate-pending-to-hot",
        }
    }
}

impl Tiering {
    /// The tier at a moment: a rehydration that is over by then has taken effect.
    pub(crate) fn at(&self, now: Timestamp) -> Self {
        match self.rehydration {
            Some(rehydration) if rehydration.until <= now => {
                Self { tier: Some(rehydration.to), changed: Some(rehydration.until), rehydration: None }
            }
            _ => *self,
        }
    }

    /// Whether the bytes are out of reach at a moment.
    pub(crate) fn is_archived(&self, now: Timestamp) -> bool {
        self.at(now).tier == Some(Tier::Archive)
    }
}

/// The text of an MD5.
pub(crate) fn md5_text(md5: impl AsRef<[u8]>) -> String {
    BASE64.encode(md5)
}

/// The text of the hash of a key.
pub(crate) fn sha256_text(sha256: &[u8; 32]) -> String {
    BASE64.encode(sha256)
}

/// The text of a CRC64: its bytes in little-endian order.
pub(crate) fn crc64_text(crc64: u64) -> String {
    BASE64.encode(crc64.to_le_bytes())
}

/// Bytes could not be stored or read.
pub(crate) fn extents(error: lazuli_extents::Error) -> Refusal {
    use lazuli_extents::Error;
    match error {
        Error::Full => Refusal::new(ErrorCode::ServerBusy).message("There is no space left on the server."),
        Error::Busy(_) => Refusal::new(ErrorCode::ServerBusy),
        Error::Size => Refusal::new(ErrorCode::RequestBodyTooLarge),
        Error::Stopped | Error::Damaged(_) | Error::Io(_) => {
            tracing::error!(%error, "bytes cannot be stored or read");
            Refusal::new(ErrorCode::InternalError)
        }
    }
}
