//! Little-endian fields of messages, and the parts and texts that they point to.

use bytes::Bytes;
pub(crate) use lazuli_security::cursor::{Reader, Truncated, Writer};

use super::status::Status;

impl From<Truncated> for Status {
    fn from(_: Truncated) -> Self {
        Self::INVALID_PARAMETER
    }
}

/// A part of a message that a field points to. An empty one may point anywhere.
pub(crate) fn slice(message: &[u8], offset: usize, length: usize) -> Result<&[u8], Truncated> {
    if length == 0 {
        return Ok(&[]);
    }
    message.get(offset..offset.checked_add(length).ok_or(Truncated)?).ok_or(Truncated)
}

/// The same, sharing the message's memory.
pub(crate) fn shared_slice(message: &Bytes, offset: usize, length: usize) -> Result<Bytes, Truncated> {
    slice(message, offset, length)?;
    Ok(if length == 0 { Bytes::new() } else { message.slice(offset..offset + length) })
}

/// UTF-16 text, little-endian. What is no valid text is refused.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let (units, []) = bytes.as_chunks::<2>() else { return None };
    char::decode_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit))).collect::<Result<_, _>>().ok()
}

/// Text as UTF-16, little-endian.
pub(crate) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}
