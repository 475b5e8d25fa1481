//! LOCK: acquires and releases byte-range locks.

use super::cursor::ByteReader;
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// Maximum number of ranges in one request.
const MAX_ELEMENTS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockRequest {
    /// Slot in the open's lock sequence, and the number in that slot.
    pub(crate) sequence: u32,
    pub(crate) id: FileId,
    pub(crate) elements: Vec<LockElement>,
}

/// A range to lock or unlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockElement {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) flags: u32,
}

impl LockElement {
    pub(crate) const SHARED: u32 = 1;
    pub(crate) const EXCLUSIVE: u32 = 2;
    pub(crate) const UNLOCK: u32 = 4;
    pub(crate) const FAIL_IMMEDIATELY: u32 = 16;
}

impl LockRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 48 {
            return Err(Status::INVALID_PARAMETER);
        }
        let count = usize::from(reader.u16()?);
        let sequence = reader.u32()?;
        let id = FileId::read(&mut reader)?;
        if count == 0 || count > MAX_ELEMENTS {
            return Err(Status::INVALID_PARAMETER);
        }
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            let (offset, length, flags) = (reader.u64()?, reader.u64()?, reader.u32()?);
            reader.skip(4)?;
            elements.push(LockElement { offset, length, flags });
        }
        Ok(Self { sequence, id, elements })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cursor::ByteWriter;
    use super::*;

    #[test]
    fn a_lock_request_has_at_least_one_range() {
        let message = |count: u16, present: usize| {
            let mut writer = ByteWriter::new();
            writer.zeros(HEADER_SIZE).u16(48).u16(count).u32(0x21).u64(3).u64(4);
            for at in 0..present {
                writer.u64(at as u64).u64(10).u32(LockElement::EXCLUSIVE).u32(0);
            }
            LockRequest::parse(&writer.finish())
        };
        let request = message(2, 2).unwrap();
        assert_eq!((request.sequence, request.id), (0x21, FileId { persistent: 3, volatile: 4 }));
        assert_eq!(request.elements[1], LockElement { offset: 1, length: 10, flags: LockElement::EXCLUSIVE });
        for (count, present) in [(0, 1), (2, 1), (u16::MAX, 3)] {
            assert_eq!(message(count, present), Err(Status::INVALID_PARAMETER), "{count} {present}");
        }
    }
}
