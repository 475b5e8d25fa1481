//! Takes in one object of a backup, which a client sends as a stream.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Stamp;
use lazuli_extents::Extents;
use lazuli_generations::{Incoming, Intake, keys};
use lazuli_protocol::ServiceKind;
use lazuli_store::embedded::transfer::Item;
use lazuli_store::{Commit, Mutation, Partition, Row, SpaceId, Store};
use tokio::runtime::Handle;

use super::{RestoredCounts, Target};
use crate::services::Services;
use crate::transfer::{StreamContents, StreamReader};

/// Rows and bytes of one commit. More of one partition take several.
const COMMIT_ROWS: usize = 128;
const COMMIT_BYTES: usize = 4 << 20;
/// Share snapshots that one object can have, with room for some that do not count.
const MAX_SNAPSHOTS: usize = 240;

/// What objects are taken into.
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

    /// Takes in the object of a stream. It is visible only if this succeeds. Blocks.
    pub(super) fn receive(
        &self,
        runtime: &Handle,
        target: &Target,
        input: impl Read,
    ) -> Result<RestoredCounts, String> {
        let service = self.services.get(target.service.name()).ok_or("there is no such service")?;
        let account =
            runtime.block_on(self.accounts.get(&target.account)).map_err(|error| error.to_string())?;
        let account = account.ok_or_else(|| format!("there is no account {}", target.account))?;
        let mut stream = StreamReader::new(input).map_err(|error| error.to_string())?;
        let mut contents = StreamContents::new(self.extents.clone());
        let mut taking =
            Taking { intakes: self, service, runtime, object: Object::default(), batch: Batch::default() };
        while let Some(frame) = stream.next().map_err(|error| error.to_string())? {
            match runtime.block_on(contents.frame(frame))? {
                Some(Item::Space { space, header, .. }) => {
                    let begun = runtime.block_on(service.begin(&account, &target.name, header.epoch));
                    let begun = begun.map_err(|refusal| format!("{}: {refusal}", target.name))?;
                    if taking.object.incoming.replace((space, begun)).is_some() {
                        return Err("the stream has more than one object".into());
                    }
                }
                Some(Item::Row { space, partition, row }) => taking.row(space, partition, row)?,
                Some(Item::Clock(_)) | None => {}
            }
        }
        // The stream has ended, and its checksum was right.
        taking.commit()?;
        let Object { incoming, value, snapshots } = taking.object;
        let ((_, incoming), value) = incoming.zip(value).ok_or("the stream has no object")?;
        let finished = runtime.block_on(service.finish(incoming, &target.name, &value, snapshots));
        finished.map_err(|refusal| format!("{}: {refusal}", target.name))?;
        let counts = stream.counts();
        Ok(RestoredCounts { rows: counts.rows, bytes: counts.bytes })
    }
}

/// The object that is taken in.
#[derive(Default)]
struct Object {
    /// The space that it had, and the one that it gets.
    incoming: Option<(SpaceId, Incoming)>,
    value: Option<Bytes>,
    snapshots: Vec<(Stamp, Bytes)>,
}

/// Rows of one partition that are committed together.
#[derive(Default)]
struct Batch {
    partition: Bytes,
    mutations: Vec<Mutation>,
    bytes: usize,
}

struct Taking<'a> {
    intakes: &'a Intakes,
    service: &'a Arc<dyn Intake>,
    runtime: &'a Handle,
    object: Object,
    batch: Batch,
}

impl Taking<'_> {
    fn row(&mut self, space: SpaceId, partition: Bytes, row: Row) -> Result<(), String> {
        if row.token.0 > self.intakes.store.stamp() {
            return Err("the backup is from the future: the clock of this server is behind".into());
        }
        if space == SpaceId::ROOT {
            match keys::snapshot_parts(&row.key) {
                Some((_, stamp)) if self.object.snapshots.len() < MAX_SNAPSHOTS => {
                    self.object.snapshots.push((stamp, row.value));
                }
                None if row.key == keys::CURRENT => self.object.value = Some(row.value),
                _ => return Err("the stream has a row that belongs to no object".into()),
            }
            return Ok(());
        }
        if self.object.incoming.as_ref().is_none_or(|(of, _)| *of != space) {
            return Err("the stream has a row of another object".into());
        }
        let value = self.service.value(&partition, &row.key, row.value);
        let value = value.map_err(|damage| format!("row {:?} of {partition:?}: {damage}", row.key))?;
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

    /// Commits the rows that wait, once their content is durable.
    fn commit(&mut self) -> Result<(), String> {
        let Batch { partition, mutations, .. } = std::mem::take(&mut self.batch);
        let Some((_, incoming)) = self.object.incoming.as_ref().filter(|_| !mutations.is_empty()) else {
            return Ok(());
        };
        let store = &self.intakes.store;
        self.runtime.block_on(self.intakes.extents.sync()).map_err(|error| error.to_string())?;
        let (stamp, epoch, conditions) = (store.stamp(), incoming.epoch(), vec![]);
        let commit = Commit { stamp, epoch, conditions, mutations, valid_until: None, bulk: true };
        let partition = Partition::new(incoming.space(), partition);
        self.runtime.block_on(store.commit(&partition, commit)).map(drop).map_err(|error| error.to_string())
    }
}
