//! CLOSE.

use super::cursor::{ByteReader, ByteWriter};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// The request asks for attributes (`SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB`).
pub(crate) const POSTQUERY: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseRequest {
    pub(crate) postquery: bool,
    pub(crate) id: FileId,
}

impl CloseRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 24 {
            return Err(Status::INVALID_PARAMETER);
        }
        let postquery = reader.u16()? & POSTQUERY != 0;
        reader.skip(4)?;
        Ok(Self { postquery, id: FileId::read(&mut reader)? })
    }
}

/// The attributes of the closed file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CloseResponse {
    /// Created, accessed, written, changed.
    pub(crate) times: [u64; 4],
    pub(crate) allocated: u64,
    pub(crate) length: u64,
    pub(crate) attributes: u32,
}

/// Returns the body of a response.
pub(crate) fn response(about: Option<CloseResponse>) -> Vec<u8> {
    let flags = if about.is_some() { POSTQUERY } else { 0 };
    let about = about.unwrap_or_default();
    let mut writer = ByteWriter::new();
    writer.u16(60).u16(flags).u32(0);
    for time in about.times {
        writer.u64(time);
    }
    writer.u64(about.allocated).u64(about.length).u32(about.attributes);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_request_names_the_file_and_may_ask_for_attributes() {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(24).u16(1).u32(0).u64(5).u64(6);
        let message = writer.finish();
        let id = FileId { persistent: 5, volatile: 6 };
        assert_eq!(CloseRequest::parse(&message), Ok(CloseRequest { postquery: true, id }));
        assert_eq!(CloseRequest::parse(&message[..message.len() - 1]), Err(Status::INVALID_PARAMETER));
        let mut other = message;
        other[HEADER_SIZE] = 25;
        assert_eq!(CloseRequest::parse(&other), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn a_close_response_has_sixty_bytes_with_or_without_attributes() {
        let about = CloseResponse { length: 7, ..CloseResponse::default() };
        for (about, flags, length) in [(None, 0, 0), (Some(about), 1, 7)] {
            let body = response(about);
            assert_eq!((body.len(), body[2], body[48]), (60, flags, length));
        }
    }
}
