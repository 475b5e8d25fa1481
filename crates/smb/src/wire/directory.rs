//! QUERY_DIRECTORY: the request, and the entries of the response.

use lazuli_file::handles::Info;

use super::cursor::{ByteReader, ByteWriter, slice, text, utf16};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// Flags of a request.
pub(crate) mod flags {
    /// Restart from the first entry.
    pub(crate) const RESTART: u8 = 0x01;
    /// Return a single entry.
    pub(crate) const SINGLE: u8 = 0x02;
    /// Restart, possibly with another pattern.
    pub(crate) const REOPEN: u8 = 0x10;
}

/// The information class of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryClass {
    Directory,
    Full,
    Both,
    Names,
    IdBoth,
    IdFull,
    IdExtended,
}

impl EntryClass {
    /// Returns the class with this code.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Directory,
            2 => Self::Full,
            3 => Self::Both,
            12 => Self::Names,
            37 => Self::IdBoth,
            38 => Self::IdFull,
            60 => Self::IdExtended,
            _ => return None,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryDirectoryRequest {
    pub(crate) class: u8,
    pub(crate) flags: u8,
    pub(crate) id: FileId,
    /// The names to list. Empty to keep the previous pattern.
    pub(crate) pattern: String,
    /// Maximum number of bytes of output.
    pub(crate) max_output: u32,
}

impl QueryDirectoryRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 33 {
            return Err(Status::INVALID_PARAMETER);
        }
        let (class, flags) = (reader.u8()?, reader.u8()?);
        reader.skip(4)?;
        let id = FileId::read(&mut reader)?;
        let (offset, length, max_output) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let pattern = slice(message, offset.into(), length.into())?;
        let pattern = text(pattern).ok_or(Status::OBJECT_NAME_INVALID)?;
        Ok(Self { class, flags, id, pattern, max_output })
    }
}

/// Entries, each with the offset of the next one, in a limited number of bytes.
#[derive(Debug)]
pub(crate) struct Entries {
    class: EntryClass,
    max_output: usize,
    writer: ByteWriter,
    last: Option<usize>,
}

impl Entries {
    /// Returns an empty list.
    pub(crate) const fn new(class: EntryClass, max_output: usize) -> Self {
        Self { class, max_output, writer: ByteWriter::new(), last: None }
    }

    /// Returns whether there are no entries.
    pub(crate) const fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Adds an entry. Returns false if it does not fit.
    pub(crate) fn add(&mut self, info: &Info, name: &str) -> bool {
        let entry = self.entry(info, name);
        let start = self.writer.len().next_multiple_of(8);
        if start + entry.len() > self.max_output {
            return false;
        }
        self.writer.align(8);
        if let Some(last) = self.last {
            self.writer.patch_u32(last, (start - last) as u32);
        }
        self.last = Some(start);
        self.writer.put(&entry);
        true
    }

    /// Returns the bytes of the entries.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }

    fn entry(&self, info: &Info, name: &str) -> Vec<u8> {
        let name = utf16(name);
        let mut writer = ByteWriter::new();
        // The offset of the next entry, set later, and no index.
        writer.u32(0).u32(0);
        if self.class == EntryClass::Names {
            writer.u32(name.len() as u32).put(&name);
            return writer.finish();
        }
        for time in [info.created, info.accessed, info.written, info.changed] {
            writer.u64(time.filetime());
        }
        writer.u64(info.length).u64(info.allocated).u32(info.attributes).u32(name.len() as u32);
        if self.class != EntryClass::Directory {
            // No extended attributes.
            writer.u32(0);
        }
        match self.class {
            EntryClass::Both => writer.zeros(26),
            EntryClass::IdBoth => writer.zeros(26).u16(0).u64(info.id.0),
            EntryClass::IdFull => writer.u32(0).u64(info.id.0),
            EntryClass::IdExtended => writer.u32(0).u128(info.id.0.into()),
            EntryClass::Directory | EntryClass::Full | EntryClass::Names => &mut writer,
        };
        writer.put(&name);
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Timestamp;
    use lazuli_file::NodeId;

    use super::*;

    fn info() -> Info {
        let time = Timestamp::from_filetime(1);
        Info {
            id: NodeId(3),
            parent: NodeId(2),
            name: "f".into(),
            path: "d/f".into(),
            is_directory: false,
            attributes: 0x20,
            created: time,
            accessed: time,
            written: time,
            changed: time,
            length: 10,
            allocated: 4096,
            delete_pending: false,
        }
    }

    #[test]
    fn a_query_directory_request_has_a_pattern() {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(33).u8(37).u8(flags::RESTART).u32(0).u64(5).u64(6);
        writer.u16(96).u16(2).u32(4096).put(&utf16("*"));
        let message = writer.finish();
        let request = QueryDirectoryRequest::parse(&message).unwrap();
        let wanted = (37, flags::RESTART, "*", 4096);
        assert_eq!((request.class, request.flags, request.pattern.as_str(), request.max_output), wanted);
        assert_eq!(QueryDirectoryRequest::parse(&message[..97]), Err(Status::INVALID_PARAMETER));
        let mut odd = message;
        odd[90] = 1;
        assert_eq!(QueryDirectoryRequest::parse(&odd), Err(Status::OBJECT_NAME_INVALID));
    }

    #[test]
    fn the_offset_of_the_name_depends_on_the_class() {
        for (number, offset) in [(1, 64), (2, 68), (3, 94), (12, 12), (37, 104), (38, 80), (60, 88)] {
            let mut entries = Entries::new(EntryClass::from_code(number).unwrap(), 1000);
            assert!(entries.add(&info(), "ab"));
            let bytes = entries.finish();
            assert_eq!((bytes.len(), &bytes[offset..]), (offset + 4, &utf16("ab")[..]), "{number}");
        }
        assert_eq!(EntryClass::from_code(4), None);
    }

    #[test]
    fn entries_are_aligned_and_linked_until_the_buffer_is_full() {
        let mut entries = Entries::new(EntryClass::Names, 46);
        assert!(entries.add(&info(), "a") && entries.add(&info(), "b") && entries.add(&info(), "c"));
        assert!(!entries.add(&info(), "d"));
        let bytes = entries.finish();
        assert_eq!((bytes.len(), bytes[0], bytes[16], bytes[32]), (46, 16, 16, 0));
        let mut none = Entries::new(EntryClass::Names, 13);
        assert!(!none.add(&info(), "a") && none.is_empty());
    }
}
