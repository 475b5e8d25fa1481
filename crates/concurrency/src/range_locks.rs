//! Byte-range locks of one file, as SMB opens hold them.
//!
//! A lock is exclusive or shared and belongs to one open. Locks never wait in here: a request that conflicts is refused,
//! and whoever wants to wait asks again when a lock is given up. Locks are mandatory: reading and writing are judged
//! against them, by the open that does it; REST has none, so every lock is somebody else's.

/// A range of bytes. One of length 0 lies between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Its first byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

impl ByteRange {
    /// All bytes that there can be.
    pub const ALL: Self = Self { offset: 0, length: u64::MAX };

    /// Whether it ends beyond the last byte that can be addressed, as no lock may.
    pub const fn is_out_of_range(self) -> bool {
        // The byte after the last one may still be named.
        self.length > 0 && self.offset.checked_add(self.length - 1).is_none()
    }

    /// Whether the two have a byte in common. An empty range has one with another that it lies inside of.
    pub const fn overlaps(self, other: Self) -> bool {
        let (a, b) = if self.offset <= other.offset { (self, other) } else { (other, self) };
        let distance = b.offset - a.offset;
        match (a.length, b.length) {
            (0, 0) => false,
            (0, _) => false,
            (length, 0) => 0 < distance && distance < length,
            (length, _) => distance < length,
        }
    }
}

/// Whether others may hold a lock on the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Nobody else may read, write or lock.
    Exclusive,
    /// Others may read and share; nobody may write.
    Shared,
}

/// The locks of one file. `O` names an open.
#[derive(Clone, Debug)]
pub struct RangeLocks<O> {
    locks: Vec<Lock<O>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lock<O> {
    owner: O,
    range: ByteRange,
    kind: LockKind,
}

/// The bytes are locked by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range conflicts with a lock")]
pub struct LockConflict;

/// There is no such lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range is not locked")]
pub struct NotLocked;

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        Self { locks: vec![] }
    }
}

impl<O: Copy + PartialEq> RangeLocks<O> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whose they are.
    pub fn owners(&self) -> impl Iterator<Item = O> {
        self.locks.iter().map(|held| held.owner)
    }

    /// Takes a lock. An exclusive one conflicts with every lock on its bytes, those of its own open included; a shared one
    /// with exclusive ones of others.
    pub fn lock(&mut self, owner: O, range: ByteRange, kind: LockKind) -> Result<(), LockConflict> {
        let is_in_the_way = |held: &Lock<O>| {
            let is_denied = held.kind == LockKind::Exclusive && held.owner != owner;
            held.range.overlaps(range) && (kind == LockKind::Exclusive || is_denied)
        };
        if self.locks.iter().any(is_in_the_way) {
            return Err(LockConflict);
        }
        self.locks.push(Lock { owner, range, kind });
        Ok(())
    }

    /// Gives up a lock of exactly that range; of several, the one that was taken last, an exclusive one first.
    pub fn unlock(&mut self, owner: O, range: ByteRange) -> Result<(), NotLocked> {
        let is_it = |held: &Lock<O>| held.owner == owner && held.range == range;
        let exclusive = self.locks.iter().rposition(|held| is_it(held) && held.kind == LockKind::Exclusive);
        let found = exclusive.or_else(|| self.locks.iter().rposition(is_it)).ok_or(NotLocked)?;
        self.locks.remove(found);
        Ok(())
    }

    /// Takes back a lock that was taken before: one of exactly that range and kind.
    pub fn take_back(&mut self, owner: O, range: ByteRange, kind: LockKind) -> Result<(), NotLocked> {
        let it = Lock { owner, range, kind };
        let found = self.locks.iter().rposition(|held| *held == it).ok_or(NotLocked)?;
        self.locks.remove(found);
        Ok(())
    }

    /// Gives up all locks of an open. Whether there was any.
    pub fn release(&mut self, owner: O) -> bool {
        let before = self.locks.len();
        self.locks.retain(|held| held.owner != owner);
        before != self.locks.len()
    }

    /// Whether an open, or nobody's, may read bytes: not those that another has locked exclusively.
    pub fn admits_read(&self, reader: Option<O>, range: ByteRange) -> bool {
        !self.locks.iter().any(|held| {
            held.range.overlaps(range) && held.kind == LockKind::Exclusive && Some(held.owner) != reader
        })
    }

    /// Whether an open, or nobody's, may write bytes: not those that another has locked, nor those that anybody shares.
    pub fn admits_write(&self, writer: Option<O>, range: ByteRange) -> bool {
        !self.locks.iter().any(|held| {
            held.range.overlaps(range) && (held.kind == LockKind::Shared || Some(held.owner) != writer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Exclusive, Shared};

    const fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn ranges_overlap_where_they_have_a_byte_in_common() {
        for (a, b, overlap) in [
            (range(0, 10), range(9, 1), true),
            (range(0, 10), range(10, 1), false),
            (range(5, 1), range(0, 10), true),
            (range(0, u64::MAX), range(u64::MAX - 1, 1), true),
            (range(u64::MAX, 1), range(u64::MAX, 1), true),
            // Empty ranges: inside of another they are in its way, at its edges and among themselves not.
            (range(5, 0), range(0, 10), true),
            (range(0, 0), range(0, 10), false),
            (range(10, 0), range(0, 10), false),
            (range(5, 0), range(5, 0), false),
        ] {
            assert_eq!(a.overlaps(b), overlap, "{a:?} {b:?}");
            assert_eq!(b.overlaps(a), overlap, "{b:?} {a:?}");
        }
        assert!(range(u64::MAX, 2).is_out_of_range());
        assert!(!range(u64::MAX, 1).is_out_of_range() && !range(u64::MAX, 0).is_out_of_range());
    }

    #[test]
    fn exclusive_locks_stand_alone_and_shared_ones_stand_together() {
        for (held, asked, same_open, conflict) in [
            (Exclusive, Exclusive, false, true),
            (Exclusive, Shared, false, true),
            (Shared, Exclusive, false, true),
            (Shared, Shared, false, false),
            (Exclusive, Exclusive, true, true),
            (Exclusive, Shared, true, false),
            (Shared, Exclusive, true, true),
            (Shared, Shared, true, false),
        ] {
            let mut locks = RangeLocks::default();
            assert_eq!(locks.lock(1, range(0, 10), held), Ok(()));
            let owner = if same_open { 1 } else { 2 };
            assert_eq!(
                locks.lock(owner, range(9, 5), asked).is_err(),
                conflict,
                "{held:?} {asked:?} {same_open}"
            );
            assert_eq!(locks.lock(owner, range(10, 5), asked), Ok(()));
        }
    }

    #[test]
    fn reading_and_writing_are_judged_by_who_holds_the_lock() {
        let mut locks = RangeLocks::default();
        assert_eq!(locks.lock(1, range(0, 10), Exclusive), Ok(()));
        assert_eq!(locks.lock(1, range(20, 10), Shared), Ok(()));
        for (who, at, reads, writes) in [
            (Some(1), range(5, 1), true, true),
            (Some(2), range(5, 1), false, false),
            (None, range(5, 1), false, false),
            (Some(1), range(25, 1), true, false),
            (Some(2), range(25, 1), true, false),
            (None, range(25, 1), true, false),
            (None, range(10, 10), true, true),
            (None, ByteRange::ALL, false, false),
        ] {
            assert_eq!(locks.admits_read(who, at), reads, "{who:?} {at:?}");
            assert_eq!(locks.admits_write(who, at), writes, "{who:?} {at:?}");
        }
    }

    #[test]
    fn a_lock_that_is_taken_back_leaves_the_others_on_its_range() {
        let mut locks = RangeLocks::default();
        locks.lock(1, range(0, 10), Exclusive).unwrap();
        locks.lock(1, range(0, 10), Shared).unwrap();
        assert_eq!(locks.take_back(1, range(0, 10), Shared), Ok(()));
        assert_eq!(locks.take_back(1, range(0, 10), Shared), Err(NotLocked));
        assert!(!locks.admits_read(Some(2), range(0, 10)), "the exclusive one stays");
        assert!(locks.admits_write(Some(1), range(0, 10)), "and the shared one is gone");
    }

    #[test]
    fn a_lock_is_given_up_by_its_open_and_its_exact_range() {
        let mut locks = RangeLocks::default();
        assert_eq!(locks.lock(1, range(0, 10), Shared), Ok(()));
        assert_eq!(locks.lock(1, range(0, 10), Shared), Ok(()));
        assert_eq!(locks.unlock(2, range(0, 10)), Err(NotLocked));
        assert_eq!(locks.unlock(1, range(0, 9)), Err(NotLocked));
        assert_eq!(locks.unlock(1, range(0, 10)), Ok(()));
        assert!(!locks.admits_write(None, range(0, 1)));
        assert!(locks.release(1) && locks.is_empty() && !locks.release(1));
        assert_eq!(locks.unlock(1, range(0, 10)), Err(NotLocked));
    }
}
