//! Reads of a resource in this server whose URL another request contains: the source of a copy.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderValue;
use lazuli_concurrency::Timestamp;

use crate::account::Account;
use crate::address::Address;
use crate::error::Refusal;
use crate::operation::Operation;
use crate::query::Query;
use crate::service::Service;
use crate::version::Version;

/// A read of a copy's source, with what a client's own request would have contained.
#[derive(Clone, Copy, Debug)]
pub struct SourceRead<'a> {
    /// The operation that reads the source.
    pub operation: Operation,
    /// The address of the source.
    pub address: &'a Address,
    /// The query of the source's URL, which may contain credentials.
    pub query: &'a Query,
    /// The `Authorization` header for the source.
    pub authorization: Option<&'a HeaderValue>,
    /// The intent of a bearer token, which the file service requires.
    pub intent: Option<&'a HeaderValue>,
    /// The version of the copy request.
    pub version: Version,
    /// The source's URL uses HTTPS.
    pub secure: bool,
    /// The client that sent the copy request.
    pub peer: IpAddr,
}

/// Authorizes reads of sources as the front door authorizes requests.
#[async_trait]
pub trait SourceAccess: Send + Sync {
    /// Returns the source's account if the read's credentials suffice. `service` is the source's service.
    async fn admit(&self, read: &SourceRead<'_>, service: &dyn Service) -> Result<Arc<Account>, Refusal>;

    /// Returns the account of a source that was authorized before.
    async fn account(&self, name: &str) -> Result<Arc<Account>, Refusal>;

    /// Returns the store's time, for a read of a source that was authorized before.
    fn now(&self) -> Timestamp;
}
