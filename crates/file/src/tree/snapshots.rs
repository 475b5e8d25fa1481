//! Share snapshots: the whole tree at one point in time, without copying.
//!
//! A snapshot is a row next to the share's own row: the share at that time, and an epoch of its space.
//! [`crate::tree::children`] finds the tree at the end of that epoch. Taking a snapshot takes three commits:
//!
//! 1. the row, marked as incomplete;
//! 2. the next epoch in the header of the space. Every commit compares the epoch, so each write is either
//!    before or after the snapshot;
//! 3. the row again, marked as complete. If the share has changed since the first commit, all of it is
//!    repeated.
//!
//! A row that a crash has left incomplete is removed by the next snapshot or by the sweep.

mod sweep;

use lazuli_concurrency::{Lease, Stamp};
use lazuli_generations::{Generation, keys};
use lazuli_protocol::{Account, ErrorCode, Metadata, Refusal};
use lazuli_service::{commit_refusal, read_refusal};
use lazuli_store::{Change, CommitError, Decision, Mutation, Reads, SpaceHeader, SpaceId, View};

use crate::FileService;
use crate::lock_order::{Rank, Ranked};
use crate::tree::record::{Share, Snapshot};

/// Maximum number of snapshots of a share.
const MAX_SNAPSHOTS: usize = 200;
/// Maximum number of snapshot rows read at once: complete ones, and those that crashes have left.
pub(crate) const MAX_ROWS: usize = 256;
/// Maximum number of attempts to take a snapshot while the share changes.
const MAX_ATTEMPTS: usize = 64;

/// Returns the complete snapshots that were read with a share.
pub(crate) fn taken(view: &View<'_>) -> Result<Vec<Share>, Refusal> {
    let mut taken = vec![];
    for row in view.ranges().iter().flat_map(|range| &range.rows) {
        let share = Share::decode(&row.value)?;
        if is_taken(&share) {
            taken.push(share);
        }
    }
    Ok(taken)
}

impl FileService {
    /// Takes a snapshot of everything that is committed.
    pub(crate) async fn take_snapshot(
        &self,
        account: &Account,
        name: &str,
        metadata: &Metadata,
    ) -> Result<(Stamp, Share), Refusal> {
        // Lets every incomplete row be the remainder of a crash.
        let _lock = Ranked::wait(Rank::Snapshot, self.snapshot_lock.lock()).await;
        for _ in 0..MAX_ATTEMPTS {
            let share = self.shares.get(account, name).await?;
            let header = self.store.space(share.space).await.map_err(read_refusal)?;
            let header = header.filter(|header| header.open).ok_or(ErrorCode::ShareNotFound)?;
            let begun = self.begin_snapshot(account, name, &share, header.epoch, metadata).await?;
            let Some((id, snapshot)) = begun else { continue };
            if self.end_epoch(share.space, header).await?
                && self.complete_snapshot(account, name, &share, id).await?
            {
                return Ok((id, snapshot));
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Writes the incomplete row of a snapshot, and removes other incomplete rows. `None`: the share has
    /// changed.
    async fn begin_snapshot(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        epoch: u64,
        metadata: &Metadata,
    ) -> Result<Option<(Stamp, Share)>, Refusal> {
        let reads = Reads::default().and_range(keys::snapshots(share.space), MAX_ROWS);
        let begun = self.shares.transact_with(account, name, reads, |current, view| {
            let current = current.ok_or(ErrorCode::ShareNotFound)?;
            if current.space != share.space || current.etag != share.etag {
                return Ok(Decision::Answer(None));
            }
            if taken(view)?.len() >= MAX_SNAPSHOTS {
                return Err(ErrorCode::ShareSnapshotCountExceeded.into());
            }
            let id = view.stamp;
            let snapshot = Some(Snapshot { epoch, taken: false });
            let mut snapshot = Share { lease: Lease::AVAILABLE, snapshot, ..current };
            if !metadata.is_empty() {
                snapshot.metadata = metadata.clone();
                snapshot.touch(view.stamp, view.now);
            }
            let mut mutations = drop_begun(view)?;
            mutations.push(Mutation::Put(keys::snapshot(share.space, id), snapshot.encode()?));
            Ok(Decision::Write(Change::of(mutations), Some((id, snapshot))))
        });
        begun.await
    }

    /// Begins the next epoch of a space. `false`: the header has changed.
    async fn end_epoch(&self, space: SpaceId, header: SpaceHeader) -> Result<bool, Refusal> {
        let next = SpaceHeader { epoch: header.epoch + 1, ..header };
        match self.store.set_space(space, Some(header), next).await {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict) => Ok(false),
            Err(error) => Err(commit_refusal(space, error)),
        }
    }

    /// Completes a snapshot, if the share is unchanged since its first commit.
    async fn complete_snapshot(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        id: Stamp,
    ) -> Result<bool, Refusal> {
        let key = keys::snapshot(share.space, id);
        let completed = self.shares.transact_with(account, name, Reads::key(key.clone()), |current, view| {
            let current = current.ok_or(ErrorCode::ShareNotFound)?;
            let Some(row) = view.row(&key) else { return Ok(Decision::Answer(false)) };
            if current.space != share.space || current.etag != share.etag {
                return Ok(Decision::Answer(false));
            }
            let mut snapshot = Share::decode(&row.value)?;
            snapshot.snapshot = snapshot.snapshot.map(|begun| Snapshot { taken: true, ..begun });
            Ok(Decision::Write(Change::of([Mutation::Put(key.clone(), snapshot.encode()?)]), true))
        });
        completed.await
    }

    /// Returns a snapshot of a share.
    pub(crate) async fn snapshot_of(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        id: Stamp,
    ) -> Result<Share, Refusal> {
        let partition = keys::partition(Share::KIND, account, name);
        let reads = Reads::key(keys::snapshot(share.space, id));
        let set = self.store.read(&partition, &reads).await.map_err(read_refusal)?;
        let row = set.rows.into_iter().next().flatten();
        let snapshot = row.map(|row| Share::decode(&row.value)).transpose();
        let snapshot = snapshot.map_err(|damage| damage.at(&partition))?.filter(is_taken);
        snapshot.ok_or_else(|| ErrorCode::ShareNotFound.into())
    }
}

/// Returns whether the row is a complete snapshot.
pub(crate) fn is_taken(share: &Share) -> bool {
    share.snapshot.is_some_and(|snapshot| snapshot.taken)
}

/// Returns the mutations that remove incomplete snapshots. Only for the holder of the snapshot lock.
fn drop_begun(view: &View<'_>) -> Result<Vec<Mutation>, Refusal> {
    let mut mutations = vec![];
    for row in view.ranges().iter().flat_map(|range| &range.rows) {
        if Share::decode(&row.value)?.snapshot.is_some_and(|snapshot| !snapshot.taken) {
            mutations.push(Mutation::Delete(row.key.clone()));
        }
    }
    Ok(mutations)
}
