//! Signatures of SMB 3.1.1 with AES-GMAC, and what an observer of the network can do with recorded messages.
//!
//! GMAC's nonce is the message id and the direction. Two different messages under one key and one nonce give its
//! authentication key away, so no request may make the server sign twice under one message id.

use lazuli_smb::Options;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{digest, hmac};

use crate::Server;
use crate::client::*;

const SIGNATURE: std::ops::Range<usize> = 48..64;
const SIGNED: u8 = 8;
const GUID: [u8; 16] = [7; 16];

/// A key that signs messages of one channel.
struct Key(LessSafeKey);

impl Key {
    fn new(session_key: &[u8; 16], preauth: &[u8; 64]) -> Self {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, session_key));
        for part in [&[0, 0, 0, 1][..], b"SMBSigningKey\0\0", preauth, &[0, 0, 0, 128]] {
            mac.update(part);
        }
        Self(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &mac.sign().as_ref()[..16]).unwrap()))
    }

    fn tag(&self, message: &[u8]) -> [u8; 16] {
        let mut message = message.to_vec();
        message[SIGNATURE].fill(0);
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&message[24..32]);
        nonce[8] = message[16] & 1;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(&message), &mut []).unwrap();
        tag.as_ref().try_into().unwrap()
    }

    fn sign(&self, mut message: Vec<u8>) -> Vec<u8> {
        message[16] |= SIGNED;
        let tag = self.tag(&message);
        message[SIGNATURE].copy_from_slice(&tag);
        message
    }

    fn verifies(&self, message: &[u8]) -> bool {
        is_signed(message) && self.tag(message) == message[SIGNATURE]
    }
}

fn is_signed(message: &[u8]) -> bool {
    message[16] & SIGNED != 0 || message[SIGNATURE] != [0; 16]
}

fn status(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[8..12].try_into().unwrap())
}

fn message_id(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[24..32].try_into().unwrap())
}

/// The hash over the messages before there is a key.
#[derive(Clone, Copy)]
struct Preauth([u8; 64]);

impl Preauth {
    fn add(&mut self, message: &[u8]) {
        let hash = digest::digest(&digest::SHA512, &[&self.0[..], message].concat());
        self.0.copy_from_slice(hash.as_ref());
    }
}

/// Sends a frame and takes the answer.
async fn exchange(client: &mut Client, frame: &[u8]) -> Vec<u8> {
    assert!(client.send(frame).await);
    client.receive().await.expect("an answer")
}

/// A connection that speaks 3.1.1 and signs with GMAC.
async fn negotiated(server: &Server) -> (Client, Preauth) {
    let (mut client, mut preauth) = (server.client().await, Preauth([0; 64]));
    let body = [
        &[36, 0, 1, 0, 1, 0, 0, 0, 0x7f, 0, 0, 0][..],
        &GUID,
        &[104, 0, 0, 0, 2, 0, 0, 0, 0x11, 0x03, 0, 0],
        // SHA-512, then AES-GMAC.
        &[1, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0],
        &[8, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0],
    ]
    .concat();
    let request = client.request(NEGOTIATE, &body);
    let response = exchange(&mut client, &request).await;
    assert_eq!(status(&response), 0);
    preauth.add(&request);
    preauth.add(&response);
    (client, preauth)
}

/// What was said in one login, and the keys that it ended with.
struct Login {
    key: Key,
    /// Each request with its response.
    legs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Logs in on a connection; with the key of a session, binds that session to it.
async fn log_in(server: &Server, client: &mut Client, mut preauth: Preauth, bound: Option<&Key>) -> Login {
    let (password, mut token, mut session_key) = (server.key().await, offer(), [0; 16]);
    let mut legs = vec![];
    for expected in [MORE_PROCESSING_REQUIRED, 0] {
        let request = client.request(SESSION_SETUP, &session_setup(&token, bound.is_some()));
        let request = bound.map_or(request.clone(), |key| key.sign(request));
        let response = exchange(client, &request).await;
        assert_eq!(status(&response), expected);
        client.session = u64::from_le_bytes(response[40..48].try_into().unwrap());
        preauth.add(&request);
        if expected != 0 {
            preauth.add(&response);
            (token, session_key) = answer(&response[72 + 24..][..8], lazuli_testing::ACCOUNT, &password);
        }
        legs.push((request, response));
    }
    let key = Key::new(&session_key, &preauth.0);
    assert!(key.verifies(&legs[1].1), "the last answer is signed");
    Login { key, legs }
}

/// Sends a recorded request on a connection of its own, under the same message id and without any key.
async fn replay(server: &Server, recorded: &[u8]) -> Vec<u8> {
    let (mut attacker, _) = negotiated(server).await;
    while attacker.next < message_id(recorded) {
        attacker.call(ECHO, &[4, 0, 0, 0]).await.expect("an answer");
    }
    exchange(&mut attacker, recorded).await
}

#[tokio::test]
async fn a_replayed_request_of_another_connection_is_not_answered_under_a_nonce_that_was_used() {
    let server = Server::start(Options::default()).await;
    let (mut victim, preauth) = negotiated(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, None).await;
    for (command, body) in [(TREE_CONNECT, tree_connect("docs")), (ECHO, vec![4, 0, 0, 0])] {
        let request = victim.request(command, &body);
        let recorded = key.sign(request);
        let response = exchange(&mut victim, &recorded).await;
        assert!(key.verifies(&response), "there is a tag under this nonce");

        let replayed = replay(&server, &recorded).await;
        assert_eq!(message_id(&replayed), message_id(&response));
        assert!(!is_signed(&replayed), "{command}: a second tag under the same nonce");
    }
}

#[tokio::test]
async fn a_session_is_bound_to_a_second_connection_and_signs_there_with_a_key_of_its_own() {
    let server = Server::start(Options::default()).await;
    let (mut victim, preauth) = negotiated(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, None).await;
    let (mut second, preauth) = negotiated(&server).await;
    second.session = victim.session;
    let Login { key: channel_key, legs } = log_in(&server, &mut second, preauth, Some(&key)).await;
    let request = second.request(TREE_CONNECT, &tree_connect("docs"));
    let response = exchange(&mut second, &channel_key.sign(request)).await;
    assert!(status(&response) == 0 && channel_key.verifies(&response), "the session is on both connections");
    assert!(key.verifies(&legs[0].1), "before that its own key signs");
}

#[tokio::test]
async fn a_request_for_a_session_that_has_ended_on_its_connection_is_answered_signed() {
    const LOGOFF: u16 = 2;
    let server = Server::start(Options::default()).await;
    let (mut client, preauth) = negotiated(&server).await;
    let Login { key, .. } = log_in(&server, &mut client, preauth, None).await;
    for (command, body, expected) in
        [(LOGOFF, vec![4, 0, 0, 0], 0), (TREE_CONNECT, tree_connect("docs"), USER_SESSION_DELETED)]
    {
        let request = client.request(command, &body);
        let response = exchange(&mut client, &key.sign(request)).await;
        assert!(status(&response) == expected && key.verifies(&response), "{command}");
    }
}
