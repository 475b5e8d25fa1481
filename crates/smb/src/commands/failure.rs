//! Maps errors of the file service to status codes.

use lazuli_file::handles::Failure;

use crate::call::CommandError;
use crate::wire::status::Status;

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotFound => Self::OBJECT_NAME_NOT_FOUND,
            Failure::PathNotFound => Self::OBJECT_PATH_NOT_FOUND,
            Failure::NoShare => Self::NETWORK_NAME_DELETED,
            Failure::Exists => Self::OBJECT_NAME_COLLISION,
            Failure::IsDirectory => Self::FILE_IS_A_DIRECTORY,
            Failure::NotDirectory => Self::NOT_A_DIRECTORY,
            Failure::NotEmpty => Self::DIRECTORY_NOT_EMPTY,
            Failure::InvalidName => Self::OBJECT_NAME_INVALID,
            Failure::Sharing => Self::SHARING_VIOLATION,
            Failure::DeletePending => Self::DELETE_PENDING,
            Failure::Locked => Self::FILE_LOCK_CONFLICT,
            Failure::NotLocked => Self::RANGE_NOT_LOCKED,
            Failure::ReadOnly | Failure::Denied => Self::ACCESS_DENIED,
            Failure::CannotDelete => Self::CANNOT_DELETE,
            Failure::Full => Self::DISK_FULL,
            Failure::OutOfBounds | Failure::Invalid => Self::INVALID_PARAMETER,
            Failure::Closed => Self::FILE_CLOSED,
            Failure::TooMany => Self::TOO_MANY_OPENED_FILES,
            Failure::Busy => Self::INSUFFICIENT_RESOURCES,
            Failure::Failed => Self::UNSUCCESSFUL,
        }
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Status::from(failure).into()
    }
}
