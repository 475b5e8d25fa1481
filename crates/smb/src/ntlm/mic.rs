//! NTLM signatures, with which SPNEGO protects the list of mechanisms (MS-NLMP 3.4.4.2).

use md5::{Digest, Md5};
use zeroize::Zeroizing;

use super::message::flags;
use super::response::{apply_rc4, hmac_md5};
use crate::crypto::{SessionKey, constant_time_eq};

/// Signs the first and only message of each side.
#[derive(Debug)]
pub(crate) struct ListSigner {
    key: SessionKey,
    flags: u32,
}

/// The side that signs.
#[derive(Clone, Copy, Debug)]
enum SigningSide {
    Client,
    Server,
}

impl SigningSide {
    const fn signing(self) -> &'static [u8] {
        match self {
            Self::Client => b"session key to client-to-server signing key magic constant\0",
            Self::Server => b"session key to server-to-client signing key magic constant\0",
        }
    }

    const fn sealing(self) -> &'static [u8] {
        match self {
            Self::Client => b"session key to client-to-server sealing key magic constant\0",
            Self::Server => b"session key to server-to-client sealing key magic constant\0",
        }
    }
}

impl ListSigner {
    /// Returns `None` for a client without extended session security, whose signatures give no protection.
    pub(super) fn new(key: &SessionKey, flags: u32) -> Option<Self> {
        (flags & flags::EXTENDED_SESSION_SECURITY != 0).then(|| Self { key: key.clone(), flags })
    }

    /// Returns the server's signature.
    pub(crate) fn sign(&self, list: &[u8]) -> [u8; 16] {
        self.signature(SigningSide::Server, list)
    }

    /// Returns whether this is the client's signature.
    pub(crate) fn verify(&self, list: &[u8], signature: &[u8]) -> bool {
        constant_time_eq(&self.signature(SigningSide::Client, list), signature)
    }

    fn signature(&self, side: SigningSide, list: &[u8]) -> [u8; 16] {
        const VERSION: [u8; 4] = [1, 0, 0, 0];
        const SEQUENCE: [u8; 4] = [0; 4];
        let signing = self.derive(&self.key[..], side.signing());
        let [mut checksum @ .., _, _, _, _, _, _, _, _] = hmac_md5(&signing[..], &[&SEQUENCE, list]);
        if self.flags & flags::KEY_EXCHANGE != 0 {
            let sealing = self.derive(self.sealing_input(), side.sealing());
            apply_rc4(&sealing, &mut checksum);
        }
        let mut signature = [0; 16];
        signature[..4].copy_from_slice(&VERSION);
        signature[4..12].copy_from_slice(&checksum);
        signature[12..].copy_from_slice(&SEQUENCE);
        signature
    }

    /// Returns the part of the key that the client wants to use for encryption.
    fn sealing_input(&self) -> &[u8] {
        match self.flags {
            flags if flags & flags::KEY_128 != 0 => &self.key[..],
            flags if flags & flags::KEY_56 != 0 => &self.key[..7],
            _ => &self.key[..5],
        }
    }

    fn derive(&self, key: &[u8], constant: &[u8]) -> Zeroizing<[u8; 16]> {
        Zeroizing::new(Md5::new().chain_update(key).chain_update(constant).finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::hex;

    // MS-NLMP 4.2.4.4: the keys of the client's side.
    #[test]
    fn published_keys() {
        let signer = ListSigner { key: Zeroizing::new([0x55; 16]), flags: 0xe28a_8235 };
        let signing = signer.derive(&signer.key[..], SigningSide::Client.signing());
        assert_eq!(signing[..], hex("4788dc861b4782f35d43fd98fe1a2d39"));
        let sealing = signer.derive(signer.sealing_input(), SigningSide::Client.sealing());
        assert_eq!(sealing[..], hex("59f600973cc4960a25480a7c196e4c58"));
    }

    #[test]
    fn each_side_signs_with_its_own_key() {
        let signer = ListSigner { key: Zeroizing::new([0x55; 16]), flags: 0xe28a_8235 };
        assert!(signer.verify(b"list", &signer.signature(SigningSide::Client, b"list")));
        assert!(!signer.verify(b"list", &signer.sign(b"list")));
        assert!(!signer.verify(b"other", &signer.signature(SigningSide::Client, b"list")));
        assert!(!signer.verify(b"list", &[]));
    }
}
