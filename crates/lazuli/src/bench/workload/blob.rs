//! Blobs: whole ones written and read, in a container made for it.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, Failure};
use super::super::rows::scatter;
use super::{Shape, Workload, fresh_name};

/// Blobs that are read.
const BLOBS: u64 = 100;

/// A container of our own, and the content of its blobs.
struct Container {
    path: String,
    content: Bytes,
}

impl Container {
    fn new(shape: Shape) -> Self {
        let noise = (0..).flat_map(|n| scatter(n).to_le_bytes());
        Self { path: format!("/{}", fresh_name()), content: noise.take(shape.body_bytes).collect() }
    }

    async fn create(&self, client: &mut Client) -> Result<(), Failure> {
        let call = Call::new(Method::PUT, &self.path, "restype=container");
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn delete(&self, client: &mut Client) -> Result<(), Failure> {
        let call = Call::new(Method::DELETE, &self.path, "restype=container");
        client.send(call).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    async fn put(&self, client: &mut Client, blob: &str) -> Result<(), Failure> {
        let call = Call::new(Method::PUT, format!("{}/{blob}", self.path), "")
            .header("x-ms-blob-type", "BlockBlob")
            .header("content-type", "application/octet-stream")
            .body(self.content.clone());
        client.send(call).await?.expect(StatusCode::CREATED).map(drop)
    }

    async fn get(&self, client: &mut Client, blob: &str) -> Result<(), Failure> {
        let call = Call::new(Method::GET, format!("{}/{blob}", self.path), "");
        let reply = client.send(call).await?.expect(StatusCode::OK)?;
        let whole = reply.length == self.content.len() as u64 && self.content.starts_with(&reply.body);
        if whole { Ok(()) } else { Err(Failure::Wrong("other bytes than were put")) }
    }
}

/// Put Blob: a new block blob each time.
pub(super) struct PutBlob(Container);

impl PutBlob {
    pub(super) fn new(shape: Shape) -> Self {
        Self(Container::new(shape))
    }
}

#[async_trait]
impl Workload for PutBlob {
    fn name(&self) -> &'static str {
        "put-blob"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("put new block blobs of {} bytes", self.0.content.len())
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), Failure> {
        self.0.create(client).await
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), Failure> {
        self.0.put(client, &format!("{worker}/{i}")).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), Failure> {
        self.0.delete(client).await
    }
}

/// Get Blob: any of a hundred, the whole of it, compared with what was put.
pub(super) struct GetBlob(Container);

impl GetBlob {
    pub(super) fn new(shape: Shape) -> Self {
        Self(Container::new(shape))
    }
}

#[async_trait]
impl Workload for GetBlob {
    fn name(&self) -> &'static str {
        "get-blob"
    }

    fn service(&self) -> ServiceKind {
        ServiceKind::Blob
    }

    fn about(&self) -> String {
        format!("get whole block blobs of {} bytes", self.0.content.len())
    }

    async fn prepare(&self, client: &mut Client) -> Result<(), Failure> {
        self.0.create(client).await?;
        for blob in 0..BLOBS {
            self.0.put(client, &blob.to_string()).await?;
        }
        Ok(())
    }

    async fn run_one(&self, client: &mut Client, worker: usize, i: u64) -> Result<(), Failure> {
        let blob = scatter(scatter(worker as u64) ^ i) % BLOBS;
        self.0.get(client, &blob.to_string()).await
    }

    async fn cleanup(&self, client: &mut Client) -> Result<(), Failure> {
        self.0.delete(client).await
    }
}
