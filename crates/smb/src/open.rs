//! What a session has open.

use std::sync::Arc;

use lazuli_file::opens::OpenId;

use crate::session::TreeConnect;

/// How a client names an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// Outlives connections, for durable handles.
    pub(crate) persistent: u64,
    /// In its session.
    pub(crate) volatile: u64,
}

impl FileId {
    /// The file that the request before in the compound was about.
    pub(crate) const RELATED: Self = Self { persistent: u64::MAX, volatile: u64::MAX };
}

/// What is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) id: FileId,
    pub(crate) tree: Arc<TreeConnect>,
    /// In the table of opens; none for a pipe.
    pub(crate) file: OpenId,
    /// Access that was granted.
    pub(crate) access: u32,
}
