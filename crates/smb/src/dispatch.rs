//! Reads the frames of a connection, runs the command of each message, and sends the responses.
//!
//! One task reads and one writes. The reader starts the messages of each frame in the order of arrival; a
//! message that has to wait continues in a task of its own. Two limits bound the messages in flight: the
//! client's credits, and the memory that they occupy, for which the reader waits. A request that has become
//! asynchronous no longer counts towards the memory, because the number and the size of asynchronous requests
//! are limited.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use lazuli_telemetry::{RequestFacts, Value};
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::access_log;
use crate::bind_responses::BindRequest;
use crate::call::{Call, CommandReply, CommandResult, CompoundState, SendInterim};
use crate::commands::{self, negotiate};
use crate::connection::outgoing::{self, FrameGuard, OutgoingResponse, Signer};
use crate::connection::{InFlightRequest, MEMORY_CREDITS, ProtocolViolation, SmbConnection};
use crate::credits;
use crate::crypto::{SigningKey, TransformHeader};
use crate::frame::{self, ENCRYPTED_MAGIC, MAX_FRAME, Message, ReadLimits, SMB1_MAGIC};
use crate::negotiated::Dialect;
use crate::server::ServerState;
use crate::session::Session;
use crate::session::handles;
use crate::wire::header::{MessageHeader, SmbCommand, flags};
use crate::wire::status::Status;

/// Maximum time until a login.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of frames in memory for a connection that has not logged in.
const MAX_FRAMES_BEFORE_LOGIN: u32 = 2;
/// Maximum number of frames until a login.
const MAX_FRAMES_TO_LOGIN: u32 = 256;
/// Maximum length of a frame with several responses: one read of 8 MiB and the other responses of its
/// compound. Far below the limit of the length prefix.
const MAX_RESPONSE_FRAME: usize = MAX_FRAME;

/// Responses to the messages of one frame that have not been sent, and the memory reserved for the frame.
#[derive(Default)]
struct PendingResponses {
    responses: Vec<OutgoingResponse>,
    memory: Option<OwnedSemaphorePermit>,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(
    server: Arc<ServerState>,
    stream: TcpStream,
    peer: SocketAddr,
    closing: CancellationToken,
) {
    let local = stream.local_addr().ok();
    let (mut reader, mut writer) = stream.into_split();
    let (outgoing, mut queue) = mpsc::unbounded_channel();
    let connection =
        Arc::new(SmbConnection::new(server.next_id(), (peer, local), outgoing, closing.child_token()));
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
        tracing::debug!(%peer, %error, "closed an SMB connection after an error");
    }
    connection.end(&server).await;
    let _ = writing.await;
}

impl SmbConnection {
    async fn read_all(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        reader: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        let (mut login_deadline, mut frames) = (Instant::now() + LOGIN_TIMEOUT, 0);
        let limits =
            || if self.is_unauthenticated() { ReadLimits::BEFORE_LOGIN } else { ReadLimits::AFTER_LOGIN };
        loop {
            let frame = if self.count_unauthenticated(server) {
                frames += 1;
                let mut reading = std::pin::pin!(frame::read(reader, limits));
                match timeout_at(login_deadline, &mut reading).await {
                    // A login has succeeded since the read started.
                    Err(_) if !self.is_unauthenticated() => reading.await?,
                    read => read??,
                }
            } else {
                let frame = frame::read(reader, limits).await?;
                (login_deadline, frames) = (Instant::now() + LOGIN_TIMEOUT, 0);
                frame
            };
            if frames > MAX_FRAMES_TO_LOGIN {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(frame) = frame else { return Ok(()) };
            if let Err(ProtocolViolation) = self.process_frame(server, frame).await {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// Decrypts a frame if necessary, and starts its messages.
    async fn process_frame(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        frame: BytesMut,
    ) -> Result<(), ProtocolViolation> {
        let (frame, encrypted_by) = match frame.first_chunk::<4>() {
            Some(&ENCRYPTED_MAGIC) => {
                let id = TransformHeader::parse(&frame).ok_or(ProtocolViolation)?.session_id;
                let session = self.session(server, id).ok_or(ProtocolViolation)?;
                let login = session.login().ok_or(ProtocolViolation)?;
                let key = login.keys.incoming.as_ref().ok_or(ProtocolViolation)?;
                (key.decrypt(frame).map_err(|_| ProtocolViolation)?.freeze(), Some(session))
            }
            Some(&SMB1_MAGIC) => return self.process_smb1_negotiate(server, frame.freeze()).await,
            _ => (frame.freeze(), None),
        };
        self.process_messages(server, frame, encrypted_by).await
    }

    /// Starts the messages of a frame that is not, or no longer, encrypted.
    pub(crate) async fn process_messages(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        frame: Bytes,
        encrypted_by: Option<Arc<Session>>,
    ) -> Result<(), ProtocolViolation> {
        let mut messages = frame::split(&frame).map_err(|_| ProtocolViolation)?;
        messages.retain(|message| {
            let is_cancel = message.header.command == SmbCommand::Cancel as u16;
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
            self.window
                .lock()
                .consume(header.message_id, header.credit_charge)
                .map_err(|_| ProtocolViolation)?;
            charged += u32::from(header.credit_charge.max(1));
        }
        let needed = match self.is_unauthenticated() {
            true => MEMORY_CREDITS / MAX_FRAMES_BEFORE_LOGIN,
            false => credits::memory_credits(frame.len(), charged).min(MEMORY_CREDITS),
        };
        drop(frame);
        let memory = self.memory.clone().acquire_many_owned(needed).await.map_err(|_| ProtocolViolation)?;
        let work =
            Box::pin(Arc::clone(self).process_compound(server.clone(), messages, encrypted_by, memory));
        // The work may move to another task while it holds locks of the file service.
        self.start(lazuli_file::operation(work)).await;
        handles::send_queued_breaks(server);
        Ok(())
    }

    /// Answers an SMB1 Negotiate, with which clients begin that may know only SMB1.
    async fn process_smb1_negotiate(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        bytes: Bytes,
    ) -> Result<(), ProtocolViolation> {
        self.window.lock().consume(0, 1).map_err(|_| ProtocolViolation)?;
        let header = MessageHeader {
            credit_charge: 0,
            status: 0,
            command: SmbCommand::Negotiate as u16,
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
        let reply = negotiate::negotiate_smb1(&call).await.map_err(|_| ProtocolViolation)?;
        self.enqueue(vec![response_to(&call, Ok(reply), false)], None, FrameGuard::None);
        Ok(())
    }

    /// Runs `work` until it waits for the first time, and the rest in a new task.
    async fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        if poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await.is_pending() {
            tokio::spawn(work);
        }
    }

    /// Runs the commands of a frame's messages in order.
    async fn process_compound(
        self: Arc<Self>,
        server: Arc<ServerState>,
        messages: Vec<Message>,
        encrypted_by: Option<Arc<Session>>,
        memory: OwnedSemaphorePermit,
    ) {
        let ready = Arc::new(Mutex::new(PendingResponses { responses: vec![], memory: Some(memory) }));
        let compound = Arc::<Mutex<CompoundState>>::default();
        let count = messages.len();
        let mut previous: Option<MessageHeader> = None;
        // Whether a related request has no valid request before it.
        let mut has_no_antecedent = true;
        for (index, mut message) in messages.into_iter().enumerate() {
            let is_related = message.header.flags & flags::RELATED != 0;
            match previous {
                Some(previous) if is_related => {
                    message.header.session_id = previous.session_id;
                    message.header.tree_id = previous.tree_id;
                }
                _ => *compound.lock() = CompoundState::default(),
            }
            has_no_antecedent &= is_related;
            let mut call =
                self.call(&server, message, Some(&compound), encrypted_by.as_ref(), index + 1 == count);
            let is_async = Arc::new(AtomicBool::new(false));
            *call.interim.get_mut() = Some(self.interim_sender(&call, &ready, &encrypted_by, &is_async));
            let began = Instant::now();
            let result = match has_no_antecedent {
                true => Err(Status::INVALID_PARAMETER.into()),
                false => commands::execute(&mut call).await,
            };
            self.in_flight.lock().remove(&call.header.message_id);
            report(&call, &result, began.elapsed());
            if let Err(error) = &result {
                let unknown = [Status::USER_SESSION_DELETED, Status::NETWORK_NAME_DELETED];
                has_no_antecedent |= unknown.contains(&error.status);
                if call.header.command == SmbCommand::Create as u16 {
                    compound.lock().create_error = Some(error.status);
                }
            }
            let mut head = call.header;
            if let Ok(CommandReply { tree_id: Some(id), .. }) = &result {
                head.tree_id = *id;
            }
            if let Ok(CommandReply { session: Some(session), .. }) = &result {
                head.session_id = session.id;
            }
            previous = (!has_no_antecedent).then_some(head);
            let response = response_to(&call, result, is_async.load(Ordering::Relaxed));
            self.flush_before_overflow(&ready, response.length(), encrypted_by.as_deref()).await;
            ready.lock().responses.push(response);
        }
        let PendingResponses { responses, memory } = std::mem::take(&mut *ready.lock());
        self.enqueue(responses, encrypted_by.as_deref(), memory.map_or(FrameGuard::None, FrameGuard::Memory));
    }

    /// Sends the finished responses in a frame of their own if a response of `next` bytes would make it too
    /// long. Waits until that frame was sent, because the responses to a compound can be far longer than the
    /// memory reserved for it.
    async fn flush_before_overflow(
        &self,
        ready: &Mutex<PendingResponses>,
        next: usize,
        encrypted_by: Option<&Session>,
    ) {
        let responses = {
            let responses = &mut ready.lock().responses;
            let total = responses.iter().map(OutgoingResponse::length).sum::<usize>() + next;
            if responses.is_empty() || total <= MAX_RESPONSE_FRAME {
                return;
            }
            std::mem::take(responses)
        };
        let (flushed, sent) = oneshot::channel();
        self.enqueue(responses, encrypted_by, FrameGuard::Flushed(flushed));
        let _ = sent.await;
    }

    /// Returns a function that sends the finished responses of the frame and then the interim response to
    /// `call`. The function fails if the connection has too many asynchronous requests.
    fn interim_sender(
        self: &Arc<Self>,
        call: &Call,
        ready: &Arc<Mutex<PendingResponses>>,
        encrypted_by: &Option<Arc<Session>>,
        is_async: &Arc<AtomicBool>,
    ) -> SendInterim {
        let (this, header, ready) = (self.clone(), call.header, ready.clone());
        let (encrypted_by, is_async) = (encrypted_by.clone(), is_async.clone());
        Box::new(move |async_id| {
            let slot = this.async_slots.clone().try_acquire_owned();
            let slot = slot.map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
            is_async.store(true, Ordering::Relaxed);
            let PendingResponses { responses, memory } = std::mem::take(&mut *ready.lock());
            if !responses.is_empty() {
                this.enqueue(responses, encrypted_by.as_deref(), FrameGuard::None);
            }
            let mut interim = outgoing::refusal(&header, Status::PENDING, &[]);
            interim.header.flags |= flags::ASYNC;
            interim.header.async_id = async_id;
            this.enqueue(
                vec![interim],
                encrypted_by.as_deref(),
                memory.map_or(FrameGuard::None, FrameGuard::Memory),
            );
            Ok(slot)
        })
    }

    fn call(
        self: &Arc<Self>,
        server: &Arc<ServerState>,
        message: Message,
        compound: Option<&Arc<Mutex<CompoundState>>>,
        encrypted_by: Option<&Arc<Session>>,
        is_last: bool,
    ) -> Call {
        let cancelled = self.closed.child_token();
        let async_id = server.next_id();
        let in_flight = InFlightRequest { async_id, cancelled: cancelled.clone() };
        self.in_flight.lock().insert(message.header.message_id, in_flight);
        Call {
            server: server.clone(),
            connection: self.clone(),
            header: message.header,
            message: message.bytes,
            session: None,
            tree: None,
            encrypted_by: encrypted_by.cloned(),
            is_verified: false,
            is_binding: false,
            is_last,
            compound: compound.cloned().unwrap_or_default(),
            cancelled,
            async_id,
            interim: Mutex::default(),
            async_permit: Mutex::default(),
            counted: Mutex::default(),
        }
    }

    /// Cancels the request that a CANCEL names.
    fn cancel(&self, header: &MessageHeader) {
        let in_flight = self.in_flight.lock();
        let found = match header.flags & flags::ASYNC {
            0 => in_flight.get(&header.message_id),
            _ => in_flight.values().find(|in_flight| in_flight.async_id == header.async_id),
        };
        if let Some(found) = found {
            found.cancelled.cancel();
        }
    }
}

/// Counts a request, and adds its line to the access log.
fn report(call: &Call, result: &CommandResult, elapsed: Duration) {
    let Some(command) = SmbCommand::from_code(call.header.command) else { return };
    let status = result.as_ref().map_or_else(|error| error.status, |reply| reply.status);
    call.server.requests.count(command, status, elapsed);
    if let Some(log) = &call.server.options.telemetry.access_log {
        access_log::write(log, call, command, result, elapsed);
    }
    if let Some(tracer) = &call.server.options.telemetry.tracer {
        tracer.report(Uuid::new_v4().into_bytes(), elapsed, || {
            let text = |text: &str| Value::Text(text.to_owned());
            let login = call.session.as_deref().and_then(Session::login);
            let share = call.tree.as_ref().and_then(|tree| tree.tree.as_ref());
            let status = status.name().unwrap_or("other");
            let mut attributes = vec![
                ("lazuli.service", text("smb")),
                ("smb.status", text(status)),
                ("client.address", Value::Text(call.connection.peer.ip().to_string())),
            ];
            attributes.extend(login.map(|login| ("lazuli.account", text(&login.account.name))));
            attributes.extend(share.map(|share| ("smb.share", text(&share.name))));
            RequestFacts { name: command.name(), attributes, elapsed, ..RequestFacts::default() }
        });
    }
}

/// Returns the response to a call.
fn response_to(call: &Call, result: CommandResult, is_async: bool) -> OutgoingResponse {
    let is_refused = result.is_err();
    let (status, mut reply) = match result {
        Ok(reply) => (reply.status, reply),
        Err(error) => (
            error.status,
            CommandReply { body: outgoing::error_body(&error.data), ..CommandReply::default() },
        ),
    };
    let mut header = call.header.response(status);
    // The number that the client requests. `enqueue` replaces it by the number granted.
    header.credits = call.header.credits;
    if is_async {
        header.flags |= flags::ASYNC;
        header.async_id = call.async_id;
    }
    if let Some(id) = reply.tree_id {
        header.tree_id = id;
    }
    let is_signed = call.header.flags & flags::SIGNED != 0 && call.encrypted_by.is_none();
    let mut key = if is_signed { signing_key(call) } else { None };
    if is_signed && is_refused && key.is_none() {
        // Clients that require signing drop the response otherwise. They accept the status of a deleted
        // session if the response has the flag without a signature.
        header.flags |= flags::SIGNED;
    }
    if let Some(session) = reply.session.take() {
        header.session_id = session.id;
        let is_set_up = !status.is_error() && session.login().is_some();
        key = session.signing_key(&call.connection).filter(|_| is_set_up && call.encrypted_by.is_none());
    }
    let once = call.session.as_ref().filter(|session| call.is_binding && session.needs_unique_message_ids());
    let once = once.map(|session| (session.clone(), BindRequest::of(&call.header)));
    let signed_by = key.map(|key| Signer { key, once });
    OutgoingResponse { header, body: reply.body, data: reply.data, signed_by, on_packed: reply.on_packed }
}

/// Returns the key that signs the response to a signed call. A session signs no response to a call with a
/// wrong signature, because the sender may not have the key. A session of another connection signs only the
/// responses to requests that bind it.
fn signing_key(call: &Call) -> Option<Arc<SigningKey>> {
    let Some(session) = &call.session else {
        return call.connection.ended_signing_key(&call.message, call.header.session_id);
    };
    let of_bind = || session.bind_signing_key(call.header.message_id).filter(|_| call.is_binding);
    let key = session.signing_key(&call.connection).or_else(of_bind)?;
    // A call that failed early has not been verified yet.
    (call.is_verified || key.verify(&call.message)).then_some(key)
}
