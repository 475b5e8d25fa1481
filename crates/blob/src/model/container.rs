//! The row of a container.

use lazuli_concurrency::{ETag, Lease, Timestamp, Validators};
use lazuli_generations::Generation;
use lazuli_protocol::ErrorCode;
use lazuli_protocol::metadata::Metadata;
use lazuli_protocol::policy::{PublicAccess, SignedIdentifiers};
use lazuli_store::SpaceId;
use serde::{Deserialize, Serialize};

use super::record::Deleted;

/// A container, current or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Container {
    /// The space of the container's blobs.
    pub(crate) space: SpaceId,
    pub(crate) modified: Timestamp,
    pub(crate) etag: ETag,
    pub(crate) metadata: Metadata,
    pub(crate) public_access: PublicAccess,
    pub(crate) policies: SignedIdentifiers,
    pub(crate) lease: Lease,
    /// The encryption scope of blobs that name none.
    pub(crate) default_encryption_scope: Option<String>,
    /// Whether blobs must not name another scope.
    pub(crate) deny_encryption_scope_override: bool,
    /// Whether a blob of the container has ever had a policy or a legal hold, see
    /// [`crate::access::protection`].
    pub(crate) protects: bool,
    pub(crate) deleted: Option<Deleted>,
}

impl Container {
    /// Returns the values that condition headers are compared with.
    pub(crate) fn validators(&self) -> Validators {
        Validators { etag: self.etag, last_modified: self.modified }
    }
}

impl Generation for Container {
    const KIND: &'static str = "blob";
    const NOT_FOUND: ErrorCode = ErrorCode::ContainerNotFound;
    const ALREADY_EXISTS: ErrorCode = ErrorCode::ContainerAlreadyExists;

    fn space(&self) -> SpaceId {
        self.space
    }

    fn kept_until(&self) -> Option<Timestamp> {
        self.deleted.map(|deleted| deleted.until)
    }
}
