//! Signing, encryption, and the derivation of keys.
//!
//! All values here belong to one session or one of its channels. They are immutable and shared by concurrent
//! requests. This module does not know connections.

mod encrypt;
mod keys;
mod preauth;
mod sign;

pub(crate) use encrypt::{Cipher, TRANSFORM_HEADER_SIZE, TransformHeader};
pub(crate) use keys::{KeyContext, SessionKey, SessionKeys, derive_signing_key};
pub(crate) use preauth::Preauth;
pub(crate) use sign::{Signature, SigningAlgorithm, SigningKey};

/// Compares two signatures in constant time.
pub(crate) fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    one.ct_eq(other).into()
}

/// Decodes hexadecimal text.
#[cfg(test)]
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let (pairs, []) = digits.as_chunks::<2>() else { panic!("half a byte in {text}") };
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}
