//! LOCK: byte-range locks, taken and given up.

use super::cursor::Reader;
use super::header::HEADER;
use super::status::Status;
use crate::open::FileId;

/// Ranges that one request may name.
const MAX_ELEMENTS: usize = 4096;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockRequest {
    /// Which place of the open's sequence it takes, and the number there.
    pub(crate) sequence: u32,
    pub(crate) id: FileId,
    pub(crate) elements: Vec<Element>,
}

/// A range, and what is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) flags: u32,
}

impl Element {
    pub(crate) const SHARED: u32 = 1;
    pub(crate) const EXCLUSIVE: u32 = 2;
    pub(crate) const UNLOCK: u32 = 4;
    pub(crate) const FAIL_IMMEDIATELY: u32 = 16;
}

impl LockRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = Reader::from(message, HEADER);
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
            elements.push(Element { offset, length, flags });
        }
        Ok(Self { sequence, id, elements })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cursor::Writer;
    use super::*;

    #[test]
    fn a_request_names_ranges_and_at_least_one() {
        let message = |count: u16, there: usize| {
            let mut writer = Writer::new();
            writer.zeros(HEADER).u16(48).u16(count).u32(0x21).u64(3).u64(4);
            for at in 0..there {
                writer.u64(at as u64).u64(10).u32(Element::EXCLUSIVE).u32(0);
            }
            LockRequest::parse(&writer.finish())
        };
        let request = message(2, 2).unwrap();
        assert_eq!((request.sequence, request.id), (0x21, FileId { persistent: 3, volatile: 4 }));
        assert_eq!(request.elements[1], Element { offset: 1, length: 10, flags: Element::EXCLUSIVE });
        for (count, there) in [(0, 1), (2, 1), (u16::MAX, 3)] {
            assert_eq!(message(count, there), Err(Status::INVALID_PARAMETER), "{count} {there}");
        }
    }
}
