//! Authentication and authorization of requests: Shared Key, shared access signatures, OAuth bearer tokens,
//! and anonymous access.
//!
//! [`Authenticator::authenticate`] decides about one request, given its [`Head`]. It reads stored access
//! policies and public access levels through the addressed service. It uses no clock, no network and no
//! state. What depends on stored data is left to the services, in the `Grant` of the [`Caller`].

pub mod bearer;
mod claimed;
mod mac;
mod permission;
mod refusal;
mod sas;
pub mod shared_key;
pub mod sign;
pub mod user_delegation;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::operation::Anonymous;
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::request::{Caller, Grant};
use lazuli_protocol::{
    Account, Accounts, ErrorCode, Operation, Query, Refusal, Service, ServiceKind, Version,
};

pub use claimed::claimed_caller;

use bearer::{Issuer, Subject, TokenError};
use refusal::{authentication_failed, invalid_token, malformed_authorization};
use sas::Sas;
use shared_key::{Credential, Scheme};
use user_delegation::{KeyInfo, MasterSecret, NO_TENANT, Owner};

/// The authorization URI of a challenge if no issuer is configured: client parsers require the field.
const NO_ISSUER: &str = "https://login.microsoftonline.com/common/oauth2/authorize";

/// The parts of a request that authentication reads.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The operation that the request calls.
    pub operation: Operation,
    /// The addressed account.
    pub account: &'a Account,
    /// The method, as sent.
    pub method: &'a Method,
    /// The path exactly as sent: percent-encoded, and with the account in front in path style.
    pub path: &'a str,
    /// Container, queue, table or share, decoded; `$root` if the path names no container.
    pub container: &'a str,
    /// The rest of the path, decoded.
    pub object: &'a str,
    /// Query parameters.
    pub query: &'a Query,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// The protocol version of the request.
    pub version: Version,
    /// Whether the request came over TLS.
    pub secure: bool,
    /// The client's address.
    pub peer: IpAddr,
    /// The current time.
    pub now: Timestamp,
}

/// Authenticates requests.
#[derive(Debug)]
pub struct Authenticator {
    secret: MasterSecret,
    issuer: Option<Issuer>,
}

/// The contents of a request's Authorization header.
enum Credentials<'a> {
    SharedKey(Scheme, Credential<'a>),
    Bearer(&'a str),
}

/// Returns the account with a name. Refuses missing and disabled accounts.
pub async fn account(accounts: &dyn Accounts, name: &str) -> Result<Arc<Account>, Refusal> {
    let account = accounts
        .account(name)
        .await?
        .ok_or_else(|| authentication_failed("The account being accessed does not exist."))?;
    if account.settings.disabled { Err(Refusal::new(ErrorCode::AccountIsDisabled)) } else { Ok(account) }
}

impl Authenticator {
    /// Creates an authenticator for account keys, shared access signatures and, with an issuer, bearer
    /// tokens.
    pub const fn new(secret: MasterSecret, issuer: Option<Issuer>) -> Self {
        Self { secret, issuer }
    }

    /// Returns the caller of a request, or refuses the request. `service` is the addressed service.
    ///
    /// Every credential in the request must be valid and allow the operation. If the request has both an
    /// Authorization header and a signature in the query, the caller is that of the signature, which grants
    /// less.
    pub async fn authenticate(&self, head: &Head<'_>, service: &dyn Service) -> Result<Caller, Refusal> {
        if head.operation.row().anonymous == Anonymous::Always {
            return Ok(Caller::Anonymous);
        }
        let header = Credentials::of(head)?;
        if head.query.contains("sig") {
            return Ok(Caller::Sas(self.sas(head, header, service).await?));
        }
        match header {
            Some(credentials) => self.authorized(head, credentials).await,
            None => self.anonymous(head, service).await,
        }
    }

    /// Returns the caller that the Authorization header names, or refuses the request.
    async fn authorized(&self, head: &Head<'_>, credentials: Credentials<'_>) -> Result<Caller, Refusal> {
        match credentials {
            Credentials::SharedKey(scheme, credential) => {
                shared_key::verify(head, scheme, credential)?;
                if head.operation.is_user_delegation_key() {
                    return Err(authentication_failed("Only authentication scheme Bearer is supported"));
                }
                Ok(Caller::Key)
            }
            Credentials::Bearer(token) => self.bearer(head, token).await,
        }
    }

    /// Executes Get User Delegation Key and returns the reply's body. The request must have been
    /// authenticated.
    pub async fn user_delegation_key(&self, head: &Head<'_>, body: &[u8]) -> Result<String, Refusal> {
        let Some(Credentials::Bearer(token)) = Credentials::of(head)? else {
            return Err(authentication_failed("Only authentication scheme Bearer is supported"));
        };
        let subject = self.subject(head, token).await?;
        let owner =
            Owner { object_id: &subject.id, tenant_id: subject.tenant.as_deref().unwrap_or(NO_TENANT) };
        let info = KeyInfo::parse(body, head.now)?;
        Ok(info.key_xml(&self.secret, &head.account.name, owner, head.operation.service(), head.version))
    }

    async fn bearer(&self, head: &Head<'_>, token: &str) -> Result<Caller, Refusal> {
        let subject = self.subject(head, token).await?;
        const INTENT: &str = "x-ms-file-request-intent";
        if head.operation.needs_file_request_intent()
            && head.headers.get(INTENT).is_none_or(|v| v != "backup")
        {
            return Err(Refusal::missing_header(INTENT));
        }
        let role = permission::check_role(head, &subject.id)?;
        Ok(Caller::Bearer { subject: subject.id, role })
    }

    /// Verifies a token and returns its subject.
    async fn subject(&self, head: &Head<'_>, token: &str) -> Result<Subject, Refusal> {
        if !head.version.at_least(2017, 11, 9) {
            return Err(authentication_failed(
                "Authentication scheme Bearer is not supported in this version.",
            ));
        }
        if !head.secure {
            return Err(authentication_failed("Authentication scheme Bearer is supported over HTTPS only."));
        }
        let Some(issuer) = &self.issuer else {
            return Err(self.challenge(invalid_token("No issuer of bearer tokens is configured.")));
        };
        issuer.verify(token, head.account, head.operation.service(), head.now).await.map_err(|error| {
            match error {
                // The token may be valid, so the client should retry.
                TokenError::Keys => Refusal::new(ErrorCode::ServerBusy),
                error => self.challenge(invalid_token(error.to_string())),
            }
        })
    }

    /// Verifies the signature in the query and returns its grant. Also checks the Authorization header, if
    /// there is one.
    async fn sas(
        &self,
        head: &Head<'_>,
        header: Option<Credentials<'_>>,
        service: &dyn Service,
    ) -> Result<Grant, Refusal> {
        let sas = Sas::parse(head.operation.service(), head.query)?;
        match (sas.field("sduoid"), header) {
            ("", None) => {}
            ("", Some(credentials)) => drop(self.authorized(head, credentials).await?),
            (user, header) => self.check_bound_user(head, &sas, user, header).await?,
        }
        let verified = sas.verify(head, &self.secret)?;
        let policy = match verified.policy(head) {
            None => AccessPolicy::default(),
            Some((container, id)) => match service.access_policy(head.account, container, id).await {
                Ok(Some(policy)) => policy,
                Err(refusal) if refusal.status() != StatusCode::NOT_FOUND => return Err(refusal),
                _ => {
                    let reason = "SAS identifier cannot be found for specified signed identifier";
                    return Err(authentication_failed(reason));
                }
            },
        };
        verified.grant(head, &policy)
    }

    /// Checks a user delegation SAS that is bound to one user and needs a bearer token of that user. That
    /// user needs no role.
    async fn check_bound_user(
        &self,
        head: &Head<'_>,
        sas: &Sas<'_>,
        user: &str,
        header: Option<Credentials<'_>>,
    ) -> Result<(), Refusal> {
        let Some(Credentials::Bearer(token)) = header else {
            return Err(authentication_failed("The signature is of use with its user's bearer token only."));
        };
        let subject = self.subject(head, token).await?;
        let tenant = sas.field("skdutid");
        if subject.id != user || !(tenant.is_empty() || subject.tenant.as_deref() == Some(tenant)) {
            return Err(authentication_failed("The signature is for another user."));
        }
        Ok(())
    }

    async fn anonymous(&self, head: &Head<'_>, service: &dyn Service) -> Result<Caller, Refusal> {
        let levels: &[PublicAccess] = match head.operation.row().anonymous {
            Anonymous::PublicBlob => &[PublicAccess::Blob, PublicAccess::Container],
            Anonymous::PublicContainer => &[PublicAccess::Container],
            Anonymous::Never | Anonymous::Always => &[],
        };
        if levels.is_empty() {
            return Err(self.no_credentials(head));
        }
        if !head.account.settings.public_access_allowed {
            return Err(Refusal::new(ErrorCode::PublicAccessNotPermitted));
        }
        match service.public_access(head.account, head.container).await {
            Ok(level) if levels.contains(&level) => Ok(Caller::Anonymous),
            Err(refusal) if refusal.status() != StatusCode::NOT_FOUND => Err(refusal),
            _ => Err(self.no_credentials(head)),
        }
    }

    /// Returns the refusal of a request without credentials. Newer versions challenge the client, older
    /// ones report a missing resource.
    fn no_credentials(&self, head: &Head<'_>) -> Refusal {
        let challenged = match head.operation.service() {
            ServiceKind::Table => head.version.at_least(2020, 12, 6),
            ServiceKind::Blob | ServiceKind::Queue | ServiceKind::File => head.version.at_least(2019, 12, 12),
        };
        if challenged {
            self.challenge(Refusal::new(ErrorCode::NoAuthenticationInformation))
        } else {
            Refusal::new(ErrorCode::ResourceNotFound)
        }
    }

    /// Adds a header that names the authorization endpoint.
    fn challenge(&self, refusal: Refusal) -> Refusal {
        let resource = "resource_id=https://storage.azure.com";
        let authority = match &self.issuer {
            Some(issuer) => issuer.authorization_uri.as_str(),
            None => NO_ISSUER,
        };
        let value = format!("Bearer authorization_uri={authority} {resource}");
        let plain = HeaderValue::from_static("Bearer");
        refusal.header(header::WWW_AUTHENTICATE, HeaderValue::try_from(value).unwrap_or(plain))
    }
}

impl<'a> Credentials<'a> {
    fn of(head: &Head<'a>) -> Result<Option<Self>, Refusal> {
        let mut values = head.headers.get_all(header::AUTHORIZATION).iter();
        let value = match (values.next(), values.next()) {
            (None, _) => return Ok(None),
            (Some(value), None) => value.to_str().map_err(|_| malformed_authorization())?,
            (Some(_), Some(_)) => return Err(malformed_authorization()),
        };
        let (scheme, rest) = value.trim().split_once(' ').ok_or_else(malformed_authorization)?;
        let rest = rest.trim();
        let is = |name: &str| scheme.eq_ignore_ascii_case(name);
        if is("Bearer") {
            return Ok(Some(Self::Bearer(rest)));
        }
        let scheme = [Scheme::SharedKey, Scheme::SharedKeyLite].into_iter().find(|s| is(s.name()));
        let scheme = scheme.ok_or_else(malformed_authorization)?;
        Ok(Some(Self::SharedKey(scheme, Credential::parse(rest)?)))
    }
}

/// Returns the letter of a service in `ss` and `sks`.
pub(crate) const fn letter(service: ServiceKind) -> &'static str {
    match service {
        ServiceKind::Blob => "b",
        ServiceKind::Queue => "q",
        ServiceKind::Table => "t",
        ServiceKind::File => "f",
    }
}
