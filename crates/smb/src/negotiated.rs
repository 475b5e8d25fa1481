//! The result of Negotiate, and its rules (MS-SMB2 3.3.5.4).

use crate::crypto::{Cipher, SigningAlgorithm};
use crate::wire::cursor::{ByteReader, ByteWriter};
use crate::wire::negotiate::{self, capability, mode};
use crate::wire::status::Status;

/// Maximum number of bytes in one read, write or transaction.
pub(crate) const MAX_TRANSFER: u32 = 8 << 20;
/// Maximum for dialect 2.0.2, whose requests consume only one credit.
const MAX_TRANSFER_SMB202: u32 = 64 << 10;

/// A dialect of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialect {
    Smb202,
    Smb210,
    Smb300,
    Smb302,
    Smb311,
}

impl Dialect {
    /// Newest first.
    const ALL: [Self; 5] = [Self::Smb311, Self::Smb302, Self::Smb300, Self::Smb210, Self::Smb202];

    /// Returns the number of the dialect.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Smb202 => 0x0202,
            Self::Smb210 => 0x0210,
            Self::Smb300 => 0x0300,
            Self::Smb302 => 0x0302,
            Self::Smb311 => 0x0311,
        }
    }

    /// Returns the newest dialect that the client offers.
    fn choose(offered: &[u16]) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| offered.contains(&dialect.number()))
    }

    /// Returns the maximum number of bytes in one read, write or transaction.
    pub(crate) fn max_transfer(self) -> u32 {
        if self == Self::Smb202 { MAX_TRANSFER_SMB202 } else { MAX_TRANSFER }
    }

    /// Returns the server's capabilities in this dialect.
    fn capabilities(self, client: u32) -> u32 {
        let mut capabilities = 0;
        if self >= Self::Smb210 {
            capabilities |= capability::LEASING | capability::LARGE_MTU;
        }
        if self >= Self::Smb300 {
            capabilities |= client & capability::MULTI_CHANNEL;
        }
        // 3.1.1 negotiates encryption with contexts.
        if matches!(self, Self::Smb300 | Self::Smb302) {
            capabilities |= client & capability::ENCRYPTION;
        }
        capabilities
    }
}

/// The parameters that client and server have negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) dialect: Dialect,
    pub(crate) client_guid: [u8; 16],
    pub(crate) client_capabilities: u32,
    pub(crate) client_mode: u16,
    /// The capabilities that the server has announced.
    pub(crate) capabilities: u32,
    pub(crate) mode: u16,
    pub(crate) signing: SigningAlgorithm,
    /// `None` if encryption was not negotiated.
    pub(crate) cipher: Option<Cipher>,
}

impl Negotiated {
    /// Returns the result for a client's request.
    pub(crate) fn choose(request: &negotiate::NegotiateRequest, must_sign: bool) -> Result<Self, Status> {
        let dialect = Dialect::choose(&request.dialects).ok_or(Status::NOT_SUPPORTED)?;
        let capabilities = dialect.capabilities(request.capabilities);
        let (signing, cipher) = match dialect {
            Dialect::Smb311 => choose_contexts(&request.contexts)?,
            Dialect::Smb300 | Dialect::Smb302 => {
                let encrypts = capabilities & capability::ENCRYPTION != 0;
                (SigningAlgorithm::AesCmac, encrypts.then_some(Cipher::Aes128Ccm))
            }
            Dialect::Smb202 | Dialect::Smb210 => (SigningAlgorithm::HmacSha256, None),
        };
        Ok(Self {
            dialect,
            client_guid: request.client_guid,
            client_capabilities: request.capabilities,
            client_mode: request.security_mode,
            capabilities,
            mode: mode::SIGNING_ENABLED | if must_sign { mode::SIGNING_REQUIRED } else { 0 },
            signing,
            cipher,
        })
    }

    /// Returns whether the server requires signing.
    pub(crate) const fn must_sign(&self) -> bool {
        self.mode & mode::SIGNING_REQUIRED != 0
    }

    /// Checks whether a session set up with these parameters can be bound to a connection with other ones.
    pub(crate) fn may_bind(&self, other: &Self) -> Result<(), Status> {
        if self.signing != other.signing {
            if self.signing == SigningAlgorithm::AesGmac {
                return Err(Status::REQUEST_OUT_OF_SEQUENCE);
            }
            if other.signing == SigningAlgorithm::AesGmac {
                return Err(Status::NOT_SUPPORTED);
            }
        }
        if other.dialect < Dialect::Smb300 {
            return Err(Status::REQUEST_NOT_ACCEPTED);
        }
        if self.dialect != other.dialect || self.cipher != other.cipher {
            return Err(Status::INVALID_PARAMETER);
        }
        if self.client_guid != other.client_guid {
            return Err(Status::USER_SESSION_DELETED);
        }
        Ok(())
    }

    /// Handles `FSCTL_VALIDATE_NEGOTIATE_INFO`: over a protected channel, the client repeats its offer and
    /// receives the server's choice. Returns `None` if the offer differs from the one in Negotiate. Then an
    /// attacker has modified it, and the connection must be closed.
    pub(crate) fn validate(&self, input: &[u8], server_guid: [u8; 16]) -> Option<Vec<u8>> {
        let mut reader = ByteReader::new(input);
        let (capabilities, guid): (_, [u8; 16]) = (reader.u32().ok()?, reader.array().ok()?);
        let (mode, count) = (reader.u16().ok()?, reader.u16().ok()?);
        let dialects = (0..count).map(|_| reader.u16()).collect::<Result<Vec<_>, _>>().ok()?;
        let is_same = Dialect::choose(&dialects) == Some(self.dialect)
            && capabilities == self.client_capabilities
            && guid == self.client_guid
            && mode == self.client_mode;
        let mut writer = ByteWriter::new();
        writer.u32(self.capabilities).put(&server_guid).u16(self.mode).u16(self.dialect.number());
        is_same.then(|| writer.finish())
    }
}

/// Returns the fastest algorithms of 3.1.1 that both sides support.
fn choose_contexts(
    contexts: &negotiate::NegotiateContexts,
) -> Result<(SigningAlgorithm, Option<Cipher>), Status> {
    const SIGNING: [SigningAlgorithm; 3] =
        [SigningAlgorithm::AesGmac, SigningAlgorithm::AesCmac, SigningAlgorithm::HmacSha256];
    const CIPHERS: [Cipher; 4] = [Cipher::Aes128Gcm, Cipher::Aes128Ccm, Cipher::Aes256Gcm, Cipher::Aes256Ccm];
    let hashes = contexts.hashes.as_ref().ok_or(Status::INVALID_PARAMETER)?;
    if !hashes.contains(&negotiate::SHA_512) {
        return Err(Status::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP);
    }
    let offers =
        |offered: &Option<Vec<u16>>, number| offered.as_ref().is_some_and(|all| all.contains(&number));
    let signing = SIGNING.into_iter().find(|algorithm| offers(&contexts.signing, algorithm.number()));
    let cipher = CIPHERS.into_iter().find(|cipher| offers(&contexts.ciphers, cipher.number()));
    Ok((signing.unwrap_or(SigningAlgorithm::AesCmac), cipher))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::negotiate::{NegotiateContexts, NegotiateRequest};

    const ALL: [u16; 5] = [0x0202, 0x0210, 0x0300, 0x0302, 0x0311];

    fn contexts() -> NegotiateContexts {
        NegotiateContexts {
            hashes: Some(vec![1]),
            ciphers: Some(vec![4, 1, 2, 3]),
            signing: Some(vec![0, 1, 2]),
        }
    }

    fn offer(dialects: &[u16]) -> NegotiateRequest {
        NegotiateRequest {
            dialects: dialects.to_vec(),
            security_mode: 1,
            capabilities: 0x7f,
            client_guid: [5; 16],
            contexts: contexts(),
        }
    }

    #[test]
    fn the_newest_common_dialect_determines_the_other_parameters() {
        use SigningAlgorithm::{AesCmac, AesGmac, HmacSha256};
        for (offered, dialect, signing, cipher, capabilities) in [
            (&ALL[..1], Dialect::Smb202, HmacSha256, None, 0),
            (&ALL[..2], Dialect::Smb210, HmacSha256, None, 0x06),
            (&ALL[..3], Dialect::Smb300, AesCmac, Some(Cipher::Aes128Ccm), 0x4e),
            (&ALL[..4], Dialect::Smb302, AesCmac, Some(Cipher::Aes128Ccm), 0x4e),
            (&ALL[..], Dialect::Smb311, AesGmac, Some(Cipher::Aes128Gcm), 0x0e),
        ] {
            let chosen = Negotiated::choose(&offer(offered), false).expect("chosen");
            assert_eq!(
                (chosen.dialect, chosen.signing, chosen.cipher, chosen.capabilities),
                (dialect, signing, cipher, capabilities)
            );
            assert!(!chosen.must_sign());
        }
        assert_eq!(Negotiated::choose(&offer(&[0x0100]), false), Err(Status::NOT_SUPPORTED));
        assert!(Negotiated::choose(&offer(&ALL), true).expect("chosen").must_sign());
    }

    #[test]
    fn only_algorithms_that_the_client_offers_are_chosen() {
        let choose = |contexts| Negotiated::choose(&NegotiateRequest { contexts, ..offer(&ALL) }, false);
        let none = NegotiateContexts { ciphers: None, signing: None, ..contexts() };
        let chosen = choose(none).expect("chosen");
        assert_eq!((chosen.signing, chosen.cipher), (SigningAlgorithm::AesCmac, None));
        let unknown = NegotiateContexts { ciphers: Some(vec![9]), signing: Some(vec![0]), ..contexts() };
        let chosen = choose(unknown).expect("chosen");
        assert_eq!((chosen.signing, chosen.cipher), (SigningAlgorithm::HmacSha256, None));
        let no_hash = NegotiateContexts { hashes: None, ..contexts() };
        assert_eq!(choose(no_hash), Err(Status::INVALID_PARAMETER));
        let other_hash = NegotiateContexts { hashes: Some(vec![7]), ..contexts() };
        assert_eq!(choose(other_hash), Err(Status::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP));
    }

    #[test]
    fn encryption_in_3_0_requires_the_client_capability() {
        let request = NegotiateRequest { capabilities: 0x06, ..offer(&[0x0300]) };
        let chosen = Negotiated::choose(&request, false).expect("chosen");
        assert_eq!((chosen.cipher, chosen.capabilities), (None, 0x06));
    }

    #[test]
    fn a_session_is_bound_only_to_an_equally_safe_connection_of_the_same_client() {
        use SigningAlgorithm::{AesCmac, AesGmac, HmacSha256};
        let new = || Negotiated::choose(&offer(&ALL), false).expect("chosen");
        let signed = |signing| Negotiated { signing, ..new() };
        let old = Negotiated::choose(&offer(&ALL[..2]), false).expect("chosen");
        for (session, channel, outcome) in [
            (new(), new(), Ok(())),
            (signed(AesCmac), signed(HmacSha256), Ok(())),
            (signed(AesGmac), signed(AesCmac), Err(Status::REQUEST_OUT_OF_SEQUENCE)),
            (signed(AesGmac), old.clone(), Err(Status::REQUEST_OUT_OF_SEQUENCE)),
            (signed(AesCmac), signed(AesGmac), Err(Status::NOT_SUPPORTED)),
            (old.clone(), signed(AesGmac), Err(Status::NOT_SUPPORTED)),
            (old.clone(), signed(AesCmac), Err(Status::INVALID_PARAMETER)),
            (signed(AesCmac), old.clone(), Err(Status::REQUEST_NOT_ACCEPTED)),
            (old.clone(), old, Err(Status::REQUEST_NOT_ACCEPTED)),
            (new(), Negotiated { dialect: Dialect::Smb302, ..new() }, Err(Status::INVALID_PARAMETER)),
            (new(), Negotiated { cipher: None, ..new() }, Err(Status::INVALID_PARAMETER)),
            (new(), Negotiated { client_guid: [9; 16], ..new() }, Err(Status::USER_SESSION_DELETED)),
        ] {
            assert_eq!(session.may_bind(&channel), outcome, "{session:?} {channel:?}");
        }
    }

    #[test]
    fn validation_fails_for_an_offer_that_differs_from_negotiate() {
        let chosen = Negotiated::choose(&offer(&ALL[..4]), false).expect("chosen");
        let validate = |capabilities: u32, guid: u8, mode: u16, dialects: &[u16]| {
            let mut writer = ByteWriter::new();
            writer.u32(capabilities).put(&[guid; 16]).u16(mode).u16(dialects.len() as u16);
            dialects.iter().for_each(|dialect| _ = writer.u16(*dialect));
            chosen.validate(&writer.finish(), [8; 16])
        };
        let answer = validate(0x7f, 5, 1, &ALL[..4]).expect("an answer");
        assert_eq!(answer, [&[0x4e, 0, 0, 0][..], &[8; 16], &[1, 0], &[0x02, 0x03]].concat());
        assert_eq!(validate(0x3f, 5, 1, &ALL[..4]), None);
        assert_eq!(validate(0x7f, 6, 1, &ALL[..4]), None);
        assert_eq!(validate(0x7f, 5, 3, &ALL[..4]), None);
        assert_eq!(validate(0x7f, 5, 1, &ALL), None);
        assert_eq!(validate(0x7f, 5, 1, &[]), None);
        assert_eq!(chosen.validate(&[0; 23], [8; 16]), None);
    }
}
