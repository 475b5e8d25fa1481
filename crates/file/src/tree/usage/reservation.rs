//! A front end's slice of a quota in memory, and the bytes that requests have reserved in it.

use std::sync::Arc;

use lazuli_concurrency::Stamp;
use tokio::sync::OwnedRwLockReadGuard;

use crate::lock_order::{Rank, Ranked};
use crate::tree::usage::Usage;

/// The part of this front end in the quota of a share.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// `None`: the rows are unknown.
    pub(super) account: Option<Account>,
    /// Bytes added by commits of this front end since the last post to the balance, minus those freed.
    pub(super) committed: i64,
    /// Bytes reserved for commits in flight or with unknown outcome.
    pub(super) in_flight: i64,
    /// Bytes reserved for buffered writes.
    pub(super) buffered: i64,
    /// The balance and the slice may still count bytes that were freed or never added.
    pub(super) doubt: bool,
    /// The quota, and the stamp of the share's row that has it. `None`: the row was not read yet.
    quota: Option<(Stamp, u64)>,
    /// Reservations of earlier rounds do not count.
    round: u64,
}

/// The rows of the quota as of the last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// The epoch for which commits are admitted. `None`: renew the slice first.
    pub(super) epoch: Option<u64>,
    /// The recount that the balance is based on.
    pub(super) recount: u64,
    /// The slice.
    pub(super) granted: i64,
    /// The balance and the slices of other front ends.
    pub(super) elsewhere: i64,
}

impl Sums {
    /// Returns the most that this front end adds to the balance.
    pub(super) fn total(&self) -> i64 {
        self.committed.saturating_add(self.in_flight).saturating_add(self.buffered)
    }

    /// Returns what this front end adds to the balance of a recount.
    pub(super) fn unposted(&self, recount: u64) -> i64 {
        let is_current = self.account.is_some_and(|account| account.recount == recount);
        if is_current { self.total() } else { self.buffered }
    }

    /// Returns whether this many more bytes fit into the slice and the quota.
    pub(super) fn fits(&self, more: i64, quota: u64) -> bool {
        let total = self.total().saturating_add(more);
        let quota = i64::try_from(quota).unwrap_or(i64::MAX);
        self.account.is_some_and(|account| {
            total <= account.granted && account.elsewhere.saturating_add(total) <= quota
        })
    }

    pub(super) fn quota(&self) -> u64 {
        self.quota.map_or(u64::MAX, |(_, quota)| quota)
    }

    pub(super) fn note_quota(&mut self, stamp: Stamp, quota: u64) {
        if self.quota.is_none_or(|(known, _)| known < stamp) {
            self.quota = Some((stamp, quota));
        }
    }

    /// Starts again after a recount: each reservation is in the sum, or its commit has failed.
    pub(super) fn restart(&mut self, account: Account) {
        self.account = Some(account);
        (self.committed, self.in_flight) = (0, 0);
        self.round += 1;
    }

    /// Notes a renewed slice and what was posted to the balance.
    pub(super) fn renewed(&mut self, account: Account, posted: i64) {
        self.committed -= posted;
        self.account = Some(account);
    }

    /// Forgets the rows.
    pub(super) fn lose(&mut self) {
        self.account = None;
        (self.committed, self.in_flight) = (0, 0);
        self.round += 1;
    }
}

/// Permission to change file lengths in a share. Dropping it between [`reserve`](QuotaReservation::reserve)
/// and [`commit`](QuotaReservation::commit) leaves the outcome unknown, so its bytes stay reserved until a
/// recount.
#[derive(Debug)]
pub(crate) struct QuotaReservation {
    usage: Arc<Usage>,
    round: u64,
    reserved: Option<i64>,
    /// No commit uses it yet.
    is_tentative: bool,
    change: Ranked<OwnedRwLockReadGuard<()>>,
}

impl QuotaReservation {
    /// Begins a reservation. Waits while this front end recounts.
    pub(super) async fn begin(usage: Arc<Usage>) -> Self {
        let change = Ranked::wait(Rank::QuotaChange, usage.changes.clone().read_owned()).await;
        Self::of(usage, change)
    }

    /// Begins a reservation, or returns `None` while this front end recounts.
    pub(super) fn try_begin(usage: Arc<Usage>) -> Option<Self> {
        let change = usage.changes.clone().try_read_owned().ok()?;
        Some(Self::of(usage, Ranked::taken(Rank::QuotaChange, change)))
    }

    fn of(usage: Arc<Usage>, change: Ranked<OwnedRwLockReadGuard<()>>) -> Self {
        let round = usage.sums().round;
        Self { usage, round, reserved: None, is_tentative: false, change }
    }

    /// Makes the current operation the holder of its lock, for [`crate::lock_order`].
    pub(super) fn adopt(&mut self) {
        self.change.adopt();
    }

    /// Reserves growth in an epoch of the space, which can be negative, instead of an earlier reservation.
    /// `quota`: `None` ignores the quota. Returns `false` if the slice has to be renewed first.
    pub(crate) fn reserve(&mut self, grown: i64, quota: Option<u64>, epoch: Option<u64>) -> bool {
        self.withdraw();
        let mut sums = self.usage.sums();
        self.round = sums.round;
        let is_admitted = epoch.is_some() && sums.account.is_some_and(|account| account.epoch == epoch);
        if !is_admitted || grown > 0 && !sums.fits(grown, quota.unwrap_or(u64::MAX)) {
            return false;
        }
        sums.in_flight += grown.max(0);
        drop(sums);
        (self.reserved, self.is_tentative) = (Some(grown), false);
        true
    }

    /// Notes that no commit uses it before the next [`reserve`](QuotaReservation::reserve).
    pub(super) fn tentative(mut self) -> Self {
        self.is_tentative = true;
        self
    }

    /// Takes over bytes that were reserved for buffered writes.
    pub(crate) fn commit_reserved(&mut self, buffered: u64) {
        self.withdraw();
        let mut sums = self.usage.sums();
        self.round = sums.round;
        sums.buffered -= buffered as i64;
        sums.in_flight += buffered as i64;
        drop(sums);
        (self.reserved, self.is_tentative) = (Some(buffered as i64), true);
    }

    /// Releases the bytes: the change was not made.
    pub(crate) fn cancel(mut self) {
        self.withdraw();
    }

    /// Counts the bytes: the change is committed. Freed bytes can be used from now on.
    pub(crate) fn commit(mut self) {
        let Some(reserved) = self.reserved.take() else { return };
        let mut sums = self.usage.sums();
        if sums.round == self.round {
            sums.in_flight -= reserved.max(0);
            sums.committed += reserved;
        }
    }

    /// Notes that bytes were freed by commits of an unknown epoch.
    pub(crate) fn freed_in_unknown_epoch(self) {
        self.usage.sums().doubt = true;
    }

    fn withdraw(&mut self) {
        let reserved = self.reserved.take().unwrap_or_default();
        let mut sums = self.usage.sums();
        if sums.round == self.round {
            sums.in_flight -= reserved.max(0);
        }
    }
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        if self.is_tentative {
            self.withdraw();
        } else if self.reserved.is_some_and(|reserved| reserved != 0) {
            let mut sums = self.usage.sums();
            sums.doubt |= sums.round == self.round;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(granted: i64, elsewhere: i64) -> Arc<Usage> {
        let usage = Arc::new(Usage::default());
        usage.sums().account = Some(Account { epoch: Some(7), recount: 1, granted, elsewhere });
        usage
    }

    #[test]
    fn reserved_bytes_count_at_once_and_freed_bytes_after_commit() {
        let usage = usage(100, 0);
        let reserve =
            |reservation: &mut QuotaReservation, grown| reservation.reserve(grown, Some(1000), Some(7));
        let total = || usage.sums().total();
        let mut first = QuotaReservation::try_begin(usage.clone()).unwrap();
        assert!(reserve(&mut first, 60));
        let mut second = QuotaReservation::try_begin(usage.clone()).unwrap();
        assert!(!reserve(&mut second, 41) && reserve(&mut second, 40));
        // The rule ran again and asks for another amount.
        assert!(reserve(&mut second, 10));
        assert_eq!(total(), 70);
        second.commit();
        first.commit();
        let mut third = QuotaReservation::try_begin(usage.clone()).unwrap();
        assert!(reserve(&mut third, -60));
        assert_eq!(total(), 70);
        third.commit();
        assert_eq!((total(), usage.sums().doubt), (10, false));
        let mut fourth = QuotaReservation::try_begin(usage.clone()).unwrap();
        assert!(reserve(&mut fourth, 1));
        drop(fourth);
        assert_eq!((total(), usage.sums().doubt), (11, true), "the commit may have taken effect");
    }

    #[test]
    fn growth_needs_a_slice_of_this_epoch_within_the_quota() {
        for (grown, quota, epoch, admitted) in [
            (10, Some(100), Some(7), true),
            (10, None, Some(7), true),
            (11, None, Some(7), false),
            (10, Some(99), Some(7), false),
            (10, Some(100), Some(8), false),
            (10, Some(100), None, false),
            (-1, Some(0), Some(7), true),
            (-1, Some(0), Some(8), false),
        ] {
            let mut reservation = QuotaReservation::try_begin(usage(10, 90)).unwrap();
            assert_eq!(reservation.reserve(grown, quota, epoch), admitted, "{grown} {quota:?} {epoch:?}");
        }
    }

    #[test]
    fn a_reservation_from_before_a_recount_does_not_count() {
        let usage = usage(100, 0);
        let [mut kept, mut dropped] = [(); 2].map(|()| QuotaReservation::try_begin(usage.clone()).unwrap());
        assert!(kept.reserve(30, None, Some(7)) && dropped.reserve(30, None, Some(7)));
        let account = Account { epoch: None, recount: 2, granted: 0, elsewhere: 60 };
        usage.sums().restart(account);
        kept.commit();
        drop(dropped);
        let sums = usage.sums();
        assert_eq!((sums.total(), sums.doubt), (0, false));
    }
}
