//! Restores one object or one account of a backup that a client sends as a stream.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_account::{
    AccountDirectory, ReservedAccount, account_of_row, account_row_key, development_key, properties_of_row,
};
use lazuli_extents::Extents;
use lazuli_generations::{Incoming, Intake, Original, keys};
use lazuli_protocol::properties::ServiceProperties;
use lazuli_protocol::{Account, Key, ServiceKind};
use lazuli_store::embedded::transfer::Item;
use lazuli_store::{Commit, Mutation, Partition, Row, SpaceId, Store};
use tokio::runtime::Handle;

use super::{DevelopmentKey, RestoredCounts, Target};
use crate::services::Services;
use crate::transfer::{StreamContents, StreamReader};

/// Maximum number of rows and bytes of one commit.
const COMMIT_ROWS: usize = 128;
const COMMIT_BYTES: usize = 4 << 20;
/// Maximum number of share snapshots of one object, including incomplete ones.
const MAX_SNAPSHOTS: usize = 240;

/// The stores and services into which objects are restored.
#[derive(Clone)]
pub(crate) struct Intakes {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) extents: Arc<dyn Extents>,
    pub(crate) accounts: AccountDirectory,
    services: BTreeMap<&'static str, Arc<dyn Intake>>,
}

impl Intakes {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        extents: Arc<dyn Extents>,
        accounts: AccountDirectory,
        services: &Services,
    ) -> Self {
        let all: [(ServiceKind, Arc<dyn Intake>); 4] = [
            (ServiceKind::Blob, Arc::new(services.blob.clone())),
            (ServiceKind::Queue, Arc::new(services.queue.clone())),
            (ServiceKind::Table, Arc::new(services.table.clone())),
            (ServiceKind::File, Arc::new(services.file.clone())),
        ];
        let services = all.into_iter().map(|(kind, service)| (kind.name(), service)).collect();
        Self { store, extents, accounts, services }
    }

    /// Makes a sweep of each service due.
    pub(super) fn schedule_sweeps(&self) {
        self.services.values().for_each(|service| service.schedule_sweep());
    }

    /// Restores the object of a stream. The object becomes visible only on success. Blocks.
    pub(super) fn receive(
        &self,
        runtime: &Handle,
        target: &Target,
        input: impl Read,
    ) -> Result<RestoredCounts, String> {
        let account =
            runtime.block_on(self.accounts.get(&target.account)).map_err(|error| error.to_string())?;
        let account = account.ok_or_else(|| format!("there is no account {}", target.account))?;
        let mut contents = StreamContents::new(self.extents.clone());
        let mut receiver = ObjectReceiver::new(self, runtime, &account);
        let kind = target.service.name();
        let counts = self.read(runtime, input, &mut contents, |item| match item {
            Item::Space { space, header, .. } => receiver.space(space, header.epoch),
            Item::Row { space: SpaceId::ROOT, partition, row } => match keys::parts(&partition) {
                Some(parts) if parts.kind == kind => receiver.directory_row(kind, &target.name, row),
                _ => Err("the stream has a row of another kind".into()),
            },
            Item::Row { space, partition, row } => receiver.row(space, partition, row),
            Item::Clock(_) => Ok(()),
        })?;
        // The stream is complete and its checksum is right.
        if receiver.object.is_none() {
            return Err("the stream has no object".into());
        }
        receiver.finish(Some(&target.name))?;
        // Up to here, `contents` has kept sweeps from freeing the content of the last rows.
        drop(contents);
        Ok(counts)
    }

    /// Restores the account of a stream under a reserved name. The account becomes visible only on success.
    /// `new_keys`, if any, replace those of the backup. Blocks.
    pub(super) fn receive_account(
        &self,
        runtime: &Handle,
        reserved: ReservedAccount,
        new_keys: Vec<Key>,
        rule: DevelopmentKey,
        input: impl Read,
    ) -> Result<RestoredCounts, String> {
        let received = self.try_receive_account(runtime, reserved, new_keys, rule, input);
        if received.is_err() {
            // The reservation has ended, so the received rows belong to no account.
            self.schedule_sweeps();
        }
        received
    }

    fn try_receive_account(
        &self,
        runtime: &Handle,
        reserved: ReservedAccount,
        new_keys: Vec<Key>,
        rule: DevelopmentKey,
        input: impl Read,
    ) -> Result<RestoredCounts, String> {
        let owner = Account {
            name: reserved.name().to_owned(),
            generation: reserved.generation(),
            keys: vec![],
            settings: Default::default(),
            roles: vec![],
        };
        let mut contents = StreamContents::new(self.extents.clone());
        let mut receiver = ObjectReceiver::new(self, runtime, &owner);
        let mut original = OriginalAccount { new_keys, rule, account: None, properties: BTreeMap::new() };
        let counts = self.read(runtime, input, &mut contents, |item| match item {
            Item::Space { space, header, .. } => {
                receiver.finish(None)?;
                receiver.space(space, header.epoch)
            }
            Item::Row { space: SpaceId::ROOT, partition, row } => match keys::parts(&partition) {
                None => original.row(&partition, &row),
                Some(parts) if original.is_owner(&parts) => {
                    receiver.directory_row(parts.kind, parts.name, row)
                }
                Some(_) => Err("the stream has a row of another account".into()),
            },
            Item::Row { space, partition, row } => receiver.row(space, partition, row),
            Item::Clock(_) => Ok(()),
        })?;
        // The stream is complete and its checksum is right.
        receiver.finish(None)?;
        // Up to here, `contents` has kept sweeps from freeing the content of the last rows.
        drop(contents);
        let account = original.account.ok_or("the stream has no account")?;
        let added = self.accounts.add_reserved(reserved, account, original.properties);
        runtime.block_on(added).map_err(|error| error.to_string())?;
        Ok(counts)
    }

    /// Reads a stream to its end. Returns an error if the stream is incomplete. `contents` keeps the content
    /// of uncommitted rows, so the caller drops it only after the last commit.
    fn read(
        &self,
        runtime: &Handle,
        input: impl Read,
        contents: &mut StreamContents,
        mut take: impl FnMut(Item) -> Result<(), String>,
    ) -> Result<RestoredCounts, String> {
        let mut stream = StreamReader::new(input).map_err(|error| error.to_string())?;
        while let Some(frame) = stream.next().map_err(|error| error.to_string())? {
            if let Some(item) = runtime.block_on(contents.frame(frame))? {
                self.check_time(&item)?;
                take(item)?;
            }
        }
        let counts = stream.counts();
        Ok(RestoredCounts { rows: counts.rows, bytes: counts.bytes })
    }

    /// Refuses a row whose stamps this server could issue again.
    fn check_time(&self, item: &Item) -> Result<(), String> {
        match item {
            Item::Row { row, .. } if row.token.0 > self.store.stamp() => {
                Err("the backup is newer than the clock of this server; correct the clock".into())
            }
            _ => Ok(()),
        }
    }
}

/// The account in a stream.
struct OriginalAccount {
    new_keys: Vec<Key>,
    rule: DevelopmentKey,
    account: Option<Account>,
    properties: BTreeMap<ServiceKind, ServiceProperties>,
}

impl OriginalAccount {
    /// Records a row of the account itself.
    fn row(&mut self, partition: &Bytes, row: &Row) -> Result<(), String> {
        if let Some((service, properties)) = properties_of_row(partition, &row.key, &row.value) {
            self.properties.insert(service, properties);
            return Ok(());
        }
        let account = account_of_row(partition, &row.key, &row.value)
            .filter(|account| account_row_key(&account.name).0 == partition && self.account.is_none());
        let mut account = account.ok_or("the stream has a row that belongs to no account")?;
        if !self.new_keys.is_empty() {
            account.keys = std::mem::take(&mut self.new_keys);
        }
        if self.rule == DevelopmentKey::Refused && account.keys.contains(&development_key()) {
            return Err(
                "the account has the well-known development key, which is not for a server that other \
                        machines can reach: restore it under another name"
                    .into(),
            );
        }
        self.account = Some(account);
        Ok(())
    }

    /// Returns whether a partition of the directory belongs to the account.
    fn is_owner(&self, parts: &keys::Parts<'_>) -> bool {
        self.account.as_ref().is_some_and(|account| {
            (account.name.as_str(), account.generation) == (parts.account, parts.generation)
        })
    }
}

/// An object that is being restored.
struct Object {
    /// The space of the object in the backup.
    space: SpaceId,
    epoch: u64,
    /// The restored object; `None` until its row of the directory has arrived.
    restored: Option<RestoredObject>,
}

struct RestoredObject {
    service: Arc<dyn Intake>,
    name: String,
    incoming: Incoming,
    original: Original,
    has_row: bool,
}

/// Rows of one partition that are committed together.
#[derive(Default)]
struct Batch {
    partition: Bytes,
    mutations: Vec<Mutation>,
    bytes: usize,
}

/// Restores objects one at a time.
struct ObjectReceiver<'a> {
    intakes: &'a Intakes,
    runtime: &'a Handle,
    account: &'a Account,
    object: Option<Object>,
    batch: Batch,
}

impl<'a> ObjectReceiver<'a> {
    fn new(intakes: &'a Intakes, runtime: &'a Handle, account: &'a Account) -> Self {
        Self { intakes, runtime, account, object: None, batch: Batch::default() }
    }

    /// Begins the object of a space.
    fn space(&mut self, space: SpaceId, epoch: u64) -> Result<(), String> {
        if self.object.replace(Object { space, epoch, restored: None }).is_some() {
            return Err("the stream has more than one object".into());
        }
        Ok(())
    }

    /// Records the row of the directory that names the object, or one of its snapshots.
    fn directory_row(&mut self, kind: &str, name: &str, row: Row) -> Result<(), String> {
        let stray = || "the stream has a row that belongs to no object".to_owned();
        let object = self.object.as_mut().ok_or_else(stray)?;
        let restored = match &mut object.restored {
            Some(restored) => restored,
            restored => {
                let service = self.intakes.services.get(kind).ok_or("there is no such service")?.clone();
                let incoming = self.runtime.block_on(service.begin(self.account, name, object.epoch));
                let incoming = incoming.map_err(|refusal| format!("{name}: {refusal}"))?;
                let (name, original) = (name.to_owned(), Original::default());
                restored.insert(RestoredObject { service, name, incoming, original, has_row: false })
            }
        };
        let deleted = keys::deleted_at(&row.key);
        if let Some((_, stamp)) = keys::snapshot_parts(&row.key)
            && restored.original.snapshots.len() < MAX_SNAPSHOTS
        {
            restored.original.snapshots.push((stamp, row.value));
        } else if !restored.has_row && (deleted.is_some() || row.key == keys::CURRENT) {
            (restored.original.value, restored.original.deleted, restored.has_row) =
                (row.value, deleted, true);
        } else {
            return Err(stray());
        }
        Ok(())
    }

    /// Adds a row of the object to the batch. Commits a full batch first.
    fn row(&mut self, space: SpaceId, partition: Bytes, row: Row) -> Result<(), String> {
        let object = self.object.as_ref().filter(|object| object.space == space);
        let restored = object.and_then(|object| object.restored.as_ref());
        let restored = restored.ok_or("the stream has a row of another object")?;
        let value = restored.service.value(&partition, &row.key, row.value);
        let value = value
            .map_err(|damage| format!("{}: row {:?} of {partition:?}: {damage}", restored.name, row.key))?;
        let bytes = row.key.len() + value.len();
        let is_full = self.batch.mutations.len() == COMMIT_ROWS || self.batch.bytes + bytes > COMMIT_BYTES;
        if is_full || self.batch.partition != partition {
            self.commit()?;
        }
        self.batch.partition = partition;
        self.batch.bytes += bytes;
        self.batch.mutations.push(Mutation::Put(row.key, value));
        Ok(())
    }

    /// Commits the last rows and makes the object visible, if one was begun.
    fn finish(&mut self, renamed: Option<&str>) -> Result<(), String> {
        self.commit()?;
        let Some(object) = self.object.take() else { return Ok(()) };
        let restored = object.restored.filter(|restored| restored.has_row);
        let RestoredObject { service, name, incoming, original, .. } =
            restored.ok_or("the stream has no object")?;
        let finished = self.runtime.block_on(service.finish(incoming, renamed, original));
        finished.map_err(|refusal| format!("{name}: {refusal}"))
    }

    /// Makes the content of the batch durable, then commits its rows.
    fn commit(&mut self) -> Result<(), String> {
        let Batch { partition, mutations, .. } = std::mem::take(&mut self.batch);
        let restored = self.object.as_ref().and_then(|object| object.restored.as_ref());
        let Some(restored) = restored.filter(|_| !mutations.is_empty()) else { return Ok(()) };
        let (store, incoming) = (&self.intakes.store, &restored.incoming);
        self.runtime.block_on(self.intakes.extents.sync()).map_err(|error| error.to_string())?;
        let (stamp, epoch, conditions) = (store.stamp(), incoming.epoch(), vec![]);
        let commit =
            Commit { stamp, epoch, conditions, mutations, valid_until: None, fence: None, bulk: true };
        let partition = Partition::new(incoming.space(), partition);
        self.runtime.block_on(store.commit(&partition, commit)).map(drop).map_err(|error| error.to_string())
    }
}
