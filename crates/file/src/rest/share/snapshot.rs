//! Snapshot Share, and changes of snapshots.

use http::StatusCode;
use lazuli_concurrency::{LeaseId, Stamp, Timestamp};
use lazuli_generations::{Generation, keys};
use lazuli_protocol::{ErrorCode, Metadata, Refusal, Request, Response, names};
use lazuli_service::reply::put;
use lazuli_service::run_to_completion;
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::FileService;
use crate::rest::share::{admit_manage, written};
use crate::rest::snapshot_id::text;
use crate::tree::record::Share;
use crate::tree::snapshots::is_taken;

impl FileService {
    /// Handles Snapshot Share.
    pub(crate) async fn snapshot_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let (this, account, name) = (self.clone(), request.account, request.container);
        let taken = run_to_completion(async move {
            // Include what SMB clients have written so far. This may take a while, so the snapshot lock is
            // not held.
            let space = this.shares.get(&account, &name).await?.space;
            this.flush_some(Some(space), |_, _| true).await;
            this.take_snapshot(&account, &name, &metadata).await
        });
        let (id, snapshot) = taken.await?;
        let mut response = written(StatusCode::CREATED, &snapshot);
        put(&mut response.headers, "x-ms-snapshot", text(id));
        Ok(response)
    }

    /// Changes a snapshot of a share, like [`lazuli_generations::Generations::change`].
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

    /// Deletes a snapshot of a share. The sweep removes what only it could show.
    pub(crate) async fn delete_snapshot(
        &self,
        request: &Request,
        id: Stamp,
        lease: Option<LeaseId>,
    ) -> Result<(), Refusal> {
        // Only Delete Share distinguishes a missing snapshot from a missing share.
        let missing = ErrorCode::ShareSnapshotNotFound;
        let deleted = self.decide_snapshot(request, id, missing, |snapshot, key, view| {
            let until = admit_manage(&snapshot, lease, view.now)?;
            Ok(Decision::Write(Change::of([Mutation::Delete(key.clone())]).until(until), snapshot))
        });
        let deleted = deleted.await?;
        self.close_deleted(deleted.space, deleted.snapshot.map(|shown| shown.epoch));
        self.snapshot_garbage.schedule(None);
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
        let decided = self.shares.transact_with(account, name, Reads::key(key.clone()), |current, view| {
            // A share that was deleted meanwhile and can be restored keeps its snapshots.
            current.filter(|current| current.space == space).ok_or(ErrorCode::ShareNotFound)?;
            let snapshot = view.row(&key).map(|row| Share::decode(&row.value)).transpose()?;
            rule(snapshot.filter(is_taken).ok_or(missing)?, &key, view)
        });
        decided.await
    }
}
