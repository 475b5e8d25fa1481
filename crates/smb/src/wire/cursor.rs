//! Reading and writing little-endian fields, with every bound checked.

use bytes::Bytes;

use super::status::Status;

/// The message ends before it should, or an offset leads out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncated;

impl From<Truncated> for Status {
    fn from(_: Truncated) -> Self {
        Self::INVALID_PARAMETER
    }
}

/// Reads fields one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// From the beginning.
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// From a place on.
    pub(crate) const fn from(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Where it has come to.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// What is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// So many bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let end = self.at.checked_add(length).ok_or(Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(Truncated)?;
        self.at = end;
        Ok(taken)
    }

    /// Passes over bytes.
    pub(crate) fn skip(&mut self, length: usize) -> Result<(), Truncated> {
        self.take(length).map(|_| ())
    }

    /// An array of bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.take(N)?.try_into().map_err(|_| Truncated)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self) -> Result<u128, Truncated> {
        self.array().map(u128::from_le_bytes)
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

/// Writes fields one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// How much has been written.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(crate) fn u128(&mut self, value: u128) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Bytes as they are.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// So many zeros.
    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Zeros up to a multiple.
    pub(crate) fn align(&mut self, to: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
        self
    }

    /// Writes a number over what was written at a place.
    pub(crate) fn patch_u32(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// What was written.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
