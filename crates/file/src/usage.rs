//! Permission to change the lengths of files within the quota of a share.
//!
//! Each directory counts the lengths of its files in a row, in the commit that changes them. No commit spans two
//! directories, so what the share may still grow is handed out in slices. They are rows, so they hold for dropped
//! requests, after a crash, and for several front ends:
//!
//! - The *balance* row says how many bytes were counted. Beside it each front end has a *slice* row: the most that its
//!   commits can have added to the balance. The balance and all slices together never exceed the quota.
//! - A front end admits growth in memory while it fits into its slice. Else it renews the slice: one commit posts what it
//!   has added or freed to the balance and asks for a new slice.
//! - A commit that changes lengths is admitted for the epoch of the space in which the slice was last renewed. A
//!   *recount* marks the balance, raises the epoch if other front ends have slices, sums up the directories, and replaces
//!   the balance and all slices. While it is marked, no slice is renewed; so what takes effect before the epoch is raised is
//!   in the sum, and nothing is admitted until the sum is stored.
//!
//! `docs/decisions/0023-sweeps-and-guards.md` has the argument and the largest overshoot.

mod ledger;
mod reservation;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_generations::{carry_through, not_settled, unreadable};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, Reads, SpaceId, View, Which, prefix_range};
use parking_lot::Mutex;
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::record::Share;
use crate::tree::Spot;
use crate::{FileService, keys};
use ledger::Renewal;
use reservation::Sums;
pub(crate) use reservation::{Promise, Reservation};

/// Directories that are read at once.
const CHUNK: usize = 1024;
/// The most that a front end sets aside ahead of need. Less where little is left.
const MAX_HEADROOM: i64 = 64 << 20;
/// A front end sets aside at most this part of what is left.
const HEADROOM_PART: i64 = 16;
/// How often a slice is renewed for one request.
const MAX_RENEWALS: usize = 16;
/// How often the directories are summed up until two sums in a row find the same counters.
const MAX_PASSES: usize = 16;
/// How long another front end's recount is waited for before this one begins its own.
const RECOUNT_PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked at.
const RECOUNT_POLL: Duration = Duration::from_millis(20);
/// Of writes that do not fit because of other front ends, one in this time leads to a recount.
const RECOUNT_PAUSE: Duration = Duration::from_secs(10);

/// What this front end knows of the shares in use. A space is never used again, so that of a deleted share is forgotten.
#[derive(Debug)]
pub(crate) struct Usages {
    /// Names this front end's slices.
    instance: Stamp,
    shares: Mutex<HashMap<SpaceId, Arc<Usage>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Usage {
    sums: Mutex<Sums>,
    /// Renewals and recounts of this front end take turns. When the last recount for other front ends' slices was.
    renewals: Arc<tokio::sync::Mutex<Option<Instant>>>,
    /// Shared by reservations, held alone by a recount.
    changes: Arc<RwLock<()>>,
}

impl Usages {
    /// Of the front end with this id.
    pub(crate) fn new(instance: Stamp) -> Self {
        Self { instance, shares: Mutex::default() }
    }

    fn of(&self, space: SpaceId) -> Arc<Usage> {
        self.shares.lock().entry(space).or_default().clone()
    }

    /// Permission to move bytes between directories and to free some. Waits only while this front end counts.
    pub(crate) async fn still(&self, space: SpaceId) -> Reservation {
        Reservation::begin(self.of(space)).await
    }

    /// Permission to change lengths in a share that has reserved nothing yet, unless this front end counts.
    pub(crate) fn try_reserve(&self, space: SpaceId) -> Option<Reservation> {
        Reservation::try_begin(self.of(space))
    }

    /// Reserves that a rule changes a length by so many bytes, in the place of what it had reserved before. False: the slice has
    /// to be renewed first, and nothing is reserved.
    pub(crate) fn admit(
        &self,
        reserved: &mut Option<Reservation>,
        spot: &Spot,
        grown: i64,
        view: &View<'_>,
    ) -> bool {
        if grown == 0 {
            reserved.take().into_iter().for_each(Reservation::cancel);
            return true;
        }
        if reserved.is_none() {
            *reserved = self.try_reserve(spot.space);
        }
        let is_admitted =
            reserved.as_mut().is_some_and(|reserved| reserved.ask(grown, spot.limit(), epoch(view)));
        if !is_admitted {
            reserved.take().into_iter().for_each(Reservation::cancel);
        }
        is_admitted
    }

    /// Sets bytes of the quota aside for what was written and is not committed, or releases them.
    pub(crate) fn promise(&self, space: SpaceId, more: i64) -> Promise {
        let usage = self.of(space);
        let mut sums = usage.sums.lock();
        if more > 0 && !sums.fits(more, sums.quota()) {
            return Promise::Renew(more);
        }
        sums.promised += more;
        Promise::Kept
    }

    /// Sets aside what had been before, or releases what is not needed, whatever the quota is by now.
    pub(crate) fn promise_again(&self, space: SpaceId, more: i64) -> Promise {
        self.of(space).sums.lock().promised += more;
        Promise::Kept
    }

    /// Notes the quota that a share's row says, unless a newer one is known. To be called by every open of a file, and after
    /// a change.
    pub(crate) fn limit(&self, share: &Share) {
        self.of(share.space).sums.lock().limit(share.etag.stamp(), share.quota_bytes());
    }

    /// The shares that something is known of.
    pub(crate) fn spaces(&self) -> HashSet<SpaceId> {
        self.shares.lock().keys().copied().collect()
    }

    /// The share is deleted.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.shares.lock().remove(&space);
    }
}

/// The epoch of the space that a rule sees.
pub(crate) fn epoch(view: &View<'_>) -> Option<u64> {
    view.space().map(|space| space.epoch)
}

impl FileService {
    /// Takes a slice into which so many bytes fit that are about to be promised.
    pub(crate) async fn reserve_promise(&self, space: SpaceId, more: i64) -> Result<(), Refusal> {
        let quota = self.usages.of(space).sums.lock().quota();
        self.reserve(space, more, Some(quota), None).await.map(drop)
    }

    /// The bytes that the files of a share amount to. Other front ends may have changed it by up to their slices since.
    pub(crate) async fn usage(&self, space: SpaceId) -> Result<u64, Refusal> {
        let usage = self.usages.of(space);
        if usage.sums.lock().account.is_none() {
            drop(self.reserve(space, 0, None, None).await?);
        }
        if usage.sums.lock().doubt {
            let this = self.clone();
            carry_through(async move {
                let _turn = this.usages.of(space).renewals.clone().lock_owned().await;
                this.recount(space).await
            })
            .await?;
        }
        // Nothing is posted to the balance meanwhile.
        let _turn = usage.renewals.lock().await;
        let (recount, balance) = self.balance(space).await?;
        let own = usage.sums.lock().unposted(recount);
        Ok(balance.saturating_add(own).max(0).unsigned_abs())
    }

    /// Posts what was added and freed, and gives up the slices, so that the next front end need not count. To be called when
    /// the server stops.
    pub async fn release_slices(&self) {
        for space in self.usages.spaces() {
            let usage = self.usages.of(space);
            let _turn = usage.renewals.lock().await;
            let _alone = usage.changes.write().await;
            if let Err(refusal) = self.release_slice(space, &usage).await {
                tracing::debug!(%refusal, "a slice of a quota was not released");
            }
        }
    }

    /// Sets aside that files of a share grow by so many bytes, or shrink, in an epoch of its space. No quota: whatever the
    /// quota is. Do not hold a place in a line meanwhile.
    pub(crate) async fn reserve(
        &self,
        space: SpaceId,
        grown: i64,
        quota: Option<u64>,
        epoch: Option<u64>,
    ) -> Result<Reservation, Refusal> {
        let this = self.clone();
        // To its end: what a renewal has posted to the balance has to be known to be.
        carry_through(async move { this.renew(space, grown, quota, epoch).await }).await
    }

    async fn renew(
        &self,
        space: SpaceId,
        grown: i64,
        quota: Option<u64>,
        epoch: Option<u64>,
    ) -> Result<Reservation, Refusal> {
        let usage = self.usages.of(space);
        let mut last_recount = usage.renewals.clone().lock_owned().await;
        let mut admitted = epoch;
        for _ in 0..MAX_RENEWALS {
            if admitted.is_some() {
                // Another request may have renewed the slice meanwhile.
                let mut reservation = Reservation::begin(usage.clone()).await;
                if reservation.ask(grown, quota, admitted) {
                    return Ok(reservation.tentative());
                }
            }
            match self.renew_slice(space, &usage, grown.max(0), quota).await? {
                Renewal::Renewed(epoch) => admitted = Some(epoch),
                Renewal::Recount => self.recount(space).await?,
                Renewal::Full { others } => {
                    let doubt = usage.sums.lock().doubt;
                    if !doubt {
                        let is_due = last_recount.is_none_or(|last| last.elapsed() > RECOUNT_PAUSE);
                        if !others || !is_due {
                            return Err(ErrorCode::ShareSizeLimitReached.into());
                        }
                        *last_recount = Some(Instant::now());
                    }
                    self.recount(space).await?;
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Sums up the directories. The caller has the turn to renew.
    async fn recount(&self, space: SpaceId) -> Result<(), Refusal> {
        let usage = self.usages.of(space);
        let (mark, has_others) = self.mark_recount(space).await?;
        let _alone = usage.changes.write().await;
        // What becomes doubtful from now on may not be in the sum.
        usage.sums.lock().doubt = false;
        // Commits of this front end whose requests were dropped are decided here, those of others by the fence.
        self.store.settled().await.map_err(not_settled)?;
        if has_others {
            self.shares.fence(space).await?;
            // Writers keep what files were in the epoch that has ended, and no snapshot may need it.
            self.kept.arises(None);
        }
        let sum = self.settled_sum(space).await?;
        let counted = self.store_recount(space, mark, sum).await?;
        usage.sums.lock().restart(counted);
        Ok(())
    }

    /// The sum of what the directories of a share count, at one moment: two passes in a row have found the same counters. Only
    /// moves between directories change them meanwhile, and deletes of files.
    async fn settled_sum(&self, space: SpaceId) -> Result<i64, Refusal> {
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

    /// The sum of what the directories of a share count, and a digest of the versions of their counters.
    async fn sum(&self, space: SpaceId) -> Result<(i64, u64), Refusal> {
        let all = prefix_range(&[keys::DIRECTORIES]);
        let end = (all.end, Bytes::new());
        let mut from = (all.start, Bytes::new());
        let (mut sum, mut digest) = (0i64, DefaultHasher::new());
        loop {
            let page = self.store.scan_space(space, from, Some(end.clone()), Which::First, CHUNK);
            let page = page.await.map_err(unreadable)?;
            for (directory, _) in page.rows {
                let directory = Partition::new(space, directory);
                let set = self.store.read(&directory, &Reads::key(keys::USAGE)).await.map_err(unreadable)?;
                if let Some(row) = set.rows.into_iter().next().flatten() {
                    sum = sum.saturating_add(count(&row.value));
                    (&directory.key, row.token).hash(&mut digest);
                }
            }
            let Some(next) = page.next else { return Ok((sum, digest.finish())) };
            from = next;
        }
    }
}

/// What a counter stands at.
fn count(value: &[u8]) -> i64 {
    value.try_into().map_or(0, i64::from_le_bytes)
}
