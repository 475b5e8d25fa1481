//! Encrypted frames: the transform header and the content (MS-SMB2 2.2.41, 3.1.4.3).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use aes::{Aes128, Aes256};
use bytes::BytesMut;
use ccm::aead::{AeadInPlace, KeyInit};
use ccm::consts::{U11, U16};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::wire::cursor::ByteReader;

type Aes128Ccm = ccm::Ccm<Aes128, U16, U11>;
type Aes256Ccm = ccm::Ccm<Aes256, U16, U11>;

/// Bytes of a transform header.
pub(crate) const TRANSFORM_HEADER_SIZE: usize = 52;
/// First bytes of an encrypted frame.
const MAGIC: [u8; 4] = *b"\xfdSMB";
/// The part of the header that is authenticated with the content.
const AUTHENTICATED: std::ops::Range<usize> = 20..TRANSFORM_HEADER_SIZE;
/// The flag of an encrypted frame.
const ENCRYPTED: u16 = 1;

/// An encryption algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// Used in 3.0 and 3.0.2, and negotiable in 3.1.1 like all others.
    Aes128Ccm,
    Aes128Gcm,
    Aes256Ccm,
    Aes256Gcm,
}

impl Cipher {
    /// Returns the number in negotiate contexts.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Aes128Ccm => 1,
            Self::Aes128Gcm => 2,
            Self::Aes256Ccm => 3,
            Self::Aes256Gcm => 4,
        }
    }

    /// Returns the length of a key in bytes.
    pub(crate) const fn key_length(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }
}

/// The transform header of an encrypted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransformHeader {
    signature: [u8; 16],
    nonce: [u8; 16],
    /// Number of encrypted bytes.
    pub(crate) length: u32,
    /// Id of the session whose key encrypts the frame.
    pub(crate) session_id: u64,
}

impl TransformHeader {
    /// Parses the header of a frame. Returns `None` if part of the frame is not encrypted.
    pub(crate) fn parse(frame: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(frame);
        let magic: [u8; 4] = reader.array().ok()?;
        let (signature, nonce) = (reader.array().ok()?, reader.array().ok()?);
        let (length, _, flags) = (reader.u32().ok()?, reader.u16().ok()?, reader.u16().ok()?);
        let session_id = reader.u64().ok()?;
        let whole = magic == MAGIC && flags == ENCRYPTED && reader.rest().len() == length as usize;
        whole.then_some(Self { signature, nonce, length, session_id })
    }
}

/// The frame cannot be encrypted, or was not encrypted with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame cannot be encrypted or decrypted")]
pub(crate) struct EncryptionError;

/// An encryption key for one direction of a session.
pub(crate) struct CipherKey {
    key: Key,
    /// The next nonce. A nonce is never used twice with a key.
    next: AtomicU64,
}

enum Key {
    Gcm(Box<LessSafeKey>),
    Ccm128(Box<Aes128Ccm>),
    Ccm256(Box<Aes256Ccm>),
    /// A key of the wrong length, which fails every operation.
    Unusable,
}

impl fmt::Debug for CipherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealing(…)")
    }
}

impl CipherKey {
    /// Returns a key for a cipher. `key` must have its key length.
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

    /// Encrypts a frame in place. Its first [`TRANSFORM_HEADER_SIZE`] bytes are reserved for the header.
    pub(crate) fn encrypt(&self, session_id: u64, frame: &mut [u8]) -> Result<(), EncryptionError> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        self.encrypt_with_nonce(nonce, session_id, frame)
    }

    fn encrypt_with_nonce(
        &self,
        nonce: [u8; 16],
        session_id: u64,
        frame: &mut [u8],
    ) -> Result<(), EncryptionError> {
        let (header, content) = frame.split_at_mut_checked(TRANSFORM_HEADER_SIZE).ok_or(EncryptionError)?;
        let length = u32::try_from(content.len()).map_err(|_| EncryptionError)?;
        header[..4].copy_from_slice(&MAGIC);
        header[20..36].copy_from_slice(&nonce);
        header[36..40].copy_from_slice(&length.to_le_bytes());
        header[40..42].fill(0);
        header[42..44].copy_from_slice(&ENCRYPTED.to_le_bytes());
        header[44..].copy_from_slice(&session_id.to_le_bytes());
        let aad = &header[AUTHENTICATED];
        let signature: [u8; 16] = match &self.key {
            Key::Gcm(key) => {
                let tag = key.seal_in_place_separate_tag(gcm_nonce(&nonce), Aad::from(aad), content);
                tag.map_err(|_| EncryptionError)?.as_ref().try_into().map_err(|_| EncryptionError)?
            }
            Key::Ccm128(key) => encrypt_ccm(&**key, &nonce, aad, content)?,
            Key::Ccm256(key) => encrypt_ccm(&**key, &nonce, aad, content)?,
            Key::Unusable => return Err(EncryptionError),
        };
        header[4..20].copy_from_slice(&signature);
        Ok(())
    }

    /// Decrypts a frame in place and removes its header.
    pub(crate) fn decrypt(&self, mut frame: BytesMut) -> Result<BytesMut, EncryptionError> {
        let TransformHeader { signature, nonce, .. } =
            TransformHeader::parse(&frame).ok_or(EncryptionError)?;
        let header = frame.split_to(TRANSFORM_HEADER_SIZE);
        let aad = &header[AUTHENTICATED];
        match &self.key {
            Key::Gcm(key) => {
                let (nonce, aad) = (gcm_nonce(&nonce), Aad::from(aad));
                key.open_in_place_separate_tag(nonce, aad, signature.into(), &mut frame, 0..)
                    .map_err(|_| EncryptionError)?;
            }
            Key::Ccm128(key) => decrypt_ccm(&**key, &nonce, aad, &mut frame, &signature)?,
            Key::Ccm256(key) => decrypt_ccm(&**key, &nonce, aad, &mut frame, &signature)?,
            Key::Unusable => return Err(EncryptionError),
        }
        Ok(frame)
    }
}

fn gcm_nonce(nonce: &[u8; 16]) -> Nonce {
    let [first @ .., _, _, _, _] = *nonce;
    Nonce::assume_unique_for_key(first)
}

fn encrypt_ccm<C>(
    key: &C,
    nonce: &[u8; 16],
    aad: &[u8],
    content: &mut [u8],
) -> Result<[u8; 16], EncryptionError>
where
    C: AeadInPlace<NonceSize = U11, TagSize = U16>,
{
    let tag = key.encrypt_in_place_detached(nonce[..11].into(), aad, content);
    tag.map(Into::into).map_err(|_| EncryptionError)
}

fn decrypt_ccm<C>(
    key: &C,
    nonce: &[u8; 16],
    aad: &[u8],
    content: &mut [u8],
    tag: &[u8; 16],
) -> Result<(), EncryptionError>
where
    C: AeadInPlace<NonceSize = U11, TagSize = U16>,
{
    key.decrypt_in_place_detached(nonce[..11].into(), aad, content, tag.into()).map_err(|_| EncryptionError)
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;

    const ALL: [Cipher; 4] = [Cipher::Aes128Ccm, Cipher::Aes128Gcm, Cipher::Aes256Ccm, Cipher::Aes256Gcm];

    fn cipher_key(cipher: Cipher) -> CipherKey {
        CipherKey::new(cipher, &[6; 32][..cipher.key_length()])
    }

    fn encrypted(key: &CipherKey, content: &[u8]) -> BytesMut {
        let mut frame = BytesMut::zeroed(TRANSFORM_HEADER_SIZE);
        frame.extend_from_slice(content);
        key.encrypt(7, &mut frame).expect("sealed");
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

    /// Microsoft's examples (Open Specifications blog, "Encryption in SMB 3.0: a protocol perspective" and
    /// "SMB 3.1.1 encryption in Windows 10"): a write of the text "Smb3 encryption testing".
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
            let key = CipherKey::new(cipher, &hex(key));
            let (plain, expected) = (hex(plain), hex(frame));
            let mut frame = vec![0; TRANSFORM_HEADER_SIZE];
            frame.extend(&plain);
            let nonce = hex(nonce).try_into().expect("sixteen bytes");
            key.encrypt_with_nonce(nonce, session_id, &mut frame).expect("sealed");
            assert_eq!(frame, expected, "{cipher:?}");
            assert_eq!(
                TransformHeader::parse(&frame).map(|transform| transform.session_id),
                Some(session_id)
            );
            assert_eq!(key.decrypt(BytesMut::from(&frame[..])).expect("opened"), plain, "{cipher:?}");
        }
    }

    #[test]
    fn every_cipher_decrypts_its_own_frames_and_refuses_modified_ones() {
        for cipher in ALL {
            let key = cipher_key(cipher);
            let frame = encrypted(&key, b"some content");
            assert_eq!(key.decrypt(frame.clone()).expect("opened"), &b"some content"[..]);
            for at in 0..frame.len() {
                let mut changed = frame.clone();
                changed[at] ^= 1;
                assert_eq!(key.decrypt(changed), Err(EncryptionError), "{cipher:?}: byte {at}");
            }
            for length in 0..frame.len() {
                assert_eq!(key.decrypt(BytesMut::from(&frame[..length])), Err(EncryptionError));
            }
        }
    }

    #[test]
    fn no_nonce_is_used_twice() {
        for cipher in ALL {
            let key = cipher_key(cipher);
            let frames = [encrypted(&key, b"same"), encrypted(&key, b"same")];
            assert_ne!(frames[0][20..31], frames[1][20..31]);
            assert_ne!(frames[0][TRANSFORM_HEADER_SIZE..], frames[1][TRANSFORM_HEADER_SIZE..]);
        }
    }

    #[test]
    fn a_key_of_the_wrong_length_encrypts_and_decrypts_nothing() {
        for cipher in ALL {
            let key = CipherKey::new(cipher, &[1; 17]);
            assert_eq!(key.encrypt(1, &mut [0; 60]), Err(EncryptionError));
            assert_eq!(key.decrypt(encrypted(&cipher_key(cipher), b"x")), Err(EncryptionError));
        }
    }
}
