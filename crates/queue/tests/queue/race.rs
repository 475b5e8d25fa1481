//! Many concurrent clients: each message goes to one consumer at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use crate::support::{ListedMessage, Server, body, count, delete, get, get_one, put, start, update, visible};

const CONSUMERS: usize = 64;
const PRODUCERS: usize = 16;

/// Runs `number` clients in separate tasks and returns their results.
async fn clients<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    number: usize,
    client: impl Fn(usize) -> F,
) -> Vec<T> {
    let tasks: Vec<_> = (0..number).map(|n| tokio::spawn(client(n))).collect();
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

/// Puts the numbers below `messages`, from `producers` clients.
async fn produce(server: &Arc<Server>, producers: usize, messages: usize) {
    let next = Arc::new(AtomicUsize::new(0));
    let producers = clients(producers, |_| {
        let (server, next) = (server.clone(), next.clone());
        async move {
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    n if n < messages => drop(put(&server, &n.to_string(), "").await),
                    _ => return,
                }
            }
        }
    });
    producers.await;
}

/// Gets and deletes messages with many clients until `messages` are deleted. Returns their numbers, sorted.
async fn consume(server: &Arc<Server>, messages: usize) -> Vec<usize> {
    let deleted = Arc::new(AtomicUsize::new(0));
    let consumers = clients(CONSUMERS, |consumer| {
        let (server, deleted) = (server.clone(), deleted.clone());
        async move {
            let mut mine = vec![];
            while deleted.load(Ordering::Relaxed) < messages {
                for message in get(&server, &format!("?numofmessages={}", consumer % 32 + 1)).await {
                    assert_eq!(message.dequeue_count, Some(1));
                    delete(&server, &message).await.expect(204);
                    deleted.fetch_add(1, Ordering::Relaxed);
                    mine.push(message.text.unwrap().parse().unwrap());
                }
            }
            mine
        }
    });
    let mut delivered: Vec<usize> = consumers.await.into_iter().flatten().collect();
    delivered.sort_unstable();
    delivered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_consumers_drain_twenty_thousand_messages_each_delivered_once() {
    const MESSAGES: usize = 20_000;
    let server = Arc::new(start().await);
    produce(&server, CONSUMERS, MESSAGES).await;
    assert!(consume(&server, MESSAGES).await.into_iter().eq(0..MESSAGES));
    assert_eq!((count(&server).await, get(&server, "").await), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_put_while_consumers_poll_are_delivered_once() {
    const MESSAGES: usize = 2000;
    let server = Arc::new(start().await);
    let ((), delivered) = tokio::join!(produce(&server, PRODUCERS, MESSAGES), consume(&server, MESSAGES));
    assert!(delivered.into_iter().eq(0..MESSAGES));
    assert_eq!((count(&server).await, get(&server, "").await), (0, vec![]));
}

/// Gets all visible messages with many concurrent consumers.
async fn drain(server: &Arc<Server>) -> Vec<ListedMessage> {
    let got = clients(CONSUMERS, |_| {
        let server = server.clone();
        async move {
            let mut mine = vec![];
            loop {
                let got = get(&server, "?numofmessages=7&visibilitytimeout=20").await;
                if got.is_empty() {
                    return mine;
                }
                mine.extend(got);
            }
        }
    });
    got.await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn message_comes_back_once_after_its_timeout_with_a_higher_dequeue_count() {
    const MESSAGES: usize = 500;
    let server = Arc::new(start().await);
    for n in 0..MESSAGES {
        put(&server, &n.to_string(), "").await;
    }
    for round in 1..=3 {
        let got = drain(&server).await;
        let ids: BTreeSet<_> = got.iter().map(|message| &message.id).collect();
        assert_eq!((got.len(), ids.len()), (MESSAGES, MESSAGES), "round {round}");
        assert!(got.iter().all(|message| message.dequeue_count == Some(round)));
        server.advance(20);
    }
    assert_eq!(count(&server).await, MESSAGES as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_several_concurrent_updates_wins_and_its_receipt_is_valid() {
    let server = Arc::new(start().await);
    for _ in 0..20 {
        put(&server, "a", "").await;
        let held = get_one(&server, "").await;
        let outcomes = clients(8, |n| {
            let (server, held) = (server.clone(), held.clone());
            async move {
                let reply = update(&server, &held, 30, Some(&n.to_string())).await;
                match reply.outcome() {
                    (204, _) => reply.header("x-ms-popreceipt").map(str::to_owned),
                    outcome => {
                        assert_eq!(outcome, (404, "MessageNotFound"));
                        None
                    }
                }
            }
        });
        let receipts: Vec<_> = outcomes.await.into_iter().flatten().collect();
        assert_eq!(receipts.len(), 1);
        delete(&server, &held).await.refused(404, "MessageNotFound");
        let held = ListedMessage { receipt: receipts.into_iter().next(), ..held };
        delete(&server, &held).await.expect(204);
    }
    assert_eq!(count(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_concurrent_deletes_succeeds() {
    let server = Arc::new(start().await);
    for _ in 0..20 {
        let held = put(&server, "a", "").await;
        let outcomes = clients(8, |_| {
            let (server, held) = (server.clone(), held.clone());
            async move { delete(&server, &held).await.status.as_u16() }
        });
        let mut outcomes = outcomes.await;
        outcomes.sort_unstable();
        assert_eq!(outcomes, [204, 404, 404, 404, 404, 404, 404, 404]);
    }
    assert_eq!((count(&server).await, visible(&server).await.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_delete_and_get_have_one_winner() {
    let server = Arc::new(start().await);
    for _ in 0..50 {
        let sent = put(&server, "a", "").await;
        let (deleted, got) = tokio::join!(delete(&server, &sent), get(&server, ""));
        match (deleted.outcome(), got.first()) {
            ((204, _), None) => {}
            ((404, "MessageNotFound"), Some(got)) => drop(delete(&server, got).await.expect(204)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(count(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn puts_during_a_clear_are_cleared_or_kept_and_never_refused() {
    let server = Arc::new(start().await);
    let puts = clients(PRODUCERS, |_| {
        let server = server.clone();
        async move {
            for _ in 0..40 {
                put(&server, "a", "").await;
            }
        }
    });
    let clears = clients(2, |_| {
        let server = server.clone();
        async move {
            for _ in 0..20 {
                server.delete("/jobs/messages", "").await.expect(204);
                get(&server, "?numofmessages=3").await;
            }
        }
    });
    tokio::join!(puts, clears);
    let left = drain(&server).await.len() as u64;
    assert!(count(&server).await >= left);
    server.delete("/jobs/messages", "").await.expect(204);
    assert_eq!((count(&server).await, visible(&server).await.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queue_created_by_many_clients_is_created_once() {
    let server = Arc::new(start().await);
    for round in 0..5 {
        let outcomes = clients(16, |_| {
            let server = server.clone();
            async move { server.put(&format!("/queue-{round}"), "", "").await.status.as_u16() }
        });
        let mut by_status = BTreeMap::new();
        for status in outcomes.await {
            *by_status.entry(status).or_insert(0) += 1;
        }
        assert_eq!(by_status, BTreeMap::from([(201, 1), (204, 15)]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledged_put_is_seen_by_the_next_get() {
    let server = Arc::new(start().await);
    // Other clients keep peeking, so that the front of the queue is always being read.
    let stop = Arc::new(AtomicUsize::new(0));
    let peekers = clients(8, |_| {
        let (server, stop) = (server.clone(), stop.clone());
        async move {
            while stop.load(Ordering::Relaxed) == 0 {
                get(&server, "?peekonly=true").await;
                server.get("/jobs/messages?peekonly=true&numofmessages=32", "").await.expect(200);
            }
        }
    });
    let checks = async {
        for n in 0..300 {
            let sent = server.post("/jobs/messages", "", body(&n.to_string())).await.expect(201);
            let got = get_one(&server, "").await;
            assert!(sent.text().contains(&got.id));
            delete(&server, &got).await.expect(204);
        }
        stop.store(1, Ordering::Relaxed);
    };
    tokio::join!(peekers, checks);
}
