//! Starts table services for tests, and sends requests to them.

use lazuli_protocol::ServiceKind;
use lazuli_table::TableService;
use lazuli_testing::{Parts, Reply, TestServer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::batch::send;

/// Headers for JSON in both directions, with minimal metadata.
pub(crate) const JSON: &str =
    "content-type: application/json\naccept: application/json;odata=minimalmetadata";

pub(crate) type Server = TestServer<TableService>;

fn make(parts: Parts) -> TableService {
    TableService::new(parts.store, parts.accounts)
}

/// Starts a server with the table `people`.
pub(crate) async fn start() -> Server {
    let server = lazuli_testing::start(ServiceKind::Table, make).await;
    create(&server, "people").await;
    server
}

/// Starts a server with the table `people`, on an engine that keeps runs of rows in memory.
pub(crate) async fn start_with_runs() -> Server {
    let server = lazuli_testing::start_embedded(ServiceKind::Table, make, Default::default()).await;
    create(&server, "people").await;
    server
}

pub(crate) async fn create(server: &Server, table: &str) {
    server.post("/Tables", JSON, format!(r#"{{"TableName":"{table}"}}"#)).await.expect(201);
}

/// Returns the address of an entity in `people`. The keys must be encoded.
pub(crate) fn at(partition: &str, row: &str) -> String {
    format!("/people(PartitionKey='{partition}',RowKey='{row}')")
}

/// Inserts an entity with additional members and returns its ETag.
pub(crate) async fn insert(server: &Server, partition: &str, row: &str, members: &str) -> String {
    let comma = if members.is_empty() { "" } else { "," };
    let body = format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}"{comma}{members}}}"#);
    server.post("/people", JSON, body).await.expect(201).etag().to_owned()
}

/// Inserts entities with the given RowKeys, and `F` counting from 0. Tests do not change them, so that the
/// next query is answered from memory.
pub(crate) async fn fill(server: &Server, partition: &str, rows: impl Iterator<Item = String>) {
    let bodies = rows
        .enumerate()
        .map(|(number, row)| format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}","F":{number}}}"#));
    for bodies in bodies.collect::<Vec<_>>().chunks(100) {
        let operations: Vec<_> = bodies.iter().map(|body| ("POST /people", JSON, body.as_str())).collect();
        assert!(send(server, &operations).await.iter().all(|part| part.status == 201));
    }
}

/// Encodes a text as the value of a parameter.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the entities or tables in a list.
pub(crate) fn values(reply: &Reply) -> Vec<Value> {
    let Value::Object(mut list) = serde_json::from_slice(&reply.body).unwrap() else {
        panic!("{}", reply.text())
    };
    serde_json::from_value(list.remove("value").unwrap()).unwrap()
}

/// Returns the keys of the entities in a list.
pub(crate) fn keys(reply: &Reply) -> Vec<(String, String)> {
    let key = |entity: &Value, key: &str| entity[key].as_str().unwrap_or_default().to_owned();
    values(reply).iter().map(|entity| (key(entity, "PartitionKey"), key(entity, "RowKey"))).collect()
}

/// Returns the target of the next page, if a reply has a continuation.
pub(crate) fn next(target: &str, reply: &Reply) -> Option<String> {
    let partition = reply.header("x-ms-continuation-nextpartitionkey")?;
    let row = reply.header("x-ms-continuation-nextrowkey").unwrap();
    let separator = if target.contains('?') { '&' } else { '?' };
    Some(format!("{target}{separator}NextPartitionKey={}&NextRowKey={}", encoded(partition), encoded(row)))
}

/// Returns the keys of all entities that a query finds in `people`, over all pages.
pub(crate) async fn query_all(server: &Server, options: &str) -> Vec<(String, String)> {
    let target = format!("/people()?{options}");
    let (mut page, mut found) = (Some(target.clone()), vec![]);
    while let Some(at) = page {
        let reply = server.get(&at, JSON).await.expect(200);
        found.extend(keys(&reply));
        page = next(&target, &reply);
    }
    found
}
