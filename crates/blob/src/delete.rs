//! Delete Blob and Undelete Blob.
//!
//! The account settings decide what a delete does, see [`History`]: the state is kept as deleted and can be
//! restored for some days, becomes an earlier version, or is removed. A blob can have any number of
//! snapshots, but the changes of a commit are limited. So deleting or restoring many snapshots takes several
//! commits, and each attempt repeats the checks. The last commit changes the current state, so repeating an
//! interrupted request completes it.

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{Access, Admission, Timestamp};
use lazuli_extents::Writer;
use lazuli_protocol::{ErrorCode, Headers, Query, Refusal, Request, Response, Version};
use lazuli_service::internal_error;
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::access::target::{State, Target};
use crate::index::tag_index::TagClaim;
use crate::model::keys;
use crate::model::record::{self, Blob};
use crate::rules::history::{History, RetainedState};
use crate::rules::precondition::{Preconditions, check_mutable, check_no_pending_copy, not_found};
use crate::rules::tier::TierConditions;
use crate::{BlobService, reply};

/// Maximum number of snapshots and versions that one commit deletes or restores, with two mutations each.
const STEP: usize = 100;

/// The snapshots that a delete affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotScope {
    /// Refuse to delete a blob that has snapshots.
    Absent,
    Include,
    Only,
}

/// Result of one commit of a delete.
#[derive(Default)]
struct DeleteStep {
    /// Whether the deleted states cannot be restored.
    permanent: bool,
    /// Bytes that no row refers to now.
    released: u64,
    /// Whether another commit must follow.
    more: bool,
    /// The tag claim of the deleted current state.
    unindexed: TagClaim,
}

impl BlobService {
    /// Handles Delete Blob.
    pub(crate) async fn delete_blob(&self, request: Request) -> Result<Response, Refusal> {
        let state = State::parse(&request.query)?;
        let snapshots = delete_snapshots(&request, state)?;
        let permanently = delete_permanently(&request.query)?;
        let preconditions = Preconditions::of_write(&request)?;
        let target = self.target(&request).await?;
        let deletion = Deletion {
            preconditions: &preconditions,
            tier_conditions: TierConditions::parse(&request.headers)?,
            history: self.history(&request.account).await?,
            version: request.version,
            service: self,
            writer: self.extents.writer(),
        };
        let permanent = match state {
            _ if permanently => {
                if state == State::Current || !deletion.history.permanent_delete {
                    return Err(ErrorCode::BlobOperationNotSupported.into());
                }
                self.delete_state(&target, |view| deletion.decide_purge(view, state)).await?
            }
            State::Current => self.delete_current(&target, &deletion, snapshots).await?,
            state => self.delete_state(&target, |view| deletion.decide_one(view, state)).await?,
        };
        let mut response = Response::empty(StatusCode::ACCEPTED);
        if request.version.at_least(2017, 7, 29) {
            reply::put(&mut response.headers, "x-ms-delete-type-permanent", permanent.to_string());
        }
        Ok(response)
    }

    /// Deletes the current state, its snapshots, or both. Returns whether the delete is permanent.
    async fn delete_current(
        &self,
        target: &Target,
        deletion: &Deletion<'_>,
        snapshots: SnapshotScope,
    ) -> Result<bool, Refusal> {
        let limit = if snapshots == SnapshotScope::Absent { 1 } else { STEP };
        loop {
            let reads = Reads::key(keys::BASE).and_range(keys::snapshots(), limit);
            let deletion = deletion.next_step();
            let step = self
                .transact(&target.partition, reads, |view| deletion.decide_current(view, snapshots))
                .await?;
            self.extents.released(step.released);
            self.unindex(&target.partition, step.unindexed).await;
            if !step.more {
                return Ok(step.permanent);
            }
        }
    }

    /// Deletes one snapshot or earlier version. Returns whether the delete is permanent.
    async fn delete_state(
        &self,
        target: &Target,
        rule: impl FnMut(&View<'_>) -> Result<Decision<DeleteStep>, Refusal>,
    ) -> Result<bool, Refusal> {
        let key = state_key(target.state);
        let reads = Reads::keys([keys::BASE, keys::deleted(&key), key]);
        let step = self.transact(&target.partition, reads, rule).await?;
        self.extents.released(step.released);
        Ok(step.permanent)
    }

    /// Handles Undelete Blob.
    pub(crate) async fn undelete_blob(&self, request: Request) -> Result<Response, Refusal> {
        let target = self.write_target(&request).await?;
        let mut left = keys::all_deleted();
        let mut found = false;
        loop {
            let reads = Reads::key(keys::BASE).and_range(left.clone(), STEP).and_range(keys::versions(), 1);
            let writer = self.extents.writer();
            let restored =
                self.transact(&target.partition, reads, |view| self.restore(view, &writer)).await?;
            found |= restored.found;
            if let Some(next) = restored.next {
                left.start = next;
            } else if found {
                return Ok(Response::empty(StatusCode::OK));
            } else {
                return Err(not_found());
            }
        }
    }

    /// Restores as many deleted snapshots and versions as fit in a commit. The last commit also restores the
    /// current state.
    fn restore(&self, view: &View<'_>, writer: &Writer) -> Result<Decision<UndeleteStep>, Refusal> {
        let now = view.now;
        let [deleted, versions] = view.ranges() else { return Ok(Decision::Answer(UndeleteStep::default())) };
        let mut base = record::blob(view.row(&keys::BASE))?.filter(|base| !base.has_expired(now));
        let mut found = base.as_ref().is_some_and(|base| base.committed) || !versions.rows.is_empty();
        let (mut mutations, mut valid_until) = (vec![], None);
        let mut restore = |key, mut blob: Blob| -> Result<Mutation, Refusal> {
            valid_until = [valid_until, blob.expires_at()].into_iter().flatten().min();
            blob.deleted = None;
            self.hold_contents(writer, &blob);
            Ok(Mutation::Put(key, blob.encode()?))
        };
        for row in &deleted.rows {
            let blob = Blob::decode(&row.value)?;
            if !blob.has_expired(now) {
                mutations.push(restore(keys::undeleted(&row.key), blob)?);
                mutations.push(Mutation::Delete(row.key.clone()));
            }
        }
        let next = deleted.more.then(|| deleted.range.end.clone());
        if let Some(base) = base.take_if(|base| next.is_none() && base.deleted.is_some()) {
            mutations.push(restore(keys::BASE, base)?);
        }
        found |= !mutations.is_empty();
        Ok(bulk_decision(mutations, valid_until, UndeleteStep { found, next }))
    }
}

/// Result of one commit of Undelete Blob.
#[derive(Default)]
struct UndeleteStep {
    /// Whether the blob has any state.
    found: bool,
    /// The key at which the next commit continues.
    next: Option<Bytes>,
}

/// A request to delete.
struct Deletion<'a> {
    preconditions: &'a Preconditions,
    tier_conditions: TierConditions,
    history: History,
    version: Version,
    service: &'a BlobService,
    /// Holds the content of the states that one commit moves.
    writer: Writer,
}

impl Deletion<'_> {
    /// Returns the same request with a new writer, for the next commit.
    fn next_step(&self) -> Self {
        let writer = self.service.extents.writer();
        Self { tier_conditions: self.tier_conditions.clone(), writer, ..*self }
    }

    /// Decides to delete the current state, its snapshots, or both, as far as they fit in a commit.
    fn decide_current(
        &self,
        view: &View<'_>,
        snapshots: SnapshotScope,
    ) -> Result<Decision<DeleteStep>, Refusal> {
        let now = view.now;
        let base = record::blob(view.row(&keys::BASE))?;
        let admission = self.admit(base.as_ref(), now)?;
        let base = base.ok_or_else(not_found)?;
        self.tier_conditions.check(&base, now)?;
        check_no_pending_copy(&base)?;
        let Some(found) = view.ranges().first() else {
            return Err(internal_error("the snapshots of a blob to delete were not read"));
        };
        if snapshots == SnapshotScope::Absent && !found.rows.is_empty() {
            return Err(ErrorCode::SnapshotsPresent.into());
        }
        if snapshots != SnapshotScope::Only {
            check_mutable(&base, now)?;
        }
        let mut step = DeleteStep {
            permanent: self.history.retention_days.is_none(),
            released: 0,
            more: found.more,
            unindexed: TagClaim::default(),
        };
        let mut mutations = vec![];
        for row in &found.rows {
            let snapshot = Blob::decode(&row.value)?;
            step.released += self.push_delete(&row.key, &snapshot, now, &mut mutations)?;
        }
        if snapshots != SnapshotScope::Only && !found.more {
            self.push_delete_base(&base, now, &mut step, &mut mutations)?;
        }
        Ok(bulk_decision(mutations, admission.valid_until, step))
    }

    fn push_delete_base(
        &self,
        base: &Blob,
        now: Timestamp,
        step: &mut DeleteStep,
        mutations: &mut Vec<Mutation>,
    ) -> Result<(), Refusal> {
        let retained_state = self.history.retained_state(base, now);
        step.permanent = retained_state == RetainedState::Nothing;
        match retained_state {
            RetainedState::Version(version) => {
                self.service.hold_contents(&self.writer, base);
                let kept = base.as_version(version).encode()?;
                mutations.push(Mutation::Put(keys::version(version), kept));
                mutations.push(Mutation::Delete(keys::BASE));
                step.unindexed = TagClaim::of(base);
            }
            RetainedState::Deleted(deleted) => {
                // A deleted state keeps its expiry.
                let kept = Blob { deleted: Some(deleted), expires: base.expires, ..base.as_past_state() };
                mutations.push(Mutation::Put(keys::BASE, kept.encode()?));
            }
            RetainedState::Nothing => {
                step.released += base.content.extent_bytes();
                mutations.push(Mutation::Delete(keys::BASE));
                step.unindexed = TagClaim::of(base);
            }
        }
        mutations.extend(base.drop_staged());
        Ok(())
    }

    /// Decides to delete one snapshot or earlier version.
    fn decide_one(&self, view: &View<'_>, state: State) -> Result<Decision<DeleteStep>, Refusal> {
        let now = view.now;
        let key = state_key(state);
        check_not_current(view, state)?;
        let blob = record::blob(view.row(&key))?;
        let admission = self.preconditions.admit_write(blob.as_ref(), now)?;
        let blob = blob.ok_or_else(not_found)?;
        self.tier_conditions.check(&blob, now)?;
        let mut mutations = vec![];
        let released = self.push_delete(&key, &blob, now, &mut mutations)?;
        let permanent = self.history.retention_days.is_none();
        let change = Change::of(mutations).until(admission.valid_until);
        Ok(Decision::Write(change, DeleteStep { permanent, released, ..DeleteStep::default() }))
    }

    /// Decides to remove a deleted snapshot or earlier version permanently.
    fn decide_purge(&self, view: &View<'_>, state: State) -> Result<Decision<DeleteStep>, Refusal> {
        let key = state_key(state);
        check_not_current(view, state)?;
        if view.row(&key).is_some() {
            return Err(ErrorCode::BlobSnapshotNotSoftDeleted.into());
        }
        let deleted = keys::deleted(&key);
        let blob = record::blob(view.row(&deleted))?.filter(|blob| !blob.has_expired(view.now));
        self.preconditions.admit_lease(None, Access::Write, view.now)?;
        let blob = blob.ok_or_else(not_found)?;
        self.preconditions.check_conditions(&blob)?;
        let step =
            DeleteStep { permanent: true, released: blob.content.extent_bytes(), ..DeleteStep::default() };
        Ok(Decision::Write(Change::of([Mutation::Delete(deleted)]).until(blob.expires_at()), step))
    }

    /// Checks the preconditions. A blob with only staged blocks can be deleted, except in versions in which
    /// such a blob does not exist.
    fn admit(&self, base: Option<&Blob>, now: Timestamp) -> Result<Admission, Refusal> {
        match base {
            Some(base) if !base.committed && base.is_present(now) && self.version.at_least(2013, 8, 15) => {
                let admission = self.preconditions.admit_lease(Some(base), Access::Write, now)?;
                self.preconditions.check_creation(None, admission.by_holder)?;
                Ok(admission)
            }
            base => self.preconditions.admit_write(base, now),
        }
    }

    /// Deletes a snapshot or earlier version. Returns the bytes that no row refers to now.
    fn push_delete(
        &self,
        key: &Bytes,
        blob: &Blob,
        now: Timestamp,
        mutations: &mut Vec<Mutation>,
    ) -> Result<u64, Refusal> {
        check_mutable(blob, now)?;
        mutations.push(Mutation::Delete(key.clone()));
        let Some(deleted) = self.history.deletion_retention(now) else {
            return Ok(blob.content.extent_bytes());
        };
        self.service.hold_contents(&self.writer, blob);
        let kept = Blob { deleted: Some(deleted), ..blob.clone() }.encode()?;
        mutations.push(Mutation::Put(keys::deleted(key), kept));
        Ok(0)
    }
}

/// Refuses to delete the current version by its id.
fn check_not_current(view: &View<'_>, state: State) -> Result<(), Refusal> {
    let State::Version(version) = state else { return Ok(()) };
    let base = record::blob(view.row(&keys::BASE))?;
    if base.is_some_and(|base| base.is_live(view.now) && base.version == Some(version)) {
        return Err(ErrorCode::OperationNotAllowedOnRootBlob.into());
    }
    Ok(())
}

fn state_key(state: State) -> Bytes {
    match state {
        State::Current => keys::BASE,
        State::Snapshot(stamp) => keys::snapshot(stamp),
        State::Version(stamp) => keys::version(stamp),
    }
}

/// Returns the decision to commit these mutations. Commits nothing if there are none.
fn bulk_decision<T>(mutations: Vec<Mutation>, valid_until: Option<Timestamp>, answer: T) -> Decision<T> {
    if mutations.is_empty() {
        return Decision::Answer(answer);
    }
    let change = Change { bulk: true, ..Change::of(mutations) };
    Decision::Write(change.until(valid_until), answer)
}

fn delete_snapshots(request: &Request, state: State) -> Result<SnapshotScope, Refusal> {
    let words = [("include", SnapshotScope::Include), ("only", SnapshotScope::Only)];
    let Some(snapshots) = request.headers.one_of("x-ms-delete-snapshots", &words)? else {
        return Ok(SnapshotScope::Absent);
    };
    let (name, what) = match state {
        State::Current => return Ok(snapshots),
        State::Snapshot(_) => ("snapshot", "Snapshot"),
        State::Version(_) => ("versionid", "Version id"),
    };
    let reason = format!("This operation is only allowed on the root blob. {what} should not be provided.");
    Err(Refusal::invalid_query(name, request.query.get(name).unwrap_or_default(), reason))
}

fn delete_permanently(query: &Query) -> Result<bool, Refusal> {
    match query.get("deletetype").filter(|value| !value.is_empty()) {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case("permanent") => Ok(true),
        Some(value) => Err(Refusal::invalid_query("deletetype", value, "The only value is permanent.")),
    }
}
