//! Reading one thing of this server because another request names its URL: the source of a copy.

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

/// A read that nobody sent: what it would look like if somebody had.
#[derive(Clone, Copy, Debug)]
pub struct SourceRead<'a> {
    /// What is to be done with the source.
    pub operation: Operation,
    /// Where it is.
    pub address: &'a Address,
    /// The query that holds its credentials, if any are there.
    pub query: &'a Query,
    /// Its `Authorization`.
    pub authorization: Option<&'a HeaderValue>,
    /// What its token is used for, which the file service wants to know.
    pub intent: Option<&'a HeaderValue>,
    /// The version of the request that names it.
    pub version: Version,
    /// Whether its URL is of HTTPS.
    pub secure: bool,
    /// The client that names it.
    pub peer: IpAddr,
}

/// Judges such a read as the front door would judge the request.
#[async_trait]
pub trait SourceAccess: Send + Sync {
    /// The account that the source is in, if what the read brings is enough to be let in. `service` is the one that
    /// the source is of.
    async fn admit(&self, read: &SourceRead<'_>, service: &dyn Service) -> Result<Arc<Account>, Refusal>;

    /// The account of a source that was let in before.
    async fn account(&self, name: &str) -> Result<Arc<Account>, Refusal>;

    /// The store's time, for a read of a source that was let in before.
    fn now(&self) -> Timestamp;
}
