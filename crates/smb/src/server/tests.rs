//! Connections and sessions that end, seen from inside: what a client cannot see, or not in time.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Waker};

use lazuli_concurrency::{Caching, FileAccess, FileUse, ShareMode, Timestamp};
use lazuli_file::native::{CreateRequest, Disposition, Kind};
use lazuli_file::opens::{CacheKey, CacheRequest, Client, OpenRequest, Place};
use lazuli_protocol::ServiceKind;
use lazuli_testing::TestServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::connection::Connection;
use crate::crypto::{SigningAlgorithm, SigningKey};
use crate::open::{Durable, FileId, LeaseKey, Open};
use crate::outgoing::Frame;
use crate::wire::cursor::Writer;
use crate::wire::header::{Command, Header};
use crate::wire::status::Status;

/// A server without a port, and a share.
struct World {
    server: Arc<Server>,
    rest: TestServer<FileService>,
}

impl World {
    async fn new() -> Self {
        let make =
            |parts: lazuli_testing::Parts| FileService::new(parts.store, parts.extents, parts.accounts);
        let rest = lazuli_testing::start(ServiceKind::File, make).await;
        rest.put("/docs?restype=share", "", "").await.expect(201);
        let SmbServer(server) =
            SmbServer::new(rest.service.clone(), rest.accounts.clone(), Options::default());
        Self { server, rest }
    }

    /// A connection, and what is sent on it.
    fn connection(&self) -> (Arc<Connection>, UnboundedReceiver<Frame>) {
        let (outgoing, sent) = unbounded_channel();
        let peer = ([127, 0, 0, 1], 1).into();
        let connection =
            Connection::new(self.server.number(), (peer, None), outgoing, CancellationToken::new());
        (Arc::new(connection), sent)
    }

    fn session(&self, connection: &Arc<Connection>) -> Arc<Session> {
        let session = Arc::new(Session::new(
            self.server.number(),
            connection,
            self.server.session_places.take().unwrap(),
        ));
        assert_eq!(connection.add_session(&self.server, session.clone()), Ok(()));
        session
    }

    /// A durable open of a file that is made if it is not there.
    async fn open(&self, session: &Arc<Session>, path: &str, cache: CacheRequest) -> Arc<Open> {
        let account = self.rest.accounts.get(lazuli_testing::ACCOUNT).await.unwrap().unwrap();
        let tree = self.server.files.connect(&account, "docs").await.unwrap();
        let client = Client { session: session.id, ip: [127, 0, 0, 1].into(), name: String::new() };
        let all = FileAccess::READ | FileAccess::WRITE;
        let open = OpenRequest {
            mode: ShareMode { access: all, share: all },
            looks: Default::default(),
            overwrites: false,
            delete_on_close: false,
            cache,
            client,
            place: Place::default(),
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
            self.server.handles.join(session, key, opened.id, opened.epoch, None).unwrap();
        }
        let id =
            FileId { persistent: self.server.handles.persistent(opened.id), volatile: self.server.number() };
        let durable = Durable { timeout: Duration::from_secs(60), create_guid: None, client: 0 };
        let open = Arc::new(Open {
            file: Some(opened.id),
            lease,
            durable: Some(durable),
            ..Open::blank(
                id,
                session.connect(Some(tree), self.server.trees.take().unwrap()).unwrap(),
                session,
                self.server.opens.take().unwrap().into(),
            )
        });
        self.server.handles.add(&open);
        session.add(open.clone());
        open
    }
}

/// Waits until something was sent on a connection.
async fn heard(world: &World, sent: &mut UnboundedReceiver<Frame>) {
    while sent.try_recv().is_err() {
        handles::tell_now(&world.server);
        tokio::task::yield_now().await;
    }
}

const BATCH: CacheRequest = CacheRequest::Oplock(Caching::RWH);

fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn a_client_that_vanishes_is_noticed_within_two_minutes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (_client, (stream, _)) = (client.unwrap(), accepted.unwrap());
    prepare(&stream);
    assert!(stream.nodelay().unwrap());
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    let idle = sockopt::tcp_keepidle(&stream).unwrap();
    let probing = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
    assert!(idle + probing < Duration::from_secs(120));
    let unread = Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into());
    assert_eq!(unread, idle + probing, "while it is sent something as while it is not");
}

#[tokio::test]
async fn all_durable_opens_of_a_lost_session_can_be_had_back_while_it_is_being_ended() {
    let world = World::new().await;
    let (connection, _sent) = world.connection();
    let session = world.session(&connection);
    let mut opens = vec![];
    for path in ["a", "b", "c"] {
        let open = world.open(&session, path, BATCH).await;
        world.server.files.write_at(open.file.unwrap(), 0, "dirty".into(), false).await.unwrap();
        opens.push(open);
    }
    let (mut first, mut second) =
        (pin!(connection.end(&world.server)), pin!(session.end(&world.server, true)));
    assert!(!is_ready(first.as_mut()), "it has to make them durable");
    for open in &opens {
        assert!(world.server.handles.find_lost(open.id.persistent).is_some());
    }
    assert!(world.server.sessions.get(session.id).is_none());
    assert!(world.server.sessions.get_even_ending(session.id).is_some());
    assert!(!is_ready(second.as_mut()), "who replaces it waits until it has ended");
    first.await;
    second.await;
    assert!(world.server.sessions.get_even_ending(session.id).is_none());
}

#[tokio::test]
async fn no_session_begins_on_a_connection_that_is_lost() {
    let world = World::new().await;
    let (connection, _sent) = world.connection();
    connection.end(&world.server).await;
    let late = Arc::new(Session::new(
        world.server.number(),
        &connection,
        world.server.session_places.take().unwrap(),
    ));
    let begun = connection.add_session(&world.server, late.clone());
    assert_eq!(begun, Err(Status::INSUFFICIENT_RESOURCES));
    assert!(world.server.sessions.get(late.id).is_none(), "nobody would ever end it");
}

#[tokio::test]
async fn a_client_whose_sessions_have_ended_is_forgotten() {
    let world = World::new().await;
    let (connection, _sent) = world.connection();
    let lease = CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH };
    let (first, second) = (world.session(&connection), world.session(&connection));
    let open = world.open(&first, "a", lease).await;
    world.open(&second, "a", lease).await;
    for (session, left) in [(&first, 1), (&second, 0)] {
        session.end(&world.server, false).await;
        assert_eq!(world.server.handles.clients(), left);
    }
    // An open that was under way when its session ended.
    world.server.handles.join(&first, open.lease.unwrap(), open.file.unwrap(), 0, None).unwrap();
    assert_eq!(world.server.handles.clients(), 0);
}

#[tokio::test]
async fn a_break_that_may_not_have_been_heard_on_a_lost_connection_is_told_on_another() {
    let world = World::new().await;
    for cache in [BATCH, CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH }] {
        let ((first, mut on_first), (second, mut on_second)) = (world.connection(), world.connection());
        let session = world.session(&first);
        let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
        second.join_session(&session, Arc::new(key)).unwrap();
        let open = world.open(&session, "a", cache).await;
        let (elsewhere, _sent) = world.connection();
        let other = world.session(&elsewhere);
        let mut opening = pin!(world.open(&other, "a", CacheRequest::None));
        tokio::select! {
            _ = opening.as_mut() => panic!("it does not wait"),
            () = heard(&world, &mut on_first) => {}
        }
        assert!(on_second.try_recv().is_err(), "it is told once");
        first.end(&world.server).await;
        assert!(on_second.try_recv().is_ok(), "{cache:?}");
        world.server.files.opens().close(open.file.unwrap());
        opening.await;
        session.end(&world.server, false).await;
        other.end(&world.server, false).await;
    }
}

#[tokio::test]
async fn what_needs_no_answer_is_told_on_another_connection_too_unless_the_cache_is_another_by_then() {
    let world = World::new().await;
    for cache in
        [CacheRequest::Oplock(Caching::R), CacheRequest::Lease { client: 7, key: 8, state: Caching::R }]
    {
        for is_renewed in [false, true] {
            let ((first, mut on_first), (second, mut on_second)) = (world.connection(), world.connection());
            let session = world.session(&first);
            let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
            second.join_session(&session, Arc::new(key)).unwrap();
            let open = world.open(&session, "a", cache).await;
            let (elsewhere, _sent) = world.connection();
            let other = world.session(&elsewhere);
            let writer = world.open(&other, "a", CacheRequest::None).await;
            world.server.files.write_at(writer.file.unwrap(), 0, "new".into(), false).await.unwrap();
            heard(&world, &mut on_first).await;
            if is_renewed {
                // Under the same key, for a lease; of an oplock nothing is left without its open.
                world.server.files.close_open(writer.file.unwrap()).await.unwrap();
                world.open(&session, "a", cache).await;
                if let CacheRequest::Oplock(_) = cache {
                    world.server.files.close_open(open.file.unwrap()).await.unwrap();
                }
            }
            first.end(&world.server).await;
            assert_eq!(on_second.try_recv().is_err(), is_renewed, "{cache:?}");
            assert!(on_second.try_recv().is_err(), "it is told once");
            session.end(&world.server, false).await;
            other.end(&world.server, false).await;
        }
    }
}

#[tokio::test]
async fn of_a_break_that_goes_on_only_the_last_step_is_told_on_another_connection() {
    let world = World::new().await;
    let ((first, mut on_first), (second, mut on_second)) = (world.connection(), world.connection());
    let session = world.session(&first);
    let key = SigningKey::new(SigningAlgorithm::AesCmac, &[0; 16]);
    second.join_session(&session, Arc::new(key)).unwrap();
    let lease = CacheRequest::Lease { client: 7, key: 8, state: Caching::RWH };
    let open = world.open(&session, "a", lease).await.file.unwrap();
    let (elsewhere, _sent) = world.connection();
    let other = world.session(&elsewhere);
    let mut opening = pin!(world.open(&other, "a", CacheRequest::None));
    tokio::select! {
        _ = opening.as_mut() => panic!("it does not wait"),
        () = heard(&world, &mut on_first) => {}
    }
    // More is wanted meanwhile.
    let table = world.server.files.opens();
    let mut admission = table.admission(Duration::from_secs(29));
    assert!(admission.admit(open.file, FileUse::Write).is_err());
    table.acknowledge(open.file, CacheKey::Lease { client: 7, key: 8 }, Caching::RH).unwrap();
    heard(&world, &mut on_first).await;
    first.end(&world.server).await;
    assert!(on_second.try_recv().is_ok());
    assert!(on_second.try_recv().is_err(), "the first step was answered");
    table.close(open);
    opening.await;
}

#[tokio::test]
async fn abandoned_binds_are_forgotten_with_their_connections_and_bounded_for_a_session() {
    let world = World::new().await;
    let (connection, _sent) = world.connection();
    let session = world.session(&connection);
    let setups = || session.setups.lock().len();
    for _ in 0..100 {
        let (other, _sent) = world.connection();
        other.begin_bind(&session).unwrap();
        assert_eq!(setups(), 1);
        other.end(&world.server).await;
        assert_eq!(setups(), 0, "forgotten with the connection");
        assert_eq!(other.begin_bind(&session), Err(Status::INSUFFICIENT_RESOURCES), "nobody would forget it");
    }
    let others: Vec<_> = (0..100).map(|_| world.connection()).collect();
    for (other, _) in &others {
        other.begin_bind(&session).unwrap();
        assert!(setups() <= 32 && session.setups.lock().contains_key(&other.number), "the newest stays");
    }
    let (other, _sent) = world.connection();
    let sessions: Vec<_> = (0..5).map(|_| world.session(&world.connection().0)).collect();
    let begun = sessions.iter().filter(|session| other.begin_bind(session).is_ok()).count();
    assert_eq!(begun, 4, "a connection binds a few sessions at a time");
}

/// A message as a client sends it.
fn request(command: Command, id: u64, session_id: u64, body: &[u8]) -> Vec<u8> {
    let header = Header {
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
    let mut writer = Writer::new();
    header.write(&mut writer);
    writer.put(body);
    writer.finish()
}

fn session_setup(id: u64, session_id: u64, token: &[u8], padding: usize) -> Vec<u8> {
    let length = (token.len() as u16).to_le_bytes();
    let body = [&[25, 0, 0, 1][..], &[0; 8], &[88, 0], &length, &[0; 8], token, &vec![0; padding]].concat();
    request(Command::SessionSetup, id, session_id, &body)
}

/// Bytes that say when they are dropped.
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
async fn a_wrong_password_that_is_made_to_wait_keeps_nothing_of_its_frame() {
    let world = World::new().await;
    let (connection, mut sent) = world.connection();
    let negotiate = [&[36, 0, 1, 0, 1, 0, 0, 0][..], &[0; 28], &[0x10, 0x02]].concat();
    let offer = [b"NTLMSSP\0", &[1, 0, 0, 0, 0x05, 0x02, 0x08, 0x00][..], &[0; 16]].concat();
    let frames = [request(Command::Negotiate, 0, 0, &negotiate), session_setup(1, 0, &offer, 0)];
    let mut session = 0;
    for frame in frames {
        connection.accept_plain(&world.server, frame.into(), None).await.unwrap();
        let answer = sent.recv().await.unwrap();
        session = u64::from_le_bytes(answer.pieces[1][40..48].try_into().unwrap());
    }
    // Fields: LM, response, domain, user, workstation, key.
    let field = |length: u8, at: u8| [length, 0, length, 0, at, 0, 0, 0];
    let fields = [field(0, 64), field(48, 64), field(0, 64), field(2, 112), field(0, 64), field(0, 64)];
    let answer = [b"NTLMSSP\0\x03\0\0\0", fields.as_flattened(), &[5, 2, 8, 0], &[0; 48], b"x\0"].concat();
    let is_dropped = Arc::new(AtomicBool::new(false));
    let frame = Watched(session_setup(2, session, &answer, 19 << 10), is_dropped.clone());
    connection.accept_plain(&world.server, bytes::Bytes::from_owner(frame), None).await.unwrap();
    assert!(sent.try_recv().is_err(), "the answer has to wait");
    // It may wait for the account first.
    while world.server.failed_logins.count() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(sent.try_recv().is_err() && is_dropped.load(Ordering::Relaxed));
    let answer = sent.recv().await.unwrap();
    assert_eq!(answer.pieces[1][8..12], Status::LOGON_FAILURE.0.to_le_bytes());
}
