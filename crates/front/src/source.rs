//! Authorizes reads of a copy's source in this server as if they were requests of their own.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, Method};
use lazuli_auth::Head;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{Account, Refusal, Service, SourceAccess, SourceRead};

use crate::pipeline::Admission;

const INTENT: HeaderName = HeaderName::from_static("x-ms-file-request-intent");

#[async_trait]
impl SourceAccess for Admission {
    async fn admit(&self, read: &SourceRead<'_>, service: &dyn Service) -> Result<Arc<Account>, Refusal> {
        let account = lazuli_auth::account(&*self.accounts, &read.address.account).await?;
        let credentials = [(AUTHORIZATION, read.authorization), (INTENT, read.intent)];
        let headers: HeaderMap =
            credentials.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect();
        let head = Head {
            operation: read.operation,
            account: &account,
            method: &Method::GET,
            path: &read.address.raw_path,
            container: &read.address.container,
            object: &read.address.object,
            query: read.query,
            headers: &headers,
            version: read.version,
            secure: read.secure,
            peer: read.peer,
            now: self.wall_clock.now(),
        };
        self.authenticator.authenticate(&head, service).await?;
        Ok(account)
    }

    async fn account(&self, name: &str) -> Result<Arc<Account>, Refusal> {
        lazuli_auth::account(&*self.accounts, name).await
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
