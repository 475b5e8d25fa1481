//! Bodies of writes: which requests must have one, and how long it may be in each version.

use lazuli_protocol::{ErrorCode, Refusal, Request, Version};

const MIB: u64 = 1 << 20;

/// Refuses a request without a body: there are no empty blocks.
pub(crate) fn check_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        Some(0) => Err(Refusal::invalid_header("Content-Length", "0")),
        Some(_) => Ok(()),
        None => Err(ErrorCode::MissingContentLengthHeader.into()),
    }
}

/// Refuses a request with a body.
pub(crate) fn check_no_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        None | Some(0) => Ok(()),
        Some(length) => Err(Refusal::invalid_header("content-length", length.to_string())),
    }
}

/// Refuses a request with a body, and a request without `Content-Length`.
pub(crate) fn check_empty_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        None => Err(ErrorCode::MissingContentLengthHeader.into()),
        Some(_) => check_no_body(request),
    }
}

/// Returns the maximum length of the body of Put Blob.
pub(crate) fn max_put_blob(version: Version) -> u64 {
    match version {
        version if version.at_least(2019, 12, 12) => 5000 * MIB,
        version if version.at_least(2016, 5, 31) => 256 * MIB,
        _ => 64 * MIB,
    }
}

/// Returns the maximum length of a block that a request sends.
pub(crate) fn max_block(version: Version) -> u64 {
    match version {
        version if version.at_least(2019, 12, 12) => 4000 * MIB,
        version if version.at_least(2016, 5, 31) => 100 * MIB,
        _ => 4 * MIB,
    }
}

/// Returns the maximum length of a block that comes from a source.
pub(crate) fn max_block_from_url(version: Version) -> u64 {
    if version.at_least(2020, 4, 8) { 4000 * MIB } else { 100 * MIB }
}

/// Returns the maximum length of a block of an append blob.
pub(crate) fn max_append(version: Version) -> u64 {
    if version.at_least(2022, 11, 2) { 100 * MIB } else { 4 * MIB }
}
