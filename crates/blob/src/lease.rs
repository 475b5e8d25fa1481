//! Lease Blob, and the reply that it shares with Lease Container.
//!
//! A lease action changes only the lease, not `ETag` and `Last-Modified`. A blob that has only staged blocks
//! can be leased.

use lazuli_concurrency::lease::{Applied, LeaseAction};
use lazuli_concurrency::{Timestamp, Validators};
use lazuli_protocol::lease::{self, Leased, fresh_lease_id, lease_action};
use lazuli_protocol::{Refusal, Request, Response, Version};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::model::keys;
use crate::model::record::{self, Blob};
use crate::rules::precondition::{Preconditions, check_no_pending_copy, not_found};
use crate::{BlobService, reply};

impl BlobService {
    /// Handles Lease Blob.
    pub(crate) async fn lease_blob(&self, request: Request) -> Result<Response, Refusal> {
        let action = lease_action(&request.headers, request.version, fresh_lease_id())?;
        let preconditions = Preconditions::of_write(&request)?;
        let target = self.write_target(&request).await?;
        let leased = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let blob = record::blob(view.row(&keys::BASE))?;
            let (blob, applied) = lease(blob, &preconditions, action, view.now)?;
            let change = Change::of([Mutation::Put(keys::BASE, blob.encode()?)]);
            let change = change.until(applied.valid_until).until(blob.expires_at());
            Ok(Decision::Write(change, (blob.validators(), applied)))
        });
        let (validators, applied) = leased.await?;
        Ok(lease_reply(action, &applied, validators, request.version))
    }
}

/// Decides a lease action on an existing blob, committed or not.
fn lease(
    blob: Option<Blob>,
    preconditions: &Preconditions,
    action: LeaseAction,
    now: Timestamp,
) -> Result<(Blob, Applied), Refusal> {
    let blob = blob.filter(|blob| blob.is_present(now)).ok_or_else(not_found)?;
    preconditions.admit_lease_action(&blob)?;
    check_no_pending_copy(&blob)?;
    let applied = blob.lease.apply(action, now);
    let applied = applied.map_err(|refusal| Refusal::leased(refusal, Leased::Blob, &blob.lease, now))?;
    Ok((Blob { lease: applied.lease, ..blob }, applied))
}

/// Builds the reply to a lease action.
pub(crate) fn lease_reply(
    action: LeaseAction,
    applied: &Applied,
    validators: Validators,
    version: Version,
) -> Response {
    let mut response = lease::lease_reply(action, applied);
    reply::validators(&mut response.headers, validators, version);
    response
}
