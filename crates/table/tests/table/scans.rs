//! Queries that read every entity. Unchanged rows come from memory, and the results must be the same.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_store::{Commit, Mutation, Partition};
use lazuli_testing::{AllRows, LogCapture};
use tokio::task::JoinSet;

use crate::support::{JSON, Server, at, encoded, fill, keys, query_all, start_with_runs, values};

/// Number of entities in a table with several runs.
const ENTITIES: usize = 1500;

fn rows() -> impl Iterator<Item = String> {
    (0..ENTITIES).map(|row| format!("{row:04}"))
}

async fn filled() -> Server {
    let server = start_with_runs().await;
    fill(&server, "p", rows()).await;
    server
}

fn filter(text: &str) -> String {
    format!("$filter={}", encoded(text))
}

#[tokio::test]
async fn pages_join_without_a_gap_from_disk_and_from_memory() {
    let server = filled().await;
    let all: Vec<_> = rows().collect();
    for (text, expected) in [
        ("F ge 0", &all[..]),
        ("F lt 700", &all[..700]),
        ("F ge 1 and F le 1400 and Timestamp gt datetime'2020-01-01'", &all[1..=1400]),
        ("F gt 511 and RowKey lt '1025'", &all[512..1025]),
        ("PartitionKey eq 'p' and RowKey ge '0300' and not (F gt 620)", &all[300..=620]),
        ("RowKey ge '1499'", &all[1499..]),
        ("F eq 64 or F eq 9999", &all[64..65]),
        ("F lt 0", &[]),
    ] {
        for top in [7, 64, 999, 1000] {
            let found = query_all(&server, &format!("{}&$top={top}", filter(text))).await;
            let found: Vec<_> = found.into_iter().map(|(_, row)| row).collect();
            assert_eq!(found, expected, "{text} {top}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_write_is_seen_by_the_next_scan() {
    let server = Arc::new(filled().await);
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let server = server.clone();
        clients.spawn(async move {
            for round in 0..12 {
                // Each round uses another position among the rows.
                let row = format!("{:04}-{client}", (client * 401 + round * 127) % ENTITIES);
                let target = at("p", &row);
                let found = || async {
                    let target = format!("/people()?{}", filter(&format!("N ge 0 and Client eq {client}")));
                    let reply = server.get(&target, JSON).await.expect(200);
                    values(&reply).iter().map(|found| found["N"].as_i64().unwrap()).collect::<Vec<_>>()
                };
                assert_eq!(found().await, [0i64; 0]);
                for n in [1, 2] {
                    let body = format!(r#"{{"N":{n},"Client":{client}}}"#);
                    server.put(&target, JSON, body).await.expect(204);
                    assert_eq!(found().await, [n], "{row}");
                }
                server.call("MERGE", &target, JSON, r#"{"N":3}"#).await.expect(204);
                assert_eq!(found().await, [3], "{row}");
                server.delete(&target, "if-match: *").await.expect(204);
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(query_all(&server, &filter("F ge 0")).await.len(), ENTITIES);
}

#[tokio::test]
async fn scanned_table_can_be_deleted_and_recreated() {
    let server = filled().await;
    let scan = format!("/people()?{}", filter("F ge 0"));
    for _ in 0..2 {
        assert_eq!(keys(&server.get(&scan, JSON).await.expect(200)).len(), 1000);
    }
    server.delete("/Tables('people')", JSON).await.expect(204);
    server.get(&scan, JSON).await.refused(404, "TableNotFound");
    crate::support::create(&server, "people").await;
    assert_eq!(keys(&server.get(&scan, JSON).await.expect(200)), []);
}

#[tokio::test]
async fn damaged_entity_fails_only_the_page_that_reaches_it() {
    let log = LogCapture::start();
    let server = filled().await;
    let mut space = None;
    let mut find_space = |id, partition: &Bytes, _: &lazuli_store::Row| {
        space = space.or((partition[..] == *b"ep").then_some(id));
        Ok(())
    };
    server.store.for_each_row(&mut find_space).unwrap();
    let space = space.unwrap();
    let commit = Commit {
        stamp: server.store.stamp(),
        epoch: server.store.space(space).await.unwrap().unwrap().epoch,
        conditions: vec![],
        mutations: vec![Mutation::Put("0700".into(), "\u{1}damaged".into())],
        valid_until: None,
        fence: None,
        bulk: false,
    };
    server.store.commit(&Partition::new(space, "ep"), commit).await.unwrap();
    for _ in 0..2 {
        for (text, top, status) in
            [("F ge 0", 700, 200), ("F ge 0", 701, 500), ("F eq 5", 1000, 500), ("F gt 700", 1, 500)]
        {
            let reply = server.get(&format!("/people()?{}&$top={top}", filter(text)), JSON).await;
            assert_eq!(reply.status.as_u16(), status, "{text} {top}");
            let id = format!("request_id={}", reply.header("x-ms-request-id").unwrap());
            let row = format!("place={space} partition \"ep\" row \"0700\"");
            let named = log.lines_with(&row).iter().filter(|entry| entry.contains(&id)).count();
            assert_eq!(named, usize::from(status == 500), "{text} {top}");
        }
        let after = query_all(&server, &filter("RowKey gt '0700' and F gt 0 and PartitionKey eq 'p'")).await;
        assert_eq!(after.len(), ENTITIES - 701);
    }
}
