//! Share modes: what an open of a file does with it, and what it lets others do meanwhile.
//!
//! An open over SMB names both and keeps them until it is closed. Two opens stand beside each other if each lets the other
//! do what it does. A request over REST is one more opener that opens and closes at once: it has to fit what SMB opens let
//! others do, and asks nothing of them in turn, so REST never blocks REST.

use std::fmt;
use std::ops::BitOr;

/// Some of reading, writing and deleting: what an open does, or what it shares.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FileAccess(u8);

impl FileAccess {
    /// Nothing but looking at attributes.
    pub const NONE: Self = Self(0);
    /// Reading content.
    pub const READ: Self = Self(1);
    /// Changing content or attributes.
    pub const WRITE: Self = Self(2);
    /// Deleting or renaming.
    pub const DELETE: Self = Self(4);
    /// All three.
    pub const ALL: Self = Self(7);

    /// Whether all of the other is in this.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether anything of the other is in this.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The names of its parts, as lists of handles have them.
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

/// What an open does and what it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareMode {
    /// What it does.
    pub access: FileAccess,
    /// What others may do meanwhile.
    pub share: FileAccess,
}

impl ShareMode {
    /// Whether both can be open at once. An open that only looks at attributes is in nobody's way, nor anybody in its.
    pub fn fits(self, other: Self) -> bool {
        let only_looks = self.access == FileAccess::NONE || other.access == FileAccess::NONE;
        only_looks || (self.share.contains(other.access) && other.share.contains(self.access))
    }

    /// Whether it can be opened while a lease over REST is active: that shares only reading.
    pub fn fits_lease(self) -> bool {
        !self.access.intersects(FileAccess::WRITE | FileAccess::DELETE)
    }
}

/// What a request over REST does with a file, as far as SMB opens are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// List Directories and Files, Get File Properties, Get File Metadata.
    Look,
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
    /// The access that it counts as.
    pub fn access(self) -> FileAccess {
        match self {
            Self::Look => FileAccess::NONE,
            Self::Read => FileAccess::READ,
            Self::Write | Self::PutRange => FileAccess::WRITE,
            Self::Create => FileAccess::WRITE | FileAccess::DELETE,
            Self::Delete => FileAccess::DELETE,
            // The table of refusals has it fail wherever anything is denied.
            Self::Lease => FileAccess::ALL,
        }
    }

    /// Whether it changes the file, so that it must not overlap with an open that it conflicts with.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Look | Self::Read)
    }

    /// Whether any byte-range lock is in its way: it changes content as a whole.
    pub const fn needs_no_locks(self) -> bool {
        matches!(self, Self::PutRange | Self::Create)
    }

    /// Whether an SMB open stands in its way. One that only looks at attributes denies nothing.
    pub fn conflicts(self, open: ShareMode) -> bool {
        match self {
            // A file that anybody has open cannot be deleted at once.
            Self::Delete => true,
            _ if open.access == FileAccess::NONE => false,
            Self::Lease => !open.share.contains(self.access()) || !open.fits_lease(),
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

    /// Every set of accesses.
    fn sets() -> impl Iterator<Item = FileAccess> {
        (0..8).map(FileAccess)
    }

    #[test]
    fn rest_is_refused_by_what_an_open_denies_row_by_row() {
        use FileUse::{Create, Delete, Lease, Look, PutRange, Read, Write};
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
            for operation in [Look, Read, Write, PutRange, Create, Delete, Lease] {
                assert_eq!(
                    operation.conflicts(open),
                    refused.contains(&operation),
                    "{operation:?} {share:?}"
                );
                let looks = ShareMode { access: NONE, share };
                assert_eq!(operation.conflicts(looks), operation == Delete, "{operation:?}");
            }
        }
    }

    #[test]
    fn a_lease_is_acquired_only_beside_opens_that_read() {
        for access in sets() {
            let open = ShareMode { access, share: FileAccess::ALL };
            let refused = access.intersects(W | D);
            assert_eq!(FileUse::Lease.conflicts(open), refused, "{access:?}");
            // And while it is active, opens that would do more are refused.
            assert_eq!(!open.fits_lease(), refused, "{access:?}");
        }
    }

    #[test]
    fn two_opens_fit_if_each_lets_the_other_do_what_it_does_whichever_came_first() {
        for (a, b, fits) in [
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
            assert_eq!(mode(a).fits(mode(b)), fits, "{a:?} {b:?}");
            assert_eq!(mode(b).fits(mode(a)), fits, "{b:?} {a:?}");
        }
    }

    #[test]
    fn accesses_are_named_in_a_fixed_order() {
        assert_eq!((D | R).names().collect::<Vec<_>>(), ["Read", "Delete"]);
    }
}
