//! Requests in the body of a batch. Each part of a blob batch is authenticated as if it had come on its own,
//! with the account, version and endpoint of the batch. Operations of an entity group transaction use the
//! credentials of the transaction, so only their addresses are parsed here.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::request::Parts;
use lazuli_auth::Head;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::operation::route;
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::request::{Caller, SubRequests, full};
use lazuli_protocol::{Account, Address, Operation, Query, Refusal, Request, Service, ServiceKind, Version};
use uuid::Uuid;

use crate::metrics::Metrics;
use crate::pipeline::Admission;
use crate::refusal_log::Refused;

/// Authenticates the sub-requests of one batch.
pub(crate) struct BatchSubRequests {
    pub(crate) kind: ServiceKind,
    pub(crate) admission: Arc<Admission>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) account: Arc<Account>,
    pub(crate) properties: Arc<ServiceProperties>,
    pub(crate) address: Address,
    pub(crate) version: Version,
    pub(crate) now: Timestamp,
    pub(crate) endpoint: String,
    pub(crate) secure: bool,
    pub(crate) peer: SocketAddr,
    pub(crate) metrics: Arc<Metrics>,
    /// The caller of the batch if it comes from the console, which authenticates all its parts.
    pub(crate) console: Option<Caller>,
}

impl BatchSubRequests {
    fn target(&self, head: &Parts) -> Result<(Operation, Address, Query), Refusal> {
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let address = self.address.sub_request(self.kind, head.uri.path(), &query)?;
        let operation =
            route(self.kind, &head.method, &address.container, &address.object, &query, &head.headers)?;
        Ok((operation, address, query))
    }
}

#[async_trait]
impl SubRequests for BatchSubRequests {
    fn locate(&self, head: &Parts) -> Result<(Operation, Address), Refusal> {
        self.target(head).map(|(operation, address, _)| (operation, address))
    }

    async fn admit(&self, head: Parts, request_id: Uuid) -> Result<Request, Refusal> {
        let (operation, address, query) = self.target(&head)?;
        let authenticated = Head {
            operation,
            account: &self.account,
            method: &head.method,
            path: &address.raw_path,
            container: &address.container,
            object: &address.object,
            query: &query,
            headers: &head.headers,
            version: self.version,
            secure: self.secure,
            peer: self.peer.ip(),
            now: self.admission.wall_clock.now(),
        };
        let caller = match &self.console {
            Some(caller) => caller.clone(),
            None => self.admission.authenticator.authenticate(&authenticated, &*self.service).await?,
        };
        Ok(Request {
            operation,
            account: Arc::clone(&self.account),
            properties: Arc::clone(&self.properties),
            container: address.container,
            object: address.object,
            query,
            headers: head.headers,
            version: self.version,
            caller,
            body: full(""),
            content_length: Some(0),
            now: self.now,
            request_id,
            endpoint: self.endpoint.clone(),
            secure: self.secure,
            peer: self.peer.ip(),
            sub_requests: None,
        })
    }

    fn log_refusal(&self, head: &Parts, request_id: Uuid, refusal: &Refusal) {
        let refused = Refused {
            request_id,
            service: self.kind,
            operation: self.target(head).ok().map(|(operation, ..)| operation),
            account: Some(&self.account.name),
            peer: self.peer,
            method: &head.method,
            uri: &head.uri,
            authorization: head.headers.get(AUTHORIZATION),
        };
        self.metrics.refusals.write(&refused, refusal.status(), Some(refusal));
    }
}
