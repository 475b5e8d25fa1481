//! Builds a generation that is invisible until it is complete: its space is filled first, and one commit then
//! gives the space its name.
//!
//! Until that commit a garbage row names the space, so the sweep removes what a crash leaves. The sweep of
//! this process skips spaces that are being filled, which [`IncomingSpaces`] lists.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::{Account, Refusal};
use lazuli_service::{Damage, commit_refusal, internal_error};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, SpaceHeader, SpaceId};
use parking_lot::Mutex;

use crate::{GarbageWatch, Generation, Generations, ReconcileReason, keys};

/// Spaces that this process is filling.
#[derive(Debug, Default)]
pub(crate) struct IncomingSpaces(Mutex<HashSet<SpaceId>>);

impl IncomingSpaces {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub(crate) fn contains(&self, space: SpaceId) -> bool {
        self.0.lock().contains(&space)
    }
}

/// A space that is being filled. Dropping it before the space has a name makes the space garbage.
#[must_use = "dropping it makes the space garbage"]
pub struct Incoming {
    space: SpaceId,
    epoch: u64,
    partition: Partition,
    spaces: Arc<IncomingSpaces>,
    garbage: Arc<GarbageWatch>,
}

impl Incoming {
    /// Returns the space to fill.
    pub fn space(&self) -> SpaceId {
        self.space
    }

    /// Returns the epoch of the space, which commits into the space must name.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.spaces.0.lock().remove(&self.space);
        // If the space has a name by now, the sweep finds nothing.
        self.garbage.schedule(None);
    }
}

/// A generation as the directory of another store describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Original {
    /// The value of the generation's row.
    pub value: Bytes,
    /// Time of deletion, if the generation is retired and clients can restore it.
    pub deleted: Option<Stamp>,
    /// The snapshots of the generation: when each was taken, and the value of its row.
    pub snapshots: Vec<(Stamp, Bytes)>,
}

/// A service that imports generations from another store, row by row.
#[async_trait]
pub trait Intake: Send + Sync {
    /// Begins to fill a space for the name. The name must be free.
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal>;

    /// Returns the value under which a row is imported. Leases are removed: their clients do not know of the
    /// copy.
    fn value(&self, partition: &[u8], key: &[u8], value: Bytes) -> Result<Bytes, Damage>;

    /// Gives the space its name. `renamed` is the new name as the client spells it, if it differs from the
    /// name in the other store.
    async fn finish(
        &self,
        incoming: Incoming,
        renamed: Option<&str>,
        original: Original,
    ) -> Result<(), Refusal>;

    /// Makes a sweep due, because imported spaces may have become garbage.
    fn schedule_sweep(&self);
}

impl<G: Generation> Generations<G> {
    /// Begins to fill a space for a name that must be free. `epoch` is the epoch of the original space, which
    /// its rows may mention.
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
        let space = self.store.new_space().await.map_err(|error| commit_refusal("a new space", error))?;
        self.incoming.0.lock().insert(space);
        let incoming = Incoming {
            space,
            epoch,
            partition,
            spaces: self.incoming.clone(),
            garbage: self.garbage.clone(),
        };
        let named = self.rows.transact(&incoming.partition, Reads::default(), |_| {
            let garbage = Mutation::Put(keys::garbage(space), Bytes::new());
            Ok(Decision::Write(Change::of([garbage]), ()))
        });
        named.await?;
        let header = SpaceHeader { epoch, open: true };
        self.store.set_space(space, None, header).await.map_err(|error| commit_refusal(space, error))?;
        Ok(incoming)
    }

    /// Gives a space its name, if the name is still free. `make` returns the record of the generation and the
    /// rows of its snapshots. If `deleted` is set, the name stays free and clients can restore the
    /// generation.
    pub async fn finish_incoming(
        &self,
        incoming: Incoming,
        deleted: Option<Stamp>,
        mut make: impl FnMut(SpaceId, Stamp, Timestamp) -> Result<(G, Vec<(Stamp, Bytes)>), Refusal>,
    ) -> Result<(), Refusal> {
        let (space, garbage) = (incoming.space, keys::garbage(incoming.space));
        let named =
            self.transact_current(&incoming.partition, Reads::key(garbage.clone()), |current, view| {
                if current.is_some() && deleted.is_none() {
                    return Err(G::ALREADY_EXISTS.into());
                }
                if view.row(&garbage).is_none() {
                    return Err(internal_error(format_args!("{space}: filled, but swept meanwhile")));
                }
                let (new, snapshots) = make(space, view.stamp, view.now)?;
                let key = deleted.map_or(keys::CURRENT, keys::deleted);
                let mut mutations =
                    vec![Mutation::Put(key, new.encode()?), Mutation::Delete(garbage.clone())];
                let put = |(stamp, value)| Mutation::Put(keys::snapshot(space, stamp), value);
                mutations.extend(snapshots.into_iter().map(put));
                Ok(Decision::Write(Change::of(mutations), new.kept_until()))
            });
        let kept_until = named.await?;
        if let Some(stamp) = deleted {
            self.garbage.schedule(kept_until);
            self.reconcile_header(&incoming.partition, space, &keys::deleted(stamp), ReconcileReason::Moved)
                .await?;
        }
        Ok(())
    }

    /// Makes the next sweep due.
    pub fn schedule_sweep(&self) {
        self.garbage.schedule(None);
    }
}
