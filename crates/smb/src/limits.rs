//! Limits on the resources that all clients together use.

use std::collections::HashMap;
use std::sync::Arc;

use lazuli_protocol::Account;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Default limits; [`Limits`] explains them.
const MAX_CONNECTIONS: usize = 4096;
const MAX_UNAUTHENTICATED: usize = 1024;
const MAX_SESSIONS: usize = 16_384;
const MAX_TREES: usize = 65_536;
const MAX_OPENS: usize = 131_072;
/// One pipe holds up to 4 MiB of responses.
const MAX_PIPES: usize = 1024;

/// Maximum numbers for all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Connections that have not logged in. At the limit a new one replaces the oldest connection of the peer
    /// with the most.
    pub unauthenticated: usize,
    /// Sessions, including those that are being set up.
    pub sessions: usize,
    /// Tree connects of all sessions.
    pub trees: usize,
    /// Open files and directories, including disconnected durable handles. One account may have three
    /// quarters.
    pub opens: usize,
    /// Open pipes. One account may have three quarters.
    pub pipes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            unauthenticated: MAX_UNAUTHENTICATED,
            sessions: MAX_SESSIONS,
            trees: MAX_TREES,
            opens: MAX_OPENS,
            pipes: MAX_PIPES,
        }
    }
}

/// One unit of a limited resource, released on drop.
pub(crate) type Permit = OwnedSemaphorePermit;

/// Hands out a limited number of permits.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: usize,
    free: Arc<Semaphore>,
}

impl Limiter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, free: Arc::new(Semaphore::new(limit)) }
    }

    /// Acquires a permit. Returns `None` if all are in use.
    pub(crate) fn acquire(&self) -> Option<Permit> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// Returns whether all permits are in use.
    pub(crate) fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Returns the number of permits in use.
    pub(crate) fn used(&self) -> usize {
        self.limit - self.free.available_permits()
    }
}

/// Hands out a limited number of permits, at most three quarters of them to one account.
#[derive(Debug)]
pub(crate) struct AccountLimiter {
    limits: Limiter,
    used_by_account: Arc<UsedByAccount>,
}

/// Permits in use, by account name.
type UsedByAccount = Mutex<HashMap<String, usize>>;

/// A permit of an account, released on drop.
#[derive(Debug)]
pub(crate) struct AccountPermit {
    account: Arc<Account>,
    used_by_account: Arc<UsedByAccount>,
    #[expect(dead_code, reason = "released on drop")]
    permit: Permit,
}

impl AccountLimiter {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limits: Limiter::new(limit), used_by_account: Arc::default() }
    }

    /// Acquires a permit. Returns `None` if all are in use or the account has reached its share.
    pub(crate) fn acquire(&self, account: &Arc<Account>) -> Option<AccountPermit> {
        let mut used_by_account = self.used_by_account.lock();
        if self.is_at_limit(&used_by_account, account) {
            return None;
        }
        let permit = self.limits.acquire()?;
        *used_by_account.entry(account.name.clone()).or_default() += 1;
        Some(AccountPermit {
            account: account.clone(),
            used_by_account: self.used_by_account.clone(),
            permit,
        })
    }

    /// Returns whether the account cannot acquire another permit.
    pub(crate) fn is_full(&self, account: &Account) -> bool {
        self.limits.is_full() || self.is_at_limit(&self.used_by_account.lock(), account)
    }

    /// Returns the number of permits in use.
    pub(crate) fn used(&self) -> usize {
        self.limits.used()
    }

    /// Returns the number of permits of the account that has the most.
    pub(crate) fn max_used_by_account(&self) -> usize {
        self.used_by_account.lock().values().copied().max().unwrap_or(0)
    }

    fn is_at_limit(&self, used_by_account: &HashMap<String, usize>, account: &Account) -> bool {
        let limit = self.limits.limit - self.limits.limit / 4;
        used_by_account.get(&account.name).is_some_and(|used_by_account| *used_by_account >= limit)
    }
}

impl Drop for AccountPermit {
    fn drop(&mut self) {
        let mut all = self.used_by_account.lock();
        if let Some(used_by_account) = all.get_mut(&self.account.name) {
            *used_by_account -= 1;
            if *used_by_account == 0 {
                all.remove(&self.account.name);
            }
        }
    }
}
