//! The directory of accounts: rows of the store, cached in memory.
//!
//! All changes go through the one [`AccountDirectory`] of the process that has locked the data directory, so
//! the cache is exact: every lookup that begins after a change was acknowledged sees the change. A change
//! runs in its own task, because a caller that goes away must not leave the cache stale.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::properties::{ServiceProperties, Update};
use lazuli_protocol::{Account, Accounts, ErrorCode, Key, Refusal, ServiceKind};
use lazuli_service::{internal_error, transaction_refusal};
use lazuli_store::{
    Change, CommitError, Decision, Gate, Mutation, Partition, ReadError, Reads, Row, SpaceHeader, SpaceId,
    Store, TransactError, View, Which, transact,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::Instrument;

use crate::record::{self, RecordError, Retired};
use crate::settings::{self, DEVELOPMENT_ACCOUNT, KeySlot, Rejection, Setting};

/// Number of accounts in one scan when the directory is opened.
const ACCOUNTS_PER_SCAN: usize = 256;

/// Why an account was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The request is invalid.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// There is no account of that name.
    #[error("there is no account {0:?}")]
    NotFound(String),
    /// An account of that name exists already.
    #[error("account {0:?} exists already")]
    Exists(String),
    /// An account of that name is being restored.
    #[error("account {0:?} is being restored")]
    Restoring(String),
    /// No removed account of that name can be restored.
    #[error("no removed account {0:?} can be restored")]
    NotRetired(String),
    /// A removed account cannot be restored, because its name is in use.
    #[error(
        "there is an account {0:?}, so the removed account of that name cannot be restored: remove this one first"
    )]
    NameInUse(String),
    /// The name was removed too often within the time for which removed accounts are kept.
    #[error("{MAX_RETIRED} removed accounts {0:?} can be restored already")]
    TooManyRetired(String),
    /// A row cannot be decoded.
    #[error("damaged row {row:?} of {partition:?}: {why}")]
    Damaged {
        /// The key of the partition.
        partition: String,
        /// The key of the row.
        row: String,
        /// The error of the decoder.
        why: String,
    },
    /// The random number generator of the operating system failed.
    #[error("the random number generator of the operating system failed: {0}")]
    Random(#[from] getrandom::Error),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not commit the change, or the outcome is unknown.
    #[error("could not store the change: {0}")]
    Store(TransactError<Refusal>),
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

/// For how long a removed account can be restored.
pub const RETENTION: Span = Span::seconds(7 * 24 * 60 * 60);
/// Maximum number of removed accounts of one name that can be restored.
const MAX_RETIRED: usize = 1000;

/// A removed account that can be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredAccount {
    /// The account as it was.
    pub account: Account,
    /// When the account was removed.
    pub removed: Timestamp,
    /// Until when the account can be restored.
    pub kept_until: Timestamp,
}

/// Whether an account still owns the data that is stored under its name and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The account exists, or is being restored from a backup.
    Owned,
    /// The account was removed and can be restored until this time.
    KeptUntil(Timestamp),
    /// No account owns the data.
    Orphaned,
}

/// The accounts of one data directory.
#[derive(Clone)]
pub struct AccountDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    gate: Gate,
    /// All accounts that exist, by name.
    accounts: RwLock<BTreeMap<String, CachedAccount>>,
    /// The generations of accounts that are being restored, by name.
    reserved: Mutex<HashMap<String, u64>>,
    /// Held from before a commit until the cache contains the change.
    changing: tokio::sync::Mutex<()>,
    /// Number of changes that the cache contains.
    changes: watch::Sender<u64>,
    /// When the next removed account can no longer be restored, in ticks.
    next_expiry: AtomicU64,
    master_secret: [u8; 32],
}

/// The name and the generation of an account that is being restored. Sweeps keep the data that is stored
/// under them, and clients cannot reach it. If this is dropped before [`AccountDirectory::add_reserved`], the
/// data is garbage.
#[must_use = "dropping it makes the restored data garbage"]
pub struct ReservedAccount {
    shared: Arc<Shared>,
    name: String,
    generation: u64,
}

impl ReservedAccount {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for ReservedAccount {
    fn drop(&mut self) {
        self.shared.reserved.lock().remove(&self.name);
    }
}

/// An account in the cache.
#[derive(Clone)]
enum CachedAccount {
    Current(AccountRows),
    /// The account was changed and could not be read back. The next lookup reads it.
    Stale,
}

/// The decoded rows of an account.
#[derive(Clone)]
struct AccountRows {
    account: Arc<Account>,
    /// In the order of [`ServiceKind::ALL`].
    properties: [Arc<ServiceProperties>; ServiceKind::ALL.len()],
}

impl AccountDirectory {
    /// Reads all accounts. Creates the server's secret if there is none yet.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self, AccountError> {
        open_root(&*store).await?;
        let gate = Gate::default();
        let master_secret = master_secret(&*store, &gate).await?;
        let shared = Shared {
            store,
            gate,
            accounts: RwLock::default(),
            reserved: Mutex::default(),
            changing: Default::default(),
            changes: watch::Sender::default(),
            // The first check finds out.
            next_expiry: AtomicU64::new(0),
            master_secret,
        };
        let mut from = (Bytes::from_static(record::ACCOUNTS), Bytes::new());
        loop {
            let end = Some((Bytes::from_static(record::AFTER_ACCOUNTS), Bytes::new()));
            let scan = shared.store.scan_space(SpaceId::ROOT, from, end, Which::First, ACCOUNTS_PER_SCAN);
            let page = scan.await?;
            for (partition, _) in page.rows {
                let name = String::from_utf8_lossy(&partition[record::ACCOUNTS.len()..]).into_owned();
                shared.refresh(&name).await?;
            }
            match page.next {
                Some(next) => from = next,
                None => return Ok(Self { shared: Arc::new(shared) }),
            }
        }
    }

    /// Returns the account of that name, if it exists.
    pub async fn get(&self, name: &str) -> Result<Option<Arc<Account>>, AccountError> {
        Ok(self.shared.lookup(name).await?.map(|rows| rows.account))
    }

    /// Returns all accounts, sorted by name.
    pub async fn list(&self) -> Result<Vec<Arc<Account>>, AccountError> {
        let names: Vec<String> = self.shared.accounts.read().keys().cloned().collect();
        let mut accounts = Vec::with_capacity(names.len());
        for name in names {
            accounts.extend(self.get(&name).await?);
        }
        Ok(accounts)
    }

    /// Returns the properties of one service of an account.
    pub async fn properties(
        &self,
        account: &str,
        service: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, AccountError> {
        let rows = self.shared.lookup(account).await?;
        let rows = rows.ok_or_else(|| AccountError::NotFound(account.into()))?;
        Ok(rows.properties[service as usize].clone())
    }

    /// Returns a counter of changes. Each change is counted before it is acknowledged. A caller that keeps an
    /// account must look it up again when the counter has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Returns the number of transaction attempts that were repeated.
    pub fn retries(&self) -> u64 {
        self.shared.gate.retries()
    }

    /// Returns the number of transactions that wait for others.
    pub fn waiting(&self) -> usize {
        self.shared.gate.waiting()
    }

    /// Returns the number of accounts that are being restored.
    pub fn reserved(&self) -> usize {
        self.shared.reserved.lock().len()
    }

    /// Returns the names of all accounts, sorted.
    pub fn names(&self) -> Vec<String> {
        self.shared.accounts.read().keys().cloned().collect()
    }

    /// Returns the number of accounts.
    pub fn len(&self) -> usize {
        self.shared.accounts.read().len()
    }

    /// Returns whether there is no account.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns 32 random bytes that are unique to this data directory. Keys are derived from them.
    pub fn master_secret(&self) -> [u8; 32] {
        self.shared.master_secret
    }

    /// Adds an account.
    pub async fn add(&self, account: Account) -> Result<Arc<Account>, AccountError> {
        settings::check_new(&account)?;
        let (name, shared) = (account.name.clone(), self.shared.clone());
        let added = self.change(&name, Reads::key(record::ACCOUNT), move |rows| {
            if rows.row(&record::ACCOUNT).is_some() {
                return Err(AccountError::Exists(account.name.clone()));
            }
            if shared.reserved.lock().contains_key(&account.name) {
                return Err(AccountError::Restoring(account.name.clone()));
            }
            put(record::ACCOUNT, &Account { generation: rows.stamp.ticks(), ..account.clone() })
        });
        added.await?;
        self.existing(&name).await
    }

    /// Reserves a free name and a generation for an account that is being restored.
    pub async fn reserve(&self, name: &str) -> Result<ReservedAccount, AccountError> {
        settings::check_name(name)?;
        // Wait until the cache contains an account that is just being added.
        let _guard = self.shared.changing.lock().await;
        if self.shared.accounts.read().contains_key(name) {
            return Err(AccountError::Exists(name.into()));
        }
        let generation = self.shared.store.stamp().ticks();
        match self.shared.reserved.lock().entry(name.into()) {
            hash_map::Entry::Occupied(_) => return Err(AccountError::Restoring(name.into())),
            hash_map::Entry::Vacant(vacant) => _ = vacant.insert(generation),
        }
        Ok(ReservedAccount { shared: self.shared.clone(), name: name.into(), generation })
    }

    /// Returns whether the name and the generation belong to an account that is being restored.
    pub fn is_reserved(&self, name: &str, generation: u64) -> bool {
        self.shared.reserved.lock().get(name) == Some(&generation)
    }

    /// Adds an account under a reserved name, in one commit with the properties of its services. The name and
    /// the generation of the reservation replace those in `account`.
    pub async fn add_reserved(
        &self,
        reserved: ReservedAccount,
        account: Account,
        properties: BTreeMap<ServiceKind, ServiceProperties>,
    ) -> Result<Arc<Account>, AccountError> {
        let (name, generation) = (reserved.name.clone(), reserved.generation);
        let account = Account { name: name.clone(), generation, ..account };
        settings::check_new(&account)?;
        let mut mutations = put(record::ACCOUNT, &account)?.mutations;
        for (service, properties) in &properties {
            mutations.extend(put(record::properties(*service), properties)?.mutations);
        }
        let added = self.change(&name, Reads::key(record::ACCOUNT), move |rows| {
            // Moving the reservation into this closure keeps it until the cache contains the account.
            let name = reserved.name();
            match rows.row(&record::ACCOUNT) {
                Some(_) => Err(AccountError::Exists(name.into())),
                None => Ok(Change::of(mutations.clone())),
            }
        });
        added.await?;
        self.existing(&name).await
    }

    /// Changes an account: all of the settings, or none.
    pub async fn set(&self, name: &str, changes: Vec<Setting>) -> Result<Arc<Account>, AccountError> {
        self.edit(name, move |account| {
            changes.iter().try_for_each(|setting| settings::apply(account, setting.clone()))
        })
        .await
    }

    /// Replaces one of the account's two keys.
    pub async fn rotate_key(
        &self,
        name: &str,
        slot: KeySlot,
        key: Key,
    ) -> Result<Arc<Account>, AccountError> {
        self.edit(name, move |account| settings::replace_key(account, slot, key.clone())).await
    }

    /// Replaces all keys of the account.
    pub async fn set_keys(&self, name: &str, keys: Vec<Key>) -> Result<Arc<Account>, AccountError> {
        settings::check_keys(&keys)?;
        self.edit(name, move |account| {
            account.keys.clone_from(&keys);
            Ok(())
        })
        .await
    }

    /// Removes an account with its keys, settings and service properties permanently. Its data is garbage.
    pub async fn remove(&self, name: &str) -> Result<(), AccountError> {
        let of = name.to_owned();
        self.change(name, Reads::key(record::ACCOUNT), move |rows| match rows.row(&record::ACCOUNT) {
            None => Err(AccountError::NotFound(of.clone())),
            Some(_) => Ok(Change::of(removal(&of))),
        })
        .await
    }

    /// Removes an account. The account and its data can be restored for [`RETENTION`]. Returns when that
    /// ends.
    pub async fn retire(&self, name: &str) -> Result<Timestamp, AccountError> {
        let of = name.to_owned();
        let kept_until = Arc::new(AtomicU64::new(0));
        let (committed, shared) = (kept_until.clone(), self.shared.clone());
        let reads = Reads::keys(all_rows()).and_range(record::all_retired(), MAX_RETIRED);
        self.change(name, reads, move |rows| {
            let row = rows.row(&record::ACCOUNT).ok_or_else(|| AccountError::NotFound(of.clone()))?;
            if rows.ranges().iter().any(|retired| retired.more || retired.rows.len() >= MAX_RETIRED) {
                return Err(AccountError::TooManyRetired(of.clone()));
            }
            let account = decode_account(&of, row)?;
            let mut properties = BTreeMap::new();
            for service in ServiceKind::ALL {
                if let Some(row) = rows.row(&record::properties(service)) {
                    properties.insert(service, decode_properties(&of, Some(row))?);
                }
            }
            let until = rows.now + RETENTION;
            committed.store(until.ticks(), Ordering::Relaxed);
            // Schedule before the commit: an early check is harmless, a missing one is not.
            shared.next_expiry.fetch_min(until.ticks(), Ordering::AcqRel);
            let key = record::retired(account.generation);
            let mut mutations = removal(&of);
            mutations.extend(put(key, &Retired::new(account, properties, rows.now, until))?.mutations);
            Ok(Change::of(mutations))
        })
        .await?;
        let until = kept_until.load(Ordering::Relaxed);
        // A check that ran before the commit has not seen it.
        self.shared.next_expiry.fetch_min(until, Ordering::AcqRel);
        Ok(Timestamp::from_ticks(until))
    }

    /// Restores a removed account with its keys, settings and data. Several removed accounts can have one
    /// name: restores the one of this generation, or the one that was removed last.
    pub async fn restore_retired(
        &self,
        name: &str,
        generation: Option<u64>,
    ) -> Result<Arc<Account>, AccountError> {
        let (of, shared) = (name.to_owned(), self.shared.clone());
        let reads = Reads::key(record::ACCOUNT).and_range(record::all_retired(), MAX_RETIRED);
        self.change(name, reads, move |rows| {
            let mut found: Option<(&Row, Retired)> = None;
            for row in rows.ranges().iter().flat_map(|range| &range.rows) {
                let retired = decode_retired(&of, row)?;
                let is_named = generation.is_none_or(|wanted| wanted == retired.account.generation);
                let is_newer = found.as_ref().is_none_or(|(_, best)| best.removed() <= retired.removed());
                if retired.kept_until() > rows.now && is_named && is_newer {
                    found = Some((row, retired));
                }
            }
            let (row, retired) = found.ok_or_else(|| AccountError::NotRetired(of.clone()))?;
            if rows.row(&record::ACCOUNT).is_some() {
                return Err(AccountError::NameInUse(of.clone()));
            }
            if shared.reserved.lock().contains_key(&of) {
                return Err(AccountError::Restoring(of.clone()));
            }
            let mut mutations = put(record::ACCOUNT, &retired.account)?.mutations;
            for (service, properties) in &retired.properties {
                mutations.extend(put(record::properties(*service), properties)?.mutations);
            }
            mutations.push(Mutation::Delete(row.key.clone()));
            // Afterwards a sweep may have removed data.
            Ok(Change::of(mutations).until(Some(retired.kept_until())))
        })
        .await?;
        self.existing(name).await
    }

    /// Returns the removed accounts that can be restored, sorted by name, then by age.
    pub async fn retired(&self) -> Result<Vec<RetiredAccount>, AccountError> {
        let now = self.shared.store.now();
        let rows = self.shared.retired_rows().await?.into_iter().map(|(_, retired)| retired);
        let kept = rows.filter(|retired| retired.kept_until() > now);
        Ok(kept.map(RetiredAccount::from).collect())
    }

    /// Returns whether [`AccountDirectory::forget_expired`] may find something to do. Cheap.
    pub fn expiry_due(&self) -> bool {
        self.shared.next_expiry.load(Ordering::Acquire) <= self.shared.store.now().ticks()
    }

    /// Forgets removed accounts that can no longer be restored. Returns how many there were.
    pub async fn forget_expired(&self) -> Result<usize, AccountError> {
        // Accounts that are removed from here on schedule the next check themselves.
        self.shared.next_expiry.store(u64::MAX, Ordering::Release);
        let forgotten = self.try_forget_expired().await;
        if forgotten.is_err() {
            self.shared.next_expiry.store(0, Ordering::Release);
        }
        forgotten
    }

    async fn try_forget_expired(&self) -> Result<usize, AccountError> {
        let mut count = 0;
        for (name, retired) in self.shared.retired_rows().await? {
            if retired.kept_until() > self.shared.store.now() {
                self.shared.next_expiry.fetch_min(retired.kept_until().ticks(), Ordering::AcqRel);
                continue;
            }
            let (of, key) = (name.clone(), record::retired(retired.account.generation));
            let reads = Reads::key(key.clone());
            // The account may have been restored, and removed again under the same key, since the scan.
            let change = move |rows: &View<'_>| match rows.row(&key) {
                Some(row) if decode_retired(&of, row)?.kept_until() <= rows.now => {
                    Ok(Change::of([Mutation::Delete(key.clone())]))
                }
                _ => Err(AccountError::NotRetired(of.clone())),
            };
            match self.change(&name, reads, change).await {
                Ok(()) => count += 1,
                Err(AccountError::NotRetired(_)) => self.shared.next_expiry.store(0, Ordering::Release),
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Returns whether an account owns the data that is stored under its name and generation.
    pub async fn ownership(&self, name: &str, generation: u64) -> Result<Ownership, AccountError> {
        // Check the reservation first: it ends only after the account exists.
        if self.is_reserved(name, generation)
            || self.get(name).await?.is_some_and(|account| account.generation == generation)
        {
            return Ok(Ownership::Owned);
        }
        // Wait until a change that may restore the account has ended.
        let _guard = self.shared.changing.lock().await;
        let is_owner = |rows: AccountRows| rows.account.generation == generation;
        if self.is_reserved(name, generation) || self.shared.read(name).await?.is_some_and(is_owner) {
            return Ok(Ownership::Owned);
        }
        let reads = Reads::key(record::retired(generation));
        let set = self.shared.store.read(&record::partition(name), &reads).await?;
        let Some(row) = set.rows.first().and_then(Option::as_ref) else { return Ok(Ownership::Orphaned) };
        let kept_until = decode_retired(name, row)?.kept_until();
        Ok(match kept_until > self.shared.store.now() {
            true => Ownership::KeptUntil(kept_until),
            false => Ownership::Orphaned,
        })
    }

    /// Returns whether the development account was removed at some time. Then it is not created again unless
    /// an operator asks for it.
    pub async fn development_account_was_removed(&self) -> Result<bool, AccountError> {
        let partition = record::partition(DEVELOPMENT_ACCOUNT);
        let set = self.shared.store.read(&partition, &Reads::key(record::NO_DEFAULT)).await?;
        Ok(set.rows.first().is_some_and(Option::is_some))
    }

    /// Returns the store of the accounts.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Changes the properties of a service. Root elements that are missing in the update are unchanged.
    pub async fn set_properties(
        &self,
        account: &str,
        service: ServiceKind,
        update: Update,
    ) -> Result<(), AccountError> {
        let key = record::properties(service);
        let reads = Reads::keys([record::ACCOUNT, key.clone()]);
        let name = account.to_owned();
        self.change(account, reads, move |rows| {
            if rows.row(&record::ACCOUNT).is_none() {
                return Err(AccountError::NotFound(name.clone()));
            }
            let mut properties = decode_properties(&name, rows.row(&key))?;
            properties.apply(update.clone());
            put(key.clone(), &properties)
        })
        .await
    }

    async fn edit(
        &self,
        name: &str,
        edit: impl Fn(&mut Account) -> Result<(), Rejection> + Send + 'static,
    ) -> Result<Arc<Account>, AccountError> {
        let of = name.to_owned();
        self.change(name, Reads::key(record::ACCOUNT), move |rows| {
            let row = rows.row(&record::ACCOUNT).ok_or_else(|| AccountError::NotFound(of.clone()))?;
            let mut account = decode_account(&of, row)?;
            edit(&mut account)?;
            put(record::ACCOUNT, &account)
        })
        .await?;
        self.existing(name).await
    }

    async fn existing(&self, name: &str) -> Result<Arc<Account>, AccountError> {
        self.get(name).await?.ok_or_else(|| AccountError::NotFound(name.into()))
    }

    /// Commits the rule's decision on the account's rows, and updates the cache.
    async fn change(
        &self,
        name: &str,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>) -> Result<Change, AccountError> + Send + 'static,
    ) -> Result<(), AccountError> {
        let (shared, name) = (self.shared.clone(), name.to_owned());
        let changed = async move {
            let _guard = shared.changing.lock().await;
            let rule = |rows: &View<'_>| rule(rows).map(|change| Decision::Write(change, ()));
            let committed =
                transact(&*shared.store, &shared.gate, &record::partition(&name), reads, rule).await;
            if !matches!(committed, Err(TransactError::Refused(_)))
                && let Err(error) = shared.refresh(&name).await
            {
                tracing::error!(%error, account = name, "could not read back a changed account; the next request retries");
                shared.accounts.write().insert(name, CachedAccount::Stale);
            }
            shared.changes.send_modify(|changes| *changes += 1);
            committed
        };
        let changed = tokio::spawn(changed.in_current_span());
        changed.await.map_err(|_| AccountError::Stopping)?.map_err(not_changed)
    }
}

impl Shared {
    async fn lookup(&self, name: &str) -> Result<Option<AccountRows>, AccountError> {
        match self.accounts.read().get(name) {
            Some(CachedAccount::Current(rows)) => return Ok(Some(rows.clone())),
            None => return Ok(None),
            Some(CachedAccount::Stale) => {}
        }
        let _guard = self.changing.lock().await;
        self.refresh(name).await
    }

    /// Reads an account from the store into the cache. The caller must hold `changing`.
    async fn refresh(&self, name: &str) -> Result<Option<AccountRows>, AccountError> {
        let read = self.read(name).await?;
        let mut accounts = self.accounts.write();
        match &read {
            Some(rows) => drop(accounts.insert(name.into(), CachedAccount::Current(rows.clone()))),
            None => drop(accounts.remove(name)),
        }
        Ok(read)
    }

    async fn read(&self, name: &str) -> Result<Option<AccountRows>, AccountError> {
        let set = self.store.read(&record::partition(name), &Reads::keys(all_rows())).await?;
        let mut rows = set.rows.iter().map(Option::as_ref);
        let Some(Some(account)) = rows.next() else { return Ok(None) };
        let account = Arc::new(decode_account(name, account)?);
        let mut properties = [(); ServiceKind::ALL.len()].map(|()| Arc::default());
        for (properties, row) in properties.iter_mut().zip(rows) {
            *properties = Arc::new(decode_properties(name, row)?);
        }
        Ok(Some(AccountRows { account, properties }))
    }
}

impl Shared {
    /// Returns the names and rows of all removed accounts.
    async fn retired_rows(&self) -> Result<Vec<(String, Retired)>, AccountError> {
        let mut found = vec![];
        let mut from = (Bytes::from_static(record::ACCOUNTS), Bytes::new());
        loop {
            let end = Some((Bytes::from_static(record::AFTER_ACCOUNTS), Bytes::new()));
            let page = self.store.scan_space(SpaceId::ROOT, from, end, Which::All, ACCOUNTS_PER_SCAN).await?;
            for (partition, row) in page.rows.iter().filter(|(_, row)| record::is_retired(&row.key)) {
                let name = String::from_utf8_lossy(&partition[record::ACCOUNTS.len()..]).into_owned();
                let retired = decode_retired(&name, row)?;
                found.push((name, retired));
            }
            match page.next {
                Some(next) => from = next,
                None => return Ok(found),
            }
        }
    }
}

impl From<Retired> for RetiredAccount {
    fn from(retired: Retired) -> Self {
        let (removed, kept_until) = (retired.removed(), retired.kept_until());
        Self { account: retired.account, removed, kept_until }
    }
}

#[async_trait]
impl Accounts for AccountDirectory {
    async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Refusal> {
        Ok(self.get(name).await?)
    }

    async fn service_properties(
        &self,
        account: &Account,
        service: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, Refusal> {
        Ok(self.properties(&account.name, service).await?)
    }
}

impl From<AccountError> for Refusal {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Store(error) => {
                let gone = || internal_error("the space of the accounts is closed");
                transaction_refusal("the account's partition", error, gone)
            }
            // The account was removed while the request was in progress.
            AccountError::NotFound(_) | AccountError::NotRetired(_) => ErrorCode::ResourceNotFound.into(),
            AccountError::Rejected(rejection) => Self::new(ErrorCode::InvalidInput).message(rejection.0),
            AccountError::Exists(_) | AccountError::NameInUse(_) => ErrorCode::AccountAlreadyExists.into(),
            AccountError::Restoring(_) => ErrorCode::AccountBeingCreated.into(),
            AccountError::Damaged { .. }
            | AccountError::TooManyRetired(_)
            | AccountError::Random(_)
            | AccountError::Read(_)
            | AccountError::Stopping => {
                tracing::error!(%error, "could not read or change an account");
                ErrorCode::InternalError.into()
            }
        }
    }
}

/// Returns the keys of all rows that an account can have: the account, then the properties of its services.
fn all_rows() -> impl Iterator<Item = Bytes> {
    std::iter::once(record::ACCOUNT).chain(ServiceKind::ALL.map(record::properties))
}

/// Returns the mutations that remove an account.
fn removal(name: &str) -> Vec<Mutation> {
    let mut mutations: Vec<_> = all_rows().map(Mutation::Delete).collect();
    if name == DEVELOPMENT_ACCOUNT {
        mutations.push(Mutation::Put(record::NO_DEFAULT, record::encode_bytes(&[])));
    }
    mutations
}

fn put(key: Bytes, record: &impl serde::Serialize) -> Result<Change, AccountError> {
    let value = record::encode(record).map_err(|error| Rejection(error.to_string()))?;
    Ok(Change::of([Mutation::Put(key, value)]))
}

fn decode_account(name: &str, row: &Row) -> Result<Account, AccountError> {
    record::decode(&row.value).map_err(|error| damaged(&record::partition(name), &row.key, &error))
}

fn decode_properties(name: &str, row: Option<&Row>) -> Result<ServiceProperties, AccountError> {
    let Some(row) = row else { return Ok(ServiceProperties::default()) };
    record::decode(&row.value).map_err(|error| damaged(&record::partition(name), &row.key, &error))
}

fn decode_retired(name: &str, row: &Row) -> Result<Retired, AccountError> {
    record::decode(&row.value).map_err(|error| damaged(&record::partition(name), &row.key, &error))
}

fn damaged(partition: &Partition, row: &[u8], error: &RecordError) -> AccountError {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    AccountError::Damaged { partition: text(&partition.key), row: text(row), why: error.to_string() }
}

/// Creates the root space if the engine has not created it yet.
async fn open_root(store: &dyn Store) -> Result<(), AccountError> {
    if store.space(SpaceId::ROOT).await?.is_some() {
        return Ok(());
    }
    let open = SpaceHeader { epoch: 0, open: true };
    match store.set_space(SpaceId::ROOT, None, open).await {
        Ok(()) | Err(CommitError::Conflict) => Ok(()),
        Err(error) => Err(AccountError::Store(TransactError::NotCommitted(error))),
    }
}

async fn master_secret(store: &dyn Store, gate: &Gate) -> Result<[u8; 32], AccountError> {
    let mut fresh = [0; 32];
    getrandom::fill(&mut fresh)?;
    let partition = record::server();
    let rule = |rows: &View<'_>| match rows.row(&record::MASTER_SECRET) {
        Some(row) => {
            let stored = record::decode_bytes(&row.value);
            stored.map(Decision::Answer).map_err(|error| damaged(&partition, &row.key, &error))
        }
        None => {
            let put = Mutation::Put(record::MASTER_SECRET, record::encode_bytes(&fresh));
            Ok(Decision::Write(Change::of([put]), fresh))
        }
    };
    let secret = transact(store, gate, &partition, Reads::key(record::MASTER_SECRET), rule).await;
    secret.map_err(not_changed)
}

fn not_changed(error: TransactError<AccountError>) -> AccountError {
    match error {
        TransactError::Refused(error) => error,
        TransactError::Gone => AccountError::Store(TransactError::Gone),
        TransactError::NotCommitted(error) => AccountError::Store(TransactError::NotCommitted(error)),
        TransactError::Unknown => AccountError::Store(TransactError::Unknown),
        TransactError::Read(error) => AccountError::Read(error),
    }
}
