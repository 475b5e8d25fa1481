//! The table service under load in a process that is killed or loses power, and the verification afterwards.
//!
//! Each client owns a PartitionKey and counts its operations. Each operation is an entity group transaction
//! that sets all of its entities to the new count: some are replaced, some are merged, one is inserted and
//! its predecessor deleted. A client acknowledges after the service did. So after a crash all entities of a
//! client must have the last acknowledged count, or all must have the next one.

use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{Pace, TableETag};
use lazuli_protocol::operation::Operation;
use lazuli_store::embedded;
use lazuli_table::{TableRows, TableService};
use tokio::task::JoinSet;

use crate::child::Parent;
use crate::hosted::{self, Host, HostedService, Replied};
use crate::workload::{Acknowledged, CLIENTS, COMMITTED};

const TABLE: &str = "torture";
/// Number of entities of a client that are changed repeatedly.
const ENTITIES: u64 = 20;
/// Content type of a transaction, with its boundary.
const BATCH_TYPE: &str = "multipart/mixed; boundary=batch";

/// Runs the worker process.
pub fn work(parent: &Parent) {
    hosted::work::<Tables>(parent);
}

/// The table service of a data directory.
#[derive(Clone)]
struct Tables {
    service: TableService,
    host: Host,
}

impl HostedService for Tables {
    async fn check(dir: &Path) -> Result<(), String> {
        let mut rows = TableRows::default();
        let read = embedded::check(&dir.join("store"), |space, partition, row| {
            let checked = rows.check(space, partition, row);
            checked.map_err(|damage| lazuli_store::ReadError::Damaged(damage.to_string()))
        });
        read.map(drop).map_err(|error| error.to_string())
    }

    async fn open(host: Host, _: &Path) -> Self {
        let service = TableService::new(host.store.clone(), host.accounts.clone());
        let tables = Self { service, host };
        let body = format!(r#"{{"TableName":"{TABLE}"}}"#);
        let created = tables.call(Operation::CreateTable, "Tables", "", body).await;
        assert!(matches!(created, Ok(_) | Err((StatusCode::CONFLICT, _))), "{:?}", created.err());
        tables
    }

    async fn verify(&self, acknowledged: &Acknowledged) -> [u64; CLIENTS] {
        let mut seen = acknowledged.counts;
        for (client, count) in seen.iter_mut().enumerate() {
            let found = self.entities(client).await;
            let there = [*count, *count + 1].into_iter().find(|n| found == expected(*n));
            *count = there.unwrap_or_else(|| {
                panic!("client {client} acknowledged {count}; neither it nor the next is there: {found:?}")
            });
        }
        seen
    }

    async fn run(&self, counts: [u64; CLIENTS], parent: &Parent) -> String {
        let mut running = JoinSet::new();
        let next = |running: &mut JoinSet<_>, client, count: u64| {
            let tables = self.clone();
            running
                .spawn(async move { tables.once(client, count).await.map(|stamp| (client, count, stamp)) });
        };
        for (client, count) in counts.into_iter().enumerate() {
            next(&mut running, client, count + 1);
        }
        loop {
            let Some(done) = running.join_next().await else { return "no client is left".into() };
            match done.expect("a client does not panic") {
                Ok((client, count, stamp)) => {
                    parent.ack(COMMITTED, &format!("{client} {count} {stamp}")).expect("the parent listens");
                    next(&mut running, client, count + 1);
                }
                Err(refused) => return refused,
            }
        }
    }

    async fn sweep(&self) -> String {
        hosted::sweep_garbage_continuously(async || self.service.sweep(Pace::FULL).await).await
    }
}

/// Returns the entities after `n` operations: RowKey, count, and the property that only merges keep.
fn expected(n: u64) -> Vec<(String, u64, Option<u64>)> {
    if n == 0 {
        return vec![];
    }
    let entity = |i| (format!("e{i:02}"), n, (i % 2 == 1).then_some(1));
    let mut all: Vec<_> = (0..ENTITIES).map(entity).collect();
    all.push((format!("n{n:09}"), n, None));
    all
}

impl Tables {
    /// Runs a client's n-th operation. Returns the stamp in the ETags.
    async fn once(&self, client: usize, n: u64) -> Result<u64, String> {
        let mut body = String::from("--batch\r\nContent-Type: multipart/mixed; boundary=changeset\r\n\r\n");
        let mut operation = |line: String, condition: &str, entity: String| {
            let _ = write!(
                body,
                "--changeset\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
                 {line} HTTP/1.1\r\nContent-Type: application/json\r\nPrefer: return-no-content\r\n\
                 {condition}\r\n{entity}\r\n"
            );
        };
        let at = |row: &str| format!("/{TABLE}(PartitionKey='{client}',RowKey='{row}')");
        for i in 0..ENTITIES {
            let target = at(&format!("e{i:02}"));
            match i % 2 {
                0 => operation(format!("PUT {target}"), "", format!(r#"{{"Count":{n}}}"#)),
                // The first operation adds a property that later ones do not send.
                _ if n == 1 => operation(format!("MERGE {target}"), "", r#"{"Count":1,"First":1}"#.into()),
                _ => operation(format!("MERGE {target}"), "If-Match: *\r\n", format!(r#"{{"Count":{n}}}"#)),
            }
        }
        let new = format!(r#"{{"PartitionKey":"{client}","RowKey":"n{n:09}","Count":{n}}}"#);
        operation(format!("POST /{TABLE}"), "", new);
        if n > 1 {
            operation(format!("DELETE {}", at(&format!("n{:09}", n - 1))), "If-Match: *\r\n", String::new());
        }
        body.push_str("--changeset--\r\n--batch--\r\n");
        let headers = [("content-type", BATCH_TYPE)];
        let service = &self.service;
        let call = self.host.call(
            service,
            Operation::EntityGroupTransaction,
            ("$batch", ""),
            "",
            &headers,
            body.into(),
        );
        let (_, reply) = call.await.map_err(|(status, text)| format!("{status} {text}"))?;
        let reply = String::from_utf8_lossy(&reply);
        let tag = reply.lines().find_map(|line| line.strip_prefix("ETag: ").or(line.strip_prefix("etag: ")));
        let tag = tag.ok_or_else(|| reply.clone().into_owned())?;
        let tag: TableETag = tag.trim().parse().map_err(|_| format!("no tag: {tag}"))?;
        Ok(tag.timestamp().ticks())
    }

    /// Returns the entities of a client.
    async fn entities(&self, client: usize) -> Vec<(String, u64, Option<u64>)> {
        let query = format!("$filter=PartitionKey%20eq%20'{client}'");
        let (_, body) = self.call(Operation::QueryEntities, TABLE, &query, "").await.expect("queried");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        let entities = body["value"].as_array().expect("a list");
        let entity = |entity: &serde_json::Value| {
            let row = entity["RowKey"].as_str().expect("a key").to_owned();
            (row, entity["Count"].as_u64().expect("a count"), entity["First"].as_u64())
        };
        entities.iter().map(entity).collect()
    }

    async fn call(&self, operation: Operation, table: &str, query: &str, body: impl Into<Bytes>) -> Replied {
        let headers = [("content-type", "application/json")];
        self.host.call(&self.service, operation, (table, ""), query, &headers, body.into()).await
    }
}
