//! The proof that a client knows the password, and the key that follows from it (MS-NLMP 3.3.2).

use hmac::{Hmac, KeyInit as _, Mac};
use md4::{Digest, Md4};
use md5::Md5;
use rc4::consts::U16;
use rc4::{KeyInit as _, Rc4, StreamCipher};
use zeroize::Zeroizing;

use super::message::{Answer, flags};
use crate::crypto::{SessionKey, same};
use crate::wire::cursor::utf16;

/// Bytes of the proof, at the beginning of a response.
const PROOF: usize = 16;
/// The least that the proof of NTLMv2 is computed from. A response of NTLMv1 is shorter.
const MIN_PROVED: usize = 28;

/// Checks a response; the session's key if it is right.
pub(super) fn check(answer: &Answer, nonce: &[u8; 8], password: &str) -> Option<SessionKey> {
    let (proof, proved) = answer.response.split_at_checked(PROOF)?;
    if proved.len() < MIN_PROVED {
        return None;
    }
    let key = response_key(&answer.user, &answer.domain, password);
    let expected = hmac_md5(&key[..], &[nonce, proved]);
    if !same(&expected, proof) {
        return None;
    }
    let base: SessionKey = Zeroizing::new(hmac_md5(&key[..], &[&expected]));
    if answer.flags & flags::KEY_EXCHANGE == 0 {
        return Some(base);
    }
    let mut exchanged: SessionKey = Zeroizing::new(answer.exchanged.as_slice().try_into().ok()?);
    apply_rc4(&base, &mut exchanged[..]);
    Some(exchanged)
}

/// What a password becomes for a user and the domain that the client named.
fn response_key(user: &str, domain: &str, password: &str) -> Zeroizing<[u8; 16]> {
    let password = Zeroizing::new(utf16(password));
    let hash: Zeroizing<[u8; 16]> = Zeroizing::new(Md4::digest(&password[..]).into());
    Zeroizing::new(hmac_md5(&hash[..], &[&utf16(&user.to_uppercase()), &utf16(domain)]))
}

/// HMAC-MD5 over a few parts.
pub(super) fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    // Every length of key will do.
    let Ok(mut mac) = Hmac::<Md5>::new_from_slice(key) else { return [0; 16] };
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// RC4 from its beginning.
pub(super) fn apply_rc4(key: &[u8; 16], bytes: &mut [u8]) {
    Rc4::<U16>::new(key.into()).apply_keystream(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::hex;

    /// MS-NLMP 4.2.4.1.1.
    #[test]
    fn published_key_of_user_and_password() {
        assert_eq!(response_key("User", "Domain", "Password")[..], hex("0c868a403bfd7a93a3001ef22ef02e3f"));
    }
}
