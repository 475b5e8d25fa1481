//! Signing, encryption and the keys for both.
//!
//! Everything here is of one session or one channel of it, immutable once made, and used by all requests at once. Nothing
//! knows of connections.

mod keys;
mod preauth;
mod seal;
mod sign;

pub(crate) use keys::{KeyContext, SessionKey, SessionKeys, signing_key};
pub(crate) use preauth::Preauth;
pub(crate) use seal::{Cipher, TRANSFORM_HEADER, Transform};
pub(crate) use sign::{SigningAlgorithm, SigningKey};

/// Whether two signatures are the same, without telling by the time it takes where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    use subtle::ConstantTimeEq;
    one.ct_eq(other).into()
}

/// Bytes from hexadecimal text.
#[cfg(test)]
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let (pairs, []) = digits.as_chunks::<2>() else { panic!("half a byte in {text}") };
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}
