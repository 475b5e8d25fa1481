//! Share snapshots: one point in time over the whole tree, which copies nothing.
//!
//! A snapshot is a row beside the share's own: the share as it was, and an epoch of its space. What every directory and file
//! was at the end of that epoch is found by [`crate::children`]. Taking one is three commits: the row, which does not count
//! yet; the next epoch in the space's header, which every commit compares, so that a write is on one side of it or the
//! other; and the row again, which counts from now on. If the share's properties have changed in between, it is done again,
//! so that they too are of that moment. A row that a crash left behind without counting is dropped by the next snapshot, or
//! by the sweep.

mod sweep;

use http::StatusCode;
use lazuli_concurrency::{Lease, LeaseId, Stamp, Timestamp};
use lazuli_generations::{Generation, carry_through, keys, unreadable};
use lazuli_protocol::{
    Account, ErrorCode, Metadata, Operation, Query, Refusal, Request, Response, date, names,
};
use lazuli_store::{
    Change, CommitError, Decision, Mutation, Reads, SpaceHeader, SpaceId, TransactError, View,
};

use crate::record::{Share, Snapshot};
use crate::reply::put;
use crate::share::{admit_manage, written};
use crate::{FileService, share_gone};

const PARAMETER: &str = "sharesnapshot";
/// Snapshots that a share can have.
const MAX_SNAPSHOTS: usize = 200;
/// Rows of snapshots that are read at once: those, and what a crash may have left behind.
pub(crate) const MAX_ROWS: usize = 256;
/// How often a snapshot is tried anew because the share has changed meanwhile.
const MAX_ATTEMPTS: usize = 64;

/// The snapshot that a request names.
pub(crate) fn named(query: &Query) -> Result<Option<Stamp>, Refusal> {
    parse(query, PARAMETER)
}

/// The snapshot that a parameter names.
pub(crate) fn parse(query: &Query, parameter: &str) -> Result<Option<Stamp>, Refusal> {
    let Some(text) = query.get(parameter).filter(|text| !text.is_empty()) else { return Ok(None) };
    match date::parse_snapshot(text) {
        Some(moment) => Ok(Some(Stamp::from_ticks(moment.ticks()))),
        None => Err(Refusal::invalid_query(parameter, text, "It is not the id of a snapshot.")),
    }
}

/// Refuses a request that names a snapshot, which cannot be written.
pub(crate) fn check_not_named(query: &Query) -> Result<(), Refusal> {
    match query.get(PARAMETER).filter(|text| !text.is_empty()) {
        Some(text) => Err(Refusal::invalid_query(PARAMETER, text, "A snapshot cannot be written.")),
        None => Ok(()),
    }
}

/// The id of a snapshot.
pub(crate) fn text(id: Stamp) -> String {
    date::iso8601(Timestamp::from_ticks(id.ticks()))
}

/// The snapshots that were read with a share, without those that do not count.
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
    /// Snapshot Share.
    pub(crate) async fn snapshot_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let (this, account, name) = (self.clone(), request.account, request.container);
        let taken = carry_through(async move { this.take_snapshot(&account, &name, &metadata).await });
        let (id, snapshot) = taken.await?;
        let mut response = written(StatusCode::CREATED, &snapshot);
        put(&mut response.headers, "x-ms-snapshot", text(id));
        Ok(response)
    }

    async fn take_snapshot(
        &self,
        account: &Account,
        name: &str,
        metadata: &Metadata,
    ) -> Result<(Stamp, Share), Refusal> {
        // What SMB clients have written by now is in it. That may take a while, so nobody else waits for it.
        let space = self.shares.get(account, name).await?.space;
        self.flush_some(Some(space), |_, _| true).await;
        // One at a time: whose row does not count is nobody's but a crash's.
        let _turn = self.snapshots.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            let share = self.shares.get(account, name).await?;
            let header = self.store.space(share.space).await.map_err(unreadable)?;
            let header = header.filter(|header| header.open).ok_or_else(share_gone)?;
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

    /// Writes the row of a snapshot that does not count yet, in the place of any other such. None: the share is another.
    async fn begin_snapshot(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        epoch: u64,
        metadata: &Metadata,
    ) -> Result<Option<(Stamp, Share)>, Refusal> {
        let reads = Reads::default().and_range(keys::snapshots(share.space), MAX_ROWS);
        let begun = self.shares.transact_beside(account, name, reads, |current, view| {
            let current = current.ok_or_else(share_gone)?;
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

    /// Ends an epoch of a space: what is committed from now on is of the next. False: somebody else has changed the header.
    async fn end_epoch(&self, space: SpaceId, header: SpaceHeader) -> Result<bool, Refusal> {
        let next = SpaceHeader { epoch: header.epoch + 1, ..header };
        match self.store.set_space(space, Some(header), next).await {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict) => Ok(false),
            Err(error) => Err(lazuli_account::refusal(TransactError::NotCommitted(error), share_gone)),
        }
    }

    /// Makes a snapshot count, if the share is still what it was when it was begun.
    async fn complete_snapshot(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        id: Stamp,
    ) -> Result<bool, Refusal> {
        let key = keys::snapshot(share.space, id);
        let completed =
            self.shares.transact_beside(account, name, Reads::key(key.clone()), |current, view| {
                let current = current.ok_or_else(share_gone)?;
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

    /// The share that a request addresses, or its snapshot, which can only be read. To close a handle changes nothing.
    pub(crate) async fn addressed_share(&self, request: &Request) -> Result<Share, Refusal> {
        let id = named(&request.query)?;
        if !request.operation.row().read && request.operation != Operation::ForceCloseHandles {
            check_not_named(&request.query)?;
        }
        let share = self.share(&request.account, &request.container).await?;
        match id {
            Some(id) => self.snapshot_of(&request.account, &request.container, &share, id).await,
            None => Ok(share),
        }
    }

    /// A snapshot of a share.
    pub(crate) async fn snapshot_of(
        &self,
        account: &Account,
        name: &str,
        share: &Share,
        id: Stamp,
    ) -> Result<Share, Refusal> {
        let partition = keys::partition(Share::KIND, account, name);
        let reads = Reads::key(keys::snapshot(share.space, id));
        let set = self.store.read(&partition, &reads).await.map_err(unreadable)?;
        let row = set.rows.into_iter().next().flatten();
        let snapshot = row.map(|row| Share::decode(&row.value)).transpose()?.filter(is_taken);
        snapshot.ok_or_else(|| ErrorCode::ShareNotFound.into())
    }

    /// Changes a snapshot of a share; as [`lazuli_generations::Generations::change`].
    pub(crate) async fn change_snapshot<T>(
        &self,
        request: &Request,
        id: Stamp,
        mut rule: impl FnMut(&mut Share, &View<'_>) -> Result<(T, Option<Timestamp>), Refusal>,
    ) -> Result<(Share, T), Refusal> {
        self.decide_snapshot(request, id, ErrorCode::ShareNotFound, |mut snapshot, key, view| {
            let (answer, until) = rule(&mut snapshot, view)?;
            let change = Change::of([Mutation::Put(key.clone(), snapshot.encode()?)]).until(until);
            Ok(Decision::Write(change, (snapshot, answer)))
        })
        .await
    }

    /// Deletes a snapshot of a share. What only it could see is swept later.
    pub(crate) async fn delete_snapshot(
        &self,
        request: &Request,
        id: Stamp,
        lease: Option<LeaseId>,
    ) -> Result<(), Refusal> {
        // Only Delete Share tells a snapshot that is not there from a share that is not there.
        let missing = ErrorCode::ShareSnapshotNotFound;
        let deleted = self.decide_snapshot(request, id, missing, |snapshot, key, view| {
            let until = admit_manage(&snapshot, lease, view.now)?;
            Ok(Decision::Write(Change::of([Mutation::Delete(key.clone())]).until(until), snapshot))
        });
        let deleted = deleted.await?;
        self.close_deleted(deleted.space, deleted.snapshot.map(|shown| shown.epoch));
        self.kept.arises(None);
        Ok(())
    }

    async fn decide_snapshot<T>(
        &self,
        request: &Request,
        id: Stamp,
        missing: ErrorCode,
        mut rule: impl FnMut(Share, &bytes::Bytes, &View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let (account, name) = (&request.account, &request.container);
        let space = self.share(account, name).await?.space;
        let key = keys::snapshot(space, id);
        let decided = self.shares.transact_beside(account, name, Reads::key(key.clone()), |current, view| {
            // A share that was deleted meanwhile and can be restored keeps its snapshots.
            current.filter(|current| current.space == space).ok_or_else(share_gone)?;
            let snapshot = view.row(&key).map(|row| Share::decode(&row.value)).transpose()?;
            rule(snapshot.filter(is_taken).ok_or(missing)?, &key, view)
        });
        decided.await
    }
}

/// Whether a share is a snapshot that counts.
fn is_taken(share: &Share) -> bool {
    share.snapshot.is_some_and(|snapshot| snapshot.taken)
}

/// Drops rows of snapshots that were begun and never came to count. Only for whoever has the turn.
fn drop_begun(view: &View<'_>) -> Result<Vec<Mutation>, Refusal> {
    let mut mutations = vec![];
    for row in view.ranges().iter().flat_map(|range| &range.rows) {
        if Share::decode(&row.value)?.snapshot.is_some_and(|snapshot| !snapshot.taken) {
            mutations.push(Mutation::Delete(row.key.clone()));
        }
    }
    Ok(mutations)
}
