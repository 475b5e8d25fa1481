//! OAuth bearer tokens: signed JSON web tokens of one configured OpenID Connect issuer.
//!
//! RS256 and ES256 only; the key decides the algorithm, not the token. Where keys come from is a [`KeySource`]'s
//! business; what a subject may do is in the account's role assignments.

mod keys;

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{Account, ServiceKind};
use serde::Deserialize;

pub use keys::{Discovery, FileKeys, KeySet, KeySource, KeySourceError, StaticKeys};

/// How far the issuer's clock may be from ours.
const LEEWAY: Span = Span::seconds(60);
/// Longer than any token that fits a header.
const MAX_TOKEN_BYTES: usize = 32 << 10;
/// The audience of tokens for every account.
const STORAGE: &str = "https://storage.azure.com";

/// Where the accounts of the protocol have their host names: tokens may be for one account's service.
const ACCOUNT_DOMAIN: &str = "core.windows.net";

/// The issuer whose tokens are accepted.
#[derive(Clone)]
pub struct Issuer {
    /// What the `iss` of its tokens says.
    pub name: String,
    /// Audiences that are accepted besides those of the protocol.
    pub audiences: Vec<String>,
    /// Where its clients get tokens; told to callers that have none.
    pub authorization_uri: String,
    /// Its keys.
    pub keys: Arc<dyn KeySource>,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Who a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// `oid`, else `sub`.
    pub id: String,
    /// `tid`, if there is one.
    pub tenant: Option<String>,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three parts of Base64 with JSON in them.
    #[error("The token is malformed.")]
    Malformed,
    /// Neither RS256 nor ES256, or with extensions that have to be understood.
    #[error("The token is signed in a way that is not supported.")]
    Unsupported,
    /// The issuer's keys do not have the one that it names.
    #[error("The token is signed with an unknown key.")]
    UnknownKey,
    /// No key made its signature.
    #[error("The signature of the token is not valid.")]
    Signature,
    /// Somebody else's token.
    #[error("The issuer of the token is not the one that is trusted.")]
    Issuer,
    /// A token for something else.
    #[error("The audience of the token is not this service.")]
    Audience,
    /// Its time is over.
    #[error("The token has expired.")]
    Expired,
    /// Its time is still to come.
    #[error("The token is not yet valid.")]
    NotYetValid,
    /// It is for nobody.
    #[error("The token names no subject.")]
    Subject,
    /// The keys cannot be had now.
    #[error("The keys of the issuer are not available.")]
    Keys,
}

#[derive(Deserialize)]
struct Header {
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
    /// The subject of a token, if the token is this issuer's, for this service of this account, and valid now.
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

/// A token taken apart; nothing in it is trusted yet.
pub(crate) struct Token<'a> {
    header: Header,
    /// What is signed: header and claims, as sent.
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
        let header: Header = json(header)?;
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

    /// The subject that the token names. Nothing says that the token holds.
    pub(crate) fn claimed_subject(&self) -> Option<String> {
        let claims: Claims = json(self.claims).ok()?;
        claims.oid.or(claims.sub)
    }

    /// The subject, if the claims are for this service of this account and valid now.
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

/// A count of seconds since 1970, whole or not.
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
