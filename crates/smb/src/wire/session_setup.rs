//! SESSION_SETUP (MS-SMB2 2.2.5, 2.2.6).

use super::cursor::{ByteReader, ByteWriter, slice};
use super::header::HEADER_SIZE;
use super::status::Status;

/// Session flags of a response.
pub(crate) mod session_flags {
    pub(crate) const IS_NULL: u16 = 2;
    pub(crate) const ENCRYPT_DATA: u16 = 4;
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionSetupRequest<'a> {
    /// Whether the request binds the session to this connection.
    pub(crate) is_binding: bool,
    /// Whether the client requires signing.
    pub(crate) must_sign: bool,
    /// Id of the session that this one replaces because its connection was lost, or 0.
    pub(crate) previous: u64,
    pub(crate) token: &'a [u8],
}

impl<'a> SessionSetupRequest<'a> {
    const SIZE: u16 = 25;

    /// Parses a request.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, Status> {
        const BINDING: u8 = 1;
        const SIGNING_REQUIRED: u8 = 2;
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != Self::SIZE {
            return Err(Status::INVALID_PARAMETER);
        }
        let (flags, security_mode) = (reader.u8()?, reader.u8()?);
        reader.skip(8)?;
        let (offset, length) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let previous = reader.u64()?;
        Ok(Self {
            is_binding: flags & BINDING != 0,
            must_sign: security_mode & SIGNING_REQUIRED != 0,
            previous,
            token: slice(message, offset, length)?,
        })
    }
}

/// Returns the body of a response.
pub(crate) fn response(flags: u16, token: &[u8]) -> Vec<u8> {
    const SIZE: u16 = 9;
    const TOKEN: usize = HEADER_SIZE + 8;
    let mut writer = ByteWriter::new();
    writer.u16(SIZE).u16(flags).u16(TOKEN as u16).u16(token.len() as u16).put(token);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_setup_request_is_parsed() {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(25).u8(1).u8(2).zeros(8).u16(88).u16(3).u64(77).put(b"abc");
        let bytes = writer.finish();
        let request = SessionSetupRequest::parse(&bytes).expect("a request");
        assert_eq!(
            request,
            SessionSetupRequest { is_binding: true, must_sign: true, previous: 77, token: b"abc" }
        );
        for length in HEADER_SIZE..bytes.len() {
            assert_eq!(SessionSetupRequest::parse(&bytes[..length]), Err(Status::INVALID_PARAMETER));
        }
    }

    #[test]
    fn a_session_setup_response_points_to_its_token() {
        assert_eq!(response(4, b"xyz"), [9, 0, 4, 0, 72, 0, 3, 0, b'x', b'y', b'z']);
    }
}
