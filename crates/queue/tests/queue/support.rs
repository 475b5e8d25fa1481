//! A queue service to be tested, and what most tests need.

use lazuli_protocol::{ServiceKind, xml};
use lazuli_queue::QueueService;
use lazuli_testing::{Reply, TestServer};

pub(crate) type Server = TestServer<QueueService>;

/// A front end on a store.
pub(crate) fn make(parts: lazuli_testing::Parts) -> QueueService {
    QueueService::new(parts.store, parts.accounts)
}

/// A server without queues.
pub(crate) async fn start_empty() -> Server {
    lazuli_testing::start(ServiceKind::Queue, make).await
}

/// A server with a queue `jobs`.
pub(crate) async fn start() -> Server {
    let server = start_empty().await;
    server.put("/jobs", "", "").await.expect(201);
    server
}

/// A message as a reply shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) inserted: String,
    pub(crate) expires: String,
    pub(crate) receipt: Option<String>,
    pub(crate) next_visible: Option<String>,
    pub(crate) dequeue_count: Option<u32>,
    pub(crate) text: Option<String>,
}

/// The messages of a reply.
pub(crate) fn messages(reply: &Reply) -> Vec<Shown> {
    assert_eq!(reply.header("content-type"), Some("application/xml"));
    let mut reader = xml::Reader::root(&reply.body, "QueueMessagesList").unwrap();
    let mut messages = vec![];
    while let Some(element) = reader.child().unwrap() {
        assert_eq!(element, "QueueMessage");
        let mut message = Shown::default();
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

/// The body that puts a text. It has to be good for XML as it is.
pub(crate) fn body(text: &str) -> String {
    format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>")
}

/// Puts a message into `jobs`; `query` begins with a question mark, if there is one.
pub(crate) async fn put(server: &Server, text: &str, query: &str) -> Shown {
    let reply = server.post(&format!("/jobs/messages{query}"), "", body(text)).await.expect(201);
    messages(&reply).remove(0)
}

/// Gets messages from `jobs`.
pub(crate) async fn get(server: &Server, query: &str) -> Vec<Shown> {
    messages(&server.get(&format!("/jobs/messages{query}"), "").await.expect(200))
}

/// Gets one message that has to be there.
pub(crate) async fn get_one(server: &Server, query: &str) -> Shown {
    let got = get(server, query).await;
    assert_eq!(got.len(), 1);
    got.into_iter().next().unwrap()
}

/// What is visible in `jobs`: the first 32 texts.
pub(crate) async fn visible(server: &Server) -> Vec<String> {
    let seen = get(server, "?peekonly=true&numofmessages=32").await;
    seen.into_iter().map(|message| message.text.unwrap()).collect()
}

/// Deletes a message of `jobs` by id and receipt.
pub(crate) async fn delete(server: &Server, message: &Shown) -> Reply {
    let (id, receipt) = (&message.id, message.receipt.as_deref().unwrap());
    server.delete(&format!("/jobs/messages/{id}?popreceipt={receipt}"), "").await
}

/// Updates a message of `jobs` by id and receipt.
pub(crate) async fn update(server: &Server, message: &Shown, timeout: u32, text: Option<&str>) -> Reply {
    let (id, receipt) = (&message.id, message.receipt.as_deref().unwrap());
    let target = format!("/jobs/messages/{id}?popreceipt={receipt}&visibilitytimeout={timeout}");
    server.put(&target, "", text.map(body).unwrap_or_default()).await
}

/// How many messages `jobs` says it has.
pub(crate) async fn count(server: &Server) -> u64 {
    let reply = server.get("/jobs?comp=metadata", "").await.expect(200);
    reply.header("x-ms-approximate-messages-count").unwrap().parse().unwrap()
}
