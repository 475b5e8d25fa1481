//! OAuth bearer tokens: JSON web tokens signed by one configured OpenID Connect issuer.
//!
//! Only RS256 and ES256 are accepted. The key decides about the algorithm, not the token. A [`KeySource`]
//! provides the issuer's keys. The account's role assignments decide what a subject may do.

mod keys;

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{Account, ServiceKind};
use serde::Deserialize;

pub use keys::{Discovery, FileKeys, KeySet, KeySource, KeySourceError, StaticKeys};

/// Maximum difference between the issuer's clock and the server's clock.
const LEEWAY: Span = Span::seconds(60);
/// Maximum size of a token. No longer token fits in a header.
const MAX_TOKEN_BYTES: usize = 32 << 10;
/// The audience of tokens for all accounts.
const STORAGE: &str = "https://storage.azure.com";

/// The domain of the accounts' host names: a token can be for one service of one account.
const ACCOUNT_DOMAIN: &str = "core.windows.net";

/// The issuer whose tokens are accepted.
#[derive(Clone)]
pub struct Issuer {
    /// The issuer's name: the value of `iss` in its tokens.
    pub name: String,
    /// Accepted audiences in addition to those of the protocol.
    pub audiences: Vec<String>,
    /// Address at which clients get tokens. Sent in challenges.
    pub authorization_uri: String,
    /// Source of the issuer's keys.
    pub keys: Arc<dyn KeySource>,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The subject of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Value of `oid`, or of `sub` if `oid` is absent.
    pub id: String,
    /// Value of `tid`, if present.
    pub tenant: Option<String>,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token does not consist of three Base64 parts with the required JSON.
    #[error("The token is malformed.")]
    Malformed,
    /// The algorithm is neither RS256 nor ES256, or the token has critical extensions.
    #[error("The token is signed in a way that is not supported.")]
    Unsupported,
    /// The issuer has no key with the id and the algorithm of the token.
    #[error("The token is signed with an unknown key.")]
    UnknownKey,
    /// The signature does not match any candidate key.
    #[error("The signature of the token is not valid.")]
    Signature,
    /// The token is from another issuer.
    #[error("The issuer of the token is not the one that is trusted.")]
    Issuer,
    /// The token is for another audience.
    #[error("The audience of the token is not this service.")]
    Audience,
    /// The token has expired.
    #[error("The token has expired.")]
    Expired,
    /// The token is not yet valid.
    #[error("The token is not yet valid.")]
    NotYetValid,
    /// The token names no subject.
    #[error("The token names no subject.")]
    Subject,
    /// The issuer's keys are not available now.
    #[error("The keys of the issuer are not available.")]
    Keys,
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: Option<String>,
    aud: Option<Audience>,
    exp: Option<f64>,
    nbf: Option<f64>,
    oid: Option<String>,
    sub: Option<String>,
    tid: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Issuer {
    /// Verifies that a token is this issuer's, valid now, and for this service of this account. Returns its
    /// subject.
    pub(crate) async fn verify(
        &self,
        token: &str,
        account: &Account,
        service: ServiceKind,
        now: Timestamp,
    ) -> Result<Subject, TokenError> {
        let token = Token::parse(token)?;
        let keys = self.keys.keys(false).await.map_err(|_| TokenError::Keys)?;
        match token.verify(&keys) {
            // The issuer may have changed its keys since they were read.
            Err(TokenError::UnknownKey) => {
                let keys = self.keys.keys(true).await.map_err(|_| TokenError::Keys)?;
                token.verify(&keys)?;
            }
            result => result?,
        }
        token.subject(self, account, service, now)
    }
}

/// A parsed token. Not verified yet.
pub(crate) struct Token<'a> {
    header: TokenHeader,
    /// The signed part: header and claims, as sent.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let header: TokenHeader = json(header)?;
        if header.crit.is_some() || !matches!(header.alg.as_str(), "RS256" | "ES256") {
            return Err(TokenError::Unsupported);
        }
        Ok(Self { header, signed, claims, signature: decode(signature)? })
    }

    pub(crate) fn verify(&self, keys: &KeySet) -> Result<(), TokenError> {
        let mut candidates = keys.named(self.header.kid.as_deref(), &self.header.alg).peekable();
        if candidates.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        let signed = self.signed.as_bytes();
        candidates.any(|key| key.verifies(signed, &self.signature)).then_some(()).ok_or(TokenError::Signature)
    }

    /// Returns the subject that the token names, without any verification.
    pub(crate) fn claimed_subject(&self) -> Option<String> {
        let claims: Claims = json(self.claims).ok()?;
        claims.oid.or(claims.sub)
    }

    /// Returns the subject if the claims are valid now and for this service of this account.
    pub(crate) fn subject(
        &self,
        issuer: &Issuer,
        account: &Account,
        service: ServiceKind,
        now: Timestamp,
    ) -> Result<Subject, TokenError> {
        let claims: Claims = json(self.claims)?;
        if claims.iss.as_deref() != Some(&issuer.name) {
            return Err(TokenError::Issuer);
        }
        let own = format!("https://{}.{}.{ACCOUNT_DOMAIN}", account.name, service.name());
        let for_us = |audience: &String| {
            let plain = audience.strip_suffix('/').unwrap_or(audience);
            issuer.audiences.contains(audience) || plain == STORAGE || plain == own
        };
        let audiences = match claims.aud {
            Some(Audience::One(audience)) => vec![audience],
            Some(Audience::Many(audiences)) => audiences,
            None => Vec::new(),
        };
        if !audiences.iter().any(for_us) {
            return Err(TokenError::Audience);
        }
        let expiry = claims.exp.and_then(moment).ok_or(TokenError::Malformed)?;
        if now >= expiry + LEEWAY {
            return Err(TokenError::Expired);
        }
        if claims.nbf.is_some_and(|nbf| moment(nbf).is_none_or(|start| now + LEEWAY < start)) {
            return Err(TokenError::NotYetValid);
        }
        let id = claims.oid.or(claims.sub).filter(|id| !id.is_empty()).ok_or(TokenError::Subject)?;
        Ok(Subject { id, tenant: claims.tid.filter(|tid| !tid.is_empty()) })
    }
}

/// Converts seconds since 1970, with or without a fraction.
fn moment(seconds: f64) -> Option<Timestamp> {
    (0.0..1e12)
        .contains(&seconds)
        .then(|| Timestamp::from_unix_nanos(seconds as i128 * 1_000_000_000))
        .flatten()
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)
}

fn json<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, TokenError> {
    serde_json::from_slice(&decode(part)?).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests;
