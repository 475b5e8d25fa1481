//! Session Setup on the wire (MS-SMB2 2.2.5, 2.2.6).

use super::cursor::{Reader, Writer, slice};
use super::header::HEADER;
use super::status::Status;

/// Flags of a session in the response.
pub(crate) mod session_flags {
    pub(crate) const IS_NULL: u16 = 2;
    pub(crate) const ENCRYPT_DATA: u16 = 4;
}

/// One leg of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    /// Whether the session is to be used on this connection, too.
    pub(crate) is_binding: bool,
    /// Whether the client will sign everything, and expects that of the server.
    pub(crate) must_sign: bool,
    /// The session that this one replaces, whose connection the client has lost; 0 is none.
    pub(crate) previous: u64,
    pub(crate) token: &'a [u8],
}

impl<'a> Request<'a> {
    const SIZE: u16 = 25;

    /// Reads a request.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, Status> {
        const BINDING: u8 = 1;
        const SIGNING_REQUIRED: u8 = 2;
        let mut reader = Reader::from(message, HEADER);
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

/// The body of a response.
pub(crate) fn response(flags: u16, token: &[u8]) -> Vec<u8> {
    const SIZE: u16 = 9;
    const TOKEN: usize = HEADER + 8;
    let mut writer = Writer::new();
    writer.u16(SIZE).u16(flags).u16(TOKEN as u16).u16(token.len() as u16).put(token);
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_token_and_the_session_it_replaces() {
        let mut writer = Writer::new();
        writer.zeros(HEADER).u16(25).u8(1).u8(2).zeros(8).u16(88).u16(3).u64(77).put(b"abc");
        let bytes = writer.finish();
        let request = Request::parse(&bytes).expect("a request");
        assert_eq!(request, Request { is_binding: true, must_sign: true, previous: 77, token: b"abc" });
        for length in HEADER..bytes.len() {
            assert_eq!(Request::parse(&bytes[..length]), Err(Status::INVALID_PARAMETER));
        }
    }

    #[test]
    fn a_response_points_to_its_token() {
        assert_eq!(response(4, b"xyz"), [9, 0, 4, 0, 72, 0, 3, 0, b'x', b'y', b'z']);
    }
}
