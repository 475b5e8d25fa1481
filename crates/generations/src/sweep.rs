//! The garbage sweep: removes spaces that no current row names.
//!
//! A delete only moves a row. The sweep does the rest in the background and in small steps:
//!
//! * Retired generations whose retention has ended become garbage, and so do all generations of a removed
//!   account that can no longer be restored.
//! * The rows of garbage spaces are removed, and finally the garbage row itself.
//!
//! Every step can be repeated, so the server may stop at any point.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_account::Ownership;
use lazuli_concurrency::{Pace, Timestamp};
use lazuli_protocol::Refusal;
use lazuli_service::{SpaceScan, commit_refusal, read_refusal};
use lazuli_store::intent::intent_of;
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, Which};
use tracing::Instrument;

use crate::slot::Slot;
use crate::{Generation, Generations, ReconcileReason, keys};

/// Rows that are scanned or removed between two pauses.
const STEP: usize = 256;
/// Maximum number of snapshot rows that one commit removes. A commit may change 256 rows.
const SNAPSHOTS_STEP: usize = 200;

/// Remembers when the next sweep is due. Cheap to query.
#[derive(Debug)]
pub struct GarbageWatch {
    /// Set if something was deleted since the last sweep began, or no sweep has run yet.
    due: AtomicBool,
    /// End of the next retention, in ticks.
    next: AtomicU64,
}

impl Default for GarbageWatch {
    fn default() -> Self {
        Self { due: AtomicBool::new(true), next: AtomicU64::new(u64::MAX) }
    }
}

impl GarbageWatch {
    /// Makes a sweep due: at `kept_until`, the end of a retention, or now if there is none.
    pub fn schedule(&self, kept_until: Option<Timestamp>) {
        match kept_until {
            None => self.due.store(true, Ordering::Release),
            Some(until) => {
                self.next.fetch_min(until.ticks(), Ordering::AcqRel);
            }
        }
    }

    /// Returns whether a sweep is due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due.load(Ordering::Acquire) || self.next.load(Ordering::Acquire) <= now.ticks()
    }

    /// Resets the schedule at the beginning of a sweep. Later calls of [`GarbageWatch::schedule`] make the
    /// next sweep due.
    pub fn begin(&self) {
        self.due.store(false, Ordering::Release);
        self.next.store(u64::MAX, Ordering::Release);
    }
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Spaces whose rows were removed.
    pub spaces: u64,
    /// Bytes of content that these rows referred to. Bytes with several references count several times.
    pub bytes: u64,
}

/// The duty to resume work that stopped in a space that a sweep has opened. If dropped before
/// [`Reopened::done`], the duty passes to the next sweep, which is due at once.
#[must_use]
pub struct Reopened<'a> {
    reopened: &'a AtomicBool,
    garbage: &'a GarbageWatch,
    is_done: bool,
}

impl Reopened<'_> {
    /// Records that the work was resumed.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Reopened<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.reopened.store(true, Ordering::Release);
            self.garbage.schedule(None);
        }
    }
}

/// Content outside of the store that rows refer to.
pub trait ContentRefs: Send + Sync {
    /// Returns the number of bytes that a row refers to.
    fn bytes(&self, partition: &[u8], row: &Row) -> u64;

    /// Reports that rows were removed that referred to this number of bytes.
    fn released(&self, bytes: u64);
}

/// For rows that do not refer to content.
impl ContentRefs for () {
    fn bytes(&self, _: &[u8], _: &Row) -> u64 {
        0
    }

    fn released(&self, _: u64) {}
}

impl<G: Generation> Generations<G> {
    /// Returns the number of transaction attempts that were repeated.
    pub fn retries(&self) -> u64 {
        self.rows.retries()
    }

    /// Returns the number of transactions that wait for others.
    pub fn waiting(&self) -> usize {
        self.rows.waiting()
    }

    /// Returns the number of spaces that are being filled before they have a name.
    pub fn incoming_spaces(&self) -> usize {
        self.incoming.len()
    }

    /// Returns whether [`Generations::sweep`] may find garbage. Always true when the server starts.
    pub fn sweep_due(&self) -> bool {
        self.garbage.is_due(self.store.now())
    }

    /// Removes deleted data and completes what a crash has interrupted. May be dropped at any point.
    pub async fn sweep(&self, pace: Pace, content: &dyn ContentRefs) -> Result<Swept, Refusal> {
        self.garbage.begin();
        let swept = self.sweep_all(pace, content).await;
        if swept.is_err() {
            self.garbage.schedule(None);
        }
        swept
    }

    /// Takes the duty to resume work if a sweep has opened a space since the last call. That happens if a
    /// restore was interrupted between the row and the header. Work that stopped when the space was closed
    /// can go on.
    pub fn take_reopened(&self) -> Option<Reopened<'_>> {
        let is_reopened = self.reopened.swap(false, Ordering::AcqRel);
        is_reopened.then(|| Reopened { reopened: &self.reopened, garbage: &self.garbage, is_done: false })
    }

    async fn sweep_all(&self, pace: Pace, content: &dyn ContentRefs) -> Result<Swept, Refusal> {
        let mut swept = Swept::default();
        let kind = keys::kind(G::KIND);
        let mut scan = SpaceScan::new(&*self.store, SpaceId::ROOT, &kind, Which::All, STEP).paced(pace);
        while let Some(rows) = scan.next().await? {
            for (key, row) in rows {
                let partition = Partition::new(SpaceId::ROOT, key);
                let span = tracing::error_span!("garbage", ?partition);
                if let Some(space) = self.find_garbage(&partition, &row).instrument(span.clone()).await? {
                    let sweep = self.sweep_space(&partition, space, pace, content);
                    swept.bytes += sweep.instrument(span).await?;
                    swept.spaces += 1;
                }
            }
        }
        Ok(swept)
    }

    /// Returns the space that a row names, if the space is garbage. Otherwise makes the space's header follow
    /// the row.
    async fn find_garbage(&self, partition: &Partition, row: &Row) -> Result<Option<SpaceId>, Refusal> {
        if let Some(space) = keys::garbage_space(&row.key) {
            if !self.is_garbage(partition, space, &row.key).await? {
                return Ok(None);
            }
            self.reconcile_header(partition, space, &row.key, ReconcileReason::Repair).await?;
            return Ok(Some(space));
        }
        let generation = match keys::deleted_at(&row.key) {
            Some(_) => G::decode(&row.value)?,
            None => match self.find_current(partition, row).await? {
                Some(current) => current,
                None => return Ok(None),
            },
        };
        let kept_until = keys::deleted_at(&row.key).and(generation.kept_until());
        let is_over = kept_until.is_some_and(|until| until <= self.store.now());
        if is_over {
            return self.make_garbage(partition, &row.key).await;
        }
        match self.ownership(partition).await? {
            Ownership::Owned => {}
            Ownership::KeptUntil(until) => self.garbage.schedule(Some(until)),
            Ownership::Orphaned => return self.make_garbage(partition, &row.key).await,
        }
        self.reconcile_header(partition, generation.space(), &row.key, ReconcileReason::Repair).await?;
        if kept_until.is_some() {
            self.garbage.schedule(kept_until);
        }
        Ok(None)
    }

    /// Returns whether a space with a garbage row is garbage. A space that is being filled may get a name at
    /// any moment, so it is skipped. Then the row is read again, because the space may just have got its
    /// name.
    async fn is_garbage(&self, partition: &Partition, space: SpaceId, key: &Bytes) -> Result<bool, Refusal> {
        if self.incoming.contains(space) {
            return Ok(false);
        }
        let set = self.store.read(partition, &Reads::key(key.clone())).await.map_err(read_refusal)?;
        Ok(set.rows.first().is_some_and(Option::is_some))
    }

    /// Returns the generation that a row names as current. If the row records a rename, resolves the rename
    /// and schedules another sweep for its result.
    async fn find_current(&self, partition: &Partition, row: &Row) -> Result<Option<G>, Refusal> {
        if let Some(id) = intent_of(&row.key) {
            self.resolve_at_home(partition, id).await?;
        } else if row.key == keys::CURRENT {
            match Slot::of(Some(row))? {
                Slot::Free => return Ok(None),
                Slot::Held(current) => return Ok(Some(current)),
                Slot::Renaming(renaming) => self.resolve(&renaming).await?,
            }
        } else {
            // The mark of a rename, which the current row records as well; a guard, which is removed with the
            // current row; or a snapshot, which is removed with its space.
            return Ok(None);
        }
        self.garbage.schedule(None);
        Ok(None)
    }

    /// Returns whether the account of a partition exists or can be restored. A new account of the same name
    /// has another generation, so the partition is out of its reach.
    async fn ownership(&self, partition: &Partition) -> Result<Ownership, Refusal> {
        match keys::owner(G::KIND, &partition.key) {
            Some((account, generation)) => Ok(self.accounts.ownership(account, generation).await?),
            None => Ok(Ownership::Owned),
        }
    }

    /// Turns the generation that a row names into garbage, unless it was deleted or restored meanwhile.
    async fn make_garbage(&self, partition: &Partition, key: &Bytes) -> Result<Option<SpaceId>, Refusal> {
        let moved = self.transact_current(partition, Reads::key(key.clone()), |current, view| {
            let named = match view.row(key) {
                Some(row) if row.key != keys::CURRENT => Some(G::decode(&row.value)?),
                _ => current.filter(|_| *key == keys::CURRENT),
            };
            let Some(space) = named.map(|named| named.space()) else { return Ok(Decision::Answer(None)) };
            let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
            let mut mutations = vec![Mutation::Delete(key.clone()), garbage];
            if *key == keys::CURRENT {
                mutations.push(Mutation::Delete(keys::GUARD));
            }
            Ok(Decision::Write(Change::of(mutations), Some(space)))
        });
        let Some(space) = moved.await? else { return Ok(None) };
        self.reconcile_header(partition, space, &keys::garbage(space), ReconcileReason::Moved).await?;
        Ok(Some(space))
    }

    /// Removes the rows of a space, then its snapshot rows and its garbage row. Returns the bytes that the
    /// rows referred to.
    async fn sweep_space(
        &self,
        partition: &Partition,
        space: SpaceId,
        pace: Pace,
        content: &dyn ContentRefs,
    ) -> Result<u64, Refusal> {
        let start = || (Bytes::new(), Bytes::new());
        let (mut bytes, mut from) = (0, start());
        loop {
            let page = self.store.scan_space(space, from.clone(), None, Which::All, STEP).await;
            let rows = page.map_err(read_refusal)?.rows;
            let dropped: u64 = rows.iter().map(|(partition, row)| content.bytes(partition, row)).sum();
            let swept = self.store.sweep_space(space, from.clone(), rows.len().max(1)).await;
            content.released(dropped);
            bytes += dropped;
            from = match swept.map_err(|error| commit_refusal(space, error))? {
                Some(next) => next,
                None if from == start() => break,
                // No row can have been added to a closed space. Scan again to verify that.
                None => start(),
            };
            pace.rest().await;
        }
        let key = keys::garbage(space);
        let reads = Reads::key(key.clone()).and_range(keys::snapshots(space), SNAPSHOTS_STEP);
        loop {
            let forgotten = self.rows.transact(partition, reads.clone(), |view| {
                let snapshots = view.ranges().iter().flat_map(|snapshots| &snapshots.rows);
                let mut removed: Vec<_> = snapshots.map(|row| row.key.clone()).collect();
                let is_last = !view.ranges().iter().any(|snapshots| snapshots.more);
                if is_last {
                    removed.push(key.clone());
                }
                let removed: Vec<_> = removed.into_iter().map(Mutation::Delete).collect();
                Ok(Decision::Write(Change::of(removed), is_last))
            });
            if forgotten.await? {
                return Ok(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_a_reopened_space_that_is_not_resumed_passes_to_the_next_sweep() {
        let (reopened, garbage) = (AtomicBool::new(false), GarbageWatch::default());
        garbage.begin();
        let taken = || Reopened { reopened: &reopened, garbage: &garbage, is_done: false };
        let state = || (reopened.load(Ordering::Acquire), garbage.is_due(Timestamp::default()));
        taken().done();
        assert_eq!(state(), (false, false));
        drop(taken());
        assert_eq!(state(), (true, true));
    }
}
