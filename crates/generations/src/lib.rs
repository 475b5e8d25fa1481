//! Generations: shared code for containers, tables, queues and shares.
//!
//! Each resource is a row that names a space, and the space holds the resource's data. The rows lie in the
//! directory, one partition for each name. A delete moves the row to another key and closes the space, so its
//! cost does not depend on the amount of data. The name is free at once. A resource that is created again
//! gets a new space and never sees the old one.
//!
//! The row and the space's header are two commits, and **the row decides**. A space must be open if the
//! current row names it, and closed if a deleted or garbage row names it. If neither does, the resource was
//! [renamed](rename), and another name decides about the space.
//!
//! Each operation that moves a row makes the header follow before it answers. It raises the epoch even if the
//! header is right already, because an earlier move may be about to change the header based on the row that
//! it saw. The header is always read before the row and replaced only if unchanged, so the last change of the
//! header has seen the last move. A crash between the two commits leaves a stale header, which
//! [`Generations::sweep`] repairs.
//!
//! [`keys`] names the rows, [`sweep`] removes deleted data.

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod incoming;
pub mod keys;
mod list;
mod rename;
mod slot;
pub mod sweep;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::{Account, ErrorCode, Refusal};
use lazuli_service::{Damage, Rows, commit_refusal, read_refusal, record, run_to_completion};
use lazuli_store::{
    Change, CommitError, Decision, Mutation, Partition, Reads, SpaceHeader, SpaceId, Store, View,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use incoming::{Incoming, Intake, Original};
pub use list::{ListInclude, ListedGeneration};
pub use slot::{is_being_renamed, named_space};
pub use sweep::{ContentRefs, GarbageWatch, Reopened, Swept};

use incoming::IncomingSpaces;
use slot::{Renaming, Slot};

/// Maximum number of attempts of one operation that conflicts with others.
const MAX_ATTEMPTS: usize = 64;

/// The record in the row of a container, table, queue or share.
pub trait Generation: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The first part of partition keys of this kind, up to the first slash.
    const KIND: &'static str;
    /// The refusal of a request for a missing resource.
    const NOT_FOUND: ErrorCode;
    /// The refusal of a request that needs a free name.
    const ALREADY_EXISTS: ErrorCode;

    /// Returns the space with the resource's data.
    fn space(&self) -> SpaceId;

    /// Encodes the record as the value of a row.
    fn encode(&self) -> Result<Bytes, Refusal> {
        record::encode(self)
    }

    /// Decodes the value of a row.
    fn decode(value: &Bytes) -> Result<Self, Damage> {
        record::decode(value)
    }

    /// Returns the time until which a deleted generation can be restored.
    fn kept_until(&self) -> Option<Timestamp> {
        None
    }
}

/// All generations of one kind. Clones share their state.
pub struct Generations<G> {
    store: Arc<dyn Store>,
    accounts: AccountDirectory,
    rows: Rows,
    garbage: Arc<GarbageWatch>,
    /// Set when a sweep has opened a space.
    reopened: Arc<AtomicBool>,
    /// Serializes the renames of this process.
    renames: Arc<tokio::sync::Mutex<()>>,
    /// Spaces that are being filled.
    incoming: Arc<IncomingSpaces>,
    kind: PhantomData<fn() -> G>,
}

impl<G> Clone for Generations<G> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            accounts: self.accounts.clone(),
            rows: self.rows.clone(),
            garbage: self.garbage.clone(),
            reopened: self.reopened.clone(),
            renames: self.renames.clone(),
            incoming: self.incoming.clone(),
            kind: PhantomData,
        }
    }
}

/// Result of creating a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<G> {
    /// The resource was created.
    New(G),
    /// A resource of that name exists already.
    Existing(G),
}

/// The kind of a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Keep the row, as the rule left it, so that clients can restore it until [`Generation::kept_until`].
    pub keep: bool,
    /// The delete may only commit before this time.
    pub valid_until: Option<Timestamp>,
}

/// Why a space's header is compared with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReconcileReason {
    /// The row was moved just now.
    Moved,
    /// The header may be stale after a crash or a failure.
    Repair,
}

impl<G: Generation> Generations<G> {
    /// Returns the generations of this kind in a store.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let rows = Rows::new(store.clone(), ErrorCode::InternalError);
        let (garbage, reopened, renames, incoming) = Default::default();
        Self { store, accounts, rows, garbage, reopened, renames, incoming, kind: PhantomData }
    }

    /// Returns the current generation of a name, if there is one.
    pub async fn find(&self, account: &Account, name: &str) -> Result<Option<G>, Refusal> {
        self.current(&keys::partition(G::KIND, account, name)).await
    }

    /// Returns the current generation of a name, or the refusal for a missing one.
    pub async fn get(&self, account: &Account, name: &str) -> Result<G, Refusal> {
        self.find(account, name).await?.ok_or_else(not_found::<G>)
    }

    async fn current(&self, partition: &Partition) -> Result<Option<G>, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let set = self.store.read(partition, &Reads::key(keys::CURRENT)).await;
            let row = set.map_err(read_refusal)?.rows.into_iter().next().flatten();
            match Slot::of(row.as_ref()).map_err(|damage| damage.at(partition))? {
                Slot::Free => return Ok(None),
                Slot::Held(current) => return Ok(Some(current)),
                Slot::Renaming(renaming) => {
                    if let Some(current) = self.current_if_pending(&renaming).await? {
                        return Ok(current);
                    }
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Creates a resource with a new space, unless the name is taken. Runs detached, so the space is either
    /// named or garbage in the end.
    pub async fn create(
        &self,
        account: &Account,
        name: &str,
        mut make: impl FnMut(SpaceId, &View<'_>) -> G + Send + 'static,
    ) -> Result<Created<G>, Refusal> {
        let partition = keys::partition(G::KIND, account, name);
        if let Some(existing) = self.current(&partition).await? {
            return Ok(Created::Existing(existing));
        }
        let this = self.clone();
        let created = async move {
            let space = this.open_space().await?;
            let created = this.transact_current(&partition, Reads::default(), |current, view| {
                if let Some(existing) = current {
                    let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
                    return Ok(Decision::Write(Change::of([garbage]), Created::Existing(existing)));
                }
                let new = make(space, view);
                let put = Mutation::Put(keys::CURRENT, new.encode()?);
                Ok(Decision::Write(Change::of([put]), Created::New(new)))
            });
            let created = created.await;
            match created {
                Ok(Created::New(_)) => {}
                Ok(Created::Existing(_)) => this.garbage.schedule(None),
                Err(_) => this.discard(&partition, space).await,
            }
            created
        };
        run_to_completion(created).await
    }

    /// Marks a space as garbage that was opened for this name, unless the name's current row names it.
    async fn discard(&self, partition: &Partition, space: SpaceId) {
        let discarded = self.transact_current(partition, Reads::default(), |current, _| {
            if current.is_some_and(|current: G| current.space() == space) {
                return Ok(Decision::Answer(()));
            }
            let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
            Ok(Decision::Write(Change::of([garbage]), ()))
        });
        if let Err(refusal) = discarded.await {
            tracing::debug!(%refusal, ?space, "could not mark an unused space as garbage; its header remains");
        }
        self.garbage.schedule(None);
    }

    /// Opens a new space. If the process crashes before a row names the space, only its header remains.
    async fn open_space(&self) -> Result<SpaceId, Refusal> {
        let space = self.store.new_space().await.map_err(|error| commit_refusal("a new space", error))?;
        let header = SpaceHeader { epoch: 0, open: true };
        self.store.set_space(space, None, header).await.map_err(|error| commit_refusal(space, error))?;
        Ok(space)
    }

    /// Changes the current generation of a name. The rule may limit until when its decision may commit.
    pub async fn change<T>(
        &self,
        account: &Account,
        name: &str,
        mut rule: impl FnMut(&mut G, &View<'_>) -> Result<(T, Option<Timestamp>), Refusal>,
    ) -> Result<(G, T), Refusal> {
        let partition = keys::partition(G::KIND, account, name);
        let changed = self.transact_current(&partition, Reads::default(), |current, view| {
            let mut current = current.ok_or_else(not_found::<G>)?;
            let (answer, until) = rule(&mut current, view)?;
            let put = Mutation::Put(keys::CURRENT, current.encode()?);
            Ok(Decision::Write(Change::of([put]).until(until), (current, answer)))
        });
        changed.await
    }

    /// Deletes the current generation of a name, if the rule allows it. Runs detached.
    pub async fn remove(
        &self,
        account: Arc<Account>,
        name: &str,
        rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        self.remove_with_reads(account, name, Reads::default(), rule).await
    }

    /// Deletes like [`Generations::remove`], with a rule that also gets other rows of the partition.
    pub async fn remove_with_reads(
        &self,
        account: Arc<Account>,
        name: &str,
        reads: Reads,
        rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        let (this, partition) = (self.clone(), keys::partition(G::KIND, &account, name));
        run_to_completion(async move { this.retire(&partition, reads, rule).await }).await
    }

    async fn retire(
        &self,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal>,
    ) -> Result<(), Refusal> {
        let moved = self.transact_current(partition, reads, |current, view| {
            let mut current = current.ok_or_else(not_found::<G>)?;
            let removal = rule(&mut current, view)?;
            let (retired, value) = match removal.keep {
                false => (keys::garbage(current.space()), Bytes::new()),
                true => (keys::deleted(view.stamp), current.encode()?),
            };
            let mutations = [
                Mutation::Delete(keys::CURRENT),
                Mutation::Delete(keys::GUARD),
                Mutation::Put(retired.clone(), value),
            ];
            let kept_until = current.kept_until().filter(|_| removal.keep);
            let change = Change::of(mutations).until(removal.valid_until);
            Ok(Decision::Write(change, (current.space(), retired, kept_until)))
        });
        let (space, retired, kept_until) = moved.await?;
        self.garbage.schedule(kept_until);
        self.reconcile_header(partition, space, &retired, ReconcileReason::Moved).await
    }

    /// Empties a resource at once, independent of its size: `renew` gives it a new space, and the old space
    /// becomes garbage. Returns the old space. Runs detached.
    pub async fn renew(
        &self,
        account: Arc<Account>,
        name: &str,
        mut renew: impl FnMut(&mut G, SpaceId) + Send + 'static,
    ) -> Result<SpaceId, Refusal> {
        let (this, partition) = (self.clone(), keys::partition(G::KIND, &account, name));
        let renewed = async move {
            let space = this.open_space().await?;
            let moved = this.transact_current(&partition, Reads::default(), |current, _| {
                let mut current = current.ok_or_else(not_found::<G>)?;
                let old = current.space();
                renew(&mut current, space);
                let put = Mutation::Put(keys::CURRENT, current.encode()?);
                let garbage = Mutation::Put(keys::garbage(old), Bytes::new());
                Ok(Decision::Write(Change::of([put, garbage]), old))
            });
            let old = match moved.await {
                Ok(old) => old,
                Err(refusal) => {
                    this.discard(&partition, space).await;
                    return Err(refusal);
                }
            };
            this.garbage.schedule(None);
            this.reconcile_header(&partition, old, &keys::garbage(old), ReconcileReason::Moved).await?;
            Ok(old)
        };
        run_to_completion(renewed).await
    }

    /// Restores the generation that was deleted at the stamp, unless the name is taken. The rule gets the
    /// retired record, or `None` if there is none, and returns the record to restore. Runs detached.
    pub async fn restore(
        &self,
        account: Arc<Account>,
        name: &str,
        deleted: Stamp,
        mut rule: impl FnMut(Option<G>, &View<'_>) -> Result<G, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        let (this, partition) = (self.clone(), keys::partition(G::KIND, &account, name));
        let key = keys::deleted(deleted);
        let restored = async move {
            let moved = this.transact_current(&partition, Reads::key(key.clone()), |current, view| {
                if current.is_some() {
                    return Err(G::ALREADY_EXISTS.into());
                }
                let kept = view.row(&key).map(|row| G::decode(&row.value)).transpose()?;
                let current = rule(kept, view)?;
                let put = Mutation::Put(keys::CURRENT, current.encode()?);
                Ok(Decision::Write(Change::of([put, Mutation::Delete(key.clone())]), current.space()))
            });
            let space = moved.await?;
            this.reconcile_header(&partition, space, &keys::CURRENT, ReconcileReason::Moved).await
        };
        run_to_completion(restored).await
    }

    /// Opens a space if the current row of a partition names it, and closes the space if the `retired` row
    /// exists. If neither holds, a later move is responsible for the space. If this fails, the next sweep
    /// repeats it.
    async fn reconcile_header(
        &self,
        partition: &Partition,
        space: SpaceId,
        retired: &Bytes,
        why: ReconcileReason,
    ) -> Result<(), Refusal> {
        let reconciled = self.try_reconcile(partition, space, retired, why).await;
        reconciled.inspect_err(|_| self.garbage.schedule(None))
    }

    async fn try_reconcile(
        &self,
        partition: &Partition,
        space: SpaceId,
        retired: &Bytes,
        why: ReconcileReason,
    ) -> Result<(), Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            // A space without a header was swept: nothing is left to open or close.
            let Some(header) = self.store.space(space).await.map_err(read_refusal)? else {
                return Ok(());
            };
            let reads = Reads::keys([keys::CURRENT, retired.clone()]);
            let rows = self.store.read(partition, &reads).await.map_err(read_refusal)?.rows;
            let [current, retired] = rows.as_slice() else { return Ok(()) };
            let named = Slot::<G>::of(current.as_ref()).and_then(|slot| slot.space());
            let open = named.map_err(|damage| damage.at(partition))? == Some(space);
            if !open && retired.as_ref().is_none_or(|row| row.key == keys::CURRENT) {
                return Ok(());
            }
            if header.open == open && why == ReconcileReason::Repair {
                return Ok(());
            }
            let to = SpaceHeader { epoch: header.epoch + 1, open };
            match self.store.set_space(space, Some(header), to).await {
                Err(CommitError::Conflict) => {}
                Ok(()) => {
                    self.reopened.fetch_or(open && why == ReconcileReason::Repair, Ordering::AcqRel);
                    return Ok(());
                }
                Err(error) => return Err(commit_refusal(space, error)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Raises the epoch of a space. A commit that read the old epoch takes effect before this returns, or
    /// never.
    pub async fn fence(&self, space: SpaceId) -> Result<(), Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let header = self.store.space(space).await.map_err(read_refusal)?;
            let header = header.filter(|header| header.open).ok_or_else(not_found::<G>)?;
            let next = SpaceHeader { epoch: header.epoch + 1, ..header };
            match self.store.set_space(space, Some(header), next).await {
                Err(CommitError::Conflict) => {}
                raised => return raised.map_err(|error| commit_refusal(space, error)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Runs a rule on the current generation of a name and on rows that the service keeps in the same
    /// partition.
    pub async fn transact_with<T>(
        &self,
        account: &Account,
        name: &str,
        reads: Reads,
        rule: impl FnMut(Option<G>, &View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.transact_current(&keys::partition(G::KIND, account, name), reads, rule).await
    }

    /// Runs a rule on the current generation of a name, after resolving a rename in its way.
    async fn transact_current<T>(
        &self,
        partition: &Partition,
        mut reads: Reads,
        mut rule: impl FnMut(Option<G>, &View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        reads.keys.push(keys::CURRENT);
        for _ in 0..MAX_ATTEMPTS {
            let done = self.rows.transact(partition, reads.clone(), |view| {
                let decision = match Slot::of(view.row(&keys::CURRENT))? {
                    Slot::Free => rule(None, view)?,
                    Slot::Held(current) => rule(Some(current), view)?,
                    Slot::Renaming(renaming) => return Ok(Decision::Answer(Err(renaming))),
                };
                Ok(match decision {
                    Decision::Write(change, answer) => Decision::Write(change, Ok(answer)),
                    Decision::Answer(answer) => Decision::Answer(Ok(answer)),
                    Decision::Read(more) => Decision::Read(more),
                })
            });
            let renaming: Renaming = match done.await? {
                Ok(answer) => return Ok(answer),
                Err(renaming) => renaming,
            };
            self.resolve(&renaming).await?;
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

fn not_found<G: Generation>() -> Refusal {
    G::NOT_FOUND.into()
}
