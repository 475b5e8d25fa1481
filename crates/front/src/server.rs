//! The whole front door: one listener for each service, with what they share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lazuli_protocol::service::{Service, ServiceKind};
use tokio::time::Instant;

use crate::documents::Documents;
use crate::limits::Limits;
use crate::listener::{Listener, Serving};
use crate::metrics::Metrics;
use crate::pipeline::{Gate, Pipeline};
use crate::tls::Tls;

/// One service and where it listens.
pub struct Endpoint {
    /// Which service.
    pub kind: ServiceKind,
    /// Where; port 0 takes any free port.
    pub address: SocketAddr,
    /// What answers.
    pub service: Arc<dyn Service>,
}

/// An endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {}: {source}", kind.name())]
pub struct BindError {
    /// Which service.
    pub kind: ServiceKind,
    /// Where.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// A running front door. Dropping it closes everything at once.
#[derive(Debug)]
pub struct Server {
    endpoints: Vec<(ServiceKind, SocketAddr, Serving)>,
}

impl Server {
    /// Opens all endpoints, or none. Has to be called within a tokio runtime.
    pub fn start(
        endpoints: Vec<Endpoint>,
        gate: Arc<Gate>,
        tls: Option<&Tls>,
        limits: Limits,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, BindError> {
        let limits = Arc::new(limits);
        // Bind them all before any of them accepts.
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
                gate: Arc::clone(&gate),
                limits: Arc::clone(&limits),
                metrics: Arc::clone(metrics),
                documents: Documents::new(&limits),
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

    /// The addresses that were bound.
    pub fn addresses(&self) -> impl Iterator<Item = (ServiceKind, SocketAddr)> {
        self.endpoints.iter().map(|(kind, address, _)| (*kind, *address))
    }

    /// Stops accepting at once, waits up to `deadline` for the requests under way, then drops what is left. Says
    /// whether everything had finished.
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
