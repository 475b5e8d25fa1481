//! A table service to be tested, and what most tests need.

use lazuli_protocol::ServiceKind;
use lazuli_table::TableService;
use lazuli_testing::{Reply, TestServer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::batch::send;

/// JSON both ways, with minimal metadata.
pub(crate) const JSON: &str =
    "content-type: application/json\naccept: application/json;odata=minimalmetadata";

pub(crate) type Server = TestServer<TableService>;

/// A server with a table `people`.
pub(crate) async fn start() -> Server {
    let server =
        lazuli_testing::start(ServiceKind::Table, |parts| TableService::new(parts.store, parts.accounts))
            .await;
    create(&server, "people").await;
    server
}

pub(crate) async fn create(server: &Server, table: &str) {
    server.post("/Tables", JSON, format!(r#"{{"TableName":"{table}"}}"#)).await.expect(201);
}

/// The address of an entity in `people`. The keys are encoded.
pub(crate) fn at(partition: &str, row: &str) -> String {
    format!("/people(PartitionKey='{partition}',RowKey='{row}')")
}

/// Inserts an entity with these further members; its tag.
pub(crate) async fn insert(server: &Server, partition: &str, row: &str, members: &str) -> String {
    let comma = if members.is_empty() { "" } else { "," };
    let body = format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}"{comma}{members}}}"#);
    server.post("/people", JSON, body).await.expect(201).etag().to_owned()
}

/// Inserts entities with rows `from`, … of a partition, and `F` from 0 on, which tests leave alone: enough of them for a
/// query to be answered from memory the next time.
pub(crate) async fn fill(server: &Server, partition: &str, rows: impl Iterator<Item = String>) {
    let bodies = rows
        .enumerate()
        .map(|(number, row)| format!(r#"{{"PartitionKey":"{partition}","RowKey":"{row}","F":{number}}}"#));
    for bodies in bodies.collect::<Vec<_>>().chunks(100) {
        let operations: Vec<_> = bodies.iter().map(|body| ("POST /people", JSON, body.as_str())).collect();
        assert!(send(server, &operations).await.iter().all(|part| part.status == 201));
    }
}

/// A text as the value of a parameter.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// The entities, or tables, of a list.
pub(crate) fn values(reply: &Reply) -> Vec<Value> {
    let Value::Object(mut list) = serde_json::from_slice(&reply.body).unwrap() else {
        panic!("{}", reply.text())
    };
    serde_json::from_value(list.remove("value").unwrap()).unwrap()
}

/// The keys of the entities in a list.
pub(crate) fn keys(reply: &Reply) -> Vec<(String, String)> {
    let key = |entity: &Value, key: &str| entity[key].as_str().unwrap_or_default().to_owned();
    values(reply).iter().map(|entity| (key(entity, "PartitionKey"), key(entity, "RowKey"))).collect()
}

/// The target of the page behind a reply to one, if there is one.
pub(crate) fn next(target: &str, reply: &Reply) -> Option<String> {
    let partition = reply.header("x-ms-continuation-nextpartitionkey")?;
    let row = reply.header("x-ms-continuation-nextrowkey").unwrap();
    let separator = if target.contains('?') { '&' } else { '?' };
    Some(format!("{target}{separator}NextPartitionKey={}&NextRowKey={}", encoded(partition), encoded(row)))
}

/// The keys of what a query finds in `people`, page after page.
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
