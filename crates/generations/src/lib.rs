//! Generations: what containers, tables, queues and shares have in common.
//!
//! Each is a row that names a space, and what it holds lies in that space. The rows lie in the directory, one partition
//! for each name. Deleting moves the row aside and closes the space, so it costs the same whatever is in it, and the name
//! is free at once: whoever creates it again gets a new space and never sees the old one.
//!
//! The row and the space's header are two commits, and **the row decides**: a space is to be open if the current row names
//! it, and closed if a row of what was deleted does; if neither does, it was [renamed](rename) and follows another name.
//! Whoever moves a row makes the header follow before it answers, raising the epoch even if the
//! header is right already: somebody whose move came earlier may be about to change it on the strength of what it saw. A
//! header is always read before the row, and replaced only as it was read, so the last one to change it has seen the last
//! move. A crash or a failure between the two leaves a header that lags; [`Generations::sweep`] finds it.
//!
//! [`keys`] names the rows, [`record`] frames their values, [`sweep`] removes what was deleted.

pub mod content;
#[doc(hidden)]
pub mod fuzz;
mod incoming;
pub mod keys;
mod list;
pub mod record;
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
use lazuli_store::{
    Change, CommitError, Decision, Gate, Mutation, Partition, ReadError, Reads, SpaceHeader, SpaceId, Store,
    View, transact,
};

pub use incoming::{Incoming, Intake};
pub use list::{Beside, Entry};
pub use record::Damage;
pub use slot::named_space;
pub use sweep::{GarbageWatch, Referred, Reopened, Swept};

use incoming::IncomingSpaces;
use slot::{Renaming, Slot};

/// How often something is tried anew because somebody else was faster.
const MAX_ATTEMPTS: usize = 64;

/// What the row of a container, table, queue or share holds.
pub trait Generation: Clone + Send + Sync + 'static {
    /// What partition keys of this kind begin with, up to the first slash.
    const KIND: &'static str;
    /// What a request for one that is not there is told.
    const NOT_FOUND: ErrorCode;
    /// What a request that needs the name to be free is told.
    const ALREADY_EXISTS: ErrorCode;

    /// The space that it names.
    fn space(&self) -> SpaceId;

    /// The value of its row.
    fn encode(&self) -> Result<Bytes, Refusal>;

    /// What a row holds.
    fn decode(value: &Bytes) -> Result<Self, Damage>;

    /// Of one that was deleted: until when it can be restored.
    fn kept_until(&self) -> Option<Timestamp> {
        None
    }
}

/// All generations of one kind. Clones are the same.
pub struct Generations<G> {
    store: Arc<dyn Store>,
    accounts: AccountDirectory,
    gate: Arc<Gate>,
    garbage: Arc<GarbageWatch>,
    /// A sweep has opened a space.
    reopened: Arc<AtomicBool>,
    /// Renames take turns.
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
            gate: self.gate.clone(),
            garbage: self.garbage.clone(),
            reopened: self.reopened.clone(),
            renames: self.renames.clone(),
            incoming: self.incoming.clone(),
            kind: PhantomData,
        }
    }
}

/// What came of creating.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<G> {
    /// It was made.
    New(G),
    /// One of that name was there already.
    Existing(G),
}

/// How to delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Keep the row, as the rule left it, to be restored until its [`Generation::kept_until`].
    pub keep: bool,
    /// The decision holds only before this moment.
    pub valid_until: Option<Timestamp>,
}

/// Why a space's header is made to follow its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settle {
    /// The row was moved just now.
    Moved,
    /// The header may have been left behind by somebody else.
    Repair,
}

impl<G: Generation> Generations<G> {
    /// Those of a store.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let (gate, garbage, reopened, renames, incoming) = Default::default();
        Self { store, accounts, gate, garbage, reopened, renames, incoming, kind: PhantomData }
    }

    /// The one of that name, if there is one.
    pub async fn find(&self, account: &Account, name: &str) -> Result<Option<G>, Refusal> {
        self.current(&keys::partition(G::KIND, account, name)).await
    }

    /// The one of that name.
    pub async fn get(&self, account: &Account, name: &str) -> Result<G, Refusal> {
        self.find(account, name).await?.ok_or_else(gone::<G>)
    }

    async fn current(&self, partition: &Partition) -> Result<Option<G>, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let set = self.store.read(partition, &Reads::key(keys::CURRENT)).await;
            let row = set.map_err(unreadable)?.rows.into_iter().next().flatten();
            match Slot::of(row.as_ref())? {
                Slot::Free => return Ok(None),
                Slot::Held(current) => return Ok(Some(current)),
                Slot::Renaming(renaming) => {
                    if let Some(current) = self.while_pending(&renaming).await? {
                        return Ok(current);
                    }
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Makes one of that name with a new space, unless there is one. Goes on to its end even if the caller goes away: the
    /// space is named or becomes garbage.
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
                Ok(Created::Existing(_)) => this.garbage.arises(None),
                Err(_) => this.discard(&partition, space).await,
            }
            created
        };
        carry_through(created).await
    }

    /// Makes garbage of a space that was opened to be named here, unless it was.
    async fn discard(&self, partition: &Partition, space: SpaceId) {
        let discarded = self.transact_current(partition, Reads::default(), |current, _| {
            if current.is_some_and(|current: G| current.space() == space) {
                return Ok(Decision::Answer(()));
            }
            let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
            Ok(Decision::Write(Change::of([garbage]), ()))
        });
        if let Err(refusal) = discarded.await {
            tracing::debug!(%refusal, ?space, "the header of a space without rows stays behind");
        }
        self.garbage.arises(None);
    }

    /// A new space. After a crash, one that no row names keeps its header, and holds nothing else.
    async fn open_space(&self) -> Result<SpaceId, Refusal> {
        let space = self.store.new_space().await.map_err(not_settled)?;
        let header = SpaceHeader { epoch: 0, open: true };
        self.store.set_space(space, None, header).await.map_err(not_settled)?;
        Ok(space)
    }

    /// Changes the one of that name. The rule may say until when its decision holds.
    pub async fn change<T>(
        &self,
        account: &Account,
        name: &str,
        mut rule: impl FnMut(&mut G, &View<'_>) -> Result<(T, Option<Timestamp>), Refusal>,
    ) -> Result<(G, T), Refusal> {
        let partition = keys::partition(G::KIND, account, name);
        let changed = self.transact_current(&partition, Reads::default(), |current, view| {
            let mut current = current.ok_or_else(gone::<G>)?;
            let (answer, until) = rule(&mut current, view)?;
            let put = Mutation::Put(keys::CURRENT, current.encode()?);
            Ok(Decision::Write(Change::of([put]).until(until), (current, answer)))
        });
        changed.await
    }

    /// Deletes the one of that name, if the rule allows it. Goes on to its end even if the caller goes away.
    pub async fn remove(
        &self,
        account: Arc<Account>,
        name: &str,
        rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        self.remove_reading(account, name, Reads::default(), rule).await
    }

    /// The same, by a rule that reads rows beside the current one.
    pub async fn remove_reading(
        &self,
        account: Arc<Account>,
        name: &str,
        reads: Reads,
        rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        let (this, partition) = (self.clone(), keys::partition(G::KIND, &account, name));
        carry_through(async move { this.move_aside(&partition, reads, rule).await }).await
    }

    async fn move_aside(
        &self,
        partition: &Partition,
        reads: Reads,
        mut rule: impl FnMut(&mut G, &View<'_>) -> Result<Removal, Refusal>,
    ) -> Result<(), Refusal> {
        let moved = self.transact_current(partition, reads, |current, view| {
            let mut current = current.ok_or_else(gone::<G>)?;
            let removal = rule(&mut current, view)?;
            let (aside, value) = match removal.keep {
                false => (keys::garbage(current.space()), Bytes::new()),
                true => (keys::deleted(view.stamp), current.encode()?),
            };
            let mutations = [
                Mutation::Delete(keys::CURRENT),
                Mutation::Delete(keys::GUARD),
                Mutation::Put(aside.clone(), value),
            ];
            let kept_until = current.kept_until().filter(|_| removal.keep);
            let change = Change::of(mutations).until(removal.valid_until);
            Ok(Decision::Write(change, (current.space(), aside, kept_until)))
        });
        let (space, aside, kept_until) = moved.await?;
        self.garbage.arises(kept_until);
        self.settle(partition, space, &aside, Settle::Moved).await
    }

    /// Empties the one of that name: `renew` gives it a new space, and what was in the old one, which is returned, is gone
    /// at once, however much it was. Goes on to its end even if the caller goes away.
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
                let mut current = current.ok_or_else(gone::<G>)?;
                let old = current.space();
                renew(&mut current, space);
                let put = Mutation::Put(keys::CURRENT, current.encode()?);
                let aside = Mutation::Put(keys::garbage(old), Bytes::new());
                Ok(Decision::Write(Change::of([put, aside]), old))
            });
            let old = match moved.await {
                Ok(old) => old,
                Err(refusal) => {
                    this.discard(&partition, space).await;
                    return Err(refusal);
                }
            };
            this.garbage.arises(None);
            this.settle(&partition, old, &keys::garbage(old), Settle::Moved).await?;
            Ok(old)
        };
        carry_through(renewed).await
    }

    /// Restores the one that was deleted at that stamp, unless the name is taken. The rule is given what is kept under
    /// that stamp, if anything is, and says what it is when it is back.
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
            this.settle(&partition, space, &keys::CURRENT, Settle::Moved).await
        };
        carry_through(restored).await
    }

    /// Opens a space if the current row of a partition names it, and closes it if it was moved aside to that other row. If
    /// neither, somebody has moved it on, and settles it. Where that does not come about, the next sweep does it.
    async fn settle(
        &self,
        partition: &Partition,
        space: SpaceId,
        aside: &Bytes,
        why: Settle,
    ) -> Result<(), Refusal> {
        let settled = self.try_settle(partition, space, aside, why).await;
        settled.inspect_err(|_| self.garbage.arises(None))
    }

    async fn try_settle(
        &self,
        partition: &Partition,
        space: SpaceId,
        aside: &Bytes,
        why: Settle,
    ) -> Result<(), Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            // A space without a header is swept: nothing is left to be opened or closed.
            let Some(header) = self.store.space(space).await.map_err(unreadable)? else {
                return Ok(());
            };
            let reads = Reads::keys([keys::CURRENT, aside.clone()]);
            let rows = self.store.read(partition, &reads).await.map_err(unreadable)?.rows;
            let [current, aside] = rows.as_slice() else { return Ok(()) };
            let open = Slot::<G>::of(current.as_ref())?.space()? == Some(space);
            if !open && aside.as_ref().is_none_or(|row| row.key == keys::CURRENT) {
                return Ok(());
            }
            if header.open == open && why == Settle::Repair {
                return Ok(());
            }
            let to = SpaceHeader { epoch: header.epoch + 1, open };
            match self.store.set_space(space, Some(header), to).await {
                Err(CommitError::Conflict) => {}
                Ok(()) => {
                    self.reopened.fetch_or(open && why == Settle::Repair, Ordering::AcqRel);
                    return Ok(());
                }
                Err(error) => return Err(not_settled(error)),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Raises the epoch of a space. A commit that was judged before takes effect before this returns, or never.
    pub async fn fence(&self, space: SpaceId) -> Result<(), Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let header = self.store.space(space).await.map_err(unreadable)?;
            let header = header.filter(|header| header.open).ok_or_else(gone::<G>)?;
            let next = SpaceHeader { epoch: header.epoch + 1, ..header };
            match self.store.set_space(space, Some(header), next).await {
                Err(CommitError::Conflict) => {}
                raised => return raised.map_err(not_settled),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Runs a rule on who has a name and on rows beside it, of the service's own making.
    pub async fn transact_beside<T>(
        &self,
        account: &Account,
        name: &str,
        reads: Reads,
        rule: impl FnMut(Option<G>, &View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.transact_current(&keys::partition(G::KIND, account, name), reads, rule).await
    }

    /// Runs a rule on who has a name, once no rename is in its way.
    async fn transact_current<T>(
        &self,
        partition: &Partition,
        mut reads: Reads,
        mut rule: impl FnMut(Option<G>, &View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        reads.keys.push(keys::CURRENT);
        for _ in 0..MAX_ATTEMPTS {
            let done = self.transact(partition, reads.clone(), |view| {
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
            self.end(&renaming).await?;
        }
        Err(ErrorCode::ServerBusy.into())
    }

    async fn transact<T>(
        &self,
        partition: &Partition,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let result = transact(&*self.store, &self.gate, partition, reads, rule).await;
        result.map_err(|error| lazuli_account::refusal(error, || ErrorCode::InternalError.into()))
    }
}

fn gone<G: Generation>() -> Refusal {
    G::NOT_FOUND.into()
}

/// What a client is told when rows cannot be read.
pub fn unreadable(error: ReadError) -> Refusal {
    tracing::error!(%error, "the store cannot be read");
    ErrorCode::InternalError.into()
}

/// The refusal of a request whose store has not settled.
pub fn not_settled(error: CommitError) -> Refusal {
    lazuli_account::refusal(lazuli_store::TransactError::NotCommitted(error), || {
        ErrorCode::InternalError.into()
    })
}

/// Does something to its end, although the request that asked for it may be dropped.
pub async fn carry_through<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(ErrorCode::InternalError.into()))
}
