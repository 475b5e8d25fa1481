//! How many bytes the files of a share amount to, for its quota and its statistics; and that quota, for those who write without
//! reading the share's row.
//!
//! Each directory counts the lengths of its files in a row, in the commit that changes them. The sum is kept in memory: it is
//! made when it is first needed, and anew when the outcome of a commit is not known. Whoever changes a length reserves the
//! difference first, so requests at once cannot exceed the quota together; while the sum is made, they wait. A client that
//! disconnects gives up its reservation while its commit may still be queued, so the store decides that commit first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_generations::{not_settled, unreadable};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, Reads, SpaceId, Which, prefix_range};
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::record::Share;
use crate::{FileService, keys};

/// Directories that are read at once.
const CHUNK: usize = 1024;

/// The sums of shares that were asked for. A space is never used again, so one of a share that is gone is merely forgotten.
#[derive(Debug, Default)]
pub(crate) struct Usages(Mutex<HashMap<SpaceId, Arc<Usage>>>);

impl Usages {
    fn of(&self, space: SpaceId) -> Arc<Usage> {
        self.0.lock().entry(space).or_default().clone()
    }

    /// Leave to free bytes in a share, whether or not their sum is known: waits only until none is being made.
    pub(crate) async fn still(&self, space: SpaceId) -> Reservation {
        let usage = self.of(space);
        let change = usage.changes.clone().read_owned().await;
        Reservation { usage, asked: None, _change: change }
    }

    /// Leave to change lengths in a share, if nobody has to be waited for.
    pub(crate) fn try_reserve(&self, space: SpaceId) -> Option<Reservation> {
        let usage = self.of(space);
        let change = usage.changes.clone().try_read_owned().ok()?;
        let is_known = usage.is_known.load(Ordering::Acquire);
        is_known.then(|| Reservation { usage, asked: None, _change: change })
    }

    /// Sets bytes of the quota aside for what was written and is not committed, or gives them back.
    pub(crate) fn promise(&self, space: SpaceId, more: i64) -> Promise {
        let usage = self.of(space);
        let mut sums = usage.sums.lock();
        if more > 0 {
            if !usage.is_known.load(Ordering::Acquire) {
                return Promise::Unknown;
            }
            if !sums.fits(more, sums.quota.map_or(u64::MAX, |(_, quota)| quota)) {
                return Promise::Full;
            }
        }
        sums.promised += more;
        Promise::Kept
    }

    /// Sets aside what had been before, or gives back what is not needed, whatever the quota is by now.
    pub(crate) fn promise_again(&self, space: SpaceId, more: i64) -> Promise {
        self.of(space).sums.lock().promised += more;
        Promise::Kept
    }

    /// What a share's row says of its quota, unless a newer one is known. Whoever opens a file of it says so, and whoever has
    /// changed it.
    pub(crate) fn limit(&self, share: &Share) {
        let (stamp, quota) = (share.etag.stamp(), share.quota_bytes());
        let usage = self.of(share.space);
        let mut sums = usage.sums.lock();
        if sums.quota.is_none_or(|(known, _)| known < stamp) {
            sums.quota = Some((stamp, quota));
        }
    }

    /// The shares that something is known of.
    pub(crate) fn spaces(&self) -> HashSet<SpaceId> {
        self.0.lock().keys().copied().collect()
    }

    /// The share is deleted.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.0.lock().remove(&space);
    }
}

#[derive(Debug, Default)]
struct Usage {
    sums: Mutex<Sums>,
    is_known: AtomicBool,
    /// Shared by those who change lengths, held alone by whoever makes the sum.
    changes: Arc<RwLock<()>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// What is stored, and what was asked for.
    bytes: i64,
    /// What was promised to writes that are not committed.
    promised: i64,
    /// The quota, and the stamp of the share's row that says so. None: nobody has read it yet.
    quota: Option<(Stamp, u64)>,
}

impl Sums {
    fn fits(self, more: i64, quota: u64) -> bool {
        let sum = self.bytes.saturating_add(self.promised).saturating_add(more);
        sum <= i64::try_from(quota).unwrap_or(i64::MAX)
    }
}

/// What came of asking for bytes of the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// They are set aside.
    Kept,
    /// There are not so many.
    Full,
    /// Nobody knows: the sum has to be made first.
    Unknown,
}

/// Leave to change the length of what is in a share. If it is dropped after it was [asked](Reservation::ask) and before it
/// is [kept](Reservation::keep), nobody knows whether the change took place, and the sum is made anew.
pub(crate) struct Reservation {
    usage: Arc<Usage>,
    asked: Option<i64>,
    _change: OwnedRwLockReadGuard<()>,
}

impl Reservation {
    /// Asks to grow by so many bytes, or to shrink, instead of what was asked before.
    pub(crate) fn ask(&mut self, grown: i64, quota: u64) -> Result<(), Refusal> {
        let mut sums = self.usage.sums.lock();
        sums.bytes -= self.asked.take().map_or(0, |asked| asked.max(0));
        if grown > 0 {
            if !sums.fits(grown, quota) {
                return Err(ErrorCode::ShareSizeLimitReached.into());
            }
            sums.bytes += grown;
        }
        drop(sums);
        self.asked = Some(grown);
        Ok(())
    }

    /// Takes up what was promised, as if it had been asked for.
    pub(crate) fn redeem(&mut self, promised: u64) {
        let promised = promised as i64;
        let mut sums = self.usage.sums.lock();
        sums.promised -= promised;
        sums.bytes += promised - self.asked.take().map_or(0, |asked| asked.max(0));
        drop(sums);
        self.asked = Some(promised);
    }

    /// The change was not made.
    pub(crate) fn cancel(mut self) {
        let asked = self.asked.take().unwrap_or_default();
        self.usage.sums.lock().bytes -= asked.max(0);
    }

    /// The change is committed. What it frees can be used from now on.
    pub(crate) fn keep(mut self) {
        let asked = self.asked.take().unwrap_or_default();
        self.usage.sums.lock().bytes += asked.min(0);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.asked.is_some() {
            self.usage.is_known.store(false, Ordering::Release);
        }
    }
}

impl FileService {
    /// The bytes that the files of a share amount to.
    pub(crate) async fn usage(&self, space: SpaceId) -> Result<u64, Refusal> {
        let reservation = self.reserve(space).await?;
        let sums = *reservation.usage.sums.lock();
        Ok(sums.bytes.saturating_add(sums.promised).max(0).unsigned_abs())
    }

    /// Leave to change lengths in a share.
    pub(crate) async fn reserve(&self, space: SpaceId) -> Result<Reservation, Refusal> {
        loop {
            let usage = self.usages.of(space);
            let change = usage.changes.clone().read_owned().await;
            if usage.is_known.load(Ordering::Acquire) {
                return Ok(Reservation { usage, asked: None, _change: change });
            }
            drop(change);
            let _alone = usage.changes.write().await;
            if !usage.is_known.load(Ordering::Acquire) {
                // A request that was dropped has given up its reservation, and its commit may still be queued.
                self.store.settled().await.map_err(not_settled)?;
                let sum = self.sum(space).await?;
                usage.sums.lock().bytes = sum;
                usage.is_known.store(true, Ordering::Release);
            }
        }
    }

    /// The sum of what the directories of a share count.
    async fn sum(&self, space: SpaceId) -> Result<i64, Refusal> {
        let all = prefix_range(&[keys::DIRECTORIES]);
        let end = (all.end, Bytes::new());
        let mut from = (all.start, Bytes::new());
        let mut sum = 0i64;
        loop {
            let page = self.store.scan_space(space, from, Some(end.clone()), Which::First, CHUNK);
            let page = page.await.map_err(unreadable)?;
            for (directory, _) in page.rows {
                let directory = Partition::new(space, directory);
                let set = self.store.read(&directory, &Reads::key(keys::USAGE)).await.map_err(unreadable)?;
                let row = set.rows.into_iter().next().flatten();
                sum = sum.saturating_add(row.map_or(0, |row| count(&row.value)));
            }
            let Some(next) = page.next else { return Ok(sum) };
            from = next;
        }
    }
}

/// What a counter stands at.
fn count(value: &[u8]) -> i64 {
    value.try_into().map_or(0, i64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reservation(usage: &Arc<Usage>) -> Reservation {
        let change = usage.changes.clone().read_owned().await;
        Reservation { usage: usage.clone(), asked: None, _change: change }
    }

    #[tokio::test]
    async fn what_is_reserved_counts_at_once_and_what_is_freed_once_it_is_committed() {
        let usage = Arc::new(Usage { is_known: true.into(), ..Usage::default() });
        let bytes = || usage.sums.lock().bytes;
        let mut first = reservation(&usage).await;
        first.ask(60, 100).unwrap();
        let mut second = reservation(&usage).await;
        let refused = second.ask(41, 100).map_err(|refusal| refusal.code());
        assert_eq!(refused, Err(ErrorCode::ShareSizeLimitReached));
        second.ask(40, 100).unwrap();
        // The rule ran again, and asks for something else.
        second.ask(10, 100).unwrap();
        assert_eq!(bytes(), 70);
        second.keep();
        first.keep();
        let mut third = reservation(&usage).await;
        third.ask(-60, 0).unwrap();
        assert_eq!(bytes(), 70);
        third.keep();
        assert_eq!((bytes(), usage.is_known.load(Ordering::Acquire)), (10, true));
        let mut fourth = reservation(&usage).await;
        fourth.ask(1, 100).unwrap();
        drop(fourth);
        assert!(!usage.is_known.load(Ordering::Acquire));
    }
}
