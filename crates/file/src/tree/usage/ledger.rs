//! The rows of a share's quota, and the commits that change them.

use lazuli_concurrency::Stamp;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::record::{decode, encode};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId, View};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::FileService;
use crate::tree::keys;
use crate::tree::usage::reservation::Account;
use crate::tree::usage::{HEADROOM_PART, MAX_HEADROOM, RECOUNT_PATIENCE, RECOUNT_POLL, Usage};

/// Maximum number of front ends with a slice of one share.
const MAX_SLICES: usize = 4096;
/// Number of slices that one commit removes. A commit may change 256 rows.
const SLICES_STEP: usize = 200;

/// The balance of a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Balance {
    /// Number of recounts so far.
    recount: u64,
    bytes: i64,
    /// The recount in progress.
    mark: Option<Mark>,
}

/// A recount in progress: its front end and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    instance: u64,
    begun: u64,
}

/// Result of an attempt to renew a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewal {
    /// Renewed for this epoch.
    Renewed(u64),
    /// The directories have to be summed up first.
    Recount,
    /// The growth does not fit.
    Full {
        /// Other front ends have slices.
        others: bool,
    },
}

/// The rows of the quota.
struct Rows {
    /// `None`: the directories were never summed up.
    balance: Option<Balance>,
    /// Sum of the slices of other front ends.
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
    /// Returns the number of recounts and the balance.
    pub(super) async fn balance(&self, space: SpaceId) -> Result<(u64, i64), Refusal> {
        let partition = keys::quota(space);
        let bytes = self.rows.transact(&partition, reads(), |view| {
            let balance = Rows::of(view, self.usages.instance)?.balance.unwrap_or_default();
            Ok(Decision::Answer((balance.recount, balance.bytes)))
        });
        bytes.await
    }

    /// Posts what this front end has added and freed, and takes a slice in which `wanted` more bytes fit.
    /// `quota`: `None` ignores the quota.
    pub(super) async fn renew_slice(
        &self,
        space: SpaceId,
        usage: &Usage,
        wanted: i64,
        quota: Option<u64>,
    ) -> Result<Renewal, Refusal> {
        let instance = self.usages.instance;
        let partition = keys::quota(space);
        let renewed = self.rows.transact(&partition, reads(), |view| {
            let rows = Rows::of(view, instance)?;
            let mut sums = usage.sums();
            let Some(balance) = rows.balance.filter(|balance| balance.mark.is_none()) else {
                return Ok(Decision::Answer(Err(Renewal::Recount)));
            };
            match sums.account {
                Some(account) if account.recount == balance.recount => {}
                // Another front end has recounted. The balance includes what this one had added.
                Some(account) => sums.restart(Account { epoch: None, granted: 0, ..account }),
                None if rows.has_others || rows.has_own => {
                    return Ok(Decision::Answer(Err(Renewal::Recount)));
                }
                None => {}
            }
            let posted = sums.committed;
            let bytes = balance.bytes.saturating_add(posted);
            let elsewhere = bytes.saturating_add(rows.others);
            let needed = sums.in_flight.saturating_add(sums.buffered).saturating_add(wanted);
            let limit = quota.unwrap_or_else(|| sums.quota());
            let left =
                i64::try_from(limit).unwrap_or(i64::MAX).saturating_sub(elsewhere).saturating_sub(needed);
            if left < 0 && wanted > 0 && quota.is_some() {
                return Ok(Decision::Answer(Err(Renewal::Full { others: rows.has_others })));
            }
            let headroom = (left / HEADROOM_PART).clamp(0, MAX_HEADROOM);
            let granted = needed.saturating_add(headroom);
            if let Some(account) = &mut sums.account {
                // Until the outcome is known, growth has to fit both before and after the renewal.
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
                usage.sums().renewed(account, posted);
                Ok(account.epoch.map_or(Renewal::Recount, Renewal::Renewed))
            }
            Ok(Err(renewal)) => Ok(renewal),
            Err(refusal) => {
                // After an internal error the slice may have been renewed. The next renewal finds out.
                if refusal.code() == ErrorCode::InternalError {
                    usage.sums().lose();
                }
                Err(refusal)
            }
        }
    }

    /// Posts what this front end has added and freed, and removes its slice, unless something is in flight or
    /// unknown. Only for the holder of the renewal lock, while changes are blocked.
    pub(super) async fn release_slice(&self, space: SpaceId, usage: &Usage) -> Result<(), Refusal> {
        let instance = self.usages.instance;
        let partition = keys::quota(space);
        let released = self.rows.transact(&partition, reads(), |view| {
            let rows = Rows::of(view, instance)?;
            let sums = usage.sums();
            let is_quiescent = sums.in_flight == 0 && sums.buffered == 0 && !sums.doubt && rows.has_own;
            let balance = rows.balance.filter(|balance| {
                sums.account
                    .is_some_and(|account| account.recount == balance.recount && balance.mark.is_none())
            });
            let Some(balance) = balance.filter(|_| is_quiescent) else { return Ok(Decision::Answer(())) };
            let balance = Balance { bytes: balance.bytes.saturating_add(sums.committed), ..balance };
            let mutations =
                [Mutation::Put(keys::BALANCE, encode(&balance)?), Mutation::Delete(keys::slice(instance))];
            Ok(Decision::Write(Change::of(mutations), ()))
        });
        let released = released.await;
        usage.sums().lose();
        released
    }

    /// Marks the balance for a recount. Returns the mark, and whether other front ends have slices. Waits for
    /// another front end's recount, but not for long: it may have stopped.
    pub(super) async fn mark_recount(&self, space: SpaceId) -> Result<(Mark, bool), Refusal> {
        let instance = self.usages.instance.ticks();
        let deadline = Instant::now() + RECOUNT_PATIENCE;
        loop {
            let waits = Instant::now() < deadline;
            let partition = keys::quota(space);
            let marked = self.rows.transact(&partition, reads(), |view| {
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

    /// Replaces the balance and all slices, unless another front end has started a recount since. No slice is
    /// added or renewed while the balance is marked, so a large number of slices is removed in several
    /// commits.
    pub(super) async fn store_recount(
        &self,
        space: SpaceId,
        mark: Mark,
        sum: i64,
    ) -> Result<Account, Refusal> {
        let partition = keys::quota(space);
        let reads = Reads::key(keys::BALANCE).and_range(keys::slices(), SLICES_STEP);
        loop {
            let stored = self.rows.transact(&partition, reads.clone(), |view| {
                let balance: Option<Balance> =
                    view.row(&keys::BALANCE).map(|row| decode(&row.value)).transpose()?;
                let marked =
                    balance.filter(|balance| balance.mark == Some(mark)).ok_or(ErrorCode::ServerBusy)?;
                let slices = view.ranges().iter().flat_map(|slices| &slices.rows);
                let mut mutations: Vec<_> = slices.map(|row| Mutation::Delete(row.key.clone())).collect();
                if view.ranges().iter().any(|slices| slices.more) {
                    return Ok(Decision::Write(Change::of(mutations), None));
                }
                let balance = Balance { recount: marked.recount + 1, bytes: sum, mark: None };
                mutations.push(Mutation::Put(keys::BALANCE, encode(&balance)?));
                let account = Account { epoch: None, recount: balance.recount, granted: 0, elsewhere: sum };
                Ok(Decision::Write(Change::of(mutations), Some(account)))
            });
            if let Some(account) = stored.await? {
                return Ok(account);
            }
        }
    }
}
