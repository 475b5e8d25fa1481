//! The write path of Put Blob, Put Block List, Put Blob From URL and the copies: creates a blob or replaces
//! it as a whole.
//!
//! Each attempt takes the same steps, in the order of the protocol's refusals:
//!
//! 1. Read the row of the blob, and hold the content that it refers to.
//! 2. Check the lease and the type.
//! 3. Describe the new blob. A copy checks its source here.
//! 4. Check the condition headers.
//! 5. Check whether the caller may overwrite the old state, and whether the old state may be replaced. Put
//!    Block List does this after step 7, because a missing block is refused first.
//! 6. Index the tags of the new blob. If they were not indexed yet, start again at 1.
//! 7. Put Block List only: assemble the content.
//! 8. Commit the row of the new blob, and the row that keeps the old state. After a conflict, start again at
//!    1.
//!
//! [`RunningReplace::admit`] takes the steps 1 to 6, [`RunningReplace::commit`] step 8. New content is
//! durable before step 8. In all cases, [`RunningReplace::finish`] removes the index rows that are no longer
//! needed.

use bytes::Bytes;
use lazuli_concurrency::{Access, Admission, Timestamp};
use lazuli_extents::Writer;
use lazuli_protocol::{Refusal, Request};
use lazuli_store::{Attempt, Attempts, Change, Mutation, Reads, Row, View};

use super::protection::ProtectingRequest;
use super::target::Target;
use crate::index::tag_index::TagClaim;
use crate::model::keys;
use crate::model::record::{Blob, Kind};
use crate::model::staging::drops_blocks;
use crate::rules::history::History;
use crate::rules::precondition::{Preconditions, check_changeable, check_mutable, check_overwrite};
use crate::{BlobService, reply};

/// Maximum number of staged blocks whose rows are removed by the commit that uses them. A commit may change
/// 256 rows.
const MAX_REMOVED: usize = 200;

/// A request to create a blob or to replace it as a whole.
pub(crate) struct ReplaceRequest<'a> {
    pub(crate) request: &'a Request,
    pub(crate) target: &'a Target,
    pub(crate) preconditions: &'a Preconditions,
    /// The access that the lease of the target must allow.
    pub(crate) access: Access,
    /// The type of the new blob.
    pub(crate) kind: Kind,
    /// Whether the content is assembled from staged blocks and the old content.
    pub(crate) uses_blocks: bool,
    /// Holds the new content, and the old.
    pub(crate) writer: Writer,
}

impl<'a> ReplaceRequest<'a> {
    /// Describes a plain write of a blob of this type. `writer` holds the new content.
    pub(crate) fn write(
        request: &'a Request,
        target: &'a Target,
        preconditions: &'a Preconditions,
        kind: Kind,
        writer: Writer,
    ) -> Self {
        Self { request, target, preconditions, access: Access::Write, kind, uses_blocks: false, writer }
    }
}

/// A running [`ReplaceRequest`].
pub(crate) struct RunningReplace<'a> {
    service: &'a BlobService,
    replace: ReplaceRequest<'a>,
    history: History,
    protecting: Option<ProtectingRequest<'a>>,
    attempts: Attempts<'a>,
    /// The tags that are indexed for the new blob.
    claim: TagClaim,
}

/// An attempt whose preconditions hold and whose tags are indexed.
pub(crate) struct AdmittedAttempt {
    attempt: Attempt,
    admission: Admission,
    pub(crate) now: Timestamp,
    pub(crate) old: Option<Blob>,
    pub(crate) new: Blob,
}

/// Result of a commit.
pub(crate) struct ReplaceResult {
    blob: Blob,
    /// Bytes that no row refers to now.
    released: u64,
    /// The tag claim of the old state.
    unindexed: TagClaim,
}

impl BlobService {
    /// Creates or replaces a blob. `describe` returns the new blob, given the old state and the time; its
    /// content is durable. The commit sets claim, dates, version and lease.
    pub(crate) async fn replace(
        &self,
        replace: ReplaceRequest<'_>,
        describe: impl Fn(Option<&Blob>, Timestamp) -> Result<Blob, Refusal>,
    ) -> Result<Blob, Refusal> {
        let mut replacement = RunningReplace::new(self, replace).await?;
        let outcome = replacement.run(&describe).await;
        replacement.finish(outcome).await
    }
}

impl<'a> RunningReplace<'a> {
    pub(crate) async fn new(service: &'a BlobService, replace: ReplaceRequest<'a>) -> Result<Self, Refusal> {
        let partition = &replace.target.partition;
        Ok(Self {
            history: service.history(&replace.request.account).await?,
            protecting: ProtectingRequest::if_requested(replace.request, partition.space)?,
            attempts: service.rows.attempts(partition),
            claim: TagClaim::default(),
            service,
            replace,
        })
    }

    async fn run(
        &mut self,
        describe: impl Fn(Option<&Blob>, Timestamp) -> Result<Blob, Refusal>,
    ) -> Result<ReplaceResult, Refusal> {
        loop {
            let admitted = self.admit(&describe).await?;
            if let Some(replaced) = self.commit(admitted, vec![]).await? {
                return Ok(replaced);
            }
        }
    }

    /// Begins an attempt and checks its preconditions. Returns once the tags of the new blob are indexed.
    pub(crate) async fn admit(
        &mut self,
        describe: impl Fn(Option<&Blob>, Timestamp) -> Result<Blob, Refusal>,
    ) -> Result<AdmittedAttempt, Refusal> {
        loop {
            let (attempt, old) = self.begin().await?;
            let ReplaceRequest { preconditions, access, kind, target, .. } = &self.replace;
            let now = attempt.view().now;
            let admission = preconditions.admit_replacement(old.as_ref(), *kind, *access, now)?;
            let new = describe(old.as_ref(), now)?;
            let live = old.as_ref().filter(|old| old.is_live(now));
            preconditions.check_creation(live, admission.by_holder)?;
            if !self.replace.uses_blocks {
                self.check_old_state(live, now)?;
            }
            if new.tags == self.claim.tags {
                return Ok(AdmittedAttempt { attempt, admission, now, old, new });
            }
            self.service.unindex(&target.partition, std::mem::take(&mut self.claim)).await;
            self.claim = self.service.index(&target.partition, new.tags).await?;
        }
    }

    /// Reads the old state and holds its content.
    async fn begin(&mut self) -> Result<(Attempt, Option<Blob>), Refusal> {
        let (service, writer) = (self.service, &self.replace.writer);
        if self.replace.uses_blocks {
            // A change of the row that counts staged blocks shows that one of them has changed.
            let reads = Reads::keys([keys::BASE, keys::STAGED_COUNT]);
            return service.begin_pinned(&mut self.attempts, reads, writer).await;
        }
        let (attempt, old) = service.begin(&mut self.attempts, Reads::key(keys::BASE)).await?;
        if let Some(old) = &old {
            service.hold_contents(writer, old);
        }
        Ok((attempt, old))
    }

    /// Commits an attempt. `used` are the keys of the staged blocks in the new content. Returns `None` after
    /// a conflict; the caller starts again.
    pub(crate) async fn commit(
        &mut self,
        admitted: AdmittedAttempt,
        used: Vec<Bytes>,
    ) -> Result<Option<ReplaceResult>, Refusal> {
        let AdmittedAttempt { attempt, admission, old, new, .. } = admitted;
        let (mut change, replaced) = self.decide(&attempt.view(), old.as_ref(), new, &admission)?;
        self.service.announce_protection(self.protecting.as_ref()).await?;
        let watch = self.service.dropped.watch(&self.replace.target.partition);
        if remove_used_blocks(&mut change, &attempt.view(), used) {
            watch.set();
        }
        let committed = self.attempts.commit(attempt, change).await;
        let committed =
            committed.map_err(|error| self.service.rows.refusal(self.attempts.partition(), error))?;
        Ok(committed.then_some(replaced))
    }

    /// Returns whether the rows that the attempt has read are unchanged.
    pub(crate) async fn is_current(&self, admitted: &AdmittedAttempt) -> Result<bool, Refusal> {
        self.attempts.is_current(&admitted.attempt).await.map_err(reply::read_refusal)
    }

    /// Checks that the caller may overwrite the live state, and that this state may be replaced.
    fn check_old_state(&self, live: Option<&Blob>, now: Timestamp) -> Result<(), Refusal> {
        check_overwrite(&self.replace.request.caller, live.is_some())?;
        live.map_or(Ok(()), |live| check_replaceable(live, self.history, now))
    }

    /// Returns the change that replaces `old` by `new`.
    fn decide(
        &self,
        view: &View<'_>,
        old: Option<&Blob>,
        mut new: Blob,
        admission: &Admission,
    ) -> Result<(Change, ReplaceResult), Refusal> {
        let (stamp, now) = (view.stamp, view.now);
        let live = old.filter(|old| old.is_live(now));
        if self.replace.uses_blocks {
            self.check_old_state(live, now)?;
        }
        if let Some(live) = live {
            new.created = live.created;
            // The old tier may not allow the length of a new page blob.
            if new.tier.tier.is_none() && new.kind == Kind::Block {
                new.tier = live.tier.at(now);
            }
        } else {
            new.created = now;
        }
        new.tags_claim = self.claim.claim;
        new.touch(stamp, now);
        new.incarnation = stamp;
        new.version = self.history.new_version(stamp);
        new.lease = admission.lease;
        new.committed = true;
        new.staging = None;
        let mut mutations = vec![Mutation::Put(keys::BASE, new.encode()?)];
        let mut released = 0;
        if let Some(old) = old {
            let kept = self.history.retain_replaced(old, stamp, now)?;
            if kept.is_empty() {
                released = old.content.extent_bytes();
            }
            mutations.extend(kept);
            mutations.extend(old.drop_staged());
        }
        let change = Change::of(mutations).until(admission.valid_until).until(self.claim.valid_until());
        let unindexed = old.map(TagClaim::of).unwrap_or_default();
        Ok((change, ReplaceResult { blob: new, released, unindexed }))
    }

    /// Removes index rows that are no longer needed: those of the old state after a commit, those of the new
    /// blob after a refusal. Returns the new blob.
    pub(crate) async fn finish(self, outcome: Result<ReplaceResult, Refusal>) -> Result<Blob, Refusal> {
        let Self { service, replace, attempts, claim, .. } = self;
        // Let other transactions on the blob proceed before the index is updated.
        drop(attempts);
        let partition = &replace.target.partition;
        match outcome {
            Ok(ReplaceResult { blob, released, unindexed }) => {
                service.unindex(partition, unindexed).await;
                service.extents.released(released);
                Ok(blob)
            }
            Err(refusal) => {
                service.unindex_refused(partition, claim, &refusal).await;
                Err(refusal)
            }
        }
    }
}

/// Removes the rows of the used staged blocks, if there are few. Returns whether the commit leaves rows of
/// dropped blocks.
fn remove_used_blocks(change: &mut Change, view: &View<'_>, used: Vec<Bytes>) -> bool {
    if !drops_blocks(change) || !view.has_read(&keys::STAGED_COUNT) {
        return drops_blocks(change);
    }
    let staged = view.row(&keys::STAGED_COUNT).map_or(0, Row::count);
    if used.len() > MAX_REMOVED {
        return true;
    }
    let rest = staged - used.len() as i64;
    change.mutations.extend(used.into_iter().map(Mutation::Delete));
    rest != 0
}

/// Refuses to replace a blob that is protected, archived, or the target of a pending or incremental copy.
fn check_replaceable(live: &Blob, history: History, now: Timestamp) -> Result<(), Refusal> {
    if !history.versioning {
        check_mutable(live, now)?;
    }
    check_changeable(live, now)
}
