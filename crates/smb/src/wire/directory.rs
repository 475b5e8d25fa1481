//! QUERY_DIRECTORY: the request, and the entries of a listing.

use lazuli_file::native::Info;

use super::cursor::{Reader, Writer, slice, text, utf16};
use super::header::HEADER;
use super::status::Status;
use crate::open::FileId;

/// Flags of a request.
pub(crate) mod flags {
    /// From the beginning again.
    pub(crate) const RESTART: u8 = 0x01;
    /// One entry.
    pub(crate) const SINGLE: u8 = 0x02;
    /// From the beginning, perhaps with another pattern.
    pub(crate) const REOPEN: u8 = 0x10;
}

/// How entries look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Directory,
    Full,
    Both,
    Names,
    IdBoth,
    IdFull,
    IdExtended,
}

impl Class {
    /// The class of that number.
    pub(crate) fn of(number: u8) -> Option<Self> {
        Some(match number {
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

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryDirectoryRequest {
    pub(crate) class: u8,
    pub(crate) flags: u8,
    pub(crate) id: FileId,
    /// Which names; empty: as before.
    pub(crate) pattern: String,
    /// Bytes that the client has room for.
    pub(crate) room: u32,
}

impl QueryDirectoryRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = Reader::from(message, HEADER);
        if reader.u16()? != 33 {
            return Err(Status::INVALID_PARAMETER);
        }
        let (class, flags) = (reader.u8()?, reader.u8()?);
        reader.skip(4)?;
        let id = FileId::read(&mut reader)?;
        let (offset, length, room) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let pattern = slice(message, offset.into(), length.into())?;
        let pattern = text(pattern).ok_or(Status::OBJECT_NAME_INVALID)?;
        Ok(Self { class, flags, id, pattern, room })
    }
}

/// Entries, each pointing to the next, in no more bytes than there is room for.
#[derive(Debug)]
pub(crate) struct Entries {
    class: Class,
    room: usize,
    writer: Writer,
    last: Option<usize>,
}

impl Entries {
    /// None yet.
    pub(crate) const fn new(class: Class, room: usize) -> Self {
        Self { class, room, writer: Writer::new(), last: None }
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Adds an entry under a name. False if there is no room for it.
    pub(crate) fn add(&mut self, info: &Info, name: &str) -> bool {
        let entry = self.entry(info, name);
        let start = self.writer.len().next_multiple_of(8);
        if start + entry.len() > self.room {
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

    /// The entries.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.writer.finish()
    }

    fn entry(&self, info: &Info, name: &str) -> Vec<u8> {
        let name = utf16(name);
        let mut writer = Writer::new();
        // To be pointed to the next; no index.
        writer.u32(0).u32(0);
        if self.class == Class::Names {
            writer.u32(name.len() as u32).put(&name);
            return writer.finish();
        }
        for time in [info.created, info.accessed, info.written, info.changed] {
            writer.u64(time.filetime());
        }
        writer.u64(info.length).u64(info.allocated).u32(info.attributes).u32(name.len() as u32);
        if self.class != Class::Directory {
            // There are no extended attributes.
            writer.u32(0);
        }
        match self.class {
            Class::Both => writer.zeros(26),
            Class::IdBoth => writer.zeros(26).u16(0).u64(info.id.0),
            Class::IdFull => writer.u32(0).u64(info.id.0),
            Class::IdExtended => writer.u32(0).u128(info.id.0.into()),
            Class::Directory | Class::Full | Class::Names => &mut writer,
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
    fn a_request_names_its_pattern() {
        let mut writer = Writer::new();
        writer.zeros(HEADER).u16(33).u8(37).u8(flags::RESTART).u32(0).u64(5).u64(6);
        writer.u16(96).u16(2).u32(4096).put(&utf16("*"));
        let message = writer.finish();
        let request = QueryDirectoryRequest::parse(&message).unwrap();
        let wanted = (37, flags::RESTART, "*", 4096);
        assert_eq!((request.class, request.flags, request.pattern.as_str(), request.room), wanted);
        assert_eq!(QueryDirectoryRequest::parse(&message[..97]), Err(Status::INVALID_PARAMETER));
        let mut odd = message;
        odd[90] = 1;
        assert_eq!(QueryDirectoryRequest::parse(&odd), Err(Status::OBJECT_NAME_INVALID));
    }

    #[test]
    fn entries_have_their_names_where_the_class_has_them() {
        for (number, offset) in [(1, 64), (2, 68), (3, 94), (12, 12), (37, 104), (38, 80), (60, 88)] {
            let mut entries = Entries::new(Class::of(number).unwrap(), 1000);
            assert!(entries.add(&info(), "ab"));
            let bytes = entries.finish();
            assert_eq!((bytes.len(), &bytes[offset..]), (offset + 4, &utf16("ab")[..]), "{number}");
        }
        assert_eq!(Class::of(4), None);
    }

    #[test]
    fn entries_are_aligned_and_point_to_each_other_as_far_as_there_is_room() {
        let mut entries = Entries::new(Class::Names, 46);
        assert!(entries.add(&info(), "a") && entries.add(&info(), "b") && entries.add(&info(), "c"));
        assert!(!entries.add(&info(), "d"));
        let bytes = entries.finish();
        assert_eq!((bytes.len(), bytes[0], bytes[16], bytes[32]), (46, 16, 16, 0));
        let mut none = Entries::new(Class::Names, 13);
        assert!(!none.add(&info(), "a") && none.is_empty());
    }
}
