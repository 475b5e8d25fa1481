//! Workloads: named kinds of operations of the services.
//!
//! Each service has a file below `workload/` with a type for each kind of operation, which is listed in
//! [`WORKLOADS`]. Workloads run on any server that speaks the protocol, so they rely only on the protocol.

mod blob;
mod file;
mod queue;
mod service;
mod table;

use std::iter::StepBy;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_protocol::ServiceKind;
use tokio::task::JoinSet;

use super::BenchError;
use super::client::{Call, Client, OperationFailure};

/// One kind of operation.
#[async_trait]
pub(crate) trait Workload: Send + Sync {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the service that the operations use.
    fn service(&self) -> ServiceKind;

    /// Returns a short description of the operations.
    fn about(&self) -> String;

    /// Returns the fixed number of connections, if the workload has one. It overrides the command line.
    fn connections(&self) -> Option<usize> {
        None
    }

    /// Returns whether servers of plain files support the workload.
    fn reads_plain_files(&self) -> bool {
        false
    }

    /// Returns whether the workload runs on Lazuli only, because preparing other servers takes too long or
    /// they lack the service.
    fn is_lazuli_only(&self) -> bool {
        false
    }

    /// Returns whether preparing takes so long that quick runs skip the workload.
    fn takes_long(&self) -> bool {
        false
    }

    /// Creates the objects that the operations need. Called once, before the first operation.
    async fn prepare(&self, _client: &mut Client) -> Result<(), OperationFailure> {
        Ok(())
    }

    /// Performs the `i`th operation of a worker. Workers run concurrently; `i` grows from 0 and never
    /// repeats.
    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), OperationFailure>;

    /// Removes all objects of the workload. Called once, after the last operation.
    async fn cleanup(&self, _client: &mut Client) -> Result<(), OperationFailure> {
        Ok(())
    }
}

/// Number of connections on which many objects are created.
const FILL_CONNECTIONS: u64 = 64;

/// Creates `count` objects, numbered from 0, on many connections. `make` gets one connection and its share of
/// the numbers.
async fn fill<F>(
    client: &Client,
    count: u64,
    make: impl Fn(Client, StepBy<Range<u64>>) -> F,
) -> Result<(), OperationFailure>
where
    F: Future<Output = Result<(), OperationFailure>> + Send + 'static,
{
    let mut fillers = JoinSet::new();
    for filler in 0..FILL_CONNECTIONS {
        fillers.spawn(make(client.another(), (filler..count).step_by(FILL_CONNECTIONS as usize)));
    }
    while let Some(filled) = fillers.join_next().await {
        filled.map_err(|error| OperationFailure::Request(error.to_string()))??;
    }
    Ok(())
}

/// The parameters of workloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of a request body, for workloads that have one.
    pub(crate) body_bytes: usize,
}

/// Creates a workload, with its own containers, tables and queues.
type NewWorkload = fn(Shape) -> Arc<dyn Workload>;

/// All workloads.
const WORKLOADS: &[NewWorkload] = &[
    |_| Arc::new(service::properties("blob-service-properties", ServiceKind::Blob)),
    |_| Arc::new(service::properties("queue-service-properties", ServiceKind::Queue)),
    |_| Arc::new(service::properties("table-service-properties", ServiceKind::Table)),
    |_| Arc::new(service::properties("file-service-properties", ServiceKind::File)),
    |_| Arc::new(service::account_info()),
    |shape| Arc::new(blob::PutBlob::new(shape)),
    |shape| Arc::new(blob::GetBlob::new(shape)),
    |_| Arc::new(blob::LargeBlobs::put()),
    |_| Arc::new(blob::LargeBlobs::put_blocks()),
    |_| Arc::new(blob::LargeBlobs::put_blocks_at_once()),
    |_| Arc::new(blob::LargeBlobs::get()),
    |_| Arc::new(blob::BlobPages::put()),
    |_| Arc::new(blob::BlobPages::get()),
    |_| Arc::new(blob::ListBlobs::of_ten_thousand()),
    |_| Arc::new(blob::ListBlobs::of_a_hundred_thousand()),
    |_| Arc::new(file::SmallRanges::put()),
    |_| Arc::new(file::SmallRanges::get()),
    |_| Arc::new(file::LargeFiles::put()),
    |_| Arc::new(file::LargeFiles::get()),
    |_| Arc::new(file::ListFiles::new()),
    |_| Arc::new(file::RenameTree::new()),
    |_| Arc::new(queue::PutMessage::new()),
    |_| Arc::new(queue::MessageCycle::at_a_thousand()),
    |_| Arc::new(queue::MessageCycle::at_ten_thousand()),
    |_| Arc::new(queue::MessageCycle::at_a_million()),
    |_| Arc::new(table::InsertEntity::new()),
    |_| Arc::new(table::InsertBatch::new()),
    |_| Arc::new(table::GetEntity::of_ten_thousand()),
    |_| Arc::new(table::GetEntity::of_a_million()),
    |_| Arc::new(table::QueryPartition::new()),
    |_| Arc::new(table::FilterScan::new()),
    // Last, because sweeping its garbage would slow down other workloads.
    |_| Arc::new(blob::ListDirectory::of_a_million()),
];

/// Returns all workloads.
pub(crate) fn all(shape: Shape) -> impl Iterator<Item = Arc<dyn Workload>> {
    WORKLOADS.iter().map(move |make| make(shape))
}

/// Returns the workload with a name.
pub(crate) fn named(name: &str, shape: Shape) -> Result<Arc<dyn Workload>, BenchError> {
    let found = all(shape).find(|workload| workload.name() == name);
    found.ok_or_else(|| BenchError::UnknownWorkload(name.into()))
}

/// Returns a unique name.
pub(crate) fn fresh_name() -> String {
    format!("bench-{:x}-{:x}", SystemClock.now().ticks(), std::process::id())
}

/// Encodes text for a query.
pub(crate) fn encode(text: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

/// Adds a header with a computed value. Omits it if the value is invalid.
pub(crate) fn with(mut call: Call, name: &'static str, value: String) -> Call {
    if let Ok(value) = HeaderValue::try_from(value) {
        call.headers.insert(HeaderName::from_static(name), value);
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let shape = Shape { body_bytes: 1 };
        let names: Vec<_> = all(shape).map(|workload| workload.name()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
            assert_eq!(named(name, shape).unwrap().name(), *name);
        }
        let unknown = named("put-blub", shape).err().unwrap();
        assert!(unknown.to_string().contains("put-blub"));
    }
}
