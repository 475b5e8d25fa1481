//! CREATE: opens a file, a directory or a pipe.

use bytes::Bytes;

use super::cursor::{ByteReader, ByteWriter, Truncated, slice, text};
use super::header::HEADER_SIZE;
use super::status::Status;

use crate::wire::FileId;

/// Bytes of the fixed part of a request.
const FIXED: usize = 56;
/// `StructureSize` of a request.
const REQUEST_SIZE: u16 = 57;
/// `StructureSize` of a response.
const RESPONSE_SIZE: u16 = 89;
/// Maximum number of create contexts in a request.
const MAX_CONTEXTS: usize = 32;

/// Bits of an access mask.
pub(crate) mod access {
    pub(crate) const READ_DATA: u32 = 0x0000_0001;
    pub(crate) const WRITE_DATA: u32 = 0x0000_0002;
    pub(crate) const APPEND_DATA: u32 = 0x0000_0004;
    pub(crate) const READ_EA: u32 = 0x0000_0008;
    pub(crate) const EXECUTE: u32 = 0x0000_0020;
    pub(crate) const DELETE_CHILD: u32 = 0x0000_0040;
    pub(crate) const READ_ATTRIBUTES: u32 = 0x0000_0080;
    pub(crate) const WRITE_ATTRIBUTES: u32 = 0x0000_0100;
    pub(crate) const DELETE: u32 = 0x0001_0000;
    pub(crate) const READ_CONTROL: u32 = 0x0002_0000;
    pub(crate) const WRITE_DAC: u32 = 0x0004_0000;
    pub(crate) const WRITE_OWNER: u32 = 0x0008_0000;
    pub(crate) const SYNCHRONIZE: u32 = 0x0010_0000;
    pub(crate) const SYSTEM_SECURITY: u32 = 0x0100_0000;
    pub(crate) const MAXIMUM_ALLOWED: u32 = 0x0200_0000;
    /// All rights on a file.
    pub(crate) const ALL: u32 = 0x001f_01ff;
}

/// Oplock levels.
pub(crate) mod oplock {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const II: u8 = 1;
    pub(crate) const EXCLUSIVE: u8 = 8;
    pub(crate) const BATCH: u8 = 9;
    pub(crate) const LEASE: u8 = 0xff;
}

/// Create options.
pub(crate) mod options {
    pub(crate) const DIRECTORY_FILE: u32 = 0x0000_0001;
    pub(crate) const WRITE_THROUGH: u32 = 0x0000_0002;
    pub(crate) const NON_DIRECTORY_FILE: u32 = 0x0000_0040;
    pub(crate) const CREATE_TREE_CONNECTION: u32 = 0x0000_0080;
    pub(crate) const DELETE_ON_CLOSE: u32 = 0x0000_1000;
    pub(crate) const OPEN_BY_FILE_ID: u32 = 0x0000_2000;
    pub(crate) const RESERVE_OPFILTER: u32 = 0x0010_0000;
    /// Bits of no defined option.
    pub(crate) const UNKNOWN: u32 = 0xff00_0000;
}

/// Names of create contexts.
pub(crate) mod tag {
    pub(crate) const EXTENDED_ATTRIBUTES: &[u8] = b"ExtA";
    pub(crate) const SECURITY_DESCRIPTOR: &[u8] = b"SecD";
    pub(crate) const DURABLE_REQUEST: &[u8] = b"DHnQ";
    pub(crate) const DURABLE_RECONNECT: &[u8] = b"DHnC";
    pub(crate) const ALLOCATION_SIZE: &[u8] = b"AlSi";
    pub(crate) const MAXIMAL_ACCESS: &[u8] = b"MxAc";
    pub(crate) const TIMEWARP: &[u8] = b"TWrp";
    pub(crate) const ON_DISK_ID: &[u8] = b"QFid";
    pub(crate) const LEASE: &[u8] = b"RqLs";
    pub(crate) const DURABLE_REQUEST_V2: &[u8] = b"DH2Q";
    pub(crate) const DURABLE_RECONNECT_V2: &[u8] = b"DH2C";
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) const APP_INSTANCE: &[u8] =
        &[0x45, 0xbc, 0xa6, 0x6a, 0xef, 0xa7, 0xf7, 0x4a, 0x90, 0x08, 0xfa, 0x46, 0x2e, 0x14, 0x4d, 0x74];
}

#[derive(Clone, Debug)]
pub(crate) struct CreateRequest {
    pub(crate) oplock_level: u8,
    pub(crate) impersonation: u32,
    pub(crate) access: u32,
    pub(crate) attributes: u32,
    pub(crate) share: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
    /// The name as sent, with backslashes.
    pub(crate) name: String,
    pub(crate) contexts: CreateContexts,
}

impl CreateRequest {
    pub(crate) fn parse(message: &Bytes) -> Result<Self, Status> {
        let mut reader = ByteReader::from(message, HEADER_SIZE);
        if reader.u16()? != REQUEST_SIZE {
            return Err(Status::INVALID_PARAMETER);
        }
        reader.skip(1)?;
        let (oplock_level, impersonation) = (reader.u8()?, reader.u32()?);
        reader.skip(16)?;
        let (access, attributes, share) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (disposition, options) = (reader.u32()?, reader.u32()?);
        let name = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let contexts = (reader.u32()? as usize, reader.u32()? as usize);
        for (offset, length) in [name, contexts] {
            if (offset, length) != (0, 0) && offset < HEADER_SIZE + FIXED {
                return Err(Status::INVALID_PARAMETER);
            }
        }
        let name = text(slice(message, name.0, name.1)?).ok_or(Status::ILLEGAL_CHARACTER)?;
        if name.contains('\0') {
            return Err(Status::OBJECT_NAME_INVALID);
        }
        let contexts = CreateContexts::parse(slice(message, contexts.0, contexts.1)?)?;
        Ok(Self {
            oplock_level,
            impersonation,
            access,
            attributes,
            share,
            disposition,
            options,
            name,
            contexts,
        })
    }
}

/// The create contexts of a request, including unknown ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreateContexts(Vec<(Vec<u8>, Vec<u8>)>);

impl CreateContexts {
    fn parse(bytes: &[u8]) -> Result<Self, Status> {
        let mut contexts = vec![];
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut reader = ByteReader::new(rest);
            let next = reader.u32()? as usize;
            let (name_at, name_length) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
            reader.skip(2)?;
            let (data_at, data_length) = (usize::from(reader.u16()?), reader.u32()? as usize);
            let end = if next == 0 { rest.len() } else { next };
            let one = rest.get(..end).ok_or(Truncated)?;
            let (name, data) = (slice(one, name_at, name_length)?, slice(one, data_at, data_length)?);
            let is_misplaced = name_at < 16 || (data_length > 0 && data_at < name_at + name_length);
            if name.len() < 4 || is_misplaced || !next.is_multiple_of(8) || contexts.len() >= MAX_CONTEXTS {
                return Err(Status::INVALID_PARAMETER);
            }
            contexts.push((name.to_vec(), data.to_vec()));
            if next == 0 {
                break;
            }
            // Another context must follow.
            rest = rest.get(next..).filter(|rest| !rest.is_empty()).ok_or(Truncated)?;
        }
        Ok(Self(contexts))
    }

    /// Returns the number of contexts.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the data of a context by name.
    pub(crate) fn get(&self, tag: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(name, _)| name == tag).map(|(_, data)| data.as_slice())
    }

    /// Returns the data of a context by name, which must have `N` bytes.
    pub(crate) fn fixed<const N: usize>(&self, tag: &[u8]) -> Result<Option<[u8; N]>, Status> {
        let Some(data) = self.get(tag) else { return Ok(None) };
        data.try_into().map(Some).map_err(|_| Status::INVALID_PARAMETER)
    }
}

/// A lease in a request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) key: u128,
    pub(crate) state: u32,
    pub(crate) flags: u32,
    /// Present in version 2.
    pub(crate) v2: Option<LeaseV2>,
}

/// The additional fields of a version 2 lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseV2 {
    pub(crate) parent_key: u128,
    pub(crate) epoch: u16,
}

impl Lease {
    /// The lease is being broken.
    pub(crate) const BREAKING: u32 = 2;
    /// The lease has the key of its directory's lease.
    pub(crate) const HAS_PARENT: u32 = 4;

    /// Parses a lease of either version.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, Status> {
        let mut reader = ByteReader::new(data);
        let (key, state, flags) = (reader.u128()?, reader.u32()?, reader.u32()?);
        reader.skip(8)?;
        let v2 = match data.len() {
            32 => None,
            52 => Some(LeaseV2 { parent_key: reader.u128()?, epoch: reader.u16()? }),
            _ => return Err(Status::INVALID_PARAMETER),
        };
        Ok(Self { key, state, flags, v2 })
    }

    /// Writes the lease.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u128(self.key).u32(self.state).u32(self.flags).u64(0);
        if let Some(v2) = self.v2 {
            writer.u128(v2.parent_key).u16(v2.epoch).u16(0);
        }
        writer.finish()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct CreateResponse {
    pub(crate) oplock_level: u8,
    pub(crate) action: u32,
    /// Creation, access, write and change time.
    pub(crate) times: [u64; 4],
    pub(crate) allocated: u64,
    pub(crate) length: u64,
    pub(crate) attributes: u32,
    pub(crate) id: FileId,
    pub(crate) contexts: Vec<(&'static [u8], Vec<u8>)>,
}

impl CreateResponse {
    /// Returns the body.
    pub(crate) fn write(&self) -> Vec<u8> {
        let contexts = write_contexts(&self.contexts);
        let at = if contexts.is_empty() { 0 } else { HEADER_SIZE + usize::from(RESPONSE_SIZE) - 1 };
        let mut writer = ByteWriter::new();
        writer.u16(RESPONSE_SIZE).u8(self.oplock_level).u8(0).u32(self.action);
        for time in self.times {
            writer.u64(time);
        }
        writer.u64(self.allocated).u64(self.length).u32(self.attributes).u32(0);
        writer.u64(self.id.persistent).u64(self.id.volatile);
        writer.u32(at as u32).u32(contexts.len() as u32).put(&contexts);
        writer.finish()
    }
}

/// Writes contexts, each at a multiple of 8 bytes.
pub(crate) fn write_contexts(contexts: &[(&'static [u8], Vec<u8>)]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    for (index, (name, data)) in contexts.iter().enumerate() {
        let start = writer.len();
        let data_at = (16 + name.len()).next_multiple_of(8);
        writer.u32(0).u16(16).u16(name.len() as u16).u16(0);
        writer.u16(if data.is_empty() { 0 } else { data_at as u16 }).u32(data.len() as u32);
        writer.put(name);
        if !data.is_empty() {
            writer.align(8).put(data);
        }
        if index + 1 < contexts.len() {
            writer.align(8);
            writer.patch_u32(start, (writer.len() - start) as u32);
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::super::cursor::utf16;
    use super::*;

    /// Returns a request for a name with the given bytes as contexts.
    fn message(name: &[u8], contexts: &[u8]) -> Bytes {
        let mut writer = ByteWriter::new();
        writer.zeros(HEADER_SIZE).u16(REQUEST_SIZE).u8(0).u8(oplock::LEASE).u32(2).u64(0).u64(0);
        writer.u32(0x12_0089).u32(0x80).u32(7).u32(1).u32(0x40);
        let name_at = HEADER_SIZE + FIXED;
        let at = (name_at + name.len()).next_multiple_of(8);
        writer.u16(name_at as u16).u16(name.len() as u16);
        let at = if contexts.is_empty() { 0 } else { at };
        writer.u32(at as u32).u32(contexts.len() as u32);
        writer.put(name).align(8).put(contexts);
        Bytes::from(writer.finish())
    }

    #[test]
    fn a_create_request_is_parsed_with_name_and_contexts() {
        let contexts: [(&'static [u8], Vec<u8>); 3] = [
            (tag::MAXIMAL_ACCESS, vec![]),
            (tag::ALLOCATION_SIZE, vec![7; 8]),
            (tag::APP_INSTANCE, vec![1; 20]),
        ];
        let message = message(&utf16("a\\b"), &write_contexts(&contexts));
        let request = CreateRequest::parse(&message).unwrap();
        assert_eq!((request.name.as_str(), request.access, request.share), ("a\\b", 0x12_0089, 7));
        assert_eq!((request.disposition, request.options, request.oplock_level), (1, 0x40, oplock::LEASE));
        assert_eq!(request.contexts.len(), 3);
        assert_eq!(request.contexts.get(tag::MAXIMAL_ACCESS), Some(&[][..]));
        assert_eq!(request.contexts.fixed(tag::ALLOCATION_SIZE), Ok(Some([7; 8])));
        assert_eq!(request.contexts.fixed::<7>(tag::ALLOCATION_SIZE), Err(Status::INVALID_PARAMETER));
        assert_eq!(request.contexts.get(tag::APP_INSTANCE), Some(&[1; 20][..]));
        assert_eq!(request.contexts.get(tag::LEASE), None);
    }

    #[test]
    fn invalid_names_and_contexts_are_refused() {
        let parse = |name: &[u8], contexts: &[u8]| CreateRequest::parse(&message(name, contexts)).err();
        assert_eq!(parse(b"", b""), None);
        assert_eq!(parse(b"a", b""), Some(Status::ILLEGAL_CHARACTER));
        assert_eq!(parse(&[0, 0xd8], b""), Some(Status::ILLEGAL_CHARACTER));
        assert_eq!(parse(&utf16("a\0b"), b""), Some(Status::OBJECT_NAME_INVALID));
        for bad in [&b"x"[..], b"xxx"] {
            let mut writer = ByteWriter::new();
            writer.u32(0).u16(16).u16(bad.len() as u16).u16(0).u16(0).u32(0).put(bad);
            assert_eq!(parse(b"", &writer.finish()), Some(Status::INVALID_PARAMETER));
        }
        let good = write_contexts(&[(tag::MAXIMAL_ACCESS, vec![]), (tag::ON_DISK_ID, vec![])]);
        assert_eq!(parse(b"", &good), None);
        for length in 1..good.len() {
            // A cut after the first context fails as well, because that names a next one.
            assert_eq!(parse(b"", &good[..length]), Some(Status::INVALID_PARAMETER), "{length}");
        }
    }

    #[test]
    fn leases_of_both_versions_survive_a_round_trip() {
        let first = Lease { key: 7, state: 3, flags: 0, v2: None };
        let v2 = Lease { v2: Some(LeaseV2 { parent_key: 9, epoch: 5 }), flags: 4, ..first };
        for (lease, length) in [(first, 32), (v2, 52)] {
            let bytes = lease.write();
            assert_eq!((bytes.len(), Lease::parse(&bytes)), (length, Ok(lease)));
            assert_eq!(Lease::parse(&bytes[..length - 1]), Err(Status::INVALID_PARAMETER));
        }
    }

    #[test]
    fn a_create_response_points_to_its_contexts() {
        let id = FileId { persistent: 1, volatile: 2 };
        let bare = CreateResponse { id, ..CreateResponse::default() }.write();
        assert_eq!((bare.len(), &bare[80..88]), (88, &[0; 8][..]));
        let contexts = vec![(tag::MAXIMAL_ACCESS, vec![0; 8]), (tag::DURABLE_REQUEST, vec![0; 8])];
        let body = CreateResponse { id, contexts, ..CreateResponse::default() }.write();
        let mut reader = ByteReader::from(&body, 80);
        assert_eq!((reader.u32(), reader.u32()), (Ok(152), Ok(64)));
        let contexts = CreateContexts::parse(&body[88..]).unwrap();
        assert_eq!(contexts.fixed(tag::DURABLE_REQUEST), Ok(Some([0; 8])));
    }
}
