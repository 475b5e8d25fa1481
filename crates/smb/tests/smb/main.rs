//! Connections over TCP: negotiation, logins, limits, and invalid input.

#![allow(clippy::unwrap_used)]

mod bounds;
mod client;
mod info;
mod opens;
mod signed;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::*;
use lazuli_account::Setting;
use lazuli_file::FileService;
use lazuli_protocol::{Account, Key, ServiceKind};
use lazuli_smb::{Limits, Options, SmbServer};
use lazuli_testing::TestServer;
use opens::{OPEN_IF, OpenParameters, SHARING_VIOLATION, open};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::net::TcpListener;

/// A server over SMB, and the one over REST for the same files.
struct SmbTestServer {
    address: SocketAddr,
    rest: TestServer<FileService>,
    smb: SmbServer,
}

impl SmbTestServer {
    async fn start(options: Options) -> Self {
        let make =
            |parts: lazuli_testing::Parts| FileService::new(parts.store, parts.extents, parts.accounts);
        let rest = lazuli_testing::start(ServiceKind::File, make).await;
        rest.put("/docs?restype=share", "", "").await.expect(201);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let smb = SmbServer::new(rest.service.clone(), rest.accounts.clone(), options);
        let serving = smb.clone();
        tokio::spawn(async move { serving.serve(listener, std::future::pending()).await });
        Self { address, rest, smb }
    }

    async fn client(&self) -> SmbClient {
        SmbClient::connect(self.address).await
    }

    /// Returns a client that has logged in. Its dialect does not sign unless required.
    async fn logged_in_client(&self) -> SmbClient {
        let mut client = self.client().await;
        client.negotiate(&[0x0210]).await.unwrap();
        assert_eq!(client.log_in(lazuli_testing::ACCOUNT, &self.key().await).await, 0);
        client
    }

    /// Returns the first key of the account, in the form that users type.
    async fn key(&self) -> String {
        let account = self.rest.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
        account.keys[0].to_base64()
    }
}

#[tokio::test]
async fn the_newest_offered_dialect_is_chosen() {
    let server = SmbTestServer::start(Options::default()).await;
    for (offered, chosen) in
        [(&[0x0202][..], 0x0202), (&[0x0202, 0x0210], 0x0210), (&[0x0210, 0x0300, 0x0302], 0x0302)]
    {
        let response = server.client().await.negotiate(offered).await.unwrap();
        assert_eq!(response.status, 0);
        assert_eq!(u16::from_le_bytes([response.body[4], response.body[5]]), chosen);
    }
    let response = server.client().await.negotiate(&[0x0100]).await.unwrap();
    assert_eq!(response.status, NOT_SUPPORTED);
    let response = server.client().await.negotiate(&[]).await.unwrap();
    assert_eq!(response.status, INVALID_PARAMETER);
    let response = server.client().await.negotiate(&[0x0311]).await.unwrap();
    assert_eq!(response.status, INVALID_PARAMETER, "3.1.1 without its contexts");
}

#[tokio::test]
async fn smb1_clients_are_asked_to_negotiate_smb2_or_are_disconnected() {
    let server = SmbTestServer::start(Options::default()).await;
    let frame = |names: &[&str]| {
        let names: Vec<u8> = names.iter().flat_map(|name| [&[2], name.as_bytes(), &[0]].concat()).collect();
        let length = (names.len() as u16).to_le_bytes();
        [b"\xffSMB\x72".as_slice(), &[0; 27], &[0], &length, &names].concat()
    };
    let mut client = server.client().await;
    client.send(&frame(&["NT LM 0.12", "SMB 2.002", "SMB 2.???"])).await;
    let answer = client.receive().await.expect("an answer");
    assert_eq!(answer[64 + 4..][..2], [0xff, 0x02]);
    client.request(NEGOTIATE, &[]);
    assert_eq!(client.negotiate(&[0x0210]).await.unwrap().status, 0);

    let mut client = server.client().await;
    client.send(&frame(&["NT LM 0.12"])).await;
    assert!(client.receive().await.is_none());
}

#[tokio::test]
async fn negotiate_must_be_first_and_must_not_be_repeated() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.client().await;
    client.call(ECHO, &[4, 0, 0, 0]).await;
    assert!(client.receive().await.is_none(), "hung up");

    let mut client = server.client().await;
    client.negotiate(&[0x0210]).await.unwrap();
    client.negotiate(&[0x0210]).await;
    assert!(client.receive().await.is_none(), "hung up");
}

#[tokio::test]
async fn only_a_client_with_an_account_key_can_log_in() {
    let server = SmbTestServer::start(Options::default()).await;
    let key = server.key().await;
    let account = lazuli_testing::ACCOUNT;
    for (user, password, status) in [
        (account, &key[..], 0),
        (&account.to_uppercase()[..], &key, 0),
        (account, "wrong", LOGON_FAILURE),
        ("nobody", &key, LOGON_FAILURE),
        (account, "", LOGON_FAILURE),
        ("", "", ACCESS_DENIED),
    ] {
        let mut client = server.client().await;
        client.negotiate(&[0x0210]).await.unwrap();
        assert_eq!(client.log_in(user, password).await, status, "{user} {password}");
        let status = if status == 0 { 0 } else { USER_SESSION_DELETED };
        assert_eq!(client.connect_tree("docs").await, status);
    }
}

#[tokio::test]
async fn a_session_ends_when_its_key_or_account_is_removed() {
    let server = SmbTestServer::start(Options::default()).await;
    let (account, accounts) = (lazuli_testing::ACCOUNT, &server.rest.accounts);
    let [stays, goes] = [lazuli_testing::key(), Key::from_bytes(b"another key".to_vec())];
    accounts.set_keys(account, vec![stays.clone(), goes.clone()]).await.unwrap();
    let log_in = async |key: &Key| {
        let mut client = server.client().await;
        client.negotiate(&[0x0210]).await.unwrap();
        assert_eq!(client.log_in(account, &key.to_base64()).await, 0);
        assert_eq!(client.connect_tree("docs").await, 0);
        client
    };
    let (mut first, mut second, mut silent) =
        (log_in(&stays).await, log_in(&goes).await, log_in(&goes).await);
    let mut again = log_in(&goes).await;
    assert_eq!(again.log_in(account, &stays.to_base64()).await, 0);
    let alone = OpenParameters { share: 0, ..OPEN_IF };
    open(&mut silent, &alone).await.unwrap();
    assert_eq!(open(&mut first, &alone).await.unwrap_err(), SHARING_VIOLATION);

    accounts.set_keys(account, vec![stays.clone()]).await.unwrap();
    assert_eq!(second.connect_tree("docs").await, USER_SESSION_DELETED);
    assert_eq!(again.connect_tree("docs").await, 0, "the key of the last login counts");
    let mut tries = 0;
    while open(&mut first, &alone).await.is_err() {
        tries += 1;
        assert!(tries < 500, "the opens of an ended session are closed even if its client sends no request");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    accounts.set(account, vec![Setting::BlobVersioning(true)]).await.unwrap();
    assert_eq!(first.connect_tree("docs").await, 0);
    accounts.set(account, vec![Setting::Disabled(true)]).await.unwrap();
    assert_eq!(first.connect_tree("docs").await, USER_SESSION_DELETED);
    accounts.set(account, vec![Setting::Disabled(false)]).await.unwrap();
    assert_eq!(first.connect_tree("docs").await, USER_SESSION_DELETED, "an ended session does not resume");

    let (mut first, known) = (log_in(&stays).await, accounts.get(account).await.unwrap().unwrap());
    accounts.remove(account).await.unwrap();
    accounts.add(Account::clone(&known)).await.unwrap();
    assert_eq!(
        first.connect_tree("docs").await,
        USER_SESSION_DELETED,
        "an account of the same name is a different account"
    );
}

#[tokio::test]
async fn a_peer_at_its_connection_limit_is_refused_until_it_closes_one() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let options = Options { limits, limit_loopback: true, ..Options::default() };
    let server = SmbTestServer::start(options).await;
    let mut clients = vec![];
    for _ in 0..3 {
        let mut client = server.client().await;
        client.negotiate(&[0x0210]).await.unwrap();
        clients.push(client);
    }
    // More attempts than the limit, because a refused connection must not count.
    for _ in 0..5 {
        assert!(server.client().await.receive().await.is_none(), "hung up");
    }
    clients.pop();
    let let_in = async { while server.client().await.negotiate(&[0x0210]).await.is_none() {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), let_in).await.unwrap();
}

#[tokio::test]
async fn required_encryption_and_signing_are_enforced() {
    let server =
        SmbTestServer::start(Options { require_encryption_on_loopback: true, ..Options::default() }).await;
    let mut client = server.client().await;
    client.negotiate(&[0x0210]).await.unwrap();
    assert_eq!(client.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, ACCESS_DENIED);

    let server = SmbTestServer::start(Options { require_signing: true, ..Options::default() }).await;
    let mut client = server.client().await;
    let response = client.negotiate(&[0x0210]).await.unwrap();
    assert_eq!(response.body[2], 3, "enabled and required");
    assert_eq!(client.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, 0);
    assert_eq!(client.connect_tree("docs").await, ACCESS_DENIED, "not signed");
}

#[tokio::test]
async fn invalid_tokens_and_unknown_sessions_are_refused() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.client().await;
    client.negotiate(&[0x0210]).await.unwrap();
    assert_eq!(client.session_setup(b"nonsense").await.unwrap().status, INVALID_PARAMETER);
    client.session = 77;
    assert_eq!(client.session_setup(b"nonsense").await.unwrap().status, USER_SESSION_DELETED);
    client.session = 78;
    assert_eq!(client.connect_tree("docs").await, USER_SESSION_DELETED);
}

#[tokio::test]
async fn an_unauthenticated_client_can_begin_only_a_few_logins() {
    let server = SmbTestServer::start(Options::default()).await;
    let mut client = server.client().await;
    client.negotiate(&[0x0210]).await.unwrap();
    for _ in 0..4 {
        client.session = 0;
        assert_eq!(client.session_setup(&ntlm_negotiate()).await.unwrap().status, MORE_PROCESSING_REQUIRED);
    }
    client.session = 0;
    assert_eq!(client.session_setup(&ntlm_negotiate()).await.unwrap().status, INSUFFICIENT_RESOURCES);
}

#[tokio::test]
async fn the_sessions_of_all_connections_are_bounded() {
    let server = SmbTestServer::start(Options {
        limits: Limits { sessions: 2, ..Limits::default() },
        ..Options::default()
    })
    .await;
    let (first, _second) = (server.logged_in_client().await, server.logged_in_client().await);
    let mut third = server.client().await;
    third.negotiate(&[0x0210]).await.unwrap();
    assert_eq!(third.session_setup(&ntlm_negotiate()).await.unwrap().status, INSUFFICIENT_RESOURCES);
    drop(first);
    let let_in = async {
        loop {
            third.session = 0;
            if third.session_setup(&ntlm_negotiate()).await.unwrap().status == MORE_PROCESSING_REQUIRED {
                break;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), let_in).await.unwrap();
}

/// Number of panics in any task.
static PANICS: AtomicUsize = AtomicUsize::new(0);

// Sends requests of all commands with modified bytes, truncated and extended, alone and in compounds, from a
// client that has logged in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_input_makes_the_server_panic() {
    const ROUNDS: usize = 1500;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        before(panic);
    }));
    let server = SmbTestServer::start(Options::default()).await;
    let mut rng = StdRng::seed_from_u64(11);
    let mut client = server.logged_in_client().await;
    client.connect_tree("docs").await;
    for round in 0..ROUNDS {
        let mut frame = vec![];
        for _ in 0..rng.random_range(1..4) {
            let command = if rng.random_ratio(1, 3) { CREATE } else { rng.random_range(1..20) };
            let mut body =
                if command == CREATE { create_body(rng.random_range(0..5)) } else { other_body(command) };
            for _ in 0..rng.random_range(0..8) {
                let at = rng.random_range(0..body.len());
                body[at] = rng.random();
            }
            body.truncate(rng.random_range(0..4 * body.len()));
            let mut request = client.request(command, &body);
            request.resize(request.len().next_multiple_of(8), 0);
            let next = if rng.random_ratio(1, 9) { rng.random() } else { request.len() as u32 };
            request[20..24].copy_from_slice(&next.to_le_bytes());
            request[16] |= if rng.random() { 4 } else { 0 };
            frame.extend(request);
        }
        if rng.random_ratio(1, 3) {
            let at = rng.random_range(0..frame.len());
            frame[at] = rng.random();
        }
        // In most frames the last message is marked as last.
        let last = frame
            .rchunks(8)
            .position(|part| part.starts_with(b"\xfeSMB"))
            .map(|at| frame.len() - 8 * (at + 1));
        if let Some(last) = last.filter(|_| rng.random_ratio(5, 6)) {
            frame[last + 20..last + 24].fill(0);
        }
        let sent = client.send(&frame).await;
        if !sent || round % 16 == 15 {
            client = server.logged_in_client().await;
            client.connect_tree("docs").await;
        }
    }
    let mut client = server.logged_in_client().await;
    assert_eq!(client.connect_tree("docs").await, 0, "the server still serves other clients");
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

/// Returns the body of a CREATE that opens or creates a file with all access.
fn create_body(number: u8) -> Vec<u8> {
    let name = [b'f', 0, b'0' + number, 0];
    let sizes = [&[57, 0, 0, 0][..], &[2, 0, 0, 0], &[0; 16]].concat();
    let wishes = [0x0200_0000_u32, 0x80, 7, 3, 0].map(u32::to_le_bytes).concat();
    [&sizes[..], &wishes, &[120, 0, 4, 0], &[0; 8], &name].concat()
}

/// Returns the body of any other request, about the open of the previous request if the command needs one.
fn other_body(command: u16) -> Vec<u8> {
    const SIZES: [u16; 20] = [36, 25, 4, 9, 4, 57, 24, 24, 49, 49, 48, 57, 4, 4, 33, 32, 41, 33, 24, 36];
    let mut body = vec![0; 96];
    body[..2].copy_from_slice(&SIZES[usize::from(command)].to_le_bytes());
    let file = match command {
        8 | 9 | 17 => 16,
        16 => 24,
        _ => 8,
    };
    if command > CREATE {
        body[file..file + 16].fill(0xff);
    }
    body
}

#[tokio::test]
async fn invalid_and_too_long_frames_end_the_connection() {
    let server = SmbTestServer::start(Options::default()).await;
    for bytes in [&[0, 0xff, 0xff, 0xff][..], &[0x81, 0, 0, 0], &[0, 0, 0, 4, 1, 2, 3, 4], &[0, 0, 0, 0]] {
        let mut client = server.client().await;
        client.send_raw(bytes).await;
        assert!(client.receive().await.is_none(), "{bytes:?}");
    }
}
