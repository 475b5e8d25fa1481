//! Requests that another request carries in its body. Each part of a blob batch goes through the same door as if it had
//! come on its own, but for what it has from the request that carries it. Operations of an entity group transaction come
//! in by the credentials of the whole, so only their addresses are looked up here.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::request::Parts;
use lazuli_auth::Head;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::operation::route;
use lazuli_protocol::request::{Carried, full};
use lazuli_protocol::{Account, Address, Operation, Query, Refusal, Request, Service, ServiceKind, Version};
use uuid::Uuid;

use crate::pipeline::Gate;

/// The door for requests that came within another, and what they have from that.
pub(crate) struct Inner {
    pub(crate) kind: ServiceKind,
    pub(crate) gate: Arc<Gate>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) account: Arc<Account>,
    pub(crate) address: Address,
    pub(crate) version: Version,
    pub(crate) now: Timestamp,
    pub(crate) endpoint: String,
    pub(crate) secure: bool,
    pub(crate) peer: IpAddr,
}

impl Inner {
    fn target(&self, head: &Parts) -> Result<(Operation, Address, Query), Refusal> {
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let address = self.address.carried(self.kind, head.uri.path(), &query)?;
        let operation =
            route(self.kind, &head.method, &address.container, &address.object, &query, &head.headers)?;
        Ok((operation, address, query))
    }
}

#[async_trait]
impl Carried for Inner {
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
            peer: self.peer,
            now: self.gate.machine.now(),
        };
        let caller = self.gate.authenticator.authenticate(&authenticated, &*self.service).await?;
        Ok(Request {
            operation,
            account: Arc::clone(&self.account),
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
            peer: self.peer,
            carried: None,
        })
    }
}
