//! The interfaces that the front door requires of services and of the account directory.

use std::sync::Arc;

use async_trait::async_trait;

use crate::account::Account;
use crate::error::Refusal;
use crate::kind::ServiceKind;
use crate::policy::{AccessPolicy, PublicAccess};
use crate::properties::ServiceProperties;
use crate::request::{Request, Response};

/// One REST service behind the front door. All requests have been routed, authenticated and authorized.
#[async_trait]
pub trait Service: Send + Sync {
    /// Carries out one operation.
    async fn call(&self, request: Request) -> Result<Response, Refusal>;

    /// Returns the stored access policy `id` of a container, queue, table or share, for a SAS that refers to
    /// it with `si`.
    async fn access_policy(
        &self,
        account: &Account,
        container: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal>;

    /// Returns the anonymous access to a container.
    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::None)
    }
}

/// The directory of accounts.
#[async_trait]
pub trait Accounts: Send + Sync {
    /// Returns the account with this name.
    async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Refusal>;

    /// Returns the properties of one service of an account: CORS rules, default version, retention.
    async fn service_properties(
        &self,
        account: &Account,
        service: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal>;
}
