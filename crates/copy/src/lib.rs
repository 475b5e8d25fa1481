//! Copies: finds the source that `x-ms-copy-source` names, authorizes its read, streams it if it is not in
//! the same service, and continues a copy after the reply to its request.
//!
//! A source in the same service is read from the store directly, by that service. In the caller's own
//! account, the caller's credentials also authorize the read; a shared access signature does so only as far
//! as its permissions allow. A source in another account, and a URL with its own signature or token, are
//! authorized like a read by a client. The same applies to sources in other services of this server, in any
//! account. All other URLs are fetched over the network, if the operator allows it: see [`StreamedSource`].

mod active_copies;
mod local_services;
mod minimum_rate;
mod pending;
mod sparse;
mod state;
mod streamed_source;
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

use local_services::LocalSource;
use streamed_source::Transport;

pub use active_copies::persist;
pub use local_services::LocalServices;
pub use pending::{Copies, Destination, MAX_CONNECTIONS, PendingCopy, TargetSpace};
pub use sparse::{Encrypt, SparseWriter};
pub use state::{CopyState, CopyStatus};
pub use streamed_source::{PieceSender, SourceVersion, StreamedSource, spawn_body};
pub use url::{SourceUrl, encode_stray_characters};

const COPY_SOURCE: &str = "x-ms-copy-source";
const AUTHORIZATION: &str = "x-ms-copy-source-authorization";
const INTENT: &str = "x-ms-file-request-intent";

/// The sources that copies may read.
#[derive(Clone)]
pub struct CopySources {
    /// Authorizes reads of sources in this server.
    pub access: Arc<dyn SourceAccess>,
    /// Host names whose first label is an account of this server.
    pub host_suffixes: Vec<String>,
    /// Fetches sources in other servers, if the operator allows them.
    pub outbound: Outbound,
    /// The services of this server.
    pub local_services: LocalServices,
}

impl CopySources {
    /// Returns the service of this server that a source belongs to, or `None` if it is in no service of this
    /// server. `own` is the service that received the request.
    ///
    /// An unsigned URL with the cloud's host name of the caller's own account means this server: decision
    /// 0040.
    pub fn service(&self, request: &Request, url: &SourceUrl, own: ServiceKind) -> Option<ServiceKind> {
        let is_signed = url.query.contains("sig") || request.headers.contains_key(AUTHORIZATION);
        if let Some(kind) = url.cloud_service(&request.account.name).filter(|_| !is_signed) {
            return Some(kind);
        }
        url.service(own, &request.endpoint, &self.host_suffixes, |port| self.local_services.by_port(port))
    }

    /// Returns the address of a source in this server. As in requests, the host names an account only if the
    /// account exists.
    pub async fn address(&self, kind: ServiceKind, url: &SourceUrl) -> Result<Address, Refusal> {
        match address::account_of_host(kind, url.host(), &self.host_suffixes) {
            Some(account) if self.access.account(&account).await.is_err() => {
                url.address_in_path(kind).or_else(|_| url.address(kind, &self.host_suffixes))
            }
            _ => url.address(kind, &self.host_suffixes),
        }
    }

    /// Returns the account of a source in this server, if the caller may read the source with `operation`.
    /// For an asynchronous copy within an account the caller's own credentials suffice. Operations that read
    /// the source as part of the request require that it is public or that the request has credentials for
    /// it, for every caller.
    pub async fn admit(
        &self,
        request: &Request,
        url: &SourceUrl,
        address: &Address,
        operation: Operation,
        service: &dyn Service,
    ) -> Result<Arc<Account>, Refusal> {
        let source_read = source_read(request, url, address, operation);
        let has_own_credentials = url.query.contains("sig") || source_read.authorization.is_some();
        let caller_suffices = matches!(
            request.operation,
            Operation::CopyBlob | Operation::IncrementalCopyBlob | Operation::CopyFile
        );
        if caller_suffices && address.account == request.account.name && !has_own_credentials {
            match &request.caller {
                Caller::Key | Caller::Bearer { .. } => return Ok(request.account.clone()),
                Caller::Sas(_) => {
                    let read_by_caller =
                        SourceRead { query: &request.query, secure: request.secure, ..source_read };
                    if let Ok(account) = self.access.admit(&read_by_caller, service).await {
                        return Ok(account);
                    }
                }
                Caller::Anonymous => {}
            }
        }
        self.access.admit(&source_read, service).await
    }

    /// Opens a source that is not in the service that received the request, with `conditions` on it. It may
    /// be in another service of this server, or remote. Also returns the headers of its reply.
    pub async fn open(
        &self,
        request: &Request,
        url: &SourceUrl,
        service: Option<ServiceKind>,
        conditions: HeaderMap,
    ) -> Result<(StreamedSource, HeaderMap), Refusal> {
        let (uri, version) = (url.uri.clone(), request.version);
        let Some(kind) = service else {
            let authorization = request.headers.get(AUTHORIZATION).cloned();
            let transport = Transport::Http(self.outbound.for_account(&request.account.name));
            return StreamedSource::open(transport, uri, authorization, conditions, version).await;
        };
        let local_source = self.local_source(kind, url).await?;
        // The caller's key does not authorize reads in another service.
        let read = source_read(request, url, &local_source.address, local_source.operation);
        let admitted = self.access.admit(&read, &*local_source.service).await;
        admitted.map_err(|refusal| source_refusal(refusal, version, false))?;
        StreamedSource::open(Transport::Local(Box::new(local_source)), uri, None, conditions, version).await
    }

    /// Reopens the source of a pending copy. At most [`MAX_CONNECTIONS`] are open for each service.
    async fn reopen<T>(&self, copy: &PendingCopy<T>) -> Result<StreamedSource, Refusal> {
        let url = SourceUrl::parse(&copy.url, "", copy.version)?;
        let transport = match copy.service {
            None => Transport::Http(self.outbound.without_connection_limit()),
            Some(kind) => Transport::Local(Box::new(self.local_source(kind, &url).await?)),
        };
        let (version, seen) = (copy.version, copy.seen.clone());
        Ok(StreamedSource { transport, uri: url.uri, authorization: None, version, seen })
    }

    async fn local_source(&self, kind: ServiceKind, url: &SourceUrl) -> Result<LocalSource, Refusal> {
        let (service, operation) = self.local_services.get(kind).ok_or_else(|| {
            let refusal = Refusal::new(ErrorCode::CannotVerifyCopySource);
            refusal.with_status(StatusCode::BAD_REQUEST).message("The source must be a blob or a file.")
        })?;
        let address = self.address(kind, url).await?;
        let (access, url) = (self.access.clone(), url.clone());
        Ok(LocalSource { kind, service, operation, access, url, address })
    }
}

/// Returns the read of a source as if a client had sent its URL, with the credentials in the copy request.
fn source_read<'a>(
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
        // The URL with its signature was sent in the request, so the request needs the security that the
        // signature requires, too.
        secure: url.is_secure() && request.secure,
        peer: request.peer,
    }
}

impl SourceUrl {
    /// Parses the source of a request.
    pub fn from_request(request: &Request) -> Result<Self, Refusal> {
        Self::parse(request.headers.required(COPY_SOURCE)?, &request.endpoint, request.version)
    }
}

/// Translates the refusal of a read of a source in this server for the reply. With `as_is`, refusals are
/// passed on except those about permissions. Otherwise the reply says that the source could not be verified,
/// and why.
pub fn source_refusal(refusal: Refusal, version: Version, as_is: bool) -> Refusal {
    let denied = matches!(refusal.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let is_client_error = refusal.status().is_client_error();
    if (as_is && !denied) || !is_client_error || refusal.code() == ErrorCode::CannotVerifyCopySource {
        return refusal;
    }
    unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), version)
}

/// Returns the refusal of a copy whose source answered with `status`.
pub fn unverified(status: StatusCode, code: Option<&str>, message: &str, version: Version) -> Refusal {
    let mut refusal =
        Refusal::new(ErrorCode::CannotVerifyCopySource).with_status(status).message(message.to_owned());
    if version.at_least(2024, 2, 4) {
        let status_code = status.as_u16();
        refusal = refusal
            .detail("CopySourceStatusCode", status_code.to_string())
            .header(HeaderName::from_static("x-ms-copy-source-status-code"), HeaderValue::from(status_code));
        if let Some(value) = code.and_then(|code| HeaderValue::from_str(code).ok()) {
            refusal = refusal
                .detail("CopySourceErrorCode", code.unwrap_or_default())
                .header(HeaderName::from_static("x-ms-copy-source-error-code"), value);
        }
        refusal = refusal.detail("CopySourceErrorMessage", message);
    }
    refusal
}

/// Returns the refusal of a source with more bytes than the operation copies.
pub fn too_large(limit: u64) -> Refusal {
    let limit = limit >> 20;
    Refusal::new(ErrorCode::CannotVerifyCopySource).with_status(StatusCode::CONFLICT).message(format!(
        "The source request body for copy source is too large and exceeds the maximum permissible limit ({limit}MB)."
    ))
}
