//! CHANGE_NOTIFY: the request, and the events of the response.

use super::cursor::{ByteReader, ByteWriter, utf16};
use super::header::HEADER_SIZE;
use super::status::Status;
use crate::change_notifier::Event;
use crate::wire::FileId;

/// The request includes all subdirectories.
const WATCH_TREE: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangeNotifyRequest {
    pub(crate) recursive: bool,
    /// Maximum number of bytes of output.
    pub(crate) max_output: u32,
    pub(crate) id: FileId,
    pub(crate) filter: u32,
}

impl ChangeNotifyRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 32 {
            return Err(Status::INVALID_PARAMETER);
        }
        let recursive = reader.u16()? & WATCH_TREE != 0;
        let (max_output, id, filter) = (reader.u32()?, FileId::read(&mut reader)?, reader.u32()?);
        reader.skip(4)?;
        Ok(Self { recursive, max_output, id, filter })
    }
}

/// Writes events, each with the offset of the next one.
pub(crate) fn events(events: &[Event]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    for (at, event) in events.iter().enumerate() {
        let is_last = at + 1 == events.len();
        let next = if is_last { 0 } else { event.size().next_multiple_of(4) };
        let name = utf16(&event.name);
        writer.u32(next as u32).u32(event.action as u32).u32(name.len() as u32).put(&name);
        if !is_last {
            writer.align(4);
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change_notifier::ChangeAction;

    #[test]
    fn a_change_notify_request_is_parsed() {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(32).u16(1).u32(1000).u64(5).u64(6).u32(3).u32(0);
        let message = writer.finish();
        let id = FileId { persistent: 5, volatile: 6 };
        let request = ChangeNotifyRequest { recursive: true, max_output: 1000, id, filter: 3 };
        assert_eq!(ChangeNotifyRequest::parse(&message), Ok(request));
        assert_eq!(ChangeNotifyRequest::parse(&message[..95]), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn events_are_linked_and_the_last_has_no_padding() {
        let event = |action, name: &str| Event { action, name: name.to_owned() };
        let bytes = events(&[event(ChangeAction::OldName, "a"), event(ChangeAction::NewName, "b")]);
        let first = [16, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, b'a', 0, 0, 0];
        let second = [0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, b'b', 0];
        assert_eq!(bytes, [&first[..], &second[..]].concat());
        assert!(events(&[]).is_empty());
    }
}
