//! `--create` and `--seed`: creates resources and objects before the server is ready.
//!
//! What exists already is left alone, so a restart with the same options changes nothing. Requests go to the
//! services directly, with the rights of the account key.

mod folder;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Clock;
use lazuli_protocol::address::Address;
use lazuli_protocol::operation::route;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Account, ErrorCode, Query, Refusal, Request, Response, ServiceKind, Version};
use uuid::Uuid;

use crate::Failure;
use crate::config::{Config, Creation};
use crate::services::Services;

/// Checks the folder of `--seed`, before anything is created.
pub(crate) fn examine(config: &Config) -> Result<(), Failure> {
    config.seed.as_deref().map_or(Ok(()), folder::examine)
}

/// Creates what the configuration names.
pub(crate) async fn provide(
    config: &Config,
    accounts: &AccountDirectory,
    services: &Services,
    clock: &dyn Clock,
) -> Result<(), Failure> {
    if config.create.is_empty() && config.seed.is_none() {
        return Ok(());
    }
    let all = accounts.list().await.map_err(Failure::failed)?;
    for creation in &config.create {
        let account = choose(&all, creation.account.as_deref())?;
        let local = LocalAccount { account, accounts, services, clock };
        for name in &creation.names {
            let created = local.create(creation.kind, name).await;
            created.map_err(|refusal| failed(&format!("--create {creation}"), &refusal))?;
        }
    }
    if let Some(path) = &config.seed {
        let local = LocalAccount { account: choose(&all, None)?, accounts, services, clock };
        let count = folder::load(&local, path).await?;
        tracing::info!(count, path = %path.display(), "loaded the objects of --seed that did not exist");
    }
    Ok(())
}

/// Returns the account of that name. Without a name, returns the first one that is enabled: that of the first
/// connect line.
fn choose(accounts: &[Arc<Account>], name: Option<&str>) -> Result<Arc<Account>, Failure> {
    let found = match name {
        Some(name) => accounts.iter().find(|account| account.name == name),
        None => accounts.iter().find(|account| !account.settings.disabled),
    };
    found.cloned().ok_or_else(|| {
        let missing =
            name.map_or_else(|| "there is no account".into(), |name| format!("there is no account {name}"));
        Failure::Failed(format!("--create and --seed: {missing}"))
    })
}

fn failed(what: &str, refusal: &Refusal) -> Failure {
    Failure::Failed(format!("{what}: {refusal}"))
}

/// An account of this process, with all rights.
struct LocalAccount<'a> {
    account: Arc<Account>,
    accounts: &'a AccountDirectory,
    services: &'a Services,
    clock: &'a dyn Clock,
}

impl LocalAccount<'_> {
    /// Creates a container, queue, table or share. Returns false if it exists already.
    async fn create(&self, kind: ServiceKind, name: &str) -> Result<bool, Refusal> {
        let json = [("content-type", "application/json"), ("accept", "application/json;odata=nometadata")];
        let created = match kind {
            ServiceKind::Blob => {
                self.call(kind, Method::PUT, &format!("/{name}?restype=container"), &[], Bytes::new()).await
            }
            ServiceKind::Queue => self.call(kind, Method::PUT, &format!("/{name}"), &[], Bytes::new()).await,
            ServiceKind::Table => {
                let body = serde_json::json!({ "TableName": name }).to_string();
                self.call(kind, Method::POST, "/Tables", &json, body.into()).await
            }
            ServiceKind::File => {
                self.call(kind, Method::PUT, &format!("/{name}?restype=share"), &[], Bytes::new()).await
            }
        };
        match created {
            // An existing queue answers 204.
            Ok(response) => Ok(response.status == http::StatusCode::CREATED),
            Err(refusal) if is_existing(&refusal) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }

    /// Sends a request to a service. The target is the path below the account, encoded, with its query.
    async fn call(
        &self,
        kind: ServiceKind,
        method: Method,
        target: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Result<Response, Refusal> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = Query::parse(query)?;
        let path = format!("/{}{path}", self.account.name);
        let address = Address::parse(kind, "127.0.0.1", &path, &query, &[])?;
        let mut sent = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::try_from(*value).map_err(|_| Refusal::invalid_header(*name, *value))?;
            sent.insert(HeaderName::from_static(name), value);
        }
        let operation = route(kind, &method, &address.container, &address.object, &query, &sent)?;
        let request = Request {
            operation,
            account: self.account.clone(),
            properties: self.accounts.properties(&self.account.name, kind).await?,
            container: address.container,
            object: address.object,
            query,
            headers: sent,
            version: Version::NEWEST,
            caller: Caller::Key,
            content_length: Some(body.len() as u64),
            body: full(body),
            now: self.clock.now(),
            request_id: Uuid::new_v4(),
            endpoint: format!("http://127.0.0.1/{}", self.account.name),
            secure: false,
            peer: [127, 0, 0, 1].into(),
            sub_requests: None,
        };
        self.services.get(kind).call(request).await
    }
}

/// Returns whether a request was refused because the object exists.
fn is_existing(refusal: &Refusal) -> bool {
    matches!(
        refusal.code(),
        ErrorCode::ContainerAlreadyExists
            | ErrorCode::QueueAlreadyExists
            | ErrorCode::TableAlreadyExists
            | ErrorCode::ShareAlreadyExists
            | ErrorCode::BlobAlreadyExists
            | ErrorCode::EntityAlreadyExists
            | ErrorCode::ResourceAlreadyExists
    )
}

impl std::fmt::Display for Creation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(account) = &self.account {
            write!(f, "{account}/")?;
        }
        let kind = if self.kind == ServiceKind::File { "share" } else { self.kind.name() };
        write!(f, "{kind}:{}", self.names.join(","))
    }
}

/// Returns the failure of reading a file.
fn unreadable(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("--seed: {}: {error}", path.display()))
}
