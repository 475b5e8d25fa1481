//! Message signatures (MS-SMB2 3.1.4.1).

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use bytes::Bytes;
use cmac::{Cmac, Mac};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use ring::hmac;

use super::constant_time_eq;
use crate::wire::header::{HEADER_SIZE, SIGNATURE, SmbCommand, flags};

/// The signature in a header.
pub(crate) type Signature = [u8; 16];

/// A signing algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SigningAlgorithm {
    /// Used in 2.0.2 and 2.1, and in 3.1.1 if the client offers nothing else.
    HmacSha256,
    /// Used in 3.x, unless GMAC was negotiated.
    AesCmac,
    /// Negotiable in 3.1.1.
    AesGmac,
}

impl SigningAlgorithm {
    /// Returns the number in negotiate contexts.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::HmacSha256 => 0,
            Self::AesCmac => 1,
            Self::AesGmac => 2,
        }
    }
}

/// A signing key.
pub(crate) enum SigningKey {
    HmacSha256(hmac::Key),
    AesCmac(Box<Cmac<Aes128>>),
    AesGmac(Box<Gmac>),
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HmacSha256(_) => "SigningKey(HMAC-SHA256)",
            Self::AesCmac(_) => "SigningKey(AES-CMAC)",
            Self::AesGmac(_) => "SigningKey(AES-GMAC)",
        })
    }
}

impl SigningKey {
    /// Returns a key for an algorithm.
    pub(crate) fn new(algorithm: SigningAlgorithm, key: &[u8; 16]) -> Self {
        match algorithm {
            SigningAlgorithm::HmacSha256 => Self::HmacSha256(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningAlgorithm::AesCmac => Self::AesCmac(Box::new(<Cmac<Aes128> as Mac>::new(key.into()))),
            SigningAlgorithm::AesGmac => Self::AesGmac(Box::new(Gmac::new(key))),
        }
    }

    /// Returns whether signing two different messages under one message id reveals the key.
    pub(crate) const fn needs_unique_message_ids(&self) -> bool {
        matches!(self, Self::AesGmac(_))
    }

    /// Signs a message that consists of `message`, which begins with the header, and `data`. Sets the flag
    /// for signed messages.
    pub(crate) fn sign(&self, message: &mut [u8], data: &[Bytes]) {
        if message.len() < HEADER_SIZE {
            return;
        }
        message[16] |= flags::SIGNED as u8;
        let signature = self.signature(message, data);
        message[SIGNATURE].copy_from_slice(&signature);
    }

    /// Returns whether the signature of a message is right.
    pub(crate) fn verify(&self, message: &[u8]) -> bool {
        message.len() >= HEADER_SIZE && constant_time_eq(&message[SIGNATURE], &self.signature(message, &[]))
    }

    /// Returns the signature of a message. Ignores the present signature.
    fn signature(&self, message: &[u8], data: &[Bytes]) -> Signature {
        let parts =
            [&message[..SIGNATURE.start], &[0; SIGNATURE.end - SIGNATURE.start][..], &message[HEADER_SIZE..]];
        let parts = parts.into_iter().chain(data.iter().map(|part| &part[..]));
        match self {
            Self::HmacSha256(key) => {
                let mut context = hmac::Context::with_key(key);
                parts.for_each(|part| context.update(part));
                let mut signature = [0; 16];
                signature.copy_from_slice(&context.sign().as_ref()[..16]);
                signature
            }
            Self::AesCmac(key) => {
                let mut mac = (**key).clone();
                parts.for_each(|part| mac.update(part));
                mac.finalize().into_bytes().into()
            }
            Self::AesGmac(key) => key.authenticate(&nonce_of(message), parts),
        }
    }
}

/// Returns the nonce of a message: the message id, the direction, and whether the command is CANCEL, which
/// has the id of the canceled message.
fn nonce_of(message: &[u8]) -> [u8; 12] {
    const IS_CANCEL: u8 = 2;
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&message[24..32]);
    nonce[8] = message[16] & flags::RESPONSE as u8;
    if message[12..14] == (SmbCommand::Cancel as u16).to_le_bytes() {
        nonce[8] |= IS_CANCEL;
    }
    nonce
}

/// AES-GMAC over a message in several parts, which ring does not support.
pub(crate) struct Gmac {
    cipher: Aes128,
    hash: GHash,
}

impl Gmac {
    const BLOCK: usize = 16;

    fn new(key: &[u8; 16]) -> Self {
        let cipher = Aes128::new(key.into());
        let mut of_zeros = [0; 16];
        cipher.encrypt_block((&mut of_zeros).into());
        Self { cipher, hash: ghash::universal_hash::KeyInit::new(&of_zeros.into()) }
    }

    fn authenticate<'a>(&self, nonce: &[u8; 12], parts: impl Iterator<Item = &'a [u8]>) -> [u8; 16] {
        let mut hash = self.hash.clone();
        // Bytes that do not fill a block yet.
        let (mut rest, mut filled) = ([0; Self::BLOCK], 0);
        let mut length: u64 = 0;
        for mut part in parts {
            length += part.len() as u64;
            if filled > 0 {
                let (head, tail) = part.split_at(part.len().min(Self::BLOCK - filled));
                rest[filled..filled + head.len()].copy_from_slice(head);
                (filled, part) = (filled + head.len(), tail);
                if filled < Self::BLOCK {
                    continue;
                }
                hash.update(&[rest.into()]);
            }
            let whole = part.len() - part.len() % Self::BLOCK;
            hash.update_padded(&part[..whole]);
            filled = part.len() - whole;
            rest[..filled].copy_from_slice(&part[whole..]);
        }
        hash.update_padded(&rest[..filled]);
        let mut lengths = [0; Self::BLOCK];
        lengths[..8].copy_from_slice(&(8 * length).to_be_bytes());
        hash.update(&[lengths.into()]);

        let mut tag = [0; Self::BLOCK];
        tag[..12].copy_from_slice(nonce);
        tag[15] = 1;
        self.cipher.encrypt_block((&mut tag).into());
        tag.iter_mut().zip(hash.finalize()).for_each(|(tag, hash)| *tag ^= hash);
        tag
    }
}

#[cfg(test)]
mod tests {
    use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    use super::super::hex;
    use super::*;

    const ALL: [SigningAlgorithm; 3] =
        [SigningAlgorithm::HmacSha256, SigningAlgorithm::AesCmac, SigningAlgorithm::AesGmac];

    fn message(command: SmbCommand, flags: u32, id: u64, length: usize) -> Vec<u8> {
        let mut message: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        message[12..14].copy_from_slice(&(command as u16).to_le_bytes());
        message[16..20].copy_from_slice(&flags.to_le_bytes());
        message[24..32].copy_from_slice(&id.to_le_bytes());
        message
    }

    // Microsoft's example of a session in 3.1.1: the response that ends its setup.
    #[test]
    fn published_signature_with_cmac() {
        let key = hex("73FE7A9A77BEF0BDE49C650D8CCB5F76").try_into().expect("sixteen bytes");
        let key = SigningKey::new(SigningAlgorithm::AesCmac, &key);
        let mut message =
            hex("FE534D4240000100000000000100800009000000000000000300000000000000FFFE000000000000
             1900000000100000EBE146DA120BA25FC3376A49DFE31BC10900000048001D00A11B3019A0030A01
             00A3120410010000003B453CDC3524164200000000");
        assert!(key.verify(&message));
        let signed = message.clone();
        message[SIGNATURE].fill(9);
        assert!(!key.verify(&message));
        key.sign(&mut message, &[]);
        assert_eq!(message, signed);
    }

    #[test]
    fn gmac_is_gcm_of_empty_content_with_the_message_as_associated_data() {
        let key = [5; 16];
        let cipher_key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("a key"));
        let gmac = SigningKey::new(SigningAlgorithm::AesGmac, &key);
        for (command, flags, bits) in [
            (SmbCommand::Read, 0, 0),
            (SmbCommand::Read, flags::RESPONSE, 1),
            (SmbCommand::Cancel, 0, 2),
            (SmbCommand::Cancel, flags::RESPONSE, 3),
        ] {
            for length in [HEADER_SIZE, HEADER_SIZE + 1, 95, 96, 97, 4096, 5000] {
                let mut message = message(command, flags, 0x0102_0304_0506_0708, length);
                gmac.sign(&mut message, &[]);
                let signature = message[SIGNATURE].to_vec();
                message[SIGNATURE].fill(0);
                let nonce = [8, 7, 6, 5, 4, 3, 2, 1, bits, 0, 0, 0];
                let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(&message));
                let tag = cipher_key.seal_in_place_separate_tag(nonce, aad, &mut []).expect("a tag");
                assert_eq!(signature, tag.as_ref(), "{command:?} {flags} {length}");
            }
        }
    }

    #[test]
    fn a_message_in_parts_has_the_same_signature_as_the_whole() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            for cuts in [vec![80], vec![80, 81], vec![83, 85, 90, 200], vec![64, 64, 100, 116, 117]] {
                let whole = message(SmbCommand::Read, flags::RESPONSE, 77, 333);
                let mut head = whole[..cuts[0]].to_vec();
                let ends = cuts.iter().skip(1).copied().chain([whole.len()]);
                let data: Vec<Bytes> = cuts
                    .iter()
                    .zip(ends)
                    .map(|(from, to)| Bytes::copy_from_slice(&whole[*from..to]))
                    .collect();
                key.sign(&mut head, &data);
                head.extend(data.concat());
                assert!(key.verify(&head), "{algorithm:?} {cuts:?}");
            }
        }
    }

    #[test]
    fn every_changed_byte_invalidates_the_signature() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            let mut message = message(SmbCommand::Write, 0, 9, 130);
            key.sign(&mut message, &[]);
            assert!(key.verify(&message));
            for at in 0..message.len() {
                message[at] ^= 0x40;
                assert!(!key.verify(&message), "{algorithm:?}: byte {at}");
                message[at] ^= 0x40;
            }
        }
    }

    #[test]
    fn messages_shorter_than_a_header_have_no_valid_signature() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            key.sign(&mut [0; 63], &[]);
            assert!(!key.verify(&[0; 63]) && !key.verify(&[]));
        }
    }
}
