//! Preconditions of operations: the lease, the type of the blob, the condition headers, and protection from
//! changes.
//!
//! The lease is checked first, then whether the blob exists, then the conditions.

use lazuli_concurrency::{Access, Admission, Conditions, Lease, LeaseId, ReadRules, Timestamp};
use lazuli_protocol::account::Role;
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Version};

use crate::index::tag_query::TagCondition;
use crate::model::container::Container;
use crate::model::record::{Blob, Kind};

const IF_TAGS: &str = "x-ms-if-tags";

/// The lease id and the conditions of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preconditions {
    pub(crate) conditions: Conditions,
    pub(crate) lease_id: Option<LeaseId>,
    /// Whether to ignore the lease id if the blob does not exist, as versions before 2013-08-15 do.
    pub(crate) ignore_lease_id_if_missing: bool,
    pub(crate) if_tags: Option<TagCondition>,
}

impl Preconditions {
    /// Reads the preconditions of a read.
    pub(crate) fn of_read(request: &Request) -> Result<Self, Refusal> {
        Ok(Self { conditions: request.headers.conditions()?, ..Self::of_tags(request)? })
    }

    /// Reads the preconditions of a write. Refuses combined conditions that are only for reads.
    pub(crate) fn of_write(request: &Request) -> Result<Self, Refusal> {
        let this = Self::of_read(request)?;
        this.conditions.check_write()?;
        Ok(this)
    }

    /// Reads the preconditions of an operation that takes only conditions on tags.
    pub(crate) fn of_tags(request: &Request) -> Result<Self, Refusal> {
        let if_tags = request.headers.filled(IF_TAGS)?.map(|text| {
            TagCondition::parse(text)
                .map_err(|reason| Refusal::invalid_header(IF_TAGS, text).detail("Reason", reason))
        });
        Ok(Self { if_tags: if_tags.transpose()?, ..Self::of_lease_only(request)? })
    }

    /// Reads the preconditions of an operation on tags, which has conditions on the tags and on the blob.
    pub(crate) fn of_tags_and_blob(request: &Request) -> Result<Self, Refusal> {
        let this = Self { conditions: request.headers.blob_conditions()?, ..Self::of_tags(request)? };
        this.conditions.check_write()?;
        Ok(this)
    }

    /// Reads the preconditions of a write that takes no conditions.
    pub(crate) fn of_lease_only(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            lease_id: lease_id(&request.headers)?,
            ignore_lease_id_if_missing: !request.version.at_least(2013, 8, 15),
            ..Self::default()
        })
    }

    /// Checks the preconditions of a read. `fits` says which types of blobs the operation is for.
    pub(crate) fn admit_read_of(
        &self,
        blob: Option<&Blob>,
        fits: impl FnOnce(Kind) -> bool,
        version: Version,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.admit_lease(blob, Access::Read, now)?;
        let blob = blob.ok_or_else(not_found)?;
        if !fits(blob.kind) {
            return Err(ErrorCode::InvalidBlobType.into());
        }
        let checked = self.conditions.evaluate_read(blob.validators(), read_rules(version));
        checked.map_err(|refusal| Refusal::unmet(refusal, &self.conditions, Some(blob.validators())))?;
        self.check_tags(Some(blob))
    }

    /// Checks the preconditions of a write to an existing blob.
    pub(crate) fn admit_write(&self, blob: Option<&Blob>, now: Timestamp) -> Result<Admission, Refusal> {
        self.admit_write_to(blob, |_| true, now)
    }

    /// Checks the preconditions of a write to an existing blob. `fits` says which types of blobs the
    /// operation is for.
    pub(crate) fn admit_write_to(
        &self,
        blob: Option<&Blob>,
        fits: impl FnOnce(Kind) -> bool,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let admission = self.admit_lease(blob, Access::Write, now)?;
        let blob = blob.filter(|blob| blob.is_live(now)).ok_or_else(not_found)?;
        if !fits(blob.kind) {
            return Err(ErrorCode::InvalidBlobType.into());
        }
        self.check_conditions(blob)?;
        Ok(admission)
    }

    /// Checks the conditions of a write to an existing blob.
    pub(crate) fn check_conditions(&self, blob: &Blob) -> Result<(), Refusal> {
        let checked = self.conditions.evaluate_write(blob.validators());
        checked.map_err(|refusal| Refusal::unmet(refusal, &self.conditions, Some(blob.validators())))?;
        self.check_tags(Some(blob))
    }

    /// Checks the lease and the type in a write that creates or replaces a blob. A blob keeps its type until
    /// it is deleted.
    pub(crate) fn admit_replacement(
        &self,
        blob: Option<&Blob>,
        kind: Kind,
        access: Access,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let admission = self.admit_lease(blob, access, now)?;
        match blob {
            Some(blob) if blob.is_present(now) && !blob.kind.is_same_type(kind) => {
                Err(ErrorCode::InvalidBlobType.into())
            }
            _ => Ok(admission),
        }
    }

    /// Checks the conditions of a write that creates or replaces a blob. A blob with only staged blocks can
    /// be leased, but it does not exist for conditions, so it is not `live`.
    pub(crate) fn check_creation(&self, live: Option<&Blob>, by_holder: bool) -> Result<(), Refusal> {
        let current = live.map(Blob::validators);
        let checked = self.conditions.evaluate_create(current, by_holder);
        checked.map_err(|refusal| Refusal::unmet(refusal, &self.conditions, current))?;
        self.check_tags(live)
    }

    /// Checks the conditions of a lease action. The lease id of such a request is a parameter, not a
    /// condition.
    pub(crate) fn admit_lease_action(&self, blob: &Blob) -> Result<(), Refusal> {
        if blob.committed {
            return self.check_conditions(blob);
        }
        self.check_creation(None, false)
    }

    /// Checks the condition on tags.
    pub(crate) fn check_tags(&self, blob: Option<&Blob>) -> Result<(), Refusal> {
        match &self.if_tags {
            Some(condition) if !blob.is_some_and(|blob| condition.holds(&blob.tags)) => {
                Err(ErrorCode::ConditionNotMet.into())
            }
            _ => Ok(()),
        }
    }

    /// Checks the preconditions of a change to a container. Returns the time until which the decision holds.
    pub(crate) fn admit_container(
        &self,
        container: &Container,
        access: Access,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Refusal> {
        let admission = admit_container(container, access, self.lease_id, now)?;
        let checked = self.conditions.evaluate_write(container.validators());
        checked.map_err(|refusal| Refusal::unmet(refusal, &self.conditions, Some(container.validators())))?;
        Ok(admission.valid_until)
    }

    /// Checks only the lease. A blob that does not exist has no lease. The admission ends at the latest when
    /// the blob expires.
    pub(crate) fn admit_lease(
        &self,
        blob: Option<&Blob>,
        access: Access,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let present = blob.filter(|blob| blob.is_present(now));
        let lease = present.map_or(Lease::AVAILABLE, |blob| blob.lease);
        let id = self.lease_id.filter(|_| present.is_some() || !self.ignore_lease_id_if_missing);
        let admission = lease.admits(access, id, now);
        let admission = admission.map_err(|refusal| Refusal::leased(refusal, Leased::Blob, &lease, now))?;
        let ends = [admission.valid_until, present.and_then(Blob::expires_at)];
        Ok(Admission { valid_until: ends.into_iter().flatten().min(), ..admission })
    }
}

/// Checks the lease id of a read of a container. A read needs no lease id, but a wrong one is refused.
pub(crate) fn admit_container_read(
    container: &Container,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<(), Refusal> {
    admit_container(container, Access::Read, id, now).map(|_| ())
}

/// Checks the lease of a container.
pub(crate) fn admit_container(
    container: &Container,
    access: Access,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<Admission, Refusal> {
    let admission = container.lease.admits(access, id, now);
    admission.map_err(|refusal| Refusal::leased(refusal, Leased::Container, &container.lease, now))
}

/// Returns how a version combines the conditions of a read.
pub(crate) fn read_rules(version: Version) -> ReadRules {
    if version.at_least(2016, 5, 31) {
        ReadRules::CombinedWithoutStar
    } else if version.at_least(2013, 8, 15) {
        ReadRules::Combined
    } else {
        ReadRules::Single
    }
}

/// Refuses a condition on tags to a caller that may not read tags.
pub(crate) fn check_tag_permission(request: &Request) -> Result<(), Refusal> {
    if !request.headers.contains_key(IF_TAGS) || may_read_tags(&request.caller) {
        return Ok(());
    }
    Err(ErrorCode::AuthorizationPermissionMismatch.into())
}

/// Returns whether a caller may read tags. The only role that allows it is owner.
pub(crate) fn may_read_tags(caller: &Caller) -> bool {
    match caller {
        Caller::Key => true,
        Caller::Sas(grant) => grant.permissions.contains('t'),
        Caller::Bearer { role, .. } => *role >= Role::Owner,
        Caller::Anonymous => false,
    }
}

/// Refuses to replace a blob for a caller that may only create blobs.
pub(crate) fn check_overwrite(caller: &Caller, exists: bool) -> Result<(), Refusal> {
    if exists && !caller.may_replace() {
        return Err(ErrorCode::UnauthorizedBlobOverwrite.into());
    }
    Ok(())
}

/// Refuses to change or delete a blob that a policy or a legal hold protects.
pub(crate) fn check_mutable(blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
    if blob.legal_hold.is_held() {
        return Err(ErrorCode::BlobImmutableDueToLegalHold.into());
    }
    match blob.immutability {
        Some(policy) if policy.until > now => Err(ErrorCode::BlobImmutableDueToPolicy.into()),
        _ => Ok(()),
    }
}

/// Refuses to change a blob that is archived, the target of a pending copy, or of an incremental copy.
pub(crate) fn check_changeable(blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
    if blob.tier.is_archived(now) {
        return Err(ErrorCode::BlobArchived.into());
    }
    check_no_pending_copy(blob)?;
    match &blob.copy {
        Some(copy) if copy.incremental => Err(ErrorCode::OperationNotAllowedOnIncrementalCopyBlob.into()),
        _ => Ok(()),
    }
}

/// Refuses to write to the target of a pending copy.
pub(crate) fn check_no_pending_copy(blob: &Blob) -> Result<(), Refusal> {
    match &blob.copy {
        Some(copy) if copy.state.is_pending() => Err(ErrorCode::PendingCopyOperation.into()),
        _ => Ok(()),
    }
}

/// Returns the refusal for a blob that does not exist.
pub(crate) fn not_found() -> Refusal {
    ErrorCode::BlobNotFound.into()
}
