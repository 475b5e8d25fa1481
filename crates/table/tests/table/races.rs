//! Many clients at once, over the real port: no update is lost, a batch is seen whole or not at all, and exactly one of
//! those who want the same thing gets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::task::JoinSet;

use crate::batch::{BATCH, change_set, parts, query, send};
use crate::support::{JSON, Server, at, fill, insert, start};

const CLIENTS: usize = 32;
/// Successful updates that each client makes.
const UPDATES: usize = 3;
/// Rounds of races that have one winner each.
const ROUNDS: usize = 12;

fn conditional(tag: &str) -> String {
    format!("{JSON}\nif-match: {tag}")
}

/// The value of the only own property of an entity of the tests.
fn counter(json: &str) -> usize {
    serde_json::from_str::<serde_json::Value>(json).unwrap()["N"].as_u64().unwrap() as usize
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_modify_replace_with_the_tag_loses_no_update() {
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
                // Half of them by a transaction: the rule is the same.
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
    assert!(refused.load(Ordering::Relaxed) > 0, "nobody got into anybody's way");
}

/// How a reader looks at the rows.
#[derive(Clone, Copy)]
enum Look {
    /// Row after row, alone or in a batch.
    Points,
    BatchedPoints,
    /// All rows by one query, alone or in a batch.
    Query,
    BatchedQuery,
    /// All rows by what they hold, among many others.
    Filter,
}

impl Look {
    /// The numbers that it shows, in order.
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

/// The numbers of the entities in a list.
fn listed(json: &str) -> Vec<usize> {
    let list: serde_json::Value = serde_json::from_str(json).unwrap();
    list["value"].as_array().unwrap().iter().map(|entity| counter(&entity.to_string())).collect()
}

/// A writer sets all rows to the next number in one batch. A query must show the same number everywhere; and who reads
/// row after row must never see a number fall back, since the first row that shows a batch proves that it happened.
async fn write_and_look(looks: Vec<Look>, fillers: usize) {
    const ROWS: usize = 8;
    const BATCHES: usize = 60;
    let server = Arc::new(start().await);
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
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for look in looks {
        let (server, targets, over) = (server.clone(), targets.clone(), over.clone());
        readers.spawn(async move {
            let (mut last, mut different) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                let numbers = look.numbers(&server, &targets).await;
                assert_eq!(numbers.len(), ROWS);
                if matches!(look, Look::Query | Look::BatchedQuery | Look::Filter) {
                    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
                }
                assert!(numbers.is_sorted() && last <= numbers[0], "{numbers:?} after {last}");
                different += usize::from(numbers[0] > last);
                last = numbers[ROWS - 1];
            }
            different
        });
    }
    for number in 1..=BATCHES {
        assert_eq!(parts(write(number).await).len(), ROWS);
    }
    over.store(true, Ordering::Relaxed);
    while let Some(different) = readers.join_next().await {
        assert!(different.unwrap() > 1, "a reader that saw nothing happen");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_seen_whole_or_not_at_all() {
    write_and_look(
        vec![Look::Points, Look::BatchedPoints, Look::Query, Look::Query, Look::BatchedQuery, Look::Filter],
        0,
    )
    .await;
}

/// The rows lie so far apart that the store keeps them in different runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_seen_whole_or_not_at_all_by_a_scan_from_memory() {
    write_and_look(vec![Look::Filter, Look::Filter, Look::Filter], 150).await;
}

/// Batches of different clients on the same rows, each by the tags that it read: one wins, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_batches_that_read_the_same_tags_one_wins() {
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
async fn a_delete_with_a_stale_tag_never_wins_against_a_replace() {
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
        // What was replaced meanwhile stays, however often somebody tries with the old tag.
        if replaced {
            let stale = server.delete(&at("p", "r"), &conditional(&tag)).await;
            stale.refused(412, "UpdateConditionNotSatisfied");
            server.delete(&at("p", "r"), "if-match: *").await.expect(204);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_inserts_of_one_entity_exactly_one_succeeds() {
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

/// What a client may hear while others insert and delete the same entity: done, or that it is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upserts_and_deletes_of_one_entity_never_break_anything() {
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
