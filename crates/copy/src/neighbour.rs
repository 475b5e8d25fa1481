//! The other services of this server: what they hold is copied without a way over the network, which the operator may
//! well have closed to this very machine.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Operation, Refusal, Request, Response, Service, ServiceKind, SourceAccess, Version};

use crate::SourceUrl;

/// The services of this server that can be copied from, and the ports of all. Clones are the same.
#[derive(Clone, Default)]
pub struct Neighbours {
    services: Arc<[(ServiceKind, Arc<dyn Service>)]>,
    ports: Arc<OnceLock<Vec<(ServiceKind, u16)>>>,
}

impl Neighbours {
    /// These services. They are only read from.
    pub fn new(services: impl IntoIterator<Item = (ServiceKind, Arc<dyn Service>)>) -> Self {
        Self { services: services.into_iter().collect(), ports: Arc::default() }
    }

    /// Says where the services are reached, once that is known.
    pub fn listen_on(&self, ports: impl IntoIterator<Item = (ServiceKind, u16)>) {
        let _ = self.ports.set(ports.into_iter().collect());
    }

    /// The service that is reached at a port.
    pub(crate) fn at(&self, port: u16) -> Option<ServiceKind> {
        let ports = self.ports.get()?;
        ports.iter().find(|(_, other)| *other == port).map(|(kind, _)| *kind)
    }

    /// One of them, and how something is read there.
    pub(crate) fn get(&self, kind: ServiceKind) -> Option<(Arc<dyn Service>, Operation)> {
        let operation = match kind {
            ServiceKind::Blob => Operation::GetBlob,
            ServiceKind::File => Operation::GetFile,
            ServiceKind::Queue | ServiceKind::Table => return None,
        };
        let (_, service) = self.services.iter().find(|(other, _)| *other == kind)?;
        Some((service.clone(), operation))
    }
}

/// Something in another service of this server. Whether the caller may read it is judged before.
#[derive(Clone)]
pub(crate) struct Neighbour {
    pub(crate) kind: ServiceKind,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) operation: Operation,
    pub(crate) access: Arc<dyn SourceAccess>,
    pub(crate) url: SourceUrl,
    pub(crate) address: Address,
}

impl Neighbour {
    /// Reads it.
    pub(crate) async fn get(&self, headers: HeaderMap, version: Version) -> Result<Response, Refusal> {
        let request = Request {
            operation: self.operation,
            account: self.access.account(&self.address.account).await?,
            container: self.address.container.clone(),
            object: self.address.object.clone(),
            query: self.url.query.clone(),
            headers,
            version,
            caller: Caller::Key,
            body: full(""),
            content_length: None,
            now: self.access.now(),
            request_id: uuid::Uuid::new_v4(),
            endpoint: String::new(),
            secure: true,
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            carried: None,
        };
        self.service.call(request).await
    }
}
