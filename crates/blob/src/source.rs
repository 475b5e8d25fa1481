//! The source of a copy: which thing `x-ms-copy-source` names, whether the caller may read it, and what it is.
//!
//! A URL of this server leads straight to the store. Within the caller's own account what lets the caller write also
//! lets it read, a shared access signature as far as that goes; another account, and a URL that brings a signature or a
//! token of its own, is judged by that, as the front door would judge it. Every other URL is fetched over the network,
//! if the operator allows it: see [`crate::outside`].

mod url;

use std::ops::Range;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::{ConditionRefusal, ReadRules};
use lazuli_extents::Held;
use lazuli_outbound::Outbound;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::{Caller, RequestBody, full};
use lazuli_protocol::{
    Account, ErrorCode, Headers, Operation, Refusal, Request, ServiceKind, SourceAccess, SourceRead, Version,
    names,
};
use lazuli_store::Partition;

use crate::cipher::Key;
use crate::encryption::{self, Seal};
use crate::outside::{Outside, feed};
use crate::put::check_no_pending_copy;
use crate::record::Blob;
use crate::tag_query::TagCondition;
use crate::target::{Found, State, Target, not_found};
use crate::{BlobService, keys, reply};

pub(crate) use url::SourceUrl;

const COPY_SOURCE: &str = "x-ms-copy-source";
const AUTHORIZATION: &str = "x-ms-copy-source-authorization";
const IF_TAGS: &str = "x-ms-source-if-tags";
/// The conditions on a source, and what a server calls them.
const CONDITIONS: [(&str, &str); 5] = [
    ("x-ms-source-if-match", "if-match"),
    ("x-ms-source-if-none-match", "if-none-match"),
    ("x-ms-source-if-modified-since", "if-modified-since"),
    ("x-ms-source-if-unmodified-since", "if-unmodified-since"),
    (IF_TAGS, "x-ms-if-tags"),
];

/// What copies may come from.
#[derive(Clone)]
pub struct CopySources {
    /// Judges sources of this server that bring credentials of their own.
    pub access: Arc<dyn SourceAccess>,
    /// Host names whose first label is an account of this server.
    pub host_suffixes: Vec<String>,
    /// Fetches what is elsewhere, as far as that is allowed.
    pub outbound: Outbound,
}

/// A source that was found, that the caller may read, and whose conditions hold.
pub(crate) struct Source {
    /// Its URL, without credentials.
    pub(crate) shown_url: String,
    /// What it is. It has no content if it is elsewhere.
    pub(crate) blob: Blob,
    pub(crate) length: u64,
    pub(crate) place: Place,
}

/// Where the bytes of a source are.
pub(crate) enum Place {
    /// In this server.
    Here(Here),
    /// On the web.
    There(Outside),
}

/// A source in this server. Its bytes stay as long as this does.
pub(crate) struct Here {
    pub(crate) partition: Partition,
    pub(crate) state: State,
    pub(crate) is_archived: bool,
    /// Whether it is of the caller's own account.
    pub(crate) is_own: bool,
    /// How it is encrypted.
    pub(crate) seal: Option<Seal>,
    _held: Held,
}

impl BlobService {
    /// The source that a request names.
    pub(crate) async fn source(&self, request: &Request) -> Result<Source, Refusal> {
        let text = request.headers.required(COPY_SOURCE)?;
        let url = SourceUrl::parse(text, &request.endpoint, request.version)?;
        let sources = self.copies.sources()?;
        match url.service(&request.endpoint, &sources.host_suffixes) {
            Some(ServiceKind::Blob) => self.source_here(request, &url, sources).await,
            Some(_) => {
                let refusal = Refusal::new(ErrorCode::CannotVerifyCopySource);
                Err(refusal.with_status(StatusCode::BAD_REQUEST).message("The source must be a blob."))
            }
            None => self.source_there(request, &url, sources).await,
        }
    }

    async fn source_here(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
    ) -> Result<Source, Refusal> {
        let address = url.address(&sources.host_suffixes)?;
        let is_own = address.account == request.account.name;
        let key = encryption::source_key(&request.headers)?;
        let (blob, here) = self
            .find_source(request, url, sources, &address, key)
            .await
            .map_err(|refusal| told(refusal, request, is_own))?;
        let here = Here { is_own, ..here };
        check_conditions(request, &blob)?;
        check_no_pending_copy(&blob).map_err(|refusal| here.told(refusal, request))?;
        Ok(Source { shown_url: url.shown(), length: blob.content.len(), blob, place: Place::Here(here) })
    }

    async fn find_source(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
        address: &Address,
        key: Option<Key>,
    ) -> Result<(Blob, Here), Refusal> {
        names::check_blob(&address.container, &address.object)?;
        let state = State::parse(&url.query)?;
        let account = self.admit_source(request, url, sources, address, Operation::GetBlob).await?;
        if copies_tags(request)? || request.headers.contains_key(IF_TAGS) {
            self.admit_source(request, url, sources, address, Operation::GetBlobTags).await?;
        }
        let container = self.container(&account, &address.container).await?;
        let partition = keys::blob(container.space, &address.object);
        let target = Target { container, partition, state };
        let Found { blob, held, now, .. } = self.find(&target).await?.ok_or_else(not_found)?;
        let is_archived = blob.tier.is_archived(now);
        let seal = self.unseal_with(key, &account, &blob)?;
        let partition = target.partition;
        Ok((blob, Here { partition, state, is_archived, is_own: false, seal, _held: held }))
    }

    /// The account of a source in this server, if the caller may do that with it.
    async fn admit_source(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
        address: &Address,
        operation: Operation,
    ) -> Result<Arc<Account>, Refusal> {
        let authorization = request.headers.get(AUTHORIZATION);
        let by_url = SourceRead {
            operation,
            address,
            query: &url.query,
            authorization,
            version: request.version,
            secure: url.is_secure(),
            peer: request.peer,
            now: request.now,
        };
        let brings_its_own = url.query.contains("sig") || authorization.is_some();
        if address.account == request.account.name && !brings_its_own {
            match &request.caller {
                Caller::Key | Caller::Bearer { .. } => return Ok(request.account.clone()),
                Caller::Sas(_) => {
                    let by_caller = SourceRead { query: &request.query, secure: request.secure, ..by_url };
                    if let Ok(account) = sources.access.admit(&by_caller, self).await {
                        return Ok(account);
                    }
                }
                Caller::Anonymous => {}
            }
        }
        sources.access.admit(&by_url, self).await
    }

    async fn source_there(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
    ) -> Result<Source, Refusal> {
        if copies_tags(request)? {
            return Err(unverified(
                StatusCode::CONFLICT,
                None,
                "Tags are copied within this server only.",
                request.version,
            ));
        }
        let mut conditions = HeaderMap::new();
        for (ours, theirs) in CONDITIONS {
            if let Some(value) = request.headers.get(ours) {
                conditions.insert(HeaderName::from_static(theirs), value.clone());
            }
        }
        let authorization = request.headers.get(AUTHORIZATION).cloned();
        let found =
            Outside::open(&sources.outbound, url.uri.clone(), authorization, conditions, request.version)
                .await;
        let (outside, blob) = found.map_err(|refusal| match refusal.status() {
            StatusCode::PRECONDITION_FAILED => unmet(request, ConditionRefusal::ConditionNotMet),
            StatusCode::NOT_MODIFIED => unmet(request, ConditionRefusal::NotModified),
            _ => refusal,
        })?;
        Ok(Source { shown_url: url.shown(), length: outside.length(), blob, place: Place::There(outside) })
    }

    /// The bytes of a part of a source, as if a client sent them. The source has to live until they were read.
    pub(crate) async fn source_body(
        &self,
        source: &Source,
        part: Range<u64>,
    ) -> Result<RequestBody, Refusal> {
        if part.is_empty() {
            return Ok(full(""));
        }
        let here = match &source.place {
            Place::There(outside) => return Ok(outside.body(part)),
            Place::Here(here) => here,
        };
        let length = part.end - part.start;
        let mut reader = self.plain(&source.blob, here.seal.as_ref(), part, None).await?;
        Ok(feed(length, |sender| async move {
            loop {
                let bytes = match reader.next().await {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => return,
                    Err(error) => Err(reply::extents(error)),
                };
                if sender.send(bytes).await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Source {
    /// Refuses a source whose bytes are out of reach.
    pub(crate) fn check_online(&self, request: &Request) -> Result<(), Refusal> {
        match &self.place {
            Place::Here(here) if here.is_archived => Err(here.told(ErrorCode::BlobArchived.into(), request)),
            _ => Ok(()),
        }
    }
}

impl Here {
    /// What a client is told of a source of which it cannot have what it wants.
    pub(crate) fn told(&self, refusal: Refusal, request: &Request) -> Refusal {
        told(refusal, request, self.is_own)
    }
}

/// Whether the tags of the source are wanted.
pub(crate) fn copies_tags(request: &Request) -> Result<bool, Refusal> {
    let options = [("REPLACE", false), ("COPY", true)];
    let copies = request.headers.one_of("x-ms-copy-source-tag-option", &options)?.unwrap_or(false);
    if copies && request.headers.filled("x-ms-tags")?.is_some() {
        return Err(Refusal::new(ErrorCode::BothUserTagsAndSourceTagsCopyPresentException)
            .with_status(StatusCode::CONFLICT));
    }
    Ok(copies)
}

/// Judges the conditions on a source in this server.
pub(crate) fn check_conditions(request: &Request, blob: &Blob) -> Result<(), Refusal> {
    if let Some(text) = request.headers.filled(IF_TAGS)? {
        let condition = TagCondition::parse(text)
            .map_err(|reason| Refusal::invalid_header(IF_TAGS, text).detail("Reason", reason))?;
        if !condition.holds(&blob.tags) {
            return Err(ErrorCode::SourceConditionNotMet.into());
        }
    }
    let conditions = request.headers.source_conditions()?;
    let judged = conditions.evaluate_read(blob.validators(), ReadRules::CombinedWithoutStar);
    judged.map_err(|refusal| unmet(request, refusal))
}

/// The refusal of a request whose source is not in the version that the client wants. Operations that read the source
/// as part of the request tell what would be "not modified" to a reader as they tell any other refusal of the source.
fn unmet(request: &Request, refusal: ConditionRefusal) -> Refusal {
    let copies = matches!(request.operation, Operation::CopyBlob | Operation::CopyBlobFromUrl);
    match refusal {
        ConditionRefusal::NotModified | ConditionRefusal::UnsatisfiableCondition if !copies => unverified(
            StatusCode::PRECONDITION_FAILED,
            Some(ErrorCode::ConditionNotMet.name()),
            ErrorCode::ConditionNotMet.message(),
            request.version,
        ),
        _ => ErrorCode::SourceConditionNotMet.into(),
    }
}

/// What a client is told of a source in this server: Copy Blob within an account tells it as it is, except who may read
/// it; everybody else is told that the source could not be verified, and why.
fn told(refusal: Refusal, request: &Request, is_own: bool) -> Refusal {
    let denied = matches!(refusal.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let plainly = request.operation == Operation::CopyBlob && is_own && !denied;
    let is_theirs = refusal.status().is_client_error();
    if plainly || !is_theirs || refusal.code() == ErrorCode::CannotVerifyCopySource {
        return refusal;
    }
    unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), request.version)
}

/// The source answered with that status, so it cannot be copied.
pub(crate) fn unverified(status: StatusCode, code: Option<&str>, message: &str, version: Version) -> Refusal {
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
pub(crate) fn too_large(limit: u64) -> Refusal {
    let limit = limit >> 20;
    Refusal::new(ErrorCode::CannotVerifyCopySource).with_status(StatusCode::CONFLICT).message(format!(
        "The source request body for copy source is too large and exceeds the maximum permissible limit ({limit}MB)."
    ))
}

/// For the fuzzer: reads a URL, and what can be read out of it.
pub(crate) fn fuzz(data: &[u8]) {
    let endpoint = "http://127.0.0.1:10000/dev1";
    let text = String::from_utf8_lossy(data);
    if let Ok(url) = SourceUrl::parse(&text, endpoint, Version::NEWEST) {
        let suffixes = ["b".to_owned()];
        let _ = (url.service(endpoint, &suffixes), url.address(&suffixes), url.shown());
    }
}
