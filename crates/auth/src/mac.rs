//! HMAC-SHA256, the signature of Shared Key and of shared access signatures. Verification takes constant
//! time.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// Returns the Base64 signature of a message.
pub(crate) fn sign(key: &[u8], message: &[u8]) -> String {
    STANDARD.encode(tag(key, message))
}

/// Returns the signature of a message as bytes.
pub(crate) fn tag(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref());
    bytes
}

/// Decodes a Base64 signature. Returns `None` if it is invalid.
pub(crate) fn decode(signature: &str) -> Option<Vec<u8>> {
    STANDARD.decode(signature).ok()
}

/// Returns whether a signature is that of any of the messages with any of the keys.
pub(crate) fn matches_any<'k, M: AsRef<[u8]>>(
    signature: &[u8],
    keys: impl Iterator<Item = &'k [u8]> + Clone,
    messages: &[M],
) -> bool {
    keys.map(|key| hmac::Key::new(hmac::HMAC_SHA256, key))
        .any(|key| messages.iter().any(|message| hmac::verify(&key, message.as_ref(), signature).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_case_2_of_rfc_4231_holds() {
        let signature = sign(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(signature, "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM=");
        let signature = decode(&signature).unwrap();
        let keys = [&b"other"[..], b"Jefe"];
        assert!(matches_any(&signature, keys.into_iter(), &["no", "what do ya want for nothing?"]));
        assert!(!matches_any(&signature, keys.into_iter(), &["no"]));
        assert!(!matches_any(b"", keys.into_iter(), &["what do ya want for nothing?"]));
        assert_eq!(decode("not base64"), None);
    }
}
