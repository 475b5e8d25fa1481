//! References to extents, and the errors of reading and storing them.

use std::fmt;

use rustix::io::Errno;

/// Maximum size of one extent in bytes.
pub const MAX_EXTENT_BYTES: usize = 8 << 20;

/// The position of an extent. An id is never assigned twice, even after the extent is freed.
///
/// The local engine composes an id of a segment (48 bits) and a 4 KiB block within it (16 bits), so ids grow
/// in the order of appending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(u64);

impl ExtentId {
    /// Returns the id of a block of a segment.
    pub const fn new(segment: u64, block: u16) -> Self {
        Self(segment << 16 | block as u64)
    }

    /// Converts a stored number to an id.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the number that is stored for this id.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the segment.
    pub const fn segment(self) -> u64 {
        self.0 >> 16
    }

    /// Returns the first block within the segment.
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
    /// The position of the extent.
    pub id: ExtentId,
    /// Payload bytes: 1 to [`MAX_EXTENT_BYTES`].
    pub length: u32,
    /// CRC32C of the whole payload.
    pub crc: u32,
}

impl ExtentRef {
    /// Size of an encoded reference in bytes.
    pub const ENCODED: usize = 16;

    /// Encodes the reference.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[..8].copy_from_slice(&self.id.raw().to_le_bytes());
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[12..].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Decodes a reference. Returns `None` if no extent can have such a reference.
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

/// Why a call to an extent store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No space is left on the device. Nothing was lost; retry when there is space.
    #[error("no space left for bytes")]
    Full,
    /// A write or a sync failed, so the state of the disk is unknown. No more appends are accepted or
    /// acknowledged until the process restarts. Reads still work.
    #[error("bytes can no longer be stored after a disk failure")]
    Stopped,
    /// The payload is empty or longer than [`MAX_EXTENT_BYTES`], or content is too long.
    #[error("an extent holds between 1 byte and {MAX_EXTENT_BYTES}")]
    Size,
    /// The bytes on disk are missing or are not those that were written. None of them was returned.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The system refused a read, or to create or extend a file. The state of the disk is known.
    #[error("I/O: {0}")]
    Io(String),
    /// A sweep could not start or finish because of concurrent requests, or the process is out of file
    /// descriptors or memory. Nothing was freed or stored; retry later.
    #[error("busy: {0}")]
    Busy(&'static str),
}

impl Error {
    /// Names the extent or segment that an I/O error concerns.
    pub(crate) fn at(self, place: impl fmt::Debug) -> Self {
        match self {
            Self::Io(error) => Self::Io(format!("{place:?}: {error}")),
            other => other,
        }
    }
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
        fn reference_survives_encoding_and_decoding(id: u64, length in 1..=MAX_EXTENT_BYTES as u32, crc: u32) {
            let extent = ExtentRef { id: ExtentId::from_raw(id), length, crc };
            prop_assert_eq!(ExtentRef::decode(&extent.encode()), Some(extent));
        }

        #[test]
        fn ids_are_ordered_by_segment_and_then_by_block(a in 0..1u64 << 48, b: u16, c in 0..1u64 << 48, d: u16) {
            let (x, y) = (ExtentId::new(a, b), ExtentId::new(c, d));
            prop_assert_eq!(x.cmp(&y), (a, b).cmp(&(c, d)));
            prop_assert_eq!((x.segment(), x.block()), (a, b));
        }
    }

    #[test]
    fn reference_to_an_empty_or_oversized_extent_is_refused() {
        for length in [0, MAX_EXTENT_BYTES as u32 + 1, u32::MAX] {
            let extent = ExtentRef { id: ExtentId::new(1, 1), length, crc: 0 };
            assert_eq!(ExtentRef::decode(&extent.encode()), None);
        }
    }

    #[test]
    fn temporary_shortage_in_the_process_is_not_a_disk_failure() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(matches!(Error::from(errno), Error::Busy(_)), "{errno}");
            assert!(matches!(Error::from(std::io::Error::from(errno)), Error::Busy(_)), "{errno}");
        }
        assert!(matches!(Error::from(Errno::IO), Error::Io(_)));
    }
}
