//! Update Message and Delete Message, which require the message's current pop receipt.
//!
//! The reply is 404 for an id that the queue never gave out, for a message that no longer exists, and for a
//! receipt that a later get or update has invalidated. It is 400 for the receipt of another message, and for
//! a text that is not a receipt, whatever the id.

use http::{HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::Span;
use lazuli_protocol::conflict::Conflict;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, date, names};
use lazuli_service::run_to_completion;
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};

use crate::put::SEVEN_DAYS;
use crate::record::Message;
use crate::slot::{MessageId, PopReceipt, Slot};
use crate::{MAX_COMMIT_DELAY, QueueService, document, keys};

const VISIBILITY_TIMEOUT: &str = "visibilitytimeout";
const POP_RECEIPT: &str = "popreceipt";
const X_MS_POP_RECEIPT: HeaderName = HeaderName::from_static("x-ms-popreceipt");
const X_MS_TIME_NEXT_VISIBLE: HeaderName = HeaderName::from_static("x-ms-time-next-visible");

/// The id and the pop receipt by which a request names a message, as they were sent.
struct MessageAddress {
    id: String,
    receipt: String,
}

impl MessageAddress {
    /// Reads the address from a request.
    fn from_request(request: &Request) -> Result<Self, Refusal> {
        names::check_queue(&request.container)?;
        let receipt = request.query.required(POP_RECEIPT)?.to_owned();
        let id = request.object.split_once('/').map_or("", |(_, id)| id).to_owned();
        Ok(Self { id, receipt })
    }

    /// Parses the id and the receipt, and returns the slot in which the message must be.
    fn parse(&self, queue: SpaceId) -> Result<(MessageId, Slot), Refusal> {
        let PopReceipt(slot) = self.receipt.parse().map_err(|_| {
            Refusal::invalid_query(POP_RECEIPT, &*self.receipt, "Invalid pop receipt format.")
        })?;
        let id = MessageId::parse(&self.id, queue).ok_or(ErrorCode::MessageNotFound)?;
        Ok((id, slot))
    }
}

/// Returns the message with the given id, if it is still in the given slot.
fn current_message<'a>(view: &'a View<'_>, id: MessageId, slot: Slot) -> Result<Message<'a>, Refusal> {
    let row = view.row(&keys::message(slot)).ok_or_else(|| late(slot, ErrorCode::MessageNotFound))?;
    let message = Message::decode(&row.value)?;
    if message.id() != id {
        return Err(late(slot, ErrorCode::PopReceiptMismatch));
    }
    if message.has_expired(view.now) {
        return Err(ErrorCode::MessageNotFound.into());
    }
    Ok(message)
}

/// Returns the refusal of a receipt that is no longer valid. The receipt says until when it was.
fn late(slot: Slot, code: ErrorCode) -> Refusal {
    let conflict =
        Conflict { condition: Some("popreceipt"), lease_ended: Some(slot.visible_at), ..Conflict::default() };
    Refusal::new(code).with_conflict(conflict)
}

impl QueueService {
    /// Update Message.
    pub(crate) async fn update_message(&self, mut request: Request) -> Result<Response, Refusal> {
        let address = MessageAddress::from_request(&request)?;
        let timeout = request.query.number(VISIBILITY_TIMEOUT, 0..=SEVEN_DAYS)?;
        let timeout = timeout.ok_or_else(|| Refusal::missing_query(VISIBILITY_TIMEOUT))?;
        let timeout = Span::seconds(timeout.unsigned_abs());
        let text = document::read_text(&mut request).await?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        let slot = run_to_completion(async move {
            let update = |space| service.update(space, &address, timeout, text.as_deref());
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
        address: &MessageAddress,
        timeout: Span,
        text: Option<&str>,
    ) -> Result<Slot, Refusal> {
        let (id, old) = address.parse(space)?;
        let cache = self.candidates.of(space);
        let key = keys::message(old);
        let moved = self.transact(space, Reads::key(key.clone()), |view| {
            let mut message = current_message(view, id, old)?;
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
            let until = message.expires().min(view.now + MAX_COMMIT_DELAY);
            Ok(Decision::Write(change.until(Some(until)), (slot, message.expires())))
        });
        let (slot, expires) = moved.await?;
        cache.record_written([slot]);
        // The message may have moved from a slot after the position of a running expiry walk to one before
        // it.
        self.expiry.expect(space, expires);
        Ok(slot)
    }

    /// Delete Message.
    pub(crate) async fn delete_message(&self, request: Request) -> Result<Response, Refusal> {
        let address = MessageAddress::from_request(&request)?;
        self.in_queue(&request.account, &request.container, |space| self.delete(space, &address)).await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    async fn delete(&self, space: SpaceId, address: &MessageAddress) -> Result<(), Refusal> {
        let (id, slot) = address.parse(space)?;
        let key = keys::message(slot);
        let deleted = self.transact(space, Reads::key(key.clone()), |view| {
            let message = current_message(view, id, slot)?;
            let change = Change::of([Mutation::Delete(key.clone()), Mutation::Add(keys::COUNT, -1)]);
            Ok(Decision::Write(change.until(Some(message.expires())), ()))
        });
        deleted.await
    }
}
