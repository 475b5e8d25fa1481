//! Rules about one directory or file that all operations share.

use lazuli_concurrency::{Access, FileLease, LeaseId, LeaseState};
use lazuli_protocol::lease::Leased;
use lazuli_protocol::{ErrorCode, Refusal};

use crate::tree::record::{Node, READ_ONLY};

/// Maximum length of a file: 4 TiB.
pub(crate) const MAX_FILE_BYTES: i64 = 4 << 40;
/// [`MAX_FILE_BYTES`] as an unsigned number.
pub(crate) const MAX_FILE_LENGTH: u64 = MAX_FILE_BYTES as u64;
/// Maximum number of bytes that one request writes.
pub(crate) const MAX_RANGE_WRITE: u64 = 4 << 20;

/// Refuses a file that is the target of a pending copy.
pub(crate) fn check_no_pending_copy(node: &Node) -> Result<(), Refusal> {
    let state = node.file.as_ref().and_then(|file| file.copy.as_ref());
    match state.is_some_and(lazuli_copy::CopyState::is_pending) {
        true => Err(ErrorCode::PendingCopyOperation.into()),
        false => Ok(()),
    }
}

/// Checks the lease before a change, and that no copy is pending. Returns the lease to store.
pub(crate) fn admit_write(node: &Node, id: Option<LeaseId>) -> Result<FileLease, Refusal> {
    let lease = admit_lease(node, id)?;
    check_no_pending_copy(node)?;
    Ok(lease)
}

/// Returns the file with another lease.
pub(crate) fn with_lease(mut node: Node, lease: FileLease) -> Node {
    if let Some(file) = &mut node.file {
        file.lease = lease;
    }
    node
}

/// Refuses to change a read-only file.
pub(crate) fn check_writable(node: &Node) -> Result<(), Refusal> {
    match node.properties.attributes & READ_ONLY {
        0 => Ok(()),
        _ => Err(ErrorCode::ReadOnlyAttribute.into()),
    }
}

/// Returns how many bytes in extents a node refers to.
pub(crate) fn extent_bytes(node: &Node) -> u64 {
    node.file.as_ref().map_or(0, |file| file.content.extent_bytes())
}

/// Checks the lease before a change. Returns the lease to store.
pub(crate) fn admit_lease(node: &Node, id: Option<LeaseId>) -> Result<FileLease, Refusal> {
    let lease = node.file.as_ref().map_or(FileLease::AVAILABLE, |file| file.lease);
    lease.admits(Access::Write, id).map_err(|refusal| Refusal::lease(refusal, Leased::File))
}

/// Refuses a node of the other kind.
pub(crate) fn check_kind(node: &Node, is_directory: bool) -> Result<(), Refusal> {
    if node.is_directory() == is_directory { Ok(()) } else { Err(ErrorCode::ResourceTypeMismatch.into()) }
}

/// Returns the node if it is a file.
pub(crate) fn existing_file(node: Option<Node>) -> Result<Node, Refusal> {
    let node = node.ok_or(ErrorCode::ResourceNotFound)?;
    check_kind(&node, false)?;
    Ok(node)
}

/// Returns whether the file can be opened only for reading: it is leased, or the target of a pending copy.
pub(crate) fn blocks_writers(node: &Node) -> bool {
    let is_leased = node.file.as_ref().is_some_and(|file| file.lease.state() == LeaseState::Leased);
    is_leased || check_no_pending_copy(node).is_err()
}
