//! Copy Blob, Copy Blob From URL, Abort Copy Blob.
//!
//! A source in this server is copied by sharing its content: no byte moves, and the copy is done when the request is. A
//! source elsewhere is fetched: within the request by Copy Blob From URL, after it by Copy Blob, see [`crate::pending`].

use http::StatusCode;
use lazuli_concurrency::{Access, Timestamp};
use lazuli_extents::Content;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::precondition::Preconditions;
use crate::put::new_blob;
use crate::put_from_url::check_no_body;
use crate::record::{self, Blob, CopyState, CopyStatus, Kind, Tier};
use crate::source::{Here, Place, Source, check_conditions, copies_tags};
use crate::take::WantDigest;
use crate::target::{State, Target, not_found};
use crate::{BlobService, keys, reply};

/// The largest source of Copy Blob From URL.
const MAX_SYNCHRONOUS: u64 = 256 << 20;

impl BlobService {
    /// Copy Blob.
    pub(crate) async fn copy_blob(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request.headers)?;
        let wanted = Wanted::parse(&request)?;
        let target = self.write_target(&request).await?;
        let source = self.source(&request).await?;
        let copy = Copy { request: &request, preconditions, access: Access::CopyDestination, wanted, source };
        let blob = match &copy.source.place {
            Place::Here(here) => self.share(&copy, here, &target).await?,
            Place::There(_) if copy.source.length == 0 => {
                self.put_copy(&copy, &target, Content::empty()).await?
            }
            Place::There(outside) => self.begin_copy(&copy, outside, &target).await?,
        };
        Ok(copied(&blob, &request))
    }

    /// Copy Blob From URL.
    pub(crate) async fn copy_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request.headers)?;
        let wanted = Wanted::parse(&request)?;
        let target = self.write_target(&request).await?;
        let source = self.source(&request).await?;
        if !matches!(source.blob.kind, Kind::Block) {
            return Err(ErrorCode::InvalidSourceBlobType.into());
        }
        let whole = 0..source.length;
        let taken = self.take(&mut request, &source, whole, MAX_SYNCHRONOUS, WantDigest::IfSent).await?;
        let copy = Copy { request: &request, preconditions, access: Access::Write, wanted, source };
        let blob = match &copy.source.place {
            Place::Here(here) => self.share(&copy, here, &target).await?,
            Place::There(_) => {
                let put = self.put_copy(&copy, &target, taken.content.clone()).await;
                put.inspect_err(|_| self.forget(&copy.source, &taken))?
            }
        };
        let mut response = copied(&blob, &request);
        taken.write_digest(&mut response.headers, request.version);
        Ok(response)
    }

    /// Abort Copy Blob.
    pub(crate) async fn abort_copy_blob(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request.headers)?;
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
            match blob.copy.as_mut().filter(|copy| copy.status == CopyStatus::Pending) {
                None => return Err(ErrorCode::NoPendingCopyOperation.into()),
                Some(copy) if copy.id != *id.as_bytes() => return Err(ErrorCode::CopyIdMismatch.into()),
                Some(copy) => copy.end(CopyStatus::Aborted, view.now),
            }
            blob.content = Content::empty();
            blob.lease = admission.lease;
            blob.touch(view.stamp, view.now);
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]).until(admission.valid_until), ()))
        });
        aborted.await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    /// Puts the content of a source in this server at the target too.
    async fn share(&self, copy: &Copy<'_>, here: &Here, target: &Target) -> Result<Blob, Refusal> {
        let over_itself = here.partition == target.partition && here.state == State::Current;
        self.replace_by(copy.request, target, &copy.preconditions, copy.access, |old, now| {
            copy.check_target(old, now)?;
            let archived = |is_archived: bool| match is_archived && !copy.wanted.rehydrates() {
                true => Err(here.told(ErrorCode::BlobArchived.into(), copy.request)),
                false => Ok(()),
            };
            if over_itself {
                // What is there now, which may be newer than what was found before.
                let current = old.filter(|old| old.is_live(now)).ok_or_else(not_found)?;
                check_conditions(copy.request, current)?;
                archived(current.tier.is_archived(now))?;
                Ok(copy.of(current, now))
            } else {
                archived(here.is_archived)?;
                Ok(copy.of(&copy.source.blob, now))
            }
        })
        .await
    }

    /// Puts the content of a source elsewhere, which was fetched, at the target.
    async fn put_copy(&self, copy: &Copy<'_>, target: &Target, content: Content) -> Result<Blob, Refusal> {
        self.replace_by(copy.request, target, &copy.preconditions, copy.access, |old, now| {
            copy.check_target(old, now)?;
            Ok(Blob { content: content.clone(), ..copy.of(&copy.source.blob, now) })
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
    pub(crate) source: Source,
}

/// What the target of a copy is to be, where it is not as the source is.
pub(crate) struct Wanted {
    pub(crate) id: [u8; 16],
    /// Metadata, tags and tier as far as the request names them.
    blob: Blob,
    copies_tags: bool,
    seals: Option<bool>,
}

impl Wanted {
    pub(crate) fn parse(request: &Request) -> Result<Self, Refusal> {
        request.headers.one_of("x-ms-rehydrate-priority", &[("High", ()), ("Standard", ())])?;
        Ok(Self {
            id: uuid::Uuid::new_v4().into_bytes(),
            blob: new_blob(request, Kind::Block)?,
            copies_tags: copies_tags(request)?,
            seals: request.headers.flag("x-ms-seal-blob")?,
        })
    }

    /// Whether the copy of an archived blob is to be online.
    fn rehydrates(&self) -> bool {
        self.blob.tier.tier.is_some_and(|tier| tier != Tier::Archive)
    }
}

impl Copy<'_> {
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

    /// The copy of a source, done, with the source's content.
    pub(crate) fn of(&self, source: &Blob, now: Timestamp) -> Blob {
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
            encryption: source.encryption.clone(),
            block_list: source.block_list.clone(),
            content: source.content.clone(),
            copy: Some(self.done(now)),
            ..wanted.blob.clone()
        }
    }

    fn done(&self, now: Timestamp) -> CopyState {
        CopyState {
            id: self.wanted.id,
            source: self.source.shown_url.clone(),
            status: CopyStatus::Success,
            description: None,
            copied: self.source.length,
            total: self.source.length,
            completed: Some(now),
            incremental: false,
            destination_snapshot: None,
        }
    }
}

impl CopyState {
    /// Ends a copy that was under way.
    pub(crate) fn end(&mut self, status: CopyStatus, now: Timestamp) {
        self.status = status;
        self.completed = Some(now);
    }
}

/// The reply to a copy that was accepted.
pub(crate) fn copied(blob: &Blob, request: &Request) -> Response {
    let mut response = reply::written(StatusCode::ACCEPTED, blob, request.version);
    if let Some(copy) = &blob.copy {
        reply::put(&mut response.headers, "x-ms-copy-id", uuid::Uuid::from_bytes(copy.id).to_string());
        reply::put(&mut response.headers, "x-ms-copy-status", copy.status.name());
    }
    response
}
