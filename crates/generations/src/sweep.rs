//! Garbage: spaces that no current row names any more.
//!
//! Deleting only moves a row. The rest is done here, in small steps and in the background: what was kept and whose time is
//! over becomes garbage, and so does everything of an account that was removed; the rows of garbage are removed, and when
//! none is left, the row that remembered it. Every step can be repeated, so it does not matter where the server was
//! stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_extents::Pace;
use lazuli_protocol::Refusal;
use lazuli_store::intent::intent_of;
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row, SpaceId, Which, prefix_range};

use crate::slot::Slot;
use crate::{Generation, Generations, Settle, keys, not_settled, unreadable};

/// Rows that are looked at, or removed, between two pauses.
const STEP: usize = 256;

/// Whether it is worth looking for garbage. Cheap to ask.
#[derive(Debug)]
pub struct GarbageWatch {
    /// Something was deleted since the last look, or nobody has looked yet.
    due: AtomicBool,
    /// When the next deleted generation cannot be restored any more.
    next: AtomicU64,
}

impl Default for GarbageWatch {
    fn default() -> Self {
        Self { due: AtomicBool::new(true), next: AtomicU64::new(u64::MAX) }
    }
}

impl GarbageWatch {
    /// Something was deleted: for good, or to be kept until then.
    pub fn arises(&self, kept_until: Option<Timestamp>) {
        match kept_until {
            None => self.due.store(true, Ordering::Release),
            Some(until) => {
                self.next.fetch_min(until.ticks(), Ordering::AcqRel);
            }
        }
    }

    /// Whether it is.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due.load(Ordering::Acquire) || self.next.load(Ordering::Acquire) <= now.ticks()
    }

    /// Somebody begins to look. What arises from now on counts anew.
    pub fn begin(&self) {
        self.due.store(false, Ordering::Release);
        self.next.store(u64::MAX, Ordering::Release);
    }
}

/// What a sweep achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Spaces whose rows are gone.
    pub spaces: u64,
    /// Bytes that these rows referred to. What refers to bytes more than once counts more than once.
    pub bytes: u64,
}

/// A sweep has opened a space, and somebody sees to what had stopped there. Dropped before that is [done](Reopened::done), it
/// is for whoever sweeps next, which is due then.
#[must_use]
pub struct Reopened<'a> {
    reopened: &'a AtomicBool,
    garbage: &'a GarbageWatch,
    is_done: bool,
}

impl Reopened<'_> {
    /// It goes on.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Reopened<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.reopened.store(true, Ordering::Release);
            self.garbage.arises(None);
        }
    }
}

/// Knows what rows refer to, outside of the store.
pub trait Referred: Send + Sync {
    /// The bytes that a row refers to.
    fn bytes(&self, partition: &[u8], row: &Row) -> u64;

    /// Rows are gone that referred to so many bytes.
    fn released(&self, bytes: u64);
}

/// Rows that refer to nothing.
impl Referred for () {
    fn bytes(&self, _: &[u8], _: &Row) -> u64 {
        0
    }

    fn released(&self, _: u64) {}
}

impl<G: Generation> Generations<G> {
    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.gate.retries()
    }

    /// Whether [`Generations::sweep`] may find something to do. It does when the server starts.
    pub fn sweep_due(&self) -> bool {
        self.garbage.is_due(self.store.now())
    }

    /// Removes what was deleted, and puts right what a crash has left half done. May be dropped at any point.
    pub async fn sweep(&self, pace: Pace, referred: &dyn Referred) -> Result<Swept, Refusal> {
        self.garbage.begin();
        let swept = self.sweep_all(pace, referred).await;
        if swept.is_err() {
            self.garbage.arises(None);
        }
        swept
    }

    /// Whether a sweep has opened a space, since somebody last saw to that: the row that was restored was ahead of its header.
    /// What had stopped when the space was closed can go on.
    pub fn take_reopened(&self) -> Option<Reopened<'_>> {
        let is_reopened = self.reopened.swap(false, Ordering::AcqRel);
        is_reopened.then(|| Reopened { reopened: &self.reopened, garbage: &self.garbage, is_done: false })
    }

    async fn sweep_all(&self, pace: Pace, referred: &dyn Referred) -> Result<Swept, Refusal> {
        let mut swept = Swept::default();
        let all = prefix_range(&keys::kind(G::KIND));
        let mut from = (all.start, Bytes::new());
        loop {
            let page = self.store.scan_space(
                SpaceId::ROOT,
                from,
                Some((all.end.clone(), Bytes::new())),
                Which::All,
                STEP,
            );
            let page = page.await.map_err(unreadable)?;
            for (key, row) in page.rows {
                let partition = Partition::new(SpaceId::ROOT, key);
                if let Some(space) = self.find_garbage(&partition, &row).await? {
                    swept.bytes += self.sweep_space(&partition, space, pace, referred).await?;
                    swept.spaces += 1;
                }
            }
            let Some(next) = page.next else { return Ok(swept) };
            from = next;
            pace.rest().await;
        }
    }

    /// The garbage that a row names, if it does or has come to. Else its space is made to follow it.
    async fn find_garbage(&self, partition: &Partition, row: &Row) -> Result<Option<SpaceId>, Refusal> {
        if let Some(space) = keys::garbage_space(&row.key) {
            if !self.is_garbage(partition, space, &row.key).await? {
                return Ok(None);
            }
            self.settle(partition, space, &row.key, Settle::Repair).await?;
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
        if is_over || self.is_orphan(partition).await? {
            return self.abandon(partition, &row.key).await;
        }
        self.settle(partition, generation.space(), &row.key, Settle::Repair).await?;
        if kept_until.is_some() {
            self.garbage.arises(kept_until);
        }
        Ok(None)
    }

    /// Whether a space that a row called garbage is. One that is being filled may come by a name at any moment: while it is
    /// filled it is left alone, and afterwards its row says which it is.
    async fn is_garbage(&self, partition: &Partition, space: SpaceId, key: &Bytes) -> Result<bool, Refusal> {
        if self.incoming.contains(space) {
            return Ok(false);
        }
        let set = self.store.read(partition, &Reads::key(key.clone())).await.map_err(unreadable)?;
        Ok(set.rows.first().is_some_and(Option::is_some))
    }

    /// What a row names as current. A rename that it speaks of is ended instead, and what comes of it is looked at another
    /// time.
    async fn find_current(&self, partition: &Partition, row: &Row) -> Result<Option<G>, Refusal> {
        if let Some(id) = intent_of(&row.key) {
            self.end_in(partition, id).await?;
        } else if row.key == keys::CURRENT {
            match Slot::of(Some(row))? {
                Slot::Free => return Ok(None),
                Slot::Held(current) => return Ok(Some(current)),
                Slot::Renaming(renaming) => self.end(&renaming).await?,
            }
        } else {
            // The mark of a rename, which the current row speaks of, too; a guard, which goes with the current row; or a
            // snapshot, which goes with its space.
            return Ok(None);
        }
        self.garbage.arises(None);
        Ok(None)
    }

    /// Whether the account of a partition is gone. Nobody can reach it any more: another account of that name is of
    /// another generation.
    async fn is_orphan(&self, partition: &Partition) -> Result<bool, Refusal> {
        let Some((account, generation)) = keys::owner(G::KIND, &partition.key) else { return Ok(false) };
        let account = self.accounts.get(account).await?;
        Ok(account.is_none_or(|account| account.generation != generation))
    }

    /// Makes garbage of what a row names, unless it was deleted or restored meanwhile.
    async fn abandon(&self, partition: &Partition, key: &Bytes) -> Result<Option<SpaceId>, Refusal> {
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
        self.settle(partition, space, &keys::garbage(space), Settle::Moved).await?;
        Ok(Some(space))
    }

    /// Removes the rows of a space and then the row that names it as garbage, and those of its snapshots.
    async fn sweep_space(
        &self,
        partition: &Partition,
        space: SpaceId,
        pace: Pace,
        referred: &dyn Referred,
    ) -> Result<u64, Refusal> {
        let start = || (Bytes::new(), Bytes::new());
        let (mut bytes, mut from) = (0, start());
        loop {
            let page = self.store.scan_space(space, from.clone(), None, Which::All, STEP).await;
            let rows = page.map_err(unreadable)?.rows;
            let dropped: u64 = rows.iter().map(|(partition, row)| referred.bytes(partition, row)).sum();
            let swept = self.store.sweep_space(space, from.clone(), rows.len().max(1)).await;
            referred.released(dropped);
            bytes += dropped;
            from = match swept.map_err(not_settled)? {
                Some(next) => next,
                None if from == start() => break,
                // Nothing can have come meanwhile; that is found out before the space is forgotten.
                None => start(),
            };
            pace.rest().await;
        }
        let key = keys::garbage(space);
        let forgotten = self.transact(partition, Reads::key(key.clone()), |_| {
            let snapshots = Mutation::DeleteRange(keys::snapshots(space));
            Ok(Decision::Write(Change::of([Mutation::Delete(key.clone()), snapshots]), ()))
        });
        forgotten.await?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_and_not_seen_to_is_for_the_next_sweep() {
        let (reopened, garbage) = (AtomicBool::new(false), GarbageWatch::default());
        garbage.begin();
        let taken = || Reopened { reopened: &reopened, garbage: &garbage, is_done: false };
        let is_left = || (reopened.load(Ordering::Acquire), garbage.is_due(Timestamp::default()));
        taken().done();
        assert_eq!(is_left(), (false, false));
        drop(taken());
        assert_eq!(is_left(), (true, true));
    }
}
