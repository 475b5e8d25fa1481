//! Limits for unauthenticated clients and for all clients together, and log entries.

use std::time::Duration;

use lazuli_smb::{Figures, Limits, Options};
use lazuli_store::{Commit, Mutation, Partition, Row, SpaceId};
use lazuli_testing::{AllRows, LogCapture};

use crate::SmbTestServer;
use crate::client::*;
use crate::opens::{OPEN_IF, OpenParameters, close, open};

const TOO_MANY_OPENED_FILES: u32 = 0xc000_011f;
/// Maximum frame length before login.
const MAX_FRAME: usize = 20 << 10;

async fn start(limits: Limits) -> SmbTestServer {
    SmbTestServer::start(Options { limits, ..Options::default() }).await
}

/// Waits until the figures satisfy a condition. The server notices disconnects with a delay.
async fn wait_for_figures(server: &SmbTestServer, is_reached: impl Fn(Figures) -> bool) {
    let waited = async {
        while !is_reached(server.smb.figures()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
    assert!(waited.is_ok(), "{:?}", server.smb.figures());
}

async fn unauthenticated_client(server: &SmbTestServer) -> SmbClient {
    let mut client = server.client().await;
    assert_eq!(client.negotiate(&[0x0210]).await.unwrap().status, 0);
    client
}

#[tokio::test]
async fn unauthenticated_clients_are_bounded_and_do_not_block_logins() {
    const MAX_UNAUTHENTICATED: usize = 8;
    let server = start(Limits { unauthenticated: MAX_UNAUTHENTICATED, ..Limits::default() }).await;
    let mut known = server.logged_in_client().await;
    wait_for_figures(&server, |figures| figures.unauthenticated == 0).await;
    let mut unauthenticated = vec![];
    for count in 1..=MAX_UNAUTHENTICATED {
        unauthenticated.push(unauthenticated_client(&server).await);
        assert_eq!(server.smb.figures().unauthenticated, count);
    }
    assert_eq!(known.connect_tree("docs").await, 0, "a client that has logged in goes on");

    // One more connection is accepted, and the oldest one is closed.
    let mut late = server.logged_in_client().await;
    assert!(unauthenticated.remove(0).receive().await.is_none());
    assert_eq!((known.connect_tree("docs").await, late.connect_tree("docs").await), (0, 0));
    let figures = server.smb.figures();
    assert_eq!((figures.unauthenticated, figures.dropped_unauthenticated), (MAX_UNAUTHENTICATED - 1, 1));

    // Connections that close free their slots, so no connection is dropped for the next ones.
    drop(unauthenticated);
    wait_for_figures(&server, |figures| figures.unauthenticated == 0).await;
    for _ in 0..MAX_UNAUTHENTICATED {
        unauthenticated_client_stays(&server).await;
    }
    assert_eq!(server.smb.figures().dropped_unauthenticated, 1);
    assert_eq!(known.connect_tree("docs").await, 0);
}

async fn unauthenticated_client_stays(server: &SmbTestServer) {
    let mut client = unauthenticated_client(server).await;
    assert!(client.call(ECHO, &[4, 0, 0, 0]).await.is_some());
}

#[tokio::test]
async fn a_client_counts_as_unauthenticated_after_logging_off() {
    const LOGOFF: u16 = 2;
    let server = start(Limits::default()).await;
    let mut client = server.logged_in_client().await;
    assert_eq!(server.smb.figures().unauthenticated, 0);
    assert_eq!(client.call(LOGOFF, &[4, 0, 0, 0]).await.unwrap().status, 0);
    wait_for_figures(&server, |figures| figures.unauthenticated == 1).await;
    client.session = 0;
    assert_eq!(client.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, 0);
    assert_eq!(server.smb.figures().unauthenticated, 0);
}

#[tokio::test]
async fn frames_before_a_login_are_few_and_short_and_grant_no_credits() {
    let server = start(Limits::default()).await;
    let echo = |client: &mut SmbClient, length: usize| {
        let mut frame = client.request(ECHO, &[4, 0, 0, 0]);
        frame.resize(length, 0);
        frame
    };
    let mut client = unauthenticated_client(&server).await;
    let frame = echo(&mut client, MAX_FRAME);
    client.send(&frame).await;
    let answer = client.receive().await.expect("an answer");
    assert_eq!(u16::from_le_bytes([answer[14], answer[15]]), 1, "credits");
    let frame = echo(&mut client, MAX_FRAME + 1);
    client.send(&frame).await;
    assert!(client.receive().await.is_none(), "hung up");

    let mut client = unauthenticated_client(&server).await;
    let mut answered = 0;
    while client.call(ECHO, &[4, 0, 0, 0]).await.is_some() {
        answered += 1;
        assert!(answered < 1000, "the number of frames is not limited");
    }
    assert!(answered > 200, "{answered}");

    // Keep-alives have no answer, and cost as much to read as a short frame.
    let keep_alives = b"\x85\0\0\0".repeat(100);
    let mut client = unauthenticated_client(&server).await;
    client.send_raw(&keep_alives).await;
    assert!(client.call(ECHO, &[4, 0, 0, 0]).await.is_none(), "hung up");
    let mut client = server.logged_in_client().await;
    client.send_raw(&keep_alives).await;
    assert!(client.call(ECHO, &[4, 0, 0, 0]).await.is_some());

    let mut client = server.logged_in_client().await;
    let frame = echo(&mut client, 10 * MAX_FRAME);
    client.send(&frame).await;
    let answer = client.receive().await.expect("a client that has logged in may send more");
    assert!(u16::from_le_bytes([answer[14], answer[15]]) > 1, "and gets credits");
}

#[tokio::test]
async fn sessions_tree_connects_opens_and_pipes_of_all_clients_are_bounded() {
    let limits = Limits { sessions: 2, trees: 3, opens: 2, pipes: 1, ..Limits::default() };
    let server = start(limits).await;
    let (mut first, mut second) = (server.logged_in_client().await, server.logged_in_client().await);
    let mut third = unauthenticated_client(&server).await;
    assert_eq!(third.session_setup(&ntlm_negotiate()).await.unwrap().status, INSUFFICIENT_RESOURCES);

    assert_eq!((first.connect_tree("docs").await, second.connect_tree("docs").await), (0, 0));
    let files = ["a", "b"].map(|name| OpenParameters { name, ..OPEN_IF });
    let a = open(&mut first, &files[0]).await.unwrap();
    open(&mut second, &files[1]).await.unwrap();
    let new = OpenParameters { name: "c", ..OPEN_IF };
    assert_eq!(open(&mut first, &new).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(close(&mut first, a).await, 0);
    open(&mut second, &new).await.unwrap();

    let docs = std::mem::replace(&mut second.tree, 0);
    assert_eq!(second.connect_tree("IPC$").await, 0);
    let pipe = OpenParameters { name: "srvsvc", ..OPEN_IF };
    open(&mut second, &pipe).await.unwrap();
    assert_eq!(open(&mut second, &pipe).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(first.connect_tree("docs").await, INSUFFICIENT_RESOURCES);
    second.tree = docs;

    let Figures { sessions, trees, opens, pipes, .. } = server.smb.figures();
    assert_eq!((sessions, trees, opens, pipes), (2, 3, 2, 1));
    drop((first, second));
    wait_for_figures(&server, |figures| {
        (figures.sessions, figures.trees, figures.opens, figures.pipes) == (0, 0, 0, 0)
    })
    .await;
    assert_eq!(third.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, 0);
}

#[tokio::test]
async fn one_account_cannot_use_all_opens_and_pipes() {
    let server = start(Limits { opens: 4, pipes: 4, ..Limits::default() }).await;
    let mut client = server.logged_in_client().await;
    for (share, names) in [("docs", ["a", "b", "c", "d"]), ("IPC$", ["srvsvc"; 4])] {
        client.tree = 0;
        assert_eq!(client.connect_tree(share).await, 0);
        for (index, name) in names.into_iter().enumerate() {
            let opened = open(&mut client, &OpenParameters { name, ..OPEN_IF }).await;
            assert_eq!(opened.err(), (index == 3).then_some(TOO_MANY_OPENED_FILES), "{share} {index}");
        }
    }
    assert_eq!(server.smb.figures().most_opens_of_account, 3);

    let mut other = unauthenticated_client(&server).await;
    assert_eq!(other.log_in(lazuli_testing::OTHER_ACCOUNT, &server.key().await).await, 0);
    assert_eq!(other.connect_tree("IPC$").await, 0);
    open(&mut other, &OpenParameters { name: "srvsvc", ..OPEN_IF }).await.unwrap();
    drop(client);
    wait_for_figures(&server, |figures| {
        (figures.opens, figures.most_opens_of_account, figures.pipes) == (0, 0, 1)
    })
    .await;
}

#[tokio::test]
async fn a_failed_login_is_counted_and_logged_with_peer_and_account() {
    let log = LogCapture::start();
    let server = start(Limits::default()).await;
    let wrong = ["mallory\nerror forged", lazuli_testing::ACCOUNT, &"x".repeat(500)];
    for user in wrong {
        assert_eq!(unauthenticated_client(&server).await.log_in(user, "wrong").await, LOGON_FAILURE);
    }
    assert_eq!(unauthenticated_client(&server).await.log_in("", "").await, ACCESS_DENIED);
    server.logged_in_client().await;
    assert_eq!(server.smb.figures().failed_logins, 4);
    let lines = log.lines_with("an SMB login failed");
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, account) in lines.iter().zip([r"mallory\nerror forged", wrong[1], &"x".repeat(64), ""]) {
        assert!(line.contains("WARN") && line.contains("peer=127.0.0.1:"), "{line}");
        assert!(line.contains(&format!("account=\"{account}\"")), "{line}");
    }
}

#[tokio::test]
async fn an_internal_error_is_logged_with_session_message_account_command_and_share() {
    let log = LogCapture::start();
    let server = start(Limits::default()).await;
    server.rest.put("/docs/f", "x-ms-type: file\nx-ms-content-length: 1", "").await.expect(201);
    let mut client = server.logged_in_client().await;
    assert_eq!(client.connect_tree("docs").await, 0);
    let store = &server.rest.store;
    let mut files = vec![];
    let collect = |space, partition: &bytes::Bytes, row: &Row| {
        let is_child = space != SpaceId::ROOT && partition.starts_with(b"d") && row.key.starts_with(b"n");
        files.extend(is_child.then(|| (Partition::new(space, partition.clone()), row.key.clone())));
        Ok(())
    };
    store.for_each_row(collect).unwrap();
    let [(partition, key)] = <[_; 1]>::try_from(files).unwrap();
    let commit = Commit {
        stamp: store.stamp(),
        epoch: store.space(partition.space).await.unwrap().unwrap().epoch,
        conditions: vec![],
        mutations: vec![Mutation::Put(key, "damaged".into())],
        valid_until: None,
        fence: None,
        bulk: false,
    };
    store.commit(&partition, commit).await.unwrap();

    assert!(open(&mut client, &OPEN_IF).await.is_err());
    let lines = log.lines_with("a row is damaged");
    let (session, message) = (client.session, client.next - 1);
    let span = format!(
        "smb{{session_id={session} message_id={message} account=\"lapis\" command=Create share=\"docs\"}}"
    );
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&span)), "{span} {lines:?}");
}
