//! Signatures of messages (MS-SMB2 3.1.4.1).

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use bytes::Bytes;
use cmac::{Cmac, Mac};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use ring::hmac;

use super::same;
use crate::wire::header::{Command, HEADER, SIGNATURE, flags};

/// How messages are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SigningAlgorithm {
    /// In 2.0.2 and 2.1, and in 3.1.1 if that is all that the client knows.
    HmacSha256,
    /// In 3.x, unless GMAC was agreed on.
    AesCmac,
    /// In 3.1.1.
    AesGmac,
}

impl SigningAlgorithm {
    /// Its number in the negotiation.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::HmacSha256 => 0,
            Self::AesCmac => 1,
            Self::AesGmac => 2,
        }
    }
}

/// A key that signs messages.
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
    /// A key for one algorithm.
    pub(crate) fn new(algorithm: SigningAlgorithm, key: &[u8; 16]) -> Self {
        match algorithm {
            SigningAlgorithm::HmacSha256 => Self::HmacSha256(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningAlgorithm::AesCmac => Self::AesCmac(Box::new(<Cmac<Aes128> as Mac>::new(key.into()))),
            SigningAlgorithm::AesGmac => Self::AesGmac(Box::new(Gmac::new(key))),
        }
    }

    /// Signs one message of a frame: the beginning, with its header, and what follows, up to the next message. Sets the flag
    /// that says so.
    pub(crate) fn sign(&self, message: &mut [u8], data: &[Bytes]) {
        if message.len() < HEADER {
            return;
        }
        message[16] |= flags::SIGNED as u8;
        let signature = self.signature(message, data);
        message[SIGNATURE].copy_from_slice(&signature);
    }

    /// Whether the signature of a message is right.
    pub(crate) fn verify(&self, message: &[u8]) -> bool {
        message.len() >= HEADER && same(&message[SIGNATURE], &self.signature(message, &[]))
    }

    /// The signature of a message, whatever is in its place now.
    fn signature(&self, message: &[u8], data: &[Bytes]) -> [u8; 16] {
        let parts =
            [&message[..SIGNATURE.start], &[0; SIGNATURE.end - SIGNATURE.start][..], &message[HEADER..]];
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

/// The nonce of a message: its id, who says it, and whether it is CANCEL, which has the id of the message that it is about.
fn nonce_of(message: &[u8]) -> [u8; 12] {
    const IS_CANCEL: u8 = 2;
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&message[24..32]);
    nonce[8] = message[16] & flags::RESPONSE as u8;
    if message[12..14] == (Command::Cancel as u16).to_le_bytes() {
        nonce[8] |= IS_CANCEL;
    }
    nonce
}

/// AES-GCM that only authenticates: over a message in pieces, which ring cannot.
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
        // What did not fill a block yet.
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

    fn message(command: Command, flags: u32, id: u64, length: usize) -> Vec<u8> {
        let mut message: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        message[12..14].copy_from_slice(&(command as u16).to_le_bytes());
        message[16..20].copy_from_slice(&flags.to_le_bytes());
        message[24..32].copy_from_slice(&id.to_le_bytes());
        message
    }

    /// Microsoft's example of a session in 3.1.1: the response that ends its setup.
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
    fn gmac_is_gcm_of_nothing_with_the_message_beside_it_under_a_nonce_of_its_own() {
        let key = [5; 16];
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("a key"));
        let gmac = SigningKey::new(SigningAlgorithm::AesGmac, &key);
        for (command, flags, bits) in [
            (Command::Read, 0, 0),
            (Command::Read, flags::RESPONSE, 1),
            (Command::Cancel, 0, 2),
            (Command::Cancel, flags::RESPONSE, 3),
        ] {
            for length in [HEADER, HEADER + 1, 95, 96, 97, 4096, 5000] {
                let mut message = message(command, flags, 0x0102_0304_0506_0708, length);
                gmac.sign(&mut message, &[]);
                let signature = message[SIGNATURE].to_vec();
                message[SIGNATURE].fill(0);
                let nonce = [8, 7, 6, 5, 4, 3, 2, 1, bits, 0, 0, 0];
                let (nonce, beside) = (Nonce::assume_unique_for_key(nonce), Aad::from(&message));
                let tag = sealing.seal_in_place_separate_tag(nonce, beside, &mut []).expect("a tag");
                assert_eq!(signature, tag.as_ref(), "{command:?} {flags} {length}");
            }
        }
    }

    #[test]
    fn a_message_in_pieces_is_signed_as_the_whole() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            for cuts in [vec![80], vec![80, 81], vec![83, 85, 90, 200], vec![64, 64, 100, 116, 117]] {
                let whole = message(Command::Read, flags::RESPONSE, 77, 333);
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
    fn every_changed_byte_is_noticed() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            let mut message = message(Command::Write, 0, 9, 130);
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
    fn what_is_shorter_than_a_header_is_not_signed_and_not_right() {
        for algorithm in ALL {
            let key = SigningKey::new(algorithm, &[3; 16]);
            key.sign(&mut [0; 63], &[]);
            assert!(!key.verify(&[0; 63]) && !key.verify(&[]));
        }
    }
}
