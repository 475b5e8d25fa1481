//! Put Blob, and what every operation shares that makes a blob or replaces it as a whole.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{Access, Timestamp};
use lazuli_extents::Content;
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, Version};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::block::drop_staged;
use crate::cipher::new_nonce;
use crate::history::History;
use crate::intake::WantMd5;
use crate::precondition::{Preconditions, check_changeable, check_mutable, check_overwrite};
use crate::protection::Protecting;
use crate::record::{self, Blob, ContentHeaders, Kind, Tags, Tier};
use crate::retention::protect;
use crate::tag_index::{Indexed, Tagging};
use crate::target::Target;
use crate::tier::check_new_tier;
use crate::{BlobService, keys, reply};

const MIB: u64 = 1 << 20;
/// The largest page blob.
pub(crate) const MAX_PAGE_BLOB: u64 = 8 << 40;
/// The type of a new blob that names none.
pub(crate) const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";
/// The header that names a tier.
pub(crate) const ACCESS_TIER: &str = "x-ms-access-tier";
/// Page blobs are made of these.
pub(crate) const PAGE: u64 = 512;

impl BlobService {
    /// Put Blob, of any type.
    pub(crate) async fn put_blob(&self, mut request: Request) -> Result<Response, Refusal> {
        let kind = blob_type(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob(&request, kind)?;
        let pages = match kind {
            Kind::Page { .. } => page_blob_length(&request.headers)?,
            Kind::Block | Kind::Append { .. } => 0,
        };
        check_new_tier(kind, new.tier.tier, pages)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        new.encryption = seal.as_ref().map(|seal| seal.encryption.clone());
        let (content, received) = match kind {
            Kind::Block => {
                // Of this type it has to be that of the body.
                let said = SentDigests { md5: request.headers.md5("x-ms-blob-content-md5")?, crc64: None };
                let limit = max_put_blob(request.version);
                let received = self.receive(&mut request, limit, WantMd5::Always, seal.as_ref()).await?;
                said.check_md5(received.md5)
                    .inspect_err(|_| self.extents.released(received.content.allocated()))?;
                new.headers.content_md5 = received.md5.map(Vec::from);
                new.nonce = received.nonce;
                (received.content.clone(), Some(received))
            }
            Kind::Page { .. } => {
                check_no_body(&request)?;
                new.nonce = seal.as_ref().map(|_| new_nonce()).transpose()?;
                (Content::hole(pages), None)
            }
            Kind::Append { .. } => {
                check_no_body(&request)?;
                (Content::empty(), None)
            }
        };
        new.content = content;
        let replaced = self.replace(&request, &target, &preconditions, Access::Write, &new).await;
        if replaced.is_err() {
            self.extents.released(new.content.allocated());
        }
        let mut response = reply::written(StatusCode::CREATED, &replaced?, request.version);
        if let Some(received) = received {
            reply::digests(&mut response.headers, received.md5, received.crc64, request.version);
        }
        Ok(response)
    }

    /// Makes the blob or replaces it with `new`, whose content is durable. What the commit decides (tag, dates, version,
    /// lease) is filled in.
    pub(crate) async fn replace(
        &self,
        request: &Request,
        target: &Target,
        preconditions: &Preconditions,
        access: Access,
        new: &Blob,
    ) -> Result<Blob, Refusal> {
        self.replace_by(request, target, preconditions, access, |_, _| Ok(new.clone())).await
    }

    /// The same, where what is put depends on what is there and when that is.
    pub(crate) async fn replace_by(
        &self,
        request: &Request,
        target: &Target,
        preconditions: &Preconditions,
        access: Access,
        make: impl Fn(Option<&Blob>, Timestamp) -> Result<Blob, Refusal>,
    ) -> Result<Blob, Refusal> {
        let history = self.history(&request.account).await?;
        let protecting = Protecting::if_asked(request, target)?;
        // The replaced content may move to another row.
        let writer = self.extents.pins().writer();
        let replacement = Replacement { caller: &request.caller, preconditions, access, history };
        let replaced = self.transact_tagged(
            protecting.as_ref(),
            &target.partition,
            Reads::key(keys::BASE),
            |view, indexed| {
                let old = record::blob(view.row(&keys::BASE))?;
                if let Some(old) = &old {
                    writer.hold(self.pin(), old.contents());
                }
                replacement.decide(view, old.as_ref(), make(old.as_ref(), view.now)?, indexed)
            },
        );
        let Replaced { blob, released } = replaced.await?;
        self.extents.released(released);
        Ok(blob)
    }
}

/// A write that makes a blob or replaces it as a whole.
pub(crate) struct Replacement<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) preconditions: &'a Preconditions,
    pub(crate) access: Access,
    pub(crate) history: History,
}

/// What such a write came to.
pub(crate) struct Replaced {
    pub(crate) blob: Blob,
    /// Bytes that no row refers to any more.
    pub(crate) released: u64,
}

impl Replacement<'_> {
    /// Puts `new` in the place of what is there, which has to be of the same type: a type is for as long as a blob is there.
    /// Asks for its tags to be indexed if they are not.
    pub(crate) fn decide(
        &self,
        view: &View<'_>,
        old: Option<&Blob>,
        mut new: Blob,
        indexed: &Indexed,
    ) -> Result<Decision<Tagging<Replaced>>, Refusal> {
        let (stamp, now) = (view.stamp, view.now);
        let admission = self.preconditions.admit_create_of(old, new.kind, self.access, now)?;
        let live = old.filter(|old| old.is_live(now));
        check_overwrite(self.caller, live.is_some())?;
        if let Some(live) = live {
            check_replaceable(live, self.history, now)?;
            new.created = live.created;
            // A page blob may be too long for the tier of the one before it.
            if new.tier.tier.is_none() && new.kind == Kind::Block {
                new.tier = live.tier.at(now);
            }
        } else {
            new.created = now;
        }
        if new.tags != indexed.tags {
            return Ok(Decision::Answer(Tagging::Index(new.tags)));
        }
        new.tags_claim = indexed.claim;
        new.touch(stamp, now);
        new.incarnation = stamp;
        new.version = self.history.new_version(stamp);
        new.lease = admission.lease;
        new.committed = true;
        new.staging = None;
        let mut mutations = vec![Mutation::Put(keys::BASE, new.encode()?)];
        let mut released = 0;
        if let Some(old) = old {
            let kept = self.history.keep_replaced(old, stamp, now)?;
            if kept.is_empty() {
                released = old.content.allocated();
            }
            mutations.extend(kept);
            if old.staging.is_some() {
                mutations.extend(drop_staged());
            }
        }
        let change = Change::of(mutations).until(admission.valid_until).until(indexed.valid_until());
        let unindexed = old.map(Indexed::of).unwrap_or_default();
        Ok(Decision::Write(change, Tagging::Done(Replaced { blob: new, released }, unindexed)))
    }
}

/// Refuses to replace what is protected, archived, being copied to, or kept in step with another blob.
fn check_replaceable(live: &Blob, history: History, now: Timestamp) -> Result<(), Refusal> {
    if !history.versioning {
        check_mutable(live, now)?;
    }
    check_changeable(live, now)
}

/// Refuses to write to a blob that is being copied to.
pub(crate) fn check_no_pending_copy(blob: &Blob) -> Result<(), Refusal> {
    match &blob.copy {
        Some(copy) if copy.state.is_pending() => Err(ErrorCode::PendingCopyOperation.into()),
        _ => Ok(()),
    }
}

/// The blob that a request describes, without its content.
pub(crate) fn new_blob(request: &Request, kind: Kind) -> Result<Blob, Refusal> {
    new_blob_with(request, kind, ContentHeaderForms::OwnOrPlain)
}

/// The blob that a request describes whose content headers have these forms.
pub(crate) fn new_blob_with(
    request: &Request,
    kind: Kind,
    forms: ContentHeaderForms,
) -> Result<Blob, Refusal> {
    let headers = &request.headers;
    let mut blob = Blob::new(kind, Default::default(), request.now);
    blob.headers = content_headers(headers, forms)?;
    blob.headers.content_type.get_or_insert_with(|| DEFAULT_CONTENT_TYPE.to_owned());
    blob.metadata = Metadata::from_headers(headers)?;
    blob.tags = Tags::from_headers(headers)?;
    blob.tier.tier = access_tier(request)?;
    if blob.tier.tier.is_some() {
        blob.tier.changed = Some(request.now);
    }
    protect(&mut blob, headers, request.now)?;
    Ok(blob)
}

/// `x-ms-access-tier`, if one was sent. Older versions do not know the newest tiers.
pub(crate) fn access_tier(request: &Request) -> Result<Option<Tier>, Refusal> {
    let is_known = |tier: &Tier| *tier != Tier::Cold || request.version.at_least(2021, 12, 2);
    request.headers.value(ACCESS_TIER, |text| Tier::parse(text).filter(is_known))
}

impl Tier {
    /// Reads the value of `x-ms-access-tier`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        const PREMIUM: [u8; 11] = [4, 6, 10, 15, 20, 30, 40, 50, 60, 70, 80];
        for tier in [Self::Hot, Self::Cool, Self::Cold, Self::Archive, Self::Smart] {
            if tier.name().eq_ignore_ascii_case(text) {
                return Some(tier);
            }
        }
        let level = text.strip_prefix(['P', 'p'])?.parse().ok()?;
        PREMIUM.contains(&level).then_some(Self::Premium(level))
    }
}

/// Where a request says with which content headers a blob is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentHeaderForms {
    /// In the `x-ms-blob-` form.
    Own,
    /// In that form, else in the plain one: those of the body are those of the blob.
    OwnOrPlain,
}

/// The content headers that a request wants stored.
pub(crate) fn content_headers(
    headers: &HeaderMap,
    forms: ContentHeaderForms,
) -> Result<ContentHeaders, Refusal> {
    let text = |own: &str, plain: &str| -> Result<Option<String>, Refusal> {
        let value = match headers.text(own)? {
            None if forms == ContentHeaderForms::OwnOrPlain => headers.text(plain)?,
            value => value,
        };
        Ok(value.map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned))
    };
    Ok(ContentHeaders {
        content_type: text("x-ms-blob-content-type", "content-type")?,
        content_encoding: text("x-ms-blob-content-encoding", "content-encoding")?,
        content_language: text("x-ms-blob-content-language", "content-language")?,
        content_disposition: text("x-ms-blob-content-disposition", "")?,
        cache_control: text("x-ms-blob-cache-control", "cache-control")?,
        content_md5: headers.unchecked_md5("x-ms-blob-content-md5")?,
    })
}

fn blob_type(request: &Request) -> Result<Kind, Refusal> {
    #[derive(Clone, Copy)]
    enum Type {
        Block,
        Page,
        Append,
    }
    let types = [("BlockBlob", Type::Block), ("PageBlob", Type::Page), ("AppendBlob", Type::Append)];
    match request.headers.one_of("x-ms-blob-type", &types)? {
        Some(Type::Block) => Ok(Kind::Block),
        Some(Type::Page) => {
            let number = request.headers.number("x-ms-blob-sequence-number", 0..=i64::MAX)?;
            Ok(Kind::Page { sequence_number: number.unwrap_or(0).unsigned_abs() })
        }
        Some(Type::Append) => Ok(Kind::Append { blocks: 0, sealed: false }),
        // Before there were types there was only one.
        None if !request.version.at_least(2009, 9, 19) => Ok(Kind::Block),
        None => Err(Refusal::missing_header("x-ms-blob-type")),
    }
}

/// The length of a page blob: whole pages.
pub(crate) fn page_blob_length(headers: &HeaderMap) -> Result<u64, Refusal> {
    const NAME: &str = "x-ms-blob-content-length";
    let length = headers.required_number(NAME, 0..=MAX_PAGE_BLOB as i64)?.unsigned_abs();
    if length % PAGE != 0 {
        return Err(Refusal::invalid_header(NAME, length.to_string()));
    }
    Ok(length)
}

/// Refuses a body where the operation takes none.
pub(crate) fn check_no_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        Some(0) => Ok(()),
        Some(length) => Err(Refusal::invalid_header("content-length", length.to_string())),
        None => Err(ErrorCode::MissingContentLengthHeader.into()),
    }
}

/// The largest body of Put Blob.
pub(crate) fn max_put_blob(version: Version) -> u64 {
    match version {
        version if version.at_least(2019, 12, 12) => 5000 * MIB,
        version if version.at_least(2016, 5, 31) => 256 * MIB,
        _ => 64 * MIB,
    }
}
