//! The operations that address a service as a whole: properties, statistics, account information.
//!
//! The operations are the same for all services, so [`ServiceLevel`] wraps each service and answers them.
//! The service carries out all other operations. The front end answers user delegation keys and preflight
//! requests.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::properties::Update;
use lazuli_protocol::{
    Account, Operation, Refusal, Request, Response, Service, ServiceKind, Version, date, xml,
};

use crate::AccountDirectory;

const SKU_NAME: HeaderName = HeaderName::from_static("x-ms-sku-name");
const ACCOUNT_KIND: HeaderName = HeaderName::from_static("x-ms-account-kind");
const IS_HNS_ENABLED: HeaderName = HeaderName::from_static("x-ms-is-hns-enabled");

/// A service, extended by the operations that all services have in common.
pub struct ServiceLevel {
    kind: ServiceKind,
    accounts: AccountDirectory,
    service: Arc<dyn Service>,
}

impl ServiceLevel {
    /// Wraps `service`.
    pub const fn new(kind: ServiceKind, accounts: AccountDirectory, service: Arc<dyn Service>) -> Self {
        Self { kind, accounts, service }
    }

    async fn get_properties(&self, request: Request) -> Result<Response, Refusal> {
        let properties = self.accounts.properties(&request.account.name, self.kind).await?;
        Ok(Response::xml(properties.to_xml(self.kind, request.version)))
    }

    async fn set_properties(&self, mut request: Request) -> Result<Response, Refusal> {
        let update = Update::parse(self.kind, &request.read_document().await?)?;
        self.accounts.set_properties(&request.account.name, self.kind, update).await?;
        Ok(Response::empty(StatusCode::ACCEPTED))
    }
}

#[async_trait]
impl Service for ServiceLevel {
    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        use Operation::{
            GetAccountInformation, GetBlobServiceProperties, GetBlobServiceStats, GetFileServiceProperties,
            GetQueueServiceProperties, GetQueueServiceStats, GetTableServiceProperties, GetTableServiceStats,
            SetBlobServiceProperties, SetFileServiceProperties, SetQueueServiceProperties,
            SetTableServiceProperties,
        };
        match request.operation {
            GetBlobServiceProperties
            | GetQueueServiceProperties
            | GetTableServiceProperties
            | GetFileServiceProperties => self.get_properties(request).await,
            SetBlobServiceProperties
            | SetQueueServiceProperties
            | SetTableServiceProperties
            | SetFileServiceProperties => self.set_properties(request).await,
            GetBlobServiceStats | GetQueueServiceStats | GetTableServiceStats => stats(&request),
            GetAccountInformation => Ok(account_information(request.version)),
            _ => self.service.call(request).await,
        }
    }

    async fn access_policy(
        &self,
        account: &Account,
        container: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal> {
        self.service.access_policy(account, container, id).await
    }

    async fn public_access(&self, account: &Account, container: &str) -> Result<PublicAccess, Refusal> {
        self.service.public_access(account, container).await
    }
}

/// Answers Get Service Stats. The secondary is the primary under another name, so it is always in sync.
fn stats(request: &Request) -> Result<Response, Refusal> {
    if !addresses_secondary(&request.endpoint, &request.account.name) {
        let reason = "Statistics are available at the secondary endpoint only.";
        return Err(Refusal::invalid_query("comp", "stats", reason));
    }
    Ok(Response::xml(stats_xml(request.now)))
}

fn stats_xml(last_sync: Timestamp) -> String {
    let mut xml = xml::Writer::new();
    xml.open("StorageServiceStats").open("GeoReplication");
    xml.text("Status", "live").text("LastSyncTime", date::rfc1123(last_sync));
    xml.finish()
}

/// Returns whether an endpoint, in path or host style, is the account's secondary endpoint.
fn addresses_secondary(endpoint: &str, account: &str) -> bool {
    let Some((_, address)) = endpoint.split_once("://") else { return false };
    let label = address.split_once('/').map_or_else(|| address.split('.').next(), |(_, path)| Some(path));
    label
        .and_then(|label| label.strip_suffix("-secondary"))
        .is_some_and(|name| name.eq_ignore_ascii_case(account))
}

fn account_information(version: Version) -> Response {
    let mut response = Response::empty(StatusCode::OK);
    response.headers.insert(SKU_NAME, HeaderValue::from_static("Standard_LRS"));
    response.headers.insert(ACCOUNT_KIND, HeaderValue::from_static("StorageV2"));
    if version.at_least(2019, 7, 7) {
        response.headers.insert(IS_HNS_ENABLED, HeaderValue::from_static("false"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secondary_endpoint_is_recognized_by_the_account_label_in_path_or_host() {
        for (endpoint, secondary) in [
            ("http://127.0.0.1:10000/abc-secondary", true),
            ("http://127.0.0.1:10000/abc", false),
            ("https://abc-secondary.blob.example.com", true),
            ("https://ABC-secondary.blob.example.com:443", true),
            ("https://abc.blob.example.com", false),
            ("https://abc-secondary.example.com/abc", false),
            ("http://[::1]:10000/abc-secondary", true),
            ("http://127.0.0.1/other-secondary", false),
            ("", false),
        ] {
            assert_eq!(addresses_secondary(endpoint, "abc"), secondary, "{endpoint}");
        }
    }

    #[test]
    fn statistics_contain_the_status_and_the_time_of_the_last_sync() {
        assert_eq!(
            stats_xml(Timestamp::from_unix_seconds(1_600_000_000)),
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><StorageServiceStats><GeoReplication><Status>live</Status>\
             <LastSyncTime>Sun, 13 Sep 2020 12:26:40 GMT</LastSyncTime></GeoReplication></StorageServiceStats>"
        );
    }
}
