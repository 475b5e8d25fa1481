//! Asynchronous copies, which continue after the reply to their request. Their sources must be read byte by
//! byte.
//!
//! The target records that its copy is pending. A task reads the source and stores the content in the target
//! with one commit. A row in the target's space records that a copy may be pending. This row is written
//! before the target changes and removed after the copy has ended, so a restart finds and resumes every
//! pending copy. Bytes read before the restart are read again, because no row refers to them. Copies are also
//! resumed when a closed space is restored, and by the sweep that reopens a space after an interrupted
//! restore.
//!
//! A task ends silently if its target no longer waits for the copy, because the copy was aborted or the
//! target deleted. The service of the target finds and changes the target, see [`Destination`].

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{FairPermit, FairSemaphore, Span, Timestamp};
use lazuli_protocol::request::next_data;
use lazuli_protocol::{ErrorCode, Refusal, ServiceKind, Version};
use lazuli_service::record;
use lazuli_service::{read_refusal, transaction_refusal};
use lazuli_store::{
    Change, Decision, Gate, Mutation, Partition, Reads, RowPosition, SpaceId, Store, prefix_range, transact,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use crate::active_copies::{ActiveCopies, ActiveCopy, FIRST_PAUSE, persist};
use crate::{CopySources, SourceVersion, StreamedSource};

/// Maximum number of copies that read concurrently. Others wait.
const MAX_FETCHING: usize = 16;
/// Maximum number of additional slow copies, which receive hardly any bytes. They cost little and must not
/// block the other copies. If there are more slow copies, they share the slots of the others.
const MAX_SLOW: usize = 64;
/// Maximum number of copies that keep their content while they wait for a slot. Other copies start again from
/// the beginning.
const MAX_PARKED: usize = 64;
/// Maximum number of connections for the copies of one service.
pub const MAX_CONNECTIONS: usize = MAX_FETCHING + MAX_SLOW;
/// A copy that receives fewer bytes than this in one [`CHECK_INTERVAL`] is slow.
const SLOW_BYTES: u64 = 1 << 20;
/// How often a copy checks whether its target still waits for it, and whether its time is up.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of pending copies with a task, three quarters of them for one account. Further requests are
/// refused, and further pending copies found at a restart are resumed when others have ended.
const MAX_PENDING: u32 = 10_000;
/// A search for skipped copies begins when this fraction (1/8) of [`MAX_PENDING`] is free again.
const FREE_FRACTION: u32 = 8;
/// Maximum time for which a copy may be pending.
const MAX_TIME: Span = Span::seconds(14 * 86_400);
/// Bytes after which the progress is recorded.
const PROGRESS_BYTES: u64 = 64 << 20;
/// Rows that a scan for pending copies reads at a time.
const SCAN_ROWS: usize = 256;

/// A space with targets of copies, and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpace {
    /// The space.
    pub space: SpaceId,
    /// Name of the account that the space belongs to. Pending copies count for it.
    pub account: String,
}

/// The right of a copy to have a task.
type TaskPermit = FairPermit<String>;

/// A service with targets of copies.
#[async_trait]
pub trait Destination: Clone + Send + Sync + 'static {
    /// The refusal if the space of a target is closed.
    const GONE: ErrorCode;
    /// Identifies a target in its space.
    type Target: Serialize + DeserializeOwned + Send + Sync;
    /// Holds the content until the copy ends.
    type Sink: Send;

    /// Returns the copies to this service.
    fn copies(&self) -> &Copies;

    /// Returns the spaces that may have targets, a page at a time, and where the next page begins.
    async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<TargetSpace>, Option<Bytes>), Refusal>;

    /// Begins the content of the target. Returns `None` if the target does not wait for the copy, and will
    /// not wait for it after all commits in flight.
    async fn open(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
    ) -> Result<Option<Self::Sink>, Refusal>;

    /// Returns whether the target still waits for the copy.
    async fn is_wanted(&self, space: SpaceId, copy: &PendingCopy<Self::Target>) -> Result<bool, Refusal>;

    /// Appends bytes to the content.
    async fn push(&self, sink: &mut Self::Sink, bytes: Bytes) -> Result<(), Refusal>;

    /// Records how many bytes were copied. Returns whether the target still waits for the copy.
    async fn record_progress(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
        copied: u64,
    ) -> Result<bool, Refusal>;

    /// Stores the end of a copy, if the target still waits for it. Retries as described at [`persist`].
    async fn end(
        &self,
        space: SpaceId,
        copy: &PendingCopy<Self::Target>,
        outcome: Result<Self::Sink, Refusal>,
    ) -> Result<(), Refusal>;
}

/// A copy that may be pending, with all data that is needed to resume it after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCopy<T> {
    /// The id of the copy.
    pub id: [u8; 16],
    /// The target.
    pub target: T,
    /// The URL of the source, including credentials.
    pub url: String,
    /// The service of this server that the source belongs to. `None` if the source is remote.
    pub service: Option<ServiceKind>,
    /// The version of the source.
    pub seen: SourceVersion,
    /// The protocol version of requests to the source.
    pub version: Version,
    started: Timestamp,
}

/// The asynchronous copies to one service.
pub struct Copies {
    store: Arc<dyn Store>,
    gate: Gate,
    /// The partition of each space that has the rows of pending copies.
    rows: &'static [u8],
    sources: Option<CopySources>,
    pending: Arc<FairSemaphore<String>>,
    max_pending: u32,
    /// Whether pending copies were skipped because [`MAX_PENDING`] was reached. A copy that ends searches for
    /// them.
    has_skipped: AtomicBool,
    slots: Semaphore,
    slow: Semaphore,
    parked: Semaphore,
    tasks: Mutex<JoinSet<()>>,
    active: Arc<ActiveCopies>,
}

impl Copies {
    /// Creates an empty set. The rows of copies are in the partition `rows` of the target's space.
    pub fn new(store: Arc<dyn Store>, rows: &'static [u8], sources: Option<CopySources>) -> Self {
        Self {
            store,
            gate: Gate::default(),
            rows,
            sources,
            pending: FairSemaphore::new(MAX_PENDING),
            max_pending: MAX_PENDING,
            has_skipped: AtomicBool::new(false),
            slots: Semaphore::new(MAX_FETCHING),
            slow: Semaphore::new(MAX_SLOW),
            parked: Semaphore::new(MAX_PARKED),
            tasks: Mutex::default(),
            active: Arc::default(),
        }
    }

    /// Returns the number of pending copies that have a task.
    pub fn pending(&self) -> usize {
        self.pending.used()
    }

    /// Returns the sources that copies may read.
    pub fn sources(&self) -> Result<&CopySources, Refusal> {
        self.sources.as_ref().ok_or_else(|| Refusal::not_implemented("Copying from a URL"))
    }

    /// Starts a copy. `replace` makes the target wait for it.
    pub async fn begin<D: Destination, T>(
        &self,
        destination: &D,
        target_space: TargetSpace,
        id: [u8; 16],
        target: D::Target,
        streamed: &StreamedSource,
        replace: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let permit = self.pending.holder(Some(target_space.account.clone())).try_acquire(1);
        let permit = permit.ok_or(ErrorCode::ServerBusy)?;
        let space = target_space.space;
        let copy = PendingCopy {
            id,
            target,
            url: streamed.uri.to_string(),
            service: streamed.service(),
            seen: streamed.seen.clone(),
            version: streamed.version,
            started: self.store.now(),
        };
        // Register before writing the row. Otherwise another task could find the row and resume a copy that
        // has not begun.
        let active_copy = self.active.insert(space, id).ok_or(ErrorCode::ServerBusy)?;
        let row = Mutation::Put(Bytes::copy_from_slice(&id), record::encode(&copy)?);
        self.write::<D>(space, row).await?;
        let runtime = Handle::current();
        let _task =
            SpawnOnDrop { destination, runtime, task: Some((target_space, copy, active_copy, permit)) };
        replace.await
    }

    /// Resumes the copies that were pending when the server stopped. Call this after the start, and after
    /// spaces were reopened. Returns false if some of them could not be found.
    pub async fn resume<D: Destination>(&self, destination: &D) -> bool {
        let resumed = self.try_resume(destination).await;
        if let Err(refusal) = &resumed {
            tracing::error!(%refusal, "cannot find all pending copies");
        }
        resumed.is_ok()
    }

    /// Resumes the pending copies to one space that have no task. Call this when the space was reopened.
    pub async fn resume_in<D: Destination>(&self, destination: &D, space: &TargetSpace) {
        if let Err(refusal) = self.try_resume_in(destination, space).await {
            tracing::error!(%refusal, space = ?space.space, "cannot find the pending copies of a reopened space");
        }
    }

    /// Stops all tasks. The next start resumes the copies.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    async fn write<D: Destination>(&self, space: SpaceId, row: Mutation) -> Result<(), Refusal> {
        let (partition, change) = (self.rows(space), Change::of([row]));
        let written = transact(&*self.store, &self.gate, &partition, Reads::default(), |_| {
            Ok(Decision::Write(change.clone(), ()))
        });
        written.await.map_err(|error| transaction_refusal(&partition, error, || D::GONE.into()))
    }

    fn rows(&self, space: SpaceId) -> Partition {
        Partition::new(space, self.rows)
    }

    fn spawn<D: Destination>(
        &self,
        runtime: &Handle,
        destination: &D,
        space: TargetSpace,
        copy: PendingCopy<D::Target>,
        active_copy: ActiveCopy,
        permit: TaskPermit,
    ) {
        let destination = destination.clone();
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        // The task may outlive its request, and after a restart has none.
        let id = u128::from_be_bytes(copy.id);
        let span =
            tracing::error_span!(parent: None, "copy", space = ?space.space, id = format_args!("{id:032x}"));
        let task = async move {
            run(&destination, &space, &copy, active_copy).instrument(span).await;
            drop(permit);
            destination.copies().resume_skipped(&destination).await;
        };
        tasks.spawn_on(task, runtime);
    }

    /// Searches for skipped copies, once there are enough free permits.
    async fn resume_skipped<D: Destination>(&self, destination: &D) {
        let has_capacity = self.pending.free() >= self.max_pending.div_ceil(FREE_FRACTION) as usize;
        if has_capacity && self.has_skipped.swap(false, Ordering::SeqCst) && !self.resume(destination).await {
            self.has_skipped.store(true, Ordering::SeqCst);
        }
    }

    /// Acquires a permit for a pending copy of an account that was found. Without one, the copy is found
    /// again when another one has ended. The copy was accepted before, so the account may exceed its share.
    fn acquire_pending(&self, account: &str) -> Option<TaskPermit> {
        let holders = [Some(account.to_owned()), None].map(|key| self.pending.holder(key));
        let try_acquire = || holders.iter().find_map(|holder| holder.try_acquire(1));
        try_acquire().or_else(|| {
            // Set the flag before the next attempt, so that a copy that ends in between sees it.
            self.has_skipped.store(true, Ordering::SeqCst);
            try_acquire()
        })
    }

    async fn try_resume<D: Destination>(&self, destination: &D) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let (spaces, next) = destination.spaces(from).await?;
            for space in spaces {
                self.try_resume_in(destination, &space).await?;
            }
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }

    async fn try_resume_in<D: Destination>(
        &self,
        destination: &D,
        target_space: &TargetSpace,
    ) -> Result<(), Refusal> {
        let space = target_space.space;
        let partition = self.rows(space);
        let mut range = prefix_range(&[]);
        loop {
            let reads = Reads::default().and_range(range.clone(), SCAN_ROWS);
            let set = self.store.read(&partition, &reads).await.map_err(read_refusal)?;
            if set.space.is_none_or(|space| !space.open) {
                return Ok(());
            }
            let Some(scanned) = set.ranges.into_iter().next() else { return Ok(()) };
            for row in &scanned.rows {
                let copy: PendingCopy<D::Target> = match record::decode(&row.value) {
                    Ok(copy) => copy,
                    Err(damage) => {
                        // A damaged row must not keep the other copies from resuming.
                        tracing::error!(
                            %damage,
                            row = %RowPosition::new(&partition, &row.key),
                            "cannot decode the row of a pending copy; the copy does not continue",
                        );
                        continue;
                    }
                };
                if let Some(active_copy) = self.active.insert(space, copy.id) {
                    let Some(permit) = self.acquire_pending(&target_space.account) else { return Ok(()) };
                    let target_space = target_space.clone();
                    self.spawn(&Handle::current(), destination, target_space, copy, active_copy, permit);
                }
            }
            if !scanned.more {
                return Ok(());
            }
            range.start = scanned.range.end;
        }
    }
}

/// A copy whose row is written. In all cases, even if the client disconnects at this point, a task is spawned
/// on drop. The task runs the copy if the target waits for it, and otherwise removes the row.
struct SpawnOnDrop<'a, D: Destination> {
    destination: &'a D,
    runtime: Handle,
    task: Option<(TargetSpace, PendingCopy<D::Target>, ActiveCopy, TaskPermit)>,
}

impl<D: Destination> Drop for SpawnOnDrop<'_, D> {
    fn drop(&mut self) {
        if let Some((space, copy, active_copy, permit)) = self.task.take() {
            let copies = self.destination.copies();
            copies.spawn(&self.runtime, self.destination, space, copy, active_copy, permit);
        }
    }
}

/// Runs a copy and stores its end.
async fn run<D: Destination>(
    destination: &D,
    space: &TargetSpace,
    copy: &PendingCopy<D::Target>,
    active_copy: ActiveCopy,
) {
    let ended = run_to_end(destination, space.space, copy).await;
    drop(active_copy);
    match ended {
        Ok(()) => {}
        Err(refusal) if refusal.code() == D::GONE => {
            // If the space was reopened just now, its `resume_in` may have skipped this copy because it still
            // had a task.
            tokio::time::sleep(FIRST_PAUSE).await;
            destination.copies().resume_in(destination, space).await;
        }
        Err(refusal) => {
            tracing::warn!(%refusal, "cannot store the end of a copy; the next start continues it");
        }
    }
}

async fn run_to_end<D: Destination>(
    destination: &D,
    space: SpaceId,
    copy: &PendingCopy<D::Target>,
) -> Result<(), Refusal> {
    let copies = destination.copies();
    let fetched = loop {
        match fetch(destination, space, copy).await {
            Err(FetchError::Requeue) => continue,
            ended => break ended,
        }
    };
    match fetched {
        Ok(sink) => destination.end(space, copy, Ok(sink)).await?,
        Err(FetchError::Unwanted | FetchError::Requeue) => {}
        Err(FetchError::SpaceClosed) => return Err(D::GONE.into()),
        Err(FetchError::Failed(refusal)) => destination.end(space, copy, Err(refusal)).await?,
    }
    let row = Mutation::Delete(Bytes::copy_from_slice(&copy.id));
    persist(D::GONE, || copies.write::<D>(space, row.clone())).await
}

/// The reason why the source was not read to its end.
enum FetchError {
    /// The target no longer waits for the copy.
    Unwanted,
    /// The space of the target is closed. It may be reopened.
    SpaceClosed,
    /// The copy is slow and other copies wait. It must start again after them.
    Requeue,
    Failed(Refusal),
}

impl From<Refusal> for FetchError {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(refusal)
    }
}

impl FetchError {
    /// Converts a refusal of the destination.
    fn from_destination<D: Destination>(refusal: Refusal) -> Self {
        if refusal.code() == D::GONE { Self::SpaceClosed } else { Self::Failed(refusal) }
    }
}

/// Reads the source into the content.
async fn fetch<D: Destination>(
    destination: &D,
    space: SpaceId,
    copy: &PendingCopy<D::Target>,
) -> Result<D::Sink, FetchError> {
    let copies = destination.copies();
    // The semaphore is never closed.
    let mut _slot = copies.slots.acquire().await;
    let opened = destination.open(space, copy).await.map_err(FetchError::from_destination::<D>)?;
    let mut sink = opened.ok_or(FetchError::Unwanted)?;
    let streamed = copies.sources()?.reopen(copy).await?;
    let mut body = streamed.body(0..streamed.length());
    let (mut copied, mut recorded, mut uses_slow_slot) = (0, 0, false);
    loop {
        if copies.store.now() > copy.started.saturating_add(MAX_TIME) {
            let refusal = Refusal::new(ErrorCode::OperationTimedOut);
            return Err(refusal.message("The copy took longer than two weeks.").into());
        }
        let (before, next_check) = (copied, Instant::now() + CHECK_INTERVAL);
        while copied - recorded < PROGRESS_BYTES {
            let next = timeout_at(next_check, next_data(body.as_mut())).await;
            let Ok(next) = next else { break };
            let Some(bytes) = next? else { return Ok(sink) };
            copied += bytes.len() as u64;
            destination.push(&mut sink, bytes).await.map_err(FetchError::from_destination::<D>)?;
        }
        let is_wanted = if copied - recorded < PROGRESS_BYTES {
            if copied - before < SLOW_BYTES && !uses_slow_slot {
                if let Ok(slow) = copies.slow.try_acquire() {
                    (_slot, uses_slow_slot) = (Ok(slow), true);
                } else {
                    // Queue for a slot behind all waiting copies, and keep the content.
                    let _parked = copies.parked.try_acquire().map_err(|_| FetchError::Requeue)?;
                    drop((body, _slot));
                    _slot = copies.slots.acquire().await;
                    body = streamed.body(copied..streamed.length());
                }
            }
            destination.is_wanted(space, copy).await
        } else {
            recorded = copied;
            destination.record_progress(space, copy, copied).await
        };
        if !is_wanted.map_err(FetchError::from_destination::<D>)? {
            return Err(FetchError::Unwanted);
        }
    }
}
