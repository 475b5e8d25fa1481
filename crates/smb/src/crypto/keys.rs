//! The keys of a session, derived from the key of its authentication (MS-SMB2 3.1.4.2).

use std::sync::Arc;

use ring::hmac;
use zeroize::Zeroizing;

use super::encrypt::{Cipher, CipherKey};
use super::preauth::Preauth;
use super::sign::{SigningAlgorithm, SigningKey};

/// The session key that the authentication has produced.
pub(crate) type SessionKey = Zeroizing<[u8; 16]>;

/// The inputs of key derivation that depend on the dialect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyContext<'a> {
    /// 2.0.2 and 2.1: the session key itself signs, and there is no encryption.
    Smb2,
    /// 3.0 and 3.0.2: fixed labels and contexts.
    Smb30,
    /// 3.1.1: the preauthentication hash is the context.
    Smb311(&'a Preauth),
}

/// The keys of a session, from the server's view.
#[derive(Debug)]
pub(crate) struct SessionKeys {
    /// Signs messages of both directions.
    pub(crate) signing: Arc<SigningKey>,
    /// Encrypts the server's messages. `None` if no cipher was negotiated.
    pub(crate) outgoing: Option<CipherKey>,
    /// Decrypts the client's messages.
    pub(crate) incoming: Option<CipherKey>,
}

/// The label of a key in 3.1.1, and its label and context in 3.0.
struct Purpose {
    label: &'static [u8],
    label_30: &'static [u8],
    context_30: &'static [u8],
}

const SIGNING: Purpose =
    Purpose { label: b"SMBSigningKey\0", label_30: b"SMB2AESCMAC\0", context_30: b"SmbSign\0" };
const CLIENT_TO_SERVER: Purpose =
    Purpose { label: b"SMBC2SCipherKey\0", label_30: b"SMB2AESCCM\0", context_30: b"ServerIn \0" };
const SERVER_TO_CLIENT: Purpose =
    Purpose { label: b"SMBS2CCipherKey\0", label_30: b"SMB2AESCCM\0", context_30: b"ServerOut\0" };

impl SessionKeys {
    /// Derives all keys.
    pub(crate) fn derive(
        key: &SessionKey,
        context: KeyContext<'_>,
        algorithm: SigningAlgorithm,
        cipher: Option<Cipher>,
    ) -> Self {
        let cipher_key = |purpose| {
            let cipher = cipher?;
            Some(match cipher.key_length() {
                32 => CipherKey::new(cipher, &derive::<32>(key, context, purpose)[..]),
                _ => CipherKey::new(cipher, &derive::<16>(key, context, purpose)[..]),
            })
        };
        Self {
            signing: Arc::new(derive_signing_key(key, context, algorithm)),
            outgoing: cipher_key(&SERVER_TO_CLIENT),
            incoming: cipher_key(&CLIENT_TO_SERVER),
        }
    }
}

/// Derives only the signing key. Each channel has its own; the other keys belong to the session.
pub(crate) fn derive_signing_key(
    key: &SessionKey,
    context: KeyContext<'_>,
    algorithm: SigningAlgorithm,
) -> SigningKey {
    SigningKey::new(algorithm, &derive(key, context, &SIGNING))
}

/// Returns the key for a purpose. In SMB 2.0.2 and 2.1 that is the session key itself.
fn derive<const N: usize>(
    key: &SessionKey,
    context: KeyContext<'_>,
    purpose: &Purpose,
) -> Zeroizing<[u8; N]> {
    let (label, context) = match context {
        KeyContext::Smb2 => {
            let mut same = Zeroizing::new([0; N]);
            same[..key.len().min(N)].copy_from_slice(&key[..key.len().min(N)]);
            return same;
        }
        KeyContext::Smb30 => (purpose.label_30, purpose.context_30),
        KeyContext::Smb311(preauth) => (purpose.label, &preauth.value()[..]),
    };
    counter_mode(&key[..], label, context)
}

/// Derives a key with SP 800-108 in counter mode with HMAC-SHA256. One block suffices.
fn counter_mode<const N: usize>(key: &[u8], label: &[u8], context: &[u8]) -> Zeroizing<[u8; N]> {
    const { assert!(N <= 32, "one block of HMAC-SHA256") };
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    mac.update(&1_u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(context);
    mac.update(&(8 * N as u32).to_be_bytes());
    let mut derived = Zeroizing::new([0; N]);
    derived.copy_from_slice(&mac.sign().as_ref()[..N]);
    derived
}

#[cfg(test)]
mod tests {
    use super::super::hex;
    use super::*;

    fn session_key(text: &str) -> SessionKey {
        Zeroizing::new(hex(text).try_into().expect("sixteen bytes"))
    }

    // Microsoft's examples (Open Specifications blog, "the anatomy of signing and cryptographic keys").
    #[test]
    fn published_keys_of_smb_3_0() {
        let key = session_key("7CD451825D0450D235424E44BA6E78CC");
        for (purpose, derived) in [
            (&SIGNING, "0B7E9C5CAC36C0F6EA9AB275298CEDCE"),
            (&CLIENT_TO_SERVER, "FAD27796665B313EBB578F388632B4F7"),
            (&SERVER_TO_CLIENT, "B0F0427F7CEB416D1D9DCC0CD4F99447"),
        ] {
            assert_eq!(derive::<16>(&key, KeyContext::Smb30, purpose)[..], hex(derived));
        }
    }

    #[test]
    fn published_keys_of_smb_3_1_1() {
        let key = session_key("270E1BA896585EEB7AF3472D3B4C75A7");
        let hash = hex("0DD13628CC3ED218EF9DF9772D436D0887AB9814BFAE63A80AA845F36909DB79
             28622DDDAD522D9751640A459762C5A9D6BB084CBB3CE6BDADEF5D5BCE3C6C01");
        let preauth = Preauth::of(hash.try_into().expect("64 bytes"));
        for (purpose, derived) in [
            (&SIGNING, "73FE7A9A77BEF0BDE49C650D8CCB5F76"),
            (&CLIENT_TO_SERVER, "629BCBC54422A0F572B97F45989B6073"),
            (&SERVER_TO_CLIENT, "E2AF0DCEFAC68DA71A0DFBD0D1350D74"),
        ] {
            assert_eq!(derive::<16>(&key, KeyContext::Smb311(&preauth), purpose)[..], hex(derived));
        }
    }

    // Checked with KBKDFHMAC of Python's `cryptography`.
    #[test]
    fn a_256_bit_key_does_not_extend_the_128_bit_key() {
        let key = session_key("270E1BA896585EEB7AF3472D3B4C75A7");
        let context: [u8; 64] = std::array::from_fn(|at| at as u8);
        let preauth = Preauth::of(context);
        assert_eq!(
            derive::<32>(&key, KeyContext::Smb311(&preauth), &CLIENT_TO_SERVER)[..],
            hex("c273f0de35671e766ef5106b605054d70385f9237f1327662763de8ac2444317")
        );
    }

    #[test]
    fn smb_2_signs_with_the_session_key_itself() {
        let key = session_key("7CD451825D0450D235424E44BA6E78CC");
        assert_eq!(derive::<16>(&key, KeyContext::Smb2, &SIGNING)[..], key[..]);
    }
}
