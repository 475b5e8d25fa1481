//! Tests with the bytes of clients' tokens.

use super::*;
use crate::crypto::hex;

/// An NTLM NEGOTIATE message with Unicode.
const OFFER: &str = "4e544c4d5353500001000000978208e2000000000000000000000000000000000a00614a0000000f";
const KERBEROS: &str = "06092a864886f712010202";

fn init(mechanisms: &[Vec<u8>], token: Option<&[u8]>) -> Vec<u8> {
    let list = element(Tag::Sequence, &mechanisms.concat()).expect("a list");
    let mut content = element(context(TagNumber::N0), &list).expect("a field");
    if let Some(token) = token {
        let token = element(Tag::OctetString, token).expect("a token");
        content.extend(element(context(TagNumber::N2), &token).expect("a field"));
    }
    let sequence = element(Tag::Sequence, &content).expect("a sequence");
    let inner = element(context(TagNumber::N0), &sequence).expect("a field");
    let spnego = SPNEGO.to_der().expect("an identifier");
    element(TagNumber::N0.application(true), &[spnego, inner].concat()).expect("a token")
}

fn client_response(token: &[u8]) -> Vec<u8> {
    response(NegState::Incomplete, false, Some(token), None).expect("a token")
}

fn ntlm() -> Vec<u8> {
    NTLM.to_der().expect("an identifier")
}

fn token(step: Result<AcceptStep, MalformedToken>) -> Vec<u8> {
    match step {
        Ok(AcceptStep::Continue(token)) => token,
        other => panic!("{other:?}"),
    }
}

fn step(acceptor: &mut Acceptor, token: &[u8]) -> Result<AcceptStep, MalformedToken> {
    acceptor.step(token, [1; 8], Timestamp::from_unix_seconds(1))
}

#[test]
fn the_server_offers_ntlm_and_nothing_else() {
    assert_eq!(initial_token(), hex("601c 06062b0601050502 a0123010 a00e300c 060a2b06010401823702020a"));
}

#[test]
fn a_client_that_starts_with_ntlm_is_challenged_immediately() {
    let token = token(step(&mut Acceptor::default(), &init(&[ntlm()], Some(&hex(OFFER)))));
    // The state "incomplete", the mechanism, and the challenge.
    assert_eq!(token[..2], hex("a181"));
    assert!(token.windows(5).any(|part| part == hex("a0030a0101")));
    assert!(token.windows(14).any(|part| part == hex("a10c060a2b06010401823702020a")));
    assert!(token.windows(12).any(|part| part == hex("4e544c4d5353500002000000")));
}

#[test]
fn a_client_that_prefers_another_mechanism_is_asked_for_ntlm() {
    let mut acceptor = Acceptor::default();
    let response = token(step(&mut acceptor, &init(&[hex(KERBEROS), ntlm()], Some(b"a ticket"))));
    assert_eq!(response, hex("a1153013 a0030a0101 a10c060a2b06010401823702020a"));
    let challenge = token(step(&mut acceptor, &client_response(&hex(OFFER))));
    assert!(challenge.windows(12).any(|part| part == hex("4e544c4d5353500002000000")));
    assert!(!challenge.windows(4).any(|part| part == hex("a10c060a")), "the mechanism is named once");
}

#[test]
fn ntlm_without_spnego_is_answered_without_spnego() {
    let token = token(step(&mut Acceptor::default(), &hex(OFFER)));
    assert_eq!(token[..12], hex("4e544c4d5353500002000000"));
}

#[test]
fn other_mechanisms_and_unexpected_messages_are_refused() {
    let message = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0]].concat();
    for token in [init(&[hex(KERBEROS)], None), init(&[], None), message.clone(), client_response(&message)] {
        assert!(step(&mut Acceptor::default(), &token).is_err());
    }
    let many = init(&vec![ntlm(); MAX_MECHANISMS + 1], None);
    assert!(step(&mut Acceptor::default(), &many).is_err());
}

#[test]
fn truncated_tokens_are_refused() {
    let token = init(&[ntlm()], Some(&hex(OFFER)));
    for length in 0..token.len() {
        assert!(step(&mut Acceptor::default(), &token[..length]).is_err(), "{length}");
    }
    assert!(step(&mut Acceptor::default(), &vec![0x60; MAX_TOKEN + 1]).is_err());
}

#[test]
fn an_anonymous_login_is_recognized() {
    let mut acceptor = Acceptor::default();
    token(step(&mut acceptor, &init(&[ntlm()], Some(&hex(OFFER)))));
    let message = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0]].concat();
    match step(&mut acceptor, &client_response(&message)) {
        Ok(AcceptStep::Authenticate(proof)) => {
            assert!(proof.message.is_anonymous());
            assert!(proof.verify_password("").is_none());
        }
        other => panic!("{other:?}"),
    }
}
