//! Snapshot Blob.
//!
//! A snapshot has its own row and shares the content of the blob. With versioning, the request also creates a
//! version.

use http::StatusCode;
use lazuli_concurrency::{Access, Stamp, Timestamp};
use lazuli_protocol::{Metadata, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::content::encryption::check_update;
use crate::model::keys;
use crate::model::record::{self, Blob};
use crate::rules::history::History;
use crate::rules::precondition::{Preconditions, check_changeable, not_found};
use crate::{BlobService, reply};

impl BlobService {
    /// Handles Snapshot Blob.
    pub(crate) async fn snapshot_blob(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let has_metadata = !metadata.is_empty();
        let preconditions = Preconditions::of_write(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let history = self.history(&request.account).await?;
        let writer = self.extents.writer();
        let taken = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let base = record::blob(view.row(&keys::BASE))?;
            let (base, valid_until) = admit(&preconditions, base, view)?;
            check_update(base.encryption.as_ref(), seal.as_ref())?;
            self.hold_contents(&writer, &base);
            decide(view, base, &metadata, history, valid_until)
        });
        let NewSnapshot { id, snapshot, version } = taken.await?;
        let mut response = reply::write_reply(StatusCode::CREATED, &snapshot, request.version);
        let headers = &mut response.headers;
        reply::put(headers, "x-ms-snapshot", reply::stamp_text(id));
        reply::put_optional(headers, "x-ms-version-id", version.map(reply::stamp_text));
        // Such a request stores no other data than metadata.
        reply::put(headers, "x-ms-request-server-encrypted", has_metadata.to_string());
        Ok(response)
    }
}

/// Result of Snapshot Blob.
struct NewSnapshot {
    id: Stamp,
    snapshot: Blob,
    /// The version of the current state after the snapshot.
    version: Option<Stamp>,
}

/// Checks whether a snapshot may be taken: as a read for the lease, as a write for the conditions. Returns
/// the blob, and the time until which the decision holds.
fn admit(
    preconditions: &Preconditions,
    base: Option<Blob>,
    view: &View<'_>,
) -> Result<(Blob, Option<Timestamp>), Refusal> {
    let admission = preconditions.admit_lease(base.as_ref(), Access::Read, view.now)?;
    let base = base.filter(|base| base.is_live(view.now)).ok_or_else(not_found)?;
    preconditions.check_conditions(&base)?;
    check_changeable(&base, view.now)?;
    Ok((base, admission.valid_until))
}

fn decide(
    view: &View<'_>,
    mut base: Blob,
    metadata: &Metadata,
    history: History,
    valid_until: Option<Timestamp>,
) -> Result<Decision<NewSnapshot>, Refusal> {
    let id = view.stamp;
    let mut snapshot = base.as_snapshot();
    if !metadata.is_empty() {
        snapshot.metadata = metadata.clone();
        snapshot.touch(id, view.now);
    }
    let mut mutations = vec![Mutation::Put(keys::snapshot(id), snapshot.encode()?)];
    if history.versioning {
        mutations.extend(history.retain_version(&base)?);
        base.version = Some(id);
        mutations.push(Mutation::Put(keys::BASE, base.encode()?));
    }
    let change = Change::of(mutations).until(valid_until);
    Ok(Decision::Write(change, NewSnapshot { id, snapshot, version: base.version }))
}
