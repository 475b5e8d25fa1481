//! Headers of responses.

pub(crate) use lazuli_content::content_refusal;
pub(crate) use lazuli_service::reply::{put, put_validators as validators};

/// Encodes bytes in base64.
pub(crate) fn base64(digest: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(digest)
}
