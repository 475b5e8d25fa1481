//! The source of a copy, which `x-ms-copy-source` names. `lazuli_copy` parses the URL and authorizes the
//! read.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::{ConditionRefusal, ReadRules};
use lazuli_copy::{CopySources, SourceUrl, StreamedSource, spawn_body, unverified};
use lazuli_extents::ContentHold;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::{RequestBody, full};
use lazuli_protocol::{ErrorCode, Headers, Metadata, Operation, Refusal, Request, ServiceKind, names};
use lazuli_store::Partition;

use crate::access::target::{PinnedState, State, Target};
use crate::content::cipher::Key;
use crate::content::encryption::{self, Seal};
use crate::index::tag_query::TagCondition;
use crate::model::keys;
use crate::model::record::{Blob, ContentHeaders, DEFAULT_CONTENT_TYPE, Kind, MAX_PAGE_BLOB, PAGE};
use crate::rules::precondition::{check_no_pending_copy, not_found};
use crate::{BlobService, reply};

const IF_MATCH: &str = "x-ms-source-if-match";
const IF_TAGS: &str = "x-ms-source-if-tags";
/// The headers with conditions on a source, and their names in a request to another server.
const CONDITIONS: [(&str, &str); 5] = [
    (IF_MATCH, "if-match"),
    ("x-ms-source-if-none-match", "if-none-match"),
    ("x-ms-source-if-modified-since", "if-modified-since"),
    ("x-ms-source-if-unmodified-since", "if-unmodified-since"),
    (IF_TAGS, "x-ms-if-tags"),
];

/// A source that exists, that the caller may read, and whose conditions hold.
pub(crate) struct Source {
    /// The URL without credentials.
    pub(crate) shown_url: String,
    /// The blob. Without content if the source is not a blob of this server.
    pub(crate) blob: Blob,
    pub(crate) length: u64,
    pub(crate) location: SourceLocation,
}

/// The location of a source's bytes.
pub(crate) enum SourceLocation {
    /// In the blob service of this server.
    Local(LocalSource),
    /// In another service of this server, or on the web.
    Remote(StreamedSource),
}

/// A source in this server. Holds its content.
pub(crate) struct LocalSource {
    pub(crate) partition: Partition,
    pub(crate) state: State,
    pub(crate) is_archived: bool,
    /// Whether the source is in the caller's account.
    pub(crate) is_own: bool,
    /// The encryption of the content.
    pub(crate) seal: Option<Seal>,
    _held: ContentHold,
}

impl BlobService {
    /// Finds the source that a request names.
    pub(crate) async fn find_source(&self, request: &Request) -> Result<Source, Refusal> {
        let url = SourceUrl::from_request(request)?;
        let sources = self.copies.sources()?;
        match sources.service(request, &url, ServiceKind::Blob) {
            Some(ServiceKind::Blob) => self.local_source(request, &url, sources).await,
            service => self.remote_source(request, &url, sources, service).await,
        }
    }

    async fn local_source(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
    ) -> Result<Source, Refusal> {
        let address = sources.address(ServiceKind::Blob, url).await?;
        let is_own = address.account == request.account.name;
        let key = encryption::source_key(&request.headers)?;
        let (blob, local) = self
            .find_local(request, url, sources, &address, key)
            .await
            .map_err(|refusal| source_refusal(refusal, request, is_own))?;
        let local = LocalSource { is_own, ..local };
        check_conditions(request, &blob)?;
        check_no_pending_copy(&blob).map_err(|refusal| local.refusal(refusal, request))?;
        Ok(Source {
            shown_url: url.without_credentials(),
            length: blob.content.len(),
            blob,
            location: SourceLocation::Local(local),
        })
    }

    async fn find_local(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
        address: &Address,
        key: Option<Key>,
    ) -> Result<(Blob, LocalSource), Refusal> {
        names::check_blob(&address.container, &address.object)?;
        let state = State::parse(&url.query)?;
        let account = sources.admit(request, url, address, Operation::GetBlob, self).await?;
        if copies_tags(request)? || request.headers.contains_key(IF_TAGS) {
            sources.admit(request, url, address, Operation::GetBlobTags, self).await?;
        }
        let container = self.container(&account, &address.container).await?;
        let partition = keys::blob(container.space, &address.object);
        let target = Target { container, partition, state };
        let PinnedState { blob, held, now, .. } = self.find(&target).await?.ok_or_else(not_found)?;
        let is_archived = blob.tier.is_archived(now);
        let seal = self.unseal_with(key, &account, &blob)?;
        let partition = target.partition;
        Ok((blob, LocalSource { partition, state, is_archived, is_own: false, seal, _held: held }))
    }

    async fn remote_source(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
        service: Option<ServiceKind>,
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
        if service == Some(ServiceKind::File) && !conditions.is_empty() {
            return Err(ErrorCode::ConditionHeadersNotSupported.into());
        }
        let found = sources.open(request, url, service, conditions).await;
        let (remote, headers) = found.map_err(|refusal| match refusal.status() {
            StatusCode::PRECONDITION_FAILED => condition_refusal(request, ConditionRefusal::ConditionNotMet),
            StatusCode::NOT_MODIFIED => condition_refusal(request, ConditionRefusal::NotModified),
            _ => refusal,
        })?;
        let blob = describe(&remote, &headers)?;
        Ok(Source {
            shown_url: url.without_credentials(),
            length: remote.length(),
            blob,
            location: SourceLocation::Remote(remote),
        })
    }

    /// Returns a part of a source as the body of a request. The source must live until the body has been
    /// read.
    pub(crate) async fn source_body(
        &self,
        source: &Source,
        part: Range<u64>,
    ) -> Result<RequestBody, Refusal> {
        if part.is_empty() {
            return Ok(full(""));
        }
        let local = match &source.location {
            SourceLocation::Remote(remote) => return Ok(remote.body(part)),
            SourceLocation::Local(local) => local,
        };
        let length = part.end - part.start;
        let mut reader = self.read_plain(&source.blob, local.seal.as_ref(), part, None).await?;
        Ok(spawn_body(length, |sender| async move {
            loop {
                let bytes = match reader.next().await {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => return,
                    Err(error) => Err(reply::content_refusal(error)),
                };
                if sender.send(bytes).await.is_err() {
                    return;
                }
            }
        }))
    }
}

impl Source {
    /// Refuses an archived source.
    pub(crate) fn check_online(&self, request: &Request) -> Result<(), Refusal> {
        match &self.location {
            SourceLocation::Local(local) if local.is_archived => {
                Err(local.refusal(ErrorCode::BlobArchived.into(), request))
            }
            _ => Ok(()),
        }
    }
}

impl LocalSource {
    /// Translates the refusal of a read of this source for the reply.
    pub(crate) fn refusal(&self, refusal: Refusal, request: &Request) -> Refusal {
        source_refusal(refusal, request, self.is_own)
    }
}

/// Returns whether to copy the tags of the source. Only synchronous copies can.
pub(crate) fn copies_tags(request: &Request) -> Result<bool, Refusal> {
    if !matches!(request.operation, Operation::CopyBlobFromUrl | Operation::PutBlobFromUrl) {
        return Ok(false);
    }
    let options = [("REPLACE", false), ("COPY", true)];
    let copies = request.headers.one_of("x-ms-copy-source-tag-option", &options)?.unwrap_or(false);
    if copies && request.headers.filled("x-ms-tags")?.is_some() {
        return Err(Refusal::new(ErrorCode::BothUserTagsAndSourceTagsCopyPresentException)
            .with_status(StatusCode::CONFLICT));
    }
    Ok(copies)
}

/// Checks the conditions on a source in this server.
pub(crate) fn check_conditions(request: &Request, blob: &Blob) -> Result<(), Refusal> {
    if let Some(text) = request.headers.filled(IF_TAGS)? {
        let condition = TagCondition::parse(text)
            .map_err(|reason| Refusal::invalid_header(IF_TAGS, text).detail("Reason", reason))?;
        if !condition.holds(&blob.tags) {
            return Err(ErrorCode::ConditionNotMet.into());
        }
    }
    let conditions = request.headers.source_conditions()?;
    let checked = conditions.evaluate_read(blob.validators(), ReadRules::CombinedWithoutStar);
    checked.map_err(|refusal| condition_refusal(request, refusal))
}

/// Returns the refusal of a request whose conditions on the source do not hold. Operations that read the
/// source synchronously reply with the status of that read, as for any other refusal of the source. The
/// exception is Put Blob From URL if `If-Match` fails.
fn condition_refusal(request: &Request, refusal: ConditionRefusal) -> Refusal {
    let as_is = match request.operation {
        Operation::CopyBlob | Operation::CopyBlobFromUrl => true,
        Operation::PutBlobFromUrl => {
            refusal == ConditionRefusal::ConditionNotMet && request.headers.contains_key(IF_MATCH)
        }
        _ => false,
    };
    if as_is {
        return ErrorCode::SourceConditionNotMet.into();
    }
    let refusal = Refusal::from(refusal);
    unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), request.version)
}

/// Translates the refusal of a source in this server for the reply. Copy Blob within an account returns the
/// refusal of the read unchanged.
fn source_refusal(refusal: Refusal, request: &Request, is_own: bool) -> Refusal {
    let as_is = request.operation == Operation::CopyBlob && is_own;
    lazuli_copy::source_refusal(refusal, request.version, as_is)
}

/// Builds a blob record from the headers of a remote source.
fn describe(remote: &StreamedSource, headers: &HeaderMap) -> Result<Blob, Refusal> {
    let number = |name: &str| headers.number(name, 0..=i64::MAX).ok().flatten().map_or(0, i64::unsigned_abs);
    let kind = match headers.get("x-ms-blob-type").map(HeaderValue::as_bytes) {
        Some(b"PageBlob") => Kind::Page { sequence_number: number("x-ms-blob-sequence-number") },
        Some(b"AppendBlob") => {
            let blocks = u32::try_from(number("x-ms-blob-committed-block-count")).unwrap_or(u32::MAX);
            Kind::Append { blocks, sealed: headers.flag("x-ms-blob-sealed") == Ok(Some(true)) }
        }
        _ => Kind::Block,
    };
    let is_page = matches!(kind, Kind::Page { .. });
    if is_page && (!remote.length().is_multiple_of(PAGE) || remote.length() > MAX_PAGE_BLOB) {
        return Err(remote.unusable("The source is not a page blob that can be."));
    }
    let mut blob = Blob::new(kind, Default::default(), Default::default());
    blob.headers = ContentHeaders::of_source(headers);
    blob.headers.content_type.get_or_insert_with(|| DEFAULT_CONTENT_TYPE.to_owned());
    blob.metadata = Metadata::from_headers(headers)
        .map_err(|_| remote.unusable("The metadata of the source is not valid."))?;
    Ok(blob)
}

/// Parses a URL and derives all that depends on it, for the fuzzer. Returns whether it names a blob.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) -> bool {
    use lazuli_protocol::Version;
    let endpoint = "http://127.0.0.1:10000/dev1";
    let text = String::from_utf8_lossy(data);
    let suffixes = ["b".to_owned()];
    let mut names_blob = false;
    for version in [Version::NEWEST, Version::OLDEST] {
        let Ok(url) = SourceUrl::parse(&text, endpoint, version) else { continue };
        let _ = url.without_credentials();
        let at_port = |port| (port == 10_001).then_some(ServiceKind::Queue);
        let service = url.service(ServiceKind::Blob, endpoint, &suffixes, at_port);
        for service in service.into_iter().chain(ServiceKind::ALL) {
            let address = url.address(service, &suffixes);
            names_blob |=
                address.is_ok_and(|address| names::check_blob(&address.container, &address.object).is_ok());
        }
        let _ = State::parse(&url.query);
    }
    names_blob
}
