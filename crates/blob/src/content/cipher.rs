//! AES-256 encryption of content. Encrypted content is as long as the plaintext, so maps, ranges and blocks
//! work on both alike.
//!
//! - Bytes that are written at once (the body of a Put Blob, a block, an append) are a *run*: counter mode,
//!   with a random nonce that is never reused. A run can be decrypted at any offset of a blob.
//! - *Pages* are overwritten in place: XTS with one sector per page, and keys derived for this blob. An
//!   observer of two states of a page on disk learns which blocks of 16 bytes are equal; disk encryption
//!   accepts that for the same reason.
//!
//! Neither mode detects changes of the bytes on disk. The checksums of extents detect only accidental ones.

use std::fmt;

use aes::Aes256;
use ctr::cipher::{KeyInit, KeyIvInit, StreamCipher, StreamCipherSeek};
use lazuli_protocol::{Account, Refusal};
use lazuli_service::internal_error;
use ring::{digest, hkdf};
use xts_mode::{Xts128, get_tweak_default};
use zeroize::Zeroizing;

use crate::model::record::PAGE;

/// Bytes of a key.
pub(crate) const KEY: usize = 32;
/// The random start of a run, or the random salt of the keys for the pages of a blob.
pub(crate) type Nonce = [u8; 16];

/// A key from which other keys are derived: a customer-provided key or that of an encryption scope. Wiped
/// from memory when it is dropped.
pub(crate) struct Key(Zeroizing<[u8; KEY]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Returns the key that a client sent, if its length is valid.
    pub(crate) fn from_client(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|bytes| Self(Zeroizing::new(bytes)))
    }

    /// Derives the key of an encryption scope from the server's secret and the names. The key is not stored.
    pub(crate) fn of_scope(secret: &[u8; KEY], account: &Account, scope: &str) -> Result<Self, Refusal> {
        let generation = account.generation.to_be_bytes();
        let info = [b"encryption scope\0", account.name.as_bytes(), b"\0", &generation, scope.as_bytes()];
        derive::<KEY>(secret, &[], &info).map(Self)
    }

    /// Returns the hash of the key, which is stored to recognize the key.
    pub(crate) fn sha256(&self) -> [u8; 32] {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest::digest(&digest::SHA256, &*self.0).as_ref());
        sha256
    }

    /// Derives the cipher for runs.
    pub(crate) fn runs(&self) -> Result<RunCipher, Refusal> {
        derive(&*self.0, &[], &[b"runs"]).map(RunCipher)
    }

    /// Derives the cipher for the pages of one blob.
    pub(crate) fn pages(&self, salt: &Nonce) -> Result<PageCipher, Refusal> {
        let keys = derive::<{ 2 * KEY }>(&*self.0, salt, &[b"pages"])?;
        let (data, tweak) = keys.split_at(KEY);
        Ok(PageCipher(Box::new(Xts128::new(Aes256::new(data.into()), Aes256::new(tweak.into())))))
    }
}

/// Returns a new random nonce.
pub(crate) fn new_nonce() -> Result<Nonce, Refusal> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(no_random_numbers)?;
    Ok(nonce)
}

/// Returns the refusal if the system has no random numbers.
pub(crate) fn no_random_numbers(error: getrandom::Error) -> Refusal {
    internal_error(format_args!("the random number generator of the system failed: {error}"))
}

/// Encrypts and decrypts runs.
pub(crate) struct RunCipher(Zeroizing<[u8; KEY]>);

impl RunCipher {
    /// Encrypts or decrypts bytes at `offset` of the run with this nonce.
    pub(crate) fn apply(&self, nonce: &Nonce, offset: u64, bytes: &mut [u8]) {
        let mut stream = ctr::Ctr128BE::<Aes256>::new((&*self.0).into(), nonce.into());
        stream.seek(offset);
        stream.apply_keystream(bytes);
    }
}

/// Encrypts and decrypts the pages of a blob.
pub(crate) struct PageCipher(Box<Xts128<Aes256>>);

impl PageCipher {
    /// Encrypts whole pages. The first page is at `offset` of the blob.
    pub(crate) fn encrypt(&self, offset: u64, pages: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(PAGE) && (pages.len() as u64).is_multiple_of(PAGE));
        self.0.encrypt_area(pages, PAGE as usize, (offset / PAGE).into(), get_tweak_default);
    }

    /// Decrypts whole pages. The first page is at `offset` of the blob.
    pub(crate) fn decrypt(&self, offset: u64, pages: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(PAGE) && (pages.len() as u64).is_multiple_of(PAGE));
        self.0.decrypt_area(pages, PAGE as usize, (offset / PAGE).into(), get_tweak_default);
    }
}

/// Derives a key with HKDF and SHA-256.
fn derive<const N: usize>(secret: &[u8], salt: &[u8], info: &[&[u8]]) -> Result<Zeroizing<[u8; N]>, Refusal> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut key = Zeroizing::new([0; N]);
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    // Deriving fails only for lengths that no caller uses.
    let derived = secret.expand(info, Length(N)).and_then(|derived| derived.fill(&mut *key));
    derived.map_err(|_| internal_error("a key for encryption cannot be derived"))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(byte: u8) -> Key {
        Key::from_client(&[byte; KEY]).unwrap()
    }

    fn plain(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn any_part_of_a_run_decrypts_alone() {
        let (runs, nonce) = (key(1).runs().unwrap(), [9; 16]);
        let mut sealed = plain(5000);
        runs.apply(&nonce, 0, &mut sealed);
        for part in [0..5000, 1..2, 15..17, 16..32, 4097..4999, 5000..5000] {
            let mut got = sealed[part.clone()].to_vec();
            runs.apply(&nonce, part.start as u64, &mut got);
            assert_eq!(got, plain(5000)[part.clone()], "{part:?}");
        }
        // Encrypting in pieces gives the same bytes.
        let mut pieces = plain(5000);
        for (at, piece) in pieces.chunks_mut(77).enumerate() {
            runs.apply(&nonce, at as u64 * 77, piece);
        }
        assert_eq!(pieces, sealed);
    }

    #[test]
    fn pages_decrypt_only_at_their_offset() {
        let pages = key(1).pages(&[3; 16]).unwrap();
        let mut sealed = plain(2048);
        pages.encrypt(1 << 40, &mut sealed);
        let mut second = sealed[512..1024].to_vec();
        pages.decrypt((1 << 40) + 512, &mut second);
        assert_eq!(second, plain(2048)[512..1024]);
        let mut elsewhere = sealed[512..1024].to_vec();
        pages.decrypt(1 << 40, &mut elsewhere);
        assert_ne!(elsewhere, plain(2048)[512..1024]);
        // Equal pages at different offsets have different ciphertexts.
        let mut zeros = vec![0; 1024];
        pages.encrypt(0, &mut zeros);
        assert_ne!(zeros[..512], zeros[512..]);
    }

    #[test]
    fn every_key_nonce_and_salt_gives_different_bytes() {
        let sealed = |key: &Key, nonce: &Nonce| {
            let mut bytes = vec![0; 512];
            key.runs().unwrap().apply(nonce, 0, &mut bytes);
            let mut page = vec![0; 512];
            key.pages(nonce).unwrap().encrypt(0, &mut page);
            [bytes, page]
        };
        let mut all: Vec<Vec<u8>> = vec![];
        for byte in [1, 2] {
            for nonce in [[1; 16], [2; 16]] {
                all.extend(sealed(&key(byte), &nonce));
            }
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn scope_key_differs_by_account_and_generation() {
        let account = |name: &str, generation| Account {
            name: name.into(),
            generation,
            keys: vec![],
            settings: Default::default(),
            roles: vec![],
        };
        let mut keys = vec![];
        for account in [account("one", 1), account("one", 2), account("two", 1)] {
            for scope in ["a", "b"] {
                for secret in [[1; KEY], [2; KEY]] {
                    keys.push(Key::of_scope(&secret, &account, scope).unwrap().sha256());
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 12);
    }

    /// The first test case of RFC 5869.
    #[test]
    fn derivation_is_hkdf() {
        let salt: Vec<u8> = (0..13).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let derived = derive::<8>(&[0x0b; 22], &salt, &[&info]).unwrap();
        assert_eq!(*derived, [0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac, 0xd5, 0x7a]);
    }

    #[test]
    fn debug_output_of_a_key_hides_its_bytes() {
        assert_eq!(format!("{:?}", key(7)), "Key(…)");
    }
}
