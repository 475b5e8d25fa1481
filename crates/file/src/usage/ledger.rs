//! The rows of a share's quota, and the commits that change them.

use lazuli_concurrency::Stamp;
use lazuli_generations::record::{decode, encode};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::reservation::Account;
use super::{HEADROOM_PART, MAX_HEADROOM, RECOUNT_PATIENCE, RECOUNT_POLL, Usage};
use crate::{FileService, keys};

/// Front ends that have a slice of one share at once, at most.
const MAX_SLICES: usize = 4096;

/// What was counted of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Balance {
    /// Recounts so far.
    recount: u64,
    bytes: i64,
    /// The recount that is under way.
    mark: Option<Mark>,
}

/// A recount under way: the front end, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    instance: u64,
    begun: u64,
}

/// What came of an attempt to renew a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// Commits are admitted for this epoch.
    Renewed(u64),
    /// The directories have to be summed up first.
    Recount,
    /// It does not fit.
    Full {
        /// Other front ends have slices.
        others: bool,
    },
}

/// What the rows say.
struct Rows {
    /// None: the directories were never summed up.
    balance: Option<Balance>,
    /// The slices of other front ends, together.
    others: i64,
    has_others: bool,
    has_own: bool,
}

impl Rows {
    fn of(view: &View<'_>, own: Stamp) -> Result<Self, Refusal> {
        let balance = view.row(&keys::BALANCE).map(|row| decode(&row.value)).transpose()?;
        let mut rows = Self { balance, others: 0, has_others: false, has_own: false };
        for row in view.ranges().iter().flat_map(|range| &range.rows) {
            if row.key == keys::slice(own) {
                rows.has_own = true;
            } else {
                rows.has_others = true;
                rows.others = rows.others.saturating_add(decode::<i64>(&row.value)?);
            }
        }
        Ok(rows)
    }
}

fn reads() -> Reads {
    Reads::key(keys::BALANCE).and_range(keys::slices(), MAX_SLICES)
}

impl FileService {
    /// What was counted of a share and posted to its balance, after the number of its recounts.
    pub(super) async fn balance(&self, space: SpaceId) -> Result<(u64, i64), Refusal> {
        let partition = keys::quota(space);
        let bytes = self.transact(&partition, reads(), |view| {
            let balance = Rows::of(view, self.usages.instance)?.balance.unwrap_or_default();
            Ok(Decision::Answer((balance.recount, balance.bytes)))
        });
        bytes.await
    }

    /// Posts what this front end has added and freed to the balance, and takes a slice in which so many more bytes fit. No
    /// quota: whatever the quota is.
    pub(super) async fn renew_slice(
        &self,
        space: SpaceId,
        usage: &Usage,
        wanted: i64,
        quota: Option<u64>,
    ) -> Result<Renewal, Refusal> {
        let instance = self.usages.instance;
        let partition = keys::quota(space);
        let renewed = self.transact(&partition, reads(), |view| {
            let rows = Rows::of(view, instance)?;
            let mut sums = usage.sums.lock();
            let Some(balance) = rows.balance.filter(|balance| balance.mark.is_none()) else {
                return Ok(Decision::Answer(Err(Renewal::Recount)));
            };
            match sums.account {
                Some(account) if account.recount == balance.recount => {}
                // Another front end has summed up the directories: what this one had added is in the balance.
                Some(account) => sums.restart(Account { epoch: None, granted: 0, ..account }),
                None if rows.has_others || rows.has_own => {
                    return Ok(Decision::Answer(Err(Renewal::Recount)));
                }
                None => {}
            }
            let posted = sums.settled;
            let bytes = balance.bytes.saturating_add(posted);
            let elsewhere = bytes.saturating_add(rows.others);
            let needed = sums.in_flight.saturating_add(sums.promised).saturating_add(wanted);
            let limit = quota.unwrap_or_else(|| sums.quota());
            let left =
                i64::try_from(limit).unwrap_or(i64::MAX).saturating_sub(elsewhere).saturating_sub(needed);
            if left < 0 && wanted > 0 && quota.is_some() {
                return Ok(Decision::Answer(Err(Renewal::Full { others: rows.has_others })));
            }
            let headroom = (left / HEADROOM_PART).clamp(0, MAX_HEADROOM);
            let granted = needed.saturating_add(headroom);
            if let Some(account) = &mut sums.account {
                // Until the outcome is known, what is admitted has to fit both before and after.
                account.granted = account.granted.min(granted.saturating_add(posted));
            }
            let balance = Balance { bytes, ..balance };
            let mutations = [
                Mutation::Put(keys::BALANCE, encode(&balance)?),
                Mutation::Put(keys::slice(instance), encode(&granted)?),
            ];
            let epoch = view.space().map(|space| space.epoch);
            let account = Account { epoch, recount: balance.recount, granted, elsewhere };
            Ok(Decision::Write(Change::of(mutations), Ok((account, posted))))
        });
        match renewed.await {
            Ok(Ok((account, posted))) => {
                usage.sums.lock().renewed(account, posted);
                Ok(account.epoch.map_or(Renewal::Recount, Renewal::Renewed))
            }
            Ok(Err(renewal)) => Ok(renewal),
            Err(refusal) => {
                // After an internal error the slice may have been renewed. If it was, the next renewal finds it.
                if refusal.code() == ErrorCode::InternalError {
                    usage.sums.lock().lose();
                }
                Err(refusal)
            }
        }
    }

    /// Posts what this front end has added and freed, and removes its slice, unless something is in flight or not known. The
    /// caller has the turn to renew, alone.
    pub(super) async fn release_slice(&self, space: SpaceId, usage: &Usage) -> Result<(), Refusal> {
        let instance = self.usages.instance;
        let partition = keys::quota(space);
        let released = self.transact(&partition, reads(), |view| {
            let rows = Rows::of(view, instance)?;
            let sums = usage.sums.lock();
            let is_settled = sums.in_flight == 0 && sums.promised == 0 && !sums.doubt && rows.has_own;
            let balance = rows.balance.filter(|balance| {
                sums.account
                    .is_some_and(|account| account.recount == balance.recount && balance.mark.is_none())
            });
            let Some(balance) = balance.filter(|_| is_settled) else { return Ok(Decision::Answer(())) };
            let balance = Balance { bytes: balance.bytes.saturating_add(sums.settled), ..balance };
            let mutations =
                [Mutation::Put(keys::BALANCE, encode(&balance)?), Mutation::Delete(keys::slice(instance))];
            Ok(Decision::Write(Change::of(mutations), ()))
        });
        let released = released.await;
        usage.sums.lock().lose();
        released
    }

    /// Marks that the directories are being summed up. Also returns whether other front ends have slices. Waits for another
    /// front end that counts, but not for long: it may have stopped.
    pub(super) async fn mark_recount(&self, space: SpaceId) -> Result<(Mark, bool), Refusal> {
        let instance = self.usages.instance.ticks();
        let deadline = Instant::now() + RECOUNT_PATIENCE;
        loop {
            let waits = Instant::now() < deadline;
            let partition = keys::quota(space);
            let marked = self.transact(&partition, reads(), |view| {
                let rows = Rows::of(view, self.usages.instance)?;
                let balance = rows.balance.unwrap_or_default();
                if waits && balance.mark.is_some_and(|mark| mark.instance != instance) {
                    return Ok(Decision::Answer(None));
                }
                let mark = Mark { instance, begun: view.stamp.ticks() };
                let balance = Balance { mark: Some(mark), ..balance };
                let put = Mutation::Put(keys::BALANCE, encode(&balance)?);
                Ok(Decision::Write(Change::of([put]), Some((mark, rows.has_others))))
            });
            match marked.await? {
                Some(marked) => return Ok(marked),
                None => sleep(RECOUNT_POLL).await,
            }
        }
    }

    /// Replaces the balance and all slices, unless another front end has begun to sum up since.
    pub(super) async fn store_recount(
        &self,
        space: SpaceId,
        mark: Mark,
        sum: i64,
    ) -> Result<Account, Refusal> {
        let partition = keys::quota(space);
        let stored = self.transact(&partition, Reads::key(keys::BALANCE), |view| {
            let balance: Option<Balance> =
                view.row(&keys::BALANCE).map(|row| decode(&row.value)).transpose()?;
            let marked = balance.filter(|balance| balance.mark == Some(mark)).ok_or(ErrorCode::ServerBusy)?;
            let balance = Balance { recount: marked.recount + 1, bytes: sum, mark: None };
            let mutations =
                [Mutation::Put(keys::BALANCE, encode(&balance)?), Mutation::DeleteRange(keys::slices())];
            let account = Account { epoch: None, recount: balance.recount, granted: 0, elsewhere: sum };
            Ok(Decision::Write(Change::of(mutations), account))
        });
        stored.await
    }
}
