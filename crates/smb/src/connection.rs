//! A connection: frames in, messages to their commands, frames out.
//!
//! One task reads, one writes. A frame's messages are begun by the reader, in the order in which frames come, and go on by
//! themselves from the first thing that they wait for. What is under way is bounded twice: by the client's credits, and by
//! bytes, for which the reader waits. A request that has become asynchronous counts no more there: of those there are only
//! so many, and each is small.

mod answering;
mod told;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lazuli_file::opens::Break;
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::credits::Window;
use crate::crypto::{Preauth, SigningKey};
use crate::frame::{self, MAX_FIRST_FRAME, MAX_FRAME};
use crate::handles;
use crate::negotiated::{Dialect, Negotiated};
use crate::outgoing::{self, Frame, Held, Response};
use crate::server::Server;
use crate::session::Session;
use crate::strangers::Stranger;
use crate::wire::header::{Command, Header, UNSOLICITED, flags};
use crate::wire::status::Status;
use told::Told;

/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Sessions that a connection can have.
const MAX_SESSIONS: usize = 1024;
/// Sessions of a connection that have not logged in yet, and sessions of others that are being bound to it.
const MAX_UNKNOWN: usize = 4;
/// Frames of a connection that has not logged in that may be in memory.
const MAX_FIRST_FRAMES: u32 = 2;
/// Frames that a client may take to log in.
const MAX_FRAMES_TO_LOGIN: u32 = 256;
/// Ended sessions of a connection that are remembered.
const MAX_ENDED: usize = 16;
/// Credits' worth of requests and responses that may be in memory for one connection.
const ROOM: u32 = 1024;
/// Requests of a connection that may be asynchronous.
const MAX_PENDING: usize = 512;

/// A connection.
pub(crate) struct Connection {
    /// Tells it from all others.
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    /// The address that the client has reached.
    pub(crate) local: Option<SocketAddr>,
    /// What client and server have agreed on.
    pub(crate) negotiated: OnceLock<Negotiated>,
    /// The hash over the messages that negotiated it.
    pub(crate) preauth: Mutex<Preauth>,
    /// Sessions on it, by number.
    sessions: Mutex<HashSet<u64>>,
    /// What signed messages of sessions that have ended: clients that insist on signatures want to be told so signed.
    ended: Mutex<VecDeque<(u64, Arc<SigningKey>)>>,
    /// Sessions of other connections that are being bound to this one.
    binding: Mutex<HashSet<u64>>,
    /// Held while no session on it has logged in.
    stranger: Mutex<Option<Stranger>>,
    window: Mutex<Window>,
    /// Breaks that were told here, and may not have been heard.
    told: Mutex<Told>,
    /// What is under way, by message id.
    underway: Mutex<HashMap<u64, Underway>>,
    outgoing: UnboundedSender<Frame>,
    room: Arc<Semaphore>,
    /// Places for requests that are asynchronous.
    pending: Arc<Semaphore>,
    closed: CancellationToken,
}

#[derive(Clone, Debug)]
struct Underway {
    async_id: u64,
    cancelled: CancellationToken,
}

/// The client has done what no client does: hang up.
#[derive(Debug)]
pub(crate) struct HangUp;

/// Serves a connection until it ends.
pub(crate) async fn serve(
    server: Arc<Server>,
    stream: TcpStream,
    peer: SocketAddr,
    closing: CancellationToken,
) {
    let local = stream.local_addr().ok();
    let (mut reader, mut writer) = stream.into_split();
    let (outgoing, mut queue) = mpsc::unbounded_channel();
    let connection =
        Arc::new(Connection::new(server.number(), (peer, local), outgoing, closing.child_token()));
    let closed = connection.closed.clone();
    let writing = tokio::spawn(async move {
        let sent = tokio::select! {
            sent = outgoing::send_all(&mut writer, &mut queue) => sent,
            () = closed.cancelled() => Ok(()),
        };
        closed.cancel();
        sent
    });
    let read = tokio::select! {
        read = connection.read_all(&server, &mut reader) => read,
        () = connection.closed.cancelled() => Ok(()),
    };
    if let Err(error) = read {
        tracing::debug!(%peer, %error, "an SMB connection is closed");
    }
    connection.end(&server).await;
    let _ = writing.await;
}

impl Connection {
    /// A connection on which nothing was said yet.
    pub(crate) fn new(
        number: u64,
        (peer, local): (SocketAddr, Option<SocketAddr>),
        outgoing: UnboundedSender<Frame>,
        closed: CancellationToken,
    ) -> Self {
        Self {
            number,
            peer,
            local,
            negotiated: OnceLock::new(),
            preauth: Mutex::default(),
            sessions: Mutex::default(),
            ended: Mutex::default(),
            binding: Mutex::default(),
            stranger: Mutex::default(),
            window: Mutex::new(Window::new()),
            told: Mutex::default(),
            underway: Mutex::default(),
            outgoing,
            room: Arc::new(Semaphore::new(ROOM as usize)),
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            closed,
        }
    }

    /// It is lost: sessions that are nowhere else end, and what was told here and perhaps not heard is told elsewhere.
    pub(crate) async fn end(&self, server: &Arc<Server>) {
        self.closed.cancel();
        self.stranger.lock().take();
        for id in self.binding.lock().drain() {
            if let Some(session) = server.sessions.get(id) {
                session.forget_setup(self.number);
            }
        }
        let sessions: Vec<_> = self.sessions.lock().drain().collect();
        let sessions = sessions.into_iter().filter_map(|id| server.sessions.get(id));
        let last: Vec<_> = sessions.filter(|session| session.leave(self)).collect();
        // What others wait for does not wait for what is being closed.
        let told = self.told.lock().end();
        for told in told.into_iter().filter(|told| server.files.opens().is_current(told)) {
            handles::tell_soon(server, told);
        }
        for session in last {
            session.end(server, true).await;
        }
    }

    /// What was agreed on. Before that only Negotiate gets here.
    pub(crate) fn dialect(&self) -> Dialect {
        self.negotiated.get().map_or(Dialect::Smb202, |negotiated| negotiated.dialect)
    }

    /// What the client calls itself.
    pub(crate) fn client(&self) -> u128 {
        self.negotiated.get().map_or(0, |negotiated| u128::from_le_bytes(negotiated.client_guid))
    }

    /// A session on this connection.
    pub(crate) fn session(&self, server: &Server, id: u64) -> Option<Arc<Session>> {
        self.sessions.lock().contains(&id).then(|| server.sessions.get(id))?
    }

    /// A session has begun on this connection. Refused if it has too many, or is lost.
    pub(crate) fn add_session(&self, server: &Server, session: Arc<Session>) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        let is_unknown = |id: &&u64| server.sessions.get(**id).is_some_and(|known| known.login().is_none());
        // Nobody would end the session if the connection has ended.
        if self.is_closed()
            || sessions.len() >= MAX_SESSIONS
            || sessions.iter().filter(is_unknown).count() >= MAX_UNKNOWN
        {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        sessions.insert(session.id);
        server.sessions.add(session);
        Ok(())
    }

    /// A session of another connection is used on this one, too, and signs here with that. Refused if either has too many of
    /// the other.
    pub(crate) fn join_session(
        self: &Arc<Self>,
        session: &Session,
        signing: Arc<SigningKey>,
    ) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        // The session would wait for a connection to end that has ended.
        if sessions.len() >= MAX_SESSIONS || self.is_closed() {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        session.join(self, signing)?;
        sessions.insert(session.id);
        Ok(())
    }

    /// Begins to bind a session of another connection to this one.
    pub(crate) fn begin_bind(&self, session: &Session) -> Result<(), Status> {
        let mut binding = self.binding.lock();
        // Nobody would forget the setup if the connection has ended.
        if self.is_closed() || binding.len() >= MAX_UNKNOWN && !binding.contains(&session.id) {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        binding.insert(session.id);
        session.begin_setup(self);
        Ok(())
    }

    /// Ends a setup, or a bind, whatever came of it.
    pub(crate) fn end_setup(&self, session: &Session) {
        self.binding.lock().remove(&session.id);
        session.forget_setup(self.number);
    }

    /// A session on it has logged in.
    pub(crate) fn welcome(&self) {
        self.stranger.lock().take();
    }

    fn is_stranger(&self) -> bool {
        self.stranger.lock().is_some()
    }

    /// Counts the connection as a stranger unless a session on it has logged in. Returns whether it counts.
    fn count_stranger(&self, server: &Server) -> bool {
        let mut stranger = self.stranger.lock();
        if stranger.is_none() && !self.has_login(server) {
            *stranger = Some(server.strangers.admit(self.peer.ip(), self.number, self.closed.clone()));
        }
        stranger.is_some()
    }

    /// A session is gone. What signed its messages, if it had logged in.
    pub(crate) fn forget_session(&self, id: u64, signing: Option<Arc<SigningKey>>) {
        self.sessions.lock().remove(&id);
        let mut ended = self.ended.lock();
        ended.truncate(MAX_ENDED - 1);
        if let Some(signing) = signing {
            ended.push_front((id, signing));
        }
    }

    /// Returns the key that signs the refusal of a request for a session that has ended on this connection, if the request
    /// was signed with it. There is none for a session of another connection: message ids are unique on a connection only,
    /// and a replayed request would make the server use an id twice with one key.
    pub(crate) fn signing_of_ended(&self, message: &[u8], id: u64) -> Option<Arc<SigningKey>> {
        let key = self.ended.lock().iter().find(|ended| ended.0 == id).map(|ended| ended.1.clone())?;
        key.verify(message).then_some(key)
    }

    /// Whether it is lost.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Hangs up.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Tells of a break. If the connection is lost before it was heard, it is told elsewhere. False: it is lost already, and
    /// nobody does that any more.
    pub(crate) fn tell(&self, server: &Server, told: &Break, session: &Session, body: Vec<u8>) -> bool {
        let is_told = self.told.lock().remember(told, |told| server.files.opens().is_current(told));
        if is_told {
            self.notify(Command::OplockBreak, session, body);
        }
        is_told
    }

    /// Sends what the client has not asked for: the body of an oplock break, encrypted if its session is.
    fn notify(&self, command: Command, session: &Session, body: Vec<u8>) {
        let header = Header {
            credit_charge: 0,
            status: 0,
            command: command as u16,
            credits: 0,
            flags: flags::RESPONSE,
            next: 0,
            message_id: UNSOLICITED,
            async_id: 0,
            tree_id: 0,
            session_id: 0,
            signature: [0; 16],
        };
        let response = Response { header, body, data: vec![], signed_by: None, seen_by: None };
        let is_encrypted = session.login().is_some_and(|login| login.must_encrypt);
        self.enqueue(vec![response], is_encrypted.then_some(session), Held::Nothing);
    }

    async fn read_all(
        self: &Arc<Self>,
        server: &Arc<Server>,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        let (mut login_by, mut frames) = (Instant::now() + LOGIN_TIMEOUT, 0);
        let limit = || if self.is_stranger() { MAX_FIRST_FRAME } else { MAX_FRAME };
        loop {
            let frame = if self.count_stranger(server) {
                frames += 1;
                let mut reading = std::pin::pin!(frame::read(reader, limit));
                match timeout_at(login_by, &mut reading).await {
                    // A login that was under way has succeeded.
                    Err(_) if !self.is_stranger() => reading.await?,
                    read => read??,
                }
            } else {
                let frame = frame::read(reader, limit).await?;
                (login_by, frames) = (Instant::now() + LOGIN_TIMEOUT, 0);
                frame
            };
            if frames > MAX_FRAMES_TO_LOGIN {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(frame) = frame else { return Ok(()) };
            if let Err(HangUp) = self.accept(server, frame).await {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn has_login(&self, server: &Server) -> bool {
        let sessions = self.sessions.lock();
        sessions.iter().any(|id| server.sessions.get(*id).is_some_and(|session| session.login().is_some()))
    }

    /// Grants credits for responses, and has them sent.
    fn enqueue(&self, mut responses: Vec<Response>, sealed_by: Option<&Session>, held: Held) {
        let mut granted = 0u16;
        for Response { header, .. } in &mut responses {
            let is_final_of_async = header.flags & flags::ASYNC != 0 && header.status != Status::PENDING.0;
            if header.message_id != UNSOLICITED && !is_final_of_async {
                let is_set_up = header.command != Command::SessionSetup as u16 || header.status == 0;
                let more = header.command != Command::Negotiate as u16 && is_set_up && !self.is_stranger();
                granted = granted.saturating_add(self.window.lock().grant(
                    header.credit_charge,
                    header.credits,
                    more,
                ));
            }
            header.credits = 0;
        }
        if let Some(last) = responses.last_mut() {
            last.header.credits = granted;
        }
        let pieces = outgoing::pack(responses, sealed_by);
        // If nobody sends any more, nobody is there to read it.
        let _ = self.outgoing.send(Frame { pieces, held });
    }
}
