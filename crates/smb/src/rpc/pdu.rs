//! Fragments of connection-oriented DCE/RPC (C706 chapter 12).

use super::MalformedRpc;
use crate::wire::cursor::{ByteReader, ByteWriter, Truncated};

/// Bytes of the common header.
const HEADER_SIZE: usize = 16;
/// Bytes before the arguments of a request and before the results of a response.
pub(super) const REQUEST_HEADER_SIZE: usize = 24;
/// Maximum number of presentation contexts, and of transfer syntaxes for each.
const MAX_CONTEXTS: u8 = 16;

const IS_FIRST: u8 = 1;
const IS_LAST: u8 = 2;
const HAS_OBJECT: u8 = 0x80;
/// Little-endian, ASCII, IEEE.
const REPRESENTATION: [u8; 4] = [0x10, 0, 0, 0];

/// A syntax: identifier and version.
type Syntax = ([u8; 16], u32);
/// The interface of the server service, version 3.0.
const SRVSVC: Syntax = (*b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88", 3);
/// NDR, version 2.
const NDR: Syntax = (*b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60", 2);
/// Prefix of the pseudo syntax that negotiates features.
const FEATURE_NEGOTIATION: [u8; 8] = *b"\x2c\x1c\xb7\x6c\x12\x98\x40\x45";

impl From<Truncated> for MalformedRpc {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// The type of a fragment (`PTYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketType {
    Request = 0,
    Response = 2,
    Fault = 3,
    Bind = 11,
    BindAck = 12,
    BindNak = 13,
    AlterContext = 14,
    AlterContextResponse = 15,
}

/// The header of a fragment from the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct FragmentHeader {
    pub(super) packet_type: PacketType,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    has_object: bool,
    pub(super) is_authenticated: bool,
    call_id: u32,
}

impl FragmentHeader {
    /// Returns the length of the fragment at the start of `bytes`, or `None` if its header is incomplete.
    pub(super) fn length_of(bytes: &[u8]) -> Result<Option<usize>, MalformedRpc> {
        if bytes.len() < HEADER_SIZE {
            return Ok(None);
        }
        let length = usize::from(ByteReader::from(bytes, 8).u16()?);
        if bytes[0] != 5 || !(HEADER_SIZE..=super::MAX_REQUEST).contains(&length) {
            return Err(MalformedRpc);
        }
        Ok(Some(length))
    }

    pub(super) fn parse(fragment: &[u8]) -> Result<Self, MalformedRpc> {
        let mut reader = ByteReader::new(fragment);
        let (version, _, packet_type, flags) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        let representation: [u8; 4] = reader.array()?;
        let (_, authentication, call_id) = (reader.u16()?, reader.u16()?, reader.u32()?);
        if version != 5 || representation[0] != REPRESENTATION[0] {
            return Err(MalformedRpc);
        }
        let kinds = [PacketType::Request, PacketType::Bind, PacketType::AlterContext];
        let packet_type = kinds.into_iter().find(|known| *known as u8 == packet_type).ok_or(MalformedRpc)?;
        Ok(Self {
            packet_type,
            is_first: flags & IS_FIRST != 0,
            is_last: flags & IS_LAST != 0,
            has_object: flags & HAS_OBJECT != 0,
            is_authenticated: authentication != 0,
            call_id,
        })
    }

    /// Returns a response fragment.
    fn response_fragment(&self, packet_type: PacketType, flags: u8, body: &[u8]) -> Vec<u8> {
        let mut writer = ByteWriter::new();
        writer.u8(5).u8(0).u8(packet_type as u8).u8(flags).put(&REPRESENTATION);
        writer.u16((HEADER_SIZE + body.len()) as u16).u16(0).u32(self.call_id).put(body);
        writer.finish()
    }
}

/// A bind request.
#[derive(Clone, Debug)]
pub(super) struct Bind {
    pub(super) max_received: u16,
    group: u32,
    contexts: Vec<Context>,
}

#[derive(Clone, Debug)]
struct Context {
    id: u16,
    outcome: ContextResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextResult {
    Accepted,
    UnknownInterface,
    UnknownEncoding,
    /// No features are supported.
    Features,
}

impl Bind {
    pub(super) fn parse(fragment: &[u8]) -> Result<Self, MalformedRpc> {
        let mut reader = ByteReader::from(fragment, HEADER_SIZE);
        let (_, max_received, group) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let (count, _, _) = (reader.u8()?, reader.u8()?, reader.u16()?);
        if count > MAX_CONTEXTS {
            return Err(MalformedRpc);
        }
        let mut contexts = vec![];
        for _ in 0..count {
            let (id, encodings, _) = (reader.u16()?, reader.u8()?, reader.u8()?);
            if encodings > MAX_CONTEXTS {
                return Err(MalformedRpc);
            }
            let interface = syntax(&mut reader)?;
            let encodings = (0..encodings).map(|_| syntax(&mut reader)).collect::<Result<Vec<_>, _>>()?;
            let outcome = if encodings.iter().any(|(id, _)| id.starts_with(&FEATURE_NEGOTIATION)) {
                ContextResult::Features
            } else if interface != SRVSVC {
                ContextResult::UnknownInterface
            } else if !encodings.contains(&NDR) {
                ContextResult::UnknownEncoding
            } else {
                ContextResult::Accepted
            };
            contexts.push(Context { id, outcome });
        }
        Ok(Self { max_received, group, contexts })
    }

    /// Returns the id of the accepted context.
    pub(super) fn accepted(&self) -> Option<u16> {
        self.contexts
            .iter()
            .find(|context| context.outcome == ContextResult::Accepted)
            .map(|context| context.id)
    }

    /// Returns the acknowledgment with the result for each context.
    pub(super) fn acknowledge(&self, header: &FragmentHeader, longest: u16, address: &str) -> Vec<u8> {
        let group = if self.group == 0 { 0x53f0 } else { self.group };
        let mut writer = ByteWriter::new();
        writer.u16(longest).u16(longest).u32(group);
        match address {
            "" => writer.u16(0),
            _ => writer.u16(address.len() as u16 + 1).put(address.as_bytes()).u8(0),
        };
        writer.align(4).u8(self.contexts.len() as u8).u8(0).u16(0);
        for context in &self.contexts {
            let (result, reason) = match context.outcome {
                ContextResult::Accepted => (0, 0),
                ContextResult::UnknownInterface => (2, 1),
                ContextResult::UnknownEncoding => (2, 2),
                ContextResult::Features => (3, 0),
            };
            let (id, version) = if context.outcome == ContextResult::Accepted { NDR } else { ([0; 16], 0) };
            writer.u16(result).u16(reason).put(&id).u32(version);
        }
        let packet_type = match header.packet_type {
            PacketType::AlterContext => PacketType::AlterContextResponse,
            _ => PacketType::BindAck,
        };
        header.response_fragment(packet_type, IS_FIRST | IS_LAST, &writer.finish())
    }
}

fn syntax(reader: &mut ByteReader<'_>) -> Result<Syntax, MalformedRpc> {
    Ok((reader.array()?, reader.u32()?))
}

/// Refuses authentication at the RPC level. The session has authenticated the client already.
pub(super) fn bind_nak(header: &FragmentHeader) -> Vec<u8> {
    const AUTHENTICATION_NOT_RECOGNIZED: u16 = 8;
    let mut writer = ByteWriter::new();
    writer.u16(AUTHENTICATION_NOT_RECOGNIZED).u8(1).u8(5).u8(0);
    header.response_fragment(PacketType::BindNak, IS_FIRST | IS_LAST, &writer.finish())
}

/// The target of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct RpcCall {
    pub(super) context: u16,
    pub(super) operation: u16,
}

/// Parses a fragment of a request. Returns the target and the arguments.
pub(super) fn parse_request<'a>(
    header: &FragmentHeader,
    fragment: &'a [u8],
) -> Result<(RpcCall, &'a [u8]), MalformedRpc> {
    let mut reader = ByteReader::from(fragment, HEADER_SIZE);
    let (_, context, operation) = (reader.u32()?, reader.u16()?, reader.u16()?);
    if header.has_object {
        reader.skip(16)?;
    }
    if header.is_authenticated {
        return Err(MalformedRpc);
    }
    Ok((RpcCall { context, operation }, reader.rest()))
}

/// Returns a fragment of a response. `remaining` is the number of result bytes from this fragment on.
pub(super) fn response(
    header: &FragmentHeader,
    call: &RpcCall,
    is_first: bool,
    is_last: bool,
    remaining: usize,
    results: &[u8],
) -> Vec<u8> {
    let flags = if is_first { IS_FIRST } else { 0 } | if is_last { IS_LAST } else { 0 };
    let mut writer = ByteWriter::new();
    writer.u32(remaining as u32).u16(call.context).u16(0).put(results);
    header.response_fragment(PacketType::Response, flags, &writer.finish())
}

/// The reason for a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    UnknownOperation = 0x1c01_0002,
    UnknownInterface = 0x1c01_0003,
    BadArguments = 0x0000_06f7,
}

impl From<Truncated> for Fault {
    fn from(_: Truncated) -> Self {
        Self::BadArguments
    }
}

/// Returns the response to a failed call.
pub(super) fn fault(header: &FragmentHeader, call: &RpcCall, fault: Fault) -> Vec<u8> {
    const DID_NOT_EXECUTE: u8 = 0x20;
    let mut writer = ByteWriter::new();
    writer.u32(32).u16(call.context).u16(0).u32(fault as u32).u32(0);
    header.response_fragment(PacketType::Fault, IS_FIRST | IS_LAST | DID_NOT_EXECUTE, &writer.finish())
}
