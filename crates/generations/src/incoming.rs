//! Builds a generation out of sight: a space is filled first, and a name is given to it last, in one commit.
//!
//! Until then a row of garbage names the space, so a crash leaves nothing that the sweep does not remove. The sweep of this
//! process leaves a space alone that is being filled: [`IncomingSpaces`] says which ones are.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::{Account, ErrorCode, Refusal};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, SpaceHeader, SpaceId};
use parking_lot::Mutex;

use crate::{Damage, GarbageWatch, Generation, Generations, keys, not_settled};

/// Spaces that are being filled by this process.
#[derive(Debug, Default)]
pub(crate) struct IncomingSpaces(Mutex<HashSet<SpaceId>>);

impl IncomingSpaces {
    pub(crate) fn contains(&self, space: SpaceId) -> bool {
        self.0.lock().contains(&space)
    }
}

/// A space that is being filled. Dropped before it has a name, it is garbage.
#[must_use = "dropped, it is garbage"]
pub struct Incoming {
    space: SpaceId,
    epoch: u64,
    partition: Partition,
    spaces: Arc<IncomingSpaces>,
    garbage: Arc<GarbageWatch>,
}

impl Incoming {
    /// The space to fill.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Its epoch, which commits name.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.spaces.0.lock().remove(&self.space);
        // If it has a name by now, the sweep finds nothing.
        self.garbage.arises(None);
    }
}

/// A service that takes in what another store has, row by row.
#[async_trait]
pub trait Intake: Send + Sync {
    /// Begins to fill a space for that name, which must be free.
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal>;

    /// The value of a row as it is taken in: leases of clients that know nothing of the copy are gone.
    fn value(&self, partition: &[u8], key: &[u8], value: Bytes) -> Result<Bytes, Damage>;

    /// Gives the space its name. `value` and `snapshots` are those of the other store.
    async fn finish(
        &self,
        incoming: Incoming,
        name: &str,
        value: &Bytes,
        snapshots: Vec<(Stamp, Bytes)>,
    ) -> Result<(), Refusal>;

    /// What was taken in may have become garbage.
    fn look_for_garbage(&self);
}

impl<G: Generation> Generations<G> {
    /// Begins to fill a space, with an epoch that rows may speak of, for a name that must be free.
    pub async fn begin_incoming(
        &self,
        account: &Account,
        name: &str,
        epoch: u64,
    ) -> Result<Incoming, Refusal> {
        let partition = keys::partition(G::KIND, account, name);
        if self.current(&partition).await?.is_some() {
            return Err(G::ALREADY_EXISTS.into());
        }
        let space = self.store.new_space().await.map_err(not_settled)?;
        self.incoming.0.lock().insert(space);
        let incoming = Incoming {
            space,
            epoch,
            partition,
            spaces: self.incoming.clone(),
            garbage: self.garbage.clone(),
        };
        let named = self.transact(&incoming.partition, Reads::default(), |_| {
            let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
            Ok(Decision::Write(Change::of([garbage]), ()))
        });
        named.await?;
        let header = SpaceHeader { epoch, open: true };
        self.store.set_space(space, None, header).await.map_err(not_settled)?;
        Ok(incoming)
    }

    /// Gives a space its name, if that is still free. `make` returns what the row of the name holds and the rows of its
    /// snapshots.
    pub async fn finish_incoming(
        &self,
        incoming: Incoming,
        mut make: impl FnMut(SpaceId, Stamp, Timestamp) -> Result<(G, Vec<(Stamp, Bytes)>), Refusal>,
    ) -> Result<(), Refusal> {
        let (space, garbage) = (incoming.space, keys::garbage(incoming.space));
        let named =
            self.transact_current(&incoming.partition, Reads::key(garbage.clone()), |current, view| {
                if current.is_some() {
                    return Err(G::ALREADY_EXISTS.into());
                }
                if view.row(&garbage).is_none() {
                    return Err(ErrorCode::InternalError.into());
                }
                let (new, snapshots) = make(space, view.stamp, view.now)?;
                let mut mutations =
                    vec![Mutation::Put(keys::CURRENT, new.encode()?), Mutation::Delete(garbage.clone())];
                let put = |(stamp, value)| Mutation::Put(keys::snapshot(space, stamp), value);
                mutations.extend(snapshots.into_iter().map(put));
                Ok(Decision::Write(Change::of(mutations), ()))
            });
        named.await
    }

    /// Makes the next sweep due.
    pub fn look_for_garbage(&self) {
        self.garbage.arises(None);
    }
}
