//! What a frame asks for: its messages begun in order, answered one after the other, and sent together as far as that goes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Connection, HangUp, MAX_FIRST_FRAMES, ROOM, Underway};
use crate::call::{Answer, Call, Chain, Pend, Reply};
use crate::commands::{self, negotiate};
use crate::credits;
use crate::crypto::Transform;
use crate::frame::{self, MAX_FRAME, Message, OLD, SEALED};
use crate::handles;
use crate::negotiated::Dialect;
use crate::outgoing::{self, Held, Response};
use crate::server::Server;
use crate::session::Session;
use crate::wire::header::{Command, Header, flags};
use crate::wire::status::Status;

/// The longest frame that responses are put into together: one read of 8 MiB, and what may come with it. Far below what a frame
/// can be.
const MAX_TOGETHER: usize = MAX_FRAME;

/// What was answered of a frame and is not sent yet, and the room that it takes.
#[derive(Default)]
struct Done {
    responses: Vec<Response>,
    room: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Begins what a frame asks for.
    pub(super) async fn accept(
        self: &Arc<Self>,
        server: &Arc<Server>,
        frame: BytesMut,
    ) -> Result<(), HangUp> {
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
        self.accept_plain(server, frame, sealed_by).await
    }

    /// Begins what a plain frame asks for, or one that was decrypted.
    pub(crate) async fn accept_plain(
        self: &Arc<Self>,
        server: &Arc<Server>,
        frame: Bytes,
        sealed_by: Option<Arc<Session>>,
    ) -> Result<(), HangUp> {
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
        let held = match self.is_stranger() {
            true => ROOM / MAX_FIRST_FRAMES,
            false => credits::held(frame.len(), charged).min(ROOM),
        };
        drop(frame);
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
}

/// The response to a call.
fn answer(call: &Call, answered: Answer, pended: bool) -> Response {
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
        Some(session) => {
            let signing = session.signing(&call.connection);
            signing.or_else(|| session.signing_elsewhere())
        }
        None => {
            let ended = call.connection.signing_of_ended(&call.message, call.header.session_id);
            ended.or_else(|| {
                let is_setup = call.header.command == Command::SessionSetup as u16;
                call.session_elsewhere().filter(|_| is_setup)?.signing_elsewhere()
            })
        }
    };
    if let Some(session) = reply.session.take() {
        header.session_id = session.id;
        let is_set_up = !status.is_error() && session.login().is_some();
        signed_by = session.signing(&call.connection).filter(|_| is_set_up && call.sealed_by.is_none());
    }
    Response { header, body: reply.body, data: reply.data, signed_by, seen_by: reply.sees_response }
}
