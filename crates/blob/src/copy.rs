//! Copy Blob, Copy Blob From URL, Abort Copy Blob.
//!
//! A copy within this server shares the content of its source: no byte moves, and the copy is complete before
//! the reply. If source and target differ in encryption, the request reads the bytes and stores them again.
//! Copy Blob From URL also reads the bytes to check a digest that the client sent, or to report their CRC64.
//! Content of any other source is fetched: by Copy Blob From URL before the reply, by Copy Blob after it, see
//! [`pending`].

mod pending;

use http::StatusCode;
use lazuli_concurrency::{Access, Timestamp};
use lazuli_copy::CopyState;
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::access::replace::ReplaceRequest;
use crate::access::target::{State, Target};
use crate::content::encryption::Seal;
use crate::content::read_source::ReplyDigest;
use crate::content::sink::StoredContent;
use crate::content::source::{LocalSource, Source, SourceLocation, check_conditions, copies_tags};
use crate::model::keys;
use crate::model::record::{self, Blob, BlobCopy, Kind};
use crate::model::tier::{Rehydration, Tier, Tiering};
use crate::rules::body::check_no_body;
use crate::rules::new_blob::{ContentHeaderForms, new_blob_with};
use crate::rules::precondition::{Preconditions, not_found};
use crate::rules::tier::{check_new_tier, is_high_priority};
use crate::{BlobService, reply};

/// Maximum length of the source of Copy Blob From URL, in bytes.
const MAX_SYNCHRONOUS: u64 = 256 << 20;

impl BlobService {
    /// Handles Copy Blob.
    pub(crate) async fn copy_blob(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request)?;
        let wanted = CopyProperties::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        wanted.check_tier(source.blob.kind, source.length)?;
        let access = Access::CopyDestination;
        let copy = Copy { request: &request, preconditions, access, wanted, seal, source };
        let blob = match &copy.source.location {
            SourceLocation::Local(local) if copy.shares(&copy.source.blob) => {
                self.share(copy.replace(&target, self.extents.writer()), &copy, local, false).await?
            }
            SourceLocation::Local(local) => {
                copy.check_source(local.is_archived, local)?;
                let writer = self.extents.writer();
                let stored = self.reencrypt(&copy, local, &writer).await?;
                self.put_copy(copy.replace(&target, writer), &copy, &stored).await?
            }
            SourceLocation::Remote(_) if copy.source.length == 0 => {
                let replace = copy.replace(&target, self.extents.writer());
                self.put_copy(replace, &copy, &StoredContent::default()).await?
            }
            SourceLocation::Remote(remote) => self.begin_copy(&copy, remote, &target).await?,
        };
        Ok(copy_reply(&blob, &request))
    }

    /// Handles Copy Blob From URL.
    pub(crate) async fn copy_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let wanted = CopyProperties::parse(&request)?;
        wanted.check_tier(Kind::Block, 0)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        if !matches!(source.blob.kind, Kind::Block) {
            return Err(ErrorCode::InvalidSourceBlobType.into());
        }
        let (whole, limit) = (0..source.length, MAX_SYNCHRONOUS);
        let read =
            self.read_source(&mut request, &source, whole, limit, ReplyDigest::Crc64, seal.as_ref()).await?;
        let access = Access::Write;
        let copy = Copy { request: &request, preconditions, access, wanted, seal, source };
        let replace = copy.replace(&target, read.writer.clone());
        let blob = match &copy.source.location {
            SourceLocation::Local(local) if read.is_shared => {
                let was_read = read.crc64.is_some();
                self.share(replace, &copy, local, was_read).await?
            }
            _ => {
                let stored = StoredContent::run(read.content.clone(), read.nonce);
                let put = self.put_copy(replace, &copy, &stored).await;
                put.inspect_err(|_| self.release(&read))?
            }
        };
        let mut response = copy_reply(&blob, &request);
        read.write_digests(&mut response.headers, request.version);
        Ok(response)
    }

    /// Handles Abort Copy Blob.
    pub(crate) async fn abort_copy_blob(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_lease_only(&request)?;
        let text = request.query.required("copyid")?;
        let id = uuid::Uuid::try_parse(text)
            .map_err(|_| Refusal::invalid_query("copyid", text, "The value is not the id of a copy."))?;
        if request.headers.one_of("x-ms-copy-action", &[("abort", ())])?.is_none() {
            return Err(Refusal::missing_header("x-ms-copy-action"));
        }
        let target = self.write_target(&request).await?;
        let aborted = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let old = record::blob(view.row(&keys::BASE))?;
            let admission = preconditions.admit_lease(old.as_ref(), Access::Write, view.now)?;
            let mut blob = old.filter(|blob| blob.is_live(view.now)).ok_or_else(not_found)?;
            let copy = blob.copy.as_mut().ok_or(ErrorCode::NoPendingCopyOperation)?;
            copy.state.abort(*id.as_bytes(), view.now)?;
            blob.content = Content::empty();
            blob.lease = admission.lease;
            blob.touch(view.stamp, view.now);
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]).until(admission.valid_until), ()))
        });
        aborted.await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    /// Makes the target share the content of a source in this server. If the content was read, the reply
    /// reports its digest, so the target must get exactly that content.
    async fn share(
        &self,
        replace: ReplaceRequest<'_>,
        copy: &Copy<'_>,
        local: &LocalSource,
        was_read: bool,
    ) -> Result<Blob, Refusal> {
        let is_same_blob = local.partition == replace.target.partition && local.state == State::Current;
        self.replace(replace, |old, now| {
            if !is_same_blob {
                copy.check_source(local.is_archived, local)?;
                return Ok(copy.shared_target(&copy.source.blob, local.is_archived, now));
            }
            // The source is the target, so use its state in this attempt. That may be newer than the state
            // that was found before.
            let current = old.filter(|old| old.is_live(now)).ok_or_else(not_found)?;
            check_conditions(copy.request, current)?;
            let is_other = was_read && current.content != copy.source.blob.content;
            if is_other || !copy.shares(current) {
                return Err(ErrorCode::SourceConditionNotMet.into());
            }
            let is_archived = current.tier.is_archived(now);
            copy.check_source(is_archived, local)?;
            Ok(copy.shared_target(current, is_archived, now))
        })
        .await
    }

    /// Stores the bytes of a source in this server again, with the encryption of the target.
    pub(crate) async fn reencrypt(
        &self,
        copy: &Copy<'_>,
        local: &LocalSource,
        writer: &Writer,
    ) -> Result<StoredContent, Refusal> {
        let (blob, length) = (&copy.source.blob, copy.source.length);
        let mut reader = self.read_plain(blob, local.seal.as_ref(), 0..length, None).await?;
        let mut sink = self.sink(writer, blob.kind, length, copy.seal.as_ref())?;
        while let Some(bytes) = reader.next().await.map_err(reply::content_refusal)? {
            sink.push(bytes).await?;
        }
        self.store(sink).await
    }

    /// Creates the target of a copy from content that was stored for it.
    async fn put_copy(
        &self,
        replace: ReplaceRequest<'_>,
        copy: &Copy<'_>,
        stored: &StoredContent,
    ) -> Result<Blob, Refusal> {
        self.replace(replace, |_, now| {
            let mut blob = copy.unshared_target(now);
            stored.set_on(&mut blob);
            Ok(blob)
        })
        .await
    }
}

/// A copy that a request asks for.
pub(crate) struct Copy<'a> {
    pub(crate) request: &'a Request,
    pub(crate) preconditions: Preconditions,
    pub(crate) access: Access,
    pub(crate) wanted: CopyProperties,
    /// The encryption of the target.
    pub(crate) seal: Option<Seal>,
    pub(crate) source: Source,
}

/// Properties of the target that a request sets instead of copying them from the source.
pub(crate) struct CopyProperties {
    pub(crate) id: [u8; 16],
    /// The metadata, tags and tier that the request names.
    blob: Blob,
    copies_tags: bool,
    seals: Option<bool>,
    hurries: bool,
}

impl CopyProperties {
    pub(crate) fn parse(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            id: uuid::Uuid::new_v4().into_bytes(),
            blob: new_blob_with(request, Kind::Block, ContentHeaderForms::Own)?,
            copies_tags: copies_tags(request)?,
            seals: request.headers.flag("x-ms-seal-blob")?,
            hurries: is_high_priority(request)?,
        })
    }

    /// Refuses the requested tier if a copy of this type and length cannot have it.
    fn check_tier(&self, kind: Kind, length: u64) -> Result<(), Refusal> {
        check_new_tier(kind, self.blob.tier.tier, length)
    }

    /// Returns the tier of the copy. A copy of an archived source is rehydrated.
    fn tiering(&self, is_archived: bool, now: Timestamp) -> Tiering {
        match self.blob.tier.tier {
            Some(tier) if is_archived => Tiering {
                tier: Some(Tier::Archive),
                changed: Some(now),
                rehydration: Some(Rehydration::begin(tier, self.hurries, now)),
            },
            _ => self.blob.tier,
        }
    }
}

impl Copy<'_> {
    /// Returns whether the copy can share the content of its source: both have the same encryption, or none.
    /// Encryption scopes of different accounts have different keys.
    pub(crate) fn shares(&self, source: &Blob) -> bool {
        let wanted = self.seal.as_ref().map(|seal| &seal.encryption);
        match &self.source.location {
            SourceLocation::Local(local) => {
                source.encryption.as_ref() == wanted && (local.is_own || wanted.is_none())
            }
            SourceLocation::Remote(_) => false,
        }
    }

    /// Returns the write that creates the target. `writer` holds the content that was stored for it.
    pub(crate) fn replace<'a>(&'a self, target: &'a Target, writer: Writer) -> ReplaceRequest<'a> {
        let kind = self.source.blob.kind;
        let write = ReplaceRequest::write(self.request, target, &self.preconditions, kind, writer);
        ReplaceRequest { access: self.access, ..write }
    }

    /// Refuses an archived source, unless the request names an online tier for the copy.
    fn check_source(&self, is_archived: bool, local: &LocalSource) -> Result<(), Refusal> {
        let rehydrates = self.wanted.blob.tier.tier.is_some_and(|tier| tier != Tier::Archive);
        if is_archived && !rehydrates {
            return Err(local.refusal(ErrorCode::BlobArchived.into(), self.request));
        }
        Ok(())
    }

    /// Returns the target of a copy that shares the content of its source.
    pub(crate) fn shared_target(&self, source: &Blob, is_archived: bool, now: Timestamp) -> Blob {
        Blob {
            tier: self.wanted.tiering(is_archived, now),
            nonce: source.nonce,
            block_list: source.block_list.clone(),
            content: source.content.clone(),
            ..self.build_target(source, source.content.len(), now)
        }
    }

    /// Returns the target of a copy without content.
    pub(crate) fn unshared_target(&self, now: Timestamp) -> Blob {
        let is_archived = matches!(&self.source.location, SourceLocation::Local(local) if local.is_archived);
        Blob {
            tier: self.wanted.tiering(is_archived, now),
            ..self.build_target(&self.source.blob, self.source.length, now)
        }
    }

    fn build_target(&self, source: &Blob, length: u64, now: Timestamp) -> Blob {
        let wanted = &self.wanted;
        let kind = match (source.kind, wanted.seals) {
            (Kind::Append { blocks, .. }, Some(sealed)) => Kind::Append { blocks, sealed },
            (kind, _) => kind,
        };
        let metadata = if wanted.blob.metadata.is_empty() { &source.metadata } else { &wanted.blob.metadata };
        let tags = if wanted.copies_tags { &source.tags } else { &wanted.blob.tags };
        Blob {
            kind,
            headers: source.headers.clone(),
            metadata: metadata.clone(),
            tags: tags.clone(),
            encryption: self.seal.as_ref().map(|seal| seal.encryption.clone()),
            copy: Some(self.finished_copy(length, now)),
            ..wanted.blob.clone()
        }
    }

    fn finished_copy(&self, length: u64, now: Timestamp) -> BlobCopy {
        let source = self.source.shown_url.clone();
        let state = CopyState::finished(self.wanted.id, source, length, now);
        BlobCopy { state, incremental: false, destination_snapshot: None }
    }
}

/// Builds the reply to an accepted copy.
pub(crate) fn copy_reply(blob: &Blob, request: &Request) -> Response {
    let mut response = reply::write_reply(StatusCode::ACCEPTED, blob, request.version);
    if let Some(copy) = &blob.copy {
        copy.state.write_accepted(&mut response.headers);
    }
    response
}
