//! Tokens as clients send them, byte by byte.

use super::*;
use crate::crypto::hex;

/// `NTLMSSP`, offer, Unicode.
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
    response(State::Incomplete, false, Some(token), None).expect("a token")
}

fn ntlm() -> Vec<u8> {
    NTLM.to_der().expect("an identifier")
}

fn said(step: Result<Step, Malformed>) -> Vec<u8> {
    match step {
        Ok(Step::Continue(said)) => said,
        other => panic!("{other:?}"),
    }
}

fn step(acceptor: &mut Acceptor, token: &[u8]) -> Result<Step, Malformed> {
    acceptor.step(token, [1; 8], Timestamp::from_unix_seconds(1))
}

#[test]
fn the_server_offers_ntlm_and_nothing_else() {
    assert_eq!(offer(), hex("601c 06062b0601050502 a0123010 a00e300c 060a2b06010401823702020a"));
}

#[test]
fn a_client_that_begins_with_ntlm_is_challenged_at_once() {
    let said = said(step(&mut Acceptor::default(), &init(&[ntlm()], Some(&hex(OFFER)))));
    // Incomplete, the mechanism, and the challenge.
    assert_eq!(said[..2], hex("a181"));
    assert!(said.windows(5).any(|part| part == hex("a0030a0101")));
    assert!(said.windows(14).any(|part| part == hex("a10c060a2b06010401823702020a")));
    assert!(said.windows(12).any(|part| part == hex("4e544c4d5353500002000000")));
}

#[test]
fn a_client_that_prefers_another_mechanism_is_asked_for_ntlm() {
    let mut acceptor = Acceptor::default();
    let asked = said(step(&mut acceptor, &init(&[hex(KERBEROS), ntlm()], Some(b"a ticket"))));
    assert_eq!(asked, hex("a1153013 a0030a0101 a10c060a2b06010401823702020a"));
    let challenge = said(step(&mut acceptor, &client_response(&hex(OFFER))));
    assert!(challenge.windows(12).any(|part| part == hex("4e544c4d5353500002000000")));
    assert!(!challenge.windows(4).any(|part| part == hex("a10c060a")), "the mechanism is said once");
}

#[test]
fn ntlm_alone_is_answered_with_ntlm_alone() {
    let said = said(step(&mut Acceptor::default(), &hex(OFFER)));
    assert_eq!(said[..12], hex("4e544c4d5353500002000000"));
}

#[test]
fn other_mechanisms_and_answers_out_of_turn_are_refused() {
    let answer = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0]].concat();
    for token in [init(&[hex(KERBEROS)], None), init(&[], None), answer.clone(), client_response(&answer)] {
        assert!(step(&mut Acceptor::default(), &token).is_err());
    }
    let many = init(&vec![ntlm(); MAX_MECHANISMS + 1], None);
    assert!(step(&mut Acceptor::default(), &many).is_err());
}

#[test]
fn cut_tokens_are_refused() {
    let token = init(&[ntlm()], Some(&hex(OFFER)));
    for length in 0..token.len() {
        assert!(step(&mut Acceptor::default(), &token[..length]).is_err(), "{length}");
    }
    assert!(step(&mut Acceptor::default(), &vec![0x60; MAX_TOKEN + 1]).is_err());
}

#[test]
fn an_anonymous_answer_is_known_as_one() {
    let mut acceptor = Acceptor::default();
    said(step(&mut acceptor, &init(&[ntlm()], Some(&hex(OFFER)))));
    let answer = [&ntlm::MAGIC[..], &[3, 0, 0, 0], &[0; 48], &[1, 0, 0, 0]].concat();
    match step(&mut acceptor, &client_response(&answer)) {
        Ok(Step::Answered(answered)) => {
            assert!(answered.answer.is_anonymous());
            assert!(answered.check("").is_none());
        }
        other => panic!("{other:?}"),
    }
}
