//! The state of a connection: the negotiated parameters, its sessions and the requests in flight.
//! [`crate::dispatch`] serves it.

pub(crate) mod outgoing;
mod pending_breaks;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use lazuli_file::opens::Break;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::credits::SequenceWindow;
use crate::crypto::{Preauth, SigningKey};
use crate::negotiated::{Dialect, Negotiated};
use crate::server::ServerState;
use crate::session::Session;
use crate::session::handles;
use crate::unauthenticated::UnauthenticatedClient;
use crate::wire::header::{MessageHeader, SmbCommand, UNSOLICITED, flags};
use crate::wire::status::Status;
use outgoing::{Frame, FrameGuard, OutgoingResponse};
use pending_breaks::PendingBreaks;

/// Maximum number of sessions of a connection.
const MAX_SESSIONS: usize = 1024;
/// Maximum number of a connection's sessions that have not logged in, and of sessions being bound to it.
const MAX_SETUPS: usize = 4;
/// Number of ended sessions whose keys a connection remembers.
const MAX_ENDED: usize = 16;
/// Memory for the requests and responses of one connection, in credits (64 KiB each).
pub(crate) const MEMORY_CREDITS: u32 = 1024;
/// Maximum number of asynchronous requests of a connection.
const MAX_ASYNC_REQUESTS: usize = 512;

/// A connection.
pub(crate) struct SmbConnection {
    /// Unique among all connections. Newer connections have higher numbers.
    pub(crate) number: u64,
    pub(crate) peer: SocketAddr,
    /// The address of the server that the client has connected to.
    pub(crate) local: Option<SocketAddr>,
    /// The result of Negotiate.
    pub(crate) negotiated: OnceLock<Negotiated>,
    /// The hash over the messages of Negotiate.
    pub(crate) preauth: Mutex<Preauth>,
    /// Ids of the sessions on this connection.
    pub(crate) sessions: Mutex<HashSet<u64>>,
    /// Signing keys of ended sessions. Clients that require signing accept the error for a deleted session
    /// only if it is signed.
    ended_sessions: Mutex<VecDeque<(u64, Arc<SigningKey>)>>,
    /// Ids of sessions of other connections that are being bound to this one.
    binding_sessions: Mutex<HashSet<u64>>,
    /// Present while no session on this connection has logged in.
    unauthenticated: Mutex<Option<UnauthenticatedClient>>,
    pub(crate) window: Mutex<SequenceWindow>,
    /// Breaks that were sent here and may not have been received.
    pending_breaks: Mutex<PendingBreaks>,
    /// Requests in flight, by message id.
    pub(crate) in_flight: Mutex<HashMap<u64, InFlightRequest>>,
    pub(crate) outgoing: UnboundedSender<Frame>,
    pub(crate) memory: Arc<Semaphore>,
    /// Permits for asynchronous requests.
    pub(crate) async_slots: Arc<Semaphore>,
    pub(crate) closed: CancellationToken,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlightRequest {
    pub(crate) async_id: u64,
    pub(crate) cancelled: CancellationToken,
}

/// The client has violated the protocol, so the connection must be closed.
#[derive(Debug)]
pub(crate) struct ProtocolViolation;

impl SmbConnection {
    /// Returns a new connection.
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
            ended_sessions: Mutex::default(),
            binding_sessions: Mutex::default(),
            unauthenticated: Mutex::default(),
            window: Mutex::new(SequenceWindow::new()),
            pending_breaks: Mutex::default(),
            in_flight: Mutex::default(),
            outgoing,
            memory: Arc::new(Semaphore::new(MEMORY_CREDITS as usize)),
            async_slots: Arc::new(Semaphore::new(MAX_ASYNC_REQUESTS)),
            closed,
        }
    }

    /// Cleans up after the connection has ended. Sessions without another connection end. Breaks that may not
    /// have been received are sent on other connections.
    pub(crate) async fn end(&self, server: &Arc<ServerState>) {
        self.closed.cancel();
        self.unauthenticated.lock().take();
        for id in self.binding_sessions.lock().drain() {
            if let Some(session) = server.sessions.get(id) {
                session.remove_setup(self.number);
            }
        }
        let sessions: Vec<_> = self.sessions.lock().drain().collect();
        let sessions = sessions.into_iter().filter_map(|id| server.sessions.get(id));
        let last: Vec<_> = sessions.filter(|session| session.remove_channel(self)).collect();
        // Resend breaks first: other clients wait for them, and closing the sessions may take long.
        let breaks = self.pending_breaks.lock().close();
        for sent in breaks.into_iter().filter(|sent| server.files.opens().is_current(sent)) {
            handles::send_break_or_retry(server, sent);
        }
        for session in last {
            session.end(server, true).await;
        }
    }

    /// Returns the negotiated dialect, or 2.0.2 before Negotiate.
    pub(crate) fn dialect(&self) -> Dialect {
        self.negotiated.get().map_or(Dialect::Smb202, |negotiated| negotiated.dialect)
    }

    /// Returns the client's GUID.
    pub(crate) fn client(&self) -> u128 {
        self.negotiated.get().map_or(0, |negotiated| u128::from_le_bytes(negotiated.client_guid))
    }

    /// Returns a session on this connection.
    pub(crate) fn session(&self, server: &ServerState, id: u64) -> Option<Arc<Session>> {
        self.sessions.lock().contains(&id).then(|| server.sessions.get(id))?
    }

    /// Adds a new session. Fails if the connection has too many, or has ended.
    pub(crate) fn add_session(&self, server: &ServerState, session: Arc<Session>) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        let is_setting_up =
            |id: &&u64| server.sessions.get(**id).is_some_and(|session| session.login().is_none());
        // A session added after the end of the connection would never end.
        if self.is_closed()
            || sessions.len() >= MAX_SESSIONS
            || sessions.iter().filter(is_setting_up).count() >= MAX_SETUPS
        {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        sessions.insert(session.id);
        server.sessions.add(session);
        Ok(())
    }

    /// Binds a session of another connection to this one, where `signing` signs. Fails if the session has too
    /// many connections or the connection too many sessions.
    pub(crate) fn bind_session(
        self: &Arc<Self>,
        session: &Session,
        signing: Arc<SigningKey>,
    ) -> Result<(), Status> {
        let mut sessions = self.sessions.lock();
        // A session bound after the end of the connection would wait for that end forever.
        if sessions.len() >= MAX_SESSIONS || self.is_closed() {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        session.add_channel(self, signing)?;
        sessions.insert(session.id);
        Ok(())
    }

    /// Begins to bind a session of another connection to this one.
    pub(crate) fn begin_bind(&self, session: &Session) -> Result<(), Status> {
        let mut binding_sessions = self.binding_sessions.lock();
        // A setup added after the end of the connection would never be removed.
        if self.is_closed() || binding_sessions.len() >= MAX_SETUPS && !binding_sessions.contains(&session.id)
        {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        binding_sessions.insert(session.id);
        session.begin_setup(self);
        Ok(())
    }

    /// Ends a setup or a bind, successful or not.
    pub(crate) fn end_setup(&self, session: &Session) {
        self.binding_sessions.lock().remove(&session.id);
        session.remove_setup(self.number);
    }

    /// Stops counting the connection as unauthenticated after a login.
    pub(crate) fn mark_authenticated(&self) {
        self.unauthenticated.lock().take();
    }

    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.unauthenticated.lock().is_some()
    }

    /// Counts the connection as unauthenticated unless a session on it has logged in. Returns whether it
    /// counts.
    pub(crate) fn count_unauthenticated(&self, server: &ServerState) -> bool {
        let mut unauthenticated = self.unauthenticated.lock();
        if unauthenticated.is_none() && !self.has_login(server) {
            *unauthenticated =
                Some(server.unauthenticated.admit(self.peer.ip(), self.number, self.closed.clone()));
        }
        unauthenticated.is_some()
    }

    /// Removes an ended session. Remembers the key that signed its messages on this connection, if it had
    /// logged in.
    pub(crate) fn forget_session(&self, id: u64, signing: Option<Arc<SigningKey>>) {
        self.sessions.lock().remove(&id);
        let mut ended_sessions = self.ended_sessions.lock();
        ended_sessions.truncate(MAX_ENDED - 1);
        if let Some(signing) = signing {
            ended_sessions.push_front((id, signing));
        }
    }

    /// Returns the key that signs the refusal of a request for a session that has ended on this connection,
    /// if the request was signed with that key. There is none for a session of another connection: message
    /// ids are unique only on one connection, so a replayed request would make the server sign twice under
    /// one id.
    pub(crate) fn ended_signing_key(&self, message: &[u8], id: u64) -> Option<Arc<SigningKey>> {
        let key =
            self.ended_sessions.lock().iter().find(|(ended, _)| *ended == id).map(|(_, key)| key.clone())?;
        key.verify(message).then_some(key)
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Sends a break and remembers it, so that it is sent on another connection if this one ends first.
    /// Returns false if the connection has ended.
    pub(crate) fn send_break(
        &self,
        server: &ServerState,
        sent: &Break,
        session: &Session,
        body: Vec<u8>,
    ) -> bool {
        let is_open = self.pending_breaks.lock().record(sent, |sent| server.files.opens().is_current(sent));
        if is_open {
            self.send_unsolicited(SmbCommand::OplockBreak, session, body);
        }
        is_open
    }

    /// Sends an unsolicited message: the body of an oplock break, encrypted if the session requires it.
    fn send_unsolicited(&self, command: SmbCommand, session: &Session, body: Vec<u8>) {
        let header = MessageHeader {
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
        let response = OutgoingResponse { header, body, data: vec![], signed_by: None, on_packed: None };
        let is_encrypted = session.login().is_some_and(|login| login.must_encrypt);
        self.enqueue(vec![response], is_encrypted.then_some(session), FrameGuard::None);
    }

    pub(crate) fn has_login(&self, server: &ServerState) -> bool {
        let sessions = self.sessions.lock();
        sessions.iter().any(|id| server.sessions.get(*id).is_some_and(|session| session.login().is_some()))
    }

    /// Grants credits for responses and queues them for sending.
    pub(crate) fn enqueue(
        &self,
        mut responses: Vec<OutgoingResponse>,
        encrypted_by: Option<&Session>,
        guard: FrameGuard,
    ) {
        let mut granted = 0u16;
        for OutgoingResponse { header, .. } in &mut responses {
            let is_final_of_async = header.flags & flags::ASYNC != 0 && header.status != Status::PENDING.0;
            if header.message_id != UNSOLICITED && !is_final_of_async {
                let is_set_up = header.command != SmbCommand::SessionSetup as u16 || header.status == 0;
                let may_grow =
                    header.command != SmbCommand::Negotiate as u16 && is_set_up && !self.is_unauthenticated();
                granted = granted.saturating_add(self.window.lock().grant(
                    header.credit_charge,
                    header.credits,
                    may_grow,
                ));
            }
            header.credits = 0;
        }
        if let Some(last) = responses.last_mut() {
            last.header.credits = granted;
        }
        let pieces = outgoing::pack(responses, encrypted_by);
        // Ignore the error: the writer has ended because the connection has.
        let _ = self.outgoing.send(Frame { pieces, guard });
    }
}
