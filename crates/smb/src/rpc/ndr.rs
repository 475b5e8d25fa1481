//! NDR, as far as the server service needs it: numbers, strings, pointers whose targets follow later.

use crate::wire::cursor::{Reader, Truncated, Writer, text, utf16};

/// Arguments, read one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a>(Reader<'a>);

impl<'a> Arguments<'a> {
    /// From the beginning.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    /// A number.
    pub(super) fn u32(&mut self) -> Result<u32, Truncated> {
        let at = self.0.position();
        self.0.skip(at.next_multiple_of(4) - at)?;
        self.0.u32()
    }

    /// A number that may be missing.
    pub(super) fn optional_u32(&mut self) -> Result<Option<u32>, Truncated> {
        if self.u32()? == 0 { Ok(None) } else { self.u32().map(Some) }
    }

    /// A string, which ends with a zero.
    pub(super) fn string(&mut self) -> Result<String, Truncated> {
        let (_, offset, units) = (self.u32()?, self.u32()?, self.u32()?);
        if offset != 0 {
            return Err(Truncated);
        }
        let bytes = self.0.take((units as usize).checked_mul(2).ok_or(Truncated)?)?;
        let text = text(bytes).ok_or(Truncated)?;
        Ok(text.trim_end_matches('\0').to_owned())
    }

    /// A string that may be missing.
    pub(super) fn optional_string(&mut self) -> Result<Option<String>, Truncated> {
        if self.u32()? == 0 { Ok(None) } else { self.string().map(Some) }
    }
}

/// Results, written one after the other.
#[derive(Debug, Default)]
pub(super) struct Results {
    writer: Writer,
    pointers: u32,
    /// Strings that pointers point to: they follow the structure.
    later: Vec<String>,
}

impl Results {
    /// A number.
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.writer.align(4).u32(value);
        self
    }

    /// A pointer to what is written next, or after the structure.
    pub(super) fn pointer(&mut self) -> &mut Self {
        self.pointers += 1;
        // Any number but 0, and each only once.
        let referent = 0x0002_0000 + 4 * self.pointers;
        self.u32(referent)
    }

    /// A pointer to a string, which follows the structure.
    pub(super) fn string(&mut self, text: &str) -> &mut Self {
        self.later.push(text.to_owned());
        self.pointer()
    }

    /// The end of the structure: the strings.
    pub(super) fn end(&mut self) -> &mut Self {
        for text in std::mem::take(&mut self.later) {
            let mut units = utf16(&text);
            units.extend([0, 0]);
            let count = (units.len() / 2) as u32;
            self.u32(count).u32(0).u32(count);
            self.writer.put(&units);
        }
        self
    }

    /// What was written.
    pub(super) fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }
}
