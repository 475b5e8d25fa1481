//! What can be asked of a service, by name: one table, one file for each service.
//!
//! A service adds its operations as a file below `workload/` with a type for each kind of operation, and a line each in
//! [`WORKLOADS`]. A workload is written for any server that speaks the protocol, so it expects only what the protocol
//! promises.

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
use super::client::{Call, Client, Failure};

/// One kind of operation.
#[async_trait]
pub(crate) trait Workload: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// The service that is asked.
    fn service(&self) -> ServiceKind;

    /// What it does, in a few words.
    fn about(&self) -> String;

    /// How many connections it is for, whatever was asked; none = as many as were asked for.
    fn connections(&self) -> Option<usize> {
        None
    }

    /// Whether a server of plain files can do it, too.
    fn reads_plain_files(&self) -> bool {
        false
    }

    /// Whether only our server is asked, because others could not be prepared in any reasonable time.
    fn is_ours_alone(&self) -> bool {
        false
    }

    /// Whether preparing it takes long, so that a first look leaves it out.
    fn takes_long(&self) -> bool {
        false
    }

    /// Makes what the operations need. Called once, before the first of them.
    async fn prepare(&self, _client: &mut Client) -> Result<(), Failure> {
        Ok(())
    }

    /// One operation, the `i`th of a worker. Workers run at the same time; `i` grows from 0 and never repeats.
    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), Failure>;

    /// Removes what was made. Called once, after the last operation.
    async fn cleanup(&self, _client: &mut Client) -> Result<(), Failure> {
        Ok(())
    }
}

/// Connections that many things are made on.
const FILLERS: u64 = 64;

/// Makes so many things, numbered from 0, on many connections: `make` is given one of them and its share of the numbers.
async fn fill<F>(
    client: &Client,
    count: u64,
    make: impl Fn(Client, StepBy<Range<u64>>) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let mut fillers = JoinSet::new();
    for filler in 0..FILLERS {
        fillers.spawn(make(client.another(), (filler..count).step_by(FILLERS as usize)));
    }
    while let Some(filled) = fillers.join_next().await {
        filled.map_err(|error| Failure::Request(error.to_string()))??;
    }
    Ok(())
}

/// What workloads may depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of a body, for those that have one.
    pub(crate) body_bytes: usize,
}

/// Makes a workload, with containers, tables and queues of its own.
type Make = fn(Shape) -> Arc<dyn Workload>;

/// All workloads.
const WORKLOADS: &[Make] = &[
    |_| Arc::new(service::properties("blob-service-properties", ServiceKind::Blob)),
    |_| Arc::new(service::properties("queue-service-properties", ServiceKind::Queue)),
    |_| Arc::new(service::properties("table-service-properties", ServiceKind::Table)),
    |_| Arc::new(service::properties("file-service-properties", ServiceKind::File)),
    |_| Arc::new(service::account_info()),
    |shape| Arc::new(blob::PutBlob::new(shape)),
    |shape| Arc::new(blob::GetBlob::new(shape)),
    |_| Arc::new(blob::Large::put()),
    |_| Arc::new(blob::Large::put_blocks()),
    |_| Arc::new(blob::Large::put_blocks_at_once()),
    |_| Arc::new(blob::Large::get()),
    |_| Arc::new(blob::Pages::put()),
    |_| Arc::new(blob::Pages::get()),
    |_| Arc::new(blob::ListBlobs::of_ten_thousand()),
    |_| Arc::new(blob::ListBlobs::of_a_hundred_thousand()),
    |_| Arc::new(file::Small::put()),
    |_| Arc::new(file::Small::get()),
    |_| Arc::new(file::Large::put()),
    |_| Arc::new(file::Large::get()),
    |_| Arc::new(file::List::new()),
    |_| Arc::new(file::RenameTree::new()),
    |_| Arc::new(queue::Put::new()),
    |_| Arc::new(queue::Cycle::at_a_thousand()),
    |_| Arc::new(queue::Cycle::at_ten_thousand()),
    |_| Arc::new(queue::Cycle::at_a_million()),
    |_| Arc::new(table::Insert::new()),
    |_| Arc::new(table::InsertBatch::new()),
    |_| Arc::new(table::Get::of_ten_thousand()),
    |_| Arc::new(table::Get::of_a_million()),
    |_| Arc::new(table::QueryPartition::new()),
    |_| Arc::new(table::Scan::new()),
    // Last: what it leaves to be swept would be in the others' way.
    |_| Arc::new(blob::ListDirectory::of_a_million()),
];

/// Every workload.
pub(crate) fn all(shape: Shape) -> impl Iterator<Item = Arc<dyn Workload>> {
    WORKLOADS.iter().map(move |make| make(shape))
}

/// The workload with a name.
pub(crate) fn named(name: &str, shape: Shape) -> Result<Arc<dyn Workload>, BenchError> {
    let found = all(shape).find(|workload| workload.name() == name);
    found.ok_or_else(|| BenchError::UnknownWorkload(name.into()))
}

/// A name that nothing else has, on this server or another.
pub(crate) fn fresh_name() -> String {
    format!("bench-{:x}-{:x}", SystemClock.now().ticks(), std::process::id())
}

/// Text for a query.
pub(crate) fn encode(text: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

/// The request with a header whose value is made.
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
