//! SPNEGO, the server side: the tokens around NTLM (RFC 4178, MS-SPNG).
//!
//! NTLM is the only mechanism. A client that prefers another one is asked to continue with NTLM. A client
//! that sends NTLM without SPNEGO gets responses without SPNEGO. Both sides sign the list of mechanisms once
//! there is a key, which detects modification by an attacker.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber, Tagged};
use lazuli_concurrency::Timestamp;

use crate::ntlm::{self, AcceptedLogin, AuthenticateMessage, ChallengedLogin};

const SPNEGO: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.2");
const NTLM: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.2.2.10");
/// Maximum length of a token in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// Maximum number of mechanisms that a client may offer.
const MAX_MECHANISMS: usize = 32;

/// The negotiation state in a response.
#[derive(Clone, Copy, Debug)]
enum NegState {
    Completed = 0,
    Incomplete = 1,
}

/// The token is invalid or unexpected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid or unexpected SPNEGO or NTLM token")]
pub(crate) struct MalformedToken;

impl From<der::Error> for MalformedToken {
    fn from(_: der::Error) -> Self {
        Self
    }
}

impl From<ntlm::MalformedNtlm> for MalformedToken {
    fn from(_: ntlm::MalformedNtlm) -> Self {
        Self
    }
}

/// A login in progress.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// The client's list of mechanisms as sent. `None` if the client does not use SPNEGO.
    list: Option<Vec<u8>>,
    challenged: Option<ChallengedLogin>,
}

/// The next step of a login.
#[derive(Debug)]
pub(crate) enum AcceptStep {
    /// Send this token and wait for the client's next one.
    Continue(Vec<u8>),
    /// The client has responded to the challenge. Check its proof.
    Authenticate(Box<LoginProof>),
}

/// The client's response to the challenge, to be checked.
#[derive(Debug)]
pub(crate) struct LoginProof {
    pub(crate) message: AuthenticateMessage,
    challenged: ChallengedLogin,
    list: Option<Vec<u8>>,
    signature: Option<Vec<u8>>,
}

/// Returns the server's first token, which offers NTLM.
pub(crate) fn initial_token() -> Vec<u8> {
    let token = || {
        let list = element(Tag::Sequence, &NTLM.to_der()?)?;
        let init = element(
            context(TagNumber::N0),
            &element(Tag::Sequence, &element(context(TagNumber::N0), &list)?)?,
        )?;
        element(TagNumber::N0.application(true), &[SPNEGO.to_der()?, init].concat())
    };
    token().unwrap_or_default()
}

impl Acceptor {
    /// Processes a token of the client.
    pub(crate) fn step(
        &mut self,
        token: &[u8],
        nonce: [u8; 8],
        now: Timestamp,
    ) -> Result<AcceptStep, MalformedToken> {
        if token.len() > MAX_TOKEN {
            return Err(MalformedToken);
        }
        if token.starts_with(&ntlm::MAGIC) {
            return self.step_ntlm(Some(token), None, false, nonce, now);
        }
        let outer = whole(token)?;
        if outer.tag() == TagNumber::N0.application(true) {
            let init = Init::parse(outer.value())?;
            self.list = Some(init.list.to_vec());
            self.challenged = None;
            self.step_ntlm(init.token, None, true, nonce, now)
        } else {
            let response = ClientResponse::parse(outer)?;
            self.step_ntlm(Some(response.token.ok_or(MalformedToken)?), response.signature, false, nonce, now)
        }
    }

    fn step_ntlm(
        &mut self,
        token: Option<&[u8]>,
        signature: Option<&[u8]>,
        is_first: bool,
        nonce: [u8; 8],
        now: Timestamp,
    ) -> Result<AcceptStep, MalformedToken> {
        let Some(token) = token else {
            // The client prefers another mechanism, or waits for the server's choice.
            return Ok(AcceptStep::Continue(response(NegState::Incomplete, true, None, None)?));
        };
        if let Some(challenged) = self.challenged.take() {
            let message = AuthenticateMessage::parse(token)?;
            let (list, signature) = (self.list.take(), signature.map(<[u8]>::to_vec));
            return Ok(AcceptStep::Authenticate(Box::new(LoginProof {
                message,
                challenged,
                list,
                signature,
            })));
        }
        let challenged = ChallengedLogin::new(token, nonce, now)?;
        let token = match self.list {
            Some(_) => response(NegState::Incomplete, is_first, Some(challenged.challenge()), None)?,
            None => challenged.challenge().to_vec(),
        };
        self.challenged = Some(challenged);
        Ok(AcceptStep::Continue(token))
    }
}

impl LoginProof {
    /// Checks a password. If it is right, returns the login and the final token.
    pub(crate) fn verify_password(&self, password: &str) -> Option<(AcceptedLogin, Vec<u8>)> {
        let accepted = self.challenged.verify_password(&self.message, password)?;
        let Some(list) = &self.list else { return Some((accepted, vec![])) };
        let signer = accepted.list_signer();
        let signature = match (&signer, &self.signature) {
            (Some(signer), Some(signature)) => {
                if !signer.verify(list, signature) {
                    return None;
                }
                Some(signer.sign(list))
            }
            _ => None,
        };
        let token = response(NegState::Completed, false, None, signature.as_ref().map(|s| &s[..])).ok()?;
        Some((accepted, token))
    }

    /// Returns the final token of an anonymous login.
    pub(crate) fn anonymous_token(&self) -> Vec<u8> {
        match self.list {
            Some(_) => response(NegState::Completed, false, None, None).unwrap_or_default(),
            None => vec![],
        }
    }
}

/// The client's first token.
struct Init<'a> {
    /// The encoded list of mechanisms.
    list: &'a [u8],
    /// The first NTLM token, if NTLM is first in the list.
    token: Option<&'a [u8]>,
}

impl<'a> Init<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MalformedToken> {
        let mut reader = SliceReader::new(bytes)?;
        if ObjectIdentifier::decode(&mut reader)? != SPNEGO {
            return Err(MalformedToken);
        }
        let init = whole(reader.read_slice(reader.remaining_len())?)?;
        let [list, _, token, _] = fields(inner(init, context(TagNumber::N0))?)?;
        let list = list.ok_or(MalformedToken)?;
        let mechanisms = mechanisms(list)?;
        if !mechanisms.contains(&NTLM) {
            return Err(MalformedToken);
        }
        let token = token.filter(|_| mechanisms.first() == Some(&NTLM));
        Ok(Self { list, token: token.map(octets).transpose()? })
    }
}

/// A later token of the client.
struct ClientResponse<'a> {
    token: Option<&'a [u8]>,
    signature: Option<&'a [u8]>,
}

impl<'a> ClientResponse<'a> {
    fn parse(outer: AnyRef<'a>) -> Result<Self, MalformedToken> {
        let [_, _, token, signature] = fields(inner(outer, context(TagNumber::N1))?)?;
        Ok(Self { token: token.map(octets).transpose()?, signature: signature.map(octets).transpose()? })
    }
}

/// Returns a token of the server.
fn response(
    state: NegState,
    names_mechanism: bool,
    token: Option<&[u8]>,
    signature: Option<&[u8]>,
) -> Result<Vec<u8>, MalformedToken> {
    let mut content = element(context(TagNumber::N0), &element(Tag::Enumerated, &[state as u8])?)?;
    if names_mechanism {
        content.extend(element(context(TagNumber::N1), &NTLM.to_der()?)?);
    }
    for (number, bytes) in [(TagNumber::N2, token), (TagNumber::N3, signature)] {
        if let Some(bytes) = bytes {
            content.extend(element(context(number), &element(Tag::OctetString, bytes)?)?);
        }
    }
    element(context(TagNumber::N1), &element(Tag::Sequence, &content)?)
}

fn context(number: TagNumber) -> Tag {
    number.context_specific(true)
}

fn element(tag: Tag, content: &[u8]) -> Result<Vec<u8>, MalformedToken> {
    Ok(AnyRef::new(tag, content)?.to_der()?)
}

/// Decodes bytes that are one element.
fn whole(bytes: &[u8]) -> Result<AnyRef<'_>, MalformedToken> {
    Ok(AnyRef::from_der(bytes)?)
}

/// Returns the content of an element, which must have this tag.
fn inner(element: AnyRef<'_>, tag: Tag) -> Result<&[u8], MalformedToken> {
    if element.tag() == tag { Ok(element.value()) } else { Err(MalformedToken) }
}

fn octets(bytes: &[u8]) -> Result<&[u8], MalformedToken> {
    inner(whole(bytes)?, Tag::OctetString)
}

/// Returns the optional fields 0 to 3 of a sequence.
fn fields(bytes: &[u8]) -> Result<[Option<&[u8]>; 4], MalformedToken> {
    let mut reader = SliceReader::new(inner(whole(bytes)?, Tag::Sequence)?)?;
    let mut fields = [None; 4];
    while !reader.is_finished() {
        let field = AnyRef::decode(&mut reader)?;
        if !field.tag().is_context_specific() {
            return Err(MalformedToken);
        }
        let slot = fields.get_mut(usize::from(field.tag().number().value())).ok_or(MalformedToken)?;
        *slot = Some(field.value());
    }
    Ok(fields)
}

fn mechanisms(list: &[u8]) -> Result<Vec<ObjectIdentifier>, MalformedToken> {
    let mut reader = SliceReader::new(inner(whole(list)?, Tag::Sequence)?)?;
    let mut mechanisms = vec![];
    while !reader.is_finished() {
        if mechanisms.len() == MAX_MECHANISMS {
            return Err(MalformedToken);
        }
        mechanisms.push(ObjectIdentifier::decode(&mut reader)?);
    }
    Ok(mechanisms)
}

#[cfg(test)]
mod tests;
