//! Tests of ending connections and sessions that a client could not observe, or not in time.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use lazuli_concurrency::{Caching, FileAccess, FileUse, ShareMode, Timestamp};
use lazuli_file::handles::{CreateRequest, Disposition, Kind};
use lazuli_file::opens::{CacheKey, CacheRequest, Client, OpenLocation, OpenRequest};
use lazuli_protocol::ServiceKind;
use lazuli_testing::TestServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::connection::SmbConnection;
use crate::connection::outgoing::Frame;
use crate::crypto::{SigningAlgorithm, SigningKey};
use crate::session::Session;
use crate::session::open::{Durable, LeaseKey, Open};
use crate::wire::FileId;
use crate::wire::cursor::ByteWriter;
use crate::wire::header::{MessageHeader, SmbCommand};
use crate::wire::status::Status;

/// A server with a share, without a listening port.
struct TestBed {
    server: Arc<ServerState>,
    rest: TestServer<FileService>,
}

impl TestBed {
    async fn new() -> Self {
        let make =
            |parts: lazuli_testing::Parts| FileService::new(parts.store, parts.extents, parts.accounts);
        let rest = lazuli_testing::start(ServiceKind::File, make).await;
        rest.put("/docs?restype=share", "", "").await.expect(201);
        let SmbServer(server) =
            SmbServer::new(rest.service.clone(), rest.accounts.clone(), Options::default());
        Self { server, rest }
    }

    /// Returns a connection, and the queue of frames sent on it.
    fn connection(&self) -> (Arc<SmbConnection>, UnboundedReceiver<Frame>) {
        let (outgoing, sent) = unbounded_channel();
        let peer = ([127, 0, 0, 1], 1).into();
        let connection =
            SmbConnection::new(self.server.next_id(), (peer, None), outgoing, CancellationToken::new());
        (Arc::new(connection), sent)
    }

    fn session(&self, connection: &Arc<SmbConnection>) -> Arc<Session> {
        let session = Arc::new(Session::new(
            self.server.next_id(),
            connection,
            self.server.session_limit.acquire().unwrap(),
        ));
        assert_eq!(connection.add_session(&self.server, session.clone()), Ok(()));
        session
    }

    /// Returns a durable open of a file. Creates the file if it does not exist.
    async fn open(&self, session: &Arc<Session>, path: &str, cache: CacheRequest) -> Arc<Open> {
        let account = self.rest.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
        let tree = self.server.files.connect(&account, "docs").await.unwrap();
        let client = Client { session: session.id, ip: [127, 0, 0, 1].into(), name: String::new() };
        let all = FileAccess::READ | FileAccess::WRITE;
        let open = OpenRequest {
            mode: ShareMode { access: all, share: all },
            attribute_open: Default::default(),
            overwrites: false,
            delete_on_close: false,
            cache,
            client,
            place: OpenLocation::default(),
            at: Timestamp::default(),
            breaks: Some(self.server.handles.breaks.clone()),
            waits: None,
        };
        let create = CreateRequest {
            path: path.into(),
            disposition: Disposition::OpenIf,
            kind: Kind::File,
            attributes: 0,
            allocation: 0,
            permission: None,
            snapshot: None,
            if_read_only: None,
            open,
        };
        let opened = self.server.files.create(&tree, create).await.unwrap().opened;
        let lease = match cache {
            CacheRequest::Lease { client, key, .. } => Some(LeaseKey { client, key }),
            _ => None,
        };
        if let Some(key) = lease {
            self.server.handles.join_lease(session, key, opened.id, opened.epoch, None).unwrap();
        }
        let id = FileId {
            persistent: self.server.handles.persistent_id(opened.id),
            volatile: self.server.next_id(),
        };
        let durable = Durable { timeout: Duration::from_secs(60), create_guid: None, client: 0 };
        let open = Arc::new(Open {
            file: Some(opened.id),
            lease,
            durable: Some(durable),
            ..Open::new(
                id,
                session.add_tree_connect(Some(tree), self.server.tree_limit.acquire().unwrap()).unwrap(),
                session,
                self.server.open_limit.acquire(&account).unwrap().into(),
            )
        });
        self.server.handles.add(&open);
        session.add_open(open.clone());
        open
    }
}

/// Waits until a frame is sent on a connection.
async fn receive_break(bed: &TestBed, sent: &mut UnboundedReceiver<Frame>) {
    while sent.try_recv().is_err() {
        handles::send_queued_breaks(&bed.server);
        tokio::task::yield_now().await;
    }
}

const BATCH: CacheRequest = CacheRequest::Oplock(Caching::RWH);

fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn a_vanished_client_is_detected_within_two_minutes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (_client, (stream, _)) = (client.unwrap(), accepted.unwrap());
    configure_socket(&stream);
    assert!(stream.nodelay().unwrap());
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    let idle = sockopt::tcp_keepidle(&stream).unwrap();
    let probing = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
    assert!(idle + probing < Duration::from_secs(120));
    let unread = Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into());
    assert_eq!(unread, idle + probing, "unacknowledged data is limited to the same time as idle connections");
}

#[tokio::test]
async fn durable_opens_can_be_reconnected_while_their_session_is_ending() {
    let bed = TestBed::new().await;
    let (connection, _sent) = bed.connection();
    let session = bed.session(&connection);
    let mut opens = vec![];
    for path in ["a", "b", "c"] {
        let open = bed.open(&session, path, BATCH).await;
        bed.server.files.write_at(open.file.unwrap(), 0, "dirty".into(), false).await.unwrap();
        opens.push(open);
    }
    let (mut first, mut second) = (pin!(connection.end(&bed.server)), pin!(session.end(&bed.server, true)));
    assert!(!is_ready(first.as_mut()), "the dirty data must be flushed first");
    for open in &opens {
        assert!(bed.server.handles.find_disconnected(open.id.persistent).is_some());
    }
    assert!(bed.server.sessions.get(session.id).is_none());
    assert!(bed.server.sessions.get_including_ending(session.id).is_some());
    assert!(!is_ready(second.as_mut()), "a session that replaces it waits until it has ended");
    first.await;
    second.await;
    assert!(bed.server.sessions.get_including_ending(session.id).is_none());
}

#[tokio::test]
async fn no_session_begins_on_a_connection_that_has_ended() {
    let bed = TestBed::new().await;
    let (connection, _sent) = bed.connection();
    connection.end(&bed.server).await;
    let late = Arc::new(Session::new(
        bed.server.next_id(),
        &connection,
        bed.server.session_limit.acquire().unwrap(),
    ));
    let begun = connection.add_session(&bed.server, late.clone());
    assert_eq!(begun, Err(Status::INSUFFICIENT_RESOURCES));
    assert!(bed.server.sessions.get(late.id).is_none(), "a session added now would never end");
}

#[tokio::test]
async fn a_client_without_sessions_is_forgotten() {
    let bed = TestBed::new().await;
    let (connection, _sent) = bed.connection();
    let lease = CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH };
    let (first, second) = (bed.session(&connection), bed.session(&connection));
    let open = bed.open(&first, "a", lease).await;
    bed.open(&second, "a", lease).await;
    for (session, left) in [(&first, 1), (&second, 0)] {
        session.end(&bed.server, false).await;
        assert_eq!(bed.server.handles.clients(), left);
    }
    // A CREATE that was in progress when its session ended.
    bed.server.handles.join_lease(&first, open.lease.unwrap(), open.file.unwrap(), 0, None).unwrap();
    assert_eq!(bed.server.handles.clients(), 0);
}

#[tokio::test]
async fn an_unacknowledged_break_is_sent_on_another_connection_when_its_connection_ends() {
    let bed = TestBed::new().await;
    for cache in [BATCH, CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH }] {
        let ((first, mut on_first), (second, mut on_second)) = (bed.connection(), bed.connection());
        let session = bed.session(&first);
        let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
        second.bind_session(&session, Arc::new(key)).unwrap();
        let open = bed.open(&session, "a", cache).await;
        let (elsewhere, _sent) = bed.connection();
        let other = bed.session(&elsewhere);
        let mut opening = pin!(bed.open(&other, "a", CacheRequest::None));
        tokio::select! {
            _ = opening.as_mut() => panic!("the open does not wait for the break"),
            () = receive_break(&bed, &mut on_first) => {}
        }
        assert!(on_second.try_recv().is_err(), "the break is sent once");
        first.end(&bed.server).await;
        assert!(on_second.try_recv().is_ok(), "{cache:?}");
        bed.server.files.opens().close(open.file.unwrap());
        opening.await;
        session.end(&bed.server, false).await;
        other.end(&bed.server, false).await;
    }
}

#[tokio::test]
async fn a_break_without_acknowledgment_is_sent_again_only_while_its_cache_is_current() {
    let bed = TestBed::new().await;
    for cache in
        [CacheRequest::Oplock(Caching::R), CacheRequest::Lease { client: 7, key: 8, state: Caching::R }]
    {
        for is_renewed in [false, true] {
            let ((first, mut on_first), (second, mut on_second)) = (bed.connection(), bed.connection());
            let session = bed.session(&first);
            let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
            second.bind_session(&session, Arc::new(key)).unwrap();
            let open = bed.open(&session, "a", cache).await;
            let (elsewhere, _sent) = bed.connection();
            let other = bed.session(&elsewhere);
            let writer = bed.open(&other, "a", CacheRequest::None).await;
            bed.server.files.write_at(writer.file.unwrap(), 0, "new".into(), false).await.unwrap();
            receive_break(&bed, &mut on_first).await;
            if is_renewed {
                // A lease keeps its key. An oplock ends with its open.
                bed.server.files.close_open(writer.file.unwrap()).await.unwrap();
                bed.open(&session, "a", cache).await;
                if let CacheRequest::Oplock(_) = cache {
                    bed.server.files.close_open(open.file.unwrap()).await.unwrap();
                }
            }
            first.end(&bed.server).await;
            assert_eq!(on_second.try_recv().is_err(), is_renewed, "{cache:?}");
            assert!(on_second.try_recv().is_err(), "the break is sent once");
            session.end(&bed.server, false).await;
            other.end(&bed.server, false).await;
        }
    }
}

#[tokio::test]
async fn only_the_last_step_of_a_multi_step_break_is_sent_on_another_connection() {
    let bed = TestBed::new().await;
    let ((first, mut on_first), (second, mut on_second)) = (bed.connection(), bed.connection());
    let session = bed.session(&first);
    let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
    second.bind_session(&session, Arc::new(key)).unwrap();
    let lease = CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH };
    let open = bed.open(&session, "a", lease).await.file.unwrap();
    let (elsewhere, _sent) = bed.connection();
    let other = bed.session(&elsewhere);
    let mut opening = pin!(bed.open(&other, "a", CacheRequest::None));
    tokio::select! {
        _ = opening.as_mut() => panic!("the open does not wait for the break"),
        () = receive_break(&bed, &mut on_first) => {}
    }
    // A second break is needed before the first acknowledgment.
    let table = bed.server.files.opens();
    let mut admission = table.admission(Duration::from_secs(29));
    assert!(admission.admit(open.file, FileUse::Write).is_err());
    table.acknowledge(open.file, CacheKey::Lease { client: 7, key: 8 }, Caching::RH).unwrap();
    receive_break(&bed, &mut on_first).await;
    first.end(&bed.server).await;
    assert!(on_second.try_recv().is_ok());
    assert!(on_second.try_recv().is_err(), "the first step was acknowledged");
    table.close(open);
    opening.await;
}

#[tokio::test]
async fn abandoned_binds_are_bounded_and_removed_with_their_connections() {
    let bed = TestBed::new().await;
    let (connection, _sent) = bed.connection();
    let session = bed.session(&connection);
    let setups = || session.setups.lock().len();
    for _ in 0..100 {
        let (other, _sent) = bed.connection();
        other.begin_bind(&session).unwrap();
        assert_eq!(setups(), 1);
        other.end(&bed.server).await;
        assert_eq!(setups(), 0, "forgotten with the connection");
        assert_eq!(
            other.begin_bind(&session),
            Err(Status::INSUFFICIENT_RESOURCES),
            "a setup added now would never be removed"
        );
    }
    let others: Vec<_> = (0..100).map(|_| bed.connection()).collect();
    for (other, _) in &others {
        other.begin_bind(&session).unwrap();
        assert!(
            setups() <= 32 && session.setups.lock().contains_key(&other.number),
            "the newest setup is kept"
        );
    }
    let (other, _sent) = bed.connection();
    let sessions: Vec<_> = (0..5).map(|_| bed.session(&bed.connection().0)).collect();
    let begun = sessions.iter().filter(|session| other.begin_bind(session).is_ok()).count();
    assert_eq!(begun, 4, "the number of concurrent binds of a connection is limited");
}

/// Returns a message of a client.
fn request(command: SmbCommand, id: u64, session_id: u64, body: &[u8]) -> Vec<u8> {
    let header = MessageHeader {
        credit_charge: 1,
        status: 0,
        command: command as u16,
        credits: 1,
        flags: 0,
        next: 0,
        message_id: id,
        async_id: 0,
        tree_id: 0,
        session_id,
        signature: [0; 16],
    };
    let mut writer = ByteWriter::new();
    header.write(&mut writer);
    writer.put(body);
    writer.finish()
}

fn session_setup(id: u64, session_id: u64, token: &[u8], padding: usize) -> Vec<u8> {
    let length = (token.len() as u16).to_le_bytes();
    let body = [&[25, 0, 0, 1][..], &[0; 8], &[88, 0], &length, &[0; 8], token, &vec![0; padding]].concat();
    request(SmbCommand::SessionSetup, id, session_id, &body)
}

/// Bytes that report when they are dropped.
struct Watched(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_delayed_login_does_not_keep_its_frame_in_memory() {
    let bed = TestBed::new().await;
    let (connection, mut sent) = bed.connection();
    let negotiate = [&[36, 0, 1, 0, 1, 0, 0, 0][..], &[0; 28], &[0x10, 0x02]].concat();
    let offer = [b"NTLMSSP\0", &[1, 0, 0, 0, 0x05, 0x02, 0x08, 0x00][..], &[0; 16]].concat();
    let frames = [request(SmbCommand::Negotiate, 0, 0, &negotiate), session_setup(1, 0, &offer, 0)];
    let mut session = 0;
    for frame in frames {
        connection.process_messages(&bed.server, frame.into(), None).await.unwrap();
        let answer = sent.recv().await.unwrap();
        session = u64::from_le_bytes(answer.pieces[1][40..48].try_into().unwrap());
    }
    // Fields: LM, response, domain, user, workstation, key.
    let field = |length: u8, at: u8| [length, 0, length, 0, at, 0, 0, 0];
    let fields = [field(0, 64), field(48, 64), field(0, 64), field(2, 112), field(0, 64), field(0, 64)];
    let answer = [b"NTLMSSP\0\x03\0\0\0", fields.as_flattened(), &[5, 2, 8, 0], &[0; 48], b"x\0"].concat();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let frame = Watched(session_setup(2, session, &answer, 19 << 10), is_dropped.clone());
    connection.process_messages(&bed.server, bytes::Bytes::from_owner(frame), None).await.unwrap();
    assert!(sent.try_recv().is_err(), "the response is delayed");
    // The lookup of the account may take some time.
    while bed.server.failed_logins.count() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(sent.try_recv().is_err() && is_dropped.load(Ordering::Relaxed));
    let answer = sent.recv().await.unwrap();
    assert_eq!(answer.pieces[1][8..12], Status::LOGON_FAILURE.0.to_le_bytes());
}
