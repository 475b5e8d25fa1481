//! Little-endian fields of messages, and the slices and texts that they refer to.

use bytes::Bytes;
pub(crate) use lazuli_security::cursor::{ByteReader, ByteWriter, Truncated};

use super::status::Status;

impl From<Truncated> for Status {
    fn from(_: Truncated) -> Self {
        Self::INVALID_PARAMETER
    }
}

/// Returns the slice of a message that a field refers to. An empty one may have any offset.
pub(crate) fn slice(message: &[u8], offset: usize, length: usize) -> Result<&[u8], Truncated> {
    if length == 0 {
        return Ok(&[]);
    }
    message.get(offset..offset.checked_add(length).ok_or(Truncated)?).ok_or(Truncated)
}

/// Returns a slice like [`fn@slice`], but shares the memory of the message.
pub(crate) fn shared_slice(message: &Bytes, offset: usize, length: usize) -> Result<Bytes, Truncated> {
    slice(message, offset, length)?;
    Ok(if length == 0 { Bytes::new() } else { message.slice(offset..offset + length) })
}

/// Decodes little-endian UTF-16. Returns `None` for invalid text.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let (units, []) = bytes.as_chunks::<2>() else { return None };
    char::decode_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit))).collect::<Result<_, _>>().ok()
}

/// Encodes text as little-endian UTF-16.
pub(crate) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}
