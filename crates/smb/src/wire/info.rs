//! QUERY_INFO and SET_INFO: the requests, and the layout of the information classes.

use lazuli_file::handles::{Info, PropertyChange};

use super::cursor::{ByteReader, ByteWriter, slice, text, utf16};
use super::header::HEADER_SIZE;
use super::status::Status;
use super::time::new_time;

use crate::wire::FileId;

/// Maximum number of bytes in one request or response.
pub(crate) const MAX_TRANSACT: u32 = 8 << 20;
/// Offset of the data in a response, directly after the fixed part.
const DATA: usize = HEADER_SIZE + 8;

/// The type of information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InfoType {
    File,
    FileSystem,
    Security,
    Quota,
}

impl InfoType {
    fn of(number: u8) -> Result<Self, Status> {
        match number {
            1 => Ok(Self::File),
            2 => Ok(Self::FileSystem),
            3 => Ok(Self::Security),
            4 => Ok(Self::Quota),
            _ => Err(Status::INVALID_PARAMETER),
        }
    }
}

/// Classes of file information.
pub(crate) mod class {
    pub(crate) const BASIC: u8 = 4;
    pub(crate) const STANDARD: u8 = 5;
    pub(crate) const INTERNAL: u8 = 6;
    pub(crate) const EA: u8 = 7;
    pub(crate) const ACCESS: u8 = 8;
    pub(crate) const NAME: u8 = 9;
    pub(crate) const RENAME: u8 = 10;
    pub(crate) const LINK: u8 = 11;
    pub(crate) const DISPOSITION: u8 = 13;
    pub(crate) const POSITION: u8 = 14;
    pub(crate) const FULL_EA: u8 = 15;
    pub(crate) const MODE: u8 = 16;
    pub(crate) const ALIGNMENT: u8 = 17;
    pub(crate) const ALL: u8 = 18;
    pub(crate) const ALLOCATION: u8 = 19;
    pub(crate) const END_OF_FILE: u8 = 20;
    pub(crate) const ALTERNATE_NAME: u8 = 21;
    pub(crate) const STREAM: u8 = 22;
    pub(crate) const PIPE: u8 = 23;
    pub(crate) const PIPE_LOCAL: u8 = 24;
    pub(crate) const PIPE_REMOTE: u8 = 25;
    pub(crate) const COMPRESSION: u8 = 28;
    pub(crate) const NETWORK_OPEN: u8 = 34;
    pub(crate) const ATTRIBUTE_TAG: u8 = 35;
    pub(crate) const VALID_DATA_LENGTH: u8 = 39;
    pub(crate) const SHORT_NAME: u8 = 40;
    pub(crate) const NORMALIZED_NAME: u8 = 48;
    pub(crate) const ID: u8 = 59;
    pub(crate) const DISPOSITION_EX: u8 = 64;
    pub(crate) const RENAME_EX: u8 = 65;
}

/// A QUERY_INFO request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueryInfoRequest {
    pub(crate) kind: InfoType,
    pub(crate) class: u8,
    /// Maximum number of bytes of output.
    pub(crate) max_output: u32,
    /// The requested parts of the security descriptor.
    pub(crate) additional: u32,
    pub(crate) id: FileId,
    /// Length of the input in bytes.
    pub(crate) input: u32,
}

impl QueryInfoRequest {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 41 {
            return Err(Status::INVALID_PARAMETER);
        }
        let (kind, class, max_output) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let offset = reader.u16()?;
        reader.skip(2)?;
        let (input, additional) = (reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let id = FileId::read(&mut reader)?;
        slice(message, offset.into(), input as usize)?;
        Ok(Self { kind: InfoType::of(kind)?, class, max_output, additional, id, input })
    }
}

/// A SET_INFO request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetInfoRequest<'a> {
    pub(crate) kind: InfoType,
    pub(crate) class: u8,
    pub(crate) additional: u32,
    pub(crate) id: FileId,
    pub(crate) input: &'a [u8],
}

impl<'a> SetInfoRequest<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != 33 {
            return Err(Status::INVALID_PARAMETER);
        }
        let (kind, class, length) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let offset = reader.u16()?;
        reader.skip(2)?;
        let additional = reader.u32()?;
        let id = FileId::read(&mut reader)?;
        let input = slice(message, offset.into(), length as usize)?;
        Ok(Self { kind: InfoType::of(kind)?, class, additional, id, input })
    }
}

/// Returns the body of the response to SET_INFO.
pub(crate) fn set_response() -> Vec<u8> {
    2_u16.to_le_bytes().to_vec()
}

/// Returns the body of a response that consists of data: to QUERY_INFO, QUERY_DIRECTORY and CHANGE_NOTIFY.
pub(crate) fn data_response(data: &[u8]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    let offset = if data.is_empty() { 0 } else { DATA };
    writer.u16(9).u16(offset as u16).u32(data.len() as u32).put(data);
    if data.is_empty() {
        // The variable part has at least one byte.
        writer.u8(0);
    }
    writer.finish()
}

/// Returns FileBasicInformation.
pub(crate) fn basic(info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    times(&mut writer, info);
    writer.u32(info.attributes).u32(0);
    writer.finish()
}

/// Returns FileStandardInformation.
pub(crate) fn standard(info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u64(info.allocated).u64(info.length);
    // A file marked for deletion has no links.
    writer.u32(u32::from(!info.delete_pending)).u8(info.delete_pending.into()).u8(info.is_directory.into());
    writer.u16(0);
    writer.finish()
}

/// Returns FileNetworkOpenInformation.
pub(crate) fn network_open(info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    times(&mut writer, info);
    writer.u64(info.allocated).u64(info.length).u32(info.attributes).u32(0);
    writer.finish()
}

/// Returns FileStreamInformation: the only stream of a file is its content, and a directory has none.
pub(crate) fn streams(info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    if !info.is_directory {
        let name = utf16("::$DATA");
        writer.u32(0).u32(name.len() as u32).u64(info.length).u64(info.allocated).put(&name);
    }
    writer.finish()
}

/// Returns FileCompressionInformation of an uncompressed file.
pub(crate) fn compression(info: &Info) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u64(info.length).zeros(8);
    writer.finish()
}

/// Returns a name preceded by its length.
pub(crate) fn name(name: &str) -> Vec<u8> {
    let name = utf16(name);
    let mut writer = ByteWriter::new();
    writer.u32(name.len() as u32).put(&name);
    writer.finish()
}

fn times(writer: &mut ByteWriter, info: &Info) {
    for time in [info.created, info.accessed, info.written, info.changed] {
        writer.u64(time.filetime());
    }
}

/// Parses FileBasicInformation. Attributes of 0 leave the attributes unchanged.
pub(crate) fn new_basic(input: &[u8]) -> Result<PropertyChange, Status> {
    let mut reader = at_least(input, 36)?;
    let mut time = || new_time(reader.u64()?);
    let (created, accessed, written, changed) = (time()?, time()?, time()?, time()?);
    let attributes = Some(reader.u32()?).filter(|attributes| *attributes != 0);
    Ok(PropertyChange { created, accessed, written, changed, attributes })
}

/// FileRenameInformation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewName {
    pub(crate) replace: bool,
    /// Id of the directory that the name is relative to, or 0 for the share.
    pub(crate) root: u64,
    /// The name as sent, with backslashes.
    pub(crate) name: String,
}

impl NewName {
    pub(crate) fn parse(input: &[u8]) -> Result<Self, Status> {
        let mut reader = at_least(input, 20)?;
        let replace = reader.u8()? & 1 != 0;
        reader.skip(7)?;
        let (root, length) = (reader.u64()?, reader.u32()?);
        let name = reader.take(length as usize)?;
        let name = text(name).ok_or(Status::OBJECT_NAME_INVALID)?;
        Ok(Self { replace, root, name })
    }
}

/// Returns a reader of an input with at least `length` bytes.
pub(crate) fn at_least(input: &[u8], length: usize) -> Result<ByteReader<'_>, Status> {
    if input.len() < length { Err(Status::INFO_LENGTH_MISMATCH) } else { Ok(ByteReader::new(input)) }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Timestamp;
    use lazuli_file::NodeId;
    use lazuli_file::handles::NewTime;

    use super::*;

    const ID: FileId = FileId { persistent: 5, volatile: 6 };

    fn info() -> Info {
        let time = Timestamp::from_filetime;
        Info {
            id: NodeId(3),
            parent: NodeId(2),
            name: "f".into(),
            path: "d/f".into(),
            is_directory: false,
            attributes: 0x20,
            created: time(1),
            accessed: time(2),
            written: time(3),
            changed: time(4),
            length: 10,
            allocated: 4096,
            delete_pending: false,
        }
    }

    #[test]
    fn a_query_info_request_is_parsed() {
        let mut writer = ByteWriter::new();
        writer
            .zeros(HEADER_SIZE)
            .u16(41)
            .u8(3)
            .u8(0)
            .u32(100)
            .u16(0)
            .u16(0)
            .u32(0)
            .u32(7)
            .u32(0)
            .u64(5)
            .u64(6);
        let message = writer.finish();
        let request = QueryInfoRequest::parse(&message).unwrap();
        let wanted = (InfoType::Security, 0, 100, 7, ID);
        assert_eq!((request.kind, request.class, request.max_output, request.additional, request.id), wanted);
        for (at, value) in [(64, 40), (66, 0), (66, 5), (79, 1)] {
            let mut bad = message.clone();
            bad[at] = value;
            assert_eq!(QueryInfoRequest::parse(&bad), Err(Status::INVALID_PARAMETER), "{at}");
        }
        assert_eq!(QueryInfoRequest::parse(&message[..100]), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn a_set_info_request_has_its_input_at_the_given_offset() {
        let mut writer = ByteWriter::new();
        writer
            .zeros(HEADER_SIZE)
            .u16(33)
            .u8(1)
            .u8(class::POSITION)
            .u32(8)
            .u16(96)
            .u16(0)
            .u32(0)
            .u64(5)
            .u64(6)
            .u64(77);
        let message = writer.finish();
        let request = SetInfoRequest::parse(&message).unwrap();
        assert_eq!((request.kind, request.class, request.id), (InfoType::File, class::POSITION, ID));
        assert_eq!(request.input, 77_u64.to_le_bytes());
        assert_eq!(SetInfoRequest::parse(&message[..103]), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn information_classes_have_the_specified_sizes() {
        let info = info();
        assert_eq!(basic(&info).len(), 40);
        assert_eq!(standard(&info).len(), 24);
        assert_eq!(network_open(&info).len(), 56);
        assert_eq!(streams(&info).len(), 24 + 14);
        assert_eq!(compression(&info).len(), 16);
        assert!(streams(&Info { is_directory: true, ..info.clone() }).is_empty());
        let (linked, pending) = (standard(&info), standard(&Info { delete_pending: true, ..info }));
        assert_eq!((linked[16], linked[20], pending[16], pending[20]), (1, 0, 0, 1));
    }

    #[test]
    fn new_times_and_attributes_are_parsed() {
        let mut writer = ByteWriter::new();
        writer.u64(0).u64(u64::MAX).u64(u64::MAX - 1).u64(9).u32(0x21).u32(0);
        let input = writer.finish();
        let basic = new_basic(&input).unwrap();
        assert_eq!(
            (basic.created, basic.accessed, basic.written),
            (NewTime::Kept, NewTime::Frozen, NewTime::Thawed)
        );
        assert_eq!(
            (basic.changed, basic.attributes),
            (NewTime::Set(Timestamp::from_filetime(9)), Some(0x21))
        );
        assert_eq!(new_basic(&input[..35]), Err(Status::INFO_LENGTH_MISMATCH));
    }

    #[test]
    fn a_new_name_must_have_its_announced_length() {
        let mut writer = ByteWriter::new();
        writer.u8(1).zeros(7).u64(0).u32(6).put(&utf16("a\\b"));
        let input = writer.finish();
        let name = NewName { replace: true, root: 0, name: "a\\b".into() };
        assert_eq!(NewName::parse(&input), Ok(name));
        assert_eq!(NewName::parse(&input[..25]), Err(Status::INVALID_PARAMETER));
        assert_eq!(NewName::parse(&input[..19]), Err(Status::INFO_LENGTH_MISMATCH));
    }

    #[test]
    fn a_response_without_data_has_a_variable_part_of_one_byte() {
        assert_eq!(data_response(&[]), [9, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data_response(&[7]), [9, 0, 72, 0, 1, 0, 0, 0, 7]);
    }
}
