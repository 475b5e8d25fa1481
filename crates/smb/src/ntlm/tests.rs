//! The published example of MS-NLMP 4.2.4, and a client that signs its answer.

use super::message::flags;
use super::response::hmac_md5;
use super::*;
use crate::crypto::hex;
use crate::wire::cursor::{Writer, utf16};

const PUBLISHED_ANSWER: &str = "
    4e544c4d5353500003000000180018006c00000054005400840000000c000c00
    480000000800080054000000100010005c00000010001000d8000000358288e2
    0501280a0000000f44006f006d00610069006e00550073006500720043004f00
    4d005000550054004500520086c35097ac9cec102554764a57cccc19aaaaaaaa
    aaaaaaaa68cd0ab851e51c96aabc927bebef6a1c010100000000000000000000
    00000000aaaaaaaaaaaaaaaa0000000002000c0044006f006d00610069006e00
    01000c005300650072007600650072000000000000000000c5dad2544fc97990
    94ce1ce90bc9d03e";

fn published() -> (Challenged, Answer) {
    let nonce = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    let challenged = Challenged { nonce, offer: vec![], challenge: vec![] };
    (challenged, Answer::parse(&hex(PUBLISHED_ANSWER)).expect("an answer"))
}

#[test]
fn the_published_answer_is_accepted_with_its_password_only() {
    let (challenged, answer) = published();
    assert_eq!((&answer.user[..], &answer.domain[..]), ("User", "Domain"));
    assert_eq!(answer.workstation, "COMPUTER");
    assert_eq!(challenged.check(&answer, "Password").expect("accepted").key[..], [0x55; 16]);
    assert!(challenged.check(&answer, "password").is_none());
    assert!(challenged.check(&answer, "").is_none());
    let other = Challenged { nonce: [0; 8], ..challenged };
    assert!(other.check(&answer, "Password").is_none(), "a replayed answer");
}

#[test]
fn users_are_case_blind_in_the_proof_and_domains_are_not() {
    let (challenged, mut answer) = published();
    answer.user = "uSER".into();
    assert!(challenged.check(&answer, "Password").is_some());
    answer.domain = "domain".into();
    assert!(challenged.check(&answer, "Password").is_none());
}

#[test]
fn answers_of_older_versions_and_without_a_proof_are_refused() {
    let (challenged, answer) = published();
    for length in [0, 16, 24, 43] {
        let response = answer.response[..length].to_vec();
        assert!(challenged.check(&Answer { response, ..answer.clone() }, "Password").is_none());
    }
    for length in [0, 15, 17] {
        let exchanged = vec![1; length];
        assert!(challenged.check(&Answer { exchanged, ..answer.clone() }, "Password").is_none());
    }
}

#[test]
fn attributes_that_lead_out_of_the_response_are_refused() {
    let mut bytes = hex(PUBLISHED_ANSWER);
    assert!(Answer::parse(&bytes).is_ok());
    // The length of the first attribute.
    bytes[178] = 0xff;
    assert_eq!(Answer::parse(&bytes), Err(Malformed));
}

#[test]
fn cut_messages_are_refused() {
    let bytes = hex(PUBLISHED_ANSWER);
    for length in 0..bytes.len() {
        assert_eq!(Answer::parse(&bytes[..length]), Err(Malformed), "{length}");
    }
    for length in 0..16 {
        let offer = [&MAGIC[..], &[1, 0, 0, 0, 1, 0, 0, 0]].concat();
        assert!(Challenged::new(&offer[..length], [0; 8], Timestamp::default()).is_err());
    }
}

/// An offer as clients make it.
fn offer() -> Vec<u8> {
    let flags = flags::UNICODE | flags::NTLM | flags::OPTIONAL;
    let mut writer = Writer::new();
    writer.put(&MAGIC).u32(1).u32(flags).zeros(16);
    writer.finish()
}

/// An answer with these attributes, whose signature is computed by `sign` from what was said before and itself.
fn answer(challenged: &Challenged, attributes: &[u8], sign: impl Fn(&[u8]) -> [u8; 16]) -> Answer {
    const FIXED: usize = 88;
    let proved = [&[1, 1][..], &[0; 26], attributes].concat();
    let hash: [u8; 16] = <md4::Md4 as md4::Digest>::digest(utf16("secret")).into();
    let key = hmac_md5(&hash, &[&utf16("ALICE")]);
    let proof = hmac_md5(&key, &[&challenged.nonce, &proved]);
    let response = [&proof[..], &proved].concat();
    let user = utf16("alice");
    let mut writer = Writer::new();
    writer.put(&MAGIC).u32(3).zeros(8);
    writer.u16(response.len() as u16).u16(0).u32(FIXED as u32).zeros(8);
    writer.u16(user.len() as u16).u16(0).u32((FIXED + response.len()) as u32).zeros(16);
    writer.u32(flags::UNICODE).zeros(8).zeros(16).put(&response).put(&user);
    let mut bytes = writer.finish();
    let signature = sign(&bytes);
    bytes[72..88].copy_from_slice(&signature);
    Answer::parse(&bytes).expect("an answer")
}

#[test]
fn a_signed_answer_signs_all_three_messages() {
    let challenged = Challenged::new(&offer(), [7; 8], Timestamp::from_ticks(5)).expect("challenged");
    let signed: [u8; 12] = [6, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    let plain: [u8; 12] = [6, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let key = challenged.check(&answer(&challenged, &plain, |_| [0; 16]), "secret").expect("accepted").key;
    assert!(challenged.check(&answer(&challenged, &signed, |_| [0; 16]), "secret").is_none());

    let key = &key;
    let right = |challenged: &Challenged, bytes: &[u8], key: &[u8]| {
        hmac_md5(key, &[&challenged.offer, &challenged.challenge, bytes])
    };
    // The key depends on the proof, and that on the attributes: computed as the client does.
    let session_key = {
        let answer = answer(&challenged, &signed, |_| [0; 16]);
        response::check(&answer, &challenged.nonce, "secret").expect("a key")
    };
    assert_ne!(session_key[..], key[..]);
    let good = answer(&challenged, &signed, |bytes| right(&challenged, bytes, &session_key[..]));
    assert!(challenged.check(&good, "secret").is_some());
    let mut other = challenged.clone();
    other.offer[12] ^= 0x10;
    assert!(other.check(&good, "secret").is_none(), "the offer was changed on the way");
}

#[test]
fn the_challenge_offers_what_the_client_asked_for_and_says_the_time() {
    let now = Timestamp::from_filetime(0x01d0_0000_1234_5678);
    let challenged = Challenged::new(&offer(), [7; 8], now).expect("challenged");
    let bytes = challenged.challenge();
    assert_eq!(bytes[..8], MAGIC);
    assert_eq!(bytes[24..32], [7; 8]);
    let said = u32::from_le_bytes(bytes[20..24].try_into().expect("four bytes"));
    assert_eq!(said & flags::OPTIONAL, flags::OPTIONAL);
    assert!(
        bytes
            .windows(12)
            .any(|part| { part == [&[7, 0, 8, 0][..], &0x01d0_0000_1234_5678_u64.to_le_bytes()].concat() })
    );
}

#[test]
fn an_answer_without_name_and_proof_is_anonymous() {
    let mut writer = Writer::new();
    writer.put(&MAGIC).u32(3).zeros(48).u32(flags::UNICODE);
    assert!(Answer::parse(&writer.finish()).expect("an answer").is_anonymous());
    assert!(!published().1.is_anonymous());
}
