//! Copies that go on after their request was answered: from sources elsewhere.
//!
//! The target is replaced by an empty blob whose copy is pending, and a task fetches the source and puts it there in
//! one commit. A row of the container says that a copy may be under way; it is written before the target changes and
//! removed after the copy has ended, so that a restart finds every copy that is pending and goes on with it. Bytes
//! fetched before the restart are fetched again: nothing referred to them.
//!
//! A task that finds its target no longer waiting for it (aborted, deleted) ends without a trace.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_copy::{CopySources, Outside};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{Accounts, ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, SpaceId, prefix_range};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::cipher::new_nonce;
use crate::copy::Copy;
use crate::encryption::Seal;
use crate::record::{self, Blob, CopyState, CopyStatus, Encryption, Kind, PendingCopy};
use crate::sink::Stored;
use crate::target::Target;
use crate::{BlobService, keys, reply};

/// Copies that fetch at the same time; others wait.
const AT_ONCE: usize = 16;
/// Copies that are pending at the same time.
const MAX_PENDING: usize = 10_000;
/// How long a copy may be pending.
const MAX_TIME: Span = Span::seconds(14 * 86_400);
/// Bytes after which the progress is noted.
const PROGRESS: u64 = 64 << 20;
/// Rows that a scan for pending copies reads at once.
const SCAN_ROWS: usize = 256;

/// The copies that are under way.
pub(crate) struct Copies {
    sources: Option<CopySources>,
    pending: Arc<Semaphore>,
    slots: Semaphore,
    tasks: Mutex<JoinSet<()>>,
    /// When this service came to be: what is older was begun by another.
    since: Timestamp,
}

impl Copies {
    pub(crate) fn new(sources: Option<CopySources>, since: Timestamp) -> Self {
        Self {
            sources,
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            slots: Semaphore::new(AT_ONCE),
            tasks: Mutex::default(),
            since,
        }
    }

    /// What copies may come from.
    pub(crate) fn sources(&self) -> Result<&CopySources, Refusal> {
        self.sources.as_ref().ok_or_else(|| Refusal::not_implemented("Copying from a URL"))
    }

    fn reserve(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.pending.clone().try_acquire_owned().map_err(|_| ErrorCode::ServerBusy.into())
    }
}

/// A copy whose row is written. However its request ends, even if its client goes away and it ends just here, a task
/// looks after the copy from then on: it carries it out if it has begun, and removes the row if it has not.
struct Begun<'a> {
    service: &'a BlobService,
    runtime: Handle,
    task: Option<(SpaceId, PendingCopy, OwnedSemaphorePermit)>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some((space, pending, permit)) = self.task.take() {
            self.service.spawn_copy(&self.runtime, space, pending, Some(permit));
        }
    }
}

/// Why a copy did not get to its end.
enum Stop {
    /// It failed, and the target has to say so.
    Failed(Refusal),
    /// The target does not wait for it any more.
    Unwanted,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal)
    }
}

impl BlobService {
    /// Goes on with the copies that were pending when the server stopped. To be called once, after the start.
    pub async fn resume_copies(&self) {
        if let Err(refusal) = self.try_resume_copies().await {
            tracing::error!(%refusal, "pending copies cannot be found");
        }
    }

    /// Stops the copies that are under way. The next start goes on with them.
    pub async fn stop_copies(&self) {
        let mut tasks = std::mem::take(&mut *self.copies.tasks.lock());
        tasks.shutdown().await;
    }

    /// Makes the target an empty blob with a pending copy, and starts the copy.
    pub(crate) async fn begin_copy(
        &self,
        copy: &Copy<'_>,
        outside: &Outside,
        target: &Target,
    ) -> Result<Blob, Refusal> {
        if let Some(Seal { encryption: Encryption::Customer { .. }, .. }) = &copy.seal {
            // It would have to be kept until the copy is done.
            return Err(
                Refusal::new(ErrorCode::UnsupportedHeader).detail("HeaderName", "x-ms-encryption-key")
            );
        }
        let permit = self.copies.reserve()?;
        let space = target.partition.space;
        let pending = PendingCopy {
            id: copy.wanted.id,
            account: copy.request.account.name.clone(),
            blob: copy.request.object.clone(),
            url: outside.uri.to_string(),
            seen: outside.seen.clone(),
            version: outside.version,
            started: self.store.now(),
        };
        self.note_copy(space, &pending).await?;
        let runtime = Handle::current();
        let _task = Begun { service: self, runtime, task: Some((space, pending, permit)) };
        let begun = self.replace_by(copy.request, target, &copy.preconditions, copy.access, |old, now| {
            copy.check_target(old, now)?;
            begin(copy.unshared(now), outside.length())
        });
        begun.await
    }

    async fn note_copy(&self, space: SpaceId, pending: &PendingCopy) -> Result<(), Refusal> {
        let row = Mutation::Put(Bytes::copy_from_slice(&pending.id), pending.encode()?);
        let change = Change::of([row]);
        self.transact(&keys::copies(space), Reads::default(), |_| Ok(Decision::Write(change.clone(), ())))
            .await
    }

    /// Removes the row of a copy. If that fails, the next start does it.
    async fn forget_copy(&self, space: SpaceId, id: [u8; 16]) {
        let change = Change::of([Mutation::Delete(Bytes::copy_from_slice(&id))]);
        let partition = keys::copies(space);
        let forgotten =
            self.transact(&partition, Reads::default(), |_| Ok(Decision::Write(change.clone(), ())));
        if let Err(refusal) = forgotten.await {
            tracing::debug!(%refusal, "the row of a copy that has ended stays for now");
        }
    }

    fn spawn_copy(
        &self,
        runtime: &Handle,
        space: SpaceId,
        pending: PendingCopy,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let service = self.clone();
        let mut tasks = self.copies.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let task = async move {
            service.run_copy(space, pending).await;
            drop(permit);
        };
        tasks.spawn_on(task, runtime);
    }

    /// Carries out a copy to its end, whichever it is.
    async fn run_copy(&self, space: SpaceId, pending: PendingCopy) {
        // Never closed, so always there in the end.
        let _slot = self.copies.slots.acquire().await;
        let partition = keys::blob(space, &pending.blob);
        let writer = self.extents.pins().writer();
        let ended = match self.fetch(&partition, &pending, &writer).await {
            Ok(stored) => self.end_copy(&partition, &pending, Ok(stored)).await,
            Err(Stop::Failed(refusal)) => self.end_copy(&partition, &pending, Err(refusal)).await,
            Err(Stop::Unwanted) => Ok(()),
        };
        match ended {
            Ok(()) => self.forget_copy(space, pending.id).await,
            Err(refusal) if refusal.code() == ErrorCode::ContainerNotFound => {}
            Err(refusal) => {
                tracing::warn!(%refusal, "the end of a copy is not stored; the next start goes on with it")
            }
        }
    }

    /// Fetches the source, durably.
    async fn fetch(
        &self,
        partition: &Partition,
        pending: &PendingCopy,
        writer: &Writer,
    ) -> Result<Stored, Stop> {
        let blob = self.note_progress(partition, pending, 0).await?;
        let seal = self.seal_of_copy(&blob, pending).await?;
        let uri = pending.url.parse().map_err(|_| Refusal::new(ErrorCode::InvalidInput))?;
        let outside = Outside {
            outbound: self.copies.sources()?.outbound.clone(),
            uri,
            authorization: None,
            version: pending.version,
            seen: pending.seen.clone(),
        };
        let length = outside.length();
        let mut body = outside.body(0..length);
        let mut sink = self.sink(writer, blob.kind, length, seal.as_ref())?;
        let (mut copied, mut noted) = (0, 0);
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() else { continue };
            copied += bytes.len() as u64;
            sink.push(bytes).await?;
            if copied - noted >= PROGRESS {
                self.extents.sync().await.map_err(reply::extents)?;
                self.note_progress(partition, pending, copied).await?;
                noted = copied;
            }
        }
        Ok(self.store(sink).await?)
    }

    /// How the target of a copy is encrypted. Nobody brings a key any more, so it is a scope or nothing.
    async fn seal_of_copy(&self, blob: &Blob, pending: &PendingCopy) -> Result<Option<Seal>, Refusal> {
        let Some(encryption) = &blob.encryption else { return Ok(None) };
        let account = self.accounts.account(&pending.account).await?;
        match (encryption, account) {
            (Encryption::Scope { name }, Some(account)) => self.unseal_scope(&account, name).map(Some),
            _ => Err(ErrorCode::BlobUsesCustomerSpecifiedEncryption.into()),
        }
    }

    /// Notes how far a copy is, if its target still waits for it: the target.
    async fn note_progress(
        &self,
        partition: &Partition,
        pending: &PendingCopy,
        copied: u64,
    ) -> Result<Blob, Stop> {
        let noted = self.transact(partition, Reads::key(keys::BASE), |view| {
            let Some(mut blob) = waiting(record::blob(view.row(&keys::BASE))?, pending.id) else {
                // A commit of nothing: it comes after the beginning of the copy if that is still under way, and then
                // finds that it judged too early.
                return Ok(Decision::Write(Change::default(), None));
            };
            if view.now > pending.started.saturating_add(MAX_TIME) {
                let refusal = Refusal::new(ErrorCode::OperationTimedOut);
                return Err(refusal.message("The copy took longer than two weeks."));
            }
            match &mut blob.copy {
                Some(copy) if copy.copied != copied => copy.copied = copied,
                _ => return Ok(Decision::Answer(Some(blob))),
            }
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]), Some(blob)))
        });
        noted.await?.ok_or(Stop::Unwanted)
    }

    /// Stores the end of a copy, if its target still waits for it.
    async fn end_copy(
        &self,
        partition: &Partition,
        pending: &PendingCopy,
        outcome: Result<Stored, Refusal>,
    ) -> Result<(), Refusal> {
        let ended = self.transact(partition, Reads::key(keys::BASE), |view| {
            let Some(mut blob) = waiting(record::blob(view.row(&keys::BASE))?, pending.id) else {
                return Ok(Decision::Answer(false));
            };
            end(&mut blob, &outcome, view.now);
            blob.touch(view.stamp, view.now);
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]), true))
        });
        let stored = ended.await?;
        if let (false, Ok(stored)) = (stored, &outcome) {
            self.extents.released(stored.content.allocated());
        }
        Ok(())
    }

    async fn try_resume_copies(&self) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let (spaces, next) = self.containers.spaces(from).await?;
            for space in spaces {
                self.resume_copies_in(space).await?;
            }
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    /// Goes on with copies to one container.
    async fn resume_copies_in(&self, space: SpaceId) -> Result<(), Refusal> {
        let partition = keys::copies(space);
        let mut range = prefix_range(&[]);
        loop {
            let reads = Reads::default().and_range(range.clone(), SCAN_ROWS);
            let set = self.store.read(&partition, &reads).await.map_err(reply::unreadable)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(()) };
            for row in &scanned.rows {
                let pending = PendingCopy::decode(&row.value)?;
                if pending.started < self.copies.since {
                    self.spawn_copy(&Handle::current(), space, pending, None);
                }
            }
            if !scanned.more {
                return Ok(());
            }
            range.start = scanned.range.end;
        }
    }
}

/// The target of a copy that begins: no bytes yet, or none but zeros in a page blob.
fn begin(mut copy: Blob, length: u64) -> Result<Blob, Refusal> {
    if let Kind::Page { .. } = copy.kind {
        copy.content = Content::hole(length);
        copy.nonce = copy.encryption.as_ref().map(|_| new_nonce()).transpose()?;
    }
    copy.copy =
        copy.copy.map(|state| CopyState { status: CopyStatus::Pending, copied: 0, completed: None, ..state });
    Ok(copy)
}

/// The target of a copy, if it still waits for it.
fn waiting(blob: Option<Blob>, id: [u8; 16]) -> Option<Blob> {
    blob.filter(|blob| {
        blob.copy.as_ref().is_some_and(|copy| copy.status == CopyStatus::Pending && copy.id == id)
    })
}

/// Ends the copy to a blob that waits for it.
fn end(blob: &mut Blob, outcome: &Result<Stored, Refusal>, now: Timestamp) {
    let Some(copy) = &mut blob.copy else { return };
    match outcome {
        Ok(stored) => {
            copy.copied = copy.total;
            copy.end(CopyStatus::Success, now);
            stored.put_into(blob);
        }
        Err(refusal) => {
            let (status, code, text) = (refusal.status().as_u16(), refusal.code().name(), refusal.text());
            copy.description = Some(format!("{status} {code} \"{text}\""));
            copy.end(CopyStatus::Failed, now);
            blob.content = Content::empty();
        }
    }
}
