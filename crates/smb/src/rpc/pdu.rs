//! Fragments of DCE/RPC over a connection (C706 chapter 12).

use super::Malformed;
use crate::wire::cursor::{Reader, Truncated, Writer};

/// Bytes of the header of every fragment.
const HEADER: usize = 16;
/// Bytes before the arguments of a request, and before the results in a response.
pub(super) const REQUEST_HEADER: usize = 24;
/// Contexts that a client can bind, and syntaxes that it can offer for each.
const MAX_CONTEXTS: u8 = 16;

const IS_FIRST: u8 = 1;
const IS_LAST: u8 = 2;
const HAS_OBJECT: u8 = 0x80;
/// Little-endian, ASCII, IEEE.
const REPRESENTATION: [u8; 4] = [0x10, 0, 0, 0];

/// A syntax: an identifier and a version.
type Syntax = ([u8; 16], u32);
/// The interface of the server service, version 3.0.
const SRVSVC: Syntax = (*b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88", 3);
/// NDR, version 2.
const NDR: Syntax = (*b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60", 2);
/// The beginning of what asks for features rather than for an encoding.
const FEATURES: [u8; 8] = *b"\x2c\x1c\xb7\x6c\x12\x98\x40\x45";

impl From<Truncated> for Malformed {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// What a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
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
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    has_object: bool,
    pub(super) is_authenticated: bool,
    call_id: u32,
}

impl Header {
    /// How long the fragment is that begins here; none if that cannot be told yet.
    pub(super) fn length_of(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let length = usize::from(Reader::from(bytes, 8).u16()?);
        if bytes[0] != 5 || !(HEADER..=super::MAX_REQUEST).contains(&length) {
            return Err(Malformed);
        }
        Ok(Some(length))
    }

    pub(super) fn parse(fragment: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(fragment);
        let (version, _, kind, flags) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        let representation: [u8; 4] = reader.array()?;
        let (_, authentication, call_id) = (reader.u16()?, reader.u16()?, reader.u32()?);
        if version != 5 || representation[0] != REPRESENTATION[0] {
            return Err(Malformed);
        }
        let kinds = [Kind::Request, Kind::Bind, Kind::AlterContext];
        let kind = kinds.into_iter().find(|known| *known as u8 == kind).ok_or(Malformed)?;
        Ok(Self {
            kind,
            is_first: flags & IS_FIRST != 0,
            is_last: flags & IS_LAST != 0,
            has_object: flags & HAS_OBJECT != 0,
            is_authenticated: authentication != 0,
            call_id,
        })
    }

    /// A fragment of the server in answer to this one.
    fn answer(&self, kind: Kind, flags: u8, body: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(5).u8(0).u8(kind as u8).u8(flags).put(&REPRESENTATION);
        writer.u16((HEADER + body.len()) as u16).u16(0).u32(self.call_id).put(body);
        writer.finish()
    }
}

/// What a client wants to be bound to.
#[derive(Clone, Debug)]
pub(super) struct Bind {
    pub(super) max_received: u16,
    group: u32,
    contexts: Vec<Context>,
}

#[derive(Clone, Debug)]
struct Context {
    id: u16,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    UnknownInterface,
    UnknownEncoding,
    /// Features that can be agreed on: none.
    Features,
}

impl Bind {
    pub(super) fn parse(fragment: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::from(fragment, HEADER);
        let (_, max_received, group) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let (count, _, _) = (reader.u8()?, reader.u8()?, reader.u16()?);
        if count > MAX_CONTEXTS {
            return Err(Malformed);
        }
        let mut contexts = vec![];
        for _ in 0..count {
            let (id, encodings, _) = (reader.u16()?, reader.u8()?, reader.u8()?);
            if encodings > MAX_CONTEXTS {
                return Err(Malformed);
            }
            let interface = syntax(&mut reader)?;
            let encodings = (0..encodings).map(|_| syntax(&mut reader)).collect::<Result<Vec<_>, _>>()?;
            let outcome = if encodings.iter().any(|(id, _)| id.starts_with(&FEATURES)) {
                Outcome::Features
            } else if interface != SRVSVC {
                Outcome::UnknownInterface
            } else if !encodings.contains(&NDR) {
                Outcome::UnknownEncoding
            } else {
                Outcome::Accepted
            };
            contexts.push(Context { id, outcome });
        }
        Ok(Self { max_received, group, contexts })
    }

    /// The context that is bound to the interface now.
    pub(super) fn accepted(&self) -> Option<u16> {
        self.contexts.iter().find(|context| context.outcome == Outcome::Accepted).map(|context| context.id)
    }

    /// Says what came of each context.
    pub(super) fn acknowledge(&self, header: &Header, longest: u16, address: &str) -> Vec<u8> {
        let group = if self.group == 0 { 0x53f0 } else { self.group };
        let mut writer = Writer::new();
        writer.u16(longest).u16(longest).u32(group);
        match address {
            "" => writer.u16(0),
            _ => writer.u16(address.len() as u16 + 1).put(address.as_bytes()).u8(0),
        };
        writer.align(4).u8(self.contexts.len() as u8).u8(0).u16(0);
        for context in &self.contexts {
            let (result, reason) = match context.outcome {
                Outcome::Accepted => (0, 0),
                Outcome::UnknownInterface => (2, 1),
                Outcome::UnknownEncoding => (2, 2),
                Outcome::Features => (3, 0),
            };
            let (id, version) = if context.outcome == Outcome::Accepted { NDR } else { ([0; 16], 0) };
            writer.u16(result).u16(reason).put(&id).u32(version);
        }
        let kind = match header.kind {
            Kind::AlterContext => Kind::AlterContextResponse,
            _ => Kind::BindAck,
        };
        header.answer(kind, IS_FIRST | IS_LAST, &writer.finish())
    }
}

fn syntax(reader: &mut Reader<'_>) -> Result<Syntax, Malformed> {
    Ok((reader.array()?, reader.u32()?))
}

/// Refuses to be bound: the client wants to authenticate, which its session did.
pub(super) fn bind_nak(header: &Header) -> Vec<u8> {
    const AUTHENTICATION_NOT_RECOGNIZED: u16 = 8;
    let mut writer = Writer::new();
    writer.u16(AUTHENTICATION_NOT_RECOGNIZED).u8(1).u8(5).u8(0);
    header.answer(Kind::BindNak, IS_FIRST | IS_LAST, &writer.finish())
}

/// What a request calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) context: u16,
    pub(super) operation: u16,
}

/// Reads a fragment of a request: what it calls, and arguments.
pub(super) fn parse_request<'a>(header: &Header, fragment: &'a [u8]) -> Result<(Call, &'a [u8]), Malformed> {
    let mut reader = Reader::from(fragment, HEADER);
    let (_, context, operation) = (reader.u32()?, reader.u16()?, reader.u16()?);
    if header.has_object {
        reader.skip(16)?;
    }
    if header.is_authenticated {
        return Err(Malformed);
    }
    Ok((Call { context, operation }, reader.rest()))
}

/// A fragment of a response. `left`: bytes of results from here on.
pub(super) fn response(
    header: &Header,
    call: &Call,
    is_first: bool,
    is_last: bool,
    left: usize,
    results: &[u8],
) -> Vec<u8> {
    let flags = if is_first { IS_FIRST } else { 0 } | if is_last { IS_LAST } else { 0 };
    let mut writer = Writer::new();
    writer.u32(left as u32).u16(call.context).u16(0).put(results);
    header.answer(Kind::Response, flags, &writer.finish())
}

/// Why a call has no results.
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

/// The answer to a call that fails.
pub(super) fn fault(header: &Header, call: &Call, fault: Fault) -> Vec<u8> {
    const DID_NOT_EXECUTE: u8 = 0x20;
    let mut writer = Writer::new();
    writer.u32(32).u16(call.context).u16(0).u32(fault as u32).u32(0);
    header.answer(Kind::Fault, IS_FIRST | IS_LAST | DID_NOT_EXECUTE, &writer.finish())
}
