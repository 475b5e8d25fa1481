//! Reading and writing little-endian fields, with every bound checked.

/// The message ends before it should, or an offset leads out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated;

/// Reads fields one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// From the beginning.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// From a place on.
    pub const fn from(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Where it has come to.
    pub const fn position(&self) -> usize {
        self.at
    }

    /// What is left.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// So many bytes.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let end = self.at.checked_add(length).ok_or(Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(Truncated)?;
        self.at = end;
        Ok(taken)
    }

    /// Passes over bytes.
    pub fn skip(&mut self, length: usize) -> Result<(), Truncated> {
        self.take(length).map(|_| ())
    }

    /// An array of bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.take(N)?.try_into().map_err(|_| Truncated)
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, Truncated> {
        self.array().map(u128::from_le_bytes)
    }
}

/// Writes fields one after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// How much has been written.
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing has been written.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Bytes as they are.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// So many zeros.
    pub fn zeros(&mut self, count: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Zeros up to a multiple.
    pub fn align(&mut self, to: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
        self
    }

    /// Writes a number over what was written at a place.
    pub fn patch_u32(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// What was written.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
