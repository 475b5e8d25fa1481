//! Semaphores of which no holder can take everything.
//!
//! One holder, such as an account or a peer, gets at most three quarters of the units. A holder that wants
//! more waits for its own units first, and only then in line with other holders. So the line of all holders
//! is short, however many requests one holder sends.
//!
//! A semaphore can keep its last quarter as a reserve for holders that have at most 1/32 of all units. Eight
//! more holders are needed to take that, and a holder with few units does not wait for two with many.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limited number of units, shared by holders.
#[derive(Debug)]
pub struct FairSemaphore<K> {
    /// Units for every holder.
    common: Units,
    /// Units for holders that have few.
    reserve: Units,
    limit_of_holder: u32,
    /// Maximum number of units of a holder that may take from the reserve.
    few: usize,
    holders: Mutex<HashMap<K, HolderShare>>,
}

/// Units, and the number of acquisitions that wait for them.
#[derive(Debug)]
struct Units {
    total: u32,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct HolderShare {
    units: Arc<Units>,
    /// Number of [`Holder`] values with this key. The share is removed with the last one.
    registrations: usize,
}

/// A holder of units.
#[derive(Debug)]
pub struct Holder<K: Eq + Hash + Clone> {
    semaphore: Arc<FairSemaphore<K>>,
    /// The holder's key and its share; `None` if the holder may take all units.
    own: Option<(K, Arc<Units>)>,
}

/// Units that a holder has acquired, which are released on drop.
#[derive(Debug)]
pub struct FairPermit<K: Eq + Hash + Clone> {
    shared: OwnedSemaphorePermit,
    own: Option<OwnedSemaphorePermit>,
    _holder: Arc<Holder<K>>,
}

impl<K: Eq + Hash + Clone> FairSemaphore<K> {
    /// Creates a semaphore with `total` free units.
    pub fn new(total: u32) -> Arc<Self> {
        Self::build(total, 0)
    }

    /// Creates a semaphore with `total` free units, the last quarter of which is for holders that have few.
    pub fn with_reserve(total: u32) -> Arc<Self> {
        Self::build(total, total / 4)
    }

    fn build(total: u32, reserve: u32) -> Arc<Self> {
        Arc::new(Self {
            common: Units::new(total - reserve),
            reserve: Units::new(reserve),
            limit_of_holder: total - total / 4,
            few: (total as usize / 32).max(1),
            holders: Mutex::default(),
        })
    }

    /// Returns the holder with this key. Without a key, the holder may take all units.
    pub fn holder(self: &Arc<Self>, key: Option<K>) -> Arc<Holder<K>> {
        let own = key.map(|key| {
            let mut holders = self.holders();
            let new = || HolderShare { units: Arc::new(Units::new(self.limit_of_holder)), registrations: 0 };
            let share = holders.entry(key.clone()).or_insert_with(new);
            share.registrations += 1;
            (key, share.units.clone())
        });
        Arc::new(Holder { semaphore: self.clone(), own })
    }

    /// Returns the number of units that are in use.
    pub fn used(&self) -> usize {
        self.common.used() + self.reserve.used()
    }

    /// Returns the number of units that are free.
    pub fn free(&self) -> usize {
        self.common.free() + self.reserve.free()
    }

    /// Acquires shared units if they are free now.
    fn try_acquire(&self, units: u32, may_take_reserve: bool) -> Option<OwnedSemaphorePermit> {
        let may_take_reserve = may_take_reserve && units <= self.reserve.total;
        let reserve = || may_take_reserve.then(|| self.reserve.try_acquire(units)).flatten();
        self.common.try_acquire(units).or_else(reserve)
    }

    /// Waits for shared units.
    async fn acquire(&self, units: u32, may_take_reserve: bool) -> OwnedSemaphorePermit {
        if let Some(permit) = self.try_acquire(units, may_take_reserve) {
            return permit;
        }
        let mut common = pin!(self.common.acquire(units));
        if !may_take_reserve || units > self.reserve.total {
            return common.await;
        }
        let mut reserve = pin!(self.reserve.acquire(units));
        poll_fn(|cx| match common.as_mut().poll(cx) {
            Poll::Pending => reserve.as_mut().poll(cx),
            ready => ready,
        })
        .await
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<K, HolderShare>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Holder<K> {
    /// Acquires units if they are free now and within the holder's share. A number of units larger than the
    /// limit counts as the limit.
    pub fn try_acquire(self: &Arc<Self>, units: u32) -> Option<FairPermit<K>> {
        let own = match &self.own {
            Some((_, own)) => Some(own.try_acquire(units)?),
            None => None,
        };
        let shared = self.semaphore.try_acquire(units, self.may_take_reserve())?;
        Some(FairPermit { shared, own, _holder: self.clone() })
    }

    /// Waits for units, first for those of the holder's share.
    pub async fn acquire(self: &Arc<Self>, units: u32) -> FairPermit<K> {
        let own = match &self.own {
            Some((_, own)) => Some(own.acquire(units).await),
            None => None,
        };
        let shared = self.semaphore.acquire(units, self.may_take_reserve()).await;
        FairPermit { shared, own, _holder: self.clone() }
    }

    /// Returns whether the holder has few units, those included that it is about to take.
    fn may_take_reserve(&self) -> bool {
        self.own.as_ref().is_none_or(|(_, own)| own.used() <= self.semaphore.few)
    }

    /// Returns whether units that this holder has keep an acquisition waiting: its own, or another holder's.
    pub fn is_waited_for(&self) -> bool {
        let is_waiting = |units: &Units| units.waiting.load(Relaxed) > 0;
        is_waiting(&self.semaphore.common) || self.own.as_ref().is_some_and(|(_, own)| is_waiting(own))
    }

    /// Returns whether no unit is free for this holder.
    pub fn is_exhausted(&self) -> bool {
        let FairSemaphore { common, reserve, few, .. } = &*self.semaphore;
        let is_exhausted = |units: &Units| units.free() == 0;
        match &self.own {
            Some((_, own)) if is_exhausted(own) => true,
            Some((_, own)) if own.used() >= *few => is_exhausted(common),
            _ => is_exhausted(common) && is_exhausted(reserve),
        }
    }
}

impl<K: Eq + Hash + Clone> Drop for Holder<K> {
    fn drop(&mut self) {
        let Some((key, _)) = &self.own else { return };
        let mut holders = self.semaphore.holders();
        if let Some(share) = holders.get_mut(key) {
            share.registrations -= 1;
            if share.registrations == 0 {
                holders.remove(key);
            }
        }
    }
}

impl<K: Eq + Hash + Clone> FairPermit<K> {
    /// Releases all units but this many.
    pub fn shrink(&mut self, units: u32) {
        for permit in [Some(&mut self.shared), self.own.as_mut()].into_iter().flatten() {
            let more = permit.num_permits().saturating_sub(units as usize);
            drop(permit.split(more));
        }
    }

    /// Returns the number of units.
    pub fn units(&self) -> u32 {
        u32::try_from(self.shared.num_permits()).unwrap_or(u32::MAX)
    }
}

impl Units {
    fn new(total: u32) -> Self {
        Self { total, free: Arc::new(Semaphore::new(total as usize)), waiting: AtomicUsize::new(0) }
    }

    fn free(&self) -> usize {
        self.free.available_permits()
    }

    fn used(&self) -> usize {
        (self.total as usize).saturating_sub(self.free())
    }

    /// Acquires units, if they are free now. A number larger than the total counts as the total.
    fn try_acquire(&self, units: u32) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(units.min(self.total)).ok()
    }

    async fn acquire(&self, units: u32) -> OwnedSemaphorePermit {
        if let Some(permit) = self.try_acquire(units) {
            return permit;
        }
        self.waiting.fetch_add(1, Relaxed);
        let _waiting = Waiting(&self.waiting);
        match self.free.clone().acquire_many_owned(units.min(self.total)).await {
            Ok(permit) => permit,
            Err(_) => unreachable!("the semaphore is never closed"),
        }
    }
}

/// Counts an acquisition as waiting until dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_holder_gets_three_quarters_and_is_forgotten_with_its_last_unit() {
        let units = FairSemaphore::new(8);
        let holder = |name| units.holder(Some(name));
        let mut held: Vec<_> = (0..6).map(|_| holder("a").try_acquire(1).unwrap()).collect();
        assert!(holder("a").try_acquire(1).is_none());
        assert_eq!((units.used(), units.free()), (6, 2));
        assert!(holder("a").is_exhausted() && !holder("b").is_exhausted());
        let other = holder("b").try_acquire(100);
        assert!(other.is_none(), "its share is not free");
        let other = holder("b").try_acquire(2);
        assert!(other.is_some() && units.holder(None).try_acquire(1).is_none());
        held.pop();
        assert!(holder("a").try_acquire(1).is_some());
        drop((held, other));
        assert!(units.holders().is_empty());
        assert_eq!(units.holder(None).try_acquire(100).unwrap().units(), 8);
        assert_eq!(holder("a").try_acquire(100).unwrap().own.unwrap().num_permits(), 6);
    }

    #[test]
    fn a_holder_that_waits_for_its_own_units_is_not_in_the_line_of_others() {
        let units = FairSemaphore::new(8);
        let (a, b) = (units.holder(Some("a")), units.holder(Some("b")));
        let held = a.try_acquire(6).unwrap();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(a.acquire(1))).collect();
        assert!(waiting.iter_mut().all(|waiting| poll(waiting.as_mut()).is_pending()));
        assert!(a.is_waited_for() && !b.is_waited_for());
        let mut other = pin!(b.acquire(2));
        let Poll::Ready(other) = poll(other.as_mut()) else { panic!("nothing is free for others") };
        let mut next = pin!(b.acquire(1));
        assert!(poll(next.as_mut()).is_pending() && b.is_waited_for() && a.is_waited_for());
        drop(other);
        assert!(poll(next.as_mut()).is_ready());
        waiting.clear();
        assert!(!a.is_waited_for() && !b.is_waited_for(), "an acquisition that is dropped does not wait");
        drop(held);
    }

    #[test]
    fn two_holders_leave_a_reserve_to_holders_that_have_little() {
        let units = FairSemaphore::with_reserve(128);
        let holder = |name| units.holder(Some(name));
        // Two holders take all that is common, each within its share, and wait for more.
        let (a, b) = (holder("a"), holder("b"));
        let held = [a.try_acquire(80).unwrap(), b.try_acquire(16).unwrap()];
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(b.acquire(1))).collect();
        assert!(waiting.iter_mut().all(|waiting| poll(waiting.as_mut()).is_pending()));
        // Another waits for neither of them, up to 1/32 of all, and then only for what is common.
        let c = holder("c");
        let few: Vec<_> = (0..4).map(|_| c.try_acquire(1).unwrap()).collect();
        assert!(c.try_acquire(1).is_none() && holder("d").try_acquire(5).is_none());
        let exhausted = [&a, &b, &c, &holder("d")].map(|holder| holder.is_exhausted());
        assert_eq!(exhausted, [true, true, true, false]);
        let mut more = pin!(c.acquire(1));
        assert!(poll(more.as_mut()).is_pending());
        let mut next = pin!(c.acquire(1));
        assert!(poll(next.as_mut()).is_pending());
        waiting.clear();
        drop(held);
        assert!(poll(more.as_mut()).is_ready() && poll(next.as_mut()).is_ready());
        drop(few);
        assert_eq!((units.used(), units.free()), (0, 128));
    }

    #[test]
    fn a_holder_that_waits_gets_units_of_the_reserve_when_they_are_released() {
        let units = FairSemaphore::with_reserve(8);
        let common = units.holder(Some("a")).try_acquire(6).unwrap();
        let mut few = ["b", "c"].map(|name| units.holder(Some(name)).try_acquire(1).unwrap()).into_iter();
        let d = units.holder(Some("d"));
        let mut waiting = pin!(d.acquire(1));
        assert!(poll(waiting.as_mut()).is_pending());
        drop(few.next());
        assert!(poll(waiting.as_mut()).is_ready());
        drop(common);
    }

    #[test]
    fn shrinking_releases_the_rest() {
        let units = FairSemaphore::new(8);
        let a = units.holder(Some("a"));
        let mut held = a.try_acquire(6).unwrap();
        held.shrink(2);
        held.shrink(5);
        assert_eq!((held.units(), units.free()), (2, 6));
        assert!(a.try_acquire(5).is_none() && a.try_acquire(4).is_some());
    }
}
