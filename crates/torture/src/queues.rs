//! The queue service under load in a process that is killed or loses power, and the verification afterwards.
//!
//! There are three queues, each with a producer and a consumer. The producer puts numbers, beginning with 1.
//! The consumer gets several messages at a time and deletes them in order, every third one after an update
//! that invalidates its first pop receipt. Each acknowledges after the service did. So after a crash a queue
//! must have, exactly once, the numbers after the last deleted one up to the last put one. One more deletion
//! and one more put may have been in flight.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::Pace;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::xml;
use lazuli_queue::{QueueRows, QueueService};
use lazuli_store::{ReadError, Store, embedded};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, HostedService, Replied};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED};

/// Number of queues, with two clients each.
const QUEUES: usize = CLIENTS / 2;
/// Maximum number of messages in a queue, so that one peek shows all of them.
const DEPTH: u64 = 24;
/// Visibility timeout of a message, which ends after its consumer was killed.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(1);
/// Time within which the messages of a killed consumer must be visible again.
const REAPPEAR_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

type Refused = (StatusCode, String);

/// Runs the worker process.
pub fn work(parent: &Parent) {
    hosted::work::<Queues>(parent);
}

/// A message that a consumer received.
struct ReceivedMessage {
    id: String,
    receipt: String,
}

/// Sends acknowledgments of clients, which continue after the parent has recorded them.
#[derive(Clone)]
struct AckSender(mpsc::Sender<(usize, u64, oneshot::Sender<()>)>);

impl AckSender {
    async fn ack(&self, client: usize, count: u64) {
        let (recorded, wait) = oneshot::channel();
        self.0.send((client, count, recorded)).await.expect("the run is listening");
        wait.await.expect("recorded");
    }
}

/// The queue service of a data directory.
#[derive(Clone)]
struct Queues {
    service: QueueService,
    host: Host,
}

impl HostedService for Queues {
    async fn check(dir: &Path) -> Result<(), String> {
        let mut rows = QueueRows::default();
        let read = embedded::check(&dir.join("store"), |space, partition, row| {
            let checked = rows.check(space, partition, row);
            checked.map_err(|damage| ReadError::Damaged(damage.to_string()))
        });
        read.map(drop).map_err(|error| error.to_string())
    }

    async fn open(host: Host, _: &Path) -> Self {
        let service = QueueService::new(host.store.clone(), host.accounts.clone());
        let queues = Self { service, host };
        for queue in 0..QUEUES {
            queues.call(Operation::CreateQueue, queue, "", "", "").await.expect("made, or there");
        }
        queues
    }

    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let mut counts = acknowledged.counts;
        for queue in 0..QUEUES {
            let [put, deleted] = [counts[2 * queue], counts[2 * queue + 1]];
            let found_numbers = self.all_there(queue).await;
            let (first, last) = (found_numbers.first().copied(), found_numbers.last().copied());
            let expected = [(put, deleted), (put + 1, deleted), (put, deleted + 1), (put + 1, deleted + 1)];
            let found = expected
                .into_iter()
                .find(|(put, deleted)| found_numbers.iter().copied().eq(*deleted + 1..=*put));
            let (put, deleted) = found.unwrap_or_else(|| {
                panic!("queue {queue}: put up to {put}, deleted up to {deleted}; {first:?} to {last:?} are there: {found_numbers:?}")
            });
            (counts[2 * queue], counts[2 * queue + 1]) = (put, deleted);
        }
        counts
    }

    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let (ack_sender, mut acks) = mpsc::channel(CLIENTS);
        let ack_sender = AckSender(ack_sender);
        for (queue, counts) in counts.chunks(2).enumerate() {
            let (put, deleted) = (counts[0], Arc::new(AtomicU64::new(counts[1])));
            let (queues, so_far, say_put) = (self.clone(), deleted.clone(), ack_sender.clone());
            running.spawn(async move { queues.produce(queue, put, &so_far, &say_put).await });
            let (queues, say_deleted) = (self.clone(), ack_sender.clone());
            running.spawn(async move { queues.consume(queue, &deleted, &say_deleted).await });
        }
        loop {
            tokio::select! {
                Some((client, count, recorded)) = acks.recv() => {
                    let stamp = self.host.store.stamp().ticks();
                    parent.ack(COMMITTED, &format!("{client} {count} {stamp}")).expect("the parent listens");
                    let _ = recorded.send(());
                }
                Some(ended) = running.join_next() => {
                    let (status, refused) = ended.expect("a client does not panic");
                    return format!("{status} {refused}");
                }
            }
        }
    }

    async fn sweep(&self) -> String {
        hosted::sweep_garbage_continuously(async || self.service.sweep_garbage(Pace::FULL).await).await
    }
}

impl Queues {
    /// Returns the numbers in a queue, in order, once as many messages are visible as are counted.
    async fn all_there(&self, queue: usize) -> Vec<u64> {
        let begun = Instant::now();
        loop {
            let (headers, _) = self
                .call(Operation::GetQueueMetadata, queue, "", "comp=metadata", "")
                .await
                .expect("counted");
            let count = headers["x-ms-approximate-messages-count"].to_str().expect("text").parse::<usize>();
            let query = "peekonly=true&numofmessages=32";
            let (_, body) =
                self.call(Operation::PeekMessages, queue, "messages", query, "").await.expect("seen");
            let mut found_numbers: Vec<u64> = messages(&body).into_iter().map(|(n, _)| n).collect();
            found_numbers.sort_unstable();
            if Ok(found_numbers.len()) == count {
                return found_numbers;
            }
            assert!(
                begun.elapsed() < REAPPEAR_TIMEOUT,
                "queue {queue}: {count:?} are counted and {found_numbers:?} are there"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn produce(
        &self,
        queue: usize,
        mut put: u64,
        deleted: &AtomicU64,
        ack_sender: &AckSender,
    ) -> Refused {
        loop {
            while put - deleted.load(Ordering::SeqCst) >= DEPTH {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            put += 1;
            let body = format!("<QueueMessage><MessageText>{put}</MessageText></QueueMessage>");
            if let Err(refused) = self.call(Operation::PutMessage, queue, "messages", "", &body).await {
                return refused;
            }
            ack_sender.ack(2 * queue, put).await;
        }
    }

    async fn consume(&self, queue: usize, deleted: &AtomicU64, ack_sender: &AckSender) -> Refused {
        let mut held = BTreeMap::new();
        loop {
            let next = deleted.load(Ordering::SeqCst) + 1;
            match held.remove(&next) {
                None => match self.get(queue).await {
                    Ok(more) => {
                        if more.is_empty() {
                            tokio::time::sleep(POLL_INTERVAL).await;
                        }
                        for (n, message) in more {
                            assert!(n >= next, "queue {queue}: {n} was deleted and is back");
                            held.insert(n, message);
                        }
                    }
                    Err(refused) => return refused,
                },
                Some(message) => match self.delete(queue, next, message).await {
                    Ok(true) => {
                        deleted.store(next, Ordering::SeqCst);
                        ack_sender.ack(2 * queue + 1, next).await;
                    }
                    // The message became visible again and was received again, by this consumer, the only
                    // one.
                    Ok(false) => {}
                    Err(refused) => return refused,
                },
            }
        }
    }

    async fn get(&self, queue: usize) -> Result<Vec<(u64, ReceivedMessage)>, Refused> {
        let query = format!("numofmessages=5&visibilitytimeout={}", VISIBILITY_TIMEOUT.as_secs());
        let (_, body) = self.call(Operation::GetMessages, queue, "messages", &query, "").await?;
        Ok(messages(&body))
    }

    /// Deletes a message, every third one after an update. Returns false if the pop receipt is outdated.
    async fn delete(&self, queue: usize, n: u64, message: ReceivedMessage) -> Result<bool, Refused> {
        let ReceivedMessage { id, mut receipt } = message;
        let object = format!("messages/{id}");
        let current = |done: Replied| match done {
            Ok((headers, _)) => Ok(Some(headers)),
            Err((StatusCode::NOT_FOUND, _)) => Ok(None),
            Err(refused) => Err(refused),
        };
        if n.is_multiple_of(3) {
            let query = format!("popreceipt={receipt}&visibilitytimeout={}", VISIBILITY_TIMEOUT.as_secs());
            let updated = self.call(Operation::UpdateMessage, queue, &object, &query, "").await;
            let Some(headers) = current(updated)? else { return Ok(false) };
            receipt = headers["x-ms-popreceipt"].to_str().expect("text").to_owned();
        }
        let query = format!("popreceipt={receipt}");
        let deleted = self.call(Operation::DeleteMessage, queue, &object, &query, "").await;
        Ok(current(deleted)?.is_some())
    }

    async fn call(
        &self,
        operation: Operation,
        queue: usize,
        object: &str,
        query: &str,
        body: &str,
    ) -> Replied {
        let (queue, body) = (format!("queue-{queue}"), Bytes::copy_from_slice(body.as_bytes()));
        self.host.call(&self.service, operation, (&queue, object), query, &[], body).await
    }
}

/// Returns the messages of a reply with their numbers. Peeked messages have no pop receipt.
fn messages(body: &[u8]) -> Vec<(u64, ReceivedMessage)> {
    let mut reader = xml::Reader::root(body, "QueueMessagesList").expect("a list");
    let mut messages = vec![];
    while reader.child().expect("a message").is_some() {
        let (mut number, mut held) = (0, ReceivedMessage { id: String::new(), receipt: String::new() });
        while let Some(element) = reader.child().expect("an element") {
            let element = element.to_owned();
            let text = reader.text().expect("text");
            match &*element {
                "MessageId" => held.id = text,
                "PopReceipt" => held.receipt = text,
                "MessageText" => number = text.parse().expect("a number"),
                _ => {}
            }
        }
        messages.push((number, held));
    }
    messages
}
