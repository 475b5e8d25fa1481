//! Byte-range locks of one file, as SMB opens hold them.
//!
//! A lock is exclusive or shared and belongs to one open. This module never waits: it refuses a request that
//! conflicts, and a caller that wants to wait retries when a lock is released. Locks are mandatory: reads and
//! writes are checked against them. REST requests hold no locks, so every lock belongs to another client.

/// A range of bytes. A range of length 0 lies between two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl ByteRange {
    /// The whole file.
    pub const ALL: Self = Self { offset: 0, length: u64::MAX };

    /// Whether the range ends after the last addressable byte, which no lock may do.
    pub const fn is_out_of_range(self) -> bool {
        // The end (exclusive) may be 2^64.
        self.length > 0 && self.offset.checked_add(self.length - 1).is_none()
    }

    /// Whether two ranges have a byte in common. An empty range overlaps a range that it lies strictly inside
    /// of.
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
    /// No other open may read, write or lock the bytes.
    Exclusive,
    /// Other opens may read the bytes and lock them shared; no open may write.
    Shared,
}

/// The locks of one file. `O` identifies an open.
///
/// ```
/// # use lazuli_concurrency::{ByteRange, LockConflict, LockKind, RangeLocks};
/// let mut locks = RangeLocks::default();
/// let header = ByteRange { offset: 0, length: 512 };
/// assert_eq!(locks.lock("first open", header, LockKind::Shared), Ok(()));
/// assert_eq!(locks.lock("second open", header, LockKind::Shared), Ok(()));
/// assert_eq!(locks.lock("second open", header, LockKind::Exclusive), Err(LockConflict));
///
/// locks.unlock("first open", header)?;
/// locks.unlock("second open", header)?;
/// assert_eq!(locks.lock("second open", header, LockKind::Exclusive), Ok(()));
/// # Ok::<(), lazuli_concurrency::NotLocked>(())
/// ```
#[derive(Clone, Debug)]
pub struct RangeLocks<O> {
    locks: Vec<HeldLock<O>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldLock<O> {
    owner: O,
    range: ByteRange,
    kind: LockKind,
}

/// The bytes are locked by another open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range conflicts with a lock")]
pub struct LockConflict;

/// The open does not hold that lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range is not locked")]
pub struct NotLocked;

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        Self { locks: vec![] }
    }
}

impl<O: Copy + PartialEq> RangeLocks<O> {
    /// Whether the file has no locks.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns the number of locks.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Returns the open of each lock.
    pub fn owners(&self) -> impl Iterator<Item = O> {
        self.locks.iter().map(|held| held.owner)
    }

    /// Acquires a lock. An exclusive lock conflicts with every lock on its bytes, also of the same open. A
    /// shared lock conflicts with exclusive locks of other opens.
    pub fn lock(&mut self, owner: O, range: ByteRange, kind: LockKind) -> Result<(), LockConflict> {
        let conflicts = |held: &HeldLock<O>| {
            let is_denied = held.kind == LockKind::Exclusive && held.owner != owner;
            held.range.overlaps(range) && (kind == LockKind::Exclusive || is_denied)
        };
        if self.locks.iter().any(conflicts) {
            return Err(LockConflict);
        }
        self.locks.push(HeldLock { owner, range, kind });
        Ok(())
    }

    /// Releases a lock on exactly this range. Of several, releases the newest exclusive lock, or else the
    /// newest shared one.
    pub fn unlock(&mut self, owner: O, range: ByteRange) -> Result<(), NotLocked> {
        let matches = |held: &HeldLock<O>| held.owner == owner && held.range == range;
        let exclusive = self.locks.iter().rposition(|held| matches(held) && held.kind == LockKind::Exclusive);
        let index = exclusive.or_else(|| self.locks.iter().rposition(matches)).ok_or(NotLocked)?;
        self.locks.remove(index);
        Ok(())
    }

    /// Undoes an acquired lock of exactly this range and kind.
    pub fn undo_lock(&mut self, owner: O, range: ByteRange, kind: LockKind) -> Result<(), NotLocked> {
        let requested = HeldLock { owner, range, kind };
        let index = self.locks.iter().rposition(|held| *held == requested).ok_or(NotLocked)?;
        self.locks.remove(index);
        Ok(())
    }

    /// Releases all locks of an open. Returns whether it had any.
    pub fn release(&mut self, owner: O) -> bool {
        let before = self.locks.len();
        self.locks.retain(|held| held.owner != owner);
        before != self.locks.len()
    }

    /// Whether an open, or a request without an open, may read the bytes. Exclusive locks of other opens
    /// forbid it.
    pub fn admits_read(&self, reader: Option<O>, range: ByteRange) -> bool {
        !self.locks.iter().any(|held| {
            held.range.overlaps(range) && held.kind == LockKind::Exclusive && Some(held.owner) != reader
        })
    }

    /// Whether an open, or a request without an open, may write the bytes. Locks of other opens forbid it,
    /// and so do all shared locks.
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
    fn ranges_overlap_if_they_have_a_byte_in_common() {
        for (a, b, overlap) in [
            (range(0, 10), range(9, 1), true),
            (range(0, 10), range(10, 1), false),
            (range(5, 1), range(0, 10), true),
            (range(0, u64::MAX), range(u64::MAX - 1, 1), true),
            (range(u64::MAX, 1), range(u64::MAX, 1), true),
            // Empty ranges overlap a range around them, but not at its edges, and not each other.
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
    fn only_shared_locks_may_overlap_apart_from_a_shared_lock_on_the_own_exclusive_one() {
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
    fn reads_and_writes_are_checked_against_the_owner_of_a_lock() {
        let mut locks = RangeLocks::default();
        assert_eq!(locks.lock(1, range(0, 10), Exclusive), Ok(()));
        assert_eq!(locks.lock(1, range(20, 10), Shared), Ok(()));
        for (reader, at, reads, writes) in [
            (Some(1), range(5, 1), true, true),
            (Some(2), range(5, 1), false, false),
            (None, range(5, 1), false, false),
            (Some(1), range(25, 1), true, false),
            (Some(2), range(25, 1), true, false),
            (None, range(25, 1), true, false),
            (None, range(10, 10), true, true),
            (None, ByteRange::ALL, false, false),
        ] {
            assert_eq!(locks.admits_read(reader, at), reads, "{reader:?} {at:?}");
            assert_eq!(locks.admits_write(reader, at), writes, "{reader:?} {at:?}");
        }
    }

    #[test]
    fn undoing_a_lock_keeps_the_others_on_its_range() {
        let mut locks = RangeLocks::default();
        locks.lock(1, range(0, 10), Exclusive).unwrap();
        locks.lock(1, range(0, 10), Shared).unwrap();
        assert_eq!(locks.undo_lock(1, range(0, 10), Shared), Ok(()));
        assert_eq!(locks.undo_lock(1, range(0, 10), Shared), Err(NotLocked));
        assert!(!locks.admits_read(Some(2), range(0, 10)), "the exclusive one stays");
        assert!(locks.admits_write(Some(1), range(0, 10)), "and the shared one is gone");
    }

    #[test]
    fn lock_is_released_by_its_open_and_exact_range() {
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
