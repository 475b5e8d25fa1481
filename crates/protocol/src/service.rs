//! What the front door asks of a service, and of the directory of accounts.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::error::Refusal;
use crate::policy::{AccessPolicy, PublicAccess};
use crate::properties::ServiceProperties;
use crate::request::{Request, Response};

/// The services, each with an endpoint of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Containers and blobs.
    Blob,
    /// Queues and messages.
    Queue,
    /// Tables and entities.
    Table,
    /// Shares, directories and files over REST.
    File,
}

impl ServiceKind {
    /// All of them, in the order of their default ports.
    pub const ALL: [Self; 4] = [Self::Blob, Self::Queue, Self::Table, Self::File];

    /// The name in host names, SAS resources and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Queue => "queue",
            Self::Table => "table",
            Self::File => "file",
        }
    }
}

/// One REST service behind the front door. It is called only with requests that were routed, authenticated and
/// authorised.
#[async_trait]
pub trait Service: Send + Sync {
    /// Carries out one operation.
    async fn call(&self, request: Request) -> Result<Response, Refusal>;

    /// The stored access policy `id` of a container, queue, table or share, for a SAS that names it with `si`.
    async fn access_policy(
        &self,
        account: &Account,
        container: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal>;

    /// What a container lets anybody read.
    async fn public_access(&self, account: &Account, container: &str) -> Result<PublicAccess, Refusal>;
}

/// The directory of accounts.
#[async_trait]
pub trait Accounts: Send + Sync {
    /// The account of that name.
    async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Refusal>;

    /// The properties of one service of an account: CORS rules, default version, retention.
    async fn service_properties(
        &self,
        account: &Account,
        service: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal>;
}
