//! Starts queue services for tests, and sends requests to them.

use lazuli_protocol::{ServiceKind, xml};
use lazuli_queue::QueueService;
use lazuli_testing::{Reply, TestServer};

pub(crate) type Server = TestServer<QueueService>;

/// Creates a queue service on a store.
pub(crate) fn make(parts: lazuli_testing::Parts) -> QueueService {
    QueueService::new(parts.store, parts.accounts)
}

/// Starts a server without queues.
pub(crate) async fn start_empty() -> Server {
    lazuli_testing::start(ServiceKind::Queue, make).await
}

/// Starts a server with the queue `jobs`.
pub(crate) async fn start() -> Server {
    let server = start_empty().await;
    server.put("/jobs", "", "").await.expect(201);
    server
}

/// A message in a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedMessage {
    pub(crate) id: String,
    pub(crate) inserted: String,
    pub(crate) expires: String,
    pub(crate) receipt: Option<String>,
    pub(crate) next_visible: Option<String>,
    pub(crate) dequeue_count: Option<u32>,
    pub(crate) text: Option<String>,
}

/// Parses the messages in a reply.
pub(crate) fn messages(reply: &Reply) -> Vec<ListedMessage> {
    assert_eq!(reply.header("content-type"), Some("application/xml"));
    let mut reader = xml::Reader::root(&reply.body, "QueueMessagesList").unwrap();
    let mut messages = vec![];
    while let Some(element) = reader.child().unwrap() {
        assert_eq!(element, "QueueMessage");
        let mut message = ListedMessage::default();
        while let Some(element) = reader.child().unwrap() {
            let element = element.to_owned();
            let text = reader.text().unwrap();
            match &*element {
                "MessageId" => message.id = text,
                "InsertionTime" => message.inserted = text,
                "ExpirationTime" => message.expires = text,
                "PopReceipt" => message.receipt = Some(text),
                "TimeNextVisible" => message.next_visible = Some(text),
                "DequeueCount" => message.dequeue_count = Some(text.parse().unwrap()),
                "MessageText" => message.text = Some(text),
                other => panic!("{other}"),
            }
        }
        messages.push(message);
    }
    messages
}

/// Returns the body that puts a text. The text must need no XML escapes.
pub(crate) fn body(text: &str) -> String {
    format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>")
}

/// Puts a message into `jobs`. `query` is empty or begins with a question mark.
pub(crate) async fn put(server: &Server, text: &str, query: &str) -> ListedMessage {
    let reply = server.post(&format!("/jobs/messages{query}"), "", body(text)).await.expect(201);
    messages(&reply).remove(0)
}

/// Gets messages from `jobs`.
pub(crate) async fn get(server: &Server, query: &str) -> Vec<ListedMessage> {
    messages(&server.get(&format!("/jobs/messages{query}"), "").await.expect(200))
}

/// Gets messages from `jobs` and returns the only one.
pub(crate) async fn get_one(server: &Server, query: &str) -> ListedMessage {
    let got = get(server, query).await;
    assert_eq!(got.len(), 1);
    got.into_iter().next().unwrap()
}

/// Returns the texts of the first 32 visible messages in `jobs`.
pub(crate) async fn visible(server: &Server) -> Vec<String> {
    let seen = get(server, "?peekonly=true&numofmessages=32").await;
    seen.into_iter().map(|message| message.text.unwrap()).collect()
}

/// Deletes a message of `jobs` by id and receipt.
pub(crate) async fn delete(server: &Server, message: &ListedMessage) -> Reply {
    let (id, receipt) = (&message.id, message.receipt.as_deref().unwrap());
    server.delete(&format!("/jobs/messages/{id}?popreceipt={receipt}"), "").await
}

/// Updates a message of `jobs` by id and receipt.
pub(crate) async fn update(
    server: &Server,
    message: &ListedMessage,
    timeout: u32,
    text: Option<&str>,
) -> Reply {
    let (id, receipt) = (&message.id, message.receipt.as_deref().unwrap());
    let target = format!("/jobs/messages/{id}?popreceipt={receipt}&visibilitytimeout={timeout}");
    server.put(&target, "", text.map(body).unwrap_or_default()).await
}

/// Returns the number of messages that `jobs` reports.
pub(crate) async fn count(server: &Server) -> u64 {
    let reply = server.get("/jobs?comp=metadata", "").await.expect(200);
    reply.header("x-ms-approximate-messages-count").unwrap().parse().unwrap()
}
