//! A table service to be tested, and what most tests need.

use lazuli_protocol::ServiceKind;
use lazuli_table::TableService;
use lazuli_testing::TestServer;

/// JSON both ways, with minimal metadata.
pub(crate) const JSON: &str =
    "content-type: application/json\naccept: application/json;odata=minimalmetadata";

pub(crate) type Server = TestServer<TableService>;

/// A server with a table `people`.
pub(crate) async fn start() -> Server {
    let server = lazuli_testing::start(ServiceKind::Table, TableService::new).await;
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
