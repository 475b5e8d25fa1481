//! Workloads of entities. Each uses its own table.

use std::fmt::Write as _;

use async_trait::async_trait;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, OperationFailure, Reply};
use super::super::rows::scatter;
use super::{Workload, encode, fresh_name};

/// Number of entities in an entity group transaction.
const BATCH: u64 = 100;
/// Number of entities of the partition that is queried.
const QUERIED: u64 = 1000;
/// Number of entities of the table that is scanned.
const SCANNED: u64 = 100_000;
/// One entity in this many matches the filter of the scan.
const MATCHES_ONE_IN: u64 = 1000;
/// Number of entities in each partition of the tables that are read and scanned.
const PARTITION_ENTITIES: u64 = 1000;
/// The content type of a batch, with the boundary between its parts.
const BATCH_TYPE: &str = "multipart/mixed; boundary=batch_lazuli";
const ACCEPT: &str = "application/json;odata=nometadata";

/// A table of one workload.
struct TestTable {
    name: String,
}

impl TestTable {
    fn new() -> Self {
        Self { name: fresh_name().replace('-', "") }
    }

    async fn create(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let body = format!(r#"{{"TableName":"{}"}}"#, self.name);
        let call = json(Method::POST, "/Tables", "").body(body.into());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn delete(&self, client: &mut Client) -> Result<(), OperationFailure> {
        let call = json(Method::DELETE, format!("/Tables('{}')", self.name), "");
        client.send(call).await?.expect(StatusCode::NO_CONTENT).map(drop)
    }

    async fn insert(&self, client: &mut Client, partition: &str, row: u64) -> Result<(), OperationFailure> {
        let call = json(Method::POST, format!("/{}", self.name), "").body(entity(partition, row).into());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    /// Inserts entities with these row keys in one transaction.
    async fn insert_all(
        &self,
        client: &mut Client,
        partition: &str,
        rows: std::ops::Range<u64>,
    ) -> Result<(), OperationFailure> {
        let mut body = String::from(
            "--batch_lazuli\r\nContent-Type: multipart/mixed; boundary=changeset_lazuli\r\n\r\n",
        );
        for row in rows.clone() {
            let (entity, table) = (entity(partition, row), &self.name);
            let endpoint = client.endpoint();
            // Writing to a String cannot fail.
            let _ = write!(
                body,
                "--changeset_lazuli\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n\
                 POST {endpoint}/{table} HTTP/1.1\r\nContent-Type: application/json\r\n\
                 Accept: application/json;odata=nometadata\r\nPrefer: return-no-content\r\n\
                 DataServiceVersion: 3.0\r\n\r\n{entity}\r\n"
            );
        }
        body.push_str("--changeset_lazuli--\r\n--batch_lazuli--\r\n");
        let call = Call::new(Method::POST, "/$batch", "")
            .header("content-type", BATCH_TYPE)
            .header("accept", ACCEPT)
            .header("dataserviceversion", "3.0")
            .body(body.into());
        let reply = client.send(call).await?.expect(StatusCode::ACCEPTED)?;
        let inserted = String::from_utf8_lossy(&reply.body).matches("HTTP/1.1 204").count();
        match inserted as u64 == rows.end - rows.start {
            true => Ok(()),
            false => Err(OperationFailure::Wrong("not every entity of a transaction was inserted")),
        }
    }

    /// Creates the table and inserts this number of entities, in partitions of a thousand.
    async fn fill(&self, client: &mut Client, entities: u64) -> Result<(), OperationFailure> {
        self.create(client).await?;
        for start in (0..entities).step_by(BATCH as usize) {
            let end = entities.min(start + BATCH);
            self.insert_all(client, &partition_of(start), start..end).await?;
        }
        Ok(())
    }

    async fn query(&self, client: &mut Client, query: String) -> Result<Reply, OperationFailure> {
        let call = json(Method::GET, format!("/{}()", self.name), query);
        client.send(call).await?.expect(StatusCode::OK)
    }
}

fn json(method: Method, path: impl Into<String>, query: impl Into<String>) -> Call {
    Call::new(method, path, query)
        .header("accept", ACCEPT)
        .header("content-type", "application/json")
        .header("dataserviceversion", "3.0")
}

/// Returns the PartitionKey of the entity with a number.
fn partition_of(entity: u64) -> String {
    format!("p{:06}", entity / PARTITION_ENTITIES)
}

/// Returns a customer as JSON, like those of Azure's samples.
fn entity(partition: &str, row: u64) -> String {
    let age = row % 100;
    let group = scatter(row) % MATCHES_ONE_IN;
    format!(
        concat!(
            r#"{{"PartitionKey":"{partition}","RowKey":"{row:09}","Email":"customer{row}@example.com","#,
            r#""Name":"Customer number {row}","Age":{age},"Group":{group},"Balance":12.5,"Active":true,"#,
            r#""Orders":"{row}","Orders@odata.type":"Edm.Int64","#,
            r#""Since":"2026-01-02T03:04:05.6789012Z","Since@odata.type":"Edm.DateTime"}}"#
        ),
        partition = partition,
        row = row,
        age = age,
        group = group
    )
}

/// Insert Entity: a new entity each time, in one partition per connection.
pub(super) struct InsertEntity(TestTable);

impl InsertEntity {
    pub(super) fn new() -> Self {
        Self(TestTable::new())
    }
}

#[async_trait]
impl Workload for InsertEntity {
    fn name(&self) -> &'static str {
        "insert-entity"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Table
    }

    fn about(&self) -> String {
        "insert new entities of ten properties".into()
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        self.0.insert(client, &format!("w{worker}"), i).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Entity group transactions of a hundred insertions.
pub(super) struct InsertBatch(TestTable);

impl InsertBatch {
    pub(super) fn new() -> Self {
        Self(TestTable::new())
    }
}

#[async_trait]
impl Workload for InsertBatch {
    fn name(&self) -> &'static str {
        "insert-batch-100"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Table
    }

    fn about(&self) -> String {
        format!("insert {BATCH} new entities in one transaction")
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.create(client).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        self.0.insert_all(client, &format!("w{worker}"), i * BATCH..(i + 1) * BATCH).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Point reads of random entities.
pub(super) struct GetEntity {
    table: TestTable,
    entities: u64,
}

impl GetEntity {
    /// Reads from a table of ten thousand entities.
    pub(super) fn of_ten_thousand() -> Self {
        Self { table: TestTable::new(), entities: 10_000 }
    }

    /// Reads from a table of a million entities.
    pub(super) fn of_a_million() -> Self {
        Self { table: TestTable::new(), entities: 1_000_000 }
    }
}

#[async_trait]
impl Workload for GetEntity {
    fn name(&self) -> &'static str {
        if self.entities > 10_000 { "get-entity-1m" } else { "get-entity" }
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Table
    }

    fn about(&self) -> String {
        format!("get one of {} entities", self.entities)
    }

    fn is_lazuli_only(&self) -> bool {
        self.entities > 10_000
    }

    fn takes_long(&self) -> bool {
        self.is_lazuli_only()
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.table.fill(client, self.entities).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        let entity = scatter(scatter(worker as u64) ^ i) % self.entities;
        let (table, partition) = (&self.table.name, partition_of(entity));
        let path = format!("/{table}(PartitionKey='{partition}',RowKey='{entity:09}')");
        let reply = client.send(json(Method::GET, path, "")).await?.expect(StatusCode::OK)?;
        let expected = format!("customer{entity}@example.com");
        match String::from_utf8_lossy(&reply.body).contains(&expected) {
            true => Ok(()),
            false => Err(OperationFailure::Wrong("another entity than requested")),
        }
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.table.delete(client).await
    }
}

/// Query Entities: all of one partition.
pub(super) struct QueryPartition(TestTable);

impl QueryPartition {
    pub(super) fn new() -> Self {
        Self(TestTable::new())
    }
}

#[async_trait]
impl Workload for QueryPartition {
    fn name(&self) -> &'static str {
        "query-partition-1000"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Table
    }

    fn about(&self) -> String {
        format!("query all {QUERIED} entities of one of five partitions")
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.fill(client, 5 * QUERIED).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure> {
        let partition = partition_of((worker as u64 + i) % 5 * PARTITION_ENTITIES);
        let reply = self.0.query(client, format!("$filter=PartitionKey%20eq%20'{partition}'")).await?;
        let last =
            format!("customer{}@example.com", (worker as u64 + i) % 5 * PARTITION_ENTITIES + QUERIED - 1);
        match String::from_utf8_lossy(&reply.end).contains(&last) {
            true => Ok(()),
            false => Err(OperationFailure::Wrong("not all entities of the partition")),
        }
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}

/// Query Entities: a filter that must read every entity, page by page.
pub(super) struct FilterScan(TestTable);

impl FilterScan {
    pub(super) fn new() -> Self {
        Self(TestTable::new())
    }
}

#[async_trait]
impl Workload for FilterScan {
    fn name(&self) -> &'static str {
        "filter-scan-100k"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Table
    }

    fn about(&self) -> String {
        format!("find about {} of {SCANNED} entities by a property", SCANNED / MATCHES_ONE_IN)
    }

    fn connections(&self) -> Option<usize> {
        Some(1)
    }

    fn takes_long(&self) -> bool {
        true
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.fill(client, SCANNED).await
    }

    async fn run_one(&self, client: &mut Client, _worker: usize, _i: u64) -> Result<(), OperationFailure> {
        let expected = (0..SCANNED).filter(|row| scatter(*row) % MATCHES_ONE_IN == 7).count();
        let mut found = 0;
        let mut continuation = String::new();
        for _ in 0..SCANNED {
            let query = format!("$filter=Group%20eq%207%20and%20Age%20ge%200{continuation}");
            let reply = self.0.query(client, query).await?;
            found += String::from_utf8_lossy(&reply.body).matches("@example.com").count();
            let next = |name| reply.headers.get(name).and_then(|value| value.to_str().ok());
            let Some(partition) = next("x-ms-continuation-nextpartitionkey") else {
                let all = found == expected;
                return all.then_some(()).ok_or(OperationFailure::Wrong("another number of entities"));
            };
            let row = next("x-ms-continuation-nextrowkey").unwrap_or_default();
            let (partition, row) = (encode(partition), encode(row));
            continuation = format!("&NextPartitionKey={partition}&NextRowKey={row}");
        }
        Err(OperationFailure::Wrong("a query without an end"))
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), OperationFailure> {
        self.0.delete(client).await
    }
}
