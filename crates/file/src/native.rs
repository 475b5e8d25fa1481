//! Files as SMB knows them: by handles, not by requests. [`crate::opens`] says who may open what; here is what is done with
//! it then.
//!
//! Everything is addressed by an [`OpenId`]. What is read is the newest there is, whoever wrote it and whether or not it is
//! durable yet; what happens between a write and its commit is in its own module.

#![allow(dead_code, reason = "it is being built")]

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::Account;

use crate::FileService;
use crate::opens::{OpenId, OpenRequest, Opened};
use crate::record::NodeId;

/// A share that a client is connected to.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) share: crate::record::Share,
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

/// Where an enumeration of a directory has come to.
#[derive(Clone, Debug, Default)]
pub struct Position {
    /// The folded name after which it goes on; none at the beginning.
    pub(crate) after: Option<Vec<u8>>,
}

impl Position {
    /// Behind that name.
    pub fn after(name: &str) -> Self {
        Self { after: Some(crate::names::fold(name).into_bytes()) }
    }
}

impl FileService {
    /// The share of that name.
    pub async fn connect(&self, _account: &Account, _share: &str) -> Result<Tree, Failure> {
        Err(Failure::Failed)
    }

    /// The names of all shares of an account.
    pub async fn share_names(&self, _account: &Account) -> Result<Vec<String>, Failure> {
        Err(Failure::Failed)
    }

    /// The times of the snapshots of a share, the newest first.
    pub async fn snapshots_of(&self, _tree: &Tree) -> Result<Vec<Timestamp>, Failure> {
        Err(Failure::Failed)
    }

    /// Bytes that a share may hold, and that it holds.
    pub async fn space_of(&self, _tree: &Tree) -> Result<(u64, u64), Failure> {
        Err(Failure::Failed)
    }

    /// Opens, makes, empties or replaces a file or directory.
    pub async fn create(&self, _tree: &Tree, _request: CreateRequest) -> Result<Created, Failure> {
        Err(Failure::Failed)
    }

    /// Where an open file is, from the root of the share, without waiting.
    pub fn path_of(&self, id: OpenId) -> Option<String> {
        self.opens.place(id).map(|place| place.path)
    }

    /// What there is to know of an open file: the newest.
    pub async fn info(&self, _id: OpenId) -> Result<Info, Failure> {
        Err(Failure::Failed)
    }

    /// Bytes of a file, fewer at its end; none past it. Refused if another has locked some of them.
    pub async fn read_at(&self, _id: OpenId, _range: Range<u64>) -> Result<Vec<Bytes>, Failure> {
        Err(Failure::Failed)
    }

    /// Writes. Durable only if `through`; visible to all at once.
    pub async fn write_at(
        &self,
        _id: OpenId,
        _offset: u64,
        _bytes: Bytes,
        _through: bool,
    ) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Makes durable what was written.
    pub async fn flush(&self, _id: OpenId) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Sets where a file ends.
    pub async fn set_length(&self, _id: OpenId, _length: u64) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Sets bytes aside; a file that is longer ends there.
    pub async fn set_allocation(&self, _id: OpenId, _bytes: u64) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Makes a range zeros, and free. The file does not grow.
    pub async fn zero(&self, _id: OpenId, _range: Range<u64>) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// The ranges that hold bytes, within a range.
    pub async fn allocated_ranges(
        &self,
        _id: OpenId,
        _range: Range<u64>,
    ) -> Result<Vec<Range<u64>>, Failure> {
        Err(Failure::Failed)
    }

    /// Copies bytes from one open file to another. Content is shared where it can be.
    pub async fn copy_range(
        &self,
        _from: OpenId,
        _range: Range<u64>,
        _to: OpenId,
        _offset: u64,
    ) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Changes properties.
    pub async fn set_properties(&self, _id: OpenId, _change: PropertyChange) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// The security descriptor, as SDDL.
    pub async fn permission_of(&self, _id: OpenId) -> Result<String, Failure> {
        Err(Failure::Failed)
    }

    /// Sets the security descriptor, given as SDDL.
    pub async fn set_permission(&self, _id: OpenId, _sddl: &str) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Gives an open file or directory another path, in place of what is there if `replace`.
    pub async fn rename_open(&self, _id: OpenId, _path: &str, _replace: bool) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// Marks for deletion at the last close, or takes the mark away.
    pub async fn set_delete(&self, _id: OpenId, _delete: bool) -> Result<(), Failure> {
        Err(Failure::Failed)
    }

    /// The next entries of an open directory, at most so many, in the order of their folded names. None at the end. `.` and
    /// `..` are not among them; what is marked for deletion is.
    pub async fn enumerate(
        &self,
        _id: OpenId,
        _position: &mut Position,
        _limit: usize,
    ) -> Result<Vec<Info>, Failure> {
        Err(Failure::Failed)
    }

    /// Makes what was written durable, and closes. A file that was marked for deletion goes with its last handle.
    ///
    /// What was removed by that, if anything. The handle is closed even if this fails: then something that was written may be
    /// lost.
    pub async fn close_open(&self, _id: OpenId) -> Result<Option<Removed>, Failure> {
        Err(Failure::Failed)
    }

    /// Marks a file as sparse, or not.
    pub async fn set_sparse(&self, _id: OpenId, _sparse: bool) -> Result<(), Failure> {
        Err(Failure::Failed)
    }
}
