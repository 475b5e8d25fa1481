//! Reads and writes little-endian fields, with all bounds checked.

/// A field or slice lies beyond the end of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated;

/// Reads fields in order.
#[derive(Clone, Copy, Debug)]
pub struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    /// Returns a reader that starts at the beginning.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns a reader that starts at an offset.
    pub const fn from(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Returns the current offset.
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Returns the remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Reads `length` bytes.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let end = self.at.checked_add(length).ok_or(Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(Truncated)?;
        self.at = end;
        Ok(taken)
    }

    /// Skips `length` bytes.
    pub fn skip(&mut self, length: usize) -> Result<(), Truncated> {
        self.take(length).map(|_| ())
    }

    /// Reads an array of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.take(N)?.try_into().map_err(|_| Truncated)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    /// Reads a 16-bit integer.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads a 32-bit integer.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a 64-bit integer.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a 128-bit integer.
    pub fn u128(&mut self) -> Result<u128, Truncated> {
        self.array().map(u128::from_le_bytes)
    }
}

/// Writes fields in order.
#[derive(Clone, Debug, Default)]
pub struct ByteWriter {
    bytes: Vec<u8>,
}

impl ByteWriter {
    /// Returns an empty writer.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Returns the number of bytes written.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether nothing has been written.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    /// Writes a 16-bit integer.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Writes a 32-bit integer.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Writes a 64-bit integer.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Writes a 128-bit integer.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Writes bytes.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Writes `count` zeros.
    pub fn zeros(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Writes zeros up to a multiple of `to` bytes.
    pub fn align(&mut self, to: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
        self
    }

    /// Overwrites a 32-bit integer at an offset.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        if let Some(target) = self.bytes.get_mut(at..at + 4) {
            target.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Returns the bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
