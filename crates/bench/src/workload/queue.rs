//! Workloads of messages. Each uses its own queue.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, OperationFailure};
use super::{Workload, encode, fill, fresh_name};

/// Bytes of a message's text, about as much as a typical reference to a job.
const TEXT_BYTES: usize = 512;

/// A queue of one workload.
#[derive(Clone)]
struct Queue {
    name: String,
    message: Bytes,
}

impl Queue {
    fn new() -> Self {
        let message = format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessage><MessageText>{}</MessageText></QueueMessage>",
            "m".repeat(TEXT_BYTES)
        );
        Self { name: fresh_name(), message: message.into() }
    }

    async fn create(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::PUT, format!("/{}", self.name), "");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn delete(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::DELETE, format!("/{}", self.name), "");
        client.send(call).await?.expect(StatusCode::NO_CONTENT).map(drop)
    }

    async fn put(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::POST, format!("/{}/messages", self.name), "")
            .header("content-type", "application/xml")
            .body(self.message.clone());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn get_and_delete(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = Call::new(Method::GET, format!("/{}/messages", self.name), "");
        let reply = client.send(call).await?.expect(StatusCode::OK)?;
        let document = String::from_utf8_lossy(&reply.body);
        let element = |name| {
            let (_, rest) = document.split_once(&format!("<{name}>"))?;
            rest.split_once('<').map(|(text, _)| text)
        };
        let (Some(id), Some(receipt)) = (element("MessageId"), element("PopReceipt")) else {
            return Err(OperationFailure::Wrong("no message was returned by a queue that has many"));
        };
        let path = format!("/{}/messages/{id}", self.name);
        let call = Call::new(Method::DELETE, path, format!("popreceipt={}", encode(receipt)));
        client.send(call).await?.expect(StatusCode::NO_CONTENT).map(drop)
    }

    /// Puts `depth` messages.
    async fn put_many(&self, client: &Client, depth: u64) -> Result<(), OperationFailure> {
        fill(client, depth, |mut client, numbers| {
            let queue = self.clone();
            async move {
                for _ in numbers {
                    queue.put(&mut client).await?;
                }
                Ok(())
            }
        })
        .await
    }
}

/// Put Message.
pub(super) struct PutMessage(Queue);

impl PutMessage {
    pub(super) fn new() -> Self {
        Self(Queue::new())
    }
}

#[async_trait]
impl Workload for PutMessage {
    fn name(&self) -> &'static str {
        "put-message"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Queue
    }

    fn about(&self) -> String {
        format!("put messages of {TEXT_BYTES} bytes")
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await
    }

    async fn run_one(&self, client: &mut Client, _: usize, _: u64) -> Result<(), OperationFailure> {
        self.0.put(client).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Puts a message, then gets and deletes one. The depth of the queue stays the same.
pub(super) struct MessageCycle {
    queue: Queue,
    depth: u64,
    name: &'static str,
}

impl MessageCycle {
    pub(super) fn at_a_thousand() -> Self {
        Self { queue: Queue::new(), depth: 1000, name: "message-cycle-1k" }
    }

    pub(super) fn at_ten_thousand() -> Self {
        Self { queue: Queue::new(), depth: 10_000, name: "message-cycle-10k" }
    }

    pub(super) fn at_a_million() -> Self {
        Self { queue: Queue::new(), depth: 1_000_000, name: "message-cycle-1m" }
    }
}

#[async_trait]
impl Workload for MessageCycle {
    fn name(&self) -> &'static str {
        self.name
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Queue
    }

    fn about(&self) -> String {
        format!("put, get and delete a message in a queue of {}", self.depth)
    }

    fn is_lazuli_only(&self) -> bool {
        self.depth > 10_000
    }

    fn takes_long(&self) -> bool {
        self.depth > 1000
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.queue.create(client).await?;
        self.queue.put_many(client, self.depth).await
    }

    async fn run_one(&self, client: &mut Client, _: usize, _: u64) -> Result<(), OperationFailure> {
        self.queue.put(client).await?;
        self.queue.get_and_delete(client).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.queue.delete(client).await
    }
}
