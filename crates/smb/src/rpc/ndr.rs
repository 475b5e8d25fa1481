//! The subset of NDR that the server service needs: integers, strings, and pointers with deferred targets.

use crate::wire::cursor::{ByteReader, ByteWriter, Truncated, text, utf16};

/// Reads arguments in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a>(ByteReader<'a>);

impl<'a> Arguments<'a> {
    /// Returns a reader of encoded arguments.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(ByteReader::new(bytes))
    }

    /// Reads an integer.
    pub(super) fn u32(&mut self) -> Result<u32, Truncated> {
        let at = self.0.position();
        self.0.skip(at.next_multiple_of(4) - at)?;
        self.0.u32()
    }

    /// Reads an optional integer.
    pub(super) fn optional_u32(&mut self) -> Result<Option<u32>, Truncated> {
        if self.u32()? == 0 { Ok(None) } else { self.u32().map(Some) }
    }

    /// Reads a zero-terminated string.
    pub(super) fn string(&mut self) -> Result<String, Truncated> {
        let (_, offset, units) = (self.u32()?, self.u32()?, self.u32()?);
        if offset != 0 {
            return Err(Truncated);
        }
        let bytes = self.0.take((units as usize).checked_mul(2).ok_or(Truncated)?)?;
        let text = text(bytes).ok_or(Truncated)?;
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// Reads an optional string.
    pub(super) fn optional_string(&mut self) -> Result<Option<String>, Truncated> {
        if self.u32()? == 0 { Ok(None) } else { self.string().map(Some) }
    }
}

/// Writes results in order.
#[derive(Debug, Default)]
pub(super) struct Results {
    writer: ByteWriter,
    pointers: u32,
    /// Strings that follow the structure with their pointers.
    deferred_strings: Vec<String>,
}

impl Results {
    /// Writes an integer.
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.writer.align(4).u32(value);
        self
    }

    /// Writes a pointer to the value that is written next, or after the structure.
    pub(super) fn pointer(&mut self) -> &mut Self {
        self.pointers += 1;
        // Referents are unique and not 0.
        let referent = 0x0002_0000 + 4 * self.pointers;
        self.u32(referent)
    }

    /// Writes a pointer to a string, which follows the structure.
    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.deferred_strings.push(text.to_owned());
        self.pointer()
    }

    /// Writes the deferred strings at the end of the structure.
    pub(super) fn write_deferred_strings(&mut self) -> &mut Self {
        for text in std::mem::take(&mut self.deferred_strings) {
            let mut units = utf16(&text);
            units.extend([0, 0]);
            let count = (units.len() / 2) as u32;
            self.u32(count).u32(0).u32(count);
            self.writer.put(&units);
        }
        self
    }

    /// Returns the encoded results.
    pub(super) fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }
}
