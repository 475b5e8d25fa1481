//! What names a run of bytes, and what can go wrong with one.

use std::fmt;

use rustix::io::Errno;

/// Bytes in one extent at most.
pub const MAX_EXTENT_BYTES: usize = 8 << 20;

/// Where an extent lies. Given out once and never again, whatever happens to the extent.
///
/// The local engine makes it of a segment (48 bits) and a 4 KiB block within it (16 bits), so ids grow in the order
/// of appending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(u64);

impl ExtentId {
    /// The id of the block of a segment.
    pub const fn new(segment: u64, block: u16) -> Self {
        Self(segment << 16 | block as u64)
    }

    /// The id that a number stands for.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number that stands for this id.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Its segment.
    pub const fn segment(self) -> u64 {
        self.0 >> 16
    }

    /// Its first block within the segment.
    pub const fn block(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:04x}", self.segment(), self.block())
    }
}

/// Refers to one extent: where it lies, and what must be found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// Where it lies.
    pub id: ExtentId,
    /// Its bytes: 1 to [`MAX_EXTENT_BYTES`].
    pub length: u32,
    /// CRC32C of all its bytes.
    pub crc: u32,
}

impl ExtentRef {
    /// Bytes that a reference takes when stored.
    pub const ENCODED: usize = 16;

    /// The stored form.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[..8].copy_from_slice(&self.id.raw().to_le_bytes());
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[12..].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Reads the stored form; `None` if no extent can have such a reference.
    pub fn decode(bytes: &[u8; Self::ENCODED]) -> Option<Self> {
        let [i0, i1, i2, i3, i4, i5, i6, i7, l0, l1, l2, l3, c0, c1, c2, c3] = *bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        (1..=MAX_EXTENT_BYTES as u32).contains(&length).then_some(Self {
            id: ExtentId(u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7])),
            length,
            crc: u32::from_le_bytes([c0, c1, c2, c3]),
        })
    }
}

/// Why a request for bytes failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No space is left on the device. Nothing was lost; the request may be made again once there is.
    #[error("no space left for bytes")]
    Full,
    /// A write or a sync failed, so what the disk holds is unknown. Nothing is appended or acknowledged any more until
    /// the process starts again. Reading goes on.
    #[error("bytes can no longer be stored after a disk failure")]
    Stopped,
    /// An extent holds 1 byte to [`MAX_EXTENT_BYTES`].
    #[error("an extent holds between 1 byte and {MAX_EXTENT_BYTES}")]
    Size,
    /// What lies on disk is not what was written, or not there. No byte of it was returned.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The system refused a read, or to make or extend a file. Nothing is in doubt.
    #[error("I/O: {0}")]
    Io(String),
    /// A sweep could not start or finish because of others at work, or there was no file descriptor or memory left for
    /// whatever it was. Nothing was freed or stored; try again later.
    #[error("busy: {0}")]
    Busy(&'static str),
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        match Errno::from_io_error(&e) {
            Some(errno) => errno.into(),
            None => Self::Io(e.to_string()),
        }
    }
}

impl From<Errno> for Error {
    fn from(e: Errno) -> Self {
        match e {
            Errno::MFILE | Errno::NFILE => Self::Busy("too many open files"),
            Errno::NOMEM => Self::Busy("no memory left"),
            e => Self::Io(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reference_survives_being_stored(id: u64, length in 1..=MAX_EXTENT_BYTES as u32, crc: u32) {
            let extent = ExtentRef { id: ExtentId::from_raw(id), length, crc };
            prop_assert_eq!(ExtentRef::decode(&extent.encode()), Some(extent));
        }

        #[test]
        fn ids_order_by_segment_then_block(a in 0..1u64 << 48, b: u16, c in 0..1u64 << 48, d: u16) {
            let (x, y) = (ExtentId::new(a, b), ExtentId::new(c, d));
            prop_assert_eq!(x.cmp(&y), (a, b).cmp(&(c, d)));
            prop_assert_eq!((x.segment(), x.block()), (a, b));
        }
    }

    #[test]
    fn a_reference_to_nothing_or_too_much_is_refused() {
        for length in [0, MAX_EXTENT_BYTES as u32 + 1, u32::MAX] {
            let extent = ExtentRef { id: ExtentId::new(1, 1), length, crc: 0 };
            assert_eq!(ExtentRef::decode(&extent.encode()), None);
        }
    }

    #[test]
    fn what_the_process_is_short_of_for_now_is_no_failure_of_the_disk() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(matches!(Error::from(errno), Error::Busy(_)), "{errno}");
            assert!(matches!(Error::from(std::io::Error::from(errno)), Error::Busy(_)), "{errno}");
        }
        assert!(matches!(Error::from(Errno::IO), Error::Io(_)));
    }
}
