//! Copies that go on after their request was answered: from sources that this server has to read byte by byte.
//!
//! The target says that its copy is pending, and a task fetches the source and puts it there in one commit. A row of the
//! target's space says that a copy may be under way; it is written before the target changes and removed after the copy
//! has ended, so that a restart finds every copy that is pending and goes on with it. Bytes fetched before the restart
//! are fetched again: nothing referred to them. So does the restoring of a space that was closed meanwhile, and the sweep
//! that opens it where the restoring did not come to that.
//!
//! A task that finds its target no longer waiting for it (aborted, deleted) ends without a trace. What a target is, and
//! how it is changed, is known to the service that it is of: its [`Destination`].

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

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
use tokio::time::{Instant, timeout_at};

use crate::running::{Claim, FIRST_PAUSE, Running, persist};
use crate::{CopySources, Outside, Seen};

/// Copies that fetch at the same time; others wait.
const AT_ONCE: usize = 16;
/// Copies that fetch beside these because hardly anything comes: they cost little, and must not keep the others waiting. Where
/// there are more of that kind, they take turns with the others.
const SLOW_AT_ONCE: usize = 64;
/// Copies that keep what they have while they wait for their next turn. Further ones begin again.
const MAX_PARKED: usize = 64;
/// Connections that the copies to one service may have.
pub const MAX_CONNECTIONS: usize = AT_ONCE + SLOW_AT_ONCE;
/// Fewer bytes than this between two looks is hardly anything.
const SLOW: u64 = 1 << 20;
/// How often a copy looks whether it is still wanted, and in time.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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

    /// Whether the target still waits for the copy.
    async fn is_wanted(&self, space: SpaceId, copy: &PendingCopy<Self::Target>) -> Result<bool, Refusal>;

    /// Takes the next bytes.
    async fn push(&self, sink: &mut Self::Sink, bytes: Bytes) -> Result<(), Refusal>;

    /// Notes how many bytes have come, if the target still waits for the copy. Whether it does.
    async fn note(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
        copied: u64,
    ) -> Result<bool, Refusal>;

    /// Stores the end of a copy, if the target still waits for it. Tries again, see [`persist`].
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
    slow: Semaphore,
    parked: Semaphore,
    tasks: Mutex<JoinSet<()>>,
    running: Arc<Running>,
}

impl Copies {
    /// No copy yet. Their rows are in the partition `rows` of the space that each goes to.
    pub fn new(store: Arc<dyn Store>, rows: &'static [u8], sources: Option<CopySources>) -> Self {
        Self {
            store,
            gate: Gate::default(),
            rows,
            sources,
            pending: Arc::new(Semaphore::new(MAX_PENDING)),
            slots: Semaphore::new(AT_ONCE),
            slow: Semaphore::new(SLOW_AT_ONCE),
            parked: Semaphore::new(MAX_PARKED),
            tasks: Mutex::default(),
            running: Arc::default(),
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
        // Before the row is there, or somebody else may find it and go on with what has not begun.
        let claim = self.running.claim(space, id).ok_or(ErrorCode::ServerBusy)?;
        let row = Mutation::Put(Bytes::copy_from_slice(&id), record::encode(&copy)?);
        self.write::<D>(space, row).await?;
        let runtime = Handle::current();
        let _task = Begun { destination, runtime, task: Some((space, copy, claim, permit)) };
        replace.await
    }

    /// Goes on with the copies that were pending when the server stopped. To be called after the start, and when spaces
    /// were opened again. False: not all were found.
    pub async fn resume<D: Destination>(&self, destination: &D) -> bool {
        let resumed = self.try_resume(destination).await;
        if let Err(refusal) = &resumed {
            tracing::error!(%refusal, "pending copies cannot be found");
        }
        resumed.is_ok()
    }

    /// Goes on with the copies to one space that nobody looks after. To be called when it was opened again.
    pub async fn resume_in<D: Destination>(&self, destination: &D, space: SpaceId) {
        if let Err(refusal) = self.try_resume_in(destination, space).await {
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
        claim: Claim,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let destination = destination.clone();
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let task = async move {
            run(&destination, space, &copy, claim).await;
            drop(permit);
        };
        tasks.spawn_on(task, runtime);
    }

    async fn try_resume<D: Destination>(&self, destination: &D) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let (spaces, next) = destination.spaces(from).await?;
            for space in spaces {
                self.try_resume_in(destination, space).await?;
            }
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    async fn try_resume_in<D: Destination>(&self, destination: &D, space: SpaceId) -> Result<(), Refusal> {
        let partition = self.rows(space);
        let mut range = prefix_range(&[]);
        loop {
            let reads = Reads::default().and_range(range.clone(), SCAN_ROWS);
            let set = self.store.read(&partition, &reads).await.map_err(unreadable)?;
            if set.space.is_none_or(|space| !space.open) {
                return Ok(());
            }
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(()) };
            for row in &scanned.rows {
                let copy: PendingCopy<D::Target> = match record::decode(&row.value) {
                    Ok(copy) => copy,
                    Err(damage) => {
                        // It must not keep the others from going on.
                        tracing::error!(%damage, ?space, "a pending copy cannot be read");
                        continue;
                    }
                };
                if let Some(claim) = self.running.claim(space, copy.id) {
                    self.spawn(&Handle::current(), destination, space, copy, claim, None);
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
    task: Option<(SpaceId, PendingCopy<D::Target>, Claim, OwnedSemaphorePermit)>,
}

impl<D: Destination> Drop for Begun<'_, D> {
    fn drop(&mut self) {
        if let Some((space, copy, claim, permit)) = self.task.take() {
            let copies = self.destination.copies();
            copies.spawn(&self.runtime, self.destination, space, copy, claim, Some(permit));
        }
    }
}

/// Carries out a copy to its end, whichever it is.
async fn run<D: Destination>(destination: &D, space: SpaceId, copy: &PendingCopy<D::Target>, claim: Claim) {
    let ended = carry_out(destination, space, copy).await;
    drop(claim);
    match ended {
        Ok(()) => {}
        Err(refusal) if refusal.code() == D::GONE => {
            // If the space was restored just now, whoever did so took it that the copy was still looked after.
            tokio::time::sleep(FIRST_PAUSE).await;
            destination.copies().resume_in(destination, space).await;
        }
        Err(refusal) => {
            tracing::warn!(%refusal, "the end of a copy is not stored; the next start goes on with it");
        }
    }
}

async fn carry_out<D: Destination>(
    destination: &D,
    space: SpaceId,
    copy: &PendingCopy<D::Target>,
) -> Result<(), Refusal> {
    let copies = destination.copies();
    let fetched = loop {
        match fetch(destination, space, copy).await {
            Err(Stopped::Later) => continue,
            ended => break ended,
        }
    };
    match fetched {
        Ok(sink) => destination.end(space, copy, Ok(sink)).await?,
        Err(Stopped::Unwanted | Stopped::Later) => {}
        Err(Stopped::Gone) => return Err(D::GONE.into()),
        Err(Stopped::Failed(refusal)) => destination.end(space, copy, Err(refusal)).await?,
    }
    let row = Mutation::Delete(Bytes::copy_from_slice(&copy.id));
    persist(D::GONE, || copies.write::<D>(space, row.clone())).await
}

/// Why not all of a source came.
enum Stopped {
    /// The target does not wait for it any more.
    Unwanted,
    /// The space of the target is closed. It may be opened again.
    Gone,
    /// Hardly anything came, and others wait: it has to begin again, behind them.
    Later,
    Failed(Refusal),
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal)
    }
}

impl Stopped {
    /// What a refusal of the destination means.
    fn by<D: Destination>(refusal: Refusal) -> Self {
        if refusal.code() == D::GONE { Self::Gone } else { Self::Failed(refusal) }
    }
}

/// Fetches the source.
async fn fetch<D: Destination>(
    destination: &D,
    space: SpaceId,
    copy: &PendingCopy<D::Target>,
) -> Result<D::Sink, Stopped> {
    let copies = destination.copies();
    // Never closed, so always there in the end.
    let mut _slot = copies.slots.acquire().await;
    let opened = destination.open(space, copy).await.map_err(Stopped::by::<D>)?;
    let mut sink = opened.ok_or(Stopped::Unwanted)?;
    let outside = copies.sources()?.again(copy).await?;
    let mut body = outside.body(0..outside.length());
    let (mut copied, mut noted, mut is_aside) = (0, 0, false);
    loop {
        if copies.store.now() > copy.started.saturating_add(MAX_TIME) {
            let refusal = Refusal::new(ErrorCode::OperationTimedOut);
            return Err(refusal.message("The copy took longer than two weeks.").into());
        }
        let (before, look_up) = (copied, Instant::now() + LOOK_EVERY);
        while copied - noted < PROGRESS {
            let frame = timeout_at(look_up, poll_fn(|cx| body.as_mut().poll_frame(cx)));
            let Ok(frame) = frame.await else { break };
            let Some(frame) = frame else { return Ok(sink) };
            let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() else { continue };
            copied += bytes.len() as u64;
            destination.push(&mut sink, bytes).await.map_err(Stopped::by::<D>)?;
        }
        let is_wanted = if copied - noted < PROGRESS {
            if copied - before < SLOW && !is_aside {
                if let Ok(slow) = copies.slow.try_acquire() {
                    (_slot, is_aside) = (Ok(slow), true);
                } else {
                    // Behind all that wait, and on from here when its turn comes.
                    let _parked = copies.parked.try_acquire().map_err(|_| Stopped::Later)?;
                    drop((body, _slot));
                    _slot = copies.slots.acquire().await;
                    body = outside.body(copied..outside.length());
                }
            }
            destination.is_wanted(space, copy).await
        } else {
            noted = copied;
            destination.note(space, copy, copied).await
        };
        if !is_wanted.map_err(Stopped::by::<D>)? {
            return Err(Stopped::Unwanted);
        }
    }
}
