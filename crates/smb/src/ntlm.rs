//! NTLMv2, the server side (MS-NLMP).
//!
//! The client sends NEGOTIATE, the server CHALLENGE, and the client AUTHENTICATE, which proves that it knows
//! the password. Both sides then share a session key. LM and NTLMv1 responses are refused, as are responses
//! without a user name. This module does not know accounts: the caller tries the passwords that the named
//! user may have.

#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod message;
mod mic;
mod response;
#[cfg(test)]
mod tests;

use lazuli_concurrency::Timestamp;

use crate::crypto::SessionKey;
pub(crate) use message::AuthenticateMessage;
pub(crate) use mic::ListSigner;

/// First bytes of every message.
pub(crate) const MAGIC: [u8; 8] = *b"NTLMSSP\0";

/// The message is invalid or unexpected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid or unexpected NTLM message")]
pub(crate) struct MalformedNtlm;

/// A login after the server's challenge.
#[derive(Clone, Debug)]
pub(crate) struct ChallengedLogin {
    nonce: [u8; 8],
    /// The first two messages. The third message's MIC covers them.
    negotiate: Vec<u8>,
    challenge: Vec<u8>,
}

/// A successful login.
#[derive(Debug)]
pub(crate) struct AcceptedLogin {
    /// The shared session key.
    pub(crate) key: SessionKey,
    /// Flags of the AUTHENTICATE message.
    flags: u32,
}

impl ChallengedLogin {
    /// Creates the challenge for a NEGOTIATE message. The nonce must be random.
    pub(crate) fn new(negotiate: &[u8], nonce: [u8; 8], now: Timestamp) -> Result<Self, MalformedNtlm> {
        let flags = message::parse_negotiate(negotiate)?;
        let challenge = message::challenge(flags, nonce, now);
        Ok(Self { nonce, negotiate: negotiate.to_vec(), challenge })
    }

    /// Returns the CHALLENGE message.
    pub(crate) fn challenge(&self) -> &[u8] {
        &self.challenge
    }

    /// Checks an AUTHENTICATE message against a password. Returns `None` if it does not match.
    pub(crate) fn verify_password(
        &self,
        message: &AuthenticateMessage,
        password: &str,
    ) -> Option<AcceptedLogin> {
        let key = response::check(message, &self.nonce, password)?;
        let is_authentic = match message.mic() {
            Some(mic) => {
                let message = message.without_mic();
                crate::crypto::constant_time_eq(
                    &response::hmac_md5(&key[..], &[&self.negotiate, &self.challenge, &message]),
                    &mic,
                )
            }
            None => true,
        };
        is_authentic.then_some(AcceptedLogin { key, flags: message.flags })
    }
}

impl AcceptedLogin {
    /// Returns the signer for the client's list of mechanisms.
    pub(crate) fn list_signer(&self) -> Option<ListSigner> {
        ListSigner::new(&self.key, self.flags)
    }
}
