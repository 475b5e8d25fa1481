//! The source of a copy: what the thing is that `x-ms-copy-source` names. How it is named, and who may read it, is in
//! `lazuli_copy`.

use std::ops::Range;

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lazuli_concurrency::{ConditionRefusal, ReadRules};
use lazuli_copy::{CopySources, Outside, SourceUrl, feed, unverified};
use lazuli_extents::Held;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::{RequestBody, full};
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Operation, Refusal, Request, ServiceKind, Version, names,
};
use lazuli_store::Partition;

use crate::cipher::Key;
use crate::encryption::{self, Seal};
use crate::put::{DEFAULT_CONTENT_TYPE, MAX_PAGE_BLOB, PAGE, check_no_pending_copy};
use crate::record::{Blob, ContentHeaders, Kind};
use crate::tag_query::TagCondition;
use crate::target::{Found, State, Target, not_found};
use crate::{BlobService, keys, reply};

const IF_MATCH: &str = "x-ms-source-if-match";
const IF_TAGS: &str = "x-ms-source-if-tags";
/// The conditions on a source, and what a server calls them.
const CONDITIONS: [(&str, &str); 5] = [
    (IF_MATCH, "if-match"),
    ("x-ms-source-if-none-match", "if-none-match"),
    ("x-ms-source-if-modified-since", "if-modified-since"),
    ("x-ms-source-if-unmodified-since", "if-unmodified-since"),
    (IF_TAGS, "x-ms-if-tags"),
];

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
    /// In another service of this server, or on the web.
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
        let url = SourceUrl::of(request)?;
        let sources = self.copies.sources()?;
        match sources.service(request, &url, ServiceKind::Blob) {
            Some(ServiceKind::Blob) => self.source_here(request, &url, sources).await,
            service => self.source_there(request, &url, sources, service).await,
        }
    }

    async fn source_here(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
    ) -> Result<Source, Refusal> {
        let address = sources.address(ServiceKind::Blob, url).await?;
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
        let account = sources.admit(request, url, address, Operation::GetBlob, self).await?;
        if copies_tags(request)? || request.headers.contains_key(IF_TAGS) {
            sources.admit(request, url, address, Operation::GetBlobTags, self).await?;
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

    async fn source_there(
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
        let (outside, headers) = found.map_err(|refusal| match refusal.status() {
            StatusCode::PRECONDITION_FAILED => unmet(request, ConditionRefusal::ConditionNotMet),
            StatusCode::NOT_MODIFIED => unmet(request, ConditionRefusal::NotModified),
            _ => refusal,
        })?;
        let blob = describe(&outside, &headers)?;
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

/// Whether the tags of the source are wanted. Only what copies within the request can be told so.
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

/// Judges the conditions on a source in this server.
pub(crate) fn check_conditions(request: &Request, blob: &Blob) -> Result<(), Refusal> {
    if let Some(text) = request.headers.filled(IF_TAGS)? {
        let condition = TagCondition::parse(text)
            .map_err(|reason| Refusal::invalid_header(IF_TAGS, text).detail("Reason", reason))?;
        if !condition.holds(&blob.tags) {
            return Err(ErrorCode::ConditionNotMet.into());
        }
    }
    let conditions = request.headers.source_conditions()?;
    let judged = conditions.evaluate_read(blob.validators(), ReadRules::CombinedWithoutStar);
    judged.map_err(|refusal| unmet(request, refusal))
}

/// The refusal of a request whose source is not in the version that the client wants. Operations that read the source
/// as part of the request tell it as they tell any other refusal of the source, with the status that a read of it has;
/// but for one: Put Blob From URL of a source that does not match.
fn unmet(request: &Request, refusal: ConditionRefusal) -> Refusal {
    let plainly = match request.operation {
        Operation::CopyBlob | Operation::CopyBlobFromUrl => true,
        Operation::PutBlobFromUrl => {
            refusal == ConditionRefusal::ConditionNotMet && request.headers.contains_key(IF_MATCH)
        }
        _ => false,
    };
    if plainly {
        return ErrorCode::SourceConditionNotMet.into();
    }
    let refusal = Refusal::from(refusal);
    unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), request.version)
}

/// What a client is told of a source in this server: Copy Blob within an account tells it as it is.
fn told(refusal: Refusal, request: &Request, is_own: bool) -> Refusal {
    let plainly = request.operation == Operation::CopyBlob && is_own;
    lazuli_copy::told(refusal, request.version, plainly)
}

/// The blob that a copy of something elsewhere would be.
fn describe(outside: &Outside, headers: &HeaderMap) -> Result<Blob, Refusal> {
    let text = |name: HeaderName| -> Option<String> {
        let value = std::str::from_utf8(headers.get(name)?.as_bytes()).ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
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
    if is_page && (!outside.length().is_multiple_of(PAGE) || outside.length() > MAX_PAGE_BLOB) {
        return Err(outside.unusable("The source is not a page blob that can be."));
    }
    let mut blob = Blob::new(kind, Default::default(), Default::default());
    blob.headers = ContentHeaders {
        content_type: text(CONTENT_TYPE).or_else(|| Some(DEFAULT_CONTENT_TYPE.to_owned())),
        content_encoding: text(CONTENT_ENCODING),
        content_language: text(CONTENT_LANGUAGE),
        content_disposition: text(CONTENT_DISPOSITION),
        cache_control: text(CACHE_CONTROL),
        content_md5: headers.unchecked_md5("content-md5").ok().flatten(),
    };
    blob.metadata = Metadata::from_headers(headers)
        .map_err(|_| outside.unusable("The metadata of the source is not valid."))?;
    Ok(blob)
}

/// For the fuzzer: reads a URL, and what can be read out of it.
pub(crate) fn fuzz(data: &[u8]) {
    let endpoint = "http://127.0.0.1:10000/dev1";
    let text = String::from_utf8_lossy(data);
    if let Ok(url) = SourceUrl::parse(&text, endpoint, Version::NEWEST) {
        let suffixes = ["b".to_owned()];
        let service = ServiceKind::Blob;
        let _ = (
            url.service(service, endpoint, &suffixes, |_| None),
            url.address(service, &suffixes),
            url.shown(),
        );
    }
}
