//! What a front end knows of its slice of a share's quota, in memory, and what requests have reserved of it.

use std::sync::Arc;

use lazuli_concurrency::Stamp;

use tokio::sync::OwnedRwLockReadGuard;

use super::Usage;

/// What this front end has of the quota of a share.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// None: nothing is known of the share's rows.
    pub(super) account: Option<Account>,
    /// Bytes that commits of this front end have added since they were last posted to the balance, less those freed.
    pub(super) settled: i64,
    /// Bytes that are reserved for commits whose outcome is not known.
    pub(super) in_flight: i64,
    /// Bytes that are set aside for writes that are not committed.
    pub(super) promised: i64,
    /// Bytes may have been freed, or not added, that the balance and the slice still count.
    pub(super) doubt: bool,
    /// The quota, and the stamp of the share's row that says so. None: the row was not read yet.
    quota: Option<(Stamp, u64)>,
    /// Reservations from before the last restart do not count.
    round: u64,
}

/// The rows of the quota as they were when the slice was last renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// The epoch for which commits are admitted. None: the slice has to be renewed first.
    pub(super) epoch: Option<u64>,
    /// The recount that the balance is based on.
    pub(super) recount: u64,
    /// The slice.
    pub(super) granted: i64,
    /// The balance, and the slices of other front ends.
    pub(super) elsewhere: i64,
}

impl Sums {
    /// What this front end adds to the balance, at most.
    pub(super) fn total(&self) -> i64 {
        self.settled.saturating_add(self.in_flight).saturating_add(self.promised)
    }

    /// What this front end adds to the balance of that recount.
    pub(super) fn unposted(&self, recount: u64) -> i64 {
        let is_current = self.account.is_some_and(|account| account.recount == recount);
        if is_current { self.total() } else { self.promised }
    }

    /// Whether so many more bytes fit into the slice and the quota.
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

    pub(super) fn limit(&mut self, stamp: Stamp, quota: u64) {
        if self.quota.is_none_or(|(known, _)| known < stamp) {
            self.quota = Some((stamp, quota));
        }
    }

    /// The directories were summed up: whatever was reserved is in the sum, or did not take effect.
    pub(super) fn restart(&mut self, account: Account) {
        self.account = Some(account);
        (self.settled, self.in_flight) = (0, 0);
        self.round += 1;
    }

    /// The slice is another one, and so many bytes were posted to the balance.
    pub(super) fn renewed(&mut self, account: Account, posted: i64) {
        self.settled -= posted;
        self.account = Some(account);
    }

    /// Nothing is known of the rows any more.
    pub(super) fn lose(&mut self) {
        self.account = None;
        (self.settled, self.in_flight) = (0, 0);
        self.round += 1;
    }
}

/// What came of setting bytes aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// They are set aside.
    Kept,
    /// So many more do not fit into the slice, which has to be renewed.
    Renew(i64),
}

/// Permission to change the length of what is in a share. If it is dropped between [`ask`](Reservation::ask) and
/// [`keep`](Reservation::keep), the change may have been made or not. What it would add stays reserved until a recount.
#[derive(Debug)]
pub(crate) struct Reservation {
    usage: Arc<Usage>,
    round: u64,
    asked: Option<i64>,
    /// Nothing is committed with it yet.
    is_tentative: bool,
    _change: OwnedRwLockReadGuard<()>,
}

impl Reservation {
    /// Waits while this front end counts.
    pub(super) async fn begin(usage: Arc<Usage>) -> Self {
        let change = usage.changes.clone().read_owned().await;
        Self::of(usage, change)
    }

    /// None: this front end counts.
    pub(super) fn try_begin(usage: Arc<Usage>) -> Option<Self> {
        let change = usage.changes.clone().try_read_owned().ok()?;
        Some(Self::of(usage, change))
    }

    fn of(usage: Arc<Usage>, change: OwnedRwLockReadGuard<()>) -> Self {
        let round = usage.sums.lock().round;
        Self { usage, round, asked: None, is_tentative: false, _change: change }
    }

    /// Asks to grow by so many bytes in this epoch of the space, or to shrink, instead of what was asked before. No quota:
    /// whatever the quota is. False: the slice has to be renewed first.
    pub(crate) fn ask(&mut self, grown: i64, quota: Option<u64>, epoch: Option<u64>) -> bool {
        self.withdraw();
        let mut sums = self.usage.sums.lock();
        self.round = sums.round;
        let is_admitted = epoch.is_some() && sums.account.is_some_and(|account| account.epoch == epoch);
        if !is_admitted || grown > 0 && !sums.fits(grown, quota.unwrap_or(u64::MAX)) {
            return false;
        }
        sums.in_flight += grown.max(0);
        drop(sums);
        (self.asked, self.is_tentative) = (Some(grown), false);
        true
    }

    /// Nothing is committed before the next [`ask`](Reservation::ask).
    pub(super) fn tentative(mut self) -> Self {
        self.is_tentative = true;
        self
    }

    /// Takes over what was promised, as if it had been asked for.
    pub(crate) fn redeem(&mut self, promised: u64) {
        self.withdraw();
        let mut sums = self.usage.sums.lock();
        self.round = sums.round;
        sums.promised -= promised as i64;
        sums.in_flight += promised as i64;
        drop(sums);
        (self.asked, self.is_tentative) = (Some(promised as i64), true);
    }

    /// The change was not made.
    pub(crate) fn cancel(mut self) {
        self.withdraw();
    }

    /// The change is committed. What it frees can be used from now on.
    pub(crate) fn keep(mut self) {
        let Some(asked) = self.asked.take() else { return };
        let mut sums = self.usage.sums.lock();
        if sums.round == self.round {
            sums.in_flight -= asked.max(0);
            sums.settled += asked;
        }
    }

    /// Notes that bytes were freed by commits of an epoch that is not known.
    pub(crate) fn freed_unseen(self) {
        self.usage.sums.lock().doubt = true;
    }

    fn withdraw(&mut self) {
        let asked = self.asked.take().unwrap_or_default();
        let mut sums = self.usage.sums.lock();
        if sums.round == self.round {
            sums.in_flight -= asked.max(0);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_tentative {
            self.withdraw();
        } else if self.asked.is_some_and(|asked| asked != 0) {
            let mut sums = self.usage.sums.lock();
            sums.doubt |= sums.round == self.round;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(granted: i64, elsewhere: i64) -> Arc<Usage> {
        let usage = Arc::new(Usage::default());
        usage.sums.lock().account = Some(Account { epoch: Some(7), recount: 1, granted, elsewhere });
        usage
    }

    #[test]
    fn what_is_reserved_counts_at_once_and_what_is_freed_once_it_is_committed() {
        let usage = usage(100, 0);
        let ask = |reservation: &mut Reservation, grown| reservation.ask(grown, Some(1000), Some(7));
        let total = || usage.sums.lock().total();
        let mut first = Reservation::try_begin(usage.clone()).unwrap();
        assert!(ask(&mut first, 60));
        let mut second = Reservation::try_begin(usage.clone()).unwrap();
        assert!(!ask(&mut second, 41) && ask(&mut second, 40));
        // The rule ran again, and asks for something else.
        assert!(ask(&mut second, 10));
        assert_eq!(total(), 70);
        second.keep();
        first.keep();
        let mut third = Reservation::try_begin(usage.clone()).unwrap();
        assert!(ask(&mut third, -60));
        assert_eq!(total(), 70);
        third.keep();
        assert_eq!((total(), usage.sums.lock().doubt), (10, false));
        let mut fourth = Reservation::try_begin(usage.clone()).unwrap();
        assert!(ask(&mut fourth, 1));
        drop(fourth);
        assert_eq!((total(), usage.sums.lock().doubt), (11, true), "it may have been committed");
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
            let mut reservation = Reservation::try_begin(usage(10, 90)).unwrap();
            assert_eq!(reservation.ask(grown, quota, epoch), admitted, "{grown} {quota:?} {epoch:?}");
        }
    }

    #[test]
    fn a_reservation_from_before_a_recount_does_not_count() {
        let usage = usage(100, 0);
        let [mut kept, mut dropped] = [(); 2].map(|()| Reservation::try_begin(usage.clone()).unwrap());
        assert!(kept.ask(30, None, Some(7)) && dropped.ask(30, None, Some(7)));
        let account = Account { epoch: None, recount: 2, granted: 0, elsewhere: 60 };
        usage.sums.lock().restart(account);
        kept.keep();
        drop(dropped);
        let sums = usage.sums.lock();
        assert_eq!((sums.total(), sums.doubt), (0, false));
    }
}
