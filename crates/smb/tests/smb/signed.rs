//! Signatures of SMB 3.1.1 with AES-GMAC, and attacks with recorded messages.
//!
//! The nonce of GMAC is the message id and the direction. Two different messages under one key and one nonce
//! reveal the authentication key. So no request may make the server sign twice under one message id.

use std::collections::HashMap;

use lazuli_smb::Options;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::{digest, hmac};

use crate::SmbTestServer;
use crate::client::*;

const SIGNATURE: std::ops::Range<usize> = 48..64;
const SIGNED: u8 = 8;
const GUID: [u8; 16] = [7; 16];

/// The signing key of one channel.
struct GmacKey(LessSafeKey);

impl GmacKey {
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

/// Returns whether a message has a signature. The flag alone reveals nothing.
fn is_signed(message: &[u8]) -> bool {
    message[SIGNATURE] != [0; 16]
}

/// Responses signed with one key, by message id, as an observer of the network records them.
#[derive(Default)]
struct ObservedResponses(HashMap<u64, Vec<u8>>);

impl ObservedResponses {
    /// Adds a response. Panics if another one was signed with this key under the same nonce.
    fn add(&mut self, key: &GmacKey, answer: &[u8]) {
        if key.verifies(answer) {
            let first = self.0.entry(message_id(answer)).or_insert_with(|| answer.to_vec());
            assert_eq!(first, answer, "two messages under one nonce");
        }
    }
}

fn status(message: &[u8]) -> u32 {
    u32::from_le_bytes(message[8..12].try_into().unwrap())
}

fn message_id(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[24..32].try_into().unwrap())
}

/// The preauthentication hash.
#[derive(Clone, Copy)]
struct Preauth([u8; 64]);

impl Preauth {
    fn add(&mut self, message: &[u8]) {
        let hash = digest::digest(&digest::SHA512, &[&self.0[..], message].concat());
        self.0.copy_from_slice(hash.as_ref());
    }
}

/// Sends a frame and returns the response.
async fn exchange(client: &mut SmbClient, frame: &[u8]) -> Vec<u8> {
    assert!(client.send(frame).await);
    client.receive().await.expect("an answer")
}

const CMAC: u8 = 1;
const GMAC: u8 = 2;

/// Returns a connection with dialect 3.1.1 that signs with GMAC.
async fn negotiate_gmac(server: &SmbTestServer) -> (SmbClient, Preauth) {
    negotiate_signing(server, GMAC).await
}

/// Returns a connection with dialect 3.1.1 that signs with an algorithm.
async fn negotiate_signing(server: &SmbTestServer, signing: u8) -> (SmbClient, Preauth) {
    // SHA-512, then how messages are signed.
    let contexts =
        [&[1, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0][..], &[8, 0, 4, 0, 0, 0, 0, 0, 1, 0, signing, 0]];
    negotiate_with_contexts(server, &contexts).await
}

/// Returns a connection with dialect 3.1.1 that negotiates these contexts.
async fn negotiate_with_contexts(server: &SmbTestServer, contexts: &[&[u8]]) -> (SmbClient, Preauth) {
    let (mut client, mut preauth) = (server.client().await, Preauth([0; 64]));
    let body = [
        &[36, 0, 1, 0, 1, 0, 0, 0, 0x7f, 0, 0, 0][..],
        &GUID,
        &[104, 0, 0, 0, contexts.len() as u8, 0, 0, 0, 0x11, 0x03, 0, 0],
        &contexts.concat(),
    ]
    .concat();
    let request = client.request(NEGOTIATE, &body);
    let response = exchange(&mut client, &request).await;
    assert_eq!(status(&response), 0);
    preauth.add(&request);
    preauth.add(&response);
    (client, preauth)
}

/// The messages of one login, and the resulting key.
struct Login {
    key: GmacKey,
    /// Each request with its response.
    exchanges: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The purpose of a login.
#[derive(Clone, Copy)]
enum LoginPurpose<'a> {
    /// Sets up a new session.
    New,
    /// Reauthenticates the session of the connection, which has this key.
    Again(&'a GmacKey),
    /// Binds a session of another connection, which has this key.
    Bind(&'a GmacKey),
}

impl LoginPurpose<'_> {
    /// Returns a request with a token, signed if there is a key.
    fn request(self, client: &mut SmbClient, token: &[u8]) -> Vec<u8> {
        let request = client.request(SESSION_SETUP, &session_setup(token, matches!(self, Self::Bind(_))));
        match self {
            Self::New => request,
            Self::Again(key) | Self::Bind(key) => key.sign(request),
        }
    }
}

/// Logs in on a connection.
async fn log_in(
    server: &SmbTestServer,
    client: &mut SmbClient,
    mut preauth: Preauth,
    purpose: LoginPurpose<'_>,
) -> Login {
    let (password, mut token, mut session_key) = (server.key().await, ntlm_negotiate(), [0; 16]);
    let mut exchanges = vec![];
    for expected in [MORE_PROCESSING_REQUIRED, 0] {
        let request = purpose.request(client, &token);
        let response = exchange(client, &request).await;
        assert_eq!(status(&response), expected);
        client.session = u64::from_le_bytes(response[40..48].try_into().unwrap());
        preauth.add(&request);
        if expected != 0 {
            preauth.add(&response);
            (token, session_key) =
                ntlm_authenticate(&response[72 + 24..][..8], lazuli_testing::ACCOUNT, &password);
        }
        exchanges.push((request, response));
    }
    let key = GmacKey::new(&session_key, &preauth.0);
    let signs = if let LoginPurpose::Again(key) = purpose { key } else { &key };
    assert!(signs.verifies(&exchanges[1].1), "the last answer is signed");
    Login { key, exchanges }
}

/// Binds a session to a new connection, and uses it there.
async fn bind(server: &SmbTestServer, session: u64, key: &GmacKey) -> (SmbClient, Login) {
    let (mut client, preauth) = negotiate_gmac(server).await;
    client.session = session;
    let login = log_in(server, &mut client, preauth, LoginPurpose::Bind(key)).await;
    let request = client.request(TREE_CONNECT, &tree_connect("docs"));
    let response = exchange(&mut client, &login.key.sign(request)).await;
    assert!(status(&response) == 0 && login.key.verifies(&response), "the session is on the connection");
    (client, login)
}

/// Replays a recorded request on a connection, under the same message id and without any key.
async fn replay_on(attacker: &mut SmbClient, recorded: &[u8]) -> Vec<u8> {
    while attacker.next < message_id(recorded) {
        attacker.call(ECHO, &[4, 0, 0, 0]).await.expect("an answer");
    }
    attacker.next += 1;
    exchange(attacker, recorded).await
}

/// Replays a recorded request on a new connection.
async fn replay(server: &SmbTestServer, recorded: &[u8]) -> Vec<u8> {
    replay_on(&mut negotiate_gmac(server).await.0, recorded).await
}

#[tokio::test]
async fn a_request_replayed_on_another_connection_gets_no_second_signature_under_its_nonce() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    for (command, body) in [(TREE_CONNECT, tree_connect("docs")), (ECHO, vec![4, 0, 0, 0])] {
        let request = victim.request(command, &body);
        let recorded = key.sign(request);
        let response = exchange(&mut victim, &recorded).await;
        assert!(key.verifies(&response), "a message was signed under this nonce");

        let replayed = replay(&server, &recorded).await;
        assert_eq!(message_id(&replayed), message_id(&response));
        assert!(!is_signed(&replayed), "{command}: a second tag under the same nonce");
    }
}

#[tokio::test]
async fn a_session_bound_to_a_second_connection_signs_there_with_another_key() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let (_second, Login { exchanges, .. }) = bind(&server, victim.session, &key).await;
    assert!(key.verifies(&exchanges[0].1), "the session's own key signs until then");
}

#[tokio::test]
async fn a_request_for_an_ended_session_gets_a_signed_response_on_its_connection() {
    const LOGOFF: u16 = 2;
    let server = SmbTestServer::start(Options::default()).await;
    let (mut client, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut client, preauth, LoginPurpose::New).await;
    for (command, body, expected) in
        [(LOGOFF, vec![4, 0, 0, 0], 0), (TREE_CONNECT, tree_connect("docs"), USER_SESSION_DELETED)]
    {
        let request = client.request(command, &body);
        let response = exchange(&mut client, &key.sign(request)).await;
        assert!(status(&response) == expected && key.verifies(&response), "{command}");
    }
}

#[tokio::test]
async fn all_binds_of_a_session_sign_the_same_bytes_under_one_nonce() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, exchanges } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let mut observed = ObservedResponses::default();
    observed.add(&key, &exchanges[1].1);
    let mut bound = vec![];
    for _ in 0..3 {
        let (client, login) = bind(&server, victim.session, &key).await;
        assert!(key.verifies(&login.exchanges[0].1), "the client would drop it");
        login.exchanges.iter().for_each(|(_, answer)| observed.add(&key, answer));
        bound.push(client);
    }
}

#[tokio::test]
async fn a_replayed_bind_gets_the_same_bytes_or_no_signature() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, exchanges } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let mut observed = ObservedResponses::default();
    observed.add(&key, &exchanges[1].1);
    let (_second, Login { exchanges, .. }) = bind(&server, victim.session, &key).await;
    exchanges.iter().for_each(|(_, answer)| observed.add(&key, answer));
    let [(first, challenge), (last, _)] = &exchanges[..] else { panic!("two requests") };

    let (mut attacker, _) = negotiate_gmac(&server).await;
    let answer = replay_on(&mut attacker, first).await;
    assert_eq!(&answer, challenge, "the bytes are known");
    let answer = replay_on(&mut attacker, last).await;
    assert!(status(&answer) != 0 && !is_signed(&answer), "a response to the challenge is accepted only once");
    assert_eq!(
        server.smb.figures().unauthenticated,
        1,
        "no client has logged in on the attacker's connection"
    );

    observed.add(&key, &replay(&server, last).await);
    let (mut attacker, _) = negotiate_signing(&server, CMAC).await;
    let answer = replay_on(&mut attacker, first).await;
    assert_ne!(status(&answer), MORE_PROCESSING_REQUIRED, "the replay is refused");
    assert!(!is_signed(&answer), "a second message under the nonce of the challenge");

    bind(&server, victim.session, &key).await;
}

#[tokio::test]
async fn a_diverted_bind_gets_no_signature_under_the_nonce_of_the_login() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, exchanges } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let (mut second, _) = negotiate_gmac(&server).await;
    second.session = victim.session;
    let request = LoginPurpose::Bind(&key).request(&mut second, &ntlm_negotiate());
    let challenge = exchange(&mut second, &request).await;
    let (token, _) =
        ntlm_authenticate(&challenge[72 + 24..][..8], lazuli_testing::ACCOUNT, &server.key().await);
    let last = LoginPurpose::Bind(&key).request(&mut second, &token);
    // The server receives this request for the first time, on a connection where it is invalid.
    let diverted = replay(&server, &last).await;
    assert_eq!(message_id(&diverted), message_id(&exchanges[1].1), "the login was answered under this id");
    assert!(status(&diverted) != 0 && !is_signed(&diverted));
}

#[tokio::test]
async fn a_replayed_reauthentication_gets_no_signature() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let Login { exchanges, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::Again(&key)).await;
    for (request, response) in exchanges {
        assert!(key.verifies(&response), "a message was signed under this nonce");
        let replayed = replay(&server, &request).await;
        assert_eq!(status(&replayed), USER_SESSION_DELETED);
        assert!(!is_signed(&replayed), "a second tag under the same nonce");
    }
}

#[tokio::test]
async fn a_bind_on_the_session_s_own_connection_cannot_be_replayed_on_another() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let mut observed = ObservedResponses::default();
    let request = LoginPurpose::Bind(&key).request(&mut victim, b"no token");
    observed.add(&key, &exchange(&mut victim, &request).await);
    assert_eq!(observed.0.len(), 1, "a message was signed under this nonce");
    observed.add(&key, &replay_on(&mut negotiate_signing(&server, CMAC).await.0, &request).await);
}

#[tokio::test]
async fn a_request_with_a_wrong_signature_gets_an_unsigned_refusal() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let request = victim.request(TREE_CONNECT, &tree_connect("docs"));
    let mut forged = key.sign(request);
    forged[SIGNATURE.start] ^= 1;
    let answer = exchange(&mut victim, &forged).await;
    assert!(status(&answer) == ACCESS_DENIED && !is_signed(&answer));
}

// Clients must learn the reason. By then they have used the message id of the login for other binds, which
// succeeded.
#[tokio::test]
async fn the_refusal_of_a_bind_above_the_limit_is_signed() {
    let server = SmbTestServer::start(Options::default()).await;
    let (mut victim, preauth) = negotiate_gmac(&server).await;
    let Login { key, .. } = log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let mut bound = vec![];
    for _ in 1..32 {
        bound.push(bind(&server, victim.session, &key).await);
    }
    let (mut client, _) = negotiate_gmac(&server).await;
    client.session = victim.session;
    let request = LoginPurpose::Bind(&key).request(&mut client, &ntlm_negotiate());
    let challenge = exchange(&mut client, &request).await;
    let (token, _) =
        ntlm_authenticate(&challenge[72 + 24..][..8], lazuli_testing::ACCOUNT, &server.key().await);
    let request = LoginPurpose::Bind(&key).request(&mut client, &token);
    let refusal = exchange(&mut client, &request).await;
    assert!(status(&refusal) == INSUFFICIENT_RESOURCES && key.verifies(&refusal));
}

#[tokio::test]
async fn reauthentication_of_an_encrypted_session_requires_encryption_or_signature() {
    let server =
        SmbTestServer::start(Options { require_encryption_on_loopback: true, ..Options::default() }).await;
    // SHA-512, then AES-128-GCM, then how messages are signed.
    let contexts = [
        &[1, 0, 6, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0][..],
        &[2, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0],
        &[8, 0, 4, 0, 0, 0, 0, 0, 1, 0, GMAC, 0],
    ];
    let (mut victim, preauth) = negotiate_with_contexts(&server, &contexts).await;
    log_in(&server, &mut victim, preauth, LoginPurpose::New).await;
    let request = LoginPurpose::New.request(&mut victim, &ntlm_negotiate());
    let answer = exchange(&mut victim, &request).await;
    assert_eq!(status(&answer), ACCESS_DENIED);
}
