//! NTLMv2, the accepting side (MS-NLMP).
//!
//! Three messages: the client's offer, the server's challenge, the client's answer to it, which proves that it knows the
//! password and leaves both with a key. Older answers (LM, NTLMv1) are refused, as is an answer without a name. Nothing here
//! knows of accounts: an answer names a user, and is then tried with the passwords which that user may have.

mod message;
mod mic;
mod response;
#[cfg(test)]
mod tests;

use lazuli_concurrency::Timestamp;

use crate::crypto::SessionKey;
pub(crate) use message::Answer;
pub(crate) use mic::ListSigner;

/// What every message starts with.
pub(crate) const MAGIC: [u8; 8] = *b"NTLMSSP\0";

/// Not a message of this protocol, or not the one that has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of NTLM")]
pub(crate) struct Malformed;

/// A login that has come to the challenge.
#[derive(Clone, Debug)]
pub(crate) struct Challenged {
    nonce: [u8; 8],
    /// Both are signed with the answer.
    offer: Vec<u8>,
    challenge: Vec<u8>,
}

/// A login that has succeeded.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The key that both have now.
    pub(crate) key: SessionKey,
    /// Flags of the answer.
    flags: u32,
}

impl Challenged {
    /// Answers the client's offer with a challenge. The nonce has to be random.
    pub(crate) fn new(offer: &[u8], nonce: [u8; 8], now: Timestamp) -> Result<Self, Malformed> {
        let flags = message::parse_offer(offer)?;
        let challenge = message::challenge(flags, nonce, now);
        Ok(Self { nonce, offer: offer.to_vec(), challenge })
    }

    /// What to send to the client.
    pub(crate) fn challenge(&self) -> &[u8] {
        &self.challenge
    }

    /// Whether the answer was made with this password.
    pub(crate) fn check(&self, answer: &Answer, password: &str) -> Option<Accepted> {
        let key = response::check(answer, &self.nonce, password)?;
        let is_whole = match answer.signature() {
            Some(signature) => {
                let answer = answer.without_signature();
                crate::crypto::same(
                    &response::hmac_md5(&key[..], &[&self.offer, &self.challenge, &answer]),
                    &signature,
                )
            }
            None => true,
        };
        is_whole.then_some(Accepted { key, flags: answer.flags })
    }
}

impl Accepted {
    /// What signs the list of mechanisms that the client began with.
    pub(crate) fn list_signer(&self) -> Option<ListSigner> {
        ListSigner::new(&self.key, self.flags)
    }
}
