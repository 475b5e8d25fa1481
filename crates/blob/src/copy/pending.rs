//! Asynchronous copies, which continue after the reply to their request. `lazuli_copy` runs them. Until a
//! copy is complete, its target is an empty blob with a pending copy; then one commit sets the whole content.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_copy::{Copies, Destination, PendingCopy, StreamedSource, TargetSpace, persist};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{Accounts, ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId};
use serde::{Deserialize, Serialize};

use crate::access::target::Target;
use crate::content::cipher::new_nonce;
use crate::content::encryption::Seal;
use crate::content::sink::{Sink, StoredContent};
use crate::copy::Copy;
use crate::model::keys;
use crate::model::record::{self, Blob, BlobCopy, Encryption, Kind};
use crate::{BlobService, reply};

/// The target of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTarget {
    account: String,
    blob: String,
}

/// Content that is being copied. Holds the part that is already stored.
pub struct PartialContent {
    sink: Sink,
    _writer: Writer,
}

impl BlobService {
    /// Resumes the copies that were pending when the server stopped, or when the container of their target
    /// was deleted. Call this after the start, and after a sweep has opened a space. Returns false if some
    /// pending copies could not be found.
    pub async fn resume_copies(&self) -> bool {
        self.copies.resume(self).await
    }

    /// Returns the number of pending copies.
    pub fn pending_copies(&self) -> usize {
        self.copies.pending()
    }

    /// Stops the running copies. The next start resumes them.
    pub async fn stop_copies(&self) {
        self.copies.stop().await;
    }

    /// Replaces the target by an empty blob with a pending copy, and starts the copy.
    pub(crate) async fn begin_copy(
        &self,
        copy: &Copy<'_>,
        remote: &StreamedSource,
        target: &Target,
    ) -> Result<Blob, Refusal> {
        if let Some(Seal { encryption: Encryption::Customer { .. }, .. }) = &copy.seal {
            // Otherwise the key would have to be stored until the copy is complete.
            return Err(
                Refusal::new(ErrorCode::UnsupportedHeader).detail("HeaderName", "x-ms-encryption-key")
            );
        }
        let request = copy.request;
        let named = CopyTarget { account: request.account.name.clone(), blob: request.object.clone() };
        let replace = copy.replace(target, self.extents.writer());
        let begun = self.replace(replace, |_, now| begin(copy.unshared_target(now), remote.length()));
        let (space, account) = (target.partition.space, request.account.name.clone());
        let (space, id) = (TargetSpace { space, account }, copy.wanted.id);
        self.copies.begin(self, space, id, named, remote, Box::pin(begun)).await
    }

    /// Returns the encryption of the target: a scope or none, because no later request brings a key.
    async fn seal_of_copy(&self, blob: &Blob, target: &CopyTarget) -> Result<Option<Seal>, Refusal> {
        let Some(encryption) = &blob.encryption else { return Ok(None) };
        let account = self.accounts.account(&target.account).await?;
        match (encryption, account) {
            (Encryption::Scope { name }, Some(account)) => self.unseal_scope(&account, name).map(Some),
            _ => Err(ErrorCode::BlobUsesCustomerSpecifiedEncryption.into()),
        }
    }

    /// Records the progress of a copy in its target. Returns the target, or `None` if it no longer waits for
    /// the copy.
    async fn update_progress(
        &self,
        space: SpaceId,
        pending: &PendingCopy<CopyTarget>,
        copied: u64,
    ) -> Result<Option<Blob>, Refusal> {
        let partition = keys::blob(space, &pending.target.blob);
        let noted = self.transact(&partition, Reads::key(keys::BASE), |view| {
            let Some(mut blob) = if_waiting(record::blob(view.row(&keys::BASE))?, pending.id) else {
                // Commit nothing. If the commit that begins the copy is still queued, this one follows it,
                // conflicts, and is decided again.
                return Ok(Decision::Write(Change::default(), None));
            };
            match &mut blob.copy {
                Some(copy) if copy.state.copied != copied => copy.state.copied = copied,
                _ => return Ok(Decision::Answer(Some(blob))),
            }
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]), Some(blob)))
        });
        noted.await
    }
}

#[async_trait]
impl Destination for BlobService {
    const GONE: ErrorCode = ErrorCode::ContainerNotFound;
    type Target = CopyTarget;
    type Sink = PartialContent;

    fn copies(&self) -> &Copies {
        &self.copies
    }

    async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<TargetSpace>, Option<Bytes>), Refusal> {
        let (spaces, next) = self.containers.spaces(from).await?;
        Ok((spaces.into_iter().map(|(space, account)| TargetSpace { space, account }).collect(), next))
    }

    async fn open(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
    ) -> Result<Option<PartialContent>, Refusal> {
        let Some(blob) = self.update_progress(space, copy, 0).await? else { return Ok(None) };
        let seal = self.seal_of_copy(&blob, &copy.target).await?;
        let writer = self.extents.writer();
        let sink = self.sink(&writer, blob.kind, copy.seen.length, seal.as_ref())?;
        Ok(Some(PartialContent { sink, _writer: writer }))
    }

    async fn is_wanted(&self, space: SpaceId, copy: &PendingCopy<CopyTarget>) -> Result<bool, Refusal> {
        let partition = keys::blob(space, &copy.target.blob);
        let set = self.rows.read(&partition, &Reads::key(keys::BASE)).await?;
        let blob = record::blob(set.rows.first().and_then(Option::as_ref));
        let blob = blob.map_err(|damage| damage.at(&partition))?;
        Ok(if_waiting(blob, copy.id).is_some())
    }

    async fn push(&self, fetched: &mut PartialContent, bytes: Bytes) -> Result<(), Refusal> {
        fetched.sink.push(bytes).await
    }

    async fn record_progress(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        copied: u64,
    ) -> Result<bool, Refusal> {
        self.extents.sync().await.map_err(reply::content_refusal)?;
        Ok(self.update_progress(space, copy, copied).await?.is_some())
    }

    async fn end(
        &self,
        space: SpaceId,
        copy: &PendingCopy<CopyTarget>,
        outcome: Result<PartialContent, Refusal>,
    ) -> Result<(), Refusal> {
        let (outcome, _writer) = match outcome {
            Ok(PartialContent { sink, _writer }) => (self.store(sink).await, Some(_writer)),
            Err(refusal) => (Err(refusal), None),
        };
        let partition = keys::blob(space, &copy.target.blob);
        let ended = persist(Self::GONE, || {
            self.transact(&partition, Reads::key(keys::BASE), |view| {
                let Some(mut blob) = if_waiting(record::blob(view.row(&keys::BASE))?, copy.id) else {
                    return Ok(Decision::Answer(false));
                };
                end(&mut blob, &outcome, view.now);
                blob.touch(view.stamp, view.now);
                let put = Mutation::Put(keys::BASE, blob.encode()?);
                Ok(Decision::Write(Change::of([put]), true))
            })
        });
        let stored = ended.await?;
        if let (false, Ok(stored)) = (stored, &outcome) {
            self.extents.released(stored.content.extent_bytes());
        }
        Ok(())
    }
}

/// Returns the target at the start of a copy: empty, or all zeros in a page blob.
fn begin(mut copy: Blob, length: u64) -> Result<Blob, Refusal> {
    if let Kind::Page { .. } = copy.kind {
        copy.content = Content::hole(length);
        copy.nonce = copy.encryption.as_ref().map(|_| new_nonce()).transpose()?;
    }
    copy.copy = copy.copy.map(|copy| BlobCopy { state: copy.state.into_pending(), ..copy });
    Ok(copy)
}

/// Returns the blob if it waits for this copy.
fn if_waiting(blob: Option<Blob>, id: [u8; 16]) -> Option<Blob> {
    blob.filter(|blob| blob.copy.as_ref().is_some_and(|copy| copy.state.is_pending() && copy.state.id == id))
}

/// Completes or fails the copy to a blob that waits for it.
fn end(blob: &mut Blob, outcome: &Result<StoredContent, Refusal>, now: Timestamp) {
    let Some(copy) = &mut blob.copy else { return };
    match outcome {
        Ok(stored) => {
            copy.state.succeed(now);
            stored.set_on(blob);
        }
        Err(refusal) => {
            copy.state.fail(refusal, now);
            blob.content = Content::empty();
        }
    }
}
