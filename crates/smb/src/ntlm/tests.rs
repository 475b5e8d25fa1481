//! The published example of MS-NLMP 4.2.4, and a client whose message has a MIC.

use super::message::flags;
use super::response::hmac_md5;
use super::*;
use crate::crypto::hex;
use crate::wire::cursor::{ByteWriter, utf16};

const PUBLISHED_ANSWER: &str = "
    4e544c4d5353500003000000180018006c00000054005400840000000c000c00
    480000000800080054000000100010005c00000010001000d8000000358288e2
    0501280a0000000f44006f006d00610069006e00550073006500720043004f00
    4d005000550054004500520086c35097ac9cec102554764a57cccc19aaaaaaaa
    aaaaaaaa68cd0ab851e51c96aabc927bebef6a1c010100000000000000000000
    00000000aaaaaaaaaaaaaaaa0000000002000c0044006f006d00610069006e00
    01000c005300650072007600650072000000000000000000c5dad2544fc97990
    94ce1ce90bc9d03e";

fn published() -> (ChallengedLogin, AuthenticateMessage) {
    let nonce = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
    let challenged = ChallengedLogin { nonce, negotiate: vec![], challenge: vec![] };
    (challenged, AuthenticateMessage::parse(&hex(PUBLISHED_ANSWER)).expect("an answer"))
}

#[test]
fn the_published_response_is_accepted_only_with_its_password() {
    let (challenged, message) = published();
    assert_eq!((&message.user[..], &message.domain[..]), ("User", "Domain"));
    assert_eq!(message.workstation, "COMPUTER");
    assert_eq!(challenged.verify_password(&message, "Password").expect("accepted").key[..], [0x55; 16]);
    assert!(challenged.verify_password(&message, "password").is_none());
    assert!(challenged.verify_password(&message, "").is_none());
    let other = ChallengedLogin { nonce: [0; 8], ..challenged };
    assert!(other.verify_password(&message, "Password").is_none(), "a replayed answer");
}

#[test]
fn the_proof_ignores_the_case_of_the_user_but_not_of_the_domain() {
    let (challenged, mut message) = published();
    message.user = "uSER".into();
    assert!(challenged.verify_password(&message, "Password").is_some());
    message.domain = "domain".into();
    assert!(challenged.verify_password(&message, "Password").is_none());
}

#[test]
fn ntlmv1_and_empty_responses_are_refused() {
    let (challenged, message) = published();
    for length in [0, 16, 24, 43] {
        let response = message.response[..length].to_vec();
        assert!(
            challenged
                .verify_password(&AuthenticateMessage { response, ..message.clone() }, "Password")
                .is_none()
        );
    }
    for length in [0, 15, 17] {
        let encrypted_session_key = vec![1; length];
        assert!(
            challenged
                .verify_password(
                    &AuthenticateMessage { encrypted_session_key, ..message.clone() },
                    "Password"
                )
                .is_none()
        );
    }
}

#[test]
fn attributes_beyond_the_end_of_the_response_are_refused() {
    let mut bytes = hex(PUBLISHED_ANSWER);
    assert!(AuthenticateMessage::parse(&bytes).is_ok());
    // The length of the first attribute.
    bytes[178] = 0xff;
    assert_eq!(AuthenticateMessage::parse(&bytes), Err(MalformedNtlm));
}

#[test]
fn truncated_messages_are_refused() {
    let bytes = hex(PUBLISHED_ANSWER);
    for length in 0..bytes.len() {
        assert_eq!(AuthenticateMessage::parse(&bytes[..length]), Err(MalformedNtlm), "{length}");
    }
    for length in 0..16 {
        let negotiate = [&MAGIC[..], &[1, 0, 0, 0, 1, 0, 0, 0]].concat();
        assert!(ChallengedLogin::new(&negotiate[..length], [0; 8], Timestamp::default()).is_err());
    }
}

/// Returns a NEGOTIATE message.
fn negotiate() -> Vec<u8> {
    let flags = flags::UNICODE | flags::NTLM | flags::OPTIONAL;
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(1).u32(flags).zeros(16);
    writer.finish()
}

/// Returns an AUTHENTICATE message with these attributes. `sign` computes its MIC from the message.
fn message(
    challenged: &ChallengedLogin,
    attributes: &[u8],
    sign: impl Fn(&[u8]) -> [u8; 16],
) -> AuthenticateMessage {
    const FIXED: usize = 88;
    let proved = [&[1, 1][..], &[0; 26], attributes].concat();
    let hash: [u8; 16] = <md4::Md4 as md4::Digest>::digest(utf16("secret")).into();
    let key = hmac_md5(&hash, &[&utf16("ALICE")]);
    let proof = hmac_md5(&key, &[&challenged.nonce, &proved]);
    let response = [&proof[..], &proved].concat();
    let user = utf16("alice");
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(3).zeros(8);
    writer.u16(response.len() as u16).u16(0).u32(FIXED as u32).zeros(8);
    writer.u16(user.len() as u16).u16(0).u32((FIXED + response.len()) as u32).zeros(16);
    writer.u32(flags::UNICODE).zeros(8).zeros(16).put(&response).put(&user);
    let mut bytes = writer.finish();
    let signature = sign(&bytes);
    bytes[72..88].copy_from_slice(&signature);
    AuthenticateMessage::parse(&bytes).expect("an answer")
}

#[test]
fn the_mic_covers_all_three_messages() {
    let challenged =
        ChallengedLogin::new(&negotiate(), [7; 8], Timestamp::from_ticks(5)).expect("challenged");
    let signed: [u8; 12] = [6, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    let plain: [u8; 12] = [6, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let key = challenged
        .verify_password(&message(&challenged, &plain, |_| [0; 16]), "secret")
        .expect("accepted")
        .key;
    assert!(challenged.verify_password(&message(&challenged, &signed, |_| [0; 16]), "secret").is_none());

    let key = &key;
    let right = |challenged: &ChallengedLogin, bytes: &[u8], key: &[u8]| {
        hmac_md5(key, &[&challenged.negotiate, &challenged.challenge, bytes])
    };
    // The key depends on the proof, and the proof on the attributes. Compute it as the client does.
    let session_key = {
        let message = message(&challenged, &signed, |_| [0; 16]);
        response::check(&message, &challenged.nonce, "secret").expect("a key")
    };
    assert_ne!(session_key[..], key[..]);
    let good = message(&challenged, &signed, |bytes| right(&challenged, bytes, &session_key[..]));
    assert!(challenged.verify_password(&good, "secret").is_some());
    let mut other = challenged.clone();
    other.negotiate[12] ^= 0x10;
    assert!(other.verify_password(&good, "secret").is_none(), "the first message was modified");
}

#[test]
fn the_challenge_has_the_requested_flags_and_the_time() {
    let now = Timestamp::from_filetime(0x01d0_0000_1234_5678);
    let challenged = ChallengedLogin::new(&negotiate(), [7; 8], now).expect("challenged");
    let bytes = challenged.challenge();
    assert_eq!(bytes[..8], MAGIC);
    assert_eq!(bytes[24..32], [7; 8]);
    let flags_sent = u32::from_le_bytes(bytes[20..24].try_into().expect("four bytes"));
    assert_eq!(flags_sent & flags::OPTIONAL, flags::OPTIONAL);
    assert!(
        bytes
            .windows(12)
            .any(|part| { part == [&[7, 0, 8, 0][..], &0x01d0_0000_1234_5678_u64.to_le_bytes()].concat() })
    );
}

#[test]
fn a_message_without_name_and_proof_is_anonymous() {
    let mut writer = ByteWriter::new();
    writer.put(&MAGIC).u32(3).zeros(48).u32(flags::UNICODE);
    assert!(AuthenticateMessage::parse(&writer.finish()).expect("an answer").is_anonymous());
    assert!(!published().1.is_anonymous());
}
