//! What strangers can have, what all clients together can have, and what is logged of logins that fail.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lazuli_smb::{Figures, Limits, Options};

use crate::Server;
use crate::client::*;
use crate::opens::{Asked, OPEN_IF, close, open};

const TOO_MANY_OPENED_FILES: u32 = 0xc000_011f;
/// The longest frame before a login.
const FIRST_FRAME: usize = 20 << 10;

async fn start(limits: Limits) -> Server {
    Server::start(Options { limits, ..Options::default() }).await
}

/// Waits until the figures are so. What a client has given back is counted when the server has noticed.
async fn until(server: &Server, is_so: impl Fn(Figures) -> bool) {
    let waited = async {
        while !is_so(server.smb.figures()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waited).await;
    assert!(waited.is_ok(), "{:?}", server.smb.figures());
}

async fn stranger(server: &Server) -> Client {
    let mut client = server.client().await;
    assert_eq!(client.negotiate(&[0x0210]).await.unwrap().status, 0);
    client
}

#[tokio::test]
async fn strangers_are_bounded_together_and_keep_nobody_from_logging_in() {
    const STRANGERS: usize = 8;
    let server = start(Limits { strangers: STRANGERS, ..Limits::default() }).await;
    let mut known = server.known_client().await;
    until(&server, |figures| figures.strangers == 0).await;
    let mut strangers = vec![];
    for count in 1..=STRANGERS {
        strangers.push(stranger(&server).await);
        assert_eq!(server.smb.figures().strangers, count);
    }
    assert_eq!(known.connect_tree("docs").await, 0, "a client that has logged in goes on");

    // One more is let in, and the oldest is hung up on.
    let mut late = server.known_client().await;
    assert!(strangers.remove(0).receive().await.is_none());
    assert_eq!((known.connect_tree("docs").await, late.connect_tree("docs").await), (0, 0));
    let figures = server.smb.figures();
    assert_eq!((figures.strangers, figures.dropped_strangers), (STRANGERS - 1, 1));

    // Strangers that leave make room: nobody is dropped for the next ones.
    drop(strangers);
    until(&server, |figures| figures.strangers == 0).await;
    for _ in 0..STRANGERS {
        strangers_stay(&server).await;
    }
    assert_eq!(server.smb.figures().dropped_strangers, 1);
    assert_eq!(known.connect_tree("docs").await, 0);
}

async fn strangers_stay(server: &Server) {
    let mut client = stranger(server).await;
    assert!(client.call(ECHO, &[4, 0, 0, 0]).await.is_some());
}

#[tokio::test]
async fn a_client_that_has_logged_off_is_a_stranger_again() {
    const LOGOFF: u16 = 2;
    let server = start(Limits::default()).await;
    let mut client = server.known_client().await;
    assert_eq!(server.smb.figures().strangers, 0);
    assert_eq!(client.call(LOGOFF, &[4, 0, 0, 0]).await.unwrap().status, 0);
    until(&server, |figures| figures.strangers == 1).await;
    client.session = 0;
    assert_eq!(client.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, 0);
    assert_eq!(server.smb.figures().strangers, 0);
}

#[tokio::test]
async fn frames_before_a_login_are_short_few_and_earn_no_credits() {
    let server = start(Limits::default()).await;
    let echo = |client: &mut Client, length: usize| {
        let mut frame = client.request(ECHO, &[4, 0, 0, 0]);
        frame.resize(length, 0);
        frame
    };
    let mut client = stranger(&server).await;
    let frame = echo(&mut client, FIRST_FRAME);
    client.send(&frame).await;
    let answer = client.receive().await.expect("an answer");
    assert_eq!(u16::from_le_bytes([answer[14], answer[15]]), 1, "credits");
    let frame = echo(&mut client, FIRST_FRAME + 1);
    client.send(&frame).await;
    assert!(client.receive().await.is_none(), "hung up");

    let mut client = stranger(&server).await;
    let mut answered = 0;
    while client.call(ECHO, &[4, 0, 0, 0]).await.is_some() {
        answered += 1;
        assert!(answered < 1000, "without end");
    }
    assert!(answered > 200, "{answered}");

    let mut client = server.known_client().await;
    let frame = echo(&mut client, 10 * FIRST_FRAME);
    client.send(&frame).await;
    let answer = client.receive().await.expect("a client that has logged in may send more");
    assert!(u16::from_le_bytes([answer[14], answer[15]]) > 1, "and gets credits");
}

#[tokio::test]
async fn sessions_shares_files_and_pipes_are_bounded_for_all_clients_together() {
    let limits = Limits { sessions: 2, trees: 3, opens: 2, pipes: 1, ..Limits::default() };
    let server = start(limits).await;
    let (mut first, mut second) = (server.known_client().await, server.known_client().await);
    let mut third = stranger(&server).await;
    assert_eq!(third.session_setup(&offer()).await.unwrap().status, INSUFFICIENT_RESOURCES);

    assert_eq!((first.connect_tree("docs").await, second.connect_tree("docs").await), (0, 0));
    let files = ["a", "b"].map(|name| Asked { name, ..OPEN_IF });
    let a = open(&mut first, &files[0]).await.unwrap();
    open(&mut second, &files[1]).await.unwrap();
    let new = Asked { name: "c", ..OPEN_IF };
    assert_eq!(open(&mut first, &new).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(close(&mut first, a).await, 0);
    open(&mut second, &new).await.unwrap();

    let docs = std::mem::replace(&mut second.tree, 0);
    assert_eq!(second.connect_tree("IPC$").await, 0);
    let pipe = Asked { name: "srvsvc", ..OPEN_IF };
    open(&mut second, &pipe).await.unwrap();
    assert_eq!(open(&mut second, &pipe).await.unwrap_err(), TOO_MANY_OPENED_FILES);
    assert_eq!(first.connect_tree("docs").await, INSUFFICIENT_RESOURCES);
    second.tree = docs;

    let Figures { sessions, trees, opens, pipes, .. } = server.smb.figures();
    assert_eq!((sessions, trees, opens, pipes), (2, 3, 2, 1));
    drop((first, second));
    until(&server, |figures| (figures.sessions, figures.trees, figures.opens, figures.pipes) == (0, 0, 0, 0))
        .await;
    assert_eq!(third.log_in(lazuli_testing::ACCOUNT, &server.key().await).await, 0);
}

/// Log lines of the current thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_failed_login_is_logged_as_a_warning_with_peer_and_account_and_counted() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let server = start(Limits::default()).await;
    let wrong = ["mallory\nerror forged", lazuli_testing::ACCOUNT, &"x".repeat(500)];
    for user in wrong {
        assert_eq!(stranger(&server).await.log_in(user, "wrong").await, LOGON_FAILURE);
    }
    assert_eq!(stranger(&server).await.log_in("", "").await, ACCESS_DENIED);
    server.known_client().await;
    assert_eq!(server.smb.figures().failed_logins, 4);
    let lines = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = lines.lines().filter(|line| line.contains("an SMB login failed")).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for (line, account) in lines.iter().zip([r"mallory\nerror forged", wrong[1], &"x".repeat(64), ""]) {
        assert!(line.contains("WARN") && line.contains("peer=127.0.0.1:"), "{line}");
        assert!(line.contains(&format!("account=\"{account}\"")), "{line}");
    }
}
