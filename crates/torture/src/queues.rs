//! The queue service under load, in a process that may die at any moment, and what must be true afterwards.
//!
//! There are three queues, each with a producer and a consumer. The producer puts the numbers from 1 on; the consumer
//! gets several at a time and deletes them in their order, every third after an update that makes its first receipt
//! worthless. Each acknowledges after the service did. So after a crash a queue must hold, each once, the numbers after
//! the last one deleted up to the last one put; or one fewer in front, or one more behind, which were under way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use lazuli_extents::Pace;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::xml;
use lazuli_queue::{QueueRows, QueueService};
use lazuli_store::{ReadError, Store, embedded};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, Replied, Work};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED};

/// Queues, with two clients each.
const QUEUES: usize = CLIENTS / 2;
/// A producer waits for its consumer at this depth, so that one look shows all that is there.
const DEPTH: u64 = 24;
/// How long a message is hidden from everybody after its consumer has died.
const TIMEOUT: Duration = Duration::from_secs(1);
/// By then the messages of a dead consumer are back.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often somebody who waits looks again.
const LOOK: Duration = Duration::from_millis(5);

type Refused = (StatusCode, String);

/// The worker's main.
pub fn work(parent: &Parent) {
    hosted::work::<Queues>(parent);
}

/// A message as its consumer holds it.
struct Held {
    id: String,
    receipt: String,
}

/// How clients acknowledge: they go on once the parent has it.
#[derive(Clone)]
struct Say(mpsc::Sender<(usize, u64, oneshot::Sender<()>)>);

impl Say {
    async fn ack(&self, client: usize, count: u64) {
        let (heard, wait) = oneshot::channel();
        self.0.send((client, count, heard)).await.expect("somebody listens");
        wait.await.expect("it was heard");
    }
}

/// The service on a directory.
#[derive(Clone)]
struct Queues {
    service: QueueService,
    host: Host,
}

impl Work for Queues {
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
        let mut seen = acknowledged.counts;
        for queue in 0..QUEUES {
            let [put, deleted] = [seen[2 * queue], seen[2 * queue + 1]];
            let there = self.all_there(queue).await;
            let (first, last) = (there.first().copied(), there.last().copied());
            let expected = [(put, deleted), (put + 1, deleted), (put, deleted + 1), (put + 1, deleted + 1)];
            let found =
                expected.into_iter().find(|(put, deleted)| there.iter().copied().eq(*deleted + 1..=*put));
            let (put, deleted) = found.unwrap_or_else(|| {
                panic!("queue {queue}: put up to {put}, deleted up to {deleted}; {first:?} to {last:?} are there: {there:?}")
            });
            (seen[2 * queue], seen[2 * queue + 1]) = (put, deleted);
        }
        seen
    }

    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let (say, mut said) = mpsc::channel(CLIENTS);
        let say = Say(say);
        for (queue, counts) in counts.chunks(2).enumerate() {
            let (put, deleted) = (counts[0], Arc::new(AtomicU64::new(counts[1])));
            let (queues, so_far, say_put) = (self.clone(), deleted.clone(), say.clone());
            running.spawn(async move { queues.produce(queue, put, &so_far, &say_put).await });
            let (queues, say_deleted) = (self.clone(), say.clone());
            running.spawn(async move { queues.consume(queue, &deleted, &say_deleted).await });
        }
        loop {
            tokio::select! {
                Some((client, count, heard)) = said.recv() => {
                    let stamp = self.host.store.stamp().ticks();
                    parent.ack(COMMITTED, &format!("{client} {count} {stamp}")).expect("the parent listens");
                    let _ = heard.send(());
                }
                Some(ended) = running.join_next() => {
                    let (status, refused) = ended.expect("a client does not panic");
                    return format!("{status} {refused}");
                }
            }
        }
    }

    async fn sweep(&self) -> String {
        hosted::sweep_garbage_again_and_again(async || self.service.sweep_garbage(Pace::FULL).await).await
    }
}

impl Queues {
    /// The numbers in a queue, in order, once as many are visible as are counted.
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
            let mut there: Vec<u64> = messages(&body).into_iter().map(|(n, _)| n).collect();
            there.sort_unstable();
            if Ok(there.len()) == count {
                return there;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "queue {queue}: {count:?} are counted and {there:?} are there"
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn produce(&self, queue: usize, mut put: u64, deleted: &AtomicU64, say: &Say) -> Refused {
        loop {
            while put - deleted.load(Ordering::SeqCst) >= DEPTH {
                tokio::time::sleep(LOOK).await;
            }
            put += 1;
            let body = format!("<QueueMessage><MessageText>{put}</MessageText></QueueMessage>");
            if let Err(refused) = self.call(Operation::PutMessage, queue, "messages", "", &body).await {
                return refused;
            }
            say.ack(2 * queue, put).await;
        }
    }

    async fn consume(&self, queue: usize, deleted: &AtomicU64, say: &Say) -> Refused {
        let mut held = BTreeMap::new();
        loop {
            let next = deleted.load(Ordering::SeqCst) + 1;
            match held.remove(&next) {
                None => match self.get(queue).await {
                    Ok(more) => {
                        if more.is_empty() {
                            tokio::time::sleep(LOOK).await;
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
                        say.ack(2 * queue + 1, next).await;
                    }
                    // Its time was over and it was got again, by this consumer, who is the only one.
                    Ok(false) => {}
                    Err(refused) => return refused,
                },
            }
        }
    }

    async fn get(&self, queue: usize) -> Result<Vec<(u64, Held)>, Refused> {
        let query = format!("numofmessages=5&visibilitytimeout={}", TIMEOUT.as_secs());
        let (_, body) = self.call(Operation::GetMessages, queue, "messages", &query, "").await?;
        Ok(messages(&body))
    }

    /// Deletes a message, every third one after an update. False if the receipt is an old one.
    async fn delete(&self, queue: usize, n: u64, message: Held) -> Result<bool, Refused> {
        let Held { id, mut receipt } = message;
        let object = format!("messages/{id}");
        let current = |done: Replied| match done {
            Ok((headers, _)) => Ok(Some(headers)),
            Err((StatusCode::NOT_FOUND, _)) => Ok(None),
            Err(refused) => Err(refused),
        };
        if n.is_multiple_of(3) {
            let query = format!("popreceipt={receipt}&visibilitytimeout={}", TIMEOUT.as_secs());
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

/// The messages of a reply, by their numbers. Those that were only looked at have no receipt.
fn messages(body: &[u8]) -> Vec<(u64, Held)> {
    let mut reader = xml::Reader::root(body, "QueueMessagesList").expect("a list");
    let mut messages = vec![];
    while reader.child().expect("a message").is_some() {
        let (mut number, mut held) = (0, Held { id: String::new(), receipt: String::new() });
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
