//! READ, WRITE and FLUSH.

use bytes::Bytes;

use super::cursor::{ByteReader, ByteWriter, shared_slice};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// Offset of the data in a response to READ, directly after the fixed part.
pub(crate) const READ_DATA: usize = HEADER_SIZE + 16;

/// A READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    pub(crate) length: u32,
    pub(crate) offset: u64,
    pub(crate) id: FileId,
    /// If fewer bytes than this can be read, the response is the end-of-file error.
    pub(crate) minimum: u32,
}

impl ReadRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 49 {
            return Err(Status::INVALID_PARAMETER);
        }
        reader.skip(2)?;
        let (length, offset) = (reader.u32()?, reader.u64()?);
        let id = FileId::read(&mut reader)?;
        let minimum = reader.u32()?;
        // Channels are for RDMA, which is not supported. The rest is a hint.
        reader.skip(12)?;
        Ok(Self { length, offset, id, minimum })
    }
}

/// Returns the body before the data.
pub(crate) fn read_response(length: usize) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(17).u8(READ_DATA as u8).u8(0).u32(length as u32).u32(0).u32(0);
    if length == 0 {
        // The variable part has at least one byte.
        writer.u8(0);
    }
    writer.finish()
}

/// A WRITE request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WriteRequest {
    pub(crate) offset: u64,
    pub(crate) id: FileId,
    /// Whether the data must be durable before the response.
    pub(crate) write_through: bool,
    pub(crate) data: Bytes,
}

impl WriteRequest {
    const WRITE_THROUGH: u32 = 1;
    /// Minimum offset of the data.
    const MIN_DATA_OFFSET: usize = HEADER_SIZE + 48;

    pub(crate) fn parse(message: &Bytes) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 49 {
            return Err(Status::INVALID_PARAMETER);
        }
        let (data_at, length) = (usize::from(reader.u16()?), reader.u32()? as usize);
        let offset = reader.u64()?;
        let id = FileId::read(&mut reader)?;
        // Channel, remaining bytes, and channel information.
        reader.skip(12)?;
        let write_through = reader.u32()? & Self::WRITE_THROUGH != 0;
        if length > 0 && data_at < Self::MIN_DATA_OFFSET {
            return Err(Status::INVALID_PARAMETER);
        }
        Ok(Self { offset, id, write_through, data: shared_slice(message, data_at, length)? })
    }
}

/// Returns the body of a response to WRITE.
pub(crate) fn write_response(count: usize) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(17).u16(0).u32(count as u32).u32(0).u32(0);
    writer.finish()
}

/// Parses a FLUSH request.
pub(crate) fn flush_request(message: &[u8]) -> Result<FileId, Status> {
    let mut reader = ByteReader::from(message, HEADER_SIZE);
    if reader.u16()? != 24 {
        return Err(Status::INVALID_PARAMETER);
    }
    reader.skip(6)?;
    Ok(FileId::read(&mut reader)?)
}

/// Returns the body of a response without data.
pub(crate) fn empty_response() -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(4).u16(0);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FileId = FileId { persistent: 3, volatile: 4 };

    #[test]
    fn a_read_request_is_parsed() {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(49).u8(0x50).u8(0).u32(10).u64(20).u64(3).u64(4).u32(5).zeros(12);
        let message = writer.finish();
        assert_eq!(
            ReadRequest::parse(&message),
            Ok(ReadRequest { length: 10, offset: 20, id: ID, minimum: 5 })
        );
        for length in 0..message.len() {
            assert_eq!(ReadRequest::parse(&message[..length]), Err(Status::INVALID_PARAMETER));
        }
        assert_eq!((read_response(5).len(), read_response(0).len()), (16, 17));
    }

    #[test]
    fn the_data_of_a_write_must_lie_in_the_message() {
        let message = |at: u16, length: u32| {
            let mut writer = ByteWriter::new();
            writer.zeros(HEADER_SIZE).u16(49).u16(at).u32(length).u64(20).u64(3).u64(4).zeros(12).u32(1);
            Bytes::from(writer.put(b"data").clone().finish())
        };
        let request = WriteRequest::parse(&message(112, 4)).unwrap();
        assert_eq!(
            (request.offset, request.id, request.write_through, &request.data[..]),
            (20, ID, true, &b"data"[..])
        );
        assert!(WriteRequest::parse(&message(0, 0)).unwrap().data.is_empty());
        for (at, length) in [(112, 5), (111, 4), (0, 4), (u16::MAX, 1), (112, u32::MAX)] {
            assert_eq!(
                WriteRequest::parse(&message(at, length)),
                Err(Status::INVALID_PARAMETER),
                "{at} {length}"
            );
        }
    }

    #[test]
    fn a_flush_request_is_parsed() {
        let mut writer = ByteWriter::new();
        let message = writer.zeros(HEADER_SIZE).u16(24).zeros(6).u64(3).u64(4).clone().finish();
        assert_eq!(flush_request(&message), Ok(ID));
        assert_eq!(flush_request(&message[..80]), Err(Status::INVALID_PARAMETER));
    }
}
