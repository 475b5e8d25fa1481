//! The other services of this server. Their resources are copied without the network, because the operator
//! may have forbidden connections to this machine.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Operation, Refusal, Request, Response, Service, ServiceKind, SourceAccess, Version};

use crate::SourceUrl;

/// The services of this server from which copies can be made, and the ports of all services. Clones share
/// their state.
#[derive(Clone, Default)]
pub struct LocalServices {
    services: Arc<[(ServiceKind, Arc<dyn Service>)]>,
    ports: Arc<OnceLock<Vec<(ServiceKind, u16)>>>,
}

impl LocalServices {
    /// Creates the set of services. They are only read from.
    pub fn new(services: impl IntoIterator<Item = (ServiceKind, Arc<dyn Service>)>) -> Self {
        Self { services: services.into_iter().collect(), ports: Arc::default() }
    }

    /// Sets the ports of the services, once they are known.
    pub fn set_ports(&self, ports: impl IntoIterator<Item = (ServiceKind, u16)>) {
        let _ = self.ports.set(ports.into_iter().collect());
    }

    /// Returns the service that listens on a port.
    pub(crate) fn by_port(&self, port: u16) -> Option<ServiceKind> {
        let ports = self.ports.get()?;
        ports.iter().find(|(_, other)| *other == port).map(|(kind, _)| *kind)
    }

    /// Returns a service, and the operation that reads from it.
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

/// A source in another service of this server. The caller's permission has been checked before.
#[derive(Clone)]
pub(crate) struct LocalSource {
    pub(crate) kind: ServiceKind,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) operation: Operation,
    pub(crate) access: Arc<dyn SourceAccess>,
    pub(crate) url: SourceUrl,
    pub(crate) address: Address,
}

impl LocalSource {
    /// Reads the source.
    pub(crate) async fn get(&self, headers: HeaderMap, version: Version) -> Result<Response, Refusal> {
        let request = Request {
            operation: self.operation,
            account: self.access.account(&self.address.account).await?,
            // No read depends on them.
            properties: Arc::default(),
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
            sub_requests: None,
        };
        self.service.call(request).await
    }
}
