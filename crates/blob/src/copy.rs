//! Copy Blob, Copy Blob From URL, Abort Copy Blob.
//!
//! A source in this server is copied by sharing its content: no byte moves, and the copy is done when the request is. So
//! it is where the copy has to be encrypted in another way, only that its bytes are read and written. Copy Blob From URL
//! reads them all the same if it tells their CRC64, or was told a digest. A source elsewhere is fetched: within the request
//! by Copy Blob From URL, after it by Copy Blob, see [`crate::pending`].

use http::StatusCode;
use lazuli_concurrency::{Access, Timestamp};
use lazuli_copy::CopyState;
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::encryption::Seal;
use crate::precondition::Preconditions;
use crate::put::{ContentHeaderForms, new_blob_with};
use crate::put_from_url::check_no_body;
use crate::record::{self, Blob, BlobCopy, Kind, Rehydration, Tier, Tiering};
use crate::sink::Stored;
use crate::source::{Here, Place, Source, check_conditions, copies_tags};
use crate::take::WantDigest;
use crate::target::{State, Target, not_found};
use crate::tier::{check_new_tier, is_high_priority};
use crate::{BlobService, keys, reply};

/// The largest source of Copy Blob From URL.
const MAX_SYNCHRONOUS: u64 = 256 << 20;

impl BlobService {
    /// Copy Blob.
    pub(crate) async fn copy_blob(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request)?;
        let wanted = Wanted::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        wanted.check_tier(source.blob.kind, source.length)?;
        let access = Access::CopyDestination;
        let copy = Copy { request: &request, preconditions, access, wanted, seal, source };
        let blob = match &copy.source.place {
            Place::Here(here) if copy.shares(&copy.source.blob) => {
                self.share(&copy, here, &target, false).await?
            }
            Place::Here(here) => {
                copy.check_source(here.is_archived, here)?;
                let writer = self.extents.writer();
                let stored = self.store_again(&copy, here, &writer).await?;
                self.put_copy(&copy, &target, &stored).await?
            }
            Place::There(_) if copy.source.length == 0 => {
                self.put_copy(&copy, &target, &Stored::default()).await?
            }
            Place::There(outside) => self.begin_copy(&copy, outside, &target).await?,
        };
        Ok(copied(&blob, &request))
    }

    /// Copy Blob From URL.
    pub(crate) async fn copy_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let wanted = Wanted::parse(&request)?;
        wanted.check_tier(Kind::Block, 0)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        if !matches!(source.blob.kind, Kind::Block) {
            return Err(ErrorCode::InvalidSourceBlobType.into());
        }
        let (whole, limit) = (0..source.length, MAX_SYNCHRONOUS);
        let taken = self.take(&mut request, &source, whole, limit, WantDigest::Crc64, seal.as_ref()).await?;
        let access = Access::Write;
        let copy = Copy { request: &request, preconditions, access, wanted, seal, source };
        let blob = match &copy.source.place {
            Place::Here(here) if taken.is_shared => {
                let was_read = taken.crc64.is_some();
                self.share(&copy, here, &target, was_read).await?
            }
            _ => {
                let stored = Stored::run(taken.content.clone(), taken.nonce);
                let put = self.put_copy(&copy, &target, &stored).await;
                put.inspect_err(|_| self.forget(&taken))?
            }
        };
        let mut response = copied(&blob, &request);
        taken.write_digest(&mut response.headers, request.version);
        Ok(response)
    }

    /// Abort Copy Blob.
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

    /// Puts the content of a source in this server at the target too. If it was read, the client is told its digest, so
    /// that it can be no other.
    async fn share(
        &self,
        copy: &Copy<'_>,
        here: &Here,
        target: &Target,
        was_read: bool,
    ) -> Result<Blob, Refusal> {
        let over_itself = here.partition == target.partition && here.state == State::Current;
        self.replace_by(copy.request, target, &copy.preconditions, copy.access, |old, now| {
            copy.check_target(old, now)?;
            if !over_itself {
                copy.check_source(here.is_archived, here)?;
                return Ok(copy.shared(&copy.source.blob, here.is_archived, now));
            }
            // What is there now, which may be newer than what was found before.
            let current = old.filter(|old| old.is_live(now)).ok_or_else(not_found)?;
            check_conditions(copy.request, current)?;
            let is_other = was_read && current.content != copy.source.blob.content;
            if is_other || !copy.shares(current) {
                return Err(ErrorCode::SourceConditionNotMet.into());
            }
            let is_archived = current.tier.is_archived(now);
            copy.check_source(is_archived, here)?;
            Ok(copy.shared(current, is_archived, now))
        })
        .await
    }

    /// Reads a source in this server, and stores it encrypted in another way.
    pub(crate) async fn store_again(
        &self,
        copy: &Copy<'_>,
        here: &Here,
        writer: &Writer,
    ) -> Result<Stored, Refusal> {
        let (blob, length) = (&copy.source.blob, copy.source.length);
        let mut reader = self.plain(blob, here.seal.as_ref(), 0..length, None).await?;
        let mut sink = self.sink(writer, blob.kind, length, copy.seal.as_ref())?;
        while let Some(bytes) = reader.next().await.map_err(reply::extents)? {
            sink.push(bytes).await?;
        }
        self.store(sink).await
    }

    /// Puts what was stored for a copy at its target.
    async fn put_copy(&self, copy: &Copy<'_>, target: &Target, stored: &Stored) -> Result<Blob, Refusal> {
        self.replace_by(copy.request, target, &copy.preconditions, copy.access, |old, now| {
            copy.check_target(old, now)?;
            let mut blob = copy.unshared(now);
            stored.put_into(&mut blob);
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
    pub(crate) wanted: Wanted,
    /// How the target is to be encrypted.
    pub(crate) seal: Option<Seal>,
    pub(crate) source: Source,
}

/// What the target of a copy is to be, where it is not as the source is.
pub(crate) struct Wanted {
    pub(crate) id: [u8; 16],
    /// Metadata, tags and tier as far as the request names them.
    blob: Blob,
    copies_tags: bool,
    seals: Option<bool>,
    hurries: bool,
}

impl Wanted {
    pub(crate) fn parse(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            id: uuid::Uuid::new_v4().into_bytes(),
            blob: new_blob_with(request, Kind::Block, ContentHeaderForms::Own)?,
            copies_tags: copies_tags(request)?,
            seals: request.headers.flag("x-ms-seal-blob")?,
            hurries: is_high_priority(request)?,
        })
    }

    /// Refuses a tier that the copy of a source of this type and length cannot have.
    fn check_tier(&self, kind: Kind, length: u64) -> Result<(), Refusal> {
        check_new_tier(kind, self.blob.tier.tier, length)
    }

    /// The tier of the copy of a source that is archived, or not.
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
    /// Whether the copy can share the content of its source: it is encrypted in the same way, or neither is. The key of
    /// a scope is an account's own.
    pub(crate) fn shares(&self, source: &Blob) -> bool {
        let wanted = self.seal.as_ref().map(|seal| &seal.encryption);
        match &self.source.place {
            Place::Here(here) => source.encryption.as_ref() == wanted && (here.is_own || wanted.is_none()),
            Place::There(_) => false,
        }
    }

    /// Refuses a target that is leased, or of another type.
    pub(crate) fn check_target(&self, old: Option<&Blob>, now: Timestamp) -> Result<(), Refusal> {
        self.preconditions.admit_lease(old, self.access, now)?;
        match old {
            Some(old) if old.is_live(now) && !old.kind.is_like(self.source.blob.kind) => {
                Err(ErrorCode::InvalidBlobType.into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses a source that is archived, unless the copy is to be online.
    fn check_source(&self, is_archived: bool, here: &Here) -> Result<(), Refusal> {
        let rehydrates = self.wanted.blob.tier.tier.is_some_and(|tier| tier != Tier::Archive);
        if is_archived && !rehydrates {
            return Err(here.told(ErrorCode::BlobArchived.into(), self.request));
        }
        Ok(())
    }

    /// The copy of a source whose content it shares.
    pub(crate) fn shared(&self, source: &Blob, is_archived: bool, now: Timestamp) -> Blob {
        Blob {
            tier: self.wanted.tiering(is_archived, now),
            nonce: source.nonce,
            block_list: source.block_list.clone(),
            content: source.content.clone(),
            ..self.of(source, source.content.len(), now)
        }
    }

    /// The copy of the source, still without content.
    pub(crate) fn unshared(&self, now: Timestamp) -> Blob {
        let is_archived = matches!(&self.source.place, Place::Here(here) if here.is_archived);
        Blob {
            tier: self.wanted.tiering(is_archived, now),
            ..self.of(&self.source.blob, self.source.length, now)
        }
    }

    fn of(&self, source: &Blob, length: u64, now: Timestamp) -> Blob {
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
            copy: Some(self.done(length, now)),
            ..wanted.blob.clone()
        }
    }

    fn done(&self, length: u64, now: Timestamp) -> BlobCopy {
        let source = self.source.shown_url.clone();
        let state = CopyState::done(self.wanted.id, source, length, now);
        BlobCopy { state, incremental: false, destination_snapshot: None }
    }
}

/// The reply to a copy that was accepted.
pub(crate) fn copied(blob: &Blob, request: &Request) -> Response {
    let mut response = reply::written(StatusCode::ACCEPTED, blob, request.version);
    if let Some(copy) = &blob.copy {
        copy.state.write_accepted(&mut response.headers);
    }
    response
}
