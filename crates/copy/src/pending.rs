//! Copies that go on after their request was answered: from sources that this server has to read byte by byte.
//!
//! The target says that its copy is pending, and a task fetches the source and puts it there in one commit. A row of the
//! target's space says that a copy may be under way; it is written before the target changes and removed after the copy
//! has ended, so that a restart finds every copy that is pending and goes on with it. Bytes fetched before the restart
//! are fetched again: nothing referred to them.
//!
//! A task that finds its target no longer waiting for it (aborted, deleted) ends without a trace. What a target is, and
//! how it is changed, is known to the service that it is of: its [`Destination`].

use std::future::poll_fn;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_generations::record::{self, ticks};
use lazuli_generations::unreadable;
use lazuli_protocol::{ErrorCode, Refusal, ServiceKind, Version};
use lazuli_store::{
    Change, Decision, Gate, Mutation, Partition, Reads, SpaceId, Store, prefix_range, transact,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::{CopySources, Outside, Seen};

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

/// A service that copies go to.
#[async_trait]
pub trait Destination: Clone + Send + Sync + 'static {
    /// The refusal of what is in a space that is gone.
    const GONE: ErrorCode;
    /// What a target is found by, in its space.
    type Target: Serialize + DeserializeOwned + Send + Sync;
    /// Where bytes go until the copy ends.
    type Sink: Send;

    /// The copies that go to it.
    fn copies(&self) -> &Copies;

    /// The spaces that copies may go to, a page at a time, each with where to go on.
    async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<SpaceId>, Option<Bytes>), Refusal>;

    /// Begins the content of the target. None if it does not wait for the copy; nor does it then once all commits that
    /// are under way have been made.
    async fn open(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
    ) -> Result<Option<Self::Sink>, Refusal>;

    /// Takes the next bytes.
    async fn push(&self, sink: &mut Self::Sink, bytes: Bytes) -> Result<(), Refusal>;

    /// Notes how many bytes have come, if the target still waits for the copy. Whether it does.
    async fn note(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
        copied: u64,
    ) -> Result<bool, Refusal>;

    /// Stores the end of a copy, if the target still waits for it.
    async fn end(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
        outcome: Result<Self::Sink, Refusal>,
    ) -> Result<(), Refusal>;
}

/// A copy that may be under way: enough to go on with it after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCopy<T> {
    /// The id of the copy.
    pub id: [u8; 16],
    /// Where it goes.
    pub target: T,
    /// Where it comes from, credentials included.
    pub url: String,
    /// The service of this server that the source is of, if it is.
    pub service: Option<ServiceKind>,
    /// Which version of the source it is.
    pub seen: Seen,
    /// The version of the protocol that the source is asked in.
    pub version: Version,
    #[serde(with = "ticks")]
    started: Timestamp,
}

/// The copies to one service that are under way, and what they may come from.
pub struct Copies {
    store: Arc<dyn Store>,
    gate: Gate,
    /// The partition of a space that says which copies are under way.
    rows: &'static [u8],
    sources: Option<CopySources>,
    pending: Arc<Semaphore>,
    slots: Semaphore,
    tasks: Mutex<JoinSet<()>>,
    /// When this came to be: what is older was begun by another.
    since: Timestamp,
}

impl Copies {
    /// No copy yet. Their rows are in the partition `rows` of the space that each goes to.
    pub fn new(store: Arc<dyn Store>, rows: &'static [u8], sources: Option<CopySources>) -> Self {
        Self {
            since: store.now(),
            store,
            gate: Gate::default(),
            rows,
            sources,
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            slots: Semaphore::new(AT_ONCE),
            tasks: Mutex::default(),
        }
    }

    /// What copies may come from.
    pub fn sources(&self) -> Result<&CopySources, Refusal> {
        self.sources.as_ref().ok_or_else(|| Refusal::not_implemented("Copying from a URL"))
    }

    /// Starts a copy. `replace` makes the target wait for it.
    pub async fn begin<D: Destination, T>(
        &self,
        destination: &D,
        space: SpaceId,
        id: [u8; 16],
        target: D::Target,
        outside: &Outside,
        replace: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let permit = self.pending.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Refusal::new(ErrorCode::ServerBusy))?;
        let copy = PendingCopy {
            id,
            target,
            url: outside.uri.to_string(),
            service: outside.service(),
            seen: outside.seen.clone(),
            version: outside.version,
            started: self.store.now(),
        };
        let row = Mutation::Put(Bytes::copy_from_slice(&id), record::encode(&copy)?);
        self.write::<D>(space, row).await?;
        let runtime = Handle::current();
        let _task = Begun { destination, runtime, task: Some((space, copy, permit)) };
        replace.await
    }

    /// Goes on with the copies that were pending when the server stopped. To be called once, after the start.
    pub async fn resume<D: Destination>(&self, destination: &D) {
        if let Err(refusal) = self.try_resume(destination).await {
            tracing::error!(%refusal, "pending copies cannot be found");
        }
    }

    /// Stops the copies that are under way. The next start goes on with them.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    async fn write<D: Destination>(&self, space: SpaceId, row: Mutation) -> Result<(), Refusal> {
        let (partition, change) = (self.rows(space), Change::of([row]));
        let written = transact(&*self.store, &self.gate, &partition, Reads::default(), |_| {
            Ok(Decision::Write(change.clone(), ()))
        });
        written.await.map_err(|error| lazuli_account::refusal(error, || D::GONE.into()))
    }

    fn rows(&self, space: SpaceId) -> Partition {
        Partition::new(space, self.rows)
    }

    fn spawn<D: Destination>(
        &self,
        runtime: &Handle,
        destination: &D,
        space: SpaceId,
        copy: PendingCopy<D::Target>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let destination = destination.clone();
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let task = async move {
            run(&destination, space, &copy).await;
            drop(permit);
        };
        tasks.spawn_on(task, runtime);
    }

    async fn try_resume<D: Destination>(&self, destination: &D) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let (spaces, next) = destination.spaces(from).await?;
            for space in spaces {
                self.resume_in(destination, space).await?;
            }
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    /// Goes on with the copies to one space.
    async fn resume_in<D: Destination>(&self, destination: &D, space: SpaceId) -> Result<(), Refusal> {
        let partition = self.rows(space);
        let mut range = prefix_range(&[]);
        loop {
            let reads = Reads::default().and_range(range.clone(), SCAN_ROWS);
            let set = self.store.read(&partition, &reads).await.map_err(unreadable)?;
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(()) };
            for row in &scanned.rows {
                let copy: PendingCopy<D::Target> = record::decode(&row.value)?;
                if copy.started < self.since {
                    self.spawn(&Handle::current(), destination, space, copy, None);
                }
            }
            if !scanned.more {
                return Ok(());
            }
            range.start = scanned.range.end;
        }
    }
}

/// A copy whose row is written. However its request ends, even if its client goes away and it ends just here, a task
/// looks after the copy from then on: it carries it out if it has begun, and removes the row if it has not.
struct Begun<'a, D: Destination> {
    destination: &'a D,
    runtime: Handle,
    task: Option<(SpaceId, PendingCopy<D::Target>, OwnedSemaphorePermit)>,
}

impl<D: Destination> Drop for Begun<'_, D> {
    fn drop(&mut self) {
        if let Some((space, copy, permit)) = self.task.take() {
            let copies = self.destination.copies();
            copies.spawn(&self.runtime, self.destination, space, copy, Some(permit));
        }
    }
}

/// Carries out a copy to its end, whichever it is.
async fn run<D: Destination>(destination: &D, space: SpaceId, copy: &PendingCopy<D::Target>) {
    let copies = destination.copies();
    // Never closed, so always there in the end.
    let _slot = copies.slots.acquire().await;
    let ended = match fetch(destination, space, copy).await {
        Ok(None) => Ok(()),
        Ok(Some(sink)) => destination.end(space, copy, Ok(sink)).await,
        Err(refusal) => destination.end(space, copy, Err(refusal)).await,
    };
    let forgotten = match ended {
        Ok(()) => copies.write::<D>(space, Mutation::Delete(Bytes::copy_from_slice(&copy.id))).await,
        Err(refusal) => Err(refusal),
    };
    match forgotten {
        Err(refusal) if refusal.code() != D::GONE => {
            tracing::warn!(%refusal, "the end of a copy is not stored; the next start goes on with it");
        }
        _ => {}
    }
}

/// Fetches the source. None if the target does not wait for it any more.
async fn fetch<D: Destination>(
    destination: &D,
    space: SpaceId,
    copy: &PendingCopy<D::Target>,
) -> Result<Option<D::Sink>, Refusal> {
    let copies = destination.copies();
    let Some(mut sink) = destination.open(space, copy).await? else { return Ok(None) };
    let outside = copies.sources()?.again(copy).await?;
    let mut body = outside.body(0..outside.length());
    let (mut copied, mut noted) = (0, 0);
    loop {
        if copies.store.now() > copy.started.saturating_add(MAX_TIME) {
            let refusal = Refusal::new(ErrorCode::OperationTimedOut);
            return Err(refusal.message("The copy took longer than two weeks."));
        }
        while copied - noted < PROGRESS {
            let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await else { return Ok(Some(sink)) };
            let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() else { continue };
            copied += bytes.len() as u64;
            destination.push(&mut sink, bytes).await?;
        }
        if !destination.note(space, copy, copied).await? {
            return Ok(None);
        }
        noted = copied;
    }
}
