//! Copies: which thing `x-ms-copy-source` names, whether the caller may read it, how it is read if it is not in the same
//! service, and how a copy goes on after its request.
//!
//! A URL of the same service leads straight to the store. Within the caller's own account what lets the caller write also
//! lets it read, a shared access signature as far as that goes; another account, and a URL that brings a signature or a
//! token of its own, is judged by that, as the front door would judge it. So is what is in another service of this
//! server, whosever it is. Every other URL is fetched over the network, if the operator allows it: see [`Outside`]. What
//! a source in the same service is, is known to that service.

mod neighbour;
mod outside;
mod pending;
mod running;
mod sparse;
mod state;
mod url;

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_outbound::Outbound;
use lazuli_protocol::address::{self, Address};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{
    Account, ErrorCode, Headers, Operation, Refusal, Request, Service, ServiceKind, SourceAccess, SourceRead,
    Version,
};

use neighbour::Neighbour;
use outside::Via;

pub use neighbour::Neighbours;
pub use outside::{Feed, Outside, Seen, feed};
pub use pending::{Copies, Destination, MAX_CONNECTIONS, PendingCopy};
pub use running::persist;
pub use sparse::{Encrypt, Sparse};
pub use state::{CopyState, CopyStatus};
pub use url::{SourceUrl, with_stray_encoded};

const COPY_SOURCE: &str = "x-ms-copy-source";
const AUTHORIZATION: &str = "x-ms-copy-source-authorization";
const INTENT: &str = "x-ms-file-request-intent";

/// What copies may come from.
#[derive(Clone)]
pub struct CopySources {
    /// Judges sources of this server that bring credentials of their own.
    pub access: Arc<dyn SourceAccess>,
    /// Host names whose first label is an account of this server.
    pub host_suffixes: Vec<String>,
    /// Fetches what is elsewhere, as far as that is allowed.
    pub outbound: Outbound,
    /// The services of this server.
    pub neighbours: Neighbours,
}

impl CopySources {
    /// The service of this server that a source is of, if it is; the request came to `own`.
    pub fn service(&self, request: &Request, url: &SourceUrl, own: ServiceKind) -> Option<ServiceKind> {
        url.service(own, &request.endpoint, &self.host_suffixes, |port| self.neighbours.at(port))
    }

    /// What a source in this server addresses. As at the front door, its host names an account only if there is one.
    pub async fn address(&self, kind: ServiceKind, url: &SourceUrl) -> Result<Address, Refusal> {
        match address::account_of_host(kind, url.host(), &self.host_suffixes) {
            Some(account) if self.access.account(&account).await.is_err() => {
                url.address_in_path(kind).or_else(|_| url.address(kind, &self.host_suffixes))
            }
            _ => url.address(kind, &self.host_suffixes),
        }
    }

    /// The account of a source in this server, if the caller may do that with it. An asynchronous copy within an account
    /// needs no more than the caller's own credentials; operations that read the source as part of the request want it
    /// to be public or to bring credentials, whoever calls.
    pub async fn admit(
        &self,
        request: &Request,
        url: &SourceUrl,
        address: &Address,
        operation: Operation,
        service: &dyn Service,
    ) -> Result<Arc<Account>, Refusal> {
        let by_url = by_url(request, url, address, operation);
        let brings_its_own = url.query.contains("sig") || by_url.authorization.is_some();
        let caller_suffices = matches!(
            request.operation,
            Operation::CopyBlob | Operation::IncrementalCopyBlob | Operation::CopyFile
        );
        if caller_suffices && address.account == request.account.name && !brings_its_own {
            match &request.caller {
                Caller::Key | Caller::Bearer { .. } => return Ok(request.account.clone()),
                Caller::Sas(_) => {
                    let by_caller = SourceRead { query: &request.query, secure: request.secure, ..by_url };
                    if let Ok(account) = self.access.admit(&by_caller, service).await {
                        return Ok(account);
                    }
                }
                Caller::Anonymous => {}
            }
        }
        self.access.admit(&by_url, service).await
    }

    /// A source that is not in the service that the request came to: in another one of this server, or elsewhere. Under
    /// these conditions; and the headers that it answers with.
    pub async fn open(
        &self,
        request: &Request,
        url: &SourceUrl,
        service: Option<ServiceKind>,
        conditions: HeaderMap,
    ) -> Result<(Outside, HeaderMap), Refusal> {
        let (uri, version) = (url.uri.clone(), request.version);
        let Some(kind) = service else {
            let authorization = request.headers.get(AUTHORIZATION).cloned();
            let via = Via::Web(self.outbound.clone());
            return Outside::open(via, uri, authorization, conditions, version).await;
        };
        let neighbour = self.neighbour(kind, url).await?;
        // Nobody's key speaks for another service.
        let read = by_url(request, url, &neighbour.address, neighbour.operation);
        let admitted = self.access.admit(&read, &*neighbour.service).await;
        admitted.map_err(|refusal| told(refusal, version, false))?;
        Outside::open(Via::Here(Box::new(neighbour)), uri, None, conditions, version).await
    }

    /// The source of a copy that was begun, of which there are [`MAX_CONNECTIONS`] at most.
    async fn again<T>(&self, copy: &PendingCopy<T>) -> Result<Outside, Refusal> {
        let url = SourceUrl::parse(&copy.url, "", copy.version)?;
        let via = match copy.service {
            None => Via::Web(self.outbound.counted_elsewhere()),
            Some(kind) => Via::Here(Box::new(self.neighbour(kind, &url).await?)),
        };
        let (version, seen) = (copy.version, copy.seen.clone());
        Ok(Outside { via, uri: url.uri, authorization: None, version, seen })
    }

    async fn neighbour(&self, kind: ServiceKind, url: &SourceUrl) -> Result<Neighbour, Refusal> {
        let (service, operation) = self.neighbours.get(kind).ok_or_else(|| {
            let refusal = Refusal::new(ErrorCode::CannotVerifyCopySource);
            refusal.with_status(StatusCode::BAD_REQUEST).message("The source must be a blob or a file.")
        })?;
        let address = self.address(kind, url).await?;
        let (access, url) = (self.access.clone(), url.clone());
        Ok(Neighbour { kind, service, operation, access, url, address })
    }
}

/// The read of a source as if its URL had been sent, with the credentials that it brings.
fn by_url<'a>(
    request: &'a Request,
    url: &'a SourceUrl,
    address: &'a Address,
    operation: Operation,
) -> SourceRead<'a> {
    SourceRead {
        operation,
        address,
        query: &url.query,
        authorization: request.headers.get(AUTHORIZATION),
        intent: request.headers.get(INTENT),
        version: request.version,
        // The signature in the URL came with the request, so both have to be as secure as it demands.
        secure: url.is_secure() && request.secure,
        peer: request.peer,
    }
}

impl SourceUrl {
    /// The source that a request names.
    pub fn of(request: &Request) -> Result<Self, Refusal> {
        Self::parse(request.headers.required(COPY_SOURCE)?, &request.endpoint, request.version)
    }
}

/// What a client is told of a source in this server: as it is where the operation does that (`plainly`), except who may
/// read it; everybody else is told that the source could not be verified, and why.
pub fn told(refusal: Refusal, version: Version, plainly: bool) -> Refusal {
    let denied = matches!(refusal.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let is_theirs = refusal.status().is_client_error();
    if (plainly && !denied) || !is_theirs || refusal.code() == ErrorCode::CannotVerifyCopySource {
        return refusal;
    }
    unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), version)
}

/// The source answered with that status, so it cannot be copied.
pub fn unverified(status: StatusCode, code: Option<&str>, message: &str, version: Version) -> Refusal {
    let mut refusal =
        Refusal::new(ErrorCode::CannotVerifyCopySource).with_status(status).message(message.to_owned());
    if version.at_least(2024, 2, 4) {
        let status_text = status.as_u16();
        refusal = refusal
            .detail("CopySourceStatusCode", status_text.to_string())
            .header(HeaderName::from_static("x-ms-copy-source-status-code"), HeaderValue::from(status_text));
        if let Some(value) = code.and_then(|code| HeaderValue::from_str(code).ok()) {
            refusal = refusal
                .detail("CopySourceErrorCode", code.unwrap_or_default())
                .header(HeaderName::from_static("x-ms-copy-source-error-code"), value);
        }
        refusal = refusal.detail("CopySourceErrorMessage", message);
    }
    refusal
}

/// More bytes than the operation copies.
pub fn too_large(limit: u64) -> Refusal {
    let limit = limit >> 20;
    Refusal::new(ErrorCode::CannotVerifyCopySource).with_status(StatusCode::CONFLICT).message(format!(
        "The source request body for copy source is too large and exceeds the maximum permissible limit ({limit}MB)."
    ))
}
