//! Failures of the handle API.

use lazuli_content::content_refusal;
use lazuli_protocol::{ErrorCode, Refusal};

/// Why an operation on a file fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The file does not exist.
    #[error("not found")]
    NotFound,
    /// A directory of the path does not exist.
    #[error("a directory of the path does not exist")]
    PathNotFound,
    /// The share or snapshot does not exist.
    #[error("no such share")]
    NoShare,
    /// The file exists.
    #[error("already exists")]
    Exists,
    /// The object is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The object is not a directory.
    #[error("is not a directory")]
    NotDirectory,
    /// The directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The name is invalid.
    #[error("invalid name")]
    InvalidName,
    /// Conflicts with other opens, or with a lease over REST.
    #[error("sharing violation")]
    Sharing,
    /// The file is marked for deletion.
    #[error("marked for deletion")]
    DeletePending,
    /// Another open has locked the bytes.
    #[error("the bytes are locked")]
    Locked,
    /// The bytes are not locked.
    #[error("the bytes are not locked")]
    NotLocked,
    /// The file is read-only.
    #[error("read-only")]
    ReadOnly,
    /// The file cannot be deleted.
    #[error("cannot be deleted")]
    CannotDelete,
    /// Not allowed with these attributes, or in a snapshot.
    #[error("access denied")]
    Denied,
    /// The share is full.
    #[error("the share is full")]
    Full,
    /// The request is inconsistent.
    #[error("invalid request")]
    Invalid,
    /// The file would be too long, or a range is out of bounds.
    #[error("out of bounds")]
    OutOfBounds,
    /// The handle is closed, perhaps by force.
    #[error("the handle is closed")]
    Closed,
    /// Too many opens or locks.
    #[error("too many open handles or locks")]
    TooMany,
    /// Try again later.
    #[error("the server is busy")]
    Busy,
    /// Internal error.
    #[error("internal error")]
    Failed,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal.code() {
            ErrorCode::ResourceNotFound => Self::NotFound,
            ErrorCode::ParentNotFound => Self::PathNotFound,
            ErrorCode::ShareNotFound | ErrorCode::ShareBeingDeleted | ErrorCode::ShareSnapshotNotFound => {
                Self::NoShare
            }
            ErrorCode::ResourceAlreadyExists => Self::Exists,
            ErrorCode::DirectoryNotEmpty => Self::NotEmpty,
            ErrorCode::InvalidFileOrDirectoryPathName => Self::InvalidName,
            ErrorCode::InvalidResourceName => Self::NoShare,
            ErrorCode::SharingViolation | ErrorCode::ClientCacheFlushDelay => Self::Sharing,
            ErrorCode::SMBDeletePending => Self::DeletePending,
            ErrorCode::FileLockConflict => Self::Locked,
            ErrorCode::ReadOnlyAttribute => Self::ReadOnly,
            ErrorCode::ShareSizeLimitReached => Self::Full,
            ErrorCode::InvalidRenameSourcePath | ErrorCode::FileInvalidPermission => Self::Invalid,
            ErrorCode::ServerBusy => Self::Busy,
            code => {
                tracing::error!(?code, "a request over SMB failed");
                Self::Failed
            }
        }
    }
}

impl From<lazuli_extents::Error> for Failure {
    fn from(error: lazuli_extents::Error) -> Self {
        match error {
            lazuli_extents::Error::Full => Self::Full,
            lazuli_extents::Error::Size => Self::OutOfBounds,
            error => content_refusal(error).into(),
        }
    }
}

impl From<lazuli_service::Damage> for Failure {
    fn from(damage: lazuli_service::Damage) -> Self {
        Refusal::from(damage).into()
    }
}
