//! Signing, encryption and the keys for both.

use bytes::BytesMut;

/// Bytes of the header before an encrypted message.
pub(crate) const TRANSFORM_HEADER: usize = 52;

/// The keys of a session.
pub(crate) struct SessionKeys {
    pub(crate) signing: SigningKey,
    /// For what the client sends.
    pub(crate) incoming: Sealing,
    /// For what the server sends.
    pub(crate) outgoing: Sealing,
}

/// A key for signatures.
pub(crate) struct SigningKey;

impl SigningKey {
    /// Signs a message in place, from its header on.
    pub(crate) fn sign(&self, _message: &mut [u8]) {}

    /// Whether a message was signed with this key.
    pub(crate) fn verify(&self, _message: &[u8]) -> bool {
        false
    }
}

/// A key for one direction.
pub(crate) struct Sealing;

impl Sealing {
    /// Encrypts what is behind the room for the header, and writes the header.
    pub(crate) fn seal(&self, _session: u64, _frame: &mut Vec<u8>) {}

    /// Decrypts a frame; what is in it.
    pub(crate) fn open(&self, _frame: BytesMut) -> Option<BytesMut> {
        None
    }
}

/// The hash over messages that set up something.
#[derive(Clone, Default)]
pub(crate) struct Preauth;
