//! The HTTP server: one listener for each service.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::kind::ServiceKind;
use lazuli_protocol::service::Service;
use tokio::time::Instant;

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

/// A running HTTP server. Dropping it closes everything at once.
#[derive(Debug)]
pub struct HttpServer {
    endpoints: Vec<(ServiceKind, SocketAddr, RunningListener)>,
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
        let limits = Arc::new(limits);
        // Bind all sockets before any of them accepts.
        let mut bound = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let Endpoint { kind, address, .. } = endpoint;
            let listener = Listener::bind(address).map_err(|source| BindError { kind, address, source })?;
            bound.push((endpoint, listener));
        }
        let serve = |(endpoint, listener): (Endpoint, Listener)| {
            let address = listener.address();
            let pipeline = Pipeline {
                kind: endpoint.kind,
                service: endpoint.service,
                admission: Arc::clone(&admission),
                limits: Arc::clone(&limits),
                metrics: Arc::clone(metrics),
                document_memory: DocumentMemory::new(&limits),
                host: address.to_string(),
            };
            let serving = listener.serve(
                Arc::new(pipeline),
                tls.map(Tls::acceptor),
                Arc::clone(&limits),
                metrics.connections(endpoint.kind),
            );
            (endpoint.kind, address, serving)
        };
        Ok(Self { endpoints: bound.into_iter().map(serve).collect() })
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
