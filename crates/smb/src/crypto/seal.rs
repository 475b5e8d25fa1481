//! Encrypted frames: the transform header and what it hides (MS-SMB2 2.2.41, 3.1.4.3).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use aes::{Aes128, Aes256};
use bytes::BytesMut;
use ccm::aead::{AeadInPlace, KeyInit};
use ccm::consts::{U11, U16};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::wire::cursor::Reader;

type Aes128Ccm = ccm::Ccm<Aes128, U16, U11>;
type Aes256Ccm = ccm::Ccm<Aes256, U16, U11>;

/// Bytes that a transform header takes.
pub(crate) const TRANSFORM_HEADER: usize = 52;
/// What an encrypted frame starts with.
const MAGIC: [u8; 4] = *b"\xfdSMB";
/// From here on the header is authenticated with the content.
const AUTHENTICATED: std::ops::Range<usize> = 20..TRANSFORM_HEADER;
/// Says that what follows is encrypted: with the cipher that was agreed on in 3.1.1, with the only one there is before.
const ENCRYPTED: u16 = 1;

/// How frames are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// In 3.0 and 3.0.2, and in 3.1.1 if agreed on; as are all others.
    Aes128Ccm,
    Aes128Gcm,
    Aes256Ccm,
    Aes256Gcm,
}

impl Cipher {
    /// Its number in the negotiation.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Aes128Ccm => 1,
            Self::Aes128Gcm => 2,
            Self::Aes256Ccm => 3,
            Self::Aes256Gcm => 4,
        }
    }

    /// Bytes of a key.
    pub(crate) const fn key_length(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }
}

/// The header of an encrypted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transform {
    signature: [u8; 16],
    nonce: [u8; 16],
    /// Bytes that are encrypted.
    pub(crate) length: u32,
    /// Whose key it is.
    pub(crate) session_id: u64,
}

impl Transform {
    /// Reads the header of a frame, all of which has to be encrypted.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(frame);
        let magic: [u8; 4] = reader.array().ok()?;
        let (signature, nonce) = (reader.array().ok()?, reader.array().ok()?);
        let (length, _, flags) = (reader.u32().ok()?, reader.u16().ok()?, reader.u16().ok()?);
        let session_id = reader.u64().ok()?;
        let whole = magic == MAGIC && flags == ENCRYPTED && reader.rest().len() == length as usize;
        whole.then_some(Self { signature, nonce, length, session_id })
    }
}

/// The frame cannot be encrypted or was not encrypted with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame cannot be encrypted or decrypted")]
pub(crate) struct Unsealed;

/// A key for one direction of a session.
pub(crate) struct Sealing {
    key: Key,
    /// No nonce is used twice with a key: this counts them.
    next: AtomicU64,
}

enum Key {
    Gcm(Box<LessSafeKey>),
    Ccm128(Box<Aes128Ccm>),
    Ccm256(Box<Aes256Ccm>),
    /// A key of the wrong length, with which nothing can be done.
    Unusable,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealing(…)")
    }
}

impl Sealing {
    /// A key for a cipher, of the length that it needs.
    pub(super) fn new(cipher: Cipher, key: &[u8]) -> Self {
        let gcm = |algorithm| {
            UnboundKey::new(algorithm, key)
                .map_or(Key::Unusable, |key| Key::Gcm(Box::new(LessSafeKey::new(key))))
        };
        let key = match cipher {
            Cipher::Aes128Gcm => gcm(&AES_128_GCM),
            Cipher::Aes256Gcm => gcm(&AES_256_GCM),
            Cipher::Aes128Ccm => {
                Aes128Ccm::new_from_slice(key).map_or(Key::Unusable, |key| Key::Ccm128(Box::new(key)))
            }
            Cipher::Aes256Ccm => {
                Aes256Ccm::new_from_slice(key).map_or(Key::Unusable, |key| Key::Ccm256(Box::new(key)))
            }
        };
        Self { key, next: AtomicU64::new(1) }
    }

    /// Encrypts a frame in place. Its first [`TRANSFORM_HEADER`] bytes are room for the header.
    pub(crate) fn seal(&self, session_id: u64, frame: &mut [u8]) -> Result<(), Unsealed> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        self.seal_with(nonce, session_id, frame)
    }

    fn seal_with(&self, nonce: [u8; 16], session_id: u64, frame: &mut [u8]) -> Result<(), Unsealed> {
        let (header, content) = frame.split_at_mut_checked(TRANSFORM_HEADER).ok_or(Unsealed)?;
        let length = u32::try_from(content.len()).map_err(|_| Unsealed)?;
        header[..4].copy_from_slice(&MAGIC);
        header[20..36].copy_from_slice(&nonce);
        header[36..40].copy_from_slice(&length.to_le_bytes());
        header[40..42].fill(0);
        header[42..44].copy_from_slice(&ENCRYPTED.to_le_bytes());
        header[44..].copy_from_slice(&session_id.to_le_bytes());
        let beside = &header[AUTHENTICATED];
        let signature: [u8; 16] = match &self.key {
            Key::Gcm(key) => {
                let tag = key.seal_in_place_separate_tag(gcm_nonce(&nonce), Aad::from(beside), content);
                tag.map_err(|_| Unsealed)?.as_ref().try_into().map_err(|_| Unsealed)?
            }
            Key::Ccm128(key) => seal_ccm(&**key, &nonce, beside, content)?,
            Key::Ccm256(key) => seal_ccm(&**key, &nonce, beside, content)?,
            Key::Unusable => return Err(Unsealed),
        };
        header[4..20].copy_from_slice(&signature);
        Ok(())
    }

    /// Decrypts a frame in place and takes its header off.
    pub(crate) fn open(&self, mut frame: BytesMut) -> Result<BytesMut, Unsealed> {
        let Transform { signature, nonce, .. } = Transform::parse(&frame).ok_or(Unsealed)?;
        let header = frame.split_to(TRANSFORM_HEADER);
        let beside = &header[AUTHENTICATED];
        match &self.key {
            Key::Gcm(key) => {
                let (nonce, beside) = (gcm_nonce(&nonce), Aad::from(beside));
                key.open_in_place_separate_tag(nonce, beside, signature.into(), &mut frame, 0..)
                    .map_err(|_| Unsealed)?;
            }
            Key::Ccm128(key) => open_ccm(&**key, &nonce, beside, &mut frame, &signature)?,
            Key::Ccm256(key) => open_ccm(&**key, &nonce, beside, &mut frame, &signature)?,
            Key::Unusable => return Err(Unsealed),
        }
        Ok(frame)
    }
}

fn gcm_nonce(nonce: &[u8; 16]) -> Nonce {
    let [first @ .., _, _, _, _] = *nonce;
    Nonce::assume_unique_for_key(first)
}

fn seal_ccm<C>(key: &C, nonce: &[u8; 16], beside: &[u8], content: &mut [u8]) -> Result<[u8; 16], Unsealed>
where
    C: AeadInPlace<NonceSize = U11, TagSize = U16>,
{
    let tag = key.encrypt_in_place_detached(nonce[..11].into(), beside, content);
    tag.map(Into::into).map_err(|_| Unsealed)
}

fn open_ccm<C>(
    key: &C,
    nonce: &[u8; 16],
    beside: &[u8],
    content: &mut [u8],
    tag: &[u8; 16],
) -> Result<(), Unsealed>
where
    C: AeadInPlace<NonceSize = U11, TagSize = U16>,
{
    key.decrypt_in_place_detached(nonce[..11].into(), beside, content, tag.into()).map_err(|_| Unsealed)
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;

    const ALL: [Cipher; 4] = [Cipher::Aes128Ccm, Cipher::Aes128Gcm, Cipher::Aes256Ccm, Cipher::Aes256Gcm];

    fn sealing(cipher: Cipher) -> Sealing {
        Sealing::new(cipher, &[6; 32][..cipher.key_length()])
    }

    fn sealed(key: &Sealing, content: &[u8]) -> BytesMut {
        let mut frame = BytesMut::zeroed(TRANSFORM_HEADER);
        frame.extend_from_slice(content);
        key.seal(7, &mut frame).expect("sealed");
        frame
    }

    struct Published {
        cipher: Cipher,
        key: &'static str,
        nonce: &'static str,
        session_id: u64,
        plain: &'static str,
        frame: &'static str,
    }

    /// Microsoft's examples (Open Specifications blog, "Encryption in SMB 3.0: a protocol perspective" and "SMB 3.1.1
    /// encryption in Windows 10"): a write that says "Smb3 encryption testing".
    const PUBLISHED: [Published; 2] = [
        Published {
            cipher: Cipher::Aes128Ccm,
            key: "261B72350558F2E9DCF613070383EDBF",
            nonce: "66E69A111892584FB5ED524A744DA3EE",
            session_id: 0x8_E400_1400_0011,
            plain: "FE534D4240000100000000000900400008000000000000000400000000000000
                FFFE0000010000001100001400E4080000000000000000000000000000000000
                3100700017000000000000000000000015010000390000020100000039020000
                00000000000000007000000000000000536D623320656E6372797074696F6E20
                74657374696E67",
            frame: "FD534D4281A286535415445DAE393921E44FA42E66E69A111892584FB5ED524A
                744DA3EE87000000000001001100001400E4080025C8FEE16605A437832D1CD5
                2DA9F4645333482A175FE5384563F45FCDAFAEF38BC62BA4D5C62897996625A4
                4C29BE5658DE2E6117585779E7B59FFD971278D08580D7FA899E410E910EABF5
                AA1DB43050B33B49182637759AC15D84BFCDF5B6B238993C0F4CF4D6012023F6
                C627297075D84B7803912D0A9639634453595EF3E33FFE4E7AC2AB",
        },
        Published {
            cipher: Cipher::Aes128Gcm,
            key: "A2F5E80E5D59103034F32E52F698E5EC",
            nonce: "C7D6822D269CAF48904C664C00000000",
            session_id: 0x1000_0000_0025,
            plain: "FE534D4240000100000000000900010008000000000000000500000000000000FFFE000001000000
                25000000001000000000000000000000000000000000000031007000170000000000000000000000
                0600000004000000010000000400000000000000000000007000000000000000536D623320656E63
                72797074696F6E2074657374696E67",
            frame: "FD534D42BD73D97D2BC9001BCAFAC0FDFF5FEEBCC7D6822D269CAF48904C664C0000000087000000
                0000010025000000001000006ECDD2A7AFC7B47763057A041B8FD4DAFFE990B70C9E09D36C084E02
                D14EF247F8BDE38ACF6256F8B1D3B56F77FBDEB312FEA5E92CBCC1ED8FB2EBBFAA75E49A4A394BB4
                4576545567C24D4C014D47C9FBDFDAFD2C4F9B72F8D256452620A299F48E29E53D6B61D1C13A19E9
                1AF013F00D17E3ABC2FC3D36C8C1B6B93973253852DBD442E46EE8",
        },
    ];

    #[test]
    fn published_frames() {
        for Published { cipher, key, nonce, session_id, plain, frame } in PUBLISHED {
            let key = Sealing::new(cipher, &hex(key));
            let (plain, expected) = (hex(plain), hex(frame));
            let mut frame = vec![0; TRANSFORM_HEADER];
            frame.extend(&plain);
            let nonce = hex(nonce).try_into().expect("sixteen bytes");
            key.seal_with(nonce, session_id, &mut frame).expect("sealed");
            assert_eq!(frame, expected, "{cipher:?}");
            assert_eq!(Transform::parse(&frame).map(|transform| transform.session_id), Some(session_id));
            assert_eq!(key.open(BytesMut::from(&frame[..])).expect("opened"), plain, "{cipher:?}");
        }
    }

    #[test]
    fn every_cipher_opens_what_it_sealed_and_nothing_that_was_changed() {
        for cipher in ALL {
            let key = sealing(cipher);
            let frame = sealed(&key, b"some content");
            assert_eq!(key.open(frame.clone()).expect("opened"), &b"some content"[..]);
            for at in 0..frame.len() {
                let mut changed = frame.clone();
                changed[at] ^= 1;
                assert_eq!(key.open(changed), Err(Unsealed), "{cipher:?}: byte {at}");
            }
            for length in 0..frame.len() {
                assert_eq!(key.open(BytesMut::from(&frame[..length])), Err(Unsealed));
            }
        }
    }

    #[test]
    fn no_nonce_is_used_twice() {
        for cipher in ALL {
            let key = sealing(cipher);
            let frames = [sealed(&key, b"same"), sealed(&key, b"same")];
            assert_ne!(frames[0][20..31], frames[1][20..31]);
            assert_ne!(frames[0][TRANSFORM_HEADER..], frames[1][TRANSFORM_HEADER..]);
        }
    }

    #[test]
    fn a_key_of_the_wrong_length_seals_and_opens_nothing() {
        for cipher in ALL {
            let key = Sealing::new(cipher, &[1; 17]);
            assert_eq!(key.seal(1, &mut [0; 60]), Err(Unsealed));
            assert_eq!(key.open(sealed(&sealing(cipher), b"x")), Err(Unsealed));
        }
    }
}
