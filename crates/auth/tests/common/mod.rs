//! The environment of the tests: one account, one service, and requests that carry the time.

#![allow(dead_code, unreachable_pub)]

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use lazuli_auth::bearer::{Issuer, KeySet, StaticKeys};
use lazuli_auth::shared_key::{Message, Scheme};
use lazuli_auth::sign::{self, Resource};
use lazuli_auth::user_delegation::MasterSecret;
use lazuli_auth::{Authenticator, Head};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::account::{Role, RoleAssignment, Settings};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::request::{Caller, Grant, Request, Response};
use lazuli_protocol::{
    Account, ErrorCode, Key, Operation, Query, Refusal, Service, ServiceKind, Version, date,
};

pub const ACCOUNT: &str = "devstoreaccount1";
pub const TOKENS: &str = include_str!("../vectors/tokens.json");
/// The `oid` of the tokens, and the owner of the user delegation keys.
pub const SUBJECT: &str = "11111111-2222-3333-4444-555555555555";

/// A protocol version that is neither old nor new.
pub const SV: &str = "2021-12-02";
/// One hour after the time of every request.
pub const LATER: &str = "2026-05-20T13:00:00Z";

pub struct World {
    pub account: Account,
    pub public: Result<PublicAccess, Refusal>,
    pub policy: Result<Option<AccessPolicy>, Refusal>,
    pub authenticator: Authenticator,
}

/// A request. Every field has a harmless default.
pub struct TestRequest {
    pub operation: Operation,
    pub method: Method,
    pub path: String,
    pub container: String,
    pub object: String,
    pub query: String,
    pub headers: HeaderMap,
    pub version: Version,
    pub secure: bool,
    pub peer: IpAddr,
    pub now: Timestamp,
}

pub fn now() -> Timestamp {
    date::parse_iso8601("2026-05-20T12:00:00Z").unwrap()
}

pub fn key() -> Key {
    Key::from_bytes((0..64).collect())
}

pub fn secret() -> MasterSecret {
    MasterSecret::new([7; 32])
}

pub fn issuer() -> Issuer {
    let tokens: serde_json::Value = serde_json::from_str(TOKENS).unwrap();
    let keys = KeySet::parse(tokens["jwks"].to_string().as_bytes()).unwrap();
    Issuer {
        name: "https://issuer.example/tenant".into(),
        audiences: vec!["my-client".into()],
        authorization_uri: "https://issuer.example/tenant/oauth2/authorize".into(),
        keys: Arc::new(StaticKeys::new(keys)),
    }
}

impl World {
    pub fn new() -> Self {
        Self {
            account: Account {
                name: ACCOUNT.into(),
                generation: 0,
                keys: vec![Key::from_bytes(vec![9; 64]), key()],
                settings: Settings::default(),
                roles: Vec::new(),
            },
            public: Ok(PublicAccess::None),
            policy: Ok(None),
            authenticator: Authenticator::new(secret(), Some(issuer())),
        }
    }

    pub fn with_role(mut self, role: Role) -> Self {
        self.account.roles = ServiceKind::ALL
            .into_iter()
            .map(|service| RoleAssignment { subject: SUBJECT.into(), service, role })
            .collect();
        self
    }

    pub fn authenticate(&self, request: &TestRequest) -> Result<Caller, Refusal> {
        request.with_head(&self.account, |head| block_on(self.authenticator.authenticate(head, self)))
    }

    pub fn code(&self, request: &TestRequest) -> Option<ErrorCode> {
        self.authenticate(request).err().map(|refusal| refusal.code())
    }

    pub fn grant(&self, request: &TestRequest) -> Grant {
        match self.authenticate(request) {
            Ok(Caller::Sas(grant)) => grant,
            other => panic!("{other:?}"),
        }
    }
}

impl TestRequest {
    pub fn new(operation: Operation) -> Self {
        let (container, object) = match operation.service() {
            ServiceKind::Queue => ("q", "messages"),
            ServiceKind::Table => ("t", ""),
            ServiceKind::Blob | ServiceKind::File => ("c", "o"),
        };
        Self {
            operation,
            method: operation.row().methods[0].parse().unwrap(),
            path: format!("/{ACCOUNT}/{container}/{object}"),
            container: container.into(),
            object: object.into(),
            query: String::new(),
            headers: HeaderMap::new(),
            version: Version::NEWEST,
            secure: true,
            peer: "10.0.0.1".parse().unwrap(),
            now: now(),
        }
    }

    pub fn query(mut self, query: impl Into<String>) -> Self {
        self.query = query.into();
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        self
    }

    pub fn at(mut self, container: &str, object: &str) -> Self {
        (self.container, self.object) = (container.into(), object.into());
        self
    }

    pub fn version(mut self, version: &str) -> Self {
        self.version = Version::parse(version).unwrap();
        self
    }

    pub fn with_head<T>(&self, account: &Account, run: impl FnOnce(&Head<'_>) -> T) -> T {
        let query = Query::parse(&self.query).unwrap();
        run(&Head {
            operation: self.operation,
            account,
            method: &self.method,
            path: &self.path,
            container: &self.container,
            object: &self.object,
            query: &query,
            headers: &self.headers,
            version: self.version,
            secure: self.secure,
            peer: self.peer,
            now: self.now,
        })
    }
}

/// Returns an account SAS for everything, with some fields changed. An empty value removes a field.
pub fn account_sas(changes: &[(&str, &str)]) -> String {
    let defaults = [("sv", SV), ("ss", "bqtf"), ("srt", "sco"), ("sp", "rwdxylacupfti"), ("se", LATER)];
    sign::account_sas(ACCOUNT, &key(), &changed(&defaults, changes))
}

/// Returns a SAS for container `c`, with some fields changed.
pub fn container_sas(changes: &[(&str, &str)]) -> String {
    let defaults = [("sv", SV), ("sr", "c"), ("sp", "racwdxyltfmeopi"), ("se", LATER)];
    service_sas(ServiceKind::Blob, "c", &changed(&defaults, changes))
}

pub fn service_sas(service: ServiceKind, path: &str, fields: &[(&str, &str)]) -> String {
    let resource = Resource { service, account: ACCOUNT, path, timestamp: "" };
    sign::service_sas(&resource, &key(), fields)
}

/// The tenant of the tokens.
pub const TENANT: &str = "66666666-7777-8888-9999-000000000000";
pub const KEY_START: &str = "2026-05-20T11:00:00Z";
pub const KEY_END: &str = "2026-05-20T14:00:00Z";

/// Returns a bearer token of [`SUBJECT`] for an Authorization header.
pub fn bearer() -> String {
    let tokens: serde_json::Value = serde_json::from_str(TOKENS).unwrap();
    format!("Bearer {}", tokens["tokens"][0]["token"].as_str().unwrap())
}

/// Returns a user delegation SAS for the container, share or queue of [`TestRequest::new`], signed with a
/// key from the server.
pub fn delegated(service: ServiceKind, changes: &[(&str, &str)]) -> String {
    let (path, sr) = match service {
        ServiceKind::File => ("c", "s"),
        ServiceKind::Queue => ("q", ""),
        ServiceKind::Blob | ServiceKind::Table => ("c", "c"),
    };
    let defaults = [
        ("sv", SV),
        ("sr", sr),
        ("sp", "rwl"),
        ("se", LATER),
        ("skoid", SUBJECT),
        ("sktid", TENANT),
        ("skt", KEY_START),
        ("ske", KEY_END),
        ("sks", &service.name()[..1]),
        ("skv", SV),
    ];
    let resource = Resource { service, account: ACCOUNT, path, timestamp: "" };
    let user_tenant = changes.iter().find(|(name, _)| *name == "skdutid").map_or("", |(_, tenant)| tenant);
    let key = user_delegation_key(service, user_tenant);
    sign::user_delegation_sas(&resource, &key, &changed(&defaults, changes))
}

/// Requests a user delegation key from the server, like a client.
pub fn user_delegation_key(service: ServiceKind, user_tenant: &str) -> Key {
    let world = World::new();
    let operation = match service {
        ServiceKind::File => Operation::GetFileUserDelegationKey,
        ServiceKind::Queue => Operation::GetQueueUserDelegationKey,
        ServiceKind::Blob | ServiceKind::Table => Operation::GetUserDelegationKey,
    };
    let request = TestRequest::new(operation).at("", "").header("authorization", &bearer()).version(SV);
    let body = format!(
        "<KeyInfo><Start>{KEY_START}</Start><Expiry>{KEY_END}</Expiry>\
         <DelegatedUserTid>{user_tenant}</DelegatedUserTid></KeyInfo>"
    );
    let reply = request.with_head(&world.account, |head| {
        block_on(world.authenticator.user_delegation_key(head, body.as_bytes()))
    });
    let reply = reply.unwrap();
    let value = reply.split("<Value>").nth(1).and_then(|rest| rest.split("</Value>").next()).unwrap();
    Key::from_base64(value).unwrap()
}

/// Returns the request with a signature and the current date.
pub fn signed(mut request: TestRequest, account: &str, key: &Key) -> TestRequest {
    let query = Query::parse(&request.query).unwrap();
    let message = Message {
        scheme: Scheme::SharedKey,
        service: request.operation.service(),
        account,
        method: request.method.as_str(),
        path: &request.path,
        query: &query,
        headers: &request.headers,
        version: request.version,
    };
    let value = sign::authorization(&message, key).unwrap();
    request.headers.insert("authorization", value);
    request
}

pub fn changed<'a>(
    defaults: &[(&'a str, &'a str)],
    changes: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let kept = defaults.iter().filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    kept.chain(changes).filter(|(_, value)| !value.is_empty()).copied().collect()
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub fn operation(name: &str) -> Operation {
    *Operation::ALL.iter().find(|operation| format!("{operation:?}") == name).unwrap()
}

pub fn detail(refusal: &Refusal) -> &str {
    let found = refusal.details().iter().find(|(name, _)| *name == "AuthenticationErrorDetail");
    found.map_or("", |(_, value)| value)
}

#[async_trait]
impl Service for World {
    async fn call(&self, _: Request) -> Result<Response, Refusal> {
        unreachable!("authentication does not call operations")
    }

    async fn access_policy(&self, _: &Account, _: &str, id: &str) -> Result<Option<AccessPolicy>, Refusal> {
        if id == "policy" { self.policy.clone() } else { Ok(None) }
    }

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        self.public.clone()
    }
}
