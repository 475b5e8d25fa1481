//! What has to hold before an operation goes ahead: the lease, and the condition headers.
//!
//! The lease is judged first, then whether the blob exists, then the conditions.

use lazuli_concurrency::{Access, Admission, Conditions, Lease, LeaseId, ReadRules, Timestamp};
use lazuli_protocol::account::Role;
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Version};

use crate::put::check_no_pending_copy;
use crate::record::{Blob, Container, Kind};
use crate::tag_query::TagCondition;
use crate::target::not_found;

const IF_TAGS: &str = "x-ms-if-tags";

/// The lease id and the conditions of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preconditions {
    pub(crate) conditions: Conditions,
    pub(crate) lease_id: Option<LeaseId>,
    /// Whether the id says nothing of a blob that is not there.
    pub(crate) ignores_id_of_none: bool,
    pub(crate) if_tags: Option<TagCondition>,
}

impl Preconditions {
    /// Of a read.
    pub(crate) fn of_read(request: &Request) -> Result<Self, Refusal> {
        Ok(Self { conditions: request.headers.conditions()?, ..Self::of_tags(request)? })
    }

    /// Of a write, which has one condition.
    pub(crate) fn of_write(request: &Request) -> Result<Self, Refusal> {
        let this = Self::of_read(request)?;
        this.conditions.check_write()?;
        Ok(this)
    }

    /// Of an operation that takes no conditions but those on tags.
    pub(crate) fn of_tags(request: &Request) -> Result<Self, Refusal> {
        let if_tags = request.headers.filled(IF_TAGS)?.map(|text| {
            TagCondition::parse(text)
                .map_err(|reason| Refusal::invalid_header(IF_TAGS, text).detail("Reason", reason))
        });
        Ok(Self { if_tags: if_tags.transpose()?, ..Self::of_lease_only(request)? })
    }

    /// Of an operation on the tags of a blob, with conditions on both.
    pub(crate) fn of_tags_and_blob(request: &Request) -> Result<Self, Refusal> {
        let this = Self { conditions: request.headers.blob_conditions()?, ..Self::of_tags(request)? };
        this.conditions.check_write()?;
        Ok(this)
    }

    /// Of a write that takes no conditions.
    pub(crate) fn of_lease_only(request: &Request) -> Result<Self, Refusal> {
        Ok(Self {
            lease_id: lease_id(&request.headers)?,
            ignores_id_of_none: !request.version.at_least(2013, 8, 15),
            ..Self::default()
        })
    }

    /// Judges a read of what has to be of a type that the operation is for.
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
        self.conditions.evaluate_read(blob.validators(), read_rules(version))?;
        self.check_tags(Some(blob))
    }

    /// Judges a write that needs the blob to be there.
    pub(crate) fn admit_write(&self, blob: Option<&Blob>, now: Timestamp) -> Result<Admission, Refusal> {
        self.admit_write_to(blob, |_| true, now)
    }

    /// Judges a write that needs the blob to be there, and to be of a type that the operation is for.
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

    /// Judges the conditions of a write to what is there.
    pub(crate) fn check_conditions(&self, blob: &Blob) -> Result<(), Refusal> {
        self.conditions.evaluate_write(blob.validators())?;
        self.check_tags(Some(blob))
    }

    /// Judges a write that makes the blob or replaces it. What only has staged blocks can be leased but has no version.
    pub(crate) fn admit_create(
        &self,
        blob: Option<&Blob>,
        access: Access,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let admission = self.admit_lease(blob, access, now)?;
        let current = blob.filter(|blob| blob.is_live(now));
        self.conditions.evaluate_create(current.map(Blob::validators), admission.by_holder)?;
        self.check_tags(current)?;
        Ok(admission)
    }

    /// Judges a write that makes or replaces a blob of one type, and no other.
    pub(crate) fn admit_create_of(
        &self,
        blob: Option<&Blob>,
        kind: Kind,
        access: Access,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        self.admit_lease(blob, access, now)?;
        match blob {
            Some(blob) if blob.is_there(now) && !blob.kind.is_like(kind) => {
                Err(ErrorCode::InvalidBlobType.into())
            }
            _ => self.admit_create(blob, access, now),
        }
    }

    /// Judges the conditions of a lease action, for which the lease id means something else.
    pub(crate) fn admit_lease_action(&self, blob: &Blob) -> Result<(), Refusal> {
        if blob.committed {
            return self.check_conditions(blob);
        }
        self.conditions.evaluate_create(None, false)?;
        self.check_tags(None)
    }

    /// Judges the condition on the tags of what is there.
    pub(crate) fn check_tags(&self, blob: Option<&Blob>) -> Result<(), Refusal> {
        match &self.if_tags {
            Some(condition) if !blob.is_some_and(|blob| condition.holds(&blob.tags)) => {
                Err(ErrorCode::ConditionNotMet.into())
            }
            _ => Ok(()),
        }
    }

    /// Judges a change to a container. The decision may hold only for a while.
    pub(crate) fn admit_container(
        &self,
        container: &Container,
        access: Access,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Refusal> {
        let admission = admit_container(container, access, self.lease_id, now)?;
        self.conditions.evaluate_write(container.validators())?;
        Ok(admission.valid_until)
    }

    /// Judges the lease alone. What does not exist has none. What exists may do so only for a while, and so long the
    /// admission holds.
    pub(crate) fn admit_lease(
        &self,
        blob: Option<&Blob>,
        access: Access,
        now: Timestamp,
    ) -> Result<Admission, Refusal> {
        let there = blob.filter(|blob| blob.is_there(now));
        let lease = there.map_or(Lease::AVAILABLE, |blob| blob.lease);
        let id = self.lease_id.filter(|_| there.is_some() || !self.ignores_id_of_none);
        let admission = lease.admits(access, id, now);
        let admission = admission.map_err(|refusal| Refusal::lease(refusal, Leased::Blob))?;
        let ends = [admission.valid_until, there.and_then(Blob::ends_at)];
        Ok(Admission { valid_until: ends.into_iter().flatten().min(), ..admission })
    }
}

/// Judges the lease of a container that is read, which needs no id; but one that is sent has to be right.
pub(crate) fn admit_container_read(
    container: &Container,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<(), Refusal> {
    admit_container(container, Access::Read, id, now).map(|_| ())
}

/// Judges the lease of a container.
pub(crate) fn admit_container(
    container: &Container,
    access: Access,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<Admission, Refusal> {
    let admission = container.lease.admits(access, id, now);
    admission.map_err(|refusal| Refusal::lease(refusal, Leased::Container))
}

/// How conditions on reads combine in that version.
pub(crate) fn read_rules(version: Version) -> ReadRules {
    if version.at_least(2016, 5, 31) {
        ReadRules::CombinedWithoutStar
    } else if version.at_least(2013, 8, 15) {
        ReadRules::Combined
    } else {
        ReadRules::Single
    }
}

/// Refuses a condition on tags to a caller who may not read them.
pub(crate) fn check_tag_permission(request: &Request) -> Result<(), Refusal> {
    if !request.headers.contains_key(IF_TAGS) || may_see_tags(&request.caller) {
        return Ok(());
    }
    Err(ErrorCode::AuthorizationPermissionMismatch.into())
}

/// Whether a caller may read tags. Among roles only that of an owner includes it.
pub(crate) fn may_see_tags(caller: &Caller) -> bool {
    match caller {
        Caller::Key => true,
        Caller::Sas(grant) => grant.permissions.contains('t'),
        Caller::Bearer { role, .. } => *role >= Role::Owner,
        Caller::Anonymous => false,
    }
}

/// Refuses to replace a blob for a caller who may only create.
pub(crate) fn check_overwrite(caller: &Caller, exists: bool) -> Result<(), Refusal> {
    if exists && !caller.may_replace() {
        return Err(ErrorCode::UnauthorizedBlobOverwrite.into());
    }
    Ok(())
}

/// Refuses to change or delete what a policy or a legal hold protects.
pub(crate) fn check_mutable(blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
    if blob.legal_hold.is_held() {
        return Err(ErrorCode::BlobImmutableDueToLegalHold.into());
    }
    match blob.immutability {
        Some(policy) if policy.until > now => Err(ErrorCode::BlobImmutableDueToPolicy.into()),
        _ => Ok(()),
    }
}

/// Refuses to change in place what is archived, being copied to, or kept in step with another blob.
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
