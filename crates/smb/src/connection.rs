//! A connection: frames in, messages to their commands, frames out.
//!
//! One task reads, one writes. A frame's messages are begun by the reader, in the order in which frames come, and go on by
//! themselves from the first thing that they wait for. What is under way is bounded twice: by the client's credits, and by
//! bytes, for which the reader waits. A request that has become asynchronous counts no more there: of those there are only
//! so many, and each is small.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lazuli_file::opens::Break;
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::call::{Call, Chain, Pend, Reply};
use crate::commands::{self, negotiate};
use crate::credits::{self, Window};
use crate::crypto::{Preauth, SigningKey, Transform};
use crate::frame::{self, MAX_FIRST_FRAME, MAX_FRAME, Message, OLD, SEALED};
use crate::handles;
use crate::negotiated::{Dialect, Negotiated};
use crate::outgoing::{self, Frame, Held, Response};
use crate::server::Server;
use crate::session::Session;
use crate::wire::header::{Command, Header, UNSOLICITED, flags};
use crate::wire::status::Status;

/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Sessions that a connection can have.
const MAX_SESSIONS: usize = 1024;
/// Sessions of a connection that have not logged in yet: what strangers can have is little.
const MAX_UNKNOWN: usize = 16;
/// Ended sessions of a connection that are remembered.
const MAX_ENDED: usize = 16;
/// Credits' worth of requests and responses that may be in memory for one connection.
const ROOM: u32 = 1024;
/// The longest frame that responses are put into together: one read of 8 MiB, and what may come with it. Far below what a frame
/// can be.
const MAX_TOGETHER: usize = MAX_FRAME;
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
    window: Mutex<Window>,
    /// Breaks that were told here, and may not be answered yet.
    told: Mutex<Vec<Break>>,
    /// What is under way, by message id.
    underway: Mutex<HashMap<u64, Underway>>,
    outgoing: UnboundedSender<Frame>,
    room: Arc<Semaphore>,
    /// Places for requests that are asynchronous.
    pending: Arc<Semaphore>,
    closed: CancellationToken,
}

/// What was answered of a frame and is not sent yet, and the room that it takes.
#[derive(Default)]
struct Done {
    responses: Vec<Response>,
    room: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Debug)]
struct Underway {
    async_id: u64,
    cancelled: CancellationToken,
}

/// The client has done what no client does: hang up.
#[derive(Debug)]
struct HangUp;

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
        let sessions: Vec<_> = self.sessions.lock().drain().collect();
        let sessions = sessions.into_iter().filter_map(|id| server.sessions.get(id));
        let last: Vec<_> = sessions.filter(|session| session.leave(self)).collect();
        // What others wait for does not wait for what is being closed.
        let told = std::mem::take(&mut *self.told.lock());
        for told in told.iter().filter(|told| server.files.opens().is_breaking(told)) {
            handles::tell(server, told);
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

    /// A session has begun on this connection. Refused if it has too many.
    pub(crate) fn add_session(&self, server: &Server, session: Arc<Session>) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        let is_unknown = |id: &&u64| server.sessions.get(**id).is_some_and(|known| known.login().is_none());
        if sessions.len() >= MAX_SESSIONS || sessions.iter().filter(is_unknown).count() >= MAX_UNKNOWN {
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

    /// A session is gone. What signed its messages, if it had logged in.
    pub(crate) fn forget_session(&self, id: u64, signing: Option<Arc<SigningKey>>) {
        self.sessions.lock().remove(&id);
        let mut ended = self.ended.lock();
        ended.truncate(MAX_ENDED - 1);
        if let Some(signing) = signing {
            ended.push_front((id, signing));
        }
    }

    /// What signs messages about a session that is not on this connection, to a client that has its key. Nothing is signed
    /// for who does not: the same message number would be used twice with a key.
    pub(crate) fn signing_of_others(
        &self,
        server: &Server,
        message: &[u8],
        id: u64,
    ) -> Option<Arc<SigningKey>> {
        let ended = self.ended.lock().iter().find(|ended| ended.0 == id).map(|ended| ended.1.clone());
        let key = ended.or_else(|| server.sessions.get(id)?.signing(self))?;
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

    /// Tells of a break that has to be answered, or has not. False: it is lost, and nobody has heard of it.
    pub(crate) fn tell(&self, server: &Server, told: &Break, session: &Session, body: Vec<u8>) -> bool {
        if told.acknowledge {
            let mut all = self.told.lock();
            if all.len() == all.capacity() {
                all.retain(|told| server.files.opens().is_breaking(told));
            }
            all.push(*told);
        }
        self.notify(Command::OplockBreak, session, body);
        // From then on nobody looks at what was told here.
        !self.is_closed()
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
        // However many frames it takes.
        let mut login_by = Instant::now() + LOGIN_TIMEOUT;
        loop {
            let frame = match self.has_login(server) {
                true => {
                    let frame = frame::read(reader, MAX_FRAME).await?;
                    login_by = Instant::now() + LOGIN_TIMEOUT;
                    frame
                }
                false => timeout_at(login_by, frame::read(reader, MAX_FIRST_FRAME)).await??,
            };
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

    /// Begins what a frame asks for.
    async fn accept(self: &Arc<Self>, server: &Arc<Server>, frame: BytesMut) -> Result<(), HangUp> {
        let (frame, sealed_by) = match frame.first_chunk::<4>() {
            Some(&SEALED) => {
                let id = Transform::parse(&frame).ok_or(HangUp)?.session_id;
                let session = self.session(server, id).ok_or(HangUp)?;
                let login = session.login().ok_or(HangUp)?;
                let key = login.keys.incoming.as_ref().ok_or(HangUp)?;
                (key.open(frame).map_err(|_| HangUp)?.freeze(), Some(session))
            }
            Some(&OLD) => return self.accept_old(server, frame.freeze()).await,
            _ => (frame.freeze(), None),
        };
        let mut messages = frame::split(&frame).map_err(|_| HangUp)?;
        messages.retain(|message| {
            let is_cancel = message.header.command == Command::Cancel as u16;
            if is_cancel {
                self.cancel(&message.header);
            }
            !is_cancel
        });
        if messages.is_empty() {
            return Ok(());
        }
        let mut charged = 0;
        for Message { header, .. } in &mut messages {
            if self.dialect() == Dialect::Smb202 {
                header.credit_charge = 1;
            }
            self.window.lock().take(header.message_id, header.credit_charge).map_err(|_| HangUp)?;
            charged += u32::from(header.credit_charge.max(1));
        }
        let held = credits::held(frame.len(), charged).min(ROOM);
        let room = self.room.clone().acquire_many_owned(held).await.map_err(|_| HangUp)?;
        self.begin(Arc::clone(self).answer_all(server.clone(), messages, sealed_by, room)).await;
        handles::tell_now(server);
        Ok(())
    }

    /// A Negotiate of the first version, with which clients begin that may know nothing newer.
    async fn accept_old(self: &Arc<Self>, server: &Arc<Server>, bytes: Bytes) -> Result<(), HangUp> {
        self.window.lock().take(0, 1).map_err(|_| HangUp)?;
        let header = Header {
            credit_charge: 0,
            status: 0,
            command: Command::Negotiate as u16,
            credits: 1,
            flags: 0,
            next: 0,
            message_id: 0,
            async_id: 0,
            tree_id: 0,
            session_id: 0,
            signature: [0; 16],
        };
        let call = self.call(server, Message { header, bytes }, None, None, false);
        let reply = negotiate::old(&call).await.map_err(|_| HangUp)?;
        self.enqueue(vec![answer(&call, Ok(reply), false)], None, Held::Nothing);
        Ok(())
    }

    /// Runs something in order up to what it waits for, and from there by itself.
    async fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        if poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await.is_pending() {
            tokio::spawn(work);
        }
    }

    /// Answers the messages of a frame, one after the other.
    async fn answer_all(
        self: Arc<Self>,
        server: Arc<Server>,
        messages: Vec<Message>,
        sealed_by: Option<Arc<Session>>,
        room: OwnedSemaphorePermit,
    ) {
        let done = Arc::new(Mutex::new(Done { responses: vec![], room: Some(room) }));
        let chain = Arc::<Mutex<Chain>>::default();
        let count = messages.len();
        let mut before: Option<Header> = None;
        // Nobody knows what a related request belongs to.
        let mut is_astray = true;
        for (index, mut message) in messages.into_iter().enumerate() {
            let is_related = message.header.flags & flags::RELATED != 0;
            match before {
                Some(before) if is_related => {
                    message.header.session_id = before.session_id;
                    message.header.tree_id = before.tree_id;
                }
                _ => *chain.lock() = Chain::default(),
            }
            is_astray &= is_related;
            let mut call = self.call(&server, message, Some(&chain), sealed_by.as_ref(), index + 1 == count);
            let pended = Arc::new(AtomicBool::new(false));
            *call.pending.get_mut() = Some(self.pend(&call, &done, &sealed_by, &pended));
            let answered = match is_astray {
                true => Err(Status::INVALID_PARAMETER.into()),
                false => commands::answer(&mut call).await,
            };
            self.underway.lock().remove(&call.header.message_id);
            if let Err(refused) = &answered {
                let unknown = [Status::USER_SESSION_DELETED, Status::NETWORK_NAME_DELETED];
                is_astray |= unknown.contains(&refused.status);
                if call.header.command == Command::Create as u16 {
                    chain.lock().failed = Some(refused.status);
                }
            }
            let mut head = call.header;
            if let Ok(Reply { tree_id: Some(id), .. }) = &answered {
                head.tree_id = *id;
            }
            if let Ok(Reply { session: Some(session), .. }) = &answered {
                head.session_id = session.id;
            }
            // What follows a request that was nobody's has nothing to be related to.
            let is_nobodys = answered.as_ref().is_err_and(|refused| {
                [Status::USER_SESSION_DELETED, Status::NETWORK_NAME_DELETED].contains(&refused.status)
            });
            before = (!is_astray && !is_nobodys).then_some(head);
            let response = answer(&call, answered, pended.load(Ordering::Relaxed));
            self.make_room(&done, response.length(), sealed_by.as_deref()).await;
            done.lock().responses.push(response);
        }
        let Done { responses, room } = std::mem::take(&mut *done.lock());
        self.enqueue(responses, sealed_by.as_deref(), room.map_or(Held::Nothing, Held::Room));
    }

    /// Sends what was answered in a frame of its own if it would become too long with so many bytes more, and waits for that: a
    /// compound can ask for far more than is to be in memory.
    async fn make_room(&self, done: &Mutex<Done>, next: usize, sealed_by: Option<&Session>) {
        let responses = {
            let responses = &mut done.lock().responses;
            let together = responses.iter().map(Response::length).sum::<usize>() + next;
            if responses.is_empty() || together <= MAX_TOGETHER {
                return;
            }
            std::mem::take(responses)
        };
        let (rest, sent) = oneshot::channel();
        self.enqueue(responses, sealed_by, Held::Rest(rest));
        let _ = sent.await;
    }

    /// What sends the interim response to a call: first what was answered before it, then itself. Refused if too many are
    /// asynchronous already.
    fn pend(
        self: &Arc<Self>,
        call: &Call,
        done: &Arc<Mutex<Done>>,
        sealed_by: &Option<Arc<Session>>,
        pended: &Arc<AtomicBool>,
    ) -> Pend {
        let (this, header, done) = (self.clone(), call.header, done.clone());
        let (sealed_by, pended) = (sealed_by.clone(), pended.clone());
        Box::new(move |async_id| {
            let place = this.pending.clone().try_acquire_owned();
            let place = place.map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
            pended.store(true, Ordering::Relaxed);
            let Done { responses, room } = std::mem::take(&mut *done.lock());
            if !responses.is_empty() {
                this.enqueue(responses, sealed_by.as_deref(), Held::Nothing);
            }
            let mut interim = outgoing::refusal(&header, Status::PENDING, &[]);
            interim.header.flags |= flags::ASYNC;
            interim.header.async_id = async_id;
            this.enqueue(vec![interim], sealed_by.as_deref(), room.map_or(Held::Nothing, Held::Room));
            Ok(place)
        })
    }

    fn call(
        self: &Arc<Self>,
        server: &Arc<Server>,
        message: Message,
        chain: Option<&Arc<Mutex<Chain>>>,
        sealed_by: Option<&Arc<Session>>,
        is_last: bool,
    ) -> Call {
        let cancelled = self.closed.child_token();
        let async_id = server.number();
        let underway = Underway { async_id, cancelled: cancelled.clone() };
        self.underway.lock().insert(message.header.message_id, underway);
        Call {
            server: server.clone(),
            connection: self.clone(),
            header: message.header,
            message: message.bytes,
            session: None,
            tree: None,
            sealed_by: sealed_by.cloned(),
            is_last,
            chain: chain.cloned().unwrap_or_default(),
            cancelled,
            async_id,
            pending: Mutex::default(),
            place: Mutex::default(),
            underway: Mutex::default(),
        }
    }

    /// The client does not want something any more.
    fn cancel(&self, header: &Header) {
        let underway = self.underway.lock();
        let found = match header.flags & flags::ASYNC {
            0 => underway.get(&header.message_id),
            _ => underway.values().find(|underway| underway.async_id == header.async_id),
        };
        if let Some(found) = found {
            found.cancelled.cancel();
        }
    }

    /// Grants credits for responses, and has them sent.
    fn enqueue(&self, mut responses: Vec<Response>, sealed_by: Option<&Session>, held: Held) {
        let mut granted = 0u16;
        for Response { header, .. } in &mut responses {
            let is_final_of_async = header.flags & flags::ASYNC != 0 && header.status != Status::PENDING.0;
            if header.message_id != UNSOLICITED && !is_final_of_async {
                let is_set_up = header.command != Command::SessionSetup as u16 || header.status == 0;
                let more = header.command != Command::Negotiate as u16 && is_set_up;
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

/// The response to a call.
fn answer(call: &Call, answered: crate::call::Answer, pended: bool) -> Response {
    let (status, mut reply) = match answered {
        Ok(reply) => (reply.status, reply),
        Err(refused) => {
            (refused.status, Reply { body: outgoing::error_body(&refused.data), ..Reply::default() })
        }
    };
    let mut header = call.header.answer(status);
    // What the client asked for; granted when it is sent.
    header.credits = call.header.credits;
    if pended {
        header.flags |= flags::ASYNC;
        header.async_id = call.async_id;
    }
    if let Some(id) = reply.tree_id {
        header.tree_id = id;
    }
    let is_signed = call.header.flags & flags::SIGNED != 0;
    let mut signed_by = match &call.session {
        _ if !is_signed || call.sealed_by.is_some() => None,
        Some(session) => session.signing(&call.connection),
        None => call.connection.signing_of_others(&call.server, &call.message, call.header.session_id),
    };
    if let Some(session) = reply.session.take() {
        header.session_id = session.id;
        let is_set_up = !status.is_error() && session.login().is_some();
        signed_by = session.signing(&call.connection).filter(|_| is_set_up && call.sealed_by.is_none());
    }
    Response { header, body: reply.body, data: reply.data, signed_by, seen_by: reply.sees_response }
}
