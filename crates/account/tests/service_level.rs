//! The operations that all services share, on a real store.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use lazuli_account::{AccountDirectory, ServiceLevel};
use lazuli_concurrency::{SystemClock, Timestamp};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::request::{Caller, collect, full};
use lazuli_protocol::{
    Account, ErrorCode, Key, Operation, Query, Refusal, Request, Response, Service, ServiceKind, Version,
};
use lazuli_store::InMemoryStore;

struct Fixture {
    accounts: AccountDirectory,
    account: Arc<Account>,
}

impl Fixture {
    async fn new() -> Self {
        let store = InMemoryStore::new(Arc::new(SystemClock), 1 << 20);
        let accounts = AccountDirectory::open(Arc::new(store)).await.unwrap();
        let keys = vec![Key::from_bytes(vec![1; 64])];
        let account = Account {
            name: "alpha".into(),
            keys,
            settings: Default::default(),
            roles: vec![],
            generation: 0,
        };
        let account = accounts.add(account).await.unwrap();
        Self { accounts, account }
    }

    async fn call(
        &self,
        operation: Operation,
        body: &str,
    ) -> Result<(StatusCode, HeaderMap, String), Refusal> {
        self.call_at(operation, body, "http://127.0.0.1:1/alpha", Version::NEWEST).await
    }

    async fn call_at(
        &self,
        operation: Operation,
        body: &str,
        endpoint: &str,
        version: Version,
    ) -> Result<(StatusCode, HeaderMap, String), Refusal> {
        let level = ServiceLevel::new(operation.service(), self.accounts.clone(), Arc::new(Echo));
        let mut response = level.call(self.request(operation, body, endpoint, version)).await?;
        let body = collect(Pin::new(&mut response.body), 1 << 20).await?;
        Ok((response.status, response.headers, String::from_utf8(body.to_vec()).unwrap()))
    }

    fn request(&self, operation: Operation, body: &str, endpoint: &str, version: Version) -> Request {
        Request {
            operation,
            account: self.account.clone(),
            properties: Arc::default(),
            container: String::new(),
            object: String::new(),
            query: Query::default(),
            headers: HeaderMap::new(),
            version,
            caller: Caller::Key,
            body: full(body.to_owned()),
            content_length: Some(body.len() as u64),
            now: Timestamp::from_unix_seconds(1_600_000_000),
            request_id: uuid::Uuid::nil(),
            endpoint: endpoint.into(),
            secure: false,
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            sub_requests: None,
        }
    }
}

const METRICS: &str = "<StorageServiceProperties><HourMetrics><Version>1.0</Version><Enabled>true</Enabled>\
     <IncludeAPIs>true</IncludeAPIs><RetentionPolicy><Enabled>true</Enabled><Days>7</Days></RetentionPolicy>\
     </HourMetrics></StorageServiceProperties>";
const CORS: &str = "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://a.example</AllowedOrigins>\
     <AllowedMethods>GET</AllowedMethods><AllowedHeaders/><ExposedHeaders/><MaxAgeInSeconds>5</MaxAgeInSeconds>\
     </CorsRule></Cors></StorageServiceProperties>";

#[tokio::test]
async fn set_service_properties_changes_only_the_given_roots_of_its_own_service() {
    use Operation::*;
    let fixture = Fixture::new().await;
    let services = [
        (GetBlobServiceProperties, SetBlobServiceProperties),
        (GetQueueServiceProperties, SetQueueServiceProperties),
        (GetTableServiceProperties, SetTableServiceProperties),
        (GetFileServiceProperties, SetFileServiceProperties),
    ];
    for (get, set) in services {
        let (status, headers, fresh) = fixture.call(get, "").await.unwrap();
        assert_eq!(status, StatusCode::OK, "{get:?}");
        assert_eq!(headers["content-type"], "application/xml");
        assert!(!fresh.contains("<Days>7</Days>") && !fresh.contains("CorsRule"), "{fresh}");

        for body in [METRICS, CORS] {
            let (status, _, reply) = fixture.call(set, body).await.unwrap();
            assert_eq!((status, reply.as_str()), (StatusCode::ACCEPTED, ""), "{set:?}");
        }
        let (_, _, both) = fixture.call(get, "").await.unwrap();
        assert!(both.contains("<Days>7</Days>") && both.contains("http://a.example"), "{both}");
    }
}

#[tokio::test]
async fn invalid_document_is_refused_and_changes_nothing() {
    use Operation::{GetQueueServiceProperties, SetQueueServiceProperties};
    let fixture = Fixture::new().await;
    fixture.call(SetQueueServiceProperties, METRICS).await.unwrap();
    let (_, _, before) = fixture.call(GetQueueServiceProperties, "").await.unwrap();
    let too_long = METRICS.replace("<Days>7<", "<Days>366<");
    for (body, code) in [
        (too_long.as_str(), ErrorCode::InvalidXmlDocument),
        ("", ErrorCode::InvalidXmlDocument),
        ("<Wrong/>", ErrorCode::InvalidXmlDocument),
        (&"x".repeat(600 << 10), ErrorCode::RequestBodyTooLarge),
    ] {
        let refusal = fixture.call(SetQueueServiceProperties, body).await.unwrap_err();
        assert_eq!(refusal.code(), code, "{:.60}", body);
    }
    assert_eq!(fixture.call(GetQueueServiceProperties, "").await.unwrap().2, before);
}

#[tokio::test]
async fn statistics_are_available_at_the_secondary_endpoint_only() {
    use Operation::{GetBlobServiceStats, GetQueueServiceStats, GetTableServiceStats};
    let fixture = Fixture::new().await;
    for operation in [GetBlobServiceStats, GetQueueServiceStats, GetTableServiceStats] {
        let secondary = "http://127.0.0.1:1/alpha-secondary";
        let (status, _, body) = fixture.call_at(operation, "", secondary, Version::NEWEST).await.unwrap();
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("<Status>live</Status><LastSyncTime>Sun, 13 Sep 2020 12:26:40 GMT<"), "{body}");
        let refusal = fixture.call(operation, "").await.unwrap_err();
        assert_eq!(refusal.code(), ErrorCode::InvalidQueryParameterValue);
    }
}

#[tokio::test]
async fn newer_versions_return_more_account_information() {
    let fixture = Fixture::new().await;
    for (version, hns) in [(Version::new(2018, 3, 28), None), (Version::new(2019, 7, 7), Some("false"))] {
        let information = Operation::GetAccountInformation;
        let (status, headers, body) =
            fixture.call_at(information, "", "http://x/alpha", version).await.unwrap();
        assert_eq!((status, body.as_str()), (StatusCode::OK, ""));
        assert_eq!(headers["x-ms-sku-name"], "Standard_LRS");
        assert_eq!(headers["x-ms-account-kind"], "StorageV2");
        assert_eq!(headers.get("x-ms-is-hns-enabled").map(|v| v.to_str().unwrap()), hns);
    }
}

struct Echo;

#[async_trait]
impl Service for Echo {
    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        Ok(Response::with_body(StatusCode::OK, "text/plain", request.operation.name()))
    }

    async fn access_policy(&self, _: &Account, _: &str, id: &str) -> Result<Option<AccessPolicy>, Refusal> {
        Ok(Some(AccessPolicy { permissions: Some(id.into()), ..AccessPolicy::default() }))
    }

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::Blob)
    }
}

#[tokio::test]
async fn all_other_operations_reach_the_service() {
    let fixture = Fixture::new().await;
    let level = ServiceLevel::new(ServiceKind::Blob, fixture.accounts.clone(), Arc::new(Echo));
    let request = fixture.request(Operation::ListContainers, "", "http://x/alpha", Version::NEWEST);
    let mut response = level.call(request).await.unwrap();
    assert_eq!(collect(Pin::new(&mut response.body), 100).await.unwrap(), "List Containers");
    let policy = level.access_policy(&fixture.account, "c", "p").await.unwrap().unwrap();
    assert_eq!(policy.permissions.as_deref(), Some("p"));
    assert_eq!(level.public_access(&fixture.account, "c").await.unwrap(), PublicAccess::Blob);
}
