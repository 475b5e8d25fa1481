//! The quota of a share: permission to change the lengths of files.
//!
//! Each directory counts the lengths of its files in a row, in the commit that changes them. No commit spans
//! two directories, so what the share may still grow is handed out in slices. Slices are rows, so they hold
//! for dropped requests, after a crash, and for several front ends:
//!
//! - The *balance* row has the bytes that were counted. In addition each front end has a *slice* row: the
//!   most that its commits can have added since. The balance and all slices together never exceed the quota.
//! - A front end admits growth in memory while it fits into its slice. Otherwise it renews the slice: one
//!   commit posts what the front end has added or freed to the balance and asks for a new slice.
//! - A commit that changes lengths is admitted for the epoch of the space in which the slice was last
//!   renewed. A *recount* marks the balance, raises the epoch if other front ends have slices, sums up the
//!   directories, and replaces the balance and all slices. No slice is renewed while the balance is marked.
//!   So everything that takes effect before the epoch is raised is in the sum, and nothing is admitted until
//!   the sum is stored.
//!
//! `docs/decisions/0023-sweeps-and-guards.md` has the argument and the largest overshoot.
//!
//! Memory holds an entry for each share in use, up to a bound: [`table`] evicts idle ones.

mod ledger;
mod reservation;
mod table;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lazuli_concurrency::{Pace, Stamp};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::{SpaceScan, commit_refusal, read_refusal, run_to_completion};
use lazuli_store::{Partition, Reads, SpaceId, View, Which};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedMutexGuard, RwLock, RwLockWriteGuard};
use tokio::time::Instant;

use crate::FileService;
use crate::lock_order::{self, HeldRank, Rank, Ranked};
use crate::tree::keys;
use crate::tree::record::Share;
use crate::tree::spot::Spot;
use crate::tree::usage::ledger::Renewal;
use crate::tree::usage::reservation::Sums;
use crate::tree::usage::table::UsageTable;

pub(crate) use reservation::QuotaReservation;

/// Number of directories read at once.
const CHUNK: usize = 1024;
/// Maximum headroom that a front end reserves. Less where little is left.
const MAX_HEADROOM: i64 = 64 << 20;
/// A front end reserves at most this part of what is left.
const HEADROOM_PART: i64 = 16;
/// Maximum number of renewals for one request.
const MAX_RENEWALS: usize = 16;
/// Maximum number of passes over the directories until two in a row find the same counters.
const MAX_PASSES: usize = 16;
/// Maximum wait for another front end's recount before starting one.
const RECOUNT_PATIENCE: Duration = Duration::from_secs(5);
/// Interval of checks whether that recount has ended.
const RECOUNT_POLL: Duration = Duration::from_millis(20);
/// A write that does not fit because of other front ends causes a recount at most this often.
const RECOUNT_PAUSE: Duration = Duration::from_secs(10);

/// Maximum number of shares whose usage is in memory, at about 300 bytes each. Entries held by requests or
/// open files are not evicted, so there can be more.
const MAX_USAGES: usize = 16_384;

/// Result of reserving quota for a buffered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaCheck {
    /// The bytes are reserved.
    Reserved,
    /// More bytes that do not fit into the slice, which has to be renewed.
    NeedsRenewal(i64),
}

/// The knowledge of this front end about the shares in use. Spaces are never reused, so the entry of a
/// deleted share is removed.
#[derive(Debug)]
pub(crate) struct Usages {
    /// The key of this front end's slices.
    instance: Stamp,
    shares: Mutex<UsageTable>,
}

/// The usage of one share. References keep it from being evicted.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Orders entries by their last use.
    used: AtomicU64,
    sums: Mutex<Sums>,
    /// Serializes renewals and recounts of this front end. Holds the time of the last recount that slices of
    /// other front ends caused.
    renewals: Arc<tokio::sync::Mutex<Option<Instant>>>,
    /// Shared by reservations, exclusive for a recount.
    changes: Arc<RwLock<()>>,
}

impl Usage {
    fn sums(&self) -> Ranked<MutexGuard<'_, Sums>> {
        Ranked::block(Rank::Usage, || self.sums.lock())
    }

    /// Waits until no other request renews the slice or recounts.
    async fn lock_renewals(&self) -> Ranked<OwnedMutexGuard<Option<Instant>>> {
        Ranked::wait(Rank::QuotaRenewal, self.renewals.clone().lock_owned()).await
    }

    /// Waits until no reservation is held, and blocks new ones.
    async fn block_changes(&self) -> Ranked<RwLockWriteGuard<'_, ()>> {
        Ranked::wait(Rank::QuotaChange, self.changes.write()).await
    }
}

impl Usages {
    fn table(&self) -> Ranked<MutexGuard<'_, UsageTable>> {
        Ranked::block(Rank::UsageTable, || self.shares.lock())
    }

    /// Makes the table of a front end.
    pub(crate) fn new(instance: Stamp) -> Self {
        Self { instance, shares: Mutex::new(UsageTable::new(MAX_USAGES)) }
    }

    /// Sets the maximum number of entries.
    pub(crate) fn set_max(&self, max: usize) {
        *self.table() = UsageTable::new(max);
    }

    fn of(&self, space: SpaceId) -> Arc<Usage> {
        self.table().entry(space)
    }

    /// Begins a change that moves bytes between directories or frees them. Waits only while this front end
    /// recounts.
    pub(crate) async fn begin_change(&self, space: SpaceId) -> QuotaReservation {
        QuotaReservation::begin(self.of(space)).await
    }

    /// Begins a change, unless this front end recounts.
    pub(crate) fn try_reserve(&self, space: SpaceId) -> Option<QuotaReservation> {
        QuotaReservation::try_begin(self.of(space))
    }

    /// Reserves the growth of an attempt, instead of what earlier attempts have reserved. `false`: nothing is
    /// reserved, because the slice has to be renewed first.
    pub(crate) fn admit(
        &self,
        reserved: &mut Option<QuotaReservation>,
        spot: &Spot,
        grown: i64,
        view: &View<'_>,
    ) -> bool {
        if grown == 0 {
            reserved.take().into_iter().for_each(QuotaReservation::cancel);
            return true;
        }
        if reserved.is_none() {
            *reserved = self.try_reserve(spot.space);
        }
        let is_admitted =
            reserved.as_mut().is_some_and(|reserved| reserved.reserve(grown, spot.limit(), epoch(view)));
        if !is_admitted {
            reserved.take().into_iter().for_each(QuotaReservation::cancel);
        }
        is_admitted
    }

    /// Reserves quota for buffered writes, or releases it.
    pub(crate) fn reserve_buffered(&self, space: SpaceId, more: i64) -> QuotaCheck {
        let usage = self.of(space);
        let mut sums = usage.sums();
        if more > 0 && !sums.fits(more, sums.quota()) {
            return QuotaCheck::NeedsRenewal(more);
        }
        sums.buffered += more;
        QuotaCheck::Reserved
    }

    /// Changes the reserved quota regardless of the present quota: reserves again what was reserved before,
    /// or releases it.
    pub(crate) fn adjust_buffered(&self, space: SpaceId, more: i64) -> QuotaCheck {
        self.of(space).sums().buffered += more;
        QuotaCheck::Reserved
    }

    /// Keeps a share from being evicted while the result is held. An open file holds it, because its writes
    /// are checked against the last known quota.
    pub(crate) fn hold(&self, space: SpaceId) -> Arc<Usage> {
        self.of(space)
    }

    /// Notes the quota in a share's row, unless a newer one is known. Call it on every open, and after a
    /// change.
    pub(crate) fn note_quota(&self, share: &Share) {
        self.of(share.space).sums().note_quota(share.etag.stamp(), share.quota_bytes());
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table().len()
    }

    /// Returns the shares with entries.
    pub(crate) fn spaces(&self) -> HashSet<SpaceId> {
        self.table().spaces().collect()
    }

    /// Removes the entry of a deleted share.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.table().remove(space);
    }
}

/// Returns the epoch of the space that a rule sees.
pub(crate) fn epoch(view: &View<'_>) -> Option<u64> {
    view.space().map(|space| space.epoch)
}

impl FileService {
    /// Renews the slice so that this many more buffered bytes fit.
    pub(crate) async fn reserve_for_buffer(&self, space: SpaceId, more: i64) -> Result<(), Refusal> {
        let quota = self.usages.of(space).sums().quota();
        self.reserve(space, more, Some(quota), None).await.map(drop)
    }

    /// Returns the bytes in the files of a share. Other front ends may have changed it since, by up to their
    /// slices.
    pub(crate) async fn usage(&self, space: SpaceId) -> Result<u64, Refusal> {
        let usage = self.usages.of(space);
        if usage.sums().account.is_none() {
            drop(self.reserve(space, 0, None, None).await?);
        }
        if usage.sums().doubt {
            let (this, usage) = (self.clone(), usage.clone());
            run_to_completion(async move {
                let _renewals = usage.lock_renewals().await;
                this.recount(space, &usage).await
            })
            .await?;
        }
        // No bytes are posted to the balance meanwhile.
        let _renewals = usage.lock_renewals().await;
        let (recount, balance) = self.balance(space).await?;
        let own = usage.sums().unposted(recount);
        Ok(balance.saturating_add(own).max(0).unsigned_abs())
    }

    /// Sets the maximum number of shares in memory. Call it before the first use.
    #[must_use]
    pub fn with_max_usages(self, max: usize) -> Self {
        self.usages.set_max(max);
        self
    }

    /// Returns the number of shares whose usage is in memory.
    pub fn share_usages(&self) -> usize {
        self.usages.len()
    }

    /// Returns whether [`FileService::release_idle_slices`] has work to do.
    pub fn has_idle_slices(&self) -> bool {
        self.usages.table().is_filling()
    }

    /// Evicts idle shares, those without a slice first, and releases the slices of the others before. Their
    /// next use then needs no recount. May be dropped at any point.
    pub async fn release_idle_slices(&self, pace: Pace) {
        let oldest = self.usages.table().oldest_idle();
        for space in oldest {
            let this = self.clone();
            // Run to completion: the entry has to learn what was posted to the balance.
            let released = run_to_completion(async move {
                let Some(usage) = this.usages.table().get(space) else { return Ok(()) };
                let (Ok(_renewals), Ok(_blocked)) = (usage.renewals.try_lock(), usage.changes.try_write())
                else {
                    return Ok(());
                };
                let _held = (HeldRank::taken(Rank::QuotaRenewal), HeldRank::taken(Rank::QuotaChange));
                this.release_slice(space, &usage).await
            });
            match released.await {
                Ok(()) => self.usages.table().evict(space),
                Err(refusal) => tracing::debug!(%refusal, "a slice of a quota was not released"),
            }
            pace.rest().await;
        }
    }

    /// Posts all changes and releases all slices, so that the next front end needs no recount. Call it before
    /// the server stops.
    pub async fn release_slices(&self) {
        for space in self.usages.spaces() {
            let usage = self.usages.of(space);
            let _renewals = usage.lock_renewals().await;
            let _blocked = usage.block_changes().await;
            if let Err(refusal) = self.release_slice(space, &usage).await {
                tracing::debug!(%refusal, "a slice of a quota was not released");
            }
        }
    }

    /// Reserves the growth of files in an epoch of the space, which can be negative. `quota`: `None` ignores
    /// the quota. Do not hold a place in the queue of a partition meanwhile.
    pub(crate) async fn reserve(
        &self,
        space: SpaceId,
        grown: i64,
        quota: Option<u64>,
        epoch: Option<u64>,
    ) -> Result<QuotaReservation, Refusal> {
        let this = self.clone();
        // Run to completion: the entry has to learn what was posted to the balance.
        let renewal = async move { this.renew(space, grown, quota, epoch).await };
        let mut reservation = run_to_completion(lock_order::operation(renewal)).await?;
        reservation.adopt();
        Ok(reservation)
    }

    async fn renew(
        &self,
        space: SpaceId,
        grown: i64,
        quota: Option<u64>,
        epoch: Option<u64>,
    ) -> Result<QuotaReservation, Refusal> {
        let usage = self.usages.of(space);
        let mut last_recount = usage.lock_renewals().await;
        let mut admitted = epoch;
        for _ in 0..MAX_RENEWALS {
            if admitted.is_some() {
                // Another request may have renewed the slice meanwhile.
                let mut reservation = QuotaReservation::begin(usage.clone()).await;
                if reservation.reserve(grown, quota, admitted) {
                    return Ok(reservation.tentative());
                }
            }
            match self.renew_slice(space, &usage, grown.max(0), quota).await? {
                Renewal::Renewed(epoch) => admitted = Some(epoch),
                Renewal::Recount => self.recount(space, &usage).await?,
                Renewal::Full { others } => {
                    let doubt = usage.sums().doubt;
                    if !doubt {
                        let is_due = last_recount.is_none_or(|last| last.elapsed() > RECOUNT_PAUSE);
                        if !others || !is_due {
                            return Err(ErrorCode::ShareSizeLimitReached.into());
                        }
                        *last_recount = Some(Instant::now());
                    }
                    self.recount(space, &usage).await?;
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Sums up the directories. Only for the holder of the renewal lock.
    async fn recount(&self, space: SpaceId, usage: &Usage) -> Result<(), Refusal> {
        let (mark, has_others) = self.mark_recount(space).await?;
        let _blocked = usage.block_changes().await;
        // Later doubts concern commits that may not be in the sum.
        usage.sums().doubt = false;
        // Decides commits of dropped requests: of this front end here, of others by the fence.
        self.store.wait_for_commits().await.map_err(|error| commit_refusal(space, error))?;
        if has_others {
            self.shares.fence(space).await?;
            // Writers have kept rows of the epoch that ended, which perhaps no snapshot needs.
            self.snapshot_garbage.schedule(None);
        }
        let sum = self.stable_sum(space).await?;
        let counted = self.store_recount(space, mark, sum).await?;
        usage.sums().restart(counted);
        Ok(())
    }

    /// Returns the sum of the counters of all directories at one moment: two passes in a row have found the
    /// same counters. Meanwhile only moves between directories and deletions change counters.
    async fn stable_sum(&self, space: SpaceId) -> Result<i64, Refusal> {
        let mut last = None;
        for _ in 0..MAX_PASSES {
            let pass = self.sum(space).await?;
            if last == Some(pass) {
                return Ok(pass.0);
            }
            last = Some(pass);
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns the sum of the counters of all directories, and a digest of their versions.
    async fn sum(&self, space: SpaceId) -> Result<(i64, u64), Refusal> {
        let (mut sum, mut digest) = (0i64, DefaultHasher::new());
        let mut scan = SpaceScan::new(&*self.store, space, &[keys::DIRECTORIES], Which::First, CHUNK);
        while let Some(rows) = scan.next().await? {
            for (directory, _) in rows {
                let directory = Partition::new(space, directory);
                let set =
                    self.store.read(&directory, &Reads::key(keys::USAGE)).await.map_err(read_refusal)?;
                if let Some(row) = set.rows.into_iter().next().flatten() {
                    sum = sum.saturating_add(row.count());
                    (&directory.key, row.token).hash(&mut digest);
                }
            }
        }
        Ok((sum, digest.finish()))
    }
}
