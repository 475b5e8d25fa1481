//! The client's proof of the password, and the session key that follows from it (MS-NLMP 3.3.2).

use hmac::{Hmac, KeyInit as _, Mac};
use md4::{Digest, Md4};
use md5::Md5;
use rc4::consts::U16;
use rc4::{KeyInit as _, Rc4, StreamCipher};
use zeroize::Zeroizing;

use super::message::{AuthenticateMessage, flags};
use crate::crypto::{SessionKey, constant_time_eq};
use crate::wire::cursor::utf16;

/// Bytes of the proof at the beginning of a response.
const PROOF: usize = 16;
/// Minimum length of the data that an NTLMv2 proof covers. An NTLMv1 response is shorter.
const MIN_PROVED: usize = 28;

/// Checks a response. Returns the session key if the proof is right.
pub(super) fn check(message: &AuthenticateMessage, nonce: &[u8; 8], password: &str) -> Option<SessionKey> {
    let (proof, proved) = message.response.split_at_checked(PROOF)?;
    if proved.len() < MIN_PROVED {
        return None;
    }
    let key = response_key(&message.user, &message.domain, password);
    let expected = hmac_md5(&key[..], &[nonce, proved]);
    if !constant_time_eq(&expected, proof) {
        return None;
    }
    let base: SessionKey = Zeroizing::new(hmac_md5(&key[..], &[&expected]));
    if message.flags & flags::KEY_EXCHANGE == 0 {
        return Some(base);
    }
    let mut encrypted_session_key: SessionKey =
        Zeroizing::new(message.encrypted_session_key.as_slice().try_into().ok()?);
    apply_rc4(&base, &mut encrypted_session_key[..]);
    Some(encrypted_session_key)
}

/// Returns the key for a user, the domain that the client named, and a password.
pub(super) fn response_key(user: &str, domain: &str, password: &str) -> Zeroizing<[u8; 16]> {
    let password = Zeroizing::new(utf16(password));
    let hash: Zeroizing<[u8; 16]> = Zeroizing::new(Md4::digest(&password[..]).into());
    Zeroizing::new(hmac_md5(&hash[..], &[&utf16(&user.to_uppercase()), &utf16(domain)]))
}

/// Returns the HMAC-MD5 over several parts.
pub(super) fn hmac_md5(key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Md5>::new_from_slice(key) else { return [0; 16] };
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// Applies RC4 from the start of its key stream.
pub(super) fn apply_rc4(key: &[u8; 16], bytes: &mut [u8]) {
    Rc4::<U16>::new(key.into()).apply_keystream(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::hex;

    // MS-NLMP 4.2.4.1.1.
    #[test]
    fn published_key_of_user_and_password() {
        assert_eq!(response_key("User", "Domain", "Password")[..], hex("0c868a403bfd7a93a3001ef22ef02e3f"));
    }
}
