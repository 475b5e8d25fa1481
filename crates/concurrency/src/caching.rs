//! SMB oplocks and SMB leases: what a client may cache of a file that it has open.
//!
//! A client can cache reads, writes and the handle, in the combinations R, RH, RW and RWH. Before another
//! client does something that would make a cache stale, the server breaks the cache. The other client waits
//! for the acknowledgment if unwritten data or cached handles could be lost.
//!
//! Oplocks are treated as leases with fewer states: level II is R, exclusive is RW, batch is RWH. A broken
//! exclusive or batch oplock keeps R at most.

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use crate::share_mode::FileUse;

/// A set of caching rights for reads, handles and writes, with SMB's bit values.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Caching(u8);

impl Caching {
    /// No caching.
    pub const NONE: Self = Self(0);
    /// Cache reads.
    pub const R: Self = Self(1);
    /// Cache the handle: it may stay open after the program has closed it.
    pub const H: Self = Self(2);
    /// Cache writes and locks.
    pub const W: Self = Self(4);
    /// Cache reads and the handle.
    pub const RH: Self = Self(3);
    /// Cache reads and writes.
    pub const RW: Self = Self(5);
    /// Cache everything.
    pub const RWH: Self = Self(7);

    /// Decodes the bits of an SMB lease state. Returns `None` for a combination that SMB does not grant.
    pub fn from_bits(bits: u32) -> Option<Self> {
        [Self::NONE, Self::R, Self::RH, Self::RW, Self::RWH].into_iter().find(|state| state.bits() == bits)
    }

    /// Returns the bits of the SMB lease state.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether all rights in `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reduces the set to a combination that SMB grant: without R, nothing.
    const fn grantable(self) -> Self {
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

/// How a client requested its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// A lease. The opens of one client with the same lease key share it.
    Lease,
    /// An oplock, which belongs to one open.
    Oplock,
}

impl CacheKind {
    /// Returns what remains of `held` after a break down to `to`.
    pub fn after_break(self, held: Caching, to: Caching) -> Caching {
        let to = (held & to).grantable();
        match self {
            Self::Oplock if to != held => to & Caching::R,
            _ => to,
        }
    }

    /// Whether the client must acknowledge a break of `held`: it may have data to write back or handles to
    /// close.
    pub fn needs_acknowledgment(self, held: Caching) -> bool {
        held.contains(Caching::W) || (self == Self::Lease && held.contains(Caching::H))
    }
}

/// A break that a cache needs before another client goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBreak {
    /// The rights that may remain.
    pub to: Caching,
    /// Whether the other client waits for the acknowledgment.
    pub waits_for_ack: bool,
}

impl CacheBreak {
    const fn to(to: Caching, waits_for_ack: bool) -> Option<Self> {
        Some(Self { to, waits_for_ack })
    }

    /// Returns the break that a REST request causes in a cache with the rights `held`.
    pub fn for_request(usage: FileUse, held: Caching) -> Option<Self> {
        let caches_writes = held.contains(Caching::W);
        match usage {
            FileUse::ReadAttributes | FileUse::Read | FileUse::Lease if caches_writes => {
                Self::to(held - Caching::W, true)
            }
            FileUse::ReadAttributes | FileUse::Read | FileUse::Lease => None,
            _ if held == Caching::NONE => None,
            FileUse::Write | FileUse::PutRange => Self::to(Caching::NONE, caches_writes),
            // The request writes and deletes at once.
            FileUse::Create => Self::to(Caching::NONE, caches_writes || held.contains(Caching::H)),
            FileUse::Delete => Self::for_conflict(held),
        }
    }

    /// Returns the break that another open causes in a cache with the rights `held`. Opens that only read
    /// attributes cause none and do not call this.
    pub fn for_open(held: Caching, overwrites: bool) -> Option<Self> {
        let caches_writes = held.contains(Caching::W);
        match (held, overwrites) {
            (Caching::NONE, _) => None,
            (_, true) => Self::to(Caching::NONE, caches_writes),
            (_, false) if caches_writes => Self::to(held - Caching::W, true),
            _ => None,
        }
    }

    /// Returns the break of a cache whose open conflicts with another open. The conflict may end with the
    /// break, because perhaps only the cache keeps the handle open.
    pub fn for_conflict(held: Caching) -> Option<Self> {
        if held.contains(Caching::H) { Self::to(held - Caching::H, true) } else { None }
    }

    /// Returns the break that another open causes when it changes or locks bytes.
    pub fn for_change(held: Caching) -> Option<Self> {
        if held == Caching::NONE { None } else { Self::to(Caching::NONE, false) }
    }
}

/// The other opens of a file whose open requests a cache. Opens with the same lease key do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherOpens {
    /// Another open exists that does more than read attributes.
    pub open: bool,
    /// Another client caches writes and is not broken, because the new open only reads attributes.
    pub caches_writes: bool,
    /// Another open has an oplock.
    pub oplock: bool,
    /// Another client caches its handle with a lease.
    pub handle_lease: bool,
    /// Some bytes are locked.
    pub locks: bool,
}

impl OtherOpens {
    /// Returns the part of the requested rights that an open is granted.
    pub fn grant(self, kind: CacheKind, requested: Caching) -> Caching {
        let mut granted = requested;
        if self.locks || self.caches_writes || (kind == CacheKind::Oplock && self.handle_lease) {
            granted = Caching::NONE;
        }
        if self.open {
            granted = granted - Caching::W;
        }
        if kind == CacheKind::Lease && self.oplock {
            granted = granted - Caching::H;
        }
        kind.after_break(requested, granted)
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

    fn text(requested: Option<CacheBreak>) -> String {
        match requested {
            Some(CacheBreak { to, waits_for_ack: true }) => format!("blocking {to:?}"),
            Some(CacheBreak { to, waits_for_ack: false }) => format!("non-blocking {to:?}"),
            None => "stays".into(),
        }
    }

    #[test]
    fn rest_requests_break_caches_as_in_the_table() {
        use FileUse::{Create, Delete, Lease, PutRange, Read, ReadAttributes, Write};
        //                RWH              RH                   RW               R
        let flushed = ["blocking RH", "stays", "blocking R", "stays"];
        let written = ["blocking none", "non-blocking none", "blocking none", "non-blocking none"];
        for (usage, expected) in [
            (ReadAttributes, flushed),
            (Read, flushed),
            (Lease, flushed),
            (PutRange, written),
            (Write, written),
            (Create, ["blocking none", "blocking none", "blocking none", "non-blocking none"]),
            (Delete, ["blocking RW", "blocking R", "stays", "stays"]),
        ] {
            let requested = [RWH, RH, RW, R].map(|held| text(CacheBreak::for_request(usage, held)));
            assert_eq!(requested, expected, "{usage:?}");
            assert_eq!(CacheBreak::for_request(usage, NONE), None);
        }
    }

    #[test]
    fn other_opens_break_caches() {
        for (name, rule, expected) in [
            (
                "open",
                (|held| CacheBreak::for_open(held, false)) as fn(_) -> _,
                ["blocking RH", "stays", "blocking R", "stays"],
            ),
            (
                "overwrite",
                |held| CacheBreak::for_open(held, true),
                ["blocking none", "non-blocking none", "blocking none", "non-blocking none"],
            ),
            ("conflict", CacheBreak::for_conflict, ["blocking RW", "blocking R", "stays", "stays"]),
            (
                "change",
                CacheBreak::for_change,
                ["non-blocking none", "non-blocking none", "non-blocking none", "non-blocking none"],
            ),
        ] {
            assert_eq!([RWH, RH, RW, R].map(|held| text(rule(held))), expected, "{name}");
            assert_eq!(rule(NONE), None, "{name}");
        }
    }

    #[test]
    fn cache_is_granted_as_far_as_other_opens_allow() {
        let alone = OtherOpens::default();
        let open = OtherOpens { open: true, ..alone };
        let oplock = OtherOpens { open: true, oplock: true, ..alone };
        let handle = OtherOpens { open: true, handle_lease: true, ..alone };
        let locks = OtherOpens { locks: true, ..alone };
        use CacheKind::{Lease, Oplock};
        for (others, kind, requested, granted) in [
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
            assert_eq!(others.grant(kind, requested), granted, "{others:?} {kind:?} {requested:?}");
        }
    }

    #[test]
    fn broken_oplock_keeps_level_two_and_only_breaks_of_dirty_caches_are_acknowledged() {
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
            assert_eq!(kind.after_break(held, to), left, "{kind:?} {held:?} {to:?}");
            assert_eq!(kind.needs_acknowledgment(held), acknowledged, "{kind:?} {held:?}");
        }
    }

    #[test]
    fn only_grantable_smb_lease_states_are_decoded() {
        for (bits, state) in [(0, Some(NONE)), (1, Some(R)), (3, Some(RH)), (5, Some(RW)), (7, Some(RWH))] {
            assert_eq!(Caching::from_bits(bits), state);
            assert_eq!(state.map(Caching::bits), Some(bits));
        }
        for bits in [2, 4, 6, 8, 9, u32::MAX] {
            assert_eq!(Caching::from_bits(bits), None);
        }
    }
}
