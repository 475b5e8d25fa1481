//! Writes the headers of replies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::ETAG;
use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{Lease, Timestamp, Validators};
pub(crate) use lazuli_content::content_refusal;
use lazuli_protocol::{Response, Version, date};
pub(crate) use lazuli_service::read_refusal;
use lazuli_service::reply::put_validators;
pub(crate) use lazuli_service::reply::{put, put_optional};

pub(crate) use crate::model::record::stamp_text;
use crate::model::record::{Blob, BlobCopy, Encryption, Kind};

/// Writes `ETag` and `Last-Modified`.
pub(crate) fn validators(headers: &mut HeaderMap, validators: Validators, version: Version) {
    put_validators(headers, validators);
    if !version.at_least(2011, 8, 18) {
        put(headers, ETAG.as_str(), validators.etag.unquoted());
    }
}

/// Builds the reply to a write: `ETag`, `Last-Modified`, the version and the encryption of the blob.
pub(crate) fn write_reply(status: StatusCode, blob: &Blob, version: Version) -> Response {
    let mut response = Response::empty(status);
    let headers = &mut response.headers;
    validators(headers, blob.validators(), version);
    put_optional(headers, "x-ms-version-id", blob.version.map(stamp_text));
    put(headers, "x-ms-request-server-encrypted", "true");
    encryption(headers, blob.encryption.as_ref());
    response
}

/// Writes the digests of a body: the MD5 if there is one, and the CRC64 in versions that have it.
pub(crate) fn digests(headers: &mut HeaderMap, md5: Option<[u8; 16]>, crc64: u64, version: Version) {
    put_optional(headers, "content-md5", md5.as_ref().map(md5_text));
    if has_crc64(version) {
        put(headers, "x-ms-content-crc64", crc64_text(crc64));
    }
}

/// Returns whether replies of this version have a CRC64.
pub(crate) fn has_crc64(version: Version) -> bool {
    version.at_least(2019, 2, 2)
}

/// Writes the key that the content is encrypted with, if the client chose one.
pub(crate) fn encryption(headers: &mut HeaderMap, encryption: Option<&Encryption>) {
    match encryption {
        Some(Encryption::Customer { key_sha256 }) => {
            put(headers, "x-ms-encryption-key-sha256", sha256_text(key_sha256));
        }
        Some(Encryption::Scope { name }) => put(headers, "x-ms-encryption-scope", name),
        None => {}
    }
}

/// Writes the state of a lease.
pub(crate) fn lease(headers: &mut HeaderMap, lease: &Lease, now: Timestamp) {
    put(headers, "x-ms-lease-status", lease.status(now).to_string());
    put(headers, "x-ms-lease-state", lease.state(now).to_string());
    put_optional(headers, "x-ms-lease-duration", lease.duration(now).map(|duration| duration.to_string()));
}

/// Writes the headers that Get Blob and Get Blob Properties have in common, except length and MD5.
pub(crate) fn properties(
    headers: &mut HeaderMap,
    blob: &Blob,
    is_current: bool,
    version: Version,
    now: Timestamp,
) {
    validators(headers, blob.validators(), version);
    blob.headers.write(headers);
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
    put_optional(headers, "x-ms-legal-hold", blob.legal_hold.last_set().map(|held| held.to_string()));
}

/// Writes the tier, for replies to Get Blob Properties, and in newer versions to Get Blob.
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

/// Writes the state of the last copy to the blob.
pub(crate) fn copy_state(headers: &mut HeaderMap, copy: &BlobCopy) {
    copy.state.write_headers(headers);
    if copy.incremental {
        put(headers, "x-ms-incremental-copy", "true");
        put_optional(headers, "x-ms-copy-destination-snapshot", copy.destination_snapshot.map(stamp_text));
    }
}

/// Returns an MD5 as text.
pub(crate) fn md5_text(md5: impl AsRef<[u8]>) -> String {
    BASE64.encode(md5)
}

/// Returns the hash of a key as text.
pub(crate) fn sha256_text(sha256: &[u8; 32]) -> String {
    BASE64.encode(sha256)
}

/// Returns a CRC64 as text: its bytes in little-endian order.
pub(crate) fn crc64_text(crc64: u64) -> String {
    BASE64.encode(crc64.to_le_bytes())
}
