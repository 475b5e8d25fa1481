//! Update Message and Delete Message: what the holder of a message's current pop receipt may do.
//!
//! An id that this queue never gave out, a message that is gone, and a receipt that somebody else's get or update has
//! overtaken are all 404. A receipt of another message is 400, and so is what is no receipt at all, whatever the id.

use http::{HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::Span;
use lazuli_generations::carry_through;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, date, names};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};

use crate::put::SEVEN_DAYS;
use crate::record::Message;
use crate::slot::{MessageId, PopReceipt, Slot};
use crate::{LATENESS, QueueService, document, keys};

const VISIBILITY_TIMEOUT: &str = "visibilitytimeout";
const POP_RECEIPT: &str = "popreceipt";
const X_MS_POP_RECEIPT: HeaderName = HeaderName::from_static("x-ms-popreceipt");
const X_MS_TIME_NEXT_VISIBLE: HeaderName = HeaderName::from_static("x-ms-time-next-visible");

/// A message as its holder names it: id and pop receipt, as they were sent.
struct Held {
    id: String,
    receipt: String,
}

impl Held {
    /// The message that a request addresses.
    fn of(request: &Request) -> Result<Self, Refusal> {
        names::check_queue(&request.container)?;
        let receipt = request.query.required(POP_RECEIPT)?.to_owned();
        let id = request.object.split_once('/').map_or("", |(_, id)| id).to_owned();
        Ok(Self { id, receipt })
    }

    /// The slot that it is in, if the receipt is right.
    fn slot(&self, queue: SpaceId) -> Result<(MessageId, Slot), Refusal> {
        let PopReceipt(slot) = self.receipt.parse().map_err(|_| {
            Refusal::invalid_query(POP_RECEIPT, &*self.receipt, "Invalid pop receipt format.")
        })?;
        let id = MessageId::parse(&self.id, queue).ok_or(ErrorCode::MessageNotFound)?;
        Ok((id, slot))
    }
}

/// The message of that id, if it is still in that slot.
fn held<'a>(view: &'a View<'_>, id: MessageId, slot: Slot) -> Result<Message<'a>, Refusal> {
    let row = view.row(&keys::message(slot)).ok_or(ErrorCode::MessageNotFound)?;
    let message = Message::decode(&row.value)?;
    if message.id() != id {
        return Err(ErrorCode::PopReceiptMismatch.into());
    }
    if message.has_expired(view.now) {
        return Err(ErrorCode::MessageNotFound.into());
    }
    Ok(message)
}

impl QueueService {
    /// Update Message.
    pub(crate) async fn update_message(&self, mut request: Request) -> Result<Response, Refusal> {
        let held = Held::of(&request)?;
        let timeout = request.query.number(VISIBILITY_TIMEOUT, 0..=SEVEN_DAYS)?;
        let timeout = timeout.ok_or_else(|| Refusal::missing_query(VISIBILITY_TIMEOUT))?;
        let timeout = Span::seconds(timeout.unsigned_abs());
        let text = document::read_text(&mut request).await?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        let slot = carry_through(async move {
            let update = |space| service.update(space, &held, timeout, text.as_deref());
            service.in_queue(&account, &name, update).await
        });
        let slot = slot.await?;
        let mut response = Response::empty(StatusCode::NO_CONTENT);
        if let Ok(receipt) = HeaderValue::try_from(PopReceipt(slot).to_string()) {
            response.headers.insert(X_MS_POP_RECEIPT, receipt);
        }
        response.headers.insert(X_MS_TIME_NEXT_VISIBLE, date::header_value(slot.visible_at));
        Ok(response)
    }

    async fn update(
        &self,
        space: SpaceId,
        message: &Held,
        timeout: Span,
        text: Option<&str>,
    ) -> Result<Slot, Refusal> {
        let (id, old) = message.slot(space)?;
        let line = self.lines.of(space);
        let key = keys::message(old);
        let moved = self.transact(space, Reads::key(key.clone()), |view| {
            let mut message = held(view, id, old)?;
            let slot = Slot { visible_at: view.now + timeout, stamp: view.stamp, index: 0 };
            if slot.visible_at > message.expires() {
                let reason = "The message expires before it would become visible.";
                let seconds = timeout.seconds_rounded_up().to_string();
                return Err(Refusal::invalid_query(VISIBILITY_TIMEOUT, seconds, reason));
            }
            if let Some(text) = text {
                message.text = text.into();
            }
            let put = Mutation::Put(keys::message(slot), message.encode()?);
            let change = Change::of([Mutation::Delete(key.clone()), put]);
            let until = message.expires().min(view.now + LATENESS);
            Ok(Decision::Write(change.until(Some(until)), (slot, message.expires())))
        });
        let (slot, expires) = moved.await?;
        line.written([slot]);
        // It may have gone from before somebody who looks for what expires to behind.
        self.expiry.expect(space, expires);
        Ok(slot)
    }

    /// Delete Message.
    pub(crate) async fn delete_message(&self, request: Request) -> Result<Response, Refusal> {
        let held = Held::of(&request)?;
        self.in_queue(&request.account, &request.container, |space| self.delete(space, &held)).await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    async fn delete(&self, space: SpaceId, message: &Held) -> Result<(), Refusal> {
        let (id, slot) = message.slot(space)?;
        let key = keys::message(slot);
        let deleted = self.transact(space, Reads::key(key.clone()), |view| {
            let message = held(view, id, slot)?;
            let change = Change::of([Mutation::Delete(key.clone()), Mutation::Add(keys::COUNT, -1)]);
            Ok(Decision::Write(change.until(Some(message.expires())), ()))
        });
        deleted.await
    }
}
