//! Concurrent clients over a real port: no update is lost, batches are atomic for readers, and of several
//! conflicting requests exactly one succeeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::task::JoinSet;

use crate::batch::{BATCH, change_set, parts, query, send};
use crate::support::{JSON, Server, at, fill, insert, start, start_with_runs};

const CLIENTS: usize = 32;
/// Number of successful updates of each client.
const UPDATES: usize = 3;
/// Number of races, each with one winner.
const ROUNDS: usize = 12;

fn conditional(tag: &str) -> String {
    format!("{JSON}\nif-match: {tag}")
}

/// Returns the value of the property `N` of an entity.
fn counter(json: &str) -> usize {
    serde_json::from_str::<serde_json::Value>(json).unwrap()["N"].as_u64().unwrap() as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditional_replaces_lose_no_update() {
    let server = Arc::new(start().await);
    insert(&server, "p", "r", r#""N":0"#).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (server, refused) = (server.clone(), refused.clone());
        clients.spawn(async move {
            let mut successes = 0;
            while successes < UPDATES {
                let read = server.get(&at("p", "r"), JSON).await.expect(200);
                let body = format!(r#"{{"N":{}}}"#, counter(read.text()) + 1);
                let headers = conditional(read.etag());
                // Half of the clients use transactions, which follow the same rule.
                let outcome = if client % 2 == 0 {
                    server.put(&at("p", "r"), &headers, body).await.status.as_u16()
                } else {
                    send(&server, &[(&format!("PUT {}", at("p", "r")), &headers, &body)]).await[0].status
                };
                match outcome {
                    204 => successes += 1,
                    412 => _ = refused.fetch_add(1, Ordering::Relaxed),
                    other => panic!("{other}"),
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let found = server.get(&at("p", "r"), JSON).await.expect(200);
    assert_eq!(counter(found.text()), CLIENTS * UPDATES);
    assert!(refused.load(Ordering::Relaxed) > 0, "no update conflicted");
}

/// How a reader reads the rows.
#[derive(Clone, Copy)]
enum ReadMethod {
    /// One row after the other, each alone or in a batch.
    Points,
    BatchedPoints,
    /// All rows with one query, alone or in a batch.
    Query,
    BatchedQuery,
    /// All rows among many others, with a filter on a property.
    Filter,
}

impl ReadMethod {
    /// Returns the numbers in the rows, in order.
    async fn numbers(self, server: &Server, targets: &[String]) -> Vec<usize> {
        let all = "/people()?$filter=PartitionKey%20eq%20'p'%20and%20RowKey%20lt%20'8'";
        let batched = |target: &str| server.post("/$batch", BATCH, query(target));
        match self {
            Self::Points | Self::BatchedPoints => {
                let mut numbers = Vec::new();
                for target in targets {
                    numbers.push(match self {
                        Self::Points => counter(server.get(target, JSON).await.expect(200).text()),
                        _ => counter(parts(batched(target).await)[0].body()),
                    });
                }
                numbers
            }
            Self::Query => listed(server.get(all, JSON).await.expect(200).text()),
            Self::BatchedQuery => listed(parts(batched(all).await)[0].body()),
            Self::Filter => listed(server.get("/people()?$filter=N%20ge%200", JSON).await.expect(200).text()),
        }
    }
}

/// Returns the numbers in a list of entities.
fn listed(json: &str) -> Vec<usize> {
    let list: serde_json::Value = serde_json::from_str(json).unwrap();
    list["value"].as_array().unwrap().iter().map(|entity| counter(&entity.to_string())).collect()
}

/// Races a writer with readers. The writer sets all rows to the next number in one batch. A query must return
/// the same number for all rows. A reader of one row after the other must never see a smaller number after a
/// larger one.
async fn write_and_read(methods: Vec<ReadMethod>, fillers: usize) {
    const ROWS: usize = 8;
    const BATCHES: usize = 60;
    let server = Arc::new(start_with_runs().await);
    let targets: Arc<Vec<_>> = Arc::new((0..ROWS).map(|row| at("p", &row.to_string())).collect());
    let lines: Vec<_> = targets.iter().map(|target| format!("PUT {target}")).collect();
    let write = |number: usize| {
        let body = format!(r#"{{"N":{number}}}"#);
        let operations: Vec<_> = lines.iter().map(|line| (line.as_str(), JSON, body.as_str())).collect();
        server.post("/$batch", BATCH, change_set(&operations))
    };
    assert_eq!(parts(write(0).await).len(), ROWS);
    if fillers > 0 {
        let others = |row| (0..fillers).map(move |other| format!("{row}-{other}"));
        fill(&server, "p", (0..ROWS).flat_map(others)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for method in methods {
        let (server, targets, stop) = (server.clone(), targets.clone(), stop.clone());
        readers.spawn(async move {
            let (mut last, mut changes) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let numbers = method.numbers(&server, &targets).await;
                assert_eq!(numbers.len(), ROWS);
                if matches!(method, ReadMethod::Query | ReadMethod::BatchedQuery | ReadMethod::Filter) {
                    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                }
                assert!(numbers.is_sorted() && last <= numbers[0], "{numbers:?} after {last}");
                changes += usize::from(numbers[0] > last);
                last = numbers[ROWS - 1];
            }
            changes
        });
    }
    for number in 1..=BATCHES {
        assert_eq!(parts(write(number).await).len(), ROWS);
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(changes) = readers.join_next().await {
        assert!(changes.unwrap() > 1, "a reader saw no change");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_atomic_for_readers() {
    write_and_read(
        vec![
            ReadMethod::Points,
            ReadMethod::BatchedPoints,
            ReadMethod::Query,
            ReadMethod::Query,
            ReadMethod::BatchedQuery,
            ReadMethod::Filter,
        ],
        0,
    )
    .await;
}

/// There are many other rows between the rows of the batch, so the store keeps them in different runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_atomic_for_scans_from_memory() {
    write_and_read(vec![ReadMethod::Filter, ReadMethod::Filter, ReadMethod::Filter], 150).await;
}

/// Several clients send batches for the same rows, conditional on the same ETags. One batch succeeds
/// completely.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_batches_with_the_same_etags_wins() {
    let server = Arc::new(start().await);
    let (a, b) = (at("p", "a"), at("p", "b"));
    for round in 0..ROUNDS {
        let prepared = [format!("PUT {a}"), format!("PUT {b}")];
        let replies = send(&server, &[(&prepared[0], JSON, "{}"), (&prepared[1], JSON, "{}")]).await;
        let tag = replies[0].header("ETag").unwrap().to_owned();
        let mut clients = JoinSet::new();
        for client in 0..8 {
            let (server, a, b, tag) = (server.clone(), a.clone(), b.clone(), tag.clone());
            clients.spawn(async move {
                let headers = conditional(&tag);
                let body = format!(r#"{{"N":{client}}}"#);
                let (a, b) = (format!("MERGE {a}"), format!("PUT {b}"));
                let order = if client % 2 == 0 { [&a, &b] } else { [&b, &a] };
                let parts = send(&server, &[(order[0], &headers, &body), (order[1], &headers, &body)]).await;
                parts[0].status
            });
        }
        let outcomes = clients.join_all().await;
        let won = outcomes.iter().filter(|status| **status == 204).count();
        assert_eq!(won, 1, "round {round}: {outcomes:?}");
        assert!(outcomes.iter().all(|status| [204, 412].contains(status)), "{outcomes:?}");
        let [a, b] = [server.get(&a, JSON).await, server.get(&b, JSON).await];
        assert_eq!(counter(a.text()), counter(b.text()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_with_a_stale_etag_never_succeeds_after_a_replace() {
    let server = Arc::new(start().await);
    for _ in 0..ROUNDS {
        let tag = insert(&server, "p", "r", r#""N":0"#).await;
        let mut clients = JoinSet::new();
        for client in 0..8 {
            let (server, tag) = (server.clone(), tag.clone());
            clients.spawn(async move {
                let reply = if client % 2 == 0 {
                    server.put(&at("p", "r"), &conditional(&tag), r#"{"N":1}"#).await
                } else {
                    server.delete(&at("p", "r"), &conditional(&tag)).await
                };
                (client % 2 == 0, reply.status.as_u16())
            });
        }
        let outcomes = clients.join_all().await;
        let winners: Vec<_> = outcomes.iter().filter(|(_, status)| *status == 204).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        let replaced = winners[0].0;
        let lost = if replaced { 412 } else { 404 };
        assert!(outcomes.iter().all(|(_, status)| [204, lost].contains(status)), "{outcomes:?}");
        let found = server.get(&at("p", "r"), JSON).await;
        assert_eq!(found.status.as_u16(), if replaced { 200 } else { 404 });
        // A replaced entity stays, however often a client retries with the old ETag.
        if replaced {
            let stale = server.delete(&at("p", "r"), &conditional(&tag)).await;
            stale.refused(412, "UpdateConditionNotSatisfied");
            server.delete(&at("p", "r"), "if-match: *").await.expect(204);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_inserts_of_an_entity_succeeds() {
    let server = Arc::new(start().await);
    for round in 0..ROUNDS {
        let mut clients = JoinSet::new();
        for client in 0..8 {
            let server = server.clone();
            let body = format!(r#"{{"PartitionKey":"p","RowKey":"{round}","N":{client}}}"#);
            clients.spawn(async move {
                let status = if client % 2 == 0 {
                    server.post("/people", JSON, body).await.status.as_u16()
                } else {
                    send(&server, &[("POST /people", JSON, &body)]).await[0].status
                };
                (client, status)
            });
        }
        let outcomes = clients.join_all().await;
        let winners: Vec<_> = outcomes.iter().filter(|(_, status)| *status == 201).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        assert!(outcomes.iter().all(|(_, status)| [201, 409].contains(status)), "{outcomes:?}");
        let found = server.get(&at("p", &round.to_string()), JSON).await.expect(200);
        assert_eq!(counter(found.text()), winners[0].0);
    }
}

/// While other clients insert and delete the same entity, each request succeeds or finds no entity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_upserts_and_deletes_succeed_or_find_nothing() {
    let server: Arc<Server> = Arc::new(start().await);
    let mut clients = JoinSet::new();
    for client in 0..12 {
        let server = server.clone();
        clients.spawn(async move {
            let target = at("p", "r");
            for _ in 0..16 {
                let (status, expected): (u16, &[u16]) = match client % 4 {
                    0 => (server.put(&target, JSON, r#"{"N":1}"#).await.status.as_u16(), &[204]),
                    1 => (server.call("MERGE", &target, JSON, r#"{"M":1}"#).await.status.as_u16(), &[204]),
                    2 => (server.delete(&target, "if-match: *").await.status.as_u16(), &[204, 404]),
                    _ => {
                        let (upsert, delete) =
                            (format!("PATCH {target}"), format!("DELETE {}", at("p", "s")));
                        let operations = [(upsert.as_str(), JSON, "{}"), (&delete, "if-match: *", "")];
                        (send(&server, &operations).await[0].status, &[204, 404])
                    }
                };
                assert!(expected.contains(&status), "{client}: {status}");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    server.put(&at("p", "r"), JSON, r#"{"N":1}"#).await.expect(204);
    server.delete(&at("p", "r"), "if-match: *").await.expect(204);
}
