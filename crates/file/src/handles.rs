//! The handle API: files and directories as the SMB server uses them, by open handles instead of requests.
//!
//! The [open-file table](crate::opens) decides which opens are compatible; this module acts on open files.
//! Reads return the newest content, durable or not. What happens between a write and its commit is in
//! [`crate::write_back`].
//!
//! Invariants:
//!
//! - A file enters the table before its row is read or made, so from then on no request over REST can delete
//!   or lease it unseen.
//! - An open is always either returned to the caller or removed from the table, even if its future is
//!   dropped.
//! - A function may hold the lock of a file during disk I/O, but never while it waits for a client.

mod close;
mod create;
mod directory;
mod info;
mod io;
mod properties;
mod rename;
mod share;

use lazuli_concurrency::{FileAccess, Timestamp};

use crate::opens::{Closed, OpenRefusal, OpenRequest, Opened};
use crate::tree::record::NodeId;

pub use crate::failure::Failure;
pub use directory::Position;
pub use share::Tree;

/// The treatment of an existing or missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Replace it, or create it.
    Supersede,
    /// Open it; it must exist.
    Open,
    /// Create it; it must not exist.
    Create,
    /// Open it, or create it.
    OpenIf,
    /// Truncate it; it must exist.
    Overwrite,
    /// Truncate it, or create it.
    OverwriteIf,
}

/// The effect of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The file was replaced.
    Superseded,
    /// An existing file was opened.
    Opened,
    /// The file was created.
    Created,
    /// The file was truncated.
    Overwritten,
}

/// The kind of object that a client requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Any kind.
    #[default]
    Any,
    /// A directory.
    Directory,
    /// A file.
    File,
}

/// A request of an SMB client to open a file or directory.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Path from the root of the share, with slashes; empty for the root.
    pub path: String,
    /// The treatment of an existing or missing file.
    pub disposition: Disposition,
    /// The required kind.
    pub kind: Kind,
    /// Attributes of a file that is created or truncated.
    pub attributes: u32,
    /// Allocation size of a file that is created or truncated, in bytes.
    pub allocation: u64,
    /// Security descriptor of a new file, as SDDL. `None`: inherited.
    pub permission: Option<String>,
    /// Opens the file as the share snapshot of this time shows it, read-only.
    pub snapshot: Option<Timestamp>,
    /// Access to request instead if the file is read-only.
    pub if_read_only: Option<FileAccess>,
    /// The request to the open-file table.
    pub open: OpenRequest,
}

/// The result of an open.
#[derive(Clone, Debug)]
pub struct Created {
    /// The open in the table.
    pub opened: Opened,
    /// The effect.
    pub action: Action,
    /// Properties of the file.
    pub info: Info,
    /// The file is read-only and was opened with `if_read_only`.
    pub opened_read_only: bool,
}

/// Properties of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The id in the share, for as long as it exists.
    pub id: NodeId,
    /// The id of its directory.
    pub parent: NodeId,
    /// The name as written; empty for the root.
    pub name: String,
    /// The path from the root of the share, with slashes.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Attributes, as SMB encodes them.
    pub attributes: u32,
    /// Creation time.
    pub created: Timestamp,
    /// Last-access time. Changes only if clients set it.
    pub accessed: Timestamp,
    /// Last-write time of the content.
    pub written: Timestamp,
    /// Time of the last change of content or properties.
    pub changed: Timestamp,
    /// Length in bytes.
    pub length: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Whether it is marked for deletion.
    pub delete_pending: bool,
}

/// A file or directory that was deleted by its last close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The path from the root of the share, with slashes.
    pub path: String,
    /// Whether it was a directory.
    pub is_directory: bool,
}

/// A change of a time by a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewTime {
    /// Does not change it.
    #[default]
    Kept,
    /// Does not change it, and neither do later operations of this handle.
    Frozen,
    /// Lets later operations of this handle change it again.
    Thawed,
    /// Sets it, and later operations of this handle do not change it.
    Set(Timestamp),
}

/// New values for some properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropertyChange {
    /// Creation time.
    pub created: NewTime,
    /// Last-access time.
    pub accessed: NewTime,
    /// Last-write time.
    pub written: NewTime,
    /// Change time.
    pub changed: NewTime,
    /// Attributes, as SMB encodes them. `None`: unchanged.
    pub attributes: Option<u32>,
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
