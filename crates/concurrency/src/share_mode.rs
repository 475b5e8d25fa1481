//! Share modes: what an open does with a file, and what it allows other opens to do.
//!
//! An SMB open declares both and keeps them until it is closed. Two opens are compatible if each allows the
//! other's access. A REST request counts as an open that closes at once: SMB opens must allow its access, but
//! it restricts no other open, so REST requests never block each other.

use std::fmt;
use std::ops::BitOr;

/// A set of reading, writing and deleting: what an open does, or what it shares.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FileAccess(u8);

impl FileAccess {
    /// Reading attributes only.
    pub const NONE: Self = Self(0);
    /// Reading content.
    pub const READ: Self = Self(1);
    /// Changing content or attributes.
    pub const WRITE: Self = Self(2);
    /// Deleting or renaming.
    pub const DELETE: Self = Self(4);
    /// Reading, writing and deleting.
    pub const ALL: Self = Self(7);

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any part of `other` is in this set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the names of the set's parts, as lists of handles show them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = [(Self::READ, "Read"), (Self::WRITE, "Write"), (Self::DELETE, "Delete")];
        named.into_iter().filter(move |(part, _)| self.contains(*part)).map(|(_, name)| name)
    }
}

impl BitOr for FileAccess {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The access of an open and what it shares.
///
/// ```
/// # use lazuli_concurrency::{FileAccess, ShareMode};
/// // A word processor reads and writes its document, and lets others read it.
/// let editor = ShareMode { access: FileAccess::READ | FileAccess::WRITE, share: FileAccess::READ };
/// let viewer = ShareMode { access: FileAccess::READ, share: FileAccess::ALL };
/// assert!(editor.is_compatible_with(viewer));
/// assert!(!editor.is_compatible_with(editor));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareMode {
    /// The access that the open has.
    pub access: FileAccess,
    /// The access that it allows other opens to have.
    pub share: FileAccess,
}

impl ShareMode {
    /// Whether both can be open at once. An open that only reads attributes is compatible with all others.
    pub fn is_compatible_with(self, other: Self) -> bool {
        let attributes_only = self.access == FileAccess::NONE || other.access == FileAccess::NONE;
        attributes_only || (self.share.contains(other.access) && other.share.contains(self.access))
    }

    /// Whether the open is allowed while a REST lease is active, which shares only reading.
    pub fn is_compatible_with_lease(self) -> bool {
        !self.access.intersects(FileAccess::WRITE | FileAccess::DELETE)
    }
}

/// The use that a REST request makes of a file, from the view of SMB opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// List Directories and Files, Get File Properties, Get File Metadata.
    ReadAttributes,
    /// Get File, List Ranges; the source of a copy.
    Read,
    /// Set File Properties, Set File Metadata.
    Write,
    /// Put Range; Set File Properties with a new length.
    PutRange,
    /// Create File over one that exists; the target of a copy.
    Create,
    /// Delete File; both ends of a rename.
    Delete,
    /// Lease File: acquire where there is no active lease.
    Lease,
}

impl FileUse {
    /// Returns the access that the request counts as.
    pub fn access(self) -> FileAccess {
        match self {
            Self::ReadAttributes => FileAccess::NONE,
            Self::Read => FileAccess::READ,
            Self::Write | Self::PutRange => FileAccess::WRITE,
            Self::Create => FileAccess::WRITE | FileAccess::DELETE,
            Self::Delete => FileAccess::DELETE,
            // By the protocol's table, acquiring fails if an open denies any access.
            Self::Lease => FileAccess::ALL,
        }
    }

    /// Whether the request changes the file. A change must not overlap with an open that it conflicts with.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::ReadAttributes | Self::Read)
    }

    /// Whether any byte-range lock blocks the request, because it changes the content as a whole.
    pub const fn is_blocked_by_any_lock(self) -> bool {
        matches!(self, Self::PutRange | Self::Create)
    }

    /// Whether an SMB open blocks the request. An open that only reads attributes denies nothing.
    pub fn conflicts(self, open: ShareMode) -> bool {
        match self {
            // An open file cannot be deleted at once.
            Self::Delete => true,
            _ if open.access == FileAccess::NONE => false,
            Self::Lease => !open.share.contains(self.access()) || !open.is_compatible_with_lease(),
            _ => !open.share.contains(self.access()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: FileAccess = FileAccess::NONE;
    const R: FileAccess = FileAccess::READ;
    const W: FileAccess = FileAccess::WRITE;
    const D: FileAccess = FileAccess::DELETE;

    /// Returns every set of accesses.
    fn sets() -> impl Iterator<Item = FileAccess> {
        (0..8).map(FileAccess)
    }

    #[test]
    fn rest_requests_are_refused_by_share_modes_as_in_the_table() {
        use FileUse::{Create, Delete, Lease, PutRange, Read, ReadAttributes, Write};
        for (share, refused) in [
            (NONE, vec![Read, Write, PutRange, Create, Delete, Lease]),
            (R, vec![Write, PutRange, Create, Delete, Lease]),
            (W, vec![Read, Create, Delete, Lease]),
            (D, vec![Read, Write, PutRange, Create, Delete, Lease]),
            (R | W, vec![Create, Delete, Lease]),
            (R | D, vec![Write, PutRange, Create, Delete, Lease]),
            (W | D, vec![Read, Delete, Lease]),
            (R | W | D, vec![Delete]),
        ] {
            let open = ShareMode { access: R, share };
            for operation in [ReadAttributes, Read, Write, PutRange, Create, Delete, Lease] {
                assert_eq!(
                    operation.conflicts(open),
                    refused.contains(&operation),
                    "{operation:?} {share:?}"
                );
                let attributes_only = ShareMode { access: NONE, share };
                assert_eq!(operation.conflicts(attributes_only), operation == Delete, "{operation:?}");
            }
        }
    }

    #[test]
    fn lease_can_be_acquired_only_if_all_opens_only_read() {
        for access in sets() {
            let open = ShareMode { access, share: FileAccess::ALL };
            let refused = access.intersects(W | D);
            assert_eq!(FileUse::Lease.conflicts(open), refused, "{access:?}");
            // While the lease is active, opens that would do more than read are refused.
            assert_eq!(!open.is_compatible_with_lease(), refused, "{access:?}");
        }
    }

    #[test]
    fn two_opens_are_compatible_if_each_shares_the_access_of_the_other() {
        for (a, b, compatible) in [
            ((R, R), (R, R), true),
            ((R, R), (W, R), false),
            ((R, R | W), (W, R), true),
            ((R, R | W), (W, W), false),
            ((NONE, NONE), (NONE, NONE), true),
            ((R, NONE), (NONE, R), true),
            ((R, NONE), (NONE, NONE), true),
            ((R, NONE), (R, R), false),
            ((D, R | W | D), (R, D), true),
            ((D, R | W | D), (R, R | W), false),
        ] {
            let mode = |(access, share)| ShareMode { access, share };
            assert_eq!(mode(a).is_compatible_with(mode(b)), compatible, "{a:?} {b:?}");
            assert_eq!(mode(b).is_compatible_with(mode(a)), compatible, "{b:?} {a:?}");
        }
    }

    #[test]
    fn accesses_are_named_in_a_fixed_order() {
        assert_eq!((D | R).names().collect::<Vec<_>>(), ["Read", "Delete"]);
    }
}
