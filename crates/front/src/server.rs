//! The HTTP server: one listener for each service.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::service::Service;
use tokio::time::Instant;

use crate::console::StorageEntry;
use crate::document_memory::DocumentMemory;
use crate::limits::Limits;
use crate::listener::{Listener, RunningListener};
use crate::metrics::Metrics;
use crate::pipeline::{Admission, Pipeline};
use crate::tls::Tls;

/// One service and its address.
pub struct Endpoint {
    /// The service's kind.
    pub kind: ServiceKind,
    /// The address to bind; port 0 takes any free port.
    pub address: SocketAddr,
    /// Answers the requests.
    pub service: Arc<dyn Service>,
}

/// Binding an endpoint's address failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {}: {source}", kind.name())]
pub struct BindError {
    /// The endpoint's service.
    pub kind: ServiceKind,
    /// The address.
    pub address: SocketAddr,
    /// The cause.
    pub source: io::Error,
}

/// Bound sockets of endpoints. They accept no connections yet.
#[derive(Debug)]
pub struct BoundEndpoints(Vec<(ServiceKind, Listener)>);

impl BoundEndpoints {
    /// Binds all addresses, or none; port 0 takes any free port. Must be called within a tokio runtime.
    pub fn bind(addresses: impl IntoIterator<Item = (ServiceKind, SocketAddr)>) -> Result<Self, BindError> {
        let bind = |(kind, address)| match Listener::bind(address) {
            Ok(listener) => Ok((kind, listener)),
            Err(source) => Err(BindError { kind, address, source }),
        };
        addresses.into_iter().map(bind).collect::<Result<_, _>>().map(Self)
    }
}

/// A running HTTP server. Dropping it closes everything at once.
#[derive(Debug)]
pub struct HttpServer {
    endpoints: Vec<(ServiceKind, SocketAddr, RunningListener)>,
    entry: StorageEntry,
}

impl HttpServer {
    /// Opens all endpoints, or none. Must be called within a tokio runtime.
    pub fn start(
        endpoints: Vec<Endpoint>,
        admission: Arc<Admission>,
        tls: Option<&Tls>,
        limits: Limits,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, BindError> {
        // Bind all sockets before any of them accepts.
        let bound = BoundEndpoints::bind(endpoints.iter().map(|endpoint| (endpoint.kind, endpoint.address)))?;
        let services = endpoints.into_iter().map(|endpoint| endpoint.service);
        let bound = bound.0.into_iter().zip(services).collect();
        Ok(Self::serve_all(bound, &admission, tls, limits, metrics))
    }

    /// Starts serving on sockets that were bound before. `service` returns the service of a kind.
    pub fn serve(
        bound: BoundEndpoints,
        service: impl Fn(ServiceKind) -> Arc<dyn Service>,
        admission: &Arc<Admission>,
        tls: Option<&Tls>,
        limits: Limits,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let with_service = |(kind, listener)| ((kind, listener), service(kind));
        let bound = bound.0.into_iter().map(with_service).collect();
        Self::serve_all(bound, admission, tls, limits, metrics)
    }

    fn serve_all(
        bound: Vec<((ServiceKind, Listener), Arc<dyn Service>)>,
        admission: &Arc<Admission>,
        tls: Option<&Tls>,
        limits: Limits,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let limits = Arc::new(limits);
        let mut pipelines = vec![];
        let serve = |((kind, listener), service): ((ServiceKind, Listener), Arc<dyn Service>)| {
            let address = listener.address();
            let pipeline = Pipeline {
                kind,
                service,
                admission: Arc::clone(admission),
                limits: Arc::clone(&limits),
                metrics: Arc::clone(metrics),
                document_memory: DocumentMemory::new(&limits),
                host: address.to_string(),
            };
            let pipeline = Arc::new(pipeline);
            pipelines.push(Arc::clone(&pipeline));
            let serving = listener.serve(
                pipeline,
                tls.map(Tls::acceptor),
                Arc::clone(&limits),
                metrics.connections(kind),
            );
            (kind, address, serving)
        };
        let endpoints = bound.into_iter().map(serve).collect();
        Self { endpoints, entry: StorageEntry::new(pipelines) }
    }

    /// Returns the entry through which the console reaches the services.
    pub fn storage_entry(&self) -> StorageEntry {
        self.entry.clone()
    }

    /// Returns the bound addresses.
    pub fn addresses(&self) -> impl Iterator<Item = (ServiceKind, SocketAddr)> {
        self.endpoints.iter().map(|(kind, address, _)| (*kind, *address))
    }

    /// Stops accepting at once, waits up to `deadline` for the requests in flight, then closes the rest.
    /// Returns whether all requests had finished.
    pub async fn shutdown(self, deadline: Duration) -> bool {
        for (_, _, serving) in &self.endpoints {
            serving.drain();
        }
        let deadline = Instant::now() + deadline;
        let mut finished = true;
        for (_, _, serving) in &self.endpoints {
            finished &= tokio::time::timeout_at(deadline, serving.drained()).await.is_ok();
            serving.close();
        }
        finished
    }
}
