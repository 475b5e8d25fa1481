//! OPLOCK_BREAK: notifications of breaks, acknowledgments, and the responses to them.

use super::cursor::{ByteReader, ByteWriter};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// A client's acknowledgment of a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgment {
    /// The client keeps this oplock level.
    Oplock { level: u8, id: FileId },
    /// The client keeps this lease state.
    Lease { key: u128, state: u32 },
}

impl Acknowledgment {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        match reader.u16()? {
            24 => {
                let level = reader.u8()?;
                reader.skip(5)?;
                Ok(Self::Oplock { level, id: FileId::read(&mut reader)? })
            }
            36 => {
                reader.skip(6)?;
                let (key, state) = (reader.u128()?, reader.u32()?);
                reader.skip(8)?;
                Ok(Self::Lease { key, state })
            }
            _ => Err(Status::INVALID_PARAMETER),
        }
    }
}

/// Returns the body of an oplock break notification, and of the response to its acknowledgment.
pub(crate) fn oplock(level: u8, id: FileId) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(24).u8(level).u8(0).u32(0).u64(id.persistent).u64(id.volatile);
    writer.finish()
}

/// A lease break notification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseBreak {
    /// 0 for a version 1 lease.
    pub(crate) epoch: u16,
    pub(crate) acknowledge: bool,
    pub(crate) key: u128,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

impl LeaseBreak {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u16(44).u16(self.epoch).u32(u32::from(self.acknowledge)).u128(self.key);
        writer.u32(self.from).u32(self.to).zeros(12);
        writer.finish()
    }
}

/// Returns the body of the response to the acknowledgment of a lease break.
pub(crate) fn lease_response(key: u128, state: u32) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(36).u16(0).u32(0).u128(key).u32(state).u64(0);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_distinguishes_oplock_and_lease_acknowledgments() {
        let id = FileId { persistent: 3, volatile: 4 };
        let message = |body: &[u8]| [&[0; HEADER_SIZE], body].concat();
        let oplock = message(&oplock(1, id));
        assert_eq!(Acknowledgment::parse(&oplock), Ok(Acknowledgment::Oplock { level: 1, id }));
        let lease = message(&lease_response(9, 3));
        assert_eq!(Acknowledgment::parse(&lease), Ok(Acknowledgment::Lease { key: 9, state: 3 }));
        for bad in [&oplock[..80], &lease[..90], &message(&[44, 0])] {
            assert_eq!(Acknowledgment::parse(bad), Err(Status::INVALID_PARAMETER));
        }
        let lease_break = LeaseBreak { epoch: 1, acknowledge: true, key: 9, from: 7, to: 3 };
        assert_eq!(lease_break.write().len(), 44);
    }
}
