//! SPNEGO, the accepting side: the tokens around NTLM (RFC 4178, MS-SPNG).
//!
//! The only mechanism on offer is NTLM. A client that prefers another is asked to begin again with this one, and one that
//! sends NTLM without anything around it is answered in the same way. The list of mechanisms is signed by both, once there is
//! a key, so nobody can have changed it on the way.

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber, Tagged};
use lazuli_concurrency::Timestamp;

use crate::ntlm::{self, Accepted, Answer, Challenged};

const SPNEGO: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.2");
const NTLM: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.2.2.10");
/// The longest token that is looked at.
const MAX_TOKEN: usize = 16 << 10;
/// Mechanisms that a client can offer.
const MAX_MECHANISMS: usize = 32;

/// How far it has come, as the server tells it.
#[derive(Clone, Copy, Debug)]
enum State {
    Completed = 0,
    Incomplete = 1,
}

/// Not a token of this protocol, or not the one that has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token of SPNEGO or NTLM")]
pub(crate) struct Malformed;

impl From<der::Error> for Malformed {
    fn from(_: der::Error) -> Self {
        Self
    }
}

impl From<ntlm::Malformed> for Malformed {
    fn from(_: ntlm::Malformed) -> Self {
        Self
    }
}

/// A login that is under way.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// The client's list, as it sent it; none if there is no SPNEGO around NTLM.
    list: Option<Vec<u8>>,
    challenged: Option<Challenged>,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Send this and wait for the client.
    Continue(Vec<u8>),
    /// The client has answered the challenge.
    Answered(Box<Answered>),
}

/// An answer that is to be checked.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    challenged: Challenged,
    list: Option<Vec<u8>>,
    signature: Option<Vec<u8>>,
}

/// What the server says first: that it offers NTLM.
pub(crate) fn offer() -> Vec<u8> {
    let offer = || {
        let list = element(Tag::Sequence, &NTLM.to_der()?)?;
        let init = element(
            context(TagNumber::N0),
            &element(Tag::Sequence, &element(context(TagNumber::N0), &list)?)?,
        )?;
        element(TagNumber::N0.application(true), &[SPNEGO.to_der()?, init].concat())
    };
    offer().unwrap_or_default()
}

impl Acceptor {
    /// Takes a token of the client.
    pub(crate) fn step(&mut self, token: &[u8], nonce: [u8; 8], now: Timestamp) -> Result<Step, Malformed> {
        if token.len() > MAX_TOKEN {
            return Err(Malformed);
        }
        if token.starts_with(&ntlm::MAGIC) {
            return self.step_inside(Some(token), None, false, nonce, now);
        }
        let outer = whole(token)?;
        if outer.tag() == TagNumber::N0.application(true) {
            let init = Init::parse(outer.value())?;
            self.list = Some(init.list.to_vec());
            self.challenged = None;
            self.step_inside(init.token, None, true, nonce, now)
        } else {
            let response = ClientResponse::parse(outer)?;
            self.step_inside(Some(response.token.ok_or(Malformed)?), response.signature, false, nonce, now)
        }
    }

    fn step_inside(
        &mut self,
        token: Option<&[u8]>,
        signature: Option<&[u8]>,
        is_first: bool,
        nonce: [u8; 8],
        now: Timestamp,
    ) -> Result<Step, Malformed> {
        let Some(token) = token else {
            // The client prefers another mechanism, or waits to be told which.
            return Ok(Step::Continue(response(State::Incomplete, true, None, None)?));
        };
        if let Some(challenged) = self.challenged.take() {
            let answer = Answer::parse(token)?;
            let (list, signature) = (self.list.take(), signature.map(<[u8]>::to_vec));
            return Ok(Step::Answered(Box::new(Answered { answer, challenged, list, signature })));
        }
        let challenged = Challenged::new(token, nonce, now)?;
        let said = match self.list {
            Some(_) => response(State::Incomplete, is_first, Some(challenged.challenge()), None)?,
            None => challenged.challenge().to_vec(),
        };
        self.challenged = Some(challenged);
        Ok(Step::Continue(said))
    }
}

impl Answered {
    /// Tries a password. The token that ends the login, if it is right.
    pub(crate) fn check(&self, password: &str) -> Option<(Accepted, Vec<u8>)> {
        let accepted = self.challenged.check(&self.answer, password)?;
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
        let token = response(State::Completed, false, None, signature.as_ref().map(|s| &s[..])).ok()?;
        Some((accepted, token))
    }

    /// The token that ends a login without a password.
    pub(crate) fn anonymous_token(&self) -> Vec<u8> {
        match self.list {
            Some(_) => response(State::Completed, false, None, None).unwrap_or_default(),
            None => vec![],
        }
    }
}

/// The client's first token.
struct Init<'a> {
    /// The list of mechanisms, as it is.
    list: &'a [u8],
    /// The first token of NTLM, if that is the first in the list.
    token: Option<&'a [u8]>,
}

impl<'a> Init<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = SliceReader::new(bytes)?;
        if ObjectIdentifier::decode(&mut reader)? != SPNEGO {
            return Err(Malformed);
        }
        let init = whole(reader.read_slice(reader.remaining_len())?)?;
        let [list, _, token, _] = fields(inner(init, context(TagNumber::N0))?)?;
        let list = list.ok_or(Malformed)?;
        let mechanisms = mechanisms(list)?;
        if !mechanisms.contains(&NTLM) {
            return Err(Malformed);
        }
        let token = token.filter(|_| mechanisms.first() == Some(&NTLM));
        Ok(Self { list, token: token.map(octets).transpose()? })
    }
}

/// Every other token of the client.
struct ClientResponse<'a> {
    token: Option<&'a [u8]>,
    signature: Option<&'a [u8]>,
}

impl<'a> ClientResponse<'a> {
    fn parse(outer: AnyRef<'a>) -> Result<Self, Malformed> {
        let [_, _, token, signature] = fields(inner(outer, context(TagNumber::N1))?)?;
        Ok(Self { token: token.map(octets).transpose()?, signature: signature.map(octets).transpose()? })
    }
}

/// A token of the server.
fn response(
    state: State,
    names_mechanism: bool,
    token: Option<&[u8]>,
    signature: Option<&[u8]>,
) -> Result<Vec<u8>, Malformed> {
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

fn element(tag: Tag, content: &[u8]) -> Result<Vec<u8>, Malformed> {
    Ok(AnyRef::new(tag, content)?.to_der()?)
}

/// The one element that bytes are.
fn whole(bytes: &[u8]) -> Result<AnyRef<'_>, Malformed> {
    Ok(AnyRef::from_der(bytes)?)
}

/// The content of an element with this tag.
fn inner(element: AnyRef<'_>, tag: Tag) -> Result<&[u8], Malformed> {
    if element.tag() == tag { Ok(element.value()) } else { Err(Malformed) }
}

fn octets(bytes: &[u8]) -> Result<&[u8], Malformed> {
    inner(whole(bytes)?, Tag::OctetString)
}

/// The contents of the fields 0 to 3 of a sequence, each of which may be missing.
fn fields(bytes: &[u8]) -> Result<[Option<&[u8]>; 4], Malformed> {
    let mut reader = SliceReader::new(inner(whole(bytes)?, Tag::Sequence)?)?;
    let mut fields = [None; 4];
    while !reader.is_finished() {
        let field = AnyRef::decode(&mut reader)?;
        if !field.tag().is_context_specific() {
            return Err(Malformed);
        }
        let place = fields.get_mut(usize::from(field.tag().number().value())).ok_or(Malformed)?;
        *place = Some(field.value());
    }
    Ok(fields)
}

fn mechanisms(list: &[u8]) -> Result<Vec<ObjectIdentifier>, Malformed> {
    let mut reader = SliceReader::new(inner(whole(list)?, Tag::Sequence)?)?;
    let mut mechanisms = vec![];
    while !reader.is_finished() {
        if mechanisms.len() == MAX_MECHANISMS {
            return Err(Malformed);
        }
        mechanisms.push(ObjectIdentifier::decode(&mut reader)?);
    }
    Ok(mechanisms)
}

#[cfg(test)]
mod tests;
