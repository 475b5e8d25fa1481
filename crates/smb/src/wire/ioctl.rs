//! IOCTL: the request, the response, and the parameters of file system controls.

use super::cursor::{ByteReader, ByteWriter, slice};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// Offset of the data in a response, directly after the fixed part.
const DATA: usize = HEADER_SIZE + 48;
/// The request is a file system control. No other kind is defined.
const IS_FSCTL: u32 = 1;

/// Control codes.
pub(crate) mod code {
    pub(crate) const DFS_GET_REFERRALS: u32 = 0x0006_0194;
    pub(crate) const DFS_GET_REFERRALS_EX: u32 = 0x0006_01b0;
    pub(crate) const SET_COMPRESSION: u32 = 0x0009_c040;
    pub(crate) const GET_COMPRESSION: u32 = 0x0009_003c;
    pub(crate) const CREATE_OR_GET_OBJECT_ID: u32 = 0x0009_00c0;
    pub(crate) const GET_OBJECT_ID: u32 = 0x0009_009c;
    pub(crate) const SET_SPARSE: u32 = 0x0009_00c4;
    pub(crate) const SET_ZERO_DATA: u32 = 0x0009_80c8;
    pub(crate) const QUERY_ALLOCATED_RANGES: u32 = 0x0009_40cf;
    pub(crate) const SET_REPARSE_POINT: u32 = 0x0009_00a4;
    pub(crate) const GET_REPARSE_POINT: u32 = 0x0009_00a8;
    pub(crate) const PIPE_WAIT: u32 = 0x0011_0018;
    pub(crate) const PIPE_PEEK: u32 = 0x0011_400c;
    pub(crate) const PIPE_TRANSCEIVE: u32 = 0x0011_c017;
    pub(crate) const SRV_REQUEST_RESUME_KEY: u32 = 0x0014_0078;
    pub(crate) const SRV_ENUMERATE_SNAPSHOTS: u32 = 0x0014_4064;
    pub(crate) const SRV_COPYCHUNK: u32 = 0x0014_40f2;
    pub(crate) const SRV_COPYCHUNK_WRITE: u32 = 0x0014_80f2;
    pub(crate) const QUERY_NETWORK_INTERFACE_INFO: u32 = 0x0014_01fc;
    pub(crate) const VALIDATE_NEGOTIATE_INFO: u32 = 0x0014_0204;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IoctlRequest<'a> {
    pub(crate) code: u32,
    pub(crate) id: FileId,
    pub(crate) input: &'a [u8],
    /// Maximum number of bytes of output.
    pub(crate) max_output: u32,
}

impl<'a> IoctlRequest<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 57 {
            return Err(Status::INVALID_PARAMETER);
        }
        reader.skip(2)?;
        let code = reader.u32()?;
        let id = FileId::read(&mut reader)?;
        let (offset, length, max_input) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let (output, max_output, flags) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let input = slice(message, offset as usize, length as usize)?;
        // Requests contain no output, and responses no input.
        if output != 0 || max_output.checked_add(max_input).is_none() {
            return Err(Status::INVALID_PARAMETER);
        }
        if flags != IS_FSCTL {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Self { code, id, input, max_output })
    }

    /// Returns the body of the response.
    pub(crate) fn response(&self, output: &[u8]) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u16(49).u16(0).u32(self.code).u64(self.id.persistent).u64(self.id.volatile);
        writer.u32(DATA as u32).u32(0).u32(DATA as u32).u32(output.len() as u32).u32(0).u32(0).put(output);
        if output.is_empty() {
            // The variable part has at least one byte.
            writer.u8(0);
        }
        writer.finish()
    }
}

/// A range to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) length: u32,
}

/// Parameters of a server-side copy to the file that the request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyChunks {
    /// The resume key of the source file.
    pub(crate) key: [u8; 24],
    pub(crate) count: u32,
    pub(crate) chunks: Vec<Chunk>,
}

impl CopyChunks {
    /// Parses the parameters. Chunks beyond `max_chunks` are counted, but not parsed.
    pub(crate) fn parse(input: &[u8], max_chunks: u32) -> Result<Self, Status> {
        let mut reader = ByteReader::new(input);
        let (key, count) = (reader.array()?, reader.u32()?);
        reader.skip(4)?;
        let mut chunks = vec![];
        for _ in 0..count.min(max_chunks) {
            chunks.push(Chunk { from: reader.u64()?, to: reader.u64()?, length: reader.u32()? });
            reader.skip(4)?;
        }
        Ok(Self { key, count, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(flags: u32) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(57).u16(0).u32(code::SET_SPARSE).u64(5).u64(6);
        writer.u32(120).u32(1).u32(0).u32(0).u32(0).u32(100).u32(flags).u32(0).u8(1);
        writer.finish()
    }

    #[test]
    fn an_ioctl_request_has_its_input_at_the_given_offset() {
        let message = request(1);
        let parsed = IoctlRequest::parse(&message).unwrap();
        let id = FileId { persistent: 5, volatile: 6 };
        assert_eq!(parsed, IoctlRequest { code: code::SET_SPARSE, id, input: &[1], max_output: 100 });
        assert_eq!(IoctlRequest::parse(&message[..120]), Err(Status::INVALID_PARAMETER));
        assert_eq!(IoctlRequest::parse(&request(0)), Err(Status::NOT_SUPPORTED));
        for length in 0..message.len() {
            assert!(IoctlRequest::parse(&message[..length]).is_err());
        }
        let body = parsed.response(b"out");
        assert_eq!((body.len(), body[32], body[36], &body[48..]), (51, 112, 3, &b"out"[..]));
        assert_eq!(parsed.response(b"").len(), 49);
    }

    #[test]
    fn copy_chunks_are_parsed_up_to_the_maximum() {
        let mut writer = ByteWriter::new();
        writer.put(&[7; 24]).u32(2).u32(0);
        writer.u64(1).u64(2).u32(3).u32(0).u64(4).u64(5).u32(6).u32(0);
        let input = writer.finish();
        let chunks = vec![Chunk { from: 1, to: 2, length: 3 }, Chunk { from: 4, to: 5, length: 6 }];
        let parsed = CopyChunks { key: [7; 24], count: 2, chunks };
        assert_eq!(CopyChunks::parse(&input, 256), Ok(parsed));
        assert_eq!(CopyChunks::parse(&input, 1).map(|copy| (copy.count, copy.chunks.len())), Ok((2, 1)));
        assert_eq!(CopyChunks::parse(&input[..79], 256), Err(Status::INVALID_PARAMETER));
        assert_eq!(CopyChunks::parse(&input[..20], 256), Err(Status::INVALID_PARAMETER));
    }
}
