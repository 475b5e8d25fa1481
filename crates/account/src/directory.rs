//! The directory of accounts: rows of the store, served from memory.
//!
//! All changes go through the one [`AccountDirectory`] of the process that has the data directory locked, so its
//! memory is exact: a change is in effect for every lookup that begins after it was acknowledged. A change runs in a
//! task of its own, because a caller that goes away must not leave the memory behind the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_protocol::properties::{ServiceProperties, Update};
use lazuli_protocol::{Account, Accounts, ErrorCode, Key, Refusal, ServiceKind};
use lazuli_store::{
    Change, CommitError, Decision, Gate, Mutation, Partition, ReadError, Reads, Row, SpaceHeader, SpaceId,
    Store, TransactError, View, Which, transact,
};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::record::{self, RecordError};
use crate::settings::{self, KeySlot, Rejection, Setting};

/// Accounts read at once when the directory is opened.
const PAGE: usize = 256;

/// Why an account was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// There is no account of that name.
    #[error("there is no account {0:?}")]
    NotFound(String),
    /// There is an account of that name already.
    #[error("there is an account {0:?} already")]
    Exists(String),
    /// A row is not what was written.
    #[error("damaged row {row:?} of {partition:?}: {why}")]
    Damaged {
        /// The key of its partition.
        partition: String,
        /// The key of the row.
        row: String,
        /// What is wrong with it.
        why: String,
    },
    /// The machine gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not carry out the change, or may not have.
    #[error("the store did not take the change: {0}")]
    Store(TransactError<Refusal>),
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

/// The accounts of one data directory.
#[derive(Clone)]
pub struct AccountDirectory {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    gate: Gate,
    /// By name. What is not in here does not exist.
    accounts: RwLock<BTreeMap<String, Known>>,
    /// Held from before a commit until the memory shows it.
    changing: tokio::sync::Mutex<()>,
    /// How many changes memory shows.
    changes: watch::Sender<u64>,
    master_secret: [u8; 32],
}

/// What memory knows of an account.
#[derive(Clone)]
enum Known {
    As(Entry),
    /// It was changed and could not be read back. The next lookup tries again.
    Stale,
}

#[derive(Clone)]
struct Entry {
    account: Arc<Account>,
    /// In the order of [`ServiceKind::ALL`].
    properties: [Arc<ServiceProperties>; ServiceKind::ALL.len()],
}

impl AccountDirectory {
    /// Reads all accounts. The first time it makes the server's secret.
    pub async fn open(store: Arc<dyn Store>) -> Result<Self, AccountError> {
        open_root(&*store).await?;
        let gate = Gate::default();
        let master_secret = master_secret(&*store, &gate).await?;
        let shared = Shared {
            store,
            gate,
            accounts: RwLock::default(),
            changing: Default::default(),
            changes: watch::Sender::default(),
            master_secret,
        };
        let mut from = (Bytes::from_static(record::ACCOUNTS), Bytes::new());
        loop {
            let end = Some((Bytes::from_static(record::AFTER_ACCOUNTS), Bytes::new()));
            let page = shared.store.scan_space(SpaceId::ROOT, from, end, Which::First, PAGE).await?;
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

    /// The account of that name.
    pub async fn get(&self, name: &str) -> Result<Option<Arc<Account>>, AccountError> {
        Ok(self.shared.entry(name).await?.map(|entry| entry.account))
    }

    /// All accounts, by name.
    pub async fn list(&self) -> Result<Vec<Arc<Account>>, AccountError> {
        let names: Vec<String> = self.shared.accounts.read().keys().cloned().collect();
        let mut accounts = Vec::with_capacity(names.len());
        for name in names {
            accounts.extend(self.get(&name).await?);
        }
        Ok(accounts)
    }

    /// The properties of one service of an account.
    pub async fn properties(
        &self,
        account: &str,
        service: ServiceKind,
    ) -> Result<Arc<ServiceProperties>, AccountError> {
        let entry = self.shared.entry(account).await?;
        let entry = entry.ok_or_else(|| AccountError::NotFound(account.into()))?;
        Ok(entry.properties[service as usize].clone())
    }

    /// Counts changes, each before it is acknowledged: who goes on relying on an account has to look again when this has moved on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.shared.gate.retries()
    }

    /// 32 random bytes that are this data directory's own, for keys that are derived instead of stored.
    pub fn master_secret(&self) -> [u8; 32] {
        self.shared.master_secret
    }

    /// Adds an account.
    pub async fn add(&self, account: Account) -> Result<Arc<Account>, AccountError> {
        settings::check_new(&account)?;
        let name = account.name.clone();
        let added =
            self.change(&name, Reads::key(record::ACCOUNT), move |rows| match rows.row(&record::ACCOUNT) {
                Some(_) => Err(AccountError::Exists(account.name.clone())),
                None => put(record::ACCOUNT, &Account { generation: rows.stamp.ticks(), ..account.clone() }),
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

    /// Puts a new key in place of one of the two.
    pub async fn rotate_key(
        &self,
        name: &str,
        slot: KeySlot,
        key: Key,
    ) -> Result<Arc<Account>, AccountError> {
        self.edit(name, move |account| settings::replace_key(account, slot, key.clone())).await
    }

    /// Puts these keys in place of all that the account has.
    pub async fn set_keys(&self, name: &str, keys: Vec<Key>) -> Result<Arc<Account>, AccountError> {
        settings::check_keys(&keys)?;
        self.edit(name, move |account| {
            account.keys.clone_from(&keys);
            Ok(())
        })
        .await
    }

    /// Removes an account with its keys, settings and service properties.
    pub async fn remove(&self, name: &str) -> Result<(), AccountError> {
        let missing = name.to_owned();
        self.change(name, Reads::key(record::ACCOUNT), move |rows| match rows.row(&record::ACCOUNT) {
            None => Err(AccountError::NotFound(missing.clone())),
            Some(_) => Ok(Change::of(all_rows().map(Mutation::Delete).collect::<Vec<_>>())),
        })
        .await
    }

    /// Changes the properties of a service: the roots that the update names.
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

    /// Commits what the rule decides on the account's rows, and shows it.
    async fn change(
        &self,
        name: &str,
        reads: Reads,
        mut rule: impl FnMut(&View<'_>) -> Result<Change, AccountError> + Send + 'static,
    ) -> Result<(), AccountError> {
        let (shared, name) = (self.shared.clone(), name.to_owned());
        let changed = tokio::spawn(async move {
            let _turn = shared.changing.lock().await;
            let rule = |rows: &View<'_>| rule(rows).map(|change| Decision::Write(change, ()));
            let committed =
                transact(&*shared.store, &shared.gate, &record::partition(&name), reads, rule).await;
            if !matches!(committed, Err(TransactError::Refused(_)))
                && let Err(error) = shared.refresh(&name).await
            {
                tracing::error!(%error, account = name, "a changed account cannot be read back");
                shared.accounts.write().insert(name, Known::Stale);
            }
            shared.changes.send_modify(|changes| *changes += 1);
            committed
        });
        changed.await.map_err(|_| AccountError::Stopping)?.map_err(not_changed)
    }
}

impl Shared {
    async fn entry(&self, name: &str) -> Result<Option<Entry>, AccountError> {
        match self.accounts.read().get(name) {
            Some(Known::As(entry)) => return Ok(Some(entry.clone())),
            None => return Ok(None),
            Some(Known::Stale) => {}
        }
        let _turn = self.changing.lock().await;
        self.refresh(name).await
    }

    /// Brings memory up to the store. Only while nobody else changes the account.
    async fn refresh(&self, name: &str) -> Result<Option<Entry>, AccountError> {
        let entry = self.read(name).await?;
        let mut accounts = self.accounts.write();
        match &entry {
            Some(entry) => drop(accounts.insert(name.into(), Known::As(entry.clone()))),
            None => drop(accounts.remove(name)),
        }
        Ok(entry)
    }

    async fn read(&self, name: &str) -> Result<Option<Entry>, AccountError> {
        let set = self.store.read(&record::partition(name), &Reads::keys(all_rows())).await?;
        let mut rows = set.rows.iter().map(Option::as_ref);
        let Some(Some(account)) = rows.next() else { return Ok(None) };
        let account = Arc::new(decode_account(name, account)?);
        let mut properties = [(); ServiceKind::ALL.len()].map(|()| Arc::default());
        for (properties, row) in properties.iter_mut().zip(rows) {
            *properties = Arc::new(decode_properties(name, row)?);
        }
        Ok(Some(Entry { account, properties }))
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
            AccountError::Store(error) => crate::refusal(error, || ErrorCode::InternalError.into()),
            // The account went while the request was under way.
            AccountError::NotFound(_) => ErrorCode::ResourceNotFound.into(),
            AccountError::Rejected(rejection) => Self::new(ErrorCode::InvalidInput).message(rejection.0),
            AccountError::Exists(_) => ErrorCode::AccountAlreadyExists.into(),
            AccountError::Damaged { .. }
            | AccountError::Random(_)
            | AccountError::Read(_)
            | AccountError::Stopping => {
                tracing::error!(%error, "the directory of accounts failed");
                ErrorCode::InternalError.into()
            }
        }
    }
}

/// The rows that an account can have: itself first, then its services' properties.
fn all_rows() -> impl Iterator<Item = Bytes> {
    std::iter::once(record::ACCOUNT).chain(ServiceKind::ALL.map(record::properties))
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

fn damaged(partition: &Partition, row: &[u8], error: &RecordError) -> AccountError {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    AccountError::Damaged { partition: text(&partition.key), row: text(row), why: error.to_string() }
}

/// The root space is there from the start, but an engine may still be making it.
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
            let held = record::decode_bytes(&row.value);
            held.map(Decision::Answer).map_err(|error| damaged(&partition, &row.key, &error))
        }
        None => {
            let put = Mutation::Put(record::MASTER_SECRET, record::encode_bytes(&fresh));
            Ok(Decision::Write(Change::of([put]), fresh))
        }
    };
    let made = transact(store, gate, &partition, Reads::key(record::MASTER_SECRET), rule).await;
    made.map_err(not_changed)
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
