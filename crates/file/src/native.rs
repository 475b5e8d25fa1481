//! Files as SMB knows them: by handles, not by requests. [`crate::opens`] says who may open what; here is what is done with
//! it then.
//!
//! Everything is addressed by an [`OpenId`](crate::opens::OpenId). What is read is the newest there is, whoever wrote it and whether or not it is
//! durable yet; what happens between a write and its commit is in its own module.

mod commit;
mod create;
mod directory;
mod io;
mod properties;
mod rename;
mod share;
mod writeback;

use std::sync::Arc;

use lazuli_concurrency::{FileAccess, Timestamp};
use lazuli_protocol::{Account, ErrorCode, Refusal};

use crate::file::MAX_FILE_BYTES;
use crate::opens::{Closed, OpenRefusal, OpenRequest, Opened};
use crate::record::NodeId;

pub use directory::Position;

/// The longest file.
const MAX_LENGTH: u64 = MAX_FILE_BYTES as u64;

/// A share that a client is connected to.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) account: Arc<Account>,
    pub(crate) share: Arc<crate::record::Share>,
    /// The name of the share.
    pub name: String,
}

/// What to do about a file that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Replace it, or make it.
    Supersede,
    /// Open it; it must be there.
    Open,
    /// Make it; it must not be there.
    Create,
    /// Open it, or make it.
    OpenIf,
    /// Empty it; it must be there.
    Overwrite,
    /// Empty it, or make it.
    OverwriteIf,
}

/// What came of a disposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was replaced.
    Superseded,
    /// It was there.
    Opened,
    /// It was made.
    Created,
    /// It was emptied.
    Overwritten,
}

/// What kind of thing a client insists on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Either.
    #[default]
    Any,
    /// A directory.
    Directory,
    /// Not a directory.
    File,
}

/// What an SMB client asks for when it opens something.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// From the root of the share, with slashes; empty for the root.
    pub path: String,
    /// What to do about what is there.
    pub disposition: Disposition,
    /// What it has to be.
    pub kind: Kind,
    /// Attributes of what is made or emptied.
    pub attributes: u32,
    /// Bytes to set aside for what is made or emptied.
    pub allocation: u64,
    /// The security descriptor of what is made, as SDDL; none: inherited.
    pub permission: Option<String>,
    /// As it was in the snapshot of the share of that time; read only.
    pub snapshot: Option<Timestamp>,
    /// What it does with a file that is read-only, if it asks for all that it may do.
    pub if_read_only: Option<FileAccess>,
    /// For the table of opens.
    pub open: OpenRequest,
}

/// What was opened.
#[derive(Clone, Debug)]
pub struct Created {
    /// In the table of opens.
    pub opened: Opened,
    /// What came of the disposition.
    pub action: Action,
    /// What it is.
    pub info: Info,
    /// It was read-only, and is opened as was asked for that case.
    pub is_only_read: bool,
}

/// What there is to know of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Names it in its share, for as long as it exists.
    pub id: NodeId,
    /// The directory it is in.
    pub parent: NodeId,
    /// Its name, as it was written; empty for the root.
    pub name: String,
    /// From the root of the share, with slashes.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// As SMB has them.
    pub attributes: u32,
    /// When it was made.
    pub created: Timestamp,
    /// When it was read last. Not kept beyond what clients set.
    pub accessed: Timestamp,
    /// When its content was changed last.
    pub written: Timestamp,
    /// When anything of it was changed last.
    pub changed: Timestamp,
    /// Bytes up to its end.
    pub length: u64,
    /// Bytes that are set aside for it.
    pub allocated: u64,
    /// Whether it is marked for deletion.
    pub delete_pending: bool,
}

/// What went with its last handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// From the root of the share, with slashes.
    pub path: String,
    /// Whether it was a directory.
    pub is_directory: bool,
}

/// What a client wants a time to become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewTime {
    /// Stays as it is.
    #[default]
    Kept,
    /// Stays as it is, whatever is done through this handle.
    Frozen,
    /// Moves again with what is done through this handle.
    Thawed,
    /// Set, and then not moved by what is done through this handle.
    Set(Timestamp),
}

/// A new value for some of the properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropertyChange {
    /// When it was made.
    pub created: NewTime,
    /// When it was read last.
    pub accessed: NewTime,
    /// When its content was changed last.
    pub written: NewTime,
    /// When anything of it was changed last.
    pub changed: NewTime,
    /// As SMB has them; none: they stay as they are.
    pub attributes: Option<u32>,
}

/// Why something cannot be done with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is nothing of that name.
    #[error("not found")]
    NotFound,
    /// A directory on the way is missing.
    #[error("a directory of the path is not there")]
    PathNotFound,
    /// There is no such share, or snapshot of it.
    #[error("no such share")]
    NoShare,
    /// There is something of that name.
    #[error("it exists")]
    Exists,
    /// It is a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// It is no directory.
    #[error("it is not a directory")]
    NotDirectory,
    /// The directory has something in it.
    #[error("the directory is not empty")]
    NotEmpty,
    /// No name that a file can have.
    #[error("no valid name")]
    InvalidName,
    /// It does not fit other opens, or a lease over REST.
    #[error("sharing violation")]
    Sharing,
    /// It is marked for deletion.
    #[error("marked for deletion")]
    DeletePending,
    /// The bytes are locked by another.
    #[error("the bytes are locked")]
    Locked,
    /// What is not locked cannot be unlocked.
    #[error("the bytes are not locked")]
    NotLocked,
    /// It is read-only, and what was asked for changes or deletes it.
    #[error("it is read-only")]
    ReadOnly,
    /// It cannot be deleted as it is.
    #[error("it cannot be deleted")]
    CannotDelete,
    /// Not with these attributes, or not in a snapshot.
    #[error("access denied")]
    Denied,
    /// The share is full.
    #[error("the share is full")]
    Full,
    /// The request contradicts itself, or what it is about.
    #[error("it makes no sense")]
    Invalid,
    /// The file would be longer than a file can be, or a request is out of bounds.
    #[error("out of bounds")]
    OutOfBounds,
    /// The handle is closed; perhaps by force.
    #[error("the handle is closed")]
    Closed,
    /// Too much of it: opens, locks.
    #[error("too many")]
    TooMany,
    /// Not now.
    #[error("the server is busy")]
    Busy,
    /// Something is broken.
    #[error("it failed")]
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
        tracing::error!(%error, "content cannot be read or written");
        match error {
            lazuli_extents::Error::Full => Self::Full,
            lazuli_extents::Error::Size => Self::OutOfBounds,
            _ => Self::Failed,
        }
    }
}

impl From<lazuli_generations::Damage> for Failure {
    fn from(damage: lazuli_generations::Damage) -> Self {
        Refusal::from(damage).into()
    }
}

impl From<OpenRefusal> for Failure {
    fn from(refusal: OpenRefusal) -> Self {
        match refusal {
            OpenRefusal::SharingViolation => Self::Sharing,
            OpenRefusal::DeletePending => Self::DeletePending,
            OpenRefusal::TooManyOpens => Self::TooMany,
        }
    }
}

impl From<Closed> for Failure {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}
