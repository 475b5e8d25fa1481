//! What a client may keep in its own memory of a file that it has open: oplocks and leases of SMB.
//!
//! Reading, writing and the handle itself can be cached, in the combinations R, RH, RW and RWH. Before somebody else does
//! what a client's cache would make wrong, the client is told to give part of it up, and whoever needs that waits for the
//! answer if data or handles could be at stake. Oplocks are leases with fewer steps: level II is R, exclusive is RW, batch
//! is RWH, and what is broken of the latter two leaves R at most.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use crate::share_mode::FileUse;

/// Some of reading, handles and writing, numbered as in SMB.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Caching(u8);

impl Caching {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Reads.
    pub const R: Self = Self(1);
    /// The handle, which may stay open after the program has closed it.
    pub const H: Self = Self(2);
    /// Writes and locks.
    pub const W: Self = Self(4);
    /// Reads and the handle.
    pub const RH: Self = Self(3);
    /// Reads and writes.
    pub const RW: Self = Self(5);
    /// All.
    pub const RWH: Self = Self(7);

    /// What the bits of an SMB lease state say; none if it is no combination that can be had.
    pub fn from_bits(bits: u32) -> Option<Self> {
        [Self::NONE, Self::R, Self::RH, Self::RW, Self::RWH].into_iter().find(|state| state.bits() == bits)
    }

    /// The bits of an SMB lease state.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether all of the other is in this.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What of it can be had: without reading nothing is.
    const fn sound(self) -> Self {
        if self.contains(Self::R) { self } else { Self::NONE }
    }
}

impl BitOr for Caching {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Caching {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for Caching {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Caching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [(Self::R, "R"), (Self::W, "W"), (Self::H, "H")];
        let letters: String =
            named.iter().filter(|(part, _)| self.contains(*part)).map(|part| part.1).collect();
        f.write_str(if letters.is_empty() { "none" } else { &letters })
    }
}

/// How a client asked for its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// A lease, which opens of one client share by its key.
    Lease,
    /// An oplock, of one open.
    Oplock,
}

impl CacheKind {
    /// What is left where `held` is to be broken down to `to`.
    pub fn broken_to(self, held: Caching, to: Caching) -> Caching {
        let to = (held & to).sound();
        match self {
            Self::Oplock if to != held => to & Caching::R,
            _ => to,
        }
    }

    /// Whether the client has to say that it has given up what it held: it may have something to write back or to close.
    pub fn acknowledges(self, held: Caching) -> bool {
        held.contains(Caching::W) || (self == Self::Lease && held.contains(Caching::H))
    }
}

/// That a cache has to shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBreak {
    /// What may be left.
    pub to: Caching,
    /// Whether to wait until the client has done it.
    pub waits: bool,
}

impl CacheBreak {
    const fn to(to: Caching, waits: bool) -> Option<Self> {
        Some(Self { to, waits })
    }

    /// What a request over REST asks of a client that holds this.
    pub fn by_request(usage: FileUse, held: Caching) -> Option<Self> {
        let writes = held.contains(Caching::W);
        match usage {
            FileUse::Look | FileUse::Read | FileUse::Lease if writes => Self::to(held - Caching::W, true),
            FileUse::Look | FileUse::Read | FileUse::Lease => None,
            _ if held == Caching::NONE => None,
            FileUse::Write | FileUse::PutRange => Self::to(Caching::NONE, writes),
            // Writing and deleting at once.
            FileUse::Create => Self::to(Caching::NONE, writes || held.contains(Caching::H)),
            FileUse::Delete => Self::by_conflict(held),
        }
    }

    /// What another open asks of a client that holds this. One that only looks at attributes asks nothing.
    pub fn by_open(held: Caching, overwrites: bool) -> Option<Self> {
        let writes = held.contains(Caching::W);
        match (held, overwrites) {
            (Caching::NONE, _) => None,
            (_, true) => Self::to(Caching::NONE, writes),
            (_, false) if writes => Self::to(held - Caching::W, true),
            _ => None,
        }
    }

    /// What is asked of a client whose open is in the way: perhaps only its cache keeps the handle.
    pub fn by_conflict(held: Caching) -> Option<Self> {
        if held.contains(Caching::H) { Self::to(held - Caching::H, true) } else { None }
    }

    /// What is asked when another open changes or locks bytes.
    pub fn by_change(held: Caching) -> Option<Self> {
        if held == Caching::NONE { None } else { Self::to(Caching::NONE, false) }
    }
}

/// What stands beside an open that asks for a cache. Opens under its own lease key do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Another has it open, and not only to look at attributes.
    pub open: bool,
    /// Another caches writes, and is left alone because this one only looks at attributes.
    pub writes: bool,
    /// Another has an oplock.
    pub oplock: bool,
    /// Another caches its handle by a lease.
    pub handle_lease: bool,
    /// Bytes are locked.
    pub locks: bool,
}

impl Beside {
    /// What an open is given of what it asks for.
    pub fn grants(self, kind: CacheKind, asked: Caching) -> Caching {
        let mut granted = asked;
        if self.locks || self.writes || (kind == CacheKind::Oplock && self.handle_lease) {
            granted = Caching::NONE;
        }
        if self.open {
            granted = granted - Caching::W;
        }
        if kind == CacheKind::Lease && self.oplock {
            granted = granted - Caching::H;
        }
        kind.broken_to(asked, granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Caching = Caching::NONE;
    const R: Caching = Caching::R;
    const RH: Caching = Caching::RH;
    const RW: Caching = Caching::RW;
    const RWH: Caching = Caching::RWH;

    fn text(asked: Option<CacheBreak>) -> String {
        match asked {
            Some(CacheBreak { to, waits: true }) => format!("blocking {to:?}"),
            Some(CacheBreak { to, waits: false }) => format!("non-blocking {to:?}"),
            None => "stays".into(),
        }
    }

    #[test]
    fn requests_over_rest_break_caches_as_in_the_table() {
        use FileUse::{Create, Delete, Lease, Look, PutRange, Read, Write};
        //                RWH              RH                   RW               R
        let flushed = ["blocking RH", "stays", "blocking R", "stays"];
        let written = ["blocking none", "non-blocking none", "blocking none", "non-blocking none"];
        for (usage, expected) in [
            (Look, flushed),
            (Read, flushed),
            (Lease, flushed),
            (PutRange, written),
            (Write, written),
            (Create, ["blocking none", "blocking none", "blocking none", "non-blocking none"]),
            (Delete, ["blocking RW", "blocking R", "stays", "stays"]),
        ] {
            let asked = [RWH, RH, RW, R].map(|held| text(CacheBreak::by_request(usage, held)));
            assert_eq!(asked, expected, "{usage:?}");
            assert_eq!(CacheBreak::by_request(usage, NONE), None);
        }
    }

    #[test]
    fn other_opens_break_caches() {
        for (name, rule, expected) in [
            (
                "open",
                (|held| CacheBreak::by_open(held, false)) as fn(_) -> _,
                ["blocking RH", "stays", "blocking R", "stays"],
            ),
            (
                "overwrite",
                |held| CacheBreak::by_open(held, true),
                ["blocking none", "non-blocking none", "blocking none", "non-blocking none"],
            ),
            ("conflict", CacheBreak::by_conflict, ["blocking RW", "blocking R", "stays", "stays"]),
            (
                "change",
                CacheBreak::by_change,
                ["non-blocking none", "non-blocking none", "non-blocking none", "non-blocking none"],
            ),
        ] {
            assert_eq!([RWH, RH, RW, R].map(|held| text(rule(held))), expected, "{name}");
            assert_eq!(rule(NONE), None, "{name}");
        }
    }

    #[test]
    fn a_cache_is_granted_as_far_as_others_allow() {
        let alone = Beside::default();
        let open = Beside { open: true, ..alone };
        let oplock = Beside { open: true, oplock: true, ..alone };
        let handle = Beside { open: true, handle_lease: true, ..alone };
        let locks = Beside { locks: true, ..alone };
        use CacheKind::{Lease, Oplock};
        for (beside, kind, asked, granted) in [
            (alone, Lease, RWH, RWH),
            (alone, Lease, RH, RH),
            (alone, Oplock, RWH, RWH),
            (open, Lease, RWH, RH),
            (open, Lease, RW, R),
            (open, Oplock, RWH, R),
            (open, Oplock, RW, R),
            (open, Oplock, R, R),
            (oplock, Lease, RWH, R),
            (oplock, Lease, RH, R),
            (handle, Oplock, R, NONE),
            (handle, Lease, RWH, RH),
            (locks, Lease, RWH, NONE),
            (locks, Oplock, R, NONE),
        ] {
            assert_eq!(beside.grants(kind, asked), granted, "{beside:?} {kind:?} {asked:?}");
        }
    }

    #[test]
    fn an_oplock_falls_to_level_two_and_only_what_could_be_dirty_is_acknowledged() {
        for (kind, held, to, left, acknowledged) in [
            (CacheKind::Oplock, RWH, RW, R, true),
            (CacheKind::Oplock, RWH, RH, R, true),
            (CacheKind::Oplock, RW, NONE, NONE, true),
            (CacheKind::Oplock, R, NONE, NONE, false),
            (CacheKind::Lease, RWH, RW, RW, true),
            (CacheKind::Lease, RH, R, R, true),
            (CacheKind::Lease, R, NONE, NONE, false),
            (CacheKind::Lease, RW, RH, R, true),
        ] {
            assert_eq!(kind.broken_to(held, to), left, "{kind:?} {held:?} {to:?}");
            assert_eq!(kind.acknowledges(held), acknowledged, "{kind:?} {held:?}");
        }
    }

    #[test]
    fn lease_states_of_smb_are_read_if_they_can_be_had() {
        for (bits, state) in [(0, Some(NONE)), (1, Some(R)), (3, Some(RH)), (5, Some(RW)), (7, Some(RWH))] {
            assert_eq!(Caching::from_bits(bits), state);
            assert_eq!(state.map(Caching::bits), Some(bits));
        }
        for bits in [2, 4, 6, 8, 9, u32::MAX] {
            assert_eq!(Caching::from_bits(bits), None);
        }
    }
}
